"""Assertions for the tests of those who use onnx_cfad, or add rules to it. Each raises with both numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx_cfad.api import Names, Wrt, vjp
from onnx_cfad.differentiate import Gradient
from onnx_cfad.errors import ValidationError
from onnx_cfad.given import whole
from onnx_cfad.model import Source, load
from onnx_cfad.numeric.made_up_seeds import make_up_inputs
from onnx_cfad.numeric.rows import primal_row
from onnx_cfad.ports import Feeds, feeds_of, listed
from onnx_cfad.runtime import Session
from onnx_cfad.validation import validate
from onnx_cfad.verdict import Validation

__all__ = ["assert_same_model", "check_grads", "check_vjp"]


def check_vjp(
    model: Source, wrt: Wrt = None, outputs: Names = None, feeds: Feeds | None = None, **settings: Any
) -> Validation:
    """Asserts that the vector-Jacobian product of ``model`` equals central differences of it.

    Args:
        model: A path, a ``ModelProto``, an ``ir.Model`` or a PyTorch ``ONNXProgram``.
        wrt: What to differentiate by, as for ``vjp``.
        outputs: What to differentiate, as for ``vjp``.
        feeds: Inputs by name; default: made up.
        settings: Further keywords of ``validate``.

    Returns:
        The validation, which holds.

    Raises:
        ValidationError: The gradient is wrong, or a primal output changed.
    """
    validation = validate(model, None, feeds, wrt=wrt, outputs=outputs, **settings)
    validation.raise_if_failed()
    return validation


def check_grads(
    model: Source,
    wrt: Wrt = None,
    outputs: Names = None,
    feeds: Feeds | None = None,
    *,
    order: int = 2,
    **settings: Any,
) -> list[Validation]:
    """Asserts that derivatives up to ``order`` equal central differences of those one order below.

    The second derivative is the vector-Jacobian product of the gradients that the first one gives.

    Args:
        model: As for ``check_vjp``.
        wrt: As for ``check_vjp``.
        outputs: As for ``check_vjp``.
        feeds: As for ``check_vjp``.
        order: The highest order.
        settings: Further keywords of ``validate``.

    Returns:
        The validations, one for each order.

    Raises:
        ValidationError: A derivative is wrong, or a primal output changed.
    """
    validations: list[Validation] = []
    source: Source = model
    order = whole("order", order, 1)
    seed = whole("seed", settings.get("seed", 0), 0)
    given = dict(feeds_of(feeds)) if feeds is not None else _made_up(model, Session(model, threads=1), seed)
    for _ in range(order):
        gradient = vjp(source, wrt=wrt, outputs=outputs)
        validation = validate(source, gradient, given, **settings)
        validation.raise_if_failed()
        validations.append(validation)
        given |= _seeds(gradient, Session(source, threads=1).run(given), seed)
        source, wrt, outputs = gradient.model, gradient.report.wrt, tuple(gradient.report.gradients.values())
    return validations


def assert_same_model(
    one: Source, other: Source, feeds: Feeds | None = None, *, rtol: float = 0.0, seed: int = 0
) -> None:
    """Asserts that two models have the same outputs and give the same numbers.

    Args:
        one: A model.
        other: The model to compare with it.
        feeds: Inputs by name; default: made up.
        rtol: The largest difference that counts as the same, relative to an output's largest element; 0 for bit for
            bit.
        seed: Of the inputs made up.

    Raises:
        ValidationError: An output differs.
    """
    seed = whole("seed", seed, 0)
    first, second = Session(one, threads=1), Session(other, threads=1)
    if set(first.outputs) != set(second.outputs):
        raise ValidationError(
            "models", f"one has the outputs {listed(first.outputs)}, the other {listed(second.outputs)}"
        )
    given = feeds if feeds is not None else _made_up(one, first, seed)
    expected, found = first.run(given), second.run(given)
    for name, value in expected.items():
        row = primal_row(name, found[name], value)
        if not row.identical and not row.error <= rtol:
            what = f"the models differ by {row.error:.3g} relative to the largest element, more than {rtol:.3g}"
            raise ValidationError(f"output '{name}'", what)


def _made_up(model: Source, session: Session, seed: int) -> dict[str, Any]:
    return dict(make_up_inputs(load(model), session.run, seed))


def _seeds(gradient: Gradient, outputs: dict[str, Any], seed: int) -> dict[str, Any]:
    """Random seeds for the outputs that ``gradient`` differentiates."""
    rng = np.random.default_rng([seed, 2])
    arrays = {given: np.asarray(outputs[name]) for name, given in gradient.report.seeds.items()}
    return {name: np.asarray(rng.standard_normal(a.shape)).astype(a.dtype) for name, a in arrays.items()}
