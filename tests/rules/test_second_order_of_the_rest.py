"""Second derivatives of the rules that no other file differentiates twice, one case each, against differences."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import oracle
from tests.execution import run_in_reference
from tests.oracle import assert_vjp, node_model, run_ort
from tests.rules.second_order import first_order

RNG = np.random.default_rng(23)
ML, MS = "ai.onnx.ml", "com.microsoft"


def normal(*shape: int, scale: float = 0.6) -> Any:
    return RNG.standard_normal(shape) * scale


@dataclasses.dataclass(frozen=True)
class Rest:
    """Nodes to differentiate twice.

    Attributes:
        nodes: In order; the output of the last is y.
        feeds: Inputs to differentiate by.
        fixed: Further inputs, which are constants.
        kind: The type to compute in: float64 where ONNX Runtime can.
        opset: Of the model.
        reference: Run in the reference evaluator.
    """

    nodes: tuple[onnx.NodeProto, ...]
    feeds: dict[str, Any]
    fixed: dict[str, Any]
    kind: type = np.float64
    opset: int = 21
    reference: bool = False


def one(
    op_type: str,
    feeds: dict[str, Any],
    fixed: dict[str, Any] | None = None,
    *,
    order: str = "",
    outputs: str = "y",
    kind: type = np.float64,
    opset: int = 21,
    reference: bool = False,
    **attributes: Any,
) -> Rest:
    """A case of one operator, whose inputs are ``feeds`` and ``fixed`` unless ``order`` names them (``-``: absent)."""
    names = ["" if n == "-" else n for n in order.split()] or [*feeds, *(fixed or {})]
    node = helper.make_node(op_type, names, ["" if n == "-" else n for n in outputs.split()], **attributes)
    return Rest((node,), feeds, fixed or {}, kind, opset, reference)


def fused(op_type: str, feeds: dict[str, Any], fixed: dict[str, Any] | None = None, **options: Any) -> Rest:
    return one(op_type, feeds, fixed, kind=np.float32, domain=options.pop("domain", MS), **options)


def classical(op_type: str, x: Any = None, **options: Any) -> Rest:
    feeds = {"x": RNG.uniform(0.2, 1.2, (3, 4)) if x is None else x}
    return one(op_type, feeds, kind=np.float32, domain=ML, **options)


def chain(feeds: dict[str, Any], fixed: dict[str, Any], *nodes: tuple[str, str, str, dict[str, Any]]) -> Rest:
    made = (helper.make_node(op, i.split(), o.split(), **attributes) for op, i, o, attributes in nodes)
    return Rest(tuple(made), feeds, fixed)


X = normal(3, 4)
ANGLES = RNG.uniform(0, 6, (9, 4)).astype(np.float32)
LENGTHS = {"seqlens_k": np.array([4, 4], np.int32), "total": np.array(5, np.int32)}
TURNS = {"p": np.array([2], np.int64), "cos": np.cos(ANGLES), "sin": np.sin(ANGLES)}
PACKED = {"b": RNG.integers(0, 256, (3, 1, 16)).astype(np.uint8), "s": np.float32(normal(3, 1, scale=0.1))}
SVM: dict[str, Any] = {
    "kernel_type": "RBF", "kernel_params": [0.4, 0.3, 3.0], "support_vectors": normal(12).tolist(),
    "coefficients": [0.5, -1.0, 0.7], "rho": [0.4], "n_supports": 3,
}  # fmt: skip
WORDS = {"ids": np.array([[0, 3, 1], [5, 2, 2]], np.int32)}

CASES = {
    "affine_grid": one("AffineGrid", {"t": normal(1, 2, 3)}, {"size": np.array([1, 1, 2, 3])}, kind=np.float32),
    "cast": chain({"x": X}, {}, ("Sin", "x", "s", {}), ("Cast", "s", "c", {"to": 11}), ("Mul", "c x", "y", {})),
    "cast_like": chain({"x": X}, {"l": np.ones(1)}, ("Sin", "x", "s", {}), ("CastLike", "s l", "c", {}),
                       ("Mul", "c x", "y", {})),
    "causal_conv": one("CausalConvWithState", {"x": normal(1, 2, 5), "w": normal(2, 1, 3)}, outputs="y present",
                       kind=np.float32, opset=27),
    "celu": one("Celu", {"x": X}, alpha=1.3, kind=np.float32),
    "clip": chain({"x": X}, {"a": np.asarray(-0.5), "b": np.asarray(0.7)}, ("Clip", "x a b", "c", {}),
                  ("Mul", "c x", "y", {})),
    "sequences": chain(
        {"x": normal(2, 3), "z": normal(1, 3)}, {"zero": np.asarray(0), "last": np.asarray(1)},
        ("SequenceConstruct", "x x", "s", {}), ("SequenceInsert", "s z last", "t", {}),
        ("SequenceErase", "t zero", "r", {}), ("SequenceAt", "r zero", "e", {}),
        ("ConcatFromSequence", "r", "c", {"axis": 0}), ("Mul", "c e", "y", {}),
    ),
    "split_to_sequence": chain(
        {"x": normal(2, 3)}, {"zero": np.asarray(0), "last": np.asarray(1)},
        ("SplitToSequence", "x", "s", {"axis": 0}), ("SequenceAt", "s zero", "a", {}),
        ("SequenceAt", "s last", "b", {}), ("Mul", "a b", "y", {}),
    ),
    "optional": chain({"x": X}, {}, ("Optional", "x", "o", {}), ("OptionalGetElement", "o", "e", {}),
                      ("Mul", "e e", "y", {})),
    "dequantize": one("DequantizeLinear", {"s": np.asarray(0.3)}, {"q": np.array([3, -2, 7], np.int8)}, order="q s",
                      kind=np.float32),
    "dynamic_quantisation": dataclasses.replace(
        chain({"x": np.array([2.0, -1.0, 0.5, -3.0])}, {"steps": np.asarray(255.0)},
              ("DynamicQuantizeLinear", "x", "q s z", {}), ("Mul", "s steps", "y", {})),
        kind=np.float32,
    ),
    "dropout": one("Dropout", {"x": X}),
    "lrn": one("LRN", {"x": normal(1, 4, 2, 1)}, size=3, alpha=0.4, kind=np.float32),
    "max_roi_pool": one("MaxRoiPool", {"x": normal(1, 1, 4, 4)}, {"r": np.array([[0, 0, 0, 3, 3.0]])},
                        pooled_shape=[2, 2], kind=np.float32),
    "max_unpool": one("MaxUnpool", {"x": normal(1, 1, 2)}, {"i": np.array([[[1, 2]]])}, kernel_shape=[2], strides=[2],
                      kind=np.float32),
    "mean_variance": one("MeanVarianceNormalization", {"x": normal(2, 3, 2, 2)}, kind=np.float32),
    "mod": one("Mod", {"a": np.array([1.3, -2.2, 3.4]), "b": np.array([0.9, 1.5, 2.3])}, fmod=1),
    "one_hot": one("OneHot", {"v": normal(2)}, {"i": np.array([0, 2, 1]), "d": np.asarray(3)}, order="i d v",
                   kind=np.float32),
    "range": one("Range", {"a": np.asarray(0.3), "c": np.asarray(0.7)}, {"b": np.asarray(3.0)}, order="a b c"),
    "rotary": one("RotaryEmbedding", {"x": normal(1, 2, 3, 4), "cos": normal(1, 3, 2), "sin": normal(1, 3, 2)},
                  opset=23, kind=np.float32),
    "scatter_elements": one("ScatterElements", {"x": normal(3), "u": normal(4)}, {"i": np.array([0, 2, 2, 1])},
                            order="x i u", reduction="mul"),
    "scatter_nd": one("ScatterND", {"x": normal(3), "u": normal(2)}, {"i": np.array([[0], [2]])}, order="x i u",
                      reduction="mul"),
    "tensor_scatter": one("TensorScatter", {"x": normal(1, 1, 4, 2), "u": normal(1, 1, 2, 2)}, {"w": np.array([1])},
                          opset=24),
    "trilu": one("Trilu", {"x": normal(3, 3)}),
    "unique": one("Unique", {"x": normal(4)}),
    "simplified_norm": fused("SimplifiedLayerNormalization", {"x": normal(2, 4), "g": normal(4)}, domain=""),
    "columns": one("ArrayFeatureExtractor", {"x": X}, {"i": np.array([[2, 0, 2]])}, kind=np.float32, domain=ML),
    "imputer": classical("Imputer", imputed_value_floats=[0.1], replaced_value_float=-7.0),
    "linear_classifier": classical("LinearClassifier", outputs="label y", coefficients=normal(8).tolist(),
                                   intercepts=[0.1, 0.2], post_transform="SOFTMAX", classlabels_ints=[0, 1]),
    "linear_regressor": classical("LinearRegressor", coefficients=normal(4).tolist(), post_transform="LOGISTIC"),
    "normalizer": classical("Normalizer", norm="L2"),
    "svm": classical("SVMRegressor", **SVM),
    "scaler": classical("Scaler", offset=[0.5], scale=[2.0]),
    "attention": fused("Attention", {"x": normal(1, 3, 4), "w": normal(4, 12), "b": normal(12)}, num_heads=2),
    "bias_gelu": fused("BiasGelu", {"x": X, "b": normal(4)}),
    "fast_gelu": fused("FastGelu", {"x": X}),
    "gelu": fused("Gelu", {"x": X}),
    "quick_gelu": fused("QuickGelu", {"x": X}),
    "embed": fused(
        "EmbedLayerNormalization", {"w": normal(6, 4), "p": normal(5, 4), "g": normal(4), "b": normal(4)}, WORDS,
        order="ids - w p - g b", outputs="y m", epsilon=0.1,
    ),
    "fused_product": fused("FusedMatMul", {"a": normal(2, 3), "b": normal(4, 3)}, transB=1, alpha=0.5),
    "older_product": fused("TransposeMatMul", {"a": normal(2, 3), "b": normal(4, 3)}, transB=1),
    "grouped": fused(
        "GroupQueryAttention", {"q": normal(2, 5, 64), "k": normal(2, 5, 32), "v": normal(2, 5, 32)}, LENGTHS,
        order="q k v - - seqlens_k total", outputs="y pk pv", num_heads=4, kv_num_heads=2,
    ),
    "quantised_product": fused("MatMulNBits", {"a": normal(2, 32, scale=0.3)}, PACKED, K=32, N=3, block_size=32,
                               bits=4),
    "heads": fused("MultiHeadAttention", {"q": normal(1, 3, 4), "k": normal(1, 2, 4), "v": normal(1, 2, 4)},
                   num_heads=2),
    "fused_rotary": fused("RotaryEmbedding", {"x": normal(1, 2, 5, 8)}, TURNS),
    "skip": fused("SkipLayerNormalization", {"x": normal(1, 2, 4), "s": normal(1, 2, 4), "g": normal(4)}),
    "skip_simplified": fused("SkipSimplifiedLayerNormalization",
                             {"x": normal(1, 2, 4), "s": normal(1, 2, 4), "g": normal(4)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_a_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.setitem(oracle.RUNNERS, "reference", run_in_reference)
    feeds = {k: np.asarray(a).astype(case.kind) for k, a in case.feeds.items()}
    fixed = {
        k: a.astype(case.kind) if a.dtype == np.float64 else a
        for k, a in ((k, np.asarray(a)) for k, a in case.fixed.items())
    }
    element = TensorProto.FLOAT if case.kind == np.float32 else TensorProto.DOUBLE
    primal = node_model(case.nodes, feeds, constants=fixed, outputs={"y": element}, opset=case.opset, domains=[ML, MS])
    run = run_in_reference if case.reference else run_ort
    first, seeds = first_order(primal, run(primal, feeds), feeds, list(feeds), ["y"])
    narrow = case.kind == np.float32
    assert_vjp(
        first,
        {**feeds, **seeds},
        wrt=[*feeds, *seeds],
        runner="reference" if case.reference else "ort",
        check=False,
        step=3e-3 if narrow else None,
        atol=2e-3 if narrow else 1e-6,
    )
