"""Losses over class scores [N, C, D1, ...] and labels [N, D1, ...].

Elements with the label ``ignore_index`` count for nothing. The mean is by the sum of the weights of the labels; where
all are ignored it is NaN with the derivative 0, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import SMALL, Expr, op, where
from onnx_cfad.rules.outputs import each_of
from onnx_cfad.rules.reductions import per_element
from onnx_cfad.rules.registry import vjp
from onnx_cfad.rules.scatter_add import ascending, shaped

Lazy = Callable[[], Expr]


@vjp("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    ct: Expr,
    y: Expr,
    input: Expr,
    target: Expr,
    weight: Expr | None = None,
    *,
    ignore_index: int | None,
    reduction: str,
) -> tuple[Lazy, None, Lazy]:
    return (
        lambda: _by_log_prob(ct, input, target, weight, ignore_index, reduction),
        None,
        lambda: _by_weight(ct, y, input, target, weight, ignore_index, reduction),
    )


@vjp("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    ct: Expr | tuple[Expr | None, ...],
    y: Expr | tuple[Expr, ...],
    scores: Expr,
    labels: Expr,
    weights: Expr | None = None,
    *,
    ignore_index: int | None,
    reduction: str,
) -> tuple[Lazy, None, Callable[[], Expr | None]]:
    """NegativeLogLikelihoodLoss of LogSoftmax over the classes, which is the second output."""
    loss_ct, log_prob_ct = (*each_of(ct), None, None)[:2]
    loss, given = (*each_of(y), None, None)[:2]
    log_prob = shaped(op.LogSoftmax(scores, axis=1), scores) if given is None or not given.value.name else given

    def by_scores() -> Expr:
        if log_prob_ct is None and loss_ct is not None and weights is None and ignore_index is None:
            # Every element has one label, so the cotangent of the log probabilities sums to minus its share.
            share = _share(loss_ct, log_prob, labels, None, None, reduction)
            rows = _unit_rows(scores)
            if rows is not None:
                return (op.Softmax(scores, axis=1) - op.Gather(rows, labels)) * share
            chosen = _chosen(log_prob, labels, None)
            return op.Softmax(scores, axis=1) * share - where(chosen, share, 0)
        parts = [] if log_prob_ct is None else [log_prob_ct]
        if loss_ct is not None:
            parts.append(_by_log_prob(loss_ct, log_prob, labels, weights, ignore_index, reduction))
        total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        return total - op.Exp(log_prob) * wide(total).sum([1], keepdims=True).cast(total.dtype)

    def by_weights() -> Expr | None:
        if loss_ct is None or loss is None:
            return None
        return _by_weight(loss_ct, loss, log_prob, labels, weights, ignore_index, reduction)

    return by_scores, None, by_weights


def _by_log_prob(
    ct: Expr,
    log_prob: Expr,
    target: Expr,
    weight: Expr | None,
    ignore_index: int | None,
    reduction: str,
) -> Expr:
    """Minus the weight of the class at each label, and 0 at the other classes."""
    chosen = _chosen(log_prob, target, ignore_index)
    weights = _weights(weight, chosen, log_prob)
    share = _share(ct, chosen, target, weights, ignore_index, reduction)
    return where(chosen, -share if weights is None else -(share * weights), 0)


def _by_weight(
    ct: Expr,
    y: Expr,
    log_prob: Expr,
    target: Expr,
    weight: Expr | None,
    ignore_index: int | None,
    reduction: str,
) -> Expr:
    """Minus the sum of the log probabilities at the labels of each class; a mean's own weights take part in it."""
    assert weight is not None
    chosen = _chosen(log_prob, target, ignore_index)
    terms = log_prob + y if reduction == "mean" else log_prob
    others = [axis for axis in range(log_prob.rank) if axis != 1]
    share = _share(ct, chosen, target, _weights(weight, chosen, log_prob), ignore_index, reduction)
    masked = where(chosen, -(share * terms), 0)
    return wide(masked).sum(others).cast(weight.dtype)


def _unit_rows(scores: Expr) -> Expr | None:
    """The unit matrix, whose rows are what a label stands for; None where there are too many classes to declare it."""
    classes = scores.dims[1] if scores.has_rank and scores.rank == 2 else None
    if classes is None or classes**2 > SMALL:
        return None
    return scores.builder.constant(np.eye(classes), scores.dtype)


def _chosen(log_prob: Expr, target: Expr, ignore_index: int | None) -> Expr:
    """Where the class is the label, [N, C, D1, ...]; nowhere for an ignored one."""
    classes = ascending(log_prob.dim(1).squeeze([0])).cast(target.dtype)
    labels = target.unsqueeze([1])
    chosen = op.Equal(labels, classes.unsqueeze(list(range(1, log_prob.rank - 1))))
    return chosen if ignore_index is None else op.And(chosen, op.Not(op.Equal(labels, ignore_index)))


def _weights(weight: Expr | None, chosen: Expr, log_prob: Expr) -> Expr | None:
    """The weight of the class where it is the label, else 0, [N, C, D1, ...]; None where classes have no weights."""
    if weight is None:
        return None
    return where(chosen, weight.unsqueeze(list(range(1, log_prob.rank - 1))), 0)


def _share(
    ct: Expr, chosen: Expr, target: Expr, weights: Expr | None, ignore_index: int | None, reduction: str
) -> Expr:
    """The cotangent of one element's unweighted loss, which broadcasts to [N, C, D1, ...]."""
    if reduction == "none":
        return ct.unsqueeze([1])
    if reduction == "sum":
        return ct
    if weights is None and ignore_index is None:
        return per_element(ct, ct, target)
    counts = chosen.cast(ct.dtype) if weights is None else weights
    return ct / wide(counts).sum().cast(ct.dtype)
