"""Loop and Scan for ONNX's reference evaluator, as the specification says.

Those that come with it (onnx 1.23) refuse reversed directions and axes other than 0, join the scan outputs of a Loop
along their first axis instead of stacking them, and want both M and cond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

Values = Sequence[Any]  # arrays, and lists of arrays for sequences


class Loop(OpRun):
    """Runs the body while cond holds, at most M times."""

    op_domain = ""
    body: ReferenceEvaluator

    def need_context(self) -> bool:
        """The body may read values of the scopes around it."""
        return True

    def _run(self, M: Any, cond: Any = None, *carry: Any, context: Mapping[str, Any], **_: Any) -> tuple[Any, ...]:
        limit = np.inf if M is None else int(np.squeeze(M))
        go_on = cond is None or bool(np.squeeze(cond))
        kept: list[Values] = []
        state: Values = carry
        while go_on and len(kept) < limit:
            inputs = (np.array(len(kept), dtype=np.int64), np.array(go_on), *state)
            results = _run_body(self.body, context, inputs)
            go_on = bool(np.squeeze(results[0]))
            state = results[1 : 1 + len(carry)]
            kept.append(results[1 + len(carry) :])
        return (*state, *_stacked(_graph_of(self.body), 1 + len(carry), kept))


class Scan(OpRun):
    """Runs the body once for each slice of the scan inputs."""

    op_domain = ""
    body: ReferenceEvaluator
    num_scan_inputs: int

    def need_context(self) -> bool:
        """The body may read values of the scopes around it."""
        return True

    def _run(self, *operands: Any, context: Mapping[str, Any], **_: Any) -> tuple[Any, ...]:
        carries = len(operands) - self.num_scan_inputs
        state, scanned = operands[:carries], operands[carries:]
        in_axes, in_directions = self._per_value("scan_input", len(scanned))
        slices = [np.moveaxis(x, axis, 0) for x, axis in zip(scanned, in_axes, strict=True)]
        slices = [x[::-1] if backwards else x for x, backwards in zip(slices, in_directions, strict=True)]
        kept: list[Values] = []
        for inputs in zip(*slices, strict=True):
            results = _run_body(self.body, context, (*state, *inputs))
            state = results[:carries]
            kept.append(results[carries:])
        stacks = _stacked(_graph_of(self.body), carries, kept)
        out_axes, out_directions = self._per_value("scan_output", len(stacks))
        stacks = [x[::-1] if backwards else x for x, backwards in zip(stacks, out_directions, strict=True)]
        return (*state, *(np.moveaxis(x, 0, axis) for x, axis in zip(stacks, out_axes, strict=True)))

    def _per_value(self, prefix: str, count: int) -> tuple[list[int], list[int]]:
        """The axes and directions of the scan inputs or outputs; both are zero where not given."""
        axes = getattr(self, f"{prefix}_axes", None) or [0] * count
        directions = getattr(self, f"{prefix}_directions", None) or [0] * count
        return list(axes), list(directions)


def _stacked(body: GraphProto, first: int, kept: Sequence[Values]) -> list[np.ndarray]:
    """The scan outputs of all iterations; of none, an empty array with the dimensions that the body declares."""
    if kept:
        return [np.stack([np.asarray(values[i]) for values in kept]) for i in range(len(kept[0]))]
    empty: list[np.ndarray] = []
    for output in body.output[first:]:
        kind = output.type.tensor_type
        shape = (0, *(dim.dim_value for dim in kind.shape.dim))
        empty.append(np.zeros(shape, dtype=helper.tensor_dtype_to_np_dtype(kind.elem_type)))
    return empty


def _run_body(body: ReferenceEvaluator, context: Mapping[str, Any], inputs: Values) -> Values:
    """The body's outputs; its inputs hide values of the same name around it."""
    names = [str(name) for name in body.input_names]
    results = body.run(None, dict(context) | dict(zip(names, inputs, strict=True)))
    assert isinstance(results, list)
    return results


def _graph_of(body: ReferenceEvaluator) -> GraphProto:
    assert isinstance(body.proto_, GraphProto)
    return body.proto_
