"""Whether results differ from those of ONNX Runtime by rounding alone: both are held against float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_cfad.errors import CfadError
from onnx_cfad.graph.element_types import FLOATING
from onnx_cfad.graph.types import infer_types
from onnx_cfad.graph.walk import graphs_of
from onnx_cfad.model import normalise
from onnx_cfad.names import Namer
from onnx_cfad.numeric.evaluators import widened
from onnx_cfad.numeric.lower import lower
from onnx_cfad.numeric.widen import widen
from onnx_cfad.ports import Feeds
from onnx_cfad.rewriters.decompose_operators import DecomposeOperatorsPass
from onnx_cfad.rewriters.expand_recurrent import RECURRENT
from onnx_cfad.runtime import Session
from onnx_cfad.targets.comparison import differing

FARTHER = 4.0
"""How much farther from float64 than ONNX Runtime's a result may be: sums in another order may be better or worse."""

ELEMENTARY = frozenset(("Exp", "Tanh", "Sigmoid", "Erf", "Softplus", "Softmax", "Gelu", "Log", "Sin", "Cos"))
"""Functions that a target computes by polynomials of its own, right to ``_OFF``."""

_OFF = 1e-6  # relative, as the tests of these polynomials hold them to
_DRAWS = 3


def rounding_notes(
    model: ir.Model, feeds: Feeds, results: Mapping[str, Any], reference: Mapping[str, Any]
) -> list[str] | None:
    """For each output over the tolerance how far both are from float64; None where rounding does not explain it.

    It does where the target's results are at most ``FARTHER`` times as far from those of the model in float64 as ONNX
    Runtime's are, or as those of the model in float64 whose elementary functions are each off by a relative 1e-6, to a
    side that is drawn (as in Monte Carlo arithmetic: D. S. Parker, 1997; the largest of three draws counts). Where the
    exact value is zero, or a loop makes small errors large, all are far.

    Args:
        model: The model; not changed.
        feeds: Its inputs.
        results: What the target gives.
        reference: What ONNX Runtime gives.
    """
    exact = in_float64(model, feeds)
    if exact is None:
        return None
    notes: list[str] = []
    moved: dict[str, float] | None = None
    for name, error in differing(results, reference).items():
        ours, theirs = _distance(results[name], exact[name]), _distance(reference[name], exact[name])
        if not np.isfinite(error):
            return None
        note = (
            f"output '{name}' differs from ONNX Runtime by {error:.1e}, which is rounding: from float64 it is "
            f"{ours:.1e} away, and ONNX Runtime {theirs:.1e}"
        )
        if not ours <= FARTHER * theirs:
            moved = _moved(model, feeds, exact) if moved is None else moved
            if not ours <= FARTHER * moved[name]:
                return None
            note += f"; a relative {_OFF:g} in elementary functions moves it by {moved[name]:.1e}"
        notes.append(note)
    return notes


def _moved(model: ir.Model, feeds: Feeds, exact: Mapping[str, Any]) -> dict[str, float]:
    """How far errors of elementary functions move each output from its exact value."""
    found = dict.fromkeys(exact, 0.0)
    for draw in range(_DRAWS):
        results = in_float64(model, feeds, np.random.default_rng(draw))
        for name, value in (results or {}).items():
            distance = _distance(value, exact[name])
            found[name] = max(found[name], distance if np.isfinite(distance) else 0.0)
    return found


def in_float64(model: ir.Model, feeds: Feeds, rng: np.random.Generator | None = None) -> dict[str, Any] | None:
    """What the model gives in float64, elementary functions off as ``rng`` draws; None: it cannot be told."""
    wide = normalise(model.clone())
    infer_types(wide)
    DecomposeOperatorsPass(RECURRENT)(wide)  # of which ONNX Runtime has no kernels for float64
    if rng is not None:
        _off(wide, rng)
    if not widen(wide):
        return None
    lower(wide)
    try:
        return Session(wide, threads=1).run(widened(feeds))
    except CfadError:
        return None


def _off(model: ir.Model, rng: np.random.Generator) -> None:
    """Multiplies what elementary functions give by 1 + 1e-6 or 1 - 1e-6."""
    namer = Namer.of_model(model)
    for graph in graphs_of(model.graph):
        for node in [node for node in graph if node.op_type in ELEMENTARY and node.outputs[0].dtype in FLOATING]:
            output = node.outputs[0]
            assert output.dtype is not None
            factor = np.asarray(1 + _OFF * rng.choice([-1, 1]), output.dtype.numpy())
            constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(factor))])
            product = ir.Node("", "Mul", [output, constant.outputs[0]])
            for value in (constant.outputs[0], product.outputs[0]):
                value.name, value.type = namer.fresh("off"), output.type
            output.name, product.outputs[0].name = product.outputs[0].name, output.name  # the output of the model stays
            ir.convenience.replace_all_uses_with(output, product.outputs[0], replace_graph_outputs=True)
            product.replace_input_with(0, output)
            graph.insert_after(node, [constant, product])


def _distance(value: Any, exact: Any) -> float:
    """The largest difference, in units of the output; infinite where the two cannot be compared."""
    a, b = (np.asarray(x, np.float64) for x in (value, exact))
    if a.shape != b.shape:
        return np.inf
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)):
        return np.inf
    return float(np.max(np.abs(a[finite] - b[finite]), initial=0.0))
