# Claim: the gradient model of an exported network with control flow has at most 3 nodes beyond the network's own for
# each node of it that is differentiated; by the float inputs, and by the weights.
"""Nodes of gradients: ``node_counts.py [MODEL ...]``, by default of every model in models/.

Nodes of all scopes count, those of subgraphs once. A node is differentiated when a derivative passes through one of its
outputs. Nothing is run. The plan is the default one: what replays, solvers and branches add is in the count.
"""

from __future__ import annotations

import sys
from pathlib import Path

import machine
import onnx
from meter import Bench
from onnx import TensorProto

from onnx_cfad.differentiate import activity_of, differentiate
from onnx_cfad.graph.regions import control_flow
from onnx_cfad.model import load, normalise
from onnx_cfad.options import Options
from onnx_cfad.selection import select

MODELS = Path(__file__).parent.parent / "models"
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
BAR = 3


def differentiated(path: Path, options: Options) -> int:
    """The nodes of the model that a derivative passes through."""
    model = normalise(load(path))
    activity = activity_of(model, select(model, options, control_flow(model)))
    return sum(any(map(activity.is_active, node.outputs)) for node in model.graph.all_nodes())


def main() -> None:
    bench = Bench("node_counts")
    for path in map(Path, sys.argv[1:] or sorted(MODELS.glob("*.onnx"))):
        weights = any(tensor.data_type in FLOATS for tensor in onnx.load(path).graph.initializer)
        given = {"inputs": Options(), "weights": Options(wrt=(), wrt_initializers=True)}
        for by, options in given.items() if weights else [("inputs", Options())]:
            gradient = differentiate(load(path), options)
            before, after = (machine.count_nodes(m.graph) for m in (onnx.load(path), gradient.proto()))
            active = differentiated(path, options)
            adjoints = {name: str(decision.adjoint) for name, decision in gradient.plan.decisions.items()}
            counts = {"nodes": before, "differentiated": active, "with_gradient": after, "plan": adjoints}
            bench.report({"model": path.stem, "by": by, **counts})
            claim = f"{path.stem} by its {by}: nodes beyond its own for each that is differentiated"
            bench.claim(claim, (after - before) / active, at_most=BAR)
    bench.finish()


if __name__ == "__main__":
    main()
