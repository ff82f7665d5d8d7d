"""The form of a model that every way to compile it starts from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.types import infer_types
from onnx_cfad.model import normalise
from onnx_cfad.rewriters.legalise import MOST_ROW_BYTES, decompose
from onnx_cfad.rewriters.preallocate_sequences import PreallocateSequencesPass
from onnx_cfad.targets.tvm.specified import with_bodies


def prepared(model: ir.Model, feeds: Mapping[str, np.ndarray[Any, Any]], kind: str) -> tuple[ir.Model, list[str]]:
    """``model`` for inputs of the shapes of ``feeds``, in operators that the build ``kind`` has; why sequences stay.

    RNN, LSTM and GRU are a Scan, operators that the build lacks are their specified bodies, sequences are tensors, and
    what constants decide is computed.

    Args:
        model: A model that may be changed.
        feeds: Sample inputs. An input that is not among them has a default, which becomes a constant.
        kind: ``relay`` or ``relax``.

    Raises:
        ModelError: The type of an input, which the body of an operator depends on, is not known.
    """
    model = normalise(model)
    for value in list(model.graph.inputs):
        if value.name in feeds:
            value.shape = ir.Shape(feeds[value.name or ""].shape)
        else:
            model.graph.inputs.remove(value)
    model = normalise(with_bodies(model, kind))
    decompose(model, kind)
    infer_types(model)
    sequences = PreallocateSequencesPass(MOST_ROW_BYTES, computed=False)
    if sequences(model).modified:
        decompose(model, kind)
        infer_types(model)
    return model, [f"a sequence stays with the host: {reason}" for reason in sequences.stays]
