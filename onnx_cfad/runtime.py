"""The one place that runs models in ONNX Runtime: feeds are checked, results are named, errors are one line."""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad import weights
from onnx_cfad.errors import ModelError, TargetError
from onnx_cfad.model import Source, load
from onnx_cfad.ports import Feeds, check_feeds, listed, ports_of

_FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"
_SILENT = 4  # the highest of ONNX Runtime's severities: what matters reaches the caller as an exception


class Session:
    """A model made ready to run on ONNX Runtime's CPU provider.

    Attributes:
        inputs: The model's inputs.
        outputs: The names of its outputs.

    Args:
        model: A path, a ``ModelProto``, an ``ir.Model`` or a PyTorch ``ONNXProgram``.
        threads: Threads inside an operator; None for what ONNX Runtime chooses.
        trace: Where to write a trace of every operator that runs; None for no trace.

    Raises:
        ModelError: The file or the model is unusable.
        TargetError: ONNX Runtime refuses the model.
    """

    def __init__(self, model: Source, *, threads: int | None = None, trace: str | None = None) -> None:
        import onnxruntime  # noqa: PLC0415 - heavy

        loaded = load(model)
        self.inputs = ports_of(loaded)
        self.outputs = tuple(output.name or "" for output in loaded.graph.outputs)
        onnxruntime.set_default_logger_severity(_SILENT)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _SILENT
        options.enable_mem_pattern = False  # a plan of all buffers doubles the peak memory of the second run
        if threads is not None:
            options.intra_op_num_threads = threads
        if trace is not None:
            options.enable_profiling, options.profile_file_prefix = True, trace
        path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
        if path is not None and not (_is_text(path) and _finds_weights(loaded, path)):
            path = None
        content = path or _content(loaded, options)
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except _ort_errors() as error:
            raise _refusal(error, "refuses the model") from error

    def run(self, feeds: Feeds, outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """The outputs by name: arrays, or lists of arrays for sequences.

        Args:
            feeds: The inputs by name.
            outputs: Names of the wanted outputs; default: all.

        Raises:
            ModelError: The feeds do not fit the model's inputs, or an output is not there.
            TargetError: The run fails.
        """
        check_feeds(self.inputs, feeds)
        names = list(self.outputs if outputs is None else outputs)
        unknown = [name for name in names if name not in self.outputs]
        if unknown:
            raise ModelError(f"output '{unknown[0]}'", f"the model has no such output; it has {listed(self.outputs)}")
        values = {name: feed if isinstance(feed, list) else np.asarray(feed) for name, feed in feeds.items()}
        return dict(zip(names, self.run_unchecked(values, names), strict=True))

    def run_unchecked(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> Sequence[Any]:
        """The outputs in order, from arrays that are known to fit: for what is called often.

        Args:
            feeds: The inputs by name: arrays, or lists of arrays.
            outputs: Names of the wanted outputs; default: all.

        Raises:
            TargetError: The run fails.
        """
        try:
            return self._session.run(outputs, feeds)
        except _ort_errors() as error:
            raise _refusal(error, "cannot run the model") from error

    def end_trace(self) -> str:
        """The file of the trace, which is complete then."""
        return self._session.end_profiling()


def _is_text(path: str) -> bool:
    """Whether ONNX Runtime can be told a path: the names of files are any bytes, it takes UTF-8."""
    return os.fsencode(path).decode(errors="replace") == path


def _finds_weights(model: ir.Model, path: str | os.PathLike[str]) -> bool:
    """Whether ONNX Runtime, given the path, finds the weights; it follows no link out of the folder."""
    folder = Path(path).parent
    return all(weights.lies_in(tensor, folder) for _, tensor in weights.external_slots(model))


def _content(model: ir.Model, options: Any) -> bytes:
    """The serialized model; external data is found in its folder, or taken in when it lies in several."""
    folders = {os.path.realpath(tensor.base_dir or ".") for _, tensor in weights.external_slots(model)}
    if len(folders) == 1 and all(map(_is_text, folders)):
        options.add_session_config_entry(_FOLDER_OF_WEIGHTS, next(iter(folders)))
    elif folders:
        for slot, tensor in list(weights.external_slots(model)):
            slot.put(ir.tensor(tensor.numpy(), name=tensor.name))
    try:
        return ir.to_proto(model).SerializeToString()
    except ValueError as error:
        raise TargetError("ONNX Runtime", "the model is over 2 GiB", "Save it with external data first.") from error


@functools.cache
def _ort_errors() -> tuple[type[Exception], ...]:
    """Everything that ONNX Runtime raises: its exceptions share no base class."""
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    own = [value for value in vars(state).values() if isinstance(value, type) and issubclass(value, Exception)]
    return (*own, RuntimeError, ValueError, TypeError)


def _refusal(error: Exception, what: str) -> TargetError:
    """The text of an ONNX Runtime exception without its source locations, on one line."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : ([A-Z_]+) : ", "", text)
    text = re.sub(r"\S*/onnxruntime/\S+\.(cc|h):\d+ \S+( \S+\))? ?", "", text)
    missing_kernel = "could not find an implementation" in text.lower()
    remedy = "Its CPU provider has no kernel for that operator and element type." if missing_kernel else ""
    return TargetError("ONNX Runtime", f"{what}: {text[:400]}", remedy)
