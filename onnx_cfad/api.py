"""The pipeline: load, analyse, plan, differentiate, optimise. One function for each thing a user asks for."""

from __future__ import annotations

import os
from collections.abc import Sequence

from onnx_cfad.differentiate import Gradient, differentiate
from onnx_cfad.errors import ModelError
from onnx_cfad.model import Source, load
from onnx_cfad.options import Initializers, Options

Names = Sequence[str] | str | None
Wrt = Sequence[str | Initializers] | Initializers | str | None


def vjp(
    model: Source | str | os.PathLike[str], *, wrt: Wrt = None, outputs: Names = None, stop_gradient: Sequence[str] = ()
) -> Gradient:
    """The model extended by its vector-Jacobian product.

    The result takes the inputs of ``model``, then one seed ``<output>_grad`` for each differentiated output, and gives
    the outputs of ``model``, then one ``<name>_grad`` for each ``wrt`` name, of the same shape and element type.

    Args:
        model: Path, ``onnx.ModelProto``, ``ir.Model`` or a torch ``ONNXProgram``; never modified.
        wrt: Names of inputs or initializers, ``INITIALIZERS`` for all trainable ones, or a mix; default: every
            floating-point graph input.
        outputs: Names of the outputs to differentiate; default: every floating-point one.
        stop_gradient: Names of values that count as constants.

    Raises:
        ModelError: The model is unusable or lacks a name.
        UnsupportedOp: A differentiated value reaches an operator without a rule.
    """
    return differentiate(load(model), Options.of(wrt, outputs, None, stop_gradient))


def grad(
    model: Source | str | os.PathLike[str], *, loss: str, wrt: Wrt = None, stop_gradient: Sequence[str] = ()
) -> Gradient:
    """The model extended by the gradient of its scalar output ``loss``: as ``vjp`` with the seed fixed to 1.

    Raises:
        ModelError: ``loss`` is not a scalar, or as for ``vjp``.
        UnsupportedOp: As for ``vjp``.
    """
    if not loss:
        raise ModelError("", "no loss was named", "Give the name of a scalar output as loss.")
    return differentiate(load(model), Options.of(wrt, None, loss, stop_gradient))
