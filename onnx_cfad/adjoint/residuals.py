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
from collections import deque
from collections.abc import Collection, Iterable

import onnx_ir as ir

from onnx_cfad.adjoint.loop_slice import LoopSlice, copy_slice, slice_loop
from onnx_cfad.adjoint.records import Records
from onnx_cfad.adjoint.replay import copy_node
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import captured_by, is_branch, is_loop, label, loop_site
from onnx_cfad.graph.walk import nodes_of, subgraphs_of
from onnx_cfad.names import Namer

_CHEAP = frozenset(
    ("Add", "Sub", "Mul", "Div", "Neg", "Not", "And", "Or", "Xor", "Cast", "CastLike", "Identity", "Where", "Mod")
    + ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Min", "Max", "Abs", "Sign", "Floor", "Ceil")
    + ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Shape", "Size", "Gather", "Slice", "Concat", "Split")
    + ("Expand", "Tile", "Pad", "Constant", "ConstantOfShape", "Range", "Trilu", "IsNaN", "IsInf")
)
_SHAPES = frozenset(("Shape", "Size", "SequenceLength"))


class Keeper(abc.ABC):
    """How one kind of region keeps values for its reverse pass.

    Attributes:
        repeats: The region runs many times, so what does not change in it is better computed again than saved.
        carries_only: Only carries and decisions are kept (a checkpoint).
    """

    repeats = False
    carries_only = False

    @abc.abstractmethod
    def bound(self, value: ir.Value) -> ir.Value | None:
        """The value of the reverse scope that equals ``value`` without anything being saved, or None."""

    def provides(self, value: ir.Value) -> bool:
        """Whether ``bound`` has an answer for an input of the region."""
        del value
        return False

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
    """Decides for every primal value that the reverse graph needs, then makes the copies in forward order."""

    def __init__(self, reverse: ir.Graph, forward: ir.Graph, keeper: Keeper, records: Records, namer: Namer) -> None:
        self.reverse, self.forward, self.keeper = reverse, forward, keeper
        self.records, self.namer = records, namer
        self.found: dict[ir.Value, ir.Value] = {}
        self.needed: set[ir.Value] = set()
        self.copied: set[ir.Value] = set()
        self.parts: dict[ir.Node, LoopSlice] = {}
        self.free = self.free_values()

    def run(self) -> None:
        nodes = nodes_of(self.reverse)
        shapes = [node for node in nodes if node.op_type in _SHAPES and self.is_shape_read(node)]
        skipped = set(shapes)
        needed = {v for n in nodes if n not in skipped for v in n.inputs if v is not None and self.owns(v)}
        moved = {v for n in shapes for v in self.chain_inputs(n)}
        self.needed = needed - (moved - self.read_elsewhere(nodes, skipped))
        self.decide(self.in_order(self.needed))
        renamed = {node: output for node in shapes if (output := self.shape_read(node)) is not None}
        copies = [*self.keeper.head(), *self.copies()]
        for node, output in renamed.items():
            ir.convenience.replace_all_uses_with(node.outputs[0], self.found[output])
        for node in nodes:
            for index, value in enumerate(node.inputs):
                if value is not None and value in self.found:
                    node.replace_input_with(index, self.found[value])
        first = next(iter(self.reverse), None)
        if first is None:
            self.reverse.extend(copies)
        elif copies:
            self.reverse.insert_before(first, copies)

    def owns(self, value: ir.Value) -> bool:
        return value.graph is self.forward

    def in_order(self, values: Collection[ir.Value]) -> list[ir.Value]:
        """Values in the order the forward pass makes them: what is early is the better leaf to save."""
        ordered = [v for v in (*self.forward.inputs, *self.forward.initializers.values()) if v in values]
        ordered += [output for node in self.forward for output in node.outputs if output in values]
        return ordered

    def free_values(self) -> set[ir.Value]:
        """The values that follow, cheaply or once for all iterations, from what the reverse scope has anyway."""
        free = {v for v in self.forward.inputs if self.keeper.provides(v)} | set(self.forward.initializers.values())
        invariant = set(self.forward.initializers.values())
        for node in self.forward:
            inputs = [v for v in node.inputs if v is not None]
            steady = (
                all(v in invariant or not self.owns(v) for v in inputs) and is_pure(node) and not subgraphs_of(node)
            )
            if steady:
                invariant.update(node.outputs)
            if (_is_cheap(node) or (steady and self.keeper.repeats)) and all(
                v in free or not self.owns(v) for v in inputs
            ):
                free.update(node.outputs)
        return free

    def decide(self, values: Iterable[ir.Value]) -> None:
        """Decides for ``values`` and for all that their copies need, without recursion."""
        pending = deque(values)
        while pending:
            value = pending.popleft()
            if value not in self.found and value not in self.copied:
                pending.extend(self.decided(value))

    def decided(self, value: ir.Value) -> list[ir.Value]:
        """Saves ``value`` or marks it to be copied; gives what a copy needs."""
        node = value.producer()
        if value.is_initializer():
            self.copied_initializer(value)
            return []
        if node is not None and (value in self.free or self.is_cheap_now(node)):
            return self.copy_later(value, node)
        result = self.keeper.bound(value) or self.keeper.save(value, must=False)
        if result is None and node is not None and _takes_from_sequence(node):
            result = self.keeper.save(value, must=True)  # an element, against the sequence it was taken from
        if result is None and node is not None:
            if is_loop(node):
                part = self.replayable_part(value, node)
                if part is not None:
                    return self.replay_later(value, node, part)
            elif is_pure(node):
                return self.copy_later(value, node)
        self.found[value] = result or self.last_resort(value)
        return []

    def last_resort(self, value: ir.Value) -> ir.Value:
        result = self.keeper.save(value, must=True)
        if result is None:
            raise _cannot_keep(value)
        return result

    def is_cheap_now(self, node: ir.Node) -> bool:
        if not _is_cheap(node):
            return False
        there = (self.found, self.copied, self.free)
        return all(any(v in known for known in there) or not self.owns(v) for v in node.inputs if v is not None)

    def copy_later(self, value: ir.Value, node: ir.Node) -> list[ir.Value]:
        self.copied.add(value)
        inputs = [v for v in node.inputs if v is not None and self.owns(v)]
        if is_branch(node) and inputs and inputs[0] not in self.found:
            self.found[inputs[0]] = self.recorded(inputs[0])
        return [*inputs, *(v for v in captured_by(node) if self.owns(v))]

    def recorded(self, value: ir.Value) -> ir.Value:
        """A decision that the forward pass made: saved, not made again."""
        if value.is_initializer():
            self.copied_initializer(value)
            return self.found[value]
        return self.found.get(value) or self.keeper.bound(value) or self.last_resort(value)

    def replayable_part(self, value: ir.Value, node: ir.Node) -> LoopSlice | None:
        """The part of a loop that makes what is needed of it; None where that part draws random numbers."""
        wanted = [o for o in node.outputs if o is value or o in self.needed]
        part = slice_loop(loop_site(node), wanted, self.records)
        return part if all(map(is_pure, part.nodes)) else None

    def replay_later(self, value: ir.Value, node: ir.Node, part: LoopSlice) -> list[ir.Value]:
        if node in self.parts:  # more of the loop is needed than was known: one copy makes all of it
            wanted = {*self.parts[node].made(), *part.made()}
            part = slice_loop(part.site, wanted, self.records)
        self.parts[node] = part
        self.copied.update(part.made())
        counter = self.records.counter_of(node)
        decisions = [*part.recorded.values(), *([counter] if counter is not None and not part.site.is_scan else [])]
        for decision in decisions:
            if self.owns(decision) and decision not in self.found:
                self.found[decision] = self.recorded(decision)
        del value
        return [v for v in part.outer_values() if self.owns(v)]

    def copies(self) -> list[ir.Node]:
        """The copies, in the order of their originals."""
        made: list[ir.Node] = []
        saved = dict(self.found)
        for node in list(self.forward):
            if node in self.parts:
                counter = self.records.counter_of(node)
                trips = None if counter is None else self.found.get(counter, counter)
                made.append(copy_slice(self.parts[node], trips, self.found, self.records, self.namer))
            elif not self.copied.isdisjoint(node.outputs):
                made.append(copy_node(node, self.found, self.namer))
                self.found.update({o: saved[o] for o in node.outputs if o in saved})
        return made

    def copied_initializer(self, value: ir.Value) -> None:
        name = self.namer.fresh(f"replay/{value.name}")
        copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        self.reverse.initializers.add(copy)
        self.found[value] = copy

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
        if producer.graph is not self.reverse:
            return None  # in a branch, or a loop of no trips, it may not be reached: moved, it could find nothing there
        sequence = producer.inputs[0]
        operands = [v for v in producer.inputs if v is not None]
        primal = sequence is not None and self.owns(sequence)
        return (
            producer
            if primal and all(self.owns(v) or v.graph is None or v.is_initializer() for v in operands)
            else None
        )

    def chain_inputs(self, node: ir.Node) -> list[ir.Value]:
        chain = self.chain_of(node)
        return [] if chain is None else [v for v in chain.inputs if v is not None and self.owns(v)]

    def read_elsewhere(self, nodes: list[ir.Node], skipped: set[ir.Node]) -> set[ir.Value]:
        chains = {self.chain_of(node) for node in skipped}
        return {v for n in nodes if n not in skipped and n not in chains for v in n.inputs if v is not None}

    def shape_read(self, node: ir.Node) -> ir.Value | None:
        """Settles a shape read; gives the forward value that replaces it where the shape itself is needed."""
        value = node.inputs[0]
        assert value is not None
        if self.owns(value):
            producer = value.producer()
            there = value in self.found or value in self.copied or value in self.free
            if there or (producer is not None and self.is_cheap_now(producer)):
                self.decide([value])
                return None
            outside = self.keeper.same_shape_outside(value)
            if outside is not None:
                node.replace_input_with(0, outside)
                return None
        read_of_sequence = self.chain_of(node) is not None
        output = self.forward_shape(node, value)
        if read_of_sequence:
            self.found[output] = self.recorded(output)  # a few integers, against the sequence they were read from
        else:
            self.decide([output])
        return output

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


def _cannot_keep(value: ir.Value) -> UnsupportedOp:
    """Says of ``value`` why neither the tape holds it nor a copy makes it, and what helps."""
    node = value.producer()
    where = label(node) if node is not None else f"value '{value.name}'"
    cut = "cut off what is computed from it with stop_gradient"
    varies = f"the reverse pass needs '{value.name}' ({value.type}), whose shape or length varies from one iteration to"
    what = f"{varies} the next and which cannot be computed again"
    if isinstance(value.type, ir.TensorType):
        return UnsupportedOp(where, what, "Declare its shape, or move it out of the loop.")
    return UnsupportedOp(where, what, f"Keep the list at one length inside the loop or let it only grow, or {cut}.")


def _takes_from_sequence(node: ir.Node) -> bool:
    """Whether ``node`` makes a tensor out of a sequence."""
    sequence = any(v is not None and isinstance(v.type, ir.SequenceType) for v in node.inputs)
    return sequence and all(isinstance(output.type, ir.TensorType) for output in node.outputs)


def _is_cheap(node: ir.Node) -> bool:
    """Whether a copy of ``node`` costs no more than reading a saved value; a float comparison is a decision to save."""
    if node.op_type not in _CHEAP or node.domain not in ("", "ai.onnx"):
        return False
    decides = node.outputs[0].dtype == ir.DataType.BOOL
    return not (
        decides and any(v is not None and v.dtype is not None and v.dtype.is_floating_point() for v in node.inputs)
    )
