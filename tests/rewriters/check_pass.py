"""What every rewriting pass has to keep: validity, interface, numbers, and a truthful ``modified``."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from tests.graph.reading import parsed

Feeds = dict[str, Any]


def assert_pass_keeps_meaning(make_pass: Any, text: str, feeds: Feeds, *, modifies: bool = True) -> ir.Model:
    """Runs a pass over the model of ``text`` and gives the result.

    Args:
        make_pass: From the model to the pass.
        text: As for ``parsed``.
        feeds: Inputs for the comparison of numbers.
        modifies: Whether the pass must find something to do.
    """
    model = parsed(text)
    rewrite = make_pass(model)
    before = ir.to_proto(model)
    numbers = run(before, feeds)
    result = rewrite(model)
    assert result.modified is modifies
    after = ir.to_proto(result.model)
    if not modifies:
        assert after.SerializeToString(deterministic=True) == before.SerializeToString(deterministic=True)
    onnx.checker.check_model(after, full_check=True)
    for side in ("input", "output"):
        interface = [[v.SerializeToString() for v in getattr(m.graph, side)] for m in (before, after)]
        assert interface[0] == interface[1]
    for old, new in zip(numbers, run(after, feeds), strict=True):
        np.testing.assert_array_equal(new, old)
    assert not make_pass(result.model)(result.model).modified, "a second run finds nothing"
    assert not readers_outside(result.model)
    return result.model


def readers_outside(model: ir.Model) -> list[tuple[str | None, ir.Node]]:
    """The values of ``model`` that nodes read which are not in it: they seem to be needed where they are not."""
    inside = set(model.graph.all_nodes())
    values = [
        v for graph in (model.graph, *model.graph.subgraphs()) for v in (*graph.inputs, *graph.initializers.values())
    ]
    values += [output for node in inside for output in node.outputs]
    return [(v.name, usage.node) for v in values for usage in v.uses() if usage.node not in inside]


def run(model: onnx.ModelProto, feeds: Feeds) -> list[Any]:
    """All outputs in ONNX Runtime without its optimiser."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {name: np.asarray(value) for name, value in feeds.items()}))


def operators(model: ir.Model) -> list[str]:
    """The operators of all nodes, outer before inner."""
    return [node.op_type for node in model.graph.all_nodes()]
