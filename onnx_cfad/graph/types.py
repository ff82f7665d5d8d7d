"""Element types, ranks and dimensions of every value, through subgraphs.

Real exporters leave most values inside loop bodies without a shape. Operators are handled by onnx-shape-inference; what
control flow hands over (initial carries, captured values, sequence elements) is followed here. A carry keeps the
dimensions that the body provably preserves. Declared shapes of intermediate values are not trusted: exporters write
the shape of one example there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from onnx_cfad.errors import ModelError
from onnx_cfad.graph.dims import Dim, copied, same_dim, symbols_of, with_axis
from onnx_cfad.graph.faults import Blamed
from onnx_cfad.graph.operand_types import misfit
from onnx_cfad.graph.operator_types import OperatorTypes
from onnx_cfad.graph.regions import Carry, LoopSite, branch_site, control_flow, is_branch, is_loop, loop_site
from onnx_cfad.graph.sequence_shapes import merge
from onnx_cfad.graph.trips import trip_count
from onnx_cfad.graph.walk import structure, subgraphs_of


@dataclasses.dataclass(frozen=True)
class Types:
    """What inference found beyond the types and shapes that it put on the values.

    Attributes:
        varying: For each loop body, the symbols of dimensions that may differ from one iteration to the next.
        trip_dims: For each loop body, the dimension that stands for the loop's trip count.
        constants: Small integer and boolean values that shapes and constants fix, such as the predicate of an If
            that asks for a dimension.
        structure: The graph that they were inferred of.
    """

    varying: dict[ir.Graph, frozenset[str]]
    trip_dims: dict[ir.Graph, Dim]
    constants: dict[ir.Value, np.ndarray]
    structure: list[object] = dataclasses.field(default_factory=list[object], repr=False)

    def is_uniform(self, value: ir.Value, body: ir.Graph) -> bool:
        """Whether ``value`` of the loop body has the same shape in every iteration, as far as can be proven."""
        return isinstance(value.type, ir.TensorType) and self.is_uniform_shape(value.shape, body)

    def is_uniform_shape(self, shape: ir.Shape | None, body: ir.Graph) -> bool:
        """Whether ``shape``, of a value computed in the loop body, is the same in every iteration."""
        if shape is None:
            return False
        varying = self.varying.get(body, frozenset())
        return all(
            isinstance(d, int) or (d.value is not None and symbols_of(d).isdisjoint(varying)) for d in shape.dims
        )


def infer_types(model: ir.Model, known: Iterable[ir.Value] = ()) -> Types:
    """Infers types and shapes of all values of ``model`` and writes them on the values.

    Args:
        model: The model.
        known: Values of another graph that it reads, whose shapes are right: their symbols are not given out anew.

    Cost is linear in the number of nodes, times the number of passes a loop body needs until its carries are stable
    (one in the common case, at most three plus the largest rank).
    """
    inference = _Inference(model)
    inference.operators.reserve_symbols_of(known)
    return inference.run(model.graph)


def types_now(model: ir.Model, types: Types) -> Types:
    """``types`` while ``model`` has the structure that they were inferred of; else they are inferred again."""
    return types if structure(model.graph) == types.structure else infer_types(model)


class _Inference:
    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.operators = OperatorTypes(model)
        self.fresh = self.operators.fresh
        self.sequences = self.operators.sequences
        self.constants = self.operators.constants
        self.varying: dict[ir.Graph, frozenset[str]] = {}
        self.trip_dims: dict[ir.Graph, Dim] = {}

    def run(self, graph: ir.Graph) -> Types:
        for value in graph.inputs:
            self.operators.context.name_anonymous_dims(value)
        self.graph(graph)
        return Types(self.varying, self.trip_dims, self.constants.known, structure(graph))

    def graph(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.shape, value.dtype = value.const_value.shape, value.const_value.dtype  # type: ignore[assignment]
        for node in graph:
            with Blamed(node, "its types cannot be inferred", self.model):
                self.node(node)

    def check(self, node: ir.Node) -> None:
        """Refuses a node whose operands are of types that its operator does not take."""
        wrong = misfit(node, self.model.opset_imports[""]) if node.domain in ("", "ai.onnx") else None
        if wrong is not None:
            raise ModelError(control_flow(self.model).path_of(node), wrong, "Correct the model, or insert a Cast.")

    def node(self, node: ir.Node) -> None:
        self.check(node)
        if is_loop(node):
            self.loop(loop_site(node))
        elif is_branch(node):
            self.branch(node)
        else:
            for graph in subgraphs_of(node):
                self.graph(graph)
            self.operators.infer(node)

    def branch(self, node: ir.Node) -> None:
        site = branch_site(node)
        for graph in site.branches:
            self.graph(graph)
        chosen = self.constants.of(site.predicate)
        if chosen is not None:
            live = site.then_branch if bool(chosen.reshape(-1)[0]) else site.else_branch
            for output, value in zip(node.outputs, live.outputs, strict=True):
                output.type, output.shape = value.type, copied(value.shape)
            return
        for output, a, b in zip(node.outputs, site.then_branch.outputs, site.else_branch.outputs, strict=True):
            output.type = a.type if a.type is not None else b.type
            sequence = isinstance(output.type, ir.SequenceType)
            output.shape = self.merge_sequences(a, b) if sequence else self.merge_tensors(a, b)
            silent = self.sequences.empty if sequence else self.sequences.unreached
            (silent.add if a in silent and b in silent else silent.discard)(output)

    def merge_sequences(self, a: ir.Value, b: ir.Value) -> ir.Shape | None:
        """What the elements of both have in common; an empty one says nothing."""
        empty = self.sequences.empty
        if a in empty or b in empty:
            return b.shape if a in empty else a.shape
        return merge(a.shape, b.shape)

    def merge_tensors(self, a: ir.Value, b: ir.Value) -> ir.Shape | None:
        """What both have in common; one that no run gets to says nothing."""
        unreached = self.sequences.unreached
        if a in unreached or b in unreached:
            return copied(b.shape if a in unreached else a.shape)
        return self.merge(a.shape, b.shape)

    def merge(self, a: ir.Shape | None, b: ir.Shape | None) -> ir.Shape | None:
        if a is None or b is None or a.rank() != b.rank():
            return None
        return ir.Shape([x if same_dim(x, y) else self.fresh() for x, y in zip(a.dims, b.dims, strict=True)])

    def loop(self, site: LoopSite) -> None:
        self.trip_dims[site.body] = self.trip_dim(site)
        if site.index is not None and site.predicate is not None:
            site.index.type, site.index.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
            site.predicate.type = ir.TensorType(ir.DataType.BOOL)
            declared = site.start.shape if site.start is not None else site.predicate.shape  # [] or [1]
            site.predicate.shape = declared if declared is not None and declared.is_static() else ir.Shape([])
        for carry in site.carries:
            carry.entry.type = carry.initial.type or carry.entry.type
            carry.entry.shape = copied(carry.initial.shape)
            (self.sequences.empty.add if carry.initial in self.sequences.empty else self.sequences.empty.discard)(
                carry.entry
            )
            unreached = self.sequences.unreached
            (unreached.add if carry.initial in unreached else unreached.discard)(carry.entry)
        for source in site.inputs:
            source.slice.type = source.source.type
            source.slice.shape = _without(source.source.shape, source.axis)
        varying: set[str] = set()
        while True:
            self.constants.forget(site.body)
            before = self.operators.context.generated_dim_names
            self.graph(site.body)
            made = self.operators.context.generated_dim_names - before
            if not self.widen(site, varying):
                break
        self.varying[site.body] = frozenset(varying | made)
        self.results(site)

    def widen(self, site: LoopSite, varying: set[str]) -> bool:
        """Gives up dimensions of carries that the body does not keep; whether another pass is needed."""
        changed = False
        for carry in site.carries:
            entry, found = carry.entry.shape, carry.exit.shape
            if isinstance(carry.entry.type, ir.SequenceType):
                changed |= self.widen_sequence(carry)
                continue
            if entry is None or carry.exit in self.sequences.unreached:
                continue
            if found is None or found.rank() != entry.rank():
                carry.entry.shape, changed = None, True
                continue
            if all(same_dim(a, b) or _is_in(a, varying) for a, b in zip(entry.dims, found.dims, strict=True)):
                continue
            dims: list[Dim] = []
            for a, b in zip(entry.dims, found.dims, strict=True):
                keep = same_dim(a, b) or _is_in(a, varying)
                dims.append(a if keep else self.fresh())
                varying.update(() if keep else symbols_of(dims[-1]))
            carry.entry.shape, changed = ir.Shape(dims), True
        return changed

    def widen_sequence(self, carry: Carry) -> bool:
        """Gives up what the elements that the body adds do not share with those that enter it."""
        empty = self.sequences.empty
        if carry.exit in empty:
            return False
        shape = carry.exit.shape if carry.entry in empty else merge(carry.entry.shape, carry.exit.shape)
        known = carry.entry not in empty and (shape is None) == (carry.entry.shape is None)
        if known and (shape is None or str(shape) == str(carry.entry.shape)):
            return False
        empty.discard(carry.entry)
        carry.entry.shape = copied(shape)
        return True

    def results(self, site: LoopSite) -> None:
        for carry in site.carries:
            carry.final.type = carry.exit.type or carry.entry.type
            carry.final.shape = self.operators.with_kept(carry.final, self.outside(carry.entry.shape, site))
            if isinstance(carry.final.type, ir.SequenceType):
                carry.final.shape = self.anonymous(carry.entry.shape, site)
                (self.sequences.empty.add if carry.entry in self.sequences.empty else self.sequences.empty.discard)(
                    carry.final
                )
        for stacked in site.outputs:
            stacked.stacked.type = stacked.element.type
            shape = self.outside(stacked.element.shape, site)
            if shape is not None and not site.is_scan and not trip_count(site).positive:
                # ONNX Runtime gives a stack of no rows 0 for every dimension that is not declared as a number
                shape = ir.Shape([d if isinstance(d, int) else self.fresh() for d in shape.dims])
            stacked.stacked.shape = None if shape is None else with_axis(shape, stacked.axis, self.trip_dims[site.body])

    def outside(self, shape: ir.Shape | None, site: LoopSite) -> ir.Shape | None:
        """A shape of the body seen from outside: what varies inside is one unknown dimension outside."""
        if shape is None:
            return None
        varying = self.varying[site.body]
        return ir.Shape([d if symbols_of(d).isdisjoint(varying) else self.fresh() for d in shape.dims])

    def anonymous(self, shape: ir.Shape | None, site: LoopSite) -> ir.Shape | None:
        """The shape of a carried sequence's elements seen from outside."""
        if shape is None:
            return None
        varying = self.varying[site.body]
        return ir.Shape([d if symbols_of(d).isdisjoint(varying) else None for d in shape.dims])

    def trip_dim(self, site: LoopSite) -> Dim:
        count = trip_count(site)
        if count.static is not None:
            return count.static
        if site.is_scan:
            known = (s.source.shape[s.axis] for s in site.inputs if s.source.shape is not None)
            return next(known, None) or self.fresh()
        symbolic = self.operators.context.get_symbolic_value(site.limit) if site.limit is not None else None
        if symbolic is not None and len(symbolic) == 1 and not count.conditional and not isinstance(symbolic[0], int):
            return symbolic[0]
        return self.fresh()


def _is_in(dim: Dim, symbols: set[str]) -> bool:
    return not isinstance(dim, int) and dim.value in symbols


def _without(shape: ir.Shape | None, axis: int) -> ir.Shape | None:
    if shape is None:
        return None
    dims = list(shape.dims)
    del dims[axis]
    return ir.Shape(dims)
