"""GroupQueryAttention without a cache, and the rotary embedding that it may apply."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, concat, op, where
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.rules.com_microsoft.attention import heads, merged, refuse, scores
from onnx_cfad.rules.decomposition import decomposed

DOMAIN = "com.microsoft"


@decomposed("GroupQueryAttention", domain=DOMAIN)
def group_query_attention(
    query: Expr,
    key: Expr | None,
    value: Expr | None,
    past_key: Expr | None,
    past_value: Expr | None,
    seqlens_k: Expr,
    total_sequence_length: Expr,
    cos_cache: Expr | None = None,
    sin_cache: Expr | None = None,
    position_ids: Expr | None = None,
    attention_bias: Expr | None = None,
    head_sink: Expr | None = None,
    *further: Expr | None,
    num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    do_rotary: int = 0,
    rotary_interleaved: int = 0,
    local_window_size: int = -1,
    softcap: float = 0.0,
    smooth_softmax: int = 0,
    causal: int = 1,
) -> tuple[Expr, ...]:
    """Each head of key and value serves num_heads / kv_num_heads heads of the query; padded keys are masked."""
    refuse("GroupQueryAttention", past_key=past_key, past_value=past_value)
    if any(x is not None for x in further):
        raise UnsupportedOp("", "GroupQueryAttention with scales or norms of its own", "Export it without these.")
    if key is None or value is None:
        q, k, v = _unpacked(query, num_heads, kv_num_heads)
    else:
        q, k, v = heads(query, num_heads), heads(key, kv_num_heads), heads(value, kv_num_heads)
    if do_rotary and cos_cache is not None and sin_cache is not None:
        q, k = (_rotated(x, position_ids, cos_cache, sin_cache, rotary_interleaved) for x in (q, k))
    groups = num_heads // kv_num_heads
    beyond = _beyond(seqlens_k, k)
    added = [where(beyond, -65504.0 if q.dtype == ir.DataType.FLOAT16 else -1e30, q.builder.constant(0, q.dtype))]
    added += [] if attention_bias is None else [attention_bias]
    size = op.Reciprocal(op.Sqrt(op.Squeeze(q.dim(3), [0]).cast(q.dtype)))
    total = scores(
        q, _repeated(k, groups), scale or size, added, causal=bool(causal), window=local_window_size, cap=softcap
    )
    weights = _with_sink(total, head_sink, smooth_softmax)
    return merged(op.MatMul(weights, _repeated(v, groups))), k, v


def _unpacked(x: Expr, num_heads: int, kv_num_heads: int) -> tuple[Expr, Expr, Expr]:
    """x [B, S, (num_heads + 2 kv_num_heads) * H] as three tensors of heads."""
    whole = heads(x, num_heads + 2 * kv_num_heads)
    q, k, v = op.Split(whole, [num_heads, kv_num_heads, kv_num_heads], axis=1, outputs=3)
    for part, number in ((q, num_heads), (k, kv_num_heads), (v, kv_num_heads)):
        part.value.shape = ir.Shape([None, number, None, None])
    return q, k, v


def _beyond(seqlens_k: Expr, k: Expr) -> Expr:
    """[B, 1, 1, T]: whether a key is padding; ``seqlens_k`` holds the lengths less 1."""
    zero, one = (k.builder.constant(np.int64(n)) for n in (0, 1))
    columns = op.Range(zero, op.Squeeze(k.dim(2), [0]), one)
    last = op.Reshape(seqlens_k.cast(ir.DataType.INT64), [-1, 1, 1, 1])
    return op.Greater(columns, last)


def _repeated(x: Expr, groups: int) -> Expr:
    """[B, K, T, H] to [B, K * groups, T, H], each head repeated at once."""
    if groups == 1:
        return x
    tiled = op.Tile(x.unsqueeze([2]), [1, 1, groups, 1, 1])
    shape = concat([x.dim(0), op.Mul(x.dim(1), groups), x.dim(2), x.dim(3)])
    joined = op.Reshape(tiled, shape)
    joined.value.shape = ir.Shape([None] * 4)
    return joined


def _with_sink(total: Expr, sink: Expr | None, smooth: int) -> Expr:
    """softmax over one more key that holds nothing: its score is that of the head, or 0 where it is only smooth."""
    if sink is None and not smooth:
        return op.Softmax(total, axis=-1)
    last = total.builder.constant(np.zeros((1, 1, 1, 1)), total.dtype) if sink is None else sink.reshape([1, -1, 1, 1])
    lead = op.Shape(total, start=0, end=3)
    column = op.Expand(last.cast(total.dtype), concat([lead, total.builder.constant(np.asarray([1], np.int64))]))
    weights = op.Softmax(op.Concat(total, column, axis=-1), axis=-1)
    return op.Slice(weights, [0], [-1], [3])


@decomposed("RotaryEmbedding", domain=DOMAIN)
def rotary_embedding(
    x: Expr,
    position_ids: Expr,
    cos_cache: Expr,
    sin_cache: Expr,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    is_packed_batching: int = 0,
) -> Expr:
    """Input [B, S, heads * H] or [B, heads, S, H]; the first ``rotary_embedding_dim`` numbers of a head are turned."""
    if is_packed_batching:
        raise UnsupportedOp("", "RotaryEmbedding with packed batching", "Export it without is_packed_batching.")
    if x.rank == 4:
        return _rotated(x, position_ids, cos_cache, sin_cache, interleaved, rotary_embedding_dim)
    if num_heads:
        split = heads(x, num_heads)
    else:
        width = cos_cache.dims[1]
        if width is None:
            raise UnsupportedOp("", "the cos_cache of RotaryEmbedding has no known width", "Declare its shape.")
        split = op.Transpose(op.Reshape(x, [0, 0, -1, 2 * width]), perm=[0, 2, 1, 3])
        split.value.shape = ir.Shape([None] * 4)
    return merged(_rotated(split, position_ids, cos_cache, sin_cache, interleaved, rotary_embedding_dim))


def _rotated(
    x: Expr, positions: Expr | None, cos_cache: Expr, sin_cache: Expr, interleaved: int, width: int = 0
) -> Expr:
    """x [B, heads, S, H] with pairs of numbers turned by the angles of their positions; caches [P, half of it]."""
    half = cos_cache.dims[1]
    if half is None:
        raise UnsupportedOp("", "the cos_cache of a rotary embedding has no known width", "Declare its shape.")
    cos, sin = (_at(cache, positions, x).cast(x.dtype) for cache in (cos_cache, sin_cache))
    turned, rest = op.Slice(x, [0], [2 * half], [3]), op.Slice(x, [2 * half], [np.iinfo(np.int64).max], [3])
    if interleaved:
        first, second = op.Slice(turned, [0], [2 * half], [3], [2]), op.Slice(turned, [1], [2 * half], [3], [2])
    else:
        first, second = op.Slice(turned, [0], [half], [3]), op.Slice(turned, [half], [2 * half], [3])
    real, imaginary = first * cos - second * sin, first * sin + second * cos
    if interleaved:
        pairs = op.Concat(op.Unsqueeze(real, [4]), op.Unsqueeze(imaginary, [4]), axis=4)
        joined = op.Reshape(pairs, [0, 0, 0, -1])
    else:
        joined = op.Concat(real, imaginary, axis=3)
    whole = x.dims[3] == 2 * half or (width == 0 and x.dims[3] is None)
    return joined if whole else op.Concat(joined, rest, axis=3)


def _at(cache: Expr, positions: Expr | None, x: Expr) -> Expr:
    """The rows of ``cache`` for positions [B, S], or from an offset [1] on: [B or 1, 1, S, half]."""
    if positions is not None and positions.rank == 2:
        return op.Gather(cache, positions, axis=0).unsqueeze([1])
    zero, one = (x.builder.constant(np.int64(n)) for n in (0, 1))
    rows = op.Range(zero, op.Squeeze(x.dim(2), [0]), one)
    if positions is not None:
        rows = op.Add(rows, positions)
    return op.Gather(cache, rows, axis=0).unsqueeze([0, 1])
