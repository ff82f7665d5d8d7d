"""Zero cotangents and tangents, for tensors and sequences."""

from __future__ import annotations

from onnx_cfad.adjoint.expr import Expr, zeros_like


def zero_cotangent(primal: Expr) -> Expr:
    """The zero cotangent (or tangent) of ``primal``: of the same shape, or a sequence of zeros of the same shapes."""
    if primal.is_tensor:
        return zeros_like(primal)
    producer = primal.value.producer()
    if producer is not None and producer.op_type == "SequenceEmpty":
        return primal
    from onnx_cfad.rules.sequences import zeros_like_sequence  # noqa: PLC0415 - rules are built on expressions

    return zeros_like_sequence(primal)
