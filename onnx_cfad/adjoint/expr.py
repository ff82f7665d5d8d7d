"""Expressions over ONNX values and the builder that records them: the notation of rules and adjoints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.folding import folded
from onnx_cfad.adjoint.recording import attribute, key_of, live, undone_by, without_bfloat16
from onnx_cfad.adjoint.result_types import result_shape, result_types, type_of
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.graph.element_types import FLOATING
from onnx_cfad.names import Namer

Operand = Any  # Expr, Python number, list of ints, numpy array or None

SMALL = 256
"""Elements of a constant that need not be computed."""


class Builder:
    """Records nodes of one scope in order, and reuses a node when the same one is asked for again.

    Constants become initializers of the scope. A graph adopts both afterwards (``graph``), or an existing graph
    takes them in (``append_to``).

    Args:
        namer: Gives every value and node a name that is new in all scopes.
        opset: The default-domain opset the nodes are written in (at least 18).
    """

    def __init__(self, namer: Namer, opset: int) -> None:
        self.namer = namer
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self._owns_constants = True
        self._own: set[ir.Value] = set()
        self._known: dict[Any, tuple[Expr, ...]] = {}
        self._constants: dict[Any, ir.Value] = {}
        self._numbers: dict[tuple[int, ir.DataType | None], ir.Value] = {}
        self._shapes: dict[tuple[int | str | None, ...], Expr] = {}

    def child(self) -> Builder:
        """A builder for a subgraph of this scope."""
        return Builder(self.namer, self.opset)

    def branch(self) -> Builder:
        """A builder for a branch of this scope, which takes its constants from outside, where branches share them."""
        builder = self.child()
        builder.initializers, builder._constants = self.initializers, self._constants
        builder._own, builder._numbers, builder._owns_constants = self._own, self._numbers, False
        return builder

    def scratch(self) -> Builder:
        """A builder for nodes of this scope of which only some are kept (``keep``); it shares the constants."""
        builder = Builder(self.namer, self.opset)
        builder.initializers, builder._constants = self.initializers, self._constants
        builder._numbers = self._numbers
        return builder

    def keep(self, scratch: Builder, results: Sequence[Expr]) -> list[ir.Node]:
        """Takes over the nodes of ``scratch`` that ``results`` depend on, and gives them; the others are void."""
        kept = live(scratch.nodes, [result.value for result in results])
        self.nodes.extend(kept)
        return kept

    def expr(self, value: ir.Value) -> Expr:
        """``value`` as an expression that records here."""
        return Expr(value, self)

    def optional(self, value: ir.Value | None) -> Expr | None:
        """``value`` as an expression, or None where an optional input is absent."""
        return None if value is None else Expr(value, self)

    def constant(self, value: Any, dtype: ir.DataType | None = None) -> Expr:
        """An initializer that holds ``value`` (array-like), in ``dtype`` or NumPy's choice."""
        number = (value, dtype) if type(value) is int else None
        if number is not None and number in self._numbers:
            return Expr(self._numbers[number], self)
        array = np.asarray(value) if dtype is None else np.asarray(value).astype(dtype.numpy())
        dtype = dtype or ir.DataType.from_numpy(array.dtype)
        key = (dtype, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.namer.fresh("const")
            tensor = ir.Tensor(array, dtype=dtype, name=name)
            initializer = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(dtype), const_value=tensor)
            self.initializers.append(initializer)
            self._own.add(initializer)
            self._constants[key] = initializer
        if number is not None:
            self._numbers[number] = self._constants[key]
        return Expr(self._constants[key], self)

    def call(
        self,
        op_type: str,
        inputs: Sequence[Operand],
        attributes: dict[str, Any] | None = None,
        *,
        domain: str = "",
        types: Sequence[ir.TypeProtocol] | None = None,
        outputs: int = 1,
    ) -> tuple[Expr, ...]:
        """Records ``op_type`` and gives its outputs.

        Args:
            op_type: Operator name.
            inputs: Expressions, numbers (they take the element type of the expressions), lists (int64) or None.
            attributes: ONNX attributes; entries that are None are left out.
            domain: Operator domain.
            types: Types of the outputs where they do not follow from the operator and the inputs.
            outputs: How many outputs the node has.
        """
        attributes = {k: v for k, v in attributes.items() if v is not None} if attributes else {}
        values = self._operands(inputs)
        while values and values[-1] is None:
            values.pop()
        if op_type in without_bfloat16(self.opset) and not domain and any(map(_is_bfloat16, values)):
            return self._called_in_float32(op_type, values, attributes, outputs)
        key = key_of(domain, op_type, values, attributes, outputs)
        if key is not None and key in self._known:
            return self._known[key]
        known = self._folded(op_type, values, attributes) if domain == "" else None
        if known is not None:
            return (known,)
        name, part_of = self.namer.fresh(f"grad/{op_type}"), self.namer.part_of
        types = types or result_types(op_type, values, attributes, outputs)
        if outputs == 1:  # told at once, which is quicker than to set one after the other
            (type_,) = types
            made = [ir.Value(name=part_of(name, "out"), type=type_, shape=result_shape(op_type, values))]
        else:
            made = [
                ir.Value(name=part_of(name, f"{index}"), type=type_)
                for index, type_ in zip(range(outputs), types, strict=True)
            ]
        node = ir.Node(
            domain,
            op_type,
            values,
            [attribute(k, v) for k, v in attributes.items()],
            outputs=made,
            name=name,
        )
        self.nodes.append(node)
        result = tuple([Expr(output, self) for output in made])
        if key is not None:
            self._known[key] = result
        return result

    def _called_in_float32(
        self, op_type: str, values: Sequence[ir.Value | None], attributes: dict[str, Any], outputs: int
    ) -> tuple[Expr, ...]:
        """The operator between Casts: it takes no bfloat16, in this opset or in ONNX Runtime."""
        wide = [Expr(v, self).cast(ir.DataType.FLOAT) if v is not None and _is_bfloat16(v) else v for v in values]
        given = [Expr(v, self) if isinstance(v, ir.Value) else v for v in wide]
        results = self.call(op_type, given, attributes, outputs=outputs)
        floats = [result.is_tensor and result.dtype == ir.DataType.FLOAT for result in results]
        return tuple(r.cast(ir.DataType.BFLOAT16) if f else r for r, f in zip(results, floats, strict=True))

    def shape_like(self, x: Expr) -> Expr:
        """The shape of ``x`` at run time, or that of another value which certainly has it and was asked before."""
        dims = () if x.value.shape is None else x.value.shape.dims
        names = tuple(dim if isinstance(dim, int) else dim.value for dim in dims)
        if not names or None in names:
            return self.call("Shape", [x])[0]
        if names not in self._shapes:
            self._shapes[names] = self.call("Shape", [x])[0]
        return self._shapes[names]

    def made(self) -> set[ir.Value]:
        """The values recorded so far."""
        return {output for node in self.nodes for output in node.outputs}

    def graph(self, inputs: Sequence[ir.Value], outputs: Sequence[Expr], name: str, *, body: bool = False) -> ir.Graph:
        """Closes this scope as a subgraph with ``inputs`` and ``outputs``; a ``body`` gets inputs later.

        An output must be made by a node of the subgraph, and be returned once only: ONNX Runtime 1.32 gives silent
        zeros for a Scan body that returns its own input, or one value twice. Identity nodes see to that; a branch,
        which has no inputs, returns its own constants as they are.
        """
        own, initializers = self.made(), self.initializers if self._owns_constants else []
        results: list[ir.Value] = []
        for output in outputs:
            value = output.value
            if not inputs and not body and value in self._own:
                if value in results or not self._owns_constants:
                    value = self._copy_of_constant(value)
                    initializers.append(value)
            elif value not in own or value in results:
                value = self.fresh_identity(value)
            results.append(value)
        self.nodes = live(self.nodes, results)
        return ir.Graph(inputs, results, nodes=self.nodes, initializers=initializers, name=self.namer.fresh(name))

    def fresh_identity(self, value: ir.Value) -> ir.Value:
        """A copy of ``value`` under a name of its own."""
        node = ir.Node("", "Identity", [value], name=self.namer.fresh("grad/Identity"))
        output = node.outputs[0]
        output.name, output.type, output.shape = self.namer.fresh("grad/Identity.out"), value.type, value.shape
        self.nodes.append(node)
        return output

    def _copy_of_constant(self, value: ir.Value) -> ir.Value:
        assert value.const_value is not None
        name = self.namer.fresh("const")
        tensor = ir.Tensor(value.const_value.numpy(), dtype=value.const_value.dtype, name=name)
        return ir.Value(name=name, shape=value.shape, type=value.type, const_value=tensor)

    def append_to(self, graph: ir.Graph) -> None:
        """Puts the recorded nodes at the end of ``graph`` and registers the constants there."""
        for initializer in self.initializers:
            graph.initializers.add(initializer)
        graph.extend(self.nodes)

    def input(self, hint: str, type_: ir.TypeProtocol | None, shape: ir.Shape | None) -> Expr:
        """A fresh value to serve as an input of the subgraph under construction."""
        value = ir.Value(name=self.namer.fresh(hint), type=type_, shape=shape)
        return Expr(value, self)

    def _folded(self, op_type: str, values: Sequence[ir.Value | None], attributes: dict[str, Any]) -> Expr | None:
        """The result where it is a constant: of constants recorded here, or one that changes nothing."""
        if op_type == "Mul":
            for one, other in (values, values[::-1]):
                if other is not None and self._is_one(one):
                    return Expr(other, self)
        if op_type == "Pad" and values[0] is not None and self._is_zero(values[1]):
            return Expr(values[0], self)
        undone = undone_by(op_type, values, attributes)
        if undone is not None:
            return Expr(undone, self)
        if not values or any(v not in self._own for v in values):
            return None
        tensors = [v.const_value if v is not None else None for v in values]
        arrays = [tensor.numpy() for tensor in tensors if tensor is not None]
        result = folded(op_type, arrays, attributes)
        if op_type == "Cast":
            return None if result is None else self.constant(result, ir.DataType(attributes["to"]))
        return None if result is None else self.constant(result, tensors[0].dtype if tensors[0] else None)

    def _is_zero(self, value: ir.Value | None) -> bool:
        """Whether ``value`` holds nothing but zeros, recorded here."""
        tensor = value.const_value if value is not None and value in self._own else None
        return tensor is not None and not tensor.numpy().any()

    def _is_one(self, value: ir.Value | None) -> bool:
        """Whether ``value`` is the number 1 of no axes, recorded here."""
        tensor = value.const_value if value is not None and value in self._own else None
        return tensor is not None and not tensor.shape.rank() and bool(tensor.numpy() == 1)

    def _operands(self, inputs: Sequence[Operand]) -> list[ir.Value | None]:
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]  # ONNX's inference takes an empty last input of SplitToSequence for a present one
        values: list[ir.Value | None] = [x.value for x in inputs if type(x) is Expr]
        if len(values) == len(inputs):
            return values
        kinds = [x.dtype for x in inputs if isinstance(x, Expr) and x.is_tensor]
        kind = next((kind for kind in kinds if kind in FLOATING), None)
        kind = kind or next((kind for kind in kinds if kind != ir.DataType.BOOL), None)
        return [self._operand(x, kind) for x in inputs]

    def _operand(self, x: Operand, kind: ir.DataType | None) -> ir.Value | None:
        if x is None:
            return None
        if isinstance(x, Expr):
            return x.value
        if isinstance(x, (list, tuple)):
            return self.constant(np.asarray(x, dtype=np.int64)).value
        if isinstance(x, (bool, int, float)) and kind is not None:
            return self.constant(x, kind).value
        return self.constant(x).value


@dataclasses.dataclass(eq=False, slots=True)  # never changed; frozen, it takes four times as long to make
class Expr:
    """A value, and the builder that records what is done with it."""

    value: ir.Value
    builder: Builder

    @property
    def type(self) -> ir.TypeProtocol:
        """The ONNX type of the value."""
        return type_of(self.value)

    @property
    def is_tensor(self) -> bool:
        """Whether the value is a tensor (not a sequence or an optional)."""
        type_ = self.value.type
        return type(type_) is ir.TensorType or isinstance(type_, ir.TensorType)

    @property
    def dtype(self) -> ir.DataType:
        """The element type."""
        dtype = self.value.dtype
        if dtype is None:
            raise UnsupportedOp(
                f"value '{self.value.name}'",
                "its element type is unknown",
                "Declare its type in the model's value_info.",
            )
        return dtype

    @property
    def rank(self) -> int:
        """The number of dimensions.

        Raises:
            UnsupportedOp: The rank is not known statically.
        """
        if self.value.shape is None:
            raise UnsupportedOp(
                f"value '{self.value.name}'",
                "its rank is unknown and the rule for the operator needs it",
                "Declare its shape (dimensions may be symbolic) in the model's value_info.",
            )
        return self.value.shape.rank()

    @property
    def has_rank(self) -> bool:
        """Whether the number of dimensions is known statically."""
        return self.value.shape is not None

    @property
    def dims(self) -> tuple[int | None, ...]:
        """The known dimensions, None for those that only the run time knows. Needs a known rank."""
        self.rank  # noqa: B018 - raises where the rank is unknown
        assert self.value.shape is not None
        return tuple([d if isinstance(d, int) else None for d in self.value.shape.dims])

    @property
    def const(self) -> np.ndarray | None:
        """The value itself where it is a constant of the model (an initializer or a Constant node), else None."""
        tensor = ir.convenience.get_const_tensor(self.value)
        return None if tensor is None or self.value.is_graph_input() else tensor.numpy()

    @property
    def shape(self) -> Expr:
        """The shape as an int64 vector: a constant where all dimensions are known, else computed at run time."""
        known = self.value.shape
        if known is not None and known.is_static():
            return self.builder.constant(np.asarray(known.numpy(), dtype=np.int64))
        return self.builder.shape_like(self)

    @property
    def size(self) -> Expr:
        """The number of elements as an int64 scalar."""
        known = self.value.shape
        if known is not None and known.is_static():
            return self.builder.constant(np.asarray(np.prod(known.numpy(), dtype=np.int64)))
        # ONNX Runtime 1.32 takes the Size of a Shape for the product of what is in it, and knows no Size of bfloat16.
        if self.dtype.is_integer() or self.dtype == ir.DataType.BFLOAT16:
            return self.builder.call("ReduceProd", [self.builder.call("Shape", [self])[0]], {"keepdims": 0})[0]
        return self.builder.call("Size", [self])[0]

    def dim(self, axis: int) -> Expr:
        """One dimension as an int64 vector of length 1."""
        known = self.dims[axis] if self.has_rank else None
        if known is not None:
            return self.builder.constant(np.asarray([known], dtype=np.int64))
        axis = axis % self.rank if self.has_rank else axis
        end = axis + 1 if axis != -1 else None
        return self.builder.call("Shape", [self], {"start": axis, "end": end})[0]

    @property
    def mT(self) -> Expr:  # noqa: N802 - NumPy's name for it
        """The matrix transpose: the last two axes swapped."""
        n = self.rank
        return op.Transpose(self, perm=[*range(n - 2), n - 1, n - 2])

    def cast(self, dtype: ir.DataType) -> Expr:
        """The value in another element type (itself when it has that type)."""
        return self if self.dtype == dtype else op.Cast(self, to=int(dtype))

    def sum(self, axes: Sequence[int] | None = None, *, keepdims: bool = False) -> Expr:
        """The sum over ``axes`` (all when None)."""
        return op.ReduceSum(self, None if axes is None else list(axes), keepdims=int(keepdims))

    def expand(self, shape: Expr) -> Expr:
        """The value broadcast to ``shape``."""
        known = shape.const
        if known is not None and not known.all() and self.has_rank and None not in self.dims:
            # ONNX Runtime 1.32 takes an Expand to no elements for one that changes nothing, and removes it.
            empty = np.broadcast_shapes([dim or 0 for dim in self.dims], known.tolist())
            return self.builder.constant(np.zeros(empty), self.dtype)
        return op.Expand(self, shape)

    def reshape(self, shape: Expr | Sequence[int]) -> Expr:
        """The value in ``shape``, which is taken literally, except for one -1 in a Python list; itself if it has it."""
        target = shape.const if isinstance(shape, Expr) else shape
        if target is not None and self.has_rank and self.dims == tuple(target):
            return self
        literal = 1 if isinstance(shape, Expr) else None
        return op.Reshape(self, shape if isinstance(shape, Expr) else list(shape), allowzero=literal)

    def unsqueeze(self, axes: Sequence[int]) -> Expr:
        """The value with axes of length 1 inserted."""
        return op.Unsqueeze(self, list(axes)) if axes else self

    def squeeze(self, axes: Sequence[int]) -> Expr:
        """The value without the axes of length 1."""
        return op.Squeeze(self, list(axes)) if axes else self

    def __add__(self, other: Operand) -> Expr:
        return op.Add(self, other)

    def __radd__(self, other: Operand) -> Expr:
        return op.Add(other, self)

    def __sub__(self, other: Operand) -> Expr:
        return op.Sub(self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return op.Sub(other, self)

    def __mul__(self, other: Operand) -> Expr:
        return op.Mul(self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return op.Mul(other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return op.Div(self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return op.Div(other, self)

    def __pow__(self, other: Operand) -> Expr:
        return op.Pow(self, other)

    def __matmul__(self, other: Operand) -> Expr:
        return op.MatMul(self, other)

    def __neg__(self) -> Expr:
        return op.Neg(self)

    def __gt__(self, other: Operand) -> Expr:
        return op.Greater(self, other)

    def __ge__(self, other: Operand) -> Expr:
        return op.GreaterOrEqual(self, other)

    def __lt__(self, other: Operand) -> Expr:
        return op.Less(self, other)

    def __le__(self, other: Operand) -> Expr:
        return op.LessOrEqual(self, other)

    def __and__(self, other: Operand) -> Expr:
        return op.And(self, other)

    def __or__(self, other: Operand) -> Expr:
        return op.Or(self, other)

    def __invert__(self) -> Expr:
        return op.Not(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """A cotangent that is cheaper to add into an accumulated one than to build alone (an indexed element, say).

    Attributes:
        apply: Gives the new accumulated cotangent from the old one; None stands for zero.
    """

    apply: Callable[[Expr | None], Expr]


class _Operators:
    """``op.Name(inputs..., attribute=...)`` records ONNX operator ``Name`` with the builder of its first expression.

    ``outputs=n`` asks for n outputs and gives a tuple; ``types=[...]`` sets their types; ``domain=...`` the domain.
    """

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        def call(
            *inputs: Operand,
            outputs: int = 1,
            types: Sequence[ir.TypeProtocol] | None = None,
            domain: str = "",
            **attributes: Any,
        ) -> Any:
            first = inputs[0]
            builder = first.builder if type(first) is Expr else next(x.builder for x in inputs if isinstance(x, Expr))
            results = builder.call(op_type, inputs, attributes, domain=domain, types=types, outputs=outputs)
            return results[0] if outputs == 1 else results

        setattr(self, op_type, call)  # to be found without being made again
        return call


op = _Operators()


def where(condition: Expr, a: Operand, b: Operand) -> Expr:
    """Elementwise choice with broadcasting; numbers take the element type of the other operand."""
    return op.Where(condition, a, b)


def zeros_like(x: Expr) -> Expr:
    """Zeros in the shape and element type of the tensor ``x``; nothing of ``x`` but its shape is used."""
    return full(x.shape, 0, x.dtype, x.builder, like=x)


def ones_like(x: Expr) -> Expr:
    """Ones in the shape and element type of the tensor ``x``; nothing of ``x`` but its shape is used."""
    return full(x.shape, 1, x.dtype, x.builder, like=x)


def full(shape: Expr, number: float, dtype: ir.DataType, builder: Builder, *, like: Expr | None = None) -> Expr:
    """A tensor of ``shape`` (int64 vector) filled with ``number``; a constant where it is small and known."""
    known = shape.const
    if known is not None and math.prod(known.tolist()) <= SMALL:  # in whole numbers of any size
        return builder.constant(np.full([int(d) for d in known], number), dtype)
    result = builder.call("Expand", [builder.constant(number, dtype), shape])[0]
    if like is not None and result.value.shape is None:
        result.value.shape = like.value.shape
    return result


def concat(parts: Sequence[Expr], axis: int = 0) -> Expr:
    """``parts`` joined along ``axis``; a single part is itself."""
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)


def _is_bfloat16(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.BFLOAT16
