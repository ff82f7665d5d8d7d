"""Which loops are run backwards implicitly unasked, and how their adjoint systems are solved."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.adjoint.implicit import Implicit
from onnx_cfad.graph.activity import carries_derivative
from onnx_cfad.graph.cost import UNKNOWN_SHAPE, bytes_of
from onnx_cfad.graph.fixed_point import find_fixed_point
from onnx_cfad.graph.regions import Site, loop_site
from onnx_cfad.graph.stopping import is_tight
from onnx_cfad.options import Options
from onnx_cfad.plans.plan import Decision
from onnx_cfad.solvers.choice import described, elements_of, patience


def implicit_choice(site: Site, options: Options) -> Decision | None:
    """The implicit adjoint, for a fixed point that is asked for or that is so tight that nothing differs but time."""
    if options.plan not in ("auto", "implicit") or (options.plan == "auto" and options.clip_carries):
        return None
    point = find_fixed_point(loop_site(site.node))
    if not point.found or (options.plan == "auto" and not is_tight(point.condition)):
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
