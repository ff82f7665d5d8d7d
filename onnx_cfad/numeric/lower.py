"""Operators that ONNX Runtime's CPU provider lacks in float64, written in ones that it has.

A convolution is a sum over the positions of its kernel: each is a strided slice of the padded input times a matrix.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.walk import graphs_of
from onnx_cfad.names import Namer

_OLDEST_OPSET = 13
_AXES_AS_INPUT = 18  # of a reduction
_TO_THE_END = 2**62


def lower(model: ir.Model) -> None:
    """Rewrites every Conv of known kernel, InstanceNormalization and GlobalAveragePool of a float64 model, in place."""
    opset = model.opset_imports.get("", 1)
    if opset < _OLDEST_OPSET:
        return
    namer = Namer.of_model(model)
    for graph in graphs_of(model.graph):
        for node in list(graph):
            lowering = _LOWERINGS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            recorder = _Recorder([], namer, opset)
            result = lowering(node, recorder) if lowering is not None else None
            if result is not None:
                _replace(graph, node, recorder.nodes, result)


def _replace(graph: ir.Graph, node: ir.Node, nodes: Sequence[ir.Node], result: ir.Value) -> None:
    output = node.outputs[0]
    result.type, result.shape = output.type, output.shape
    graph.insert_before(node, nodes)
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    name = output.name
    graph.remove(node, safe=True)
    result.name = name


@dataclasses.dataclass
class _Recorder:
    """Makes nodes with fresh names."""

    nodes: list[ir.Node]
    namer: Namer
    opset: int

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: int) -> ir.Value:
        """The first output of a new node."""
        named = [ir.AttrInt64(name, value) for name, value in attributes.items()]
        return self.record(ir.Node("", op_type, list(inputs), named))

    def ints(self, values: Sequence[int]) -> ir.Value:
        """A constant."""
        tensor = ir.Tensor(np.asarray(values, dtype=np.int64))
        return self.record(ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)]))

    def mean(self, x: ir.Value, axis: int) -> ir.Value:
        """The mean over one axis, which is kept."""
        if self.opset >= _AXES_AS_INPUT:
            return self.op("ReduceMean", x, self.ints([axis]))
        return self.record(ir.Node("", "ReduceMean", [x], [ir.AttrInt64s("axes", [axis])]))

    def cut(
        self, x: ir.Value, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]
    ) -> ir.Value:
        """A strided slice."""
        return self.op("Slice", x, *map(self.ints, (starts, ends, axes, steps)))

    def record(self, node: ir.Node) -> ir.Value:
        node.name = self.namer.fresh(f"lower.{node.op_type}")
        node.outputs[0].name = self.namer.fresh(f"lower.{node.op_type}.value")
        self.nodes.append(node)
        return node.outputs[0]


def _conv(node: ir.Node, to: _Recorder) -> ir.Value | None:
    x, w, *rest = node.inputs
    weight_shape = None if w is None or w.shape is None else [d for d in w.shape if isinstance(d, int)]
    if x is None or w is None or w.shape is None or weight_shape is None or len(weight_shape) != w.shape.rank():
        return None
    out_channels, in_group, *kernel = weight_shape
    pads = _pads(node, kernel)
    if pads is None:
        return None
    rank, group = len(kernel), node.attributes.get_int("group", 1)
    strides, dilations = (list(node.attributes.get_ints(k, [1] * rank)) for k in ("strides", "dilations"))
    if any(pads):
        x = to.op("Pad", x, to.ints([0, 0, *pads[:rank], 0, 0, *pads[rank:]]))
    spatial = list(range(2, rank + 2))
    total: ir.Value | None = None
    shape: ir.Value | None = None
    for position in itertools.product(*map(range, kernel)):
        starts = [k * d for k, d in zip(position, dilations, strict=True)]
        left = [(size - 1 - k) * d for size, k, d in zip(kernel, position, dilations, strict=True)]
        seen = to.cut(x, starts, [-n if n else _TO_THE_END for n in left], spatial, strides)
        shape = shape or to.op("Shape", seen)
        columns = to.op("Reshape", seen, to.ints([0, group, in_group, -1]))
        matrix = to.cut(w, list(position), [k + 1 for k in position], spatial, [1] * rank)
        matrix = to.op("Reshape", matrix, to.ints([group, out_channels // group, in_group]))
        term = to.op("MatMul", matrix, columns)
        total = term if total is None else to.op("Add", total, term)
    if total is None or shape is None:
        return None
    full = to.op("Concat", _part(shape, 0, 1, to), to.ints([out_channels]), _part(shape, 2, _TO_THE_END, to), axis=0)
    y = to.op("Reshape", total, full)
    if not rest or rest[0] is None:
        return y
    return to.op("Add", y, to.op("Reshape", rest[0], to.ints([out_channels, *[1] * rank])))


def _pads(node: ir.Node, kernel: Sequence[int]) -> list[int] | None:
    """The paddings, begins then ends; None where they depend on the input's size."""
    rank = len(kernel)
    mode = node.attributes.get_string("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return list(node.attributes.get_ints("pads", [0] * (2 * rank)))
    if mode == "VALID":
        return [0] * (2 * rank)
    if any(stride != 1 for stride in node.attributes.get_ints("strides", [1] * rank)):
        return None
    totals = [(k - 1) * d for k, d in zip(kernel, node.attributes.get_ints("dilations", [1] * rank), strict=True)]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return [*small, *large] if mode == "SAME_UPPER" else [*large, *small]


def _part(shape: ir.Value, start: int, end: int, to: _Recorder) -> ir.Value:
    return to.cut(shape, [start], [end], [0], [1])


def _instance_normalization(node: ir.Node, to: _Recorder) -> ir.Value | None:
    x, scale, bias = node.inputs
    epsilon = to.record(ir.Node("", "Constant", [], [_float64("value", node.attributes.get_float("epsilon", 1e-5))]))
    rows = to.op("Reshape", x, to.ints([0, 0, -1]))
    centred = to.op("Sub", rows, to.mean(rows, 2))
    variance = to.mean(to.op("Mul", centred, centred), 2)
    normal = to.op("Div", centred, to.op("Sqrt", to.op("Add", variance, epsilon)))
    column = to.ints([-1, 1])
    scaled = to.op("Mul", normal, to.op("Reshape", scale, column))
    return to.op("Reshape", to.op("Add", scaled, to.op("Reshape", bias, column)), to.op("Shape", x))


def _float64(name: str, value: float) -> ir.Attr:
    return ir.AttrTensor(name, ir.Tensor(np.asarray(value, dtype=np.float64)))


def _global_average_pool(node: ir.Node, to: _Recorder) -> ir.Value | None:
    shape = to.op("Shape", node.inputs[0])
    spatial = _part(shape, 2, _TO_THE_END, to)
    ones = to.op("Div", spatial, spatial)
    mean = to.mean(to.op("Reshape", node.inputs[0], to.ints([0, 0, -1])), 2)
    return to.op("Reshape", mean, to.op("Concat", _part(shape, 0, 2, to), ones, axis=0))


_LOWERINGS = {
    "Conv": _conv,
    "InstanceNormalization": _instance_normalization,
    "GlobalAveragePool": _global_average_pool,
}
