"""A model with loops as one function in a shared library: builds it, loads it, runs it on arrays. Runs in a child.

The library is one file: behind the ELF image lies a zip archive with the manifest and the constants.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnx_cfad.targets.tvm import loop_graph as graphs
from onnx_cfad.targets.tvm.commands import Refused
from onnx_cfad.targets.tvm.loop_emission import emit
from onnx_cfad.targets.tvm.loop_function import Function
from onnx_cfad.targets.tvm.loop_tvm import tirx, tvm, tvm_ffi
from onnx_cfad.targets.tvm.loop_views import Array, flat, flat_buffer, product, sequence

Shape = Sequence["int | None"]

_ENTRY, _MANIFEST = "whole_loop", "whole_loop.json"


class WholeLoop:
    """A compiled function on NumPy arrays: the inputs in the model's order, then the outputs in its order.

    Args:
        library: What ``build`` made.
    """

    def __init__(self, library: Path) -> None:
        with zipfile.ZipFile(library) as archive:
            self.about = json.loads(archive.read(_MANIFEST))
            stored = [archive.read(f"constant_{k}.npy") for k in range(self.about["constants"])]
        self._constants = [_tensor(np.load(io.BytesIO(data), allow_pickle=False)) for data in stored]
        self._entry = tvm.runtime.load_module(str(library))[_ENTRY]

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Computes the outputs."""
        given = [_of_shape(array, port) for array, port in zip(arrays, self.about["inputs"], strict=True)]
        values = {name: _symbol(place, given) for name, place in self.about["symbols"].items()}
        space = [np.empty(_product(size, values), dtype) for size, dtype in self.about["workspace"]]
        outputs = [np.empty(_shape(p["shape"], values), p["dtype"]) for p in self.about["outputs"]]
        operands = [*map(_tensor, given), *self._constants, *map(_tensor, (*space, *outputs))]
        self._entry(*(values[name] for name in self.about["variables"]), *operands)
        return outputs


def is_whole_loop(library: Path) -> bool:
    """Whether a shared library was made by ``build``."""
    if not zipfile.is_zipfile(library):
        return False
    with zipfile.ZipFile(library) as archive:
        return _MANIFEST in archive.namelist()


def build(model: onnx.ModelProto, library: Path, shapes: Mapping[str, Shape], target: Any) -> None:
    """Compiles ``model`` to one function.

    Args:
        model: With the shapes of what enters and leaves subgraphs; extents that are no numbers are symbols of inputs.
        library: Where it goes.
        shapes: Shapes of inputs that are known better than the model says; None for an extent that varies.
        target: TVM's target.

    Raises:
        Refused: The model cannot be one function; with the reason.
    """
    function, module, about = written(model, shapes)
    built = tvm.tirx.build(module, target, pipeline="s_tir")
    temporary = library.with_name(f".{library.stem}.{os.getpid()}.so")
    built.export_library(str(temporary))
    with zipfile.ZipFile(temporary, "a") as archive:
        archive.writestr(zipfile.ZipInfo(_MANIFEST), json.dumps(about))
        for k, (value, _) in enumerate(function.parameters):
            data = io.BytesIO()
            np.save(data, value, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"constant_{k}.npy"), data.getvalue())
    temporary.replace(library)


def written(model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> tuple[Function, Any, dict[str, Any]]:
    """The function before it is compiled: what it was written as, the TIR module, and the manifest."""
    graph = model.graph
    function = Function(next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")))
    inputs = graphs.free_inputs(model)
    places = _symbols(graph, inputs)
    for name, place in places.items():
        known = shapes.get(inputs[place[0]].name, ())[place[1]] if len(place) > 1 and shapes else None
        function.symbols[name] = tirx.Var(f"n{len(function.symbols)}", "int64") if known is None else known
    _bind_trips(function, graph)
    views, given, ports = _ports(function, inputs, "input", places)
    results, made, ports_out = _ports(function, list(graph.output), "output", places)
    statements = emit(function, graph, views, results)
    body = sequence([*(tirx.AllocBuffer(b) for b in function.allocations), *statements])
    variables = {name: function.symbols[name] for name in places if not isinstance(function.symbols[name], int)}
    space = [buffer for _, buffer in function.workspace]
    parameters = [*variables.values(), *given, *(b for _, b in function.parameters), *space, *made]
    prim = tirx.PrimFunc(parameters, body).with_attrs({"global_symbol": _ENTRY, "tirx.noalias": True, "s_tir": True})
    names = {variable: name for name, variable in variables.items()}
    about = {
        "inputs": ports,
        "outputs": ports_out,
        "symbols": places,
        "variables": list(variables),
        "constants": len(function.parameters),
        "workspace": [(_factors(size, names), str(buffer.dtype)) for size, buffer in function.workspace],
    }
    return function, tirx.transform.ConvertSSA()(tvm.IRModule({_ENTRY: prim})), about


def _ports(
    function: Function, values: Sequence[onnx.ValueInfoProto], kind: str, places: Iterable[str]
) -> tuple[Any, ...]:
    """Views, buffers and descriptions of the inputs or the outputs."""
    views: Any = {}
    buffers: Any = []
    ports: Any = []
    names = {function.symbols[name]: name for name in places if not isinstance(function.symbols[name], int)}
    for k, value in enumerate(values):
        dims, dtype = graphs.dims(value), graphs.element_type(value)
        if dims is None:
            raise Refused(f"the shape of '{value.name}' is not known")
        extents = tuple(function.extent(d) for d in dims)
        buffers.append(flat_buffer(product(extents), dtype, f"{kind}_{k}"))
        views[value.name] = flat(buffers[-1], extents)
        shape = [extent if isinstance(extent, int) else names[extent] for extent in extents]
        ports.append({"name": value.name, "dtype": dtype, "shape": shape})
    return views, buffers, ports


def _symbols(graph: onnx.GraphProto, inputs: Sequence[onnx.ValueInfoProto]) -> dict[str, list[int]]:
    """Each symbol, with the input and the axis that give it; without an axis, the input's value gives it."""
    limits = {node.input[0] for node in graphs.all_nodes(graph) if node.op_type == "Loop"}
    found: dict[str, list[int]] = {}
    for position, value in enumerate(inputs):
        for axis, dim in enumerate(graphs.dims(value) or ()):
            if isinstance(dim, str):
                found.setdefault(dim, [position, axis])
        if value.name in limits and graphs.element_type(value) == "int64":
            found[value.name] = [position]
    return found


def _bind_trips(function: Function, graph: onnx.GraphProto) -> None:
    """An extent that is the trip count of a Loop, which an input gives."""
    declared = graphs.declared(graph)
    for node in graph.node:
        trips = function.symbols.get(node.input[0]) if node.op_type == "Loop" else None
        for name in node.output[len(node.input) - 2 :] if trips is not None else ():
            dims = graphs.dims(declared[name]) if name in declared else None
            if dims and isinstance(dims[0], str):
                function.symbols.setdefault(dims[0], trips)


def _of_shape(array: Array, port: Mapping[str, Any]) -> Array:
    """An input as the function reads it: it would read beyond an array of another type or shape."""
    fits = array.dtype == port["dtype"] and len(array.shape) == len(port["shape"])
    if not fits or any(isinstance(w, int) and w != f for f, w in zip(array.shape, port["shape"], strict=True)):
        wanted = f"{port['dtype']} {port['shape']}"
        raise Refused(f"input '{port['name']}' is {array.dtype} {list(array.shape)}, expected {wanted}")
    return np.require(array, requirements=("C", "W"))  # DLPack gives nothing away that cannot be written to


def _symbol(place: Sequence[int], arrays: Sequence[Array]) -> int:
    array = arrays[place[0]]
    return array.shape[place[1]] if len(place) > 1 else max(int(array.reshape(-1)[0]), 0)


def _shape(dims: Sequence[int | str], values: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else values[d] for d in dims)


def _product(factors: Sequence[int | str], values: Mapping[str, int]) -> int:
    return math.prod(_shape(factors, values))


def _factors(size: Any, names: Mapping[Any, str]) -> list[int | str]:
    """A size as a product of numbers and symbols."""
    if isinstance(size, int):
        return [size]
    if isinstance(size, tirx.IntImm):
        return [int(size)]
    if isinstance(size, tirx.Mul):
        return [*_factors(size.a, names), *_factors(size.b, names)]
    if size in names:
        return [names[size]]
    raise Refused(f"room for {size} elements")


def _tensor(array: Array) -> Any:
    return tvm_ffi.from_dlpack(array.reshape(-1), require_alignment=0)
