"""Errors that a node provokes: where Python stumbles over a node that does not fit its operator, the user hears which.

What a node is made of is checked when a model is loaded, the types and ranks of its operands are not: an analysis or a
rule meets them as an IndexError or a TypeError. A mistake in a rule looks the same, so the message names both causes.
"""

from __future__ import annotations

from types import TracebackType

import onnx_ir as ir

from onnx_cfad.errors import CfadError, ModelError
from onnx_cfad.graph.regions import control_flow, label

_LENGTH = 160  # characters of a foreign message


class Blamed:
    """A context in which every unexpected error becomes a ``ModelError`` that names a node, and keeps its cause.

    Args:
        node: The node that is worked on.
        model: Where it is; None when the path is given.
        doing: What is done with it, such as "its types cannot be inferred".
        path: The path of the node, where it is known already.
    """

    __slots__ = ("doing", "model", "node", "path")

    def __init__(self, node: ir.Node, doing: str, model: ir.Model | None = None, path: str | None = None) -> None:
        self.node, self.doing, self.model, self.path = node, doing, model, path

    def __enter__(self) -> None:
        """Nothing is prepared: paths are looked up only where they are needed."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, CfadError):
            return
        first = (str(error).strip().splitlines() or [""])[0][:_LENGTH].rstrip(".: ")
        reason = f"{type(error).__name__}: {first}" if first else type(error).__name__
        raise ModelError(
            self._where(),
            f"{self.doing} ({reason}): its operands do not fit {self.node.op_type}, or this is a bug in onnx-cfad",
            "Where onnx.checker.check_model(model, full_check=True) accepts the model, please report it.",
        ) from error

    def _where(self) -> str:
        if self.path is not None:
            return self.path
        return label(self.node) if self.model is None else control_flow(self.model).path_of(self.node)


def placed(path: str, node: ir.Node, error: CfadError) -> CfadError:
    """``error`` with the path of ``node`` in front."""
    same = error.where in ("", label(node))
    return type(error)(path, error.what if same else f"{error.where}: {error.what}", error.remedy)
