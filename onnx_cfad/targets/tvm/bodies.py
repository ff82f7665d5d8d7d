"""Straight-line bodies in a worker: each is compiled at its first call, for the types and shapes that it meets.

A branch that is never taken is never compiled. What is compiled stays beside the model, unless nothing can be written
there: then it is for this process alone.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from onnx_cfad.targets.tvm.commands import Refused, last_part
from onnx_cfad.targets.tvm.compiler import Array, Compiler, Function, input_names
from onnx_cfad.targets.tvm.signatures import Signature, digest, signature_of

MOST_SHAPES = 16
"""Sets of input shapes that a body is compiled for; a value that grows in every iteration would need any number."""


@dataclasses.dataclass
class Counts:
    """What became of a body: libraries compiled and loaded, calls, and the seconds that compiling took."""

    compiled: int = 0
    loaded: int = 0
    calls: int = 0
    compile_seconds: float = 0.0


class Body:
    """A body that is compiled, or loaded where it has been compiled before, when its input shapes are met first.

    Args:
        name: The name of the body in its program.
        place: Its model lies in ``PLACE.onnx``, one that is made for a signature in ``PLACE-DIGEST.onnx``, the library
            for a signature in ``PLACE-DIGEST.so``.
        compiler: The build of TVM.
        options: Options of the compiler.
        guarded: The positions of inputs whose values decide shapes inside: they are part of the signature.
    """

    def __init__(
        self, name: str, place: Path, compiler: Compiler, options: Mapping[str, Any], guarded: Sequence[int] = ()
    ) -> None:
        self.name = name
        self.counts = Counts()
        self._place, self._compiler, self._options = place, compiler, options
        self._guarded = frozenset(guarded)
        self._functions: dict[Signature, Function] = {}
        self._by_key: dict[tuple[tuple[int, tuple[int, ...]], ...], Function] = {}

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs for inputs in the order of the model's.

        Raises:
            Refused: The compiler cannot take the body, or it meets too many shapes.
        """
        self.counts.calls += 1
        key = tuple([(array.dtype.num, array.shape) for array in arrays])
        function = None if self._guarded else self._by_key.get(key)  # a signature takes longer than a small body
        if function is None:
            function = self._by_key[key] = self._by_signature(signature_of(arrays, self._guarded))
        return function(arrays)

    def prepare(self, signature: Signature) -> None:
        """Compiles the library for a signature, unless it is there.

        Raises:
            Refused: The compiler cannot take the body.
        """
        library = self._library(signature)
        if not library.exists():
            self._compile(signature, library)

    def _library(self, signature: Signature) -> Path:
        return self._place.with_name(f"{self._place.name}-{digest(signature)}.so")

    def _by_signature(self, signature: Signature) -> Function:
        function = self._functions.get(signature)
        if function is None:
            function = self._functions[signature] = self._function(signature)
        return function

    def _function(self, signature: Signature) -> Function:
        if len(self._functions) == MOST_SHAPES:
            raise Refused(f"it meets more than {MOST_SHAPES} sets of shapes", self.name)
        library = self._library(signature)
        if library.exists():
            self.counts.loaded += 1
            return self._compiler.load(library)
        if os.access(library.parent, os.W_OK):
            return self._compiled(signature, library)
        with tempfile.TemporaryDirectory(prefix="onnx-cfad-") as folder:  # it is needed until it is loaded
            return self._compiled(signature, Path(folder) / library.name)

    def _compiled(self, signature: Signature, library: Path) -> Function:
        start = time.perf_counter()
        self._compile(signature, library)
        self.counts.compiled += 1
        self.counts.compile_seconds += time.perf_counter() - start
        return self._compiler.load(library)

    def _compile(self, signature: Signature, library: Path) -> None:
        made_for_it = self._place.with_name(f"{library.stem}.onnx")
        model = made_for_it if made_for_it.exists() else self._place.with_name(f"{self._place.name}.onnx")
        names = input_names(onnx.load(model, load_external_data=False))
        shapes = {name: shape for name, (_, shape, _) in zip(names, signature, strict=True)}
        try:
            self._compiler.compile(model, library, shapes, self._options)
        except Refused as error:
            raise Refused(str(error), self.name) from error
        except Exception as error:
            raise Refused(f"{type(error).__name__}: {last_part(error)}", self.name) from error
