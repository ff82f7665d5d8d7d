"""Attention and MultiHeadAttention: softmax(q k^T s + mask + bias) v for each head.

Every mask is a number added to the scores (``mask_filter_value``, -10,000 by default) where it is zero, as ONNX
Runtime adds it. Refused by name: a cache (past), and attributes of decoders that write into one.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, concat, op, where
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.rules.decomposition import decomposed

DOMAIN = "com.microsoft"
_NEVER = -3.4e38  # what a score beyond the diagonal becomes


@decomposed("Attention", domain=DOMAIN)
def attention(
    x: Expr,
    weights: Expr,
    bias: Expr | None = None,
    mask_index: Expr | None = None,
    past: Expr | None = None,
    attention_bias: Expr | None = None,
    past_sequence_length: Expr | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: tuple[int, ...] = (),
    unidirectional: int = 0,
    scale: float = 0.0,
    mask_filter_value: float = -10000.0,
    do_rotary: int = 0,
) -> tuple[Expr | None, ...]:
    """The three projections are one product with ``weights`` [D, Hq + Hk + Hv]."""
    refuse("Attention", past=past, past_sequence_length=past_sequence_length, do_rotary=do_rotary or None)
    joint = x @ weights
    if bias is not None:
        joint = joint + bias
    if any(qkv_hidden_sizes):
        parts = op.Split(joint, list(qkv_hidden_sizes), axis=-1, outputs=3)
    else:
        parts = op.Split(joint, axis=-1, num_outputs=3, outputs=3)
    q, k, v = (heads(part, num_heads) for part in parts)
    added = [*masks(mask_index, mask_filter_value, k), *([] if attention_bias is None else [attention_bias])]
    result = attended(q, k, v, scale or _by_head_size(q), added, causal=bool(unidirectional))
    if any(qkv_hidden_sizes) and qkv_hidden_sizes[1] != qkv_hidden_sizes[2]:
        return merged(result), None
    return merged(result), concat([k.unsqueeze([0]), v.unsqueeze([0])])


@decomposed("MultiHeadAttention", domain=DOMAIN)
def multi_head_attention(
    query: Expr,
    key: Expr | None = None,
    value: Expr | None = None,
    bias: Expr | None = None,
    key_padding_mask: Expr | None = None,
    attention_bias: Expr | None = None,
    past_key: Expr | None = None,
    past_value: Expr | None = None,
    past_sequence_length: Expr | None = None,
    cache_indirection: Expr | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
    mask_filter_value: float = -10000.0,
    unidirectional: int = 0,
) -> tuple[Expr, ...]:
    """Query [B, S, D] with key and value [B, L, D] or [B, heads, L, H]; or packed [B, S, heads, 3, H]; or kv packed."""
    refuse("MultiHeadAttention", past_key=past_key, past_value=past_value, past_sequence_length=past_sequence_length)
    refuse("MultiHeadAttention", cache_indirection=cache_indirection)
    q, k, v = _parts(query, key, value)
    if bias is not None:
        q, k, v = _biased(q, k, v, bias)
    q, k, v = (part if part.rank == 4 else heads(part, num_heads) for part in (q, k, v))
    added = masks(key_padding_mask, mask_filter_value, k)
    added += [] if attention_bias is None else [attention_bias]
    return merged(attended(q, k, v, scale or _by_head_size(q), added, causal=bool(unidirectional))), k, v


def refuse(operator: str, **inputs: object) -> None:
    """Raises for the inputs and attributes that are given and have no rule."""
    given = [name for name, value in inputs.items() if value is not None]
    if given:
        raise UnsupportedOp(
            "",
            f"the derivative of {operator} with {' and '.join(given)} is not supported",
            "Export the model without a cache, as for the first run of a decoder.",
        )


def _parts(query: Expr, key: Expr | None, value: Expr | None) -> tuple[Expr, Expr, Expr]:
    """Query, key and value, taken apart where they are packed, each [B, S, D] or [B, heads, S, H]."""
    if key is None:
        q, k, v = (_packed(query, index) for index in range(3))
        return q, k, v
    if value is None:
        return query, _packed(key, 0), _packed(key, 1)
    return query, key, value


def _packed(x: Expr, index: int) -> Expr:
    """Part ``index`` of x [B, S, heads, parts, H], as [B, S, heads * H]."""
    part = op.Reshape(op.Gather(x, x.builder.constant(np.int64(index)), axis=3), [0, 0, -1])
    known = x.dims
    width = known[2] * known[4] if known[2] is not None and known[4] is not None else None
    part.value.shape = ir.Shape([known[0], known[1], width])
    return part


def _biased(q: Expr, k: Expr, v: Expr, bias: Expr) -> tuple[Expr, Expr, Expr]:
    """With their share of ``bias`` [Dq + Dk + Dv] added; a key of heads has its own already."""
    first, end = q.dim(2), op.Shape(bias)
    q = _plus(q, op.Slice(bias, [0], first, [0]))
    if k.rank == 4:
        return q, k, v
    second = op.Add(first, k.dim(2))
    return q, _plus(k, op.Slice(bias, first, second, [0])), _plus(v, op.Slice(bias, second, end, [0]))


def _plus(x: Expr, bias: Expr) -> Expr:
    total = x + bias
    total.value.shape = x.value.shape
    return total


def heads(x: Expr, number: int) -> Expr:
    """[B, S, number * H] to [B, number, S, H]."""
    split = op.Reshape(x, [0, 0, number, -1])
    turned = op.Transpose(split, perm=[0, 2, 1, 3])
    known = x.dims if x.has_rank else (None, None, None)
    width = known[2] // number if known[2] is not None else None
    turned.value.shape = ir.Shape([known[0], number, known[1], width])
    return turned


def merged(x: Expr) -> Expr:
    """[B, heads, S, H] to [B, S, heads * H]."""
    return op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, -1])


def _by_head_size(q: Expr) -> Expr:
    """1 / sqrt(H) for q [B, heads, S, H]."""
    return op.Reciprocal(op.Sqrt(op.Squeeze(q.dim(3), [0]).cast(q.dtype)))


def masks(mask: Expr | None, filter_value: float, k: Expr) -> list[Expr]:
    """What is added to the scores [B, heads, S, T] for an integer mask [B], [2B], [B, T] or [B, S, T].

    With one axis it holds where the keys of each sample end, then where they start, 0 if that is left out.
    """
    if mask is None:
        return []
    if mask.rank not in (1, 2, 3):
        raise UnsupportedOp("", f"a mask with {mask.rank} axes is not supported", "Give it with two or three axes.")
    builder = mask.builder
    if mask.rank == 1:
        zero, one = (builder.constant(np.int64(n)) for n in (0, 1))
        places = op.Range(zero, op.Squeeze(k.dim(2), [0]), one)
        samples = k.dim(0)
        padded = op.Concat(mask.cast(ir.DataType.INT64), op.Expand(zero, samples), axis=0)
        ends = op.Slice(padded, [0], samples, [0]).unsqueeze([1])
        starts = op.Slice(padded, samples, op.Add(samples, samples), [0]).unsqueeze([1])
        hidden = op.Or(op.GreaterOrEqual(places, ends), op.Less(places, starts))
    else:
        hidden = op.Equal(mask, 0)
    added = where(hidden, builder.constant(filter_value, k.dtype), builder.constant(0, k.dtype))
    return [added.unsqueeze([1] if mask.rank == 3 else [1, 2])]


def attended(
    q: Expr, k: Expr, v: Expr, scale: float | Expr, added: list[Expr], *, causal: bool, window: int = -1
) -> Expr:
    """softmax(scale * q k^T + ...) v for q [B, heads, S, H], k and v [B, heads, T, H]."""
    return op.MatMul(op.Softmax(scores(q, k, scale, added, causal=causal, window=window), axis=-1), v)


def scores(
    q: Expr, k: Expr, scale: float | Expr, added: list[Expr], *, causal: bool, window: int = -1, cap: float = 0.0
) -> Expr:
    """The scores before the softmax: capped, masked, and cut beyond the diagonal (and before the window)."""
    turned = op.Transpose(k, perm=[0, 1, 3, 2])
    turned.value.shape = ir.Shape([None] * 4)
    total = op.MatMul(q, turned) * scale
    if cap:
        total = cap * op.Tanh(total * (1 / cap))
    for term in added:
        total = total + term
    if causal:
        total = where(_visible(q, k, window), total, _NEVER if q.dtype != ir.DataType.FLOAT16 else -65504.0)
    return total


def _visible(q: Expr, k: Expr, window: int) -> Expr:
    """[S, T]: whether a query sees a key: it is not later (nor ``window`` or more earlier); the last ones align."""
    zero, one = (q.builder.constant(np.int64(n)) for n in (0, 1))
    queries, keys = op.Squeeze(q.dim(2), [0]), op.Squeeze(k.dim(2), [0])
    rows = op.Add(op.Range(zero, queries, one), op.Sub(keys, queries)).unsqueeze([1])
    columns = op.Range(zero, keys, one).unsqueeze([0])
    seen = op.LessOrEqual(columns, rows)
    return seen if window < 0 else op.And(seen, op.Greater(columns, op.Sub(rows, window)))
