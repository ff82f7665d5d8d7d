"""Residuals: which values of a region the reverse pass reads, and for each whether it is saved or computed again.

Tracing the rules leaves a reverse graph that reads primal values of another scope. Each of them is replaced by

1. a value that is there anyway (iteration number, slice of a scan input, captured values);
2. a copy of the operator that makes it, where that is cheap and its inputs are there;
3. a value that the forward pass saves;
4. a copy of the operator that makes it, whatever it costs, where saving is impossible and it is pure;
5. a saved sequence, where shapes vary.

Only the shape of a value is often needed: then the shape is saved, not the value.
"""

from __future__ import annotations

import abc

import onnx_ir as ir

from onnx_cfad.adjoint.loop_slice import copy_slice, slice_loop
from onnx_cfad.adjoint.records import Records
from onnx_cfad.adjoint.replay import copy_node
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import captured_by, is_branch, is_loop, label, loop_site
from onnx_cfad.names import Namer

_CHEAP = frozenset(
    ("Add", "Sub", "Mul", "Div", "Neg", "Not", "And", "Or", "Xor", "Cast", "CastLike", "Identity", "Where", "Mod")
    + ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Min", "Max", "Abs", "Sign", "Floor", "Ceil")
    + ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Shape", "Size", "Gather", "Slice", "Concat", "Split")
    + ("Expand", "Tile", "Pad", "Constant", "ConstantOfShape", "Range", "Trilu", "IsNaN", "IsInf")
)
_SHAPES = frozenset(("Shape", "Size", "SequenceLength"))


class Keeper(abc.ABC):
    """How one kind of region keeps values for its reverse pass."""

    @abc.abstractmethod
    def bound(self, value: ir.Value) -> ir.Value | None:
        """The value of the reverse scope that equals ``value`` without anything being saved, or None."""

    @abc.abstractmethod
    def save(self, value: ir.Value, *, must: bool) -> ir.Value | None:
        """Has the forward pass save ``value`` and gives what stands for it in the reverse scope.

        None where the region cannot (``must`` asks for the last resort: a sequence, or an output of odd shape).
        """

    def head(self) -> list[ir.Node]:
        """Nodes that the reverse graph runs first, which make what ``save`` promised."""
        return []

    def same_shape_outside(self, value: ir.Value) -> ir.Value | None:
        """A value outside the region with the shape of ``value``, or None."""
        del value
        return None


def resolve(reverse: ir.Graph, forward: ir.Graph, keeper: Keeper, records: Records, namer: Namer) -> None:
    """Replaces every value of ``forward`` that ``reverse`` reads at any depth by one that exists there.

    Args:
        reverse: The closed reverse graph; copies go to its front.
        forward: The primal region, extended where values are saved.
        keeper: How the region saves.
        records: What the forward pass recorded: a copied loop decides and draws nothing again.
        namer: For new names.

    Raises:
        UnsupportedOp: A value can neither be saved nor computed again.
    """
    _Resolver(reverse, forward, keeper, records, namer).run()


class _Resolver:
    def __init__(
        self, reverse: ir.Graph, forward: ir.Graph, keeper: Keeper, records: Records, namer: Namer
    ) -> None:
        self.reverse, self.forward, self.keeper = reverse, forward, keeper
        self.records, self.namer = records, namer
        self.found: dict[ir.Value, ir.Value] = {}
        self.needed: set[ir.Value] = set()
        self.copies: list[ir.Node] = []
        self.freedom: dict[ir.Value, bool] = {}

    def run(self) -> None:
        nodes = list(self.reverse.all_nodes())
        shapes = [node for node in nodes if node.op_type in _SHAPES and self.is_shape_read(node)]
        skipped = set(shapes)
        needed = {v for n in nodes if n not in skipped for v in n.inputs if v is not None and self.owns(v)}
        moved = {v for n in shapes for v in self.chain_inputs(n)}
        self.needed = needed - (moved - self.read_elsewhere(nodes, skipped))
        for value in self.in_order(self.needed):
            self.obtain(value)
        for node in shapes:
            self.shape_read(node)
        for node in self.reverse.all_nodes():
            for index, value in enumerate(node.inputs):
                if value is not None and value in self.found:
                    node.replace_input_with(index, self.found[value])
        copies = [*self.keeper.head(), *self.copies]
        first = next(iter(self.reverse), None)
        if first is None:
            self.reverse.extend(copies)
        elif copies:
            self.reverse.insert_before(first, copies)

    def owns(self, value: ir.Value) -> bool:
        return value.graph is self.forward

    def in_order(self, values: set[ir.Value]) -> list[ir.Value]:
        """Values in the order the forward pass makes them: what is early is the better leaf to save."""
        ordered = [v for v in (*self.forward.inputs, *self.forward.initializers.values()) if v in values]
        ordered += [output for node in self.forward for output in node.outputs if output in values]
        return ordered

    def obtain(self, value: ir.Value, *, decision: bool = False) -> ir.Value:
        if value in self.found:
            return self.found[value]
        if value.is_initializer():
            return self.copied_initializer(value)
        if not decision and (self.is_free(value) or self.is_cheap_now(value)):
            return self.replayed(value)
        result = self.keeper.bound(value) or self.keeper.save(value, must=False)
        node = value.producer()
        if result is None and node is not None:
            if is_loop(node) and self.loop_replayed(value, node):
                return self.found[value]
            if not is_loop(node) and is_pure(node):
                return self.replayed(value)
        result = result or self.keeper.save(value, must=True)
        if result is None:
            where = label(node) if node is not None else f"value '{value.name}'"
            raise UnsupportedOp(
                where,
                f"the reverse pass needs '{value.name}' ({value.type}), whose shape or length varies from one "
                "iteration to the next and which cannot be computed again",
                "Declare its shape, or move it out of the loop.",
            )
        self.found[value] = result
        return result

    def is_free(self, value: ir.Value) -> bool:
        """Whether ``value`` follows cheaply from what the reverse scope has without saving anything."""
        if value not in self.freedom:
            node = value.producer()
            if not self.owns(value) or value.is_initializer():
                self.freedom[value] = True
            elif node is None:
                self.freedom[value] = self.keeper.bound(value) is not None
            else:
                self.freedom[value] = _is_cheap(node) and all(self.is_free(v) for v in node.inputs if v is not None)
        return self.freedom[value]

    def is_cheap_now(self, value: ir.Value) -> bool:
        node = value.producer()
        if node is None or not _is_cheap(node):
            return False
        return all(v in self.found or self.is_free(v) for v in node.inputs if v is not None)

    def replayed(self, value: ir.Value) -> ir.Value:
        node = value.producer()
        if node is None:
            bound = self.keeper.bound(value)
            assert bound is not None
            self.found[value] = bound
            return bound
        own = [v for v in node.inputs if v is not None and self.owns(v)]
        for operand in own:
            self.obtain(operand, decision=is_branch(node) and operand.dtype == ir.DataType.BOOL)
        for captured in captured_by(node):
            if self.owns(captured):
                self.obtain(captured)
        if all(output in self.found for output in node.outputs):
            return self.found[value]
        self.copies.append(copy_node(node, self.found, self.namer))
        return self.found[value]

    def loop_replayed(self, value: ir.Value, node: ir.Node) -> bool:
        """Copies the part of a loop that makes what is needed of it; false where that part draws random numbers."""
        site = loop_site(node)
        counter = self.records.counter_of(node)
        wanted = [o for o in node.outputs if o is value or o in self.needed]
        part = slice_loop(site, wanted, self.records)
        if not all(map(is_pure, part.nodes)):
            return False
        trips = None
        if counter is not None and not site.is_scan:
            trips = self.obtain_decision(counter) if self.owns(counter) else counter
        tapes = set(part.recorded.values())
        for outer in part.outer_values():
            if self.owns(outer):
                self.obtain_decision(outer) if outer in tapes else self.obtain(outer)
        self.copies.append(copy_slice(part, trips, self.found, self.records, self.namer))
        return True

    def obtain_decision(self, value: ir.Value) -> ir.Value:
        """A recorded decision: saved, never derived from a second run of the loop that makes it."""
        if value not in self.found:
            saved = self.keeper.save(value, must=True)
            if saved is None:
                raise UnsupportedOp(f"value '{value.name}'", "a recorded decision cannot be saved here")
            self.found[value] = saved
        return self.found[value]

    def copied_initializer(self, value: ir.Value) -> ir.Value:
        name = self.namer.fresh(f"replay/{value.name}")
        copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        self.reverse.initializers.add(copy)
        self.found[value] = copy
        return copy

    # Shapes: a Shape node of the reverse graph over a primal value reads nothing else of it.

    def is_shape_read(self, node: ir.Node) -> bool:
        value = node.inputs[0]
        return value is not None and (self.owns(value) or bool(self.chain_of(node)))

    def chain_of(self, node: ir.Node) -> ir.Node | None:
        """A SequenceAt of the reverse graph over a primal sequence that feeds only the shape read."""
        value = node.inputs[0]
        producer = value.producer() if value is not None else None
        if producer is None or producer.op_type != "SequenceAt" or value is None or len(value.uses()) > 1:
            return None
        sequence = producer.inputs[0]
        operands = [v for v in producer.inputs if v is not None]
        primal = sequence is not None and self.owns(sequence)
        return producer if primal and all(self.owns(v) or v.graph is None or v.is_initializer() for v in operands) else None

    def chain_inputs(self, node: ir.Node) -> list[ir.Value]:
        chain = self.chain_of(node)
        return [] if chain is None else [v for v in chain.inputs if v is not None and self.owns(v)]

    def read_elsewhere(self, nodes: list[ir.Node], skipped: set[ir.Node]) -> set[ir.Value]:
        chains = {self.chain_of(node) for node in skipped}
        return {v for n in nodes if n not in skipped and n not in chains for v in n.inputs if v is not None}

    def shape_read(self, node: ir.Node) -> None:
        value = node.inputs[0]
        assert value is not None
        if self.owns(value):
            if value in self.found or self.is_free(value) or self.is_cheap_now(value):
                self.obtain(value)
                return
            outside = self.keeper.same_shape_outside(value)
            if outside is not None:
                node.replace_input_with(0, outside)
                return
        output = self.forward_shape(node, value)
        ir.convenience.replace_all_uses_with(node.outputs[0], self.obtain(output))

    def forward_shape(self, node: ir.Node, value: ir.Value) -> ir.Value:
        """The shape read moved to the forward pass, right where its value is."""
        mapping: dict[ir.Value, ir.Value] = {}
        chain = self.chain_of(node)
        moved = [node] if chain is None else [chain, node]
        for part in moved:
            for operand in part.inputs:
                if operand is not None and not self.owns(operand) and operand.const_value is not None:
                    mapping[operand] = _constant_in(self.forward, operand, self.namer)
        copies = [copy_node(part, mapping, self.namer) for part in moved]
        self.forward.extend(copies)
        output = copies[-1].outputs[0]
        if node.op_type == "Shape" and value.shape is not None and not node.attributes:
            output.shape = ir.Shape([value.shape.rank()])
        return output


def _constant_in(graph: ir.Graph, value: ir.Value, namer: Namer) -> ir.Value:
    copy = ir.Value(name=namer.fresh("const"), type=value.type, shape=value.shape, const_value=value.const_value)
    graph.initializers.add(copy)
    return copy


def _is_cheap(node: ir.Node) -> bool:
    """Whether a copy of ``node`` costs no more than reading a saved value; a float comparison is a decision to save."""
    if node.op_type not in _CHEAP or node.domain not in ("", "ai.onnx"):
        return False
    decides = node.outputs[0].dtype == ir.DataType.BOOL
    return not (decides and any(v is not None and v.dtype is not None and v.dtype.is_floating_point() for v in node.inputs))
