"""Operators that an importer of TVM lacks, and whose specification has a body: they are written out."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.expand_bodies import expand_bodies
from onnx_cfad.model import normalise

_BOTH = (
    *("CausalConvWithState", "CenterCropPad", "HammingWindow", "HannWindow"),
    *("BlackmanWindow", "RotaryEmbedding", "SwiGLU", "Swish"),
)
LACKING = {
    "relay": frozenset(("", name) for name in (*_BOTH, "AffineGrid", "GroupNormalization", "RMSNormalization")),
    "relax": frozenset(("", name) for name in (*_BOTH, "Celu", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")),
}
"""Domain and name of the operators with a body that a build lacks; random ones are refused before."""


def with_bodies(model: ir.Model, kind: str) -> ir.Model:
    """``model``, in normal form, with the operators written out that the build ``kind`` lacks.

    A body may call further such operators.

    Raises:
        ModelError: The type of an input, which a body depends on, is not known.
    """
    while expand_bodies(model, LACKING[kind]):
        model = normalise(model)
    return model
