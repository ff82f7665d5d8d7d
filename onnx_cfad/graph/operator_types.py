"""Types and shapes of one operator's outputs: onnx-shape-inference, corrected and completed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
import onnx_ir as ir
import onnx_shape_inference as osi

from onnx_cfad.graph.certain_shapes import keep_certain
from onnx_cfad.graph.constants import ConstantFolder
from onnx_cfad.graph.dims import Dim, copied, same_dim, symbols_of, with_numbers
from onnx_cfad.graph.domain_shapes import MISREAD, shape_of
from onnx_cfad.graph.operand_types import take_types_of_inputs
from onnx_cfad.graph.sequence_shapes import SEQUENCE_OPERATORS, SequenceShapes
from onnx_cfad.graph.walk import graphs_of

_BROADCASTING = frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
    + ("Where", "Max", "Min", "Sum", "Mean", "Mod", "PRelu", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
)
_SHAPE_OPERAND = {"Expand": 1, "ConstantOfShape": 0, "Reshape": 1}
_ELEMENTWISE = {"Concat", *_SHAPE_OPERAND}
_LONG = 4096
"""Elements up to which a vector may be a shape, which is followed one by one: a hostile one has any number."""
_KEPT = "onnx_cfad.kept_shape"


def _is_long(node: ir.Node) -> bool:
    """Whether the vectors that say a shape, or are joined, have too many elements to be followed one by one."""
    if node.op_type == "Concat":
        read = node.inputs
    else:
        place = _SHAPE_OPERAND[node.op_type]
        read = node.inputs[place : place + 1]
    shapes = [value.shape for value in read if value is not None and value.shape is not None]
    lengths = [shape[0] for shape in shapes if shape.rank() == 1]
    long = sum(length for length in lengths if isinstance(length, int)) > _LONG
    return long and len(lengths) == len(read)


def keep_shape(value: ir.Value, shape: ir.Shape | None) -> None:
    """Gives ``value``, made by a rewriting, the shape of what it replaces; its numbers outlive a new inference."""
    value.shape = copied(shape)
    value.meta[_KEPT] = copied(shape)


osi.registry.collect()


class OperatorTypes:
    """Infers one operator at a time, and knows the small constants that shapes fix.

    Args:
        model: Its opsets, and the symbols that its author uses.
    """

    def __init__(self, model: ir.Model) -> None:
        self.context = osi.ShapeInferenceContext(model.opset_imports, policy="override")
        self.context.reserve_symbol_names(_declared_symbols(model))
        self.opsets = model.opset_imports
        self.ir_version = model.ir_version
        self.sequences = SequenceShapes(self.fresh)
        self.declared: dict[ir.Value, ir.Shape | None] = {}
        self.constants = ConstantFolder(model.opset_imports, self.context.get_symbolic_value)

    def fresh(self) -> ir.SymbolicDim:
        """A symbol that stands for a dimension nothing is known of."""
        return self.context.new_symbolic_dim()

    def reserve_symbols_of(self, values: Iterable[ir.Value]) -> None:
        """Keeps the symbols in the shapes of ``values`` from being given to other dimensions."""
        shapes = [value.shape for value in values if value.shape is not None]
        self.context.reserve_symbol_names(
            {symbol for shape in shapes for dim in shape.dims for symbol in symbols_of(dim)}
        )

    def infer(self, node: ir.Node) -> None:
        """Sets type and shape of the outputs of ``node``."""
        declared = [self.declared.setdefault(output, output.shape) for output in node.outputs]
        self.infer_alone(node)
        self.sequences.follow(node)
        for output, shape in zip(node.outputs, declared, strict=True):
            if output.shape is None and shape is not None and isinstance(output.type, ir.TensorType):
                output.shape = ir.Shape([d if isinstance(d, int) else self.fresh() for d in shape.dims])

    def forget_elements(self, output: ir.Value) -> None:
        """Drops the elements that an earlier pass found: in a loop body they are those of the first iteration."""
        producer = output.producer()
        if producer is not None and producer.op_type != "Constant":
            output.const_value = None
        output.metadata_props.pop(osi.SYM_DATA_KEY, None)
        self.context._symbolic_values.pop(output, None)  # pyright: ignore[reportPrivateUsage]

    def infer_alone(self, node: ir.Node) -> None:
        """Sets what follows from the inputs of ``node``, whatever is declared for its outputs."""
        for output in node.outputs:
            output.shape = None
            self.forget_elements(output)
        self.by_library(node)
        for output in node.outputs:
            output.shape = with_numbers(output.shape)
        if node.domain in ("", "ai.onnx"):
            self.correct(node)
        elif node.outputs[0].shape is None or node.op_type in MISREAD:
            node.outputs[0].shape = shape_of(node, self.fresh)
        for output in node.outputs:
            output.shape = self.with_kept(output, output.shape)
        self.fold(node)
        if node.op_type in _SHAPE_OPERAND and node.outputs[0].shape is None:
            self.rank_from_operand(node)

    def by_library(self, node: ir.Node) -> None:
        """Asks onnx-shape-inference, and the onnx package where that has no answer."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        infer = osi.registry.get(domain, node.op_type, version=self.context.get_opset_version(domain))
        try:
            if node.op_type in _ELEMENTWISE and _is_long(node):
                self.long(node)
            elif infer is not None:
                infer(self.context, node)
            else:
                self.by_schema(node)
        except (osi.OpUsageError, osi.ShapeInferenceError, ValueError, LookupError):  # LookupError: a rank is too low
            self.by_schema(node)
        if domain == "":
            take_types_of_inputs(node, self.context.get_opset_version(domain))

    def long(self, node: ir.Node) -> None:
        """The length of long vectors that are joined; nothing of what a long vector says as a shape."""
        if node.op_type != "Concat":
            return
        total: int | ir.SymbolicDim = 0
        for value in node.inputs:
            assert value is not None
            assert value.shape is not None
            total = total + value.shape[0]
        node.outputs[0].shape = ir.Shape([total])

    def correct(self, node: ir.Node) -> None:
        """Takes back what is not certain, and adds what the library leaves out."""
        keep_certain(node, self.constants.of, self.fresh)
        if node.op_type in _BROADCASTING:
            self.broadcast(node)
        elif node.op_type == "Expand":
            self.expand(node)
        elif node.op_type in SEQUENCE_OPERATORS:
            self.sequences.infer(node)
        elif node.op_type.startswith("Reduce") and _reduces_all(node):
            node.outputs[0].shape = ir.Shape([])

    def expand(self, node: ir.Node) -> None:
        """Either the operand's dimension or the target's may be 1, and either may have more of them."""
        source, target = node.inputs[0], node.inputs[1]
        elements = self.context.get_symbolic_value(target) if target is not None else None
        found = node.outputs[0].shape
        if source is None or source.shape is None or found is None:
            node.outputs[0].shape = None
            return
        if elements is None or len(elements) > found.rank():
            node.outputs[0].shape = ir.Shape([d if isinstance(d, int) and d != 1 else self.fresh() for d in found.dims])
            return
        rows = [[1] * (found.rank() - len(dims)) + list(dims) for dims in (source.shape.dims, elements)]
        node.outputs[0].shape = ir.Shape([self.join(pair) for pair in zip(*rows, strict=True)])

    def with_kept(self, value: ir.Value, found: ir.Shape | None) -> ir.Shape | None:
        """``found`` with the numbers that ``keep_shape`` gave; symbols of an earlier inference mean nothing now."""
        kept = value.meta.get(_KEPT)
        if kept is None or (found is not None and found.rank() != kept.rank()):
            return found
        dims = list(found.dims) if found is not None else [self.fresh() for _ in kept.dims]
        return ir.Shape([k if isinstance(k, int) else d for k, d in zip(kept.dims, dims, strict=True)])

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
        rank = operand.shape[0] if not _is_long(node) else None
        if not isinstance(rank, int):
            return
        elements = self.context.get_symbolic_value(operand)
        if node.op_type == "ConstantOfShape" and elements is not None and len(elements) == rank:
            node.outputs[0].shape = with_numbers(ir.Shape(elements))
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
        """The dimension that broadcasting gives: a number other than 1, or what all agree on, else a new symbol."""
        numbers = [d for d in dims if isinstance(d, int) and d != 1]
        if numbers:
            return numbers[0]
        symbols = [d for d in dims if not isinstance(d, int)]
        if not symbols:
            return 1
        return symbols[0] if all(same_dim(d, symbols[0]) for d in symbols) else self.fresh()


def _reduces_all(node: ir.Node) -> bool:
    """Whether a reduction gives a scalar whatever the rank of its operand."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    attributes = node.attributes
    keeps = attributes.get_int("keepdims", 1) or attributes.get_int("noop_with_empty_axes", 0)
    return axes is None and "axes" not in attributes and not keeps


def _type_proto(value: ir.Value) -> onnx.TypeProto | None:
    if value.type is None:
        return None
    return ir.to_proto(value).type


def _declared_symbols(model: ir.Model) -> set[str]:
    found: set[str] = set()
    for graph in graphs_of(model.graph):
        values = [*graph.inputs, *graph.outputs, *(output for node in graph for output in node.outputs)]
        for value in values:
            for dim in value.shape.dims if value.shape is not None else ():
                if not isinstance(dim, int):
                    found |= symbols_of(dim)
    return found
