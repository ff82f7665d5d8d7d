"""Optional tensors that cross control flow become lists of at most one element, which can be run backwards.

Given::

    o = Optional <type = tensor(float)> ()
    r, p = Loop (n, c, x, o) <body (i, go, v, optional(tensor(float)) e) {
        h = OptionalHasElement (e)   g = OptionalGetElement (e) ...   q = Optional (v) } -> q>

Result::

    o = SequenceEmpty ()
    r, p = Loop (n, c, x, o) <body (i, go, v, seq(tensor(float)) e) {
        k = SequenceLength (e)   h = Greater (k, 0)   g = SequenceAt (e, 0) ...   q = SequenceConstruct (v) } -> q>

TorchScript writes a variable that is None at first so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.names import Namer
from onnx_cfad.rewriters.optional_borders import list_of_input, optional_output
from onnx_cfad.rewriters.optional_groups import READS, Group, groups, replace
from onnx_cfad.rewriters.recorder import Recorder


class ListOptionalsPass(ir.passes.InPlacePass):
    """Rewrites every group of optional tensors that a Loop carries or an If returns, at any depth.

    A group is what is the same optional from one scope to the next. One that is an output of the model is made an
    optional again at its end. For optional lists see ``flag_optionals``, since a list holds no lists.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites what can be."""
        self._namer = Namer.on_demand(model)
        found = [
            group
            for group in groups(model, _is_optional_tensor)
            if all(_may_change(value, group) for value in group.members)
        ]
        for group in found:
            self._rewrite(group.members, model.graph)
        return ir.passes.PassResult(model, bool(found))

    def _rewrite(self, group: Sequence[ir.Value], main: ir.Graph) -> None:
        kind = next(v.type for v in group if isinstance(v.type, ir.OptionalType))
        assert isinstance(kind.elem_type, ir.TensorType)
        for value in group:
            if value.is_graph_input() and value.graph is main:
                held, _ = list_of_input(value, main, self._namer, lambda record, held: record.SequenceConstruct(held))
            else:
                value.type = ir.SequenceType(kind.elem_type)
                value.shape = value.shape if value.shape is not None and value.shape.dims else None
                held = self._list_of_made(value, kind.elem_type.dtype)
            for use in list(held.uses()):
                if use.node.op_type in READS:
                    self._settle(use.node, held)
            if held in main.outputs:
                record = Recorder(self._namer, "optional")
                there = self._is_full(record, held)
                main.extend(record.nodes)
                optional_output(main, list(main.outputs).index(held), kind, there, self._namer, self._content)

    def _list_of_made(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """``value``, or where an Optional makes it, a list of its content in its place."""
        node = value.producer()
        if node is None or node.op_type != "Optional":
            return value
        record, content = Recorder(self._namer, "optional"), [x for x in node.inputs if x is not None]
        made = record.SequenceConstruct(*content) if content else record.SequenceEmpty(dtype=int(dtype))
        replace(node, record.nodes, made)
        return made

    def _settle(self, read: ir.Node, held: ir.Value) -> None:
        """Replaces a read of an optional by one of its list."""
        record = Recorder(self._namer, "optional")
        made = self._content(record, held) if read.op_type == "OptionalGetElement" else self._is_full(record, held)
        replace(read, record.nodes, made)

    @staticmethod
    def _content(record: Recorder, held: ir.Value) -> ir.Value:
        return record.SequenceAt(held, _number(record, 0))

    @staticmethod
    def _is_full(record: Recorder, held: ir.Value) -> ir.Value:
        count = record.SequenceLength(held)
        count.type, count.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
        return record.Greater(count, _number(record, 0))


def _number(record: Recorder, number: int) -> ir.Value:
    value = record.constant(np.int64(number))
    value.const_value = ir.tensor(np.int64(number))
    return value


def _is_optional_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.OptionalType) and isinstance(value.type.elem_type, ir.TensorType)


def _may_change(value: ir.Value, group: Group) -> bool:
    return (value.type is None or _is_optional_tensor(value)) and group.is_read_only_as_optional(value)
