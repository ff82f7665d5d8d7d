"""Straight-line ONNX nodes as calls of fused TIR functions, and one such call as a statement. Runs in the worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import onnx

from onnx_cfad.targets.tvm import loop_graph as graphs
from onnx_cfad.targets.tvm.commands import Refused
from onnx_cfad.targets.tvm.loop_functions import with_polynomials
from onnx_cfad.targets.tvm.loop_schedule import scheduled
from onnx_cfad.targets.tvm.loop_tvm import onnx_frontend, relax, tirx, tvm, tvm_ffi
from onnx_cfad.targets.tvm.loop_views import Array, View, rewritten

Operand = Any
"""The name of a value, or a constant array."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One fused function on named values.

    Attributes:
        function: Scheduled, in loops; its parameters are the operands, then the results.
        operands: Names or constant arrays.
        results: Names.
        shapes: The shapes of the results.
        dtypes: Their element types.
    """

    function: Any
    operands: tuple[Operand, ...]
    results: tuple[str, ...]
    shapes: tuple[tuple[Any, ...], ...]
    dtypes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Kernels:
    """Kernels in order, and what the outputs of the nodes are: names of results, of inputs, or constant arrays."""

    calls: tuple[Kernel, ...]
    outputs: tuple[Operand, ...]


def is_array(operand: Operand) -> TypeGuard[Array]:
    """Whether an operand is a constant array."""
    return isinstance(operand, np.ndarray)


def kernels_of(model: onnx.ModelProto, schedule: Callable[[Any], Any] = scheduled) -> Kernels:
    """Imports straight-line nodes, fuses them, and schedules every fused function.

    Args:
        model: Without control flow; every input has its shape.
        schedule: What is made of each fused function.

    Raises:
        Refused: Relax cannot import or legalise a node.
    """
    try:
        module = _fused(onnx_frontend.from_onnx(model, keep_params_in_input=False))
    except Exception as error:  # the importer raises whatever it meets
        kinds = ", ".join(sorted({node.op_type for node in model.graph.node}))
        raise Refused(f"Relax does not import these nodes ({kinds}): {str(error).strip().splitlines()[-1]}") from error
    return _Reading(module, [value.name for value in graphs.free_inputs(model)], schedule).run()


def _fused(module: Any) -> Any:
    passes = relax.transform
    return tvm.ir.transform.Sequential(
        [
            passes.DecomposeOpsForInference(),
            passes.LegalizeOps(),
            passes.AnnotateTIROpPattern(),
            passes.DeadCodeElimination(),
            passes.FuseOps(fuse_opt_level=2),
            passes.FuseTIR(),
            passes.DeadCodeElimination(),
        ]
    )(module)


class _Reading:
    """Reads the calls of the main function of a fused module."""

    def __init__(self, module: Any, inputs: Sequence[str], schedule: Callable[[Any], Any]) -> None:
        self.schedule = schedule
        self.module = module
        self.main = module["main"]
        self.values: dict[Any, Operand | tuple[Operand, ...]] = {}
        self.functions: dict[str, Any] = {}
        for parameter, name in zip(self.main.params, inputs, strict=True):
            self.values[parameter] = name

    def run(self) -> Kernels:
        calls: list[Kernel] = []
        for block in self.main.body.blocks:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == "relax.call_tir":
                    calls.append(self.kernel(binding.var, value))
                else:
                    self.values[binding.var] = self.operand(value)
        outputs = self.operand(self.main.body.body)
        return Kernels(tuple(calls), outputs if isinstance(outputs, tuple) else (outputs,))

    def operand(self, value: Any) -> Any:
        if value in self.values:
            return self.values[value]
        if isinstance(value, tvm.ir.GenericConst):
            return value.value.numpy()
        if isinstance(value, tvm.ir.Tuple):
            return tuple(self.operand(field) for field in value.fields)
        if isinstance(value, tvm.ir.TupleGetItem):
            return self.operand(value.tuple_value)[value.index]
        operator = getattr(getattr(value, "op", None), "name", type(value).__name__)
        raise Refused(f"a step that is no TIR function: {operator}")

    def kernel(self, variable: Any, call: Any) -> Kernel:
        if len(call.args) > 2:
            raise Refused("a function that takes sizes as numbers")
        given = call.args[0], call.args[1]
        operands = self.operand(given[1])
        types = call.ty_args[0]
        types = list(types.fields) if isinstance(types, relax.TupleType) else [types]
        names = tuple(f"result {len(self.values)}.{k}" for k in range(len(types)))  # no ONNX name has a blank
        self.values[variable] = names if len(types) > 1 else names[0]
        return Kernel(
            self.function(given[0]),
            operands,
            names,
            tuple(tuple(int(d) if isinstance(d, tirx.IntImm) else d for d in t.shape.values) for t in types),
            tuple(str(t.dtype) for t in types),
        )

    def function(self, symbol: Any) -> Any:
        if symbol.name_hint not in self.functions:
            self.functions[symbol.name_hint] = self.schedule(self.module[symbol])
        return self.functions[symbol.name_hint]


def inlined(kernel: Kernel, views: Sequence[View], buffer: Callable[[Any, str, str], Any]) -> Any:
    """The statement that a call of ``kernel`` is.

    Args:
        kernel: The kernel.
        views: Where its operands and results are.
        buffer: Gives a flat buffer of the function: its size, element type and name.

    Raises:
        Refused: The function does something with a buffer that is neither a load nor a store.
    """
    function, places = kernel.function, dict[Any, View]()
    symbols: dict[Any, Any] = {}
    for parameter, view in zip(function.params, views, strict=True):
        places[parameter] = view
        for declared, extent in zip(parameter.shape, view.shape, strict=True):
            if isinstance(declared, tvm.ir.Var):
                symbols[declared] = extent if isinstance(extent, tvm.ir.Expr) else tirx.const(extent, "int64")

    def allocation(statement: Any) -> Any:
        made = statement.buffer
        if made.scope() == "local":
            return statement
        shape = tuple(int(d) if isinstance(d, tirx.IntImm) else _with(d, symbols) for d in made.shape)
        size: Any = 1
        for extent in shape:
            size = size * extent
        strides, step = [], 1
        for extent in reversed(shape):
            strides.insert(0, step)
            step = step * extent
        places[made] = View(buffer(size, str(made.dtype), made.name), shape, tuple(strides))
        return tirx.Evaluate(tirx.const(0, "int32"))

    body = rewritten(function.body, tirx.AllocBuffer, allocation, order="pre")
    body = rewritten(body, tvm.ir.TensorLoad, lambda e: places[e.source].load(e.indices) if e.source in places else e)
    body = rewritten(
        body, tirx.BufferStore, lambda s: places[s.buffer].store(s.value, s.indices) if s.buffer in places else s
    )
    body = with_polynomials(_with(body, symbols) if symbols else body)
    _check_references(body, places)
    return body


def _with(node: Any, symbols: Mapping[Any, Any]) -> Any:
    return rewritten(node, tvm.ir.Var, lambda v: symbols.get(v, v))


def _check_references(body: Any, places: Mapping[Any, View]) -> None:
    left: list[str] = []

    def seen(variable: Any) -> None:
        if variable in places:
            left.append(variable.name)

    tvm_ffi.structural_walk(body, ((tvm.ir.Var, seen),))
    if left:
        raise Refused(f"a kernel hands the buffer {left[0]} to a library function")
