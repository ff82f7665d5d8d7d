"""The shape that all elements of a sequence share, as far as it is known; kept as the shape of the sequence value.

A dimension that differs between elements, or that is not known, is anonymous (``SymbolicDim(None)``): two reads of the
sequence need not agree on it. An empty sequence says nothing about its elements.

Neither does what is computed from an element of a sequence that is empty as far as is known: a run that gets there
fails. A loop that starts with an empty list and reads it in one branch has added to it in the other one before; the
next pass over its body knows by what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from onnx_cfad.graph.trips import constant_of

Dim = int | ir.SymbolicDim

_MAKERS = frozenset(
    ("Identity", "SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SplitToSequence")
)
SEQUENCE_OPERATORS = _MAKERS | {"SequenceAt", "ConcatFromSequence"}


class SequenceShapes:
    """Element shapes of sequences, operator by operator.

    Args:
        fresh: Makes a symbolic dimension that stands for an unknown one.
    """

    def __init__(self, fresh: Callable[[], ir.SymbolicDim]) -> None:
        self._fresh = fresh
        self.empty: set[ir.Value] = set()
        self.unreached: set[ir.Value] = set()

    def follow(self, node: ir.Node) -> None:
        """Marks the outputs of an operator that reads an element of an empty sequence, or what follows from one."""
        inputs = [value for value in node.inputs if value is not None]
        reads_nothing = node.op_type == "SequenceAt" and inputs[0] in self.empty
        if reads_nothing or not self.unreached.isdisjoint(inputs):
            self.mark(node.outputs)
        else:
            self.unreached.difference_update(node.outputs)

    def mark(self, values: Iterable[ir.Value]) -> None:
        """Says that no run gets to ``values``, as far as is known."""
        for value in values:
            (self.empty if isinstance(value.type, ir.SequenceType) else self.unreached).add(value)

    def infer(self, node: ir.Node) -> None:
        """Sets the shape of the outputs of a sequence operator."""
        output, inputs = node.outputs[0], list(node.inputs)
        self.empty.discard(output)
        first = inputs[0] if inputs else None
        if node.op_type == "Identity":
            self._pass_on(node)
        elif node.op_type == "SequenceEmpty":
            output.shape = None
            self.empty.add(output)
        elif node.op_type == "SequenceConstruct":
            output.shape = merge_all([v.shape for v in inputs if v is not None])
        elif node.op_type == "SequenceInsert" and first is not None and inputs[1] is not None:
            output.shape = inputs[1].shape if first in self.empty else merge(first.shape, inputs[1].shape)
        elif node.op_type == "SequenceErase" and first is not None:
            output.shape = first.shape
            if first in self.empty:
                self.empty.add(output)
        elif node.op_type == "SequenceAt" and first is not None:
            output.shape = self._named(first.shape)
        elif node.op_type == "SplitToSequence" and first is not None:
            output.shape = _part(node, first.shape)
        elif node.op_type == "ConcatFromSequence" and first is not None:
            output.shape = self._named(_whole(node, first.shape))

    def _pass_on(self, node: ir.Node) -> None:
        source, output = node.inputs[0], node.outputs[0]
        if source is not None and isinstance(source.type, ir.SequenceType):
            output.type, output.shape = source.type, source.shape
            if source in self.empty:
                self.empty.add(output)

    def _named(self, shape: ir.Shape | None) -> ir.Shape | None:
        if shape is None:
            return None
        return ir.Shape([self._fresh() if isinstance(d, ir.SymbolicDim) and d.value is None else d for d in shape.dims])


def merge(a: ir.Shape | None, b: ir.Shape | None) -> ir.Shape | None:
    """What two elements have in common; None where not even the rank is."""
    if a is None or b is None or a.rank() != b.rank():
        return None
    return ir.Shape([x if _same(x, y) else None for x, y in zip(a.dims, b.dims, strict=True)])


def merge_all(shapes: Sequence[ir.Shape | None]) -> ir.Shape | None:
    """What all elements have in common."""
    total = shapes[0] if shapes else None
    for shape in shapes[1:]:
        total = merge(total, shape)
    return total


def _same(a: Dim, b: Dim) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return a.value is not None and a.value == b.value


def _part(node: ir.Node, shape: ir.Shape | None) -> ir.Shape | None:
    if shape is None:
        return None
    dims: list[Dim | None] = list(shape.dims)
    axis = node.attributes.get_int("axis", 0)
    split = node.inputs[1] if len(node.inputs) > 1 else None
    if split is None and not node.attributes.get_int("keepdims", 1):
        del dims[axis]
    else:
        dims[axis] = piece_length(node)
    return ir.Shape(dims)


def piece_length(split: ir.Node) -> int | None:
    """The one length of the parts that a SplitToSequence makes, along its axis; None where they may differ."""
    sizes, source = split.inputs[1] if len(split.inputs) > 1 else None, split.inputs[0]
    if sizes is None:
        return 1
    expand = sizes.producer()
    if expand is not None and expand.op_type == "Expand":  # the sizes add up to the length, whatever that is
        known = constant_of(expand.inputs[0])
        return int(known.reshape(-1)[0]) if known is not None and known.size == 1 else None
    known = constant_of(sizes)
    if known is None or source is None or source.shape is None:
        return None
    if known.ndim == 0:  # the last part may be shorter
        length, size = source.shape[split.attributes.get_int("axis", 0)], int(known)
        return size if isinstance(length, int) and size > 0 and length % size == 0 else None
    lengths = {int(size) for size in known}
    return next(iter(lengths)) if len(lengths) == 1 else None


def _whole(node: ir.Node, shape: ir.Shape | None) -> ir.Shape | None:
    if shape is None:
        return None
    dims: list[Dim | None] = list(shape.dims)
    axis = node.attributes.get_int("axis", 0)
    if node.attributes.get_int("new_axis", 0):
        dims.insert(axis if axis >= 0 else axis + len(dims) + 1, None)
    else:
        dims[axis] = None
    return ir.Shape(dims)
