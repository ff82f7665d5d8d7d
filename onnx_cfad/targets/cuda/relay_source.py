"""A whole model as CUDA C by Relay's own code generator. Runs in a child with TVM 0.19.

The library is built without CUDA, and has the generator all the same; a few lines of C++ register it (relay_shim.cc,
built when the environment is installed, or on first use, where g++ is). Without a compiler the generator is called
through ctypes: a C++ exception then ends the process, which is the worker's. Loops and branches stay in Relay's virtual
machine on the CPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx

from onnx_cfad.targets.tvm.commands import Arguments, Arrays, Refused, Result, command
from onnx_cfad.targets.tvm.relay import Relay

_SHIM = Path(__file__).with_name("relay_shim.cc")
_VERSION = "0.19.0"
_GENERATOR = "_ZN3tvm7codegen11CodeGenCUDA"
_SYMBOLS = {
    "construct": f"{_GENERATOR}C1Ev",
    "begin": f"{_GENERATOR}4InitEb",
    "finish": f"{_GENERATOR}6FinishB5cxx11Ev",
    "declare": "_ZN3tvm7codegen8CodeGenC15DeclareFunctionERKNS_9GlobalVarERKNS_3tir8PrimFuncE",
    "add": "_ZN3tvm7codegen8CodeGenC11AddFunctionERKNS_9GlobalVarERKNS_3tir8PrimFuncE",
}
_ROOM = 16384  # bytes for an object of private size
_KEPT: list[Any] = []  # rooms of generators, which have no destructor that could be called

Pairs = Sequence[tuple[Any, Any]]


@command
def relay_cuda_source(arguments: Arguments, arrays: Arrays) -> Result:  # noqa: ARG001
    """CUDA C of the file ``model`` for ``arch``, as ``source``; ``by``: the shim, built in ``folder``, or ctypes."""
    arch, shapes = str(arguments["arch"]), arguments.get("shapes", {})
    source, by = source_of(onnx.load(Path(arguments["model"])), shapes, arch, Path(arguments["folder"]))
    return {"source": source, "by": by}, {}


@command
def relay_cuda_generator(arguments: Arguments, arrays: Arrays) -> Result:  # noqa: ARG001
    """How the generator will be called: ``by`` the shim, which is built in ``folder`` now, or ctypes."""
    tvm, _ = _checked()
    return {"by": "shim" if _built(Path(tvm.__file__).parent, Path(arguments["folder"])) else "ctypes"}, {}


def source_of(model: onnx.ModelProto, shapes: Any, arch: str, folder: Path) -> tuple[str, str]:
    """CUDA C of all kernels of a model, in the order of their names, and how the generator was called.

    Args:
        model: Legalised.
        shapes: Shapes of inputs that the model leaves open.
        arch: Such as ``sm_80``.
        folder: Where the shim is built and kept.

    Raises:
        Refused: This is another TVM, or Relay cannot take the model.
    """
    module = Relay().imported(model, shapes)
    tvm, library = _checked()
    shim = _built(Path(tvm.__file__).parent, folder)
    generate, by = (_by_shim(shim), "shim") if shim else (_by_ctypes(library), "ctypes")
    texts: list[str] = []

    def build(functions: Any, target: Any) -> Any:  # noqa: ARG001
        pairs = sorted(functions.functions.items(), key=lambda pair: pair[0].name_hint)
        texts.append(generate(pairs))
        return tvm.get_global_func("onnx_cfad.cuda_module")(functions, texts[-1]) if shim else _stand_in(tvm)

    tvm.register_func("target.build.cuda", build, override=True)
    target = tvm.target.Target(f"cuda -arch={arch}", host="llvm")
    with tvm.transform.PassContext(opt_level=3, config={"relay.frontend.fill_span": False}):
        tvm.relay.vm.compile(module, target=target)
    return "\n".join(texts), by


def _checked() -> tuple[Any, Any]:
    """TVM and its library, which is of the one release and has the generator's symbols."""
    tvm: Any = importlib.import_module("tvm")
    library = ctypes.CDLL(tvm._ffi.libinfo.find_lib_path()[0], ctypes.RTLD_GLOBAL)
    missing = [name for name in _SYMBOLS.values() if not hasattr(library, name)]
    if tvm.__version__ != _VERSION or missing:
        raise Refused(f"CUDA by Relay needs TVM {_VERSION} with its code generator; this is {tvm.__version__}")
    return tvm, library


def _built(package: Path, folder: Path) -> Path | None:
    """The shim, built for this library; None where there is no compiler or it fails."""
    compiler = shutil.which("g++")
    key = hashlib.sha256(_SHIM.read_bytes() + str(package).encode()).hexdigest()[:16]
    made = folder / f"relay_shim_{key}.so"
    if compiler is None or made.exists():
        return made if made.exists() else None
    headers = ("include", "3rdparty/dlpack/include", "3rdparty/dmlc-core/include")
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{made.stem}.{os.getpid()}.so"
    command_ = [compiler, "-shared", "-fPIC", "-O1", "-std=c++17", "-w", *(f"-I{package / h}" for h in headers)]
    done = subprocess.run([*command_, str(_SHIM), "-o", str(temporary)], capture_output=True, check=False)
    if done.returncode:
        return None
    temporary.replace(made)
    return made


def _by_shim(shim: Path) -> Callable[[Pairs], str]:
    _KEPT.append(ctypes.CDLL(str(shim), ctypes.RTLD_GLOBAL))
    generate = importlib.import_module("tvm").get_global_func("onnx_cfad.cuda_source")
    return lambda pairs: str(generate(*(part for pair in pairs for part in pair)))


def _by_ctypes(library: Any) -> Callable[[Pairs], str]:
    """The generator by its exported symbols, as the Itanium ABI of C++ passes objects."""
    calls = {name: getattr(library, symbol) for name, symbol in _SYMBOLS.items()}
    for call in calls.values():
        call.restype = None

    def generate(pairs: Pairs) -> str:
        room = ctypes.create_string_buffer(_ROOM + 64)
        _KEPT.append(room)
        generator = ctypes.c_void_p((ctypes.addressof(room) + 63) // 64 * 64)
        calls["construct"](generator)
        calls["begin"](generator, ctypes.c_bool(False))
        handles = [[ctypes.c_void_p(ctypes.cast(p.handle, ctypes.c_void_p).value) for p in pair] for pair in pairs]
        for name in ("declare", "add"):
            for variable, function in handles:
                calls[name](generator, ctypes.byref(variable), ctypes.byref(function))
        text = (ctypes.c_uint64 * 4)()  # std::string: where it is, its length, and room for a short one
        calls["finish"](ctypes.byref(text), generator)
        return ctypes.string_at(text[0], text[1]).decode()

    return generate


def _stand_in(tvm: Any) -> Any:
    """A module in the place of the device's, so that compiling goes on."""
    return tvm.runtime._ffi_api.CSourceModuleCreate("", "c", [], [])
