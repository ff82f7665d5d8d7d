"""Fused operators of ONNX Runtime: differences of ONNX Runtime's own kernels, attributes and optional inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnx_cfad as cfad
from tests.oracle import assert_vjp, node_model, run_ort

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(11)


def normal(*shape: int, scale: float = 1.0, dtype: Any = np.float32) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape) * scale, dtype)


def ints(*shape: int, below: int, dtype: Any = np.int32) -> np.ndarray:
    return np.asarray(RNG.integers(0, below, shape), dtype)


def check(
    op_type: str,
    inputs: dict[str, Any],
    *,
    outputs: tuple[str, ...] = ("y",),
    seeded: tuple[str, ...] | None = None,
    dims: str = "static",
    domain: str = DOMAIN,
    opset: int = 18,
    types: dict[str, int] | None = None,
    wrt: list[str] | None = None,
    rtol: float | None = None,
    **attributes: Any,
) -> None:
    feeds = {name: value for name, value in inputs.items() if value is not None}
    names = [name if value is not None else "" for name, value in inputs.items()]
    node = helper.make_node(op_type, names, list(outputs), domain=domain, **attributes)
    kind = next(helper.np_dtype_to_tensor_dtype(a.dtype) for a in feeds.values() if a.dtype.kind == "f")
    known = {name: (types or {}).get(name, kind) for name in outputs if name}
    model = node_model(node, feeds, outputs=known, dims=dims, opset=opset, domains=[DOMAIN])
    assert_vjp(model, feeds, outputs=seeded, wrt=wrt, rtol=rtol, atol=1e-4, check=domain != "")
    chosen = wrt or [name for name, a in feeds.items() if a.dtype.kind == "f"]
    emitted = cfad.vjp(model, wrt=chosen, outputs=seeded).proto()
    fused = [n for n in emitted.graph.node if n.domain or n.op_type == "SimplifiedLayerNormalization"]
    assert [n.op_type for n in fused] == [op_type], "the derivative is made of standard operators, the primal is kept"


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("op_type", ["Gelu", "FastGelu", "QuickGelu"])
def test_activation(op_type: str, dims: str) -> None:
    check(op_type, {"x": normal(3, 4)}, dims=dims)


def test_activation_attributes_and_biases() -> None:
    check("QuickGelu", {"x": normal(3, 4)}, alpha=0.7)
    check("FastGelu", {"x": normal(2, 3, 4), "b": normal(4)}, dims="symbolic")
    check("BiasGelu", {"x": normal(2, 3, 4), "b": normal(4)}, dims="symbolic")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("a", "b", "attributes"),
    [
        ((3, 4), (4, 2), {}),
        ((2, 3, 4), (2, 4, 5), {"alpha": 0.5}),
        ((2, 4, 3), (2, 4, 5), {"transA": 1}),
        ((2, 3, 4), (5, 4), {"transB": 1, "alpha": -2.0}),
        ((1, 3, 4), (2, 4, 5), {}),
        ((3, 2, 4), (2, 4, 5), {"transBatchA": 1}),
        ((4, 2, 3), (2, 4, 5), {"transBatchA": 1, "transA": 1}),
        ((2, 3, 4), (5, 2, 4), {"transBatchB": 1, "transB": 1}),
    ],
)
def test_fused_product(a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, Any], dtype: Any) -> None:
    check("FusedMatMul", {"a": normal(*a, dtype=dtype), "b": normal(*b, dtype=dtype)}, **attributes)
    check("FusedMatMul", {"a": normal(*a, dtype=dtype), "b": normal(*b, dtype=dtype)}, dims="symbolic", **attributes)


@pytest.mark.parametrize(
    ("bits", "zeros"),
    [(4, ""), (4, "packed"), (4, "float"), (8, ""), (8, "packed"), (2, ""), (2, "packed")],
)
@pytest.mark.parametrize("k", [64, 40])
def test_quantised_product(bits: int, zeros: str, k: int) -> None:
    n, block = 3, 32 if bits != 2 else 64
    blocks = -(-k // block)
    packed = ints(n, blocks, block * bits // 8, below=256, dtype=np.uint8)
    zero = {
        "": None,
        "packed": ints(n, -(-blocks * bits // 8), below=256, dtype=np.uint8),
        "float": normal(n, blocks),
    }[zeros]
    inputs = {"a": normal(2, 3, k, scale=0.3), "b": packed, "s": normal(n, blocks, scale=0.1), "z": zero}
    feeds = {name: value for name, value in inputs.items() if value is not None}
    constants = {name: value for name, value in feeds.items() if name != "a"}
    names = [name if value is not None else "" for name, value in inputs.items()]
    node = helper.make_node("MatMulNBits", names, ["y"], domain=DOMAIN, K=k, N=n, block_size=block, bits=bits)
    model = node_model(node, {"a": feeds["a"]}, constants=constants, outputs={"y": TensorProto.FLOAT}, domains=[DOMAIN])
    assert_vjp(model, {"a": feeds["a"]}, atol=1e-4)


@pytest.mark.parametrize("further", [(), ("beta",), ("beta", "bias"), ("bias",)])
def test_skip_layer_normalization(further: tuple[str, ...]) -> None:
    inputs: dict[str, Any] = {"x": normal(2, 3, 4), "skip": normal(2, 3, 4), "gamma": normal(4)}
    inputs |= {name: normal(4) if name in further else None for name in ("beta", "bias")}
    check("SkipLayerNormalization", inputs, epsilon=1e-3)
    check("SkipLayerNormalization", inputs, outputs=("y", "", "", "sum"), dims="symbolic", epsilon=1e-3)


def test_skip_simplified_layer_normalization() -> None:
    inputs = {"x": normal(2, 3, 4), "skip": normal(2, 3, 4), "gamma": normal(4)}
    check("SkipSimplifiedLayerNormalization", inputs)
    inputs["bias"] = normal(4)
    check("SkipSimplifiedLayerNormalization", inputs, outputs=("y", "", "", "sum"), dims="symbolic")


@pytest.mark.parametrize("axis", [-1, 1])
def test_simplified_layer_normalization_of_the_default_domain(axis: int) -> None:
    inputs = {"x": normal(2, 3, 4), "scale": normal(*(4,) if axis == -1 else (3, 4))}
    check("SimplifiedLayerNormalization", inputs, domain="", axis=axis, epsilon=1e-4)


@pytest.mark.parametrize("case", ["plain", "segments", "positions"])
def test_embed_layer_normalization(case: str) -> None:
    segments = case == "segments"
    inputs = {
        "ids": ints(2, 3, below=6), "segment": ints(2, 3, below=2) if segments else None,
        "words": normal(6, 4), "places": normal(5, 4), "segments": normal(2, 4) if segments else None,
        "gamma": normal(4), "beta": normal(4),
    }  # fmt: skip
    if case == "positions":
        inputs |= {"mask": None, "position_ids": ints(2, 3, below=5)}
    check("EmbedLayerNormalization", inputs, outputs=("y", "", "sum"), epsilon=1e-3)


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize(
    ("mask", "attributes"),
    [
        (None, {}),
        (None, {"unidirectional": 1}),
        (np.array([[1, 1, 1], [1, 1, 0]], np.int32), {}),
        (np.array([[1, 1, 0], [1, 1, 1]], np.int32), {"unidirectional": 1, "scale": 0.7}),
        (np.array([[[1, 0, 1], [1, 1, 0], [0, 1, 1]]] * 2, np.int32), {"mask_filter_value": -3.0}),
        (np.array([2, 3], np.int32), {}),
        (np.array([2, 3, 0, 1], np.int32), {}),
    ],
)
def test_attention(mask: Any, attributes: dict[str, Any], dims: str) -> None:
    inputs = {"x": normal(2, 3, 8, scale=0.5), "w": normal(8, 24, scale=0.4), "b": normal(24, scale=0.3), "mask": mask}
    check("Attention", inputs, dims=dims, num_heads=2, **attributes)


def test_attention_with_a_bias_on_scores_and_sizes_of_its_own() -> None:
    inputs = {"x": normal(2, 3, 8), "w": normal(8, 16, scale=0.4), "b": normal(16), "mask": None, "past": None}
    inputs["on_scores"] = normal(2, 2, 3, 3)
    check("Attention", inputs, num_heads=2, qkv_hidden_sizes=[4, 4, 8])
    plain = {"x": normal(1, 3, 4), "w": normal(4, 12, scale=0.4), "b": normal(12)}
    check("Attention", plain, outputs=("y", "present"), num_heads=2)


MASKED = {"mask": np.array([[1, 1, 1, 0], [1, 1, 1, 1]], np.int32)}


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize(
    ("form", "attributes"),
    [
        ("separate", {}),
        ("separate", {"unidirectional": 1, "scale": 0.6}),
        ("bias", {}),
        ("masked", {}),
        ("lengths", {}),
        ("on_scores", {}),
        ("heads", {}),
    ],
)
def test_multi_head_attention(form: str, attributes: dict[str, Any], dims: str) -> None:
    length = 3 if "unidirectional" in attributes else 4
    q, k, v = normal(2, 3, 8), normal(2, length, 8), normal(2, length, 8)
    inputs: dict[str, Any] = {"q": q, "k": k, "v": v}
    if form == "bias":
        inputs["b"] = normal(24)
    if form == "masked":
        inputs |= {"b": None, **MASKED}
    if form == "lengths":
        inputs |= {"b": None, "mask": np.array([3, 4], np.int32)}
    if form == "on_scores":
        inputs |= {"b": None, "mask": None, "on_scores": normal(1, 2, 3, 4)}
    if form == "heads":
        inputs |= {"k": normal(2, 2, 4, 4), "v": normal(2, 2, 4, 4)}
    check("MultiHeadAttention", inputs, dims=dims, num_heads=2, **attributes)


def test_packed_attention_which_the_cpu_has_no_kernel_for() -> None:
    """The derivative reads the inputs alone: without the primal node it runs, and agrees with the unpacked form."""
    parts = {name: normal(2, 3, 8) for name in ("q", "k", "v")}
    ct = normal(2, 3, 8)
    plain = helper.make_node("MultiHeadAttention", list(parts), ["y"], domain=DOMAIN, num_heads=2)
    expected = without_primal(node_model(plain, parts, opset=18, domains=[DOMAIN]), {**parts, "y_grad": ct})
    split = {name: array.reshape(2, 3, 2, 4) for name, array in parts.items()}
    forms = {"qkv": {"qkv": np.stack(list(split.values()), 3)}}
    forms["kv"] = {"q": parts["q"], "kv": np.stack([split["k"], split["v"]], 3)}
    for name, feeds in forms.items():
        node = helper.make_node("MultiHeadAttention", list(feeds), ["y"], domain=DOMAIN, num_heads=2)
        found = without_primal(node_model(node, feeds, opset=18, domains=[DOMAIN]), {**feeds, "y_grad": ct})
        wanted = np.stack([expected[f"{k}_grad"].reshape(2, 3, 2, 4) for k in ("q", "k", "v") if k in name], 3)
        np.testing.assert_allclose(found[f"{name}_grad"], wanted, rtol=1e-5)


def without_primal(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    emitted = cfad.vjp(model).proto()
    kept = [node for node in emitted.graph.node if node.domain == ""]
    del emitted.graph.node[:], emitted.graph.output[0]
    emitted.graph.node.extend(kept)
    return run_ort(emitted, feeds)


@pytest.mark.parametrize(
    ("form", "attributes"),
    [
        ("separate", {}),
        ("separate", {"scale": 0.4, "softcap": 2.0}),
        ("separate", {"local_window_size": 2}),
        ("packed", {}),
        ("rotary", {"do_rotary": 1}),
        ("rotary", {"do_rotary": 1, "rotary_interleaved": 1}),
        ("packed rotary", {"do_rotary": 1}),
        ("smooth", {"smooth_softmax": 1}),
        ("sink", {}),
        ("on_scores", {}),
        ("present", {}),
    ],
)
def test_group_query_attention_without_cache(form: str, attributes: dict[str, Any]) -> None:
    inputs: dict[str, Any] = {"q": normal(2, 5, 4 * 16), "k": normal(2, 5, 2 * 16), "v": normal(2, 5, 2 * 16)}
    if "packed" in form:
        inputs = {"q": normal(2, 5, 8 * 16), "k": None, "v": None}
    lengths, whole = np.array([4, 4], np.int32), np.array(5, np.int32)
    inputs |= {"past_k": None, "past_v": None, "seqlens_k": lengths, "total": whole}
    if "rotary" in form:
        angles = RNG.uniform(0, 6, (7, 8)).astype(np.float32)
        inputs |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    if form in ("on_scores", "sink"):
        inputs |= dict.fromkeys(("cos", "sin", "positions"))
        inputs["on_scores"] = normal(1, 1, 5, 5) if form == "on_scores" else None
    if form == "sink":
        inputs["sink"] = normal(4)
    outputs = ("y", "pk", "pv")
    seeded = outputs if form == "present" else ("y",)
    wrt = [name for name in ("q", "k", "v", "on_scores") if inputs.get(name) is not None]
    wrt += ["sink"] if form == "sink" else []
    check(
        "GroupQueryAttention",
        inputs,
        outputs=outputs,
        seeded=seeded,
        wrt=wrt,
        num_heads=4,
        kv_num_heads=2,
        **attributes,
    )


def test_group_query_attention_with_padding() -> None:
    """The shorter sample's queries beyond its length are nobody's: they are left out of the seeded output."""
    inputs = {
        "q": normal(2, 5, 16), "k": normal(2, 5, 8), "v": normal(2, 5, 8), "past_k": None, "past_v": None,
        "seqlens_k": np.array([2, 4], np.int32), "total": np.array(5, np.int32),
    }  # fmt: skip
    feeds = {name: value for name, value in inputs.items() if value is not None}
    names = [name if value is not None else "" for name, value in inputs.items()]
    nodes = [
        helper.make_node(
            "GroupQueryAttention", names, ["whole", "pk", "pv"], domain=DOMAIN, num_heads=2, kv_num_heads=1
        ),
        helper.make_node("Slice", ["whole", "start", "end", "axis"], ["y"]),
    ]
    bounds = {"start": np.array([0]), "end": np.array([3]), "axis": np.array([1])}
    model = node_model(nodes, feeds, constants=bounds, opset=18, domains=[DOMAIN])
    assert_vjp(model, feeds, wrt=["q", "k", "v"], atol=1e-4)


@pytest.mark.parametrize("positions", ["offset", "each"])
@pytest.mark.parametrize(
    ("rank", "attributes"),
    [
        (3, {}),
        (3, {"interleaved": 1}),
        (4, {}),
        (4, {"interleaved": 1}),
        (3, {"num_heads": 2, "rotary_embedding_dim": 4}),
        (4, {"num_heads": 2, "rotary_embedding_dim": 4}),
    ],
)
def test_rotary_embedding(rank: int, attributes: dict[str, Any], positions: str) -> None:
    x = normal(2, 5, 16) if rank == 3 else normal(2, 2, 5, 8)
    angles = RNG.uniform(0, 6, (9, 2 if attributes.get("rotary_embedding_dim") else 4)).astype(np.float32)
    place = np.array([2], np.int64) if positions == "offset" else ints(2, 5, below=9, dtype=np.int64)
    check(
        "RotaryEmbedding", {"x": x, "p": place, "cos": np.cos(angles), "sin": np.sin(angles)}, wrt=["x"], **attributes
    )
    check("RotaryEmbedding", {"x": x, "p": place, "cos": np.cos(angles), "sin": np.sin(angles)}, **attributes)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("Attention", ["x", "w", "b", "", "past"], {"num_heads": 2}, "Attention with past"),
        (
            "MultiHeadAttention",
            ["x", "x", "x", "", "", "", "past", "past"],
            {"num_heads": 2},
            "past_key and past_value",
        ),
        ("MatMulNBits", ["x", "q", "b", "", "g"], {"K": 8, "N": 4, "block_size": 32}, "g_idx"),
    ],
)
def test_what_has_no_derivative_here_is_refused_by_name(
    op_type: str, inputs: list[str], attributes: dict[str, Any], message: str
) -> None:
    feeds = {
        "x": normal(2, 3, 8), "w": normal(8, 24), "b": normal(24), "past": normal(2, 2, 2, 1, 4),
        "q": ints(4, 1, 16, below=256, dtype=np.uint8), "g": ints(8, below=1),
    }  # fmt: skip
    node = helper.make_node(op_type, inputs, ["y"], domain=DOMAIN, **attributes)
    model = node_model(node, {k: v for k, v in feeds.items() if k in inputs}, opset=18, domains=[DOMAIN])
    with pytest.raises(cfad.UnsupportedOp, match=message):
        cfad.vjp(model, wrt=["x"])


@pytest.mark.parametrize("plan", ["taped", "checkpointed"])
def test_fused_operators_inside_a_loop(plan: str) -> None:
    body = helper.make_graph(
        [
            helper.make_node("FastGelu", ["h"], ["g"], domain=DOMAIN),
            helper.make_node("SkipLayerNormalization", ["g", "h", "gamma"], ["new"], domain=DOMAIN, epsilon=1e-3),
            helper.make_node("Identity", ["c"], ["go"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, None),
        ],
        [helper.make_tensor_value_info("go", TensorProto.BOOL, []), helper.make_tensor_value_info("new", 1, None)],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    feeds = {"x": normal(1, 2, 4), "gamma": normal(4)}
    model = node_model(node, feeds, constants={"n": np.array(4)}, opset=18, domains=[DOMAIN])
    emitted = cfad.vjp(model, plan=plan).proto()
    assert isinstance(emitted, onnx.ModelProto)
    assert_vjp(model, feeds, atol=1e-4, rtol=1e-2)
