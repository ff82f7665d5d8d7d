"""Classical models (ai.onnx.ml): linear ones, support vectors, scaling; trees and encoders are steps.

Weights are attributes, so the derivative is by the features alone. What ONNX Runtime does is what an operator means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onnx_cfad.adjoint.expr import Expr, op, where
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.rules.reductions import nonzero_norm
from onnx_cfad.rules.registry import nondifferentiable, vjp

DOMAIN = "ai.onnx.ml"

nondifferentiable(
    "TreeEnsemble",
    "TreeEnsembleRegressor",
    "TreeEnsembleClassifier",
    domain=DOMAIN,
    reason="a leaf is chosen by comparisons: piecewise constant",
)
nondifferentiable("Binarizer", domain=DOMAIN, reason="a comparison with a threshold is piecewise constant")
nondifferentiable(
    "LabelEncoder", "OneHotEncoder", "CategoryMapper", "CastMap", "DictVectorizer", "ZipMap",
    domain=DOMAIN, reason="a table or a category: piecewise constant",
)  # fmt: skip


@vjp("Scaler", domain=DOMAIN)
def scaler(ct: Expr, y: Expr, x: Expr, *, scale: Sequence[float]) -> Expr:
    """(x - offset) * scale, in float32 whatever x is."""
    return (ct * _row(ct, scale)).cast(x.dtype)


@vjp("Normalizer", domain=DOMAIN)
def normalizer(ct: Expr, y: Expr, x: Expr, *, norm: str | None) -> Expr:
    """Each row by its largest element (MAX, the default), its 1-norm or its 2-norm; a row of zeros has no share."""
    wide = x.cast(ct.dtype)
    if norm == "L2":
        length, slope = op.ReduceL2(wide, [-1], keepdims=1), y
    elif norm == "L1":
        length, slope = op.ReduceL1(wide, [-1], keepdims=1), op.Sign(wide)
    else:
        length = op.ReduceMax(wide, [-1], keepdims=1)
        largest = op.Equal(wide, length).cast(ct.dtype)
        slope = largest / largest.sum([-1], keepdims=True)
    along = (ct * y).sum([-1], keepdims=True)
    return ((ct - slope * along) / nonzero_norm(length)).cast(x.dtype)


@vjp("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(ct: Expr, y: Expr, x: Expr, indices: Expr) -> tuple[Expr, None]:
    """Columns of x, picked by index: the cotangent is added into their places."""
    shape = op.Shape(ct)
    places = op.Expand(indices.reshape([-1]), shape)
    zeros = op.Expand(ct.builder.constant(0, ct.dtype), x.shape)
    rows = ct if x.has_rank and x.rank > 1 else ct.reshape([-1])
    places = places if x.has_rank and x.rank > 1 else places.reshape([-1])
    return op.ScatterElements(zeros, places, rows, axis=-1, reduction="add"), None


@vjp("Imputer", domain=DOMAIN)
def imputer(ct: Expr, y: Expr, x: Expr, *, replaced_value_float: float | None) -> Expr:
    """The cotangent passes where a number was kept."""
    value = 0.0 if replaced_value_float is None else replaced_value_float
    replaced = op.IsNaN(x) if math.isnan(value) else op.Equal(x, value)
    return where(replaced, 0, ct)


@vjp("LinearRegressor", domain=DOMAIN)
def linear_regressor(
    ct: Expr, y: Expr, x: Expr, *, coefficients: Sequence[float], targets: int | None, post_transform: str | None
) -> Expr:
    weights = np.reshape(np.asarray(coefficients), (targets or 1, -1))
    return op.MatMul(_before_transform(ct, y, post_transform, weights.shape[0]), _matrix(ct, weights)).cast(x.dtype)


@vjp("LinearClassifier", domain=DOMAIN)
def linear_classifier(
    ct: tuple[Expr | None, ...],
    y: tuple[Expr, ...],
    x: Expr,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] | None,
    classlabels_ints: Sequence[int] | None,
    classlabels_strings: Sequence[str] | None,
    post_transform: str | None,
) -> Expr | None:
    """The scores; the label is a choice. With one row for two labels the first score is 1 less the second."""
    scores_ct, scores = ct[1], y[1]
    if scores_ct is None:
        return None
    labels = len(classlabels_ints or classlabels_strings or ())
    rows = len(intercepts) if intercepts else labels
    weights = np.reshape(np.asarray(coefficients), (rows, -1))
    if rows == 1 and labels == 2:
        if post_transform == "PROBIT":
            raise UnsupportedOp("", "LinearClassifier with PROBIT and one row of weights", "Give a row for each label.")
        difference = op.Slice(scores_ct, [1], [2], [1]) - op.Slice(scores_ct, [0], [1], [1])
        second = op.Slice(scores, [1], [2], [1])
        transform = post_transform if post_transform == "LOGISTIC" else None
        return op.MatMul(_before_transform(difference, second, transform), _matrix(difference, weights)).cast(x.dtype)
    return op.MatMul(_before_transform(scores_ct, scores, post_transform), _matrix(scores_ct, weights)).cast(x.dtype)


@vjp("SVMRegressor", domain=DOMAIN)
def svm_regressor(
    ct: Expr,
    y: Expr,
    x: Expr,
    *,
    coefficients: Sequence[float],
    support_vectors: Sequence[float] | None,
    n_supports: int | None,
    kernel_type: str | None,
    kernel_params: Sequence[float] | None,
    one_class: int | None,
) -> Expr | None:
    """A sum of c_j K(x, s_j) over the supports s_j; one class is the sign of it: no derivative.

    A post_transform has no effect: ONNX Runtime applies none to a single score.
    """
    if one_class:
        return None
    if not n_supports:
        return op.MatMul(ct, _matrix(ct, np.reshape(np.asarray(coefficients), (1, -1)))).cast(x.dtype)
    supports = np.reshape(np.asarray(support_vectors), (n_supports, -1))
    by_support = ct * _row(ct, coefficients)  # [N, supports]
    gamma, shift, degree = (*(kernel_params or ()), 0.0, 0.0, 3.0)[:3] if kernel_params else (0.0, 0.0, 3.0)
    features = x.cast(ct.dtype)
    if kernel_type == "RBF":
        apart = features.unsqueeze([1]) - _matrix(ct, supports)  # [N, supports, features]
        slope = by_support * op.Exp(-gamma * op.ReduceSumSquare(apart, [2], keepdims=0))
        return ((-2 * gamma) * (slope.unsqueeze([2]) * apart).sum([1])).cast(x.dtype)
    inner = gamma * op.MatMul(features, _matrix(ct, supports.T)) + shift
    if kernel_type == "POLY":
        by_support = by_support * (gamma * degree * op.Pow(inner, float(degree) - 1))
    elif kernel_type == "SIGMOID":
        value = op.Tanh(inner)
        by_support = by_support * (gamma * (1 - value * value))
    return op.MatMul(by_support, _matrix(ct, supports)).cast(x.dtype)


def _before_transform(ct: Expr, y: Expr, transform: str | None, targets: int = 2) -> Expr:
    """The cotangent before the transformation of scores that gave ``y``; of one alone only PROBIT makes another."""
    if targets == 1 and transform != "PROBIT":
        return ct
    if transform in ("SOFTMAX", "SOFTMAX_ZERO"):
        return y * (ct - (ct * y).sum([-1], keepdims=True))
    if transform == "LOGISTIC":
        return ct * (y * (1 - y))
    if transform == "PROBIT":  # the quantile of the normal distribution: its derivative is 1 / density
        return ct * (math.sqrt(2 * math.pi) * op.Exp(0.5 * (y * y)))
    return ct


def _row(ct: Expr, numbers: Sequence[float]) -> Expr:
    return ct.builder.constant(np.asarray(numbers), ct.dtype)


def _matrix(ct: Expr, numbers: np.ndarray) -> Expr:
    return ct.builder.constant(numbers, ct.dtype)
