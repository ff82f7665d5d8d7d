"""Outputs that say whether the loops that were run backwards implicitly converged, for a user who asks."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder
from onnx_cfad.adjoint.sweep import Diagnostics
from onnx_cfad.names import site_name


def convergence_outputs(
    diagnostics: Mapping[str, Diagnostics], builder: Builder, warnings: list[str]
) -> dict[ir.Value, str]:
    """``<site>_converged``, ``<site>_residual`` and ``<site>_adjoint_iterations`` for each loop of the main graph.

    Args:
        diagnostics: What each loop says of itself, by site path.
        builder: Records in the main graph.
        warnings: Takes a line for each loop that is inside another site, whose values no output can hold.

    Returns:
        The outputs, each with the path of its site.
    """
    found: dict[ir.Value, str] = {}
    for path, said in diagnostics.items():
        if said.builder is not builder:
            warnings.append(f"'{path}' is inside another site: no output says whether it converged")
            continue
        for what, x in (
            ("converged", said.converged), ("residual", said.residual), ("adjoint_iterations", said.iterations)
        ):  # fmt: skip
            copy = builder.fresh_identity(x.value)
            copy.name, copy.shape = builder.namer.fresh(f"{site_name(path)}_{what}"), ir.Shape([])
            found[copy] = path
    return found
