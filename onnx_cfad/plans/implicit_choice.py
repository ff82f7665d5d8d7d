"""Which loops are run backwards implicitly unasked, and how their adjoint systems are solved."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.adjoint.implicit import Implicit
from onnx_cfad.graph.activity import carries_derivative
from onnx_cfad.graph.cost import UNKNOWN_SHAPE, bytes_of
from onnx_cfad.graph.fixed_point import find_fixed_point
from onnx_cfad.graph.regions import Site, loop_site
from onnx_cfad.graph.stopping import tests_in
from onnx_cfad.graph.trips import constant_of
from onnx_cfad.options import Options
from onnx_cfad.plans.plan import Decision
from onnx_cfad.solvers.choice import described, elements_of, patience

_TIGHT = {ir.DataType.FLOAT: 1e-5, ir.DataType.DOUBLE: 1e-9}  # tolerances of loops that are implicit unasked


def implicit_choice(site: Site, options: Options) -> Decision | None:
    """The implicit adjoint, for a fixed point that is asked for or that is so tight that nothing differs but time."""
    if options.plan not in ("auto", "implicit") or (options.plan == "auto" and options.clip_carries):
        return None
    point = find_fixed_point(loop_site(site.node))
    tests = tests_in(point.condition) if point.condition is not None else []
    tight = bool(tests) and all(_is_tight(test.threshold) for test in tests)
    if not point.found or (options.plan == "auto" and not tight):
        return None
    adjoint = Implicit(fallback=options.implicit_fallback or "checkpointed")
    return Decision(
        adjoint,
        bytes_of_results(site),
        f"{point}; its initial value gets no gradient where it converges; {_solver(site)}",
    )


def _solver(site: Site) -> str:
    """How the adjoint system of a fixed point is solved, in words."""
    loop = loop_site(site.node)
    states = [loop.carries[k].final for k in find_fixed_point(loop).states]
    kinds = {state.dtype for state in states}
    dtype = ir.DataType.DOUBLE if ir.DataType.DOUBLE in kinds else ir.DataType.FLOAT
    return described(patience(dtype, elements_of(state.shape for state in states)))


def bytes_of_results(site: Site, unknown: int = UNKNOWN_SHAPE) -> int:
    """Bytes of a loop's results, which are all that an implicit gradient keeps of it."""
    return sum(bytes_of(c.final, unknown) for c in loop_site(site.node).carries if carries_derivative(c.final))


def _is_tight(threshold: ir.Value) -> bool:
    """Whether a tolerance is a constant that leaves no more error than a gradient has anyway."""
    constant = constant_of(threshold)
    if constant is None or threshold.dtype is None:
        return False
    return bool((constant <= _TIGHT.get(threshold.dtype, 0.0)).all())
