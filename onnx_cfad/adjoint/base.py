"""What it means to run a control-flow site backwards; the plan chooses one way for each site."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from onnx_cfad.adjoint.cotangents import Cotangents
    from onnx_cfad.adjoint.sweep import Sweep


class Adjoint(abc.ABC):
    """A way to run a Loop, Scan or If backwards. Final subclasses are frozen dataclasses, so a plan is data."""

    @abc.abstractmethod
    def reverse(self, sweep: Sweep, node: ir.Node, cotangents: Cotangents, *, in_loop: bool) -> None:
        """Replaces the cotangents of the node's outputs by those of its inputs and captured values.

        Extends the node in place by what the reverse pass needs to be saved, and records the reverse pass with the
        builder of ``cotangents``.

        Args:
            sweep: Analyses and the adjoints of the sites inside.
            node: The site.
            cotangents: Those of the enclosing region.
            in_loop: The site is inside a loop, where values of differing shape cannot be stacked.
        """
