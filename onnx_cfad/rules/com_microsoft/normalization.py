"""Layer normalisation in its fused forms: of the sum of two inputs, of embeddings, and without a mean."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, op
from onnx_cfad.rules.decomposition import decomposed
from onnx_cfad.rules.standardize import at_least_float, scale_to_one, standardize

DOMAIN = "com.microsoft"

Outputs = tuple[Expr | None, ...]


@decomposed("SkipLayerNormalization", domain=DOMAIN)
def skip_layer_normalization(
    x: Expr, skip: Expr, gamma: Expr, beta: Expr | None = None, bias: Expr | None = None, *, epsilon: float = 1e-12
) -> Outputs:
    total = _sum(x, skip, bias)
    return _normalized(total, gamma, beta, epsilon), None, None, total


@decomposed("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_simplified_layer_normalization(
    x: Expr, skip: Expr, gamma: Expr, bias: Expr | None = None, *, epsilon: float = 1e-12
) -> Outputs:
    total = _sum(x, skip, bias)
    scaled = scale_to_one(total, [-1], epsilon).xhat * at_least_float(gamma)
    return scaled.cast(x.dtype), None, None, total


@decomposed("SimplifiedLayerNormalization", domain="")
@decomposed("SimplifiedLayerNormalization", domain=DOMAIN)
def simplified_layer_normalization(x: Expr, scale: Expr, *, axis: int = -1, epsilon: float = 1e-5) -> Outputs:
    """Also found in the default domain, where ONNX Runtime's optimiser puts it."""
    axes = list(range(axis, 0)) if axis < 0 else list(range(axis, x.rank))
    normalized = scale_to_one(x, axes, epsilon)
    return (normalized.xhat * at_least_float(scale)).cast(scale.dtype), normalized.inverse


@decomposed("EmbedLayerNormalization", domain=DOMAIN)
def embed_layer_normalization(
    input_ids: Expr,
    segment_ids: Expr | None,
    word_embedding: Expr,
    position_embedding: Expr,
    segment_embedding: Expr | None,
    gamma: Expr,
    beta: Expr,
    mask: Expr | None = None,
    position_ids: Expr | None = None,
    *,
    epsilon: float = 1e-12,
) -> Outputs:
    """Rows of the tables, added and normalised. The positions are 0, 1, ... where they are not given."""
    words = op.Gather(word_embedding, input_ids, axis=0)  # [B, S, H]
    if position_ids is None:
        length = op.Squeeze(op.Shape(input_ids, start=1, end=2), [0])
        zero, one = (input_ids.builder.constant(np.int64(n)) for n in (0, 1))
        places = op.Range(zero, length, one)  # [S]
    else:
        places = position_ids
    total = words + op.Gather(position_embedding, places, axis=0)
    if segment_ids is not None and segment_embedding is not None:
        total = total + op.Gather(segment_embedding, segment_ids, axis=0)
    total.value.shape = ir.Shape([None, None, None])
    return _normalized(total, gamma, beta, epsilon), None, total


def _sum(x: Expr, skip: Expr, bias: Expr | None) -> Expr:
    total = x + skip
    return total if bias is None else total + bias


def _normalized(x: Expr, gamma: Expr, beta: Expr | None, epsilon: float) -> Expr:
    scaled = standardize(x, [-1], epsilon).xhat * at_least_float(gamma)
    return (scaled if beta is None else scaled + at_least_float(beta)).cast(x.dtype)
