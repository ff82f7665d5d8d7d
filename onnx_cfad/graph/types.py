"""Element types, ranks and dimensions of every value, through subgraphs.

Real exporters leave most values inside loop bodies without a shape. Operators are handled by onnx-shape-inference; what
control flow hands over (initial carries, captured values, sequence elements) is followed here. A carry keeps the
dimensions that the body provably preserves. Declared shapes of intermediate values are not trusted: exporters write
the shape of one example there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnx_shape_inference as osi

from onnx_cfad.graph.certain_shapes import keep_certain
from onnx_cfad.graph.constants import ConstantFolder
from onnx_cfad.graph.regions import Carry, LoopSite, branch_site, is_branch, is_loop, loop_site, subgraphs_of
from onnx_cfad.graph.sequence_shapes import SEQUENCE_OPERATORS, SequenceShapes, merge
from onnx_cfad.graph.trips import trip_count

Dim = int | ir.SymbolicDim

_BROADCASTING = frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
    + ("Where", "Max", "Min", "Sum", "Mean", "Mod", "PRelu", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
)


@dataclasses.dataclass(frozen=True)
class Types:
    """What inference found beyond the types and shapes that it put on the values.

    Attributes:
        varying: For each loop body, the symbols of dimensions that may differ from one iteration to the next.
        trip_dims: For each loop body, the dimension that stands for the loop's trip count.
        constants: Small integer and boolean values that shapes and constants fix, such as the predicate of an If
            that asks for a dimension.
    """

    varying: dict[ir.Graph, frozenset[str]]
    trip_dims: dict[ir.Graph, Dim]
    constants: dict[ir.Value, np.ndarray]

    def is_uniform(self, value: ir.Value, body: ir.Graph) -> bool:
        """Whether ``value`` of the loop body has the same shape in every iteration, as far as can be proven."""
        return isinstance(value.type, ir.TensorType) and self.is_uniform_shape(value.shape, body)

    def is_uniform_shape(self, shape: ir.Shape | None, body: ir.Graph) -> bool:
        """Whether ``shape``, of a value computed in the loop body, is the same in every iteration."""
        if shape is None:
            return False
        varying = self.varying.get(body, frozenset())
        return all(isinstance(d, int) or (d.value is not None and _symbols(d).isdisjoint(varying)) for d in shape.dims)


_SHAPE_OPERAND = {"Expand": 1, "ConstantOfShape": 0, "Reshape": 1}


def infer_types(model: ir.Model) -> Types:
    """Infers types and shapes of all values of ``model`` and writes them on the values.

    Cost is linear in the number of nodes, times the number of passes a loop body needs until its carries are stable
    (one in the common case, at most three plus the largest rank).
    """
    return _Inference(model).run(model.graph)


def _symbols(dim: Dim) -> frozenset[str]:
    return frozenset() if isinstance(dim, int) or dim.value is None else frozenset(dim.free_symbols())


class _Inference:
    def __init__(self, model: ir.Model) -> None:
        osi.registry.collect()
        self.context = osi.ShapeInferenceContext(model.opset_imports, policy="override")
        self.context.reserve_symbol_names(_declared_symbols(model))
        self.opsets = model.opset_imports
        self.ir_version = model.ir_version
        self.varying: dict[ir.Graph, frozenset[str]] = {}
        self.trip_dims: dict[ir.Graph, Dim] = {}
        self.sequences = SequenceShapes(self.fresh)
        self.declared: dict[ir.Value, ir.Shape | None] = {}
        self.constants = ConstantFolder(model.opset_imports, self.context.get_symbolic_value)

    def run(self, graph: ir.Graph) -> Types:
        for value in graph.inputs:
            self.context.name_anonymous_dims(value)
        self.graph(graph)
        return Types(self.varying, self.trip_dims, self.constants.known)

    def graph(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.shape, value.dtype = value.const_value.shape, value.const_value.dtype  # type: ignore[assignment]
        for node in graph:
            self.node(node)

    def node(self, node: ir.Node) -> None:
        if is_loop(node):
            self.loop(loop_site(node))
        elif is_branch(node):
            self.branch(node)
        else:
            for graph in subgraphs_of(node):
                self.graph(graph)
            self.operator(node)

    def operator(self, node: ir.Node) -> None:
        declared = [self.declared.setdefault(output, output.shape) for output in node.outputs]
        for output in node.outputs:
            output.shape = None
            output.meta.pop(osi.SYM_DATA_KEY, None)
        domain = "" if node.domain == "ai.onnx" else node.domain
        infer = osi.registry.get(domain, node.op_type, version=self.context.get_opset_version(domain))
        try:
            if infer is not None:
                infer(self.context, node)
            else:
                self.by_schema(node)
        except (osi.OpUsageError, osi.ShapeInferenceError, ValueError):
            self.by_schema(node)
        for output in node.outputs:
            output.shape = _numbers(output.shape)
        if not domain:
            keep_certain(node, self.constants.of, self.fresh)
        if node.op_type in _BROADCASTING and not domain:
            self.broadcast(node)
        elif node.op_type in SEQUENCE_OPERATORS and not domain:
            self.sequences.infer(node)
        for output in node.outputs:
            if _KEPT in output.meta:
                output.shape = _with_kept(output.shape, output.meta[_KEPT], self.fresh)
        self.fold(node)
        if node.op_type.startswith("Reduce") and not domain and _reduces_all(node):
            node.outputs[0].shape = ir.Shape([])
        if node.op_type in _SHAPE_OPERAND and not domain and node.outputs[0].shape is None:
            self.rank_from_operand(node)
        for output, shape in zip(node.outputs, declared, strict=True):
            if output.shape is None and shape is not None and isinstance(output.type, ir.TensorType):
                output.shape = ir.Shape([d if isinstance(d, int) else self.fresh() for d in shape.dims])

    def fold(self, node: ir.Node) -> None:
        """Computes small integer results from known ones, so that exporters' shape arithmetic becomes shapes."""
        for output, array in self.constants.fold(node):
            output.shape = ir.Shape(array.shape)
            if array.dtype == np.int64 and array.ndim <= 1:
                self.context.set_symbolic_value(output, [int(x) for x in array.reshape(-1)])
        known = self.constants.of(node.inputs[_SHAPE_OPERAND[node.op_type]]) if node.op_type in _SHAPE_OPERAND else None
        if known is not None and node.outputs[0].shape is None and node.op_type == "ConstantOfShape":
            node.outputs[0].shape = ir.Shape([int(d) for d in known])

    def rank_from_operand(self, node: ir.Node) -> None:
        """A shape operand of known length gives the rank, whatever it holds."""
        operand = node.inputs[_SHAPE_OPERAND[node.op_type]]
        if operand is None or operand.shape is None or operand.shape.rank() != 1:
            return
        rank = operand.shape[0]
        if not isinstance(rank, int):
            return
        elements = self.context.get_symbolic_value(operand)
        if node.op_type == "ConstantOfShape" and elements is not None and len(elements) == rank:
            node.outputs[0].shape = _numbers(ir.Shape(elements))
            return
        if node.op_type == "Expand":
            source = node.inputs[0]
            if source is None or source.shape is None:
                return
            rank = max(rank, source.shape.rank())
        node.outputs[0].shape = ir.Shape([self.fresh() for _ in range(rank)])

    def by_schema(self, node: ir.Node) -> None:
        """Asks the onnx package for one node (operators with a function body, or newer than onnx-shape-inference)."""
        opset = self.context.get_opset_version(node.domain)
        try:
            schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        except onnx.defs.SchemaError:
            return
        types = {v.name: t for v in node.inputs if v is not None and v.name and (t := _type_proto(v)) is not None}
        data = {
            v.name: ir.to_proto(t)
            for v in node.inputs
            if v is not None and v.name and (t := ir.convenience.get_const_tensor(v)) is not None and t.size <= 64
        }
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, ir.to_proto(node), types, data,
                opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in self.opsets.items()],
                ir_version=self.ir_version or 10,
            )  # fmt: skip
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
            return
        for output in node.outputs:
            if output.name in found:
                inferred = ir.from_proto(found[output.name])
                output.type, output.shape = inferred.type, inferred.shape
                self.context.name_anonymous_dims(output)

    def broadcast(self, node: ir.Node) -> None:
        """Two different symbols give a new one: either may be 1 (onnx-shape-inference takes the first)."""
        shapes = [value.shape for value in node.inputs if value is not None]
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes):
            node.outputs[0].shape = None
            return
        rank = max((shape.rank() for shape in known), default=0)
        columns = zip(*([1] * (rank - shape.rank()) + list(shape.dims) for shape in known), strict=True)
        node.outputs[0].shape = ir.Shape([self.join(column) for column in columns])

    def join(self, dims: tuple[Dim, ...]) -> Dim:
        numbers = [d for d in dims if isinstance(d, int) and d != 1]
        if numbers:
            return numbers[0]
        symbols = [d for d in dims if not isinstance(d, int)]
        if not symbols:
            return 1
        return symbols[0] if all(same_dim(d, symbols[0]) for d in symbols) else self.fresh()

    def fresh(self) -> ir.SymbolicDim:
        return self.context.new_symbolic_dim()

    def branch(self, node: ir.Node) -> None:
        site = branch_site(node)
        for graph in site.branches:
            self.graph(graph)
        chosen = self.constants.of(site.predicate)
        if chosen is not None:
            live = site.then_branch if bool(chosen.reshape(-1)[0]) else site.else_branch
            for output, value in zip(node.outputs, live.outputs, strict=True):
                output.type, output.shape = value.type, _copy(value.shape)
            return
        for output, a, b in zip(node.outputs, site.then_branch.outputs, site.else_branch.outputs, strict=True):
            output.type = a.type if a.type is not None else b.type
            output.shape = self.merge(a.shape, b.shape)

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
            carry.entry.shape = _copy(carry.initial.shape)
            (self.sequences.empty.add if carry.initial in self.sequences.empty else self.sequences.empty.discard)(
                carry.entry
            )
        for source in site.inputs:
            source.slice.type = source.source.type
            source.slice.shape = _without(source.source.shape, source.axis)
        varying: set[str] = set()
        while True:
            self.constants.forget(site.body)
            before = self.context.generated_dim_names
            self.graph(site.body)
            made = self.context.generated_dim_names - before
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
            if entry is None:
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
                varying.update(() if keep else _symbols(dims[-1]))
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
        carry.entry.shape = _copy(shape)
        return True

    def results(self, site: LoopSite) -> None:
        for carry in site.carries:
            carry.final.type = carry.exit.type or carry.entry.type
            carry.final.shape = _with_kept(
                self.outside(carry.entry.shape, site), carry.final.meta.get(_KEPT), self.fresh
            )
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
        return ir.Shape([d if _symbols(d).isdisjoint(varying) else self.fresh() for d in shape.dims])

    def anonymous(self, shape: ir.Shape | None, site: LoopSite) -> ir.Shape | None:
        """The shape of a carried sequence's elements seen from outside."""
        if shape is None:
            return None
        varying = self.varying[site.body]
        return ir.Shape([d if _symbols(d).isdisjoint(varying) else None for d in shape.dims])

    def trip_dim(self, site: LoopSite) -> Dim:
        count = trip_count(site)
        if count.static is not None:
            return count.static
        if site.is_scan:
            known = (s.source.shape[s.axis] for s in site.inputs if s.source.shape is not None)
            return next(known, None) or self.fresh()
        symbolic = self.context.get_symbolic_value(site.limit) if site.limit is not None else None
        if symbolic is not None and len(symbolic) == 1 and not count.conditional and not isinstance(symbolic[0], int):
            return symbolic[0]
        return self.fresh()


_KEPT = "onnx_cfad.kept_shape"


def keep_shape(value: ir.Value, shape: ir.Shape | None) -> None:
    """Gives ``value``, made by a rewriting, the shape of what it replaces; its numbers outlive a new inference."""
    value.shape = _copy(shape)
    value.meta[_KEPT] = _copy(shape)


def _with_kept(found: ir.Shape | None, kept: ir.Shape | None, fresh: Callable[[], ir.SymbolicDim]) -> ir.Shape | None:
    """``found`` with the numbers of ``kept``; symbols of an earlier inference mean nothing any more."""
    if kept is None or (found is not None and found.rank() != kept.rank()):
        return found
    dims = list(found.dims) if found is not None else [fresh() for _ in kept.dims]
    return ir.Shape([k if isinstance(k, int) else d for k, d in zip(kept.dims, dims, strict=True)])


def same_dim(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are certainly equal."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return a.value is not None and a.value == b.value


def with_axis(shape: ir.Shape, axis: int, dim: Dim) -> ir.Shape:
    """``shape`` with ``dim`` inserted at ``axis`` of the result."""
    dims = list(shape.dims)
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, dim)
    return ir.Shape(dims)


def _numbers(shape: ir.Shape | None) -> ir.Shape | None:
    """``shape`` with dimensions such as the expression ``12`` as numbers."""
    if shape is None or all(isinstance(d, int) or not (d.value or "").isdecimal() for d in shape.dims):
        return shape
    return ir.Shape(
        [int(str(d.value)) if isinstance(d, ir.SymbolicDim) and (d.value or "").isdecimal() else d for d in shape.dims]
    )


def _reduces_all(node: ir.Node) -> bool:
    """Whether a reduction gives a scalar whatever the rank of its operand."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    attributes = node.attributes
    keeps = attributes.get_int("keepdims", 1) or attributes.get_int("noop_with_empty_axes", 0)
    return axes is None and "axes" not in attributes and not keeps


def _is_in(dim: Dim, symbols: set[str]) -> bool:
    return not isinstance(dim, int) and dim.value in symbols


def _copy(shape: ir.Shape | None) -> ir.Shape | None:
    return None if shape is None else shape.copy()


def _without(shape: ir.Shape | None, axis: int) -> ir.Shape | None:
    if shape is None:
        return None
    dims = list(shape.dims)
    del dims[axis]
    return ir.Shape(dims)


def _type_proto(value: ir.Value) -> onnx.TypeProto | None:
    if value.type is None:
        return None
    return ir.to_proto(value).type


def _declared_symbols(model: ir.Model) -> set[str]:
    found: set[str] = set()
    for graph in (model.graph, *model.graph.subgraphs()):
        values = [*graph.inputs, *graph.outputs, *(output for node in graph for output in node.outputs)]
        for value in values:
            for dim in value.shape.dims if value.shape is not None else ():
                found |= _symbols(dim)
    return found
