"""The errors a user can meet. Each says where, what was found against what was expected, and what to do."""

from __future__ import annotations


class CfadError(Exception):
    """Base of every error that onnx-cfad raises on purpose; its text is meant for the user.

    Args:
        where: The place in the model (a path through the subgraphs) or the file.
        what: What was found, and what was expected.
        remedy: What the reader can do about it.
    """

    def __init__(self, where: str, what: str, remedy: str = "") -> None:
        self.where = where
        self.what = what
        self.remedy = remedy
        text = f"{where}: {what}" if where else what
        gap = "\n" if "\n" in text else ". "
        super().__init__(f"{text.rstrip('.')}{gap}{remedy}" if remedy else text)


class ModelError(CfadError):
    """The file or the graph is unusable, or a name that was asked for is not in it."""


class UnsupportedOp(CfadError):
    """A differentiated value reaches an operator that has no rule (or whose rule lacks something it needs)."""


class PlanError(CfadError):
    """The plan that was asked for is impossible."""


class TargetError(CfadError):
    """A target, or the runtime behind it, refuses the model."""


class ValidationError(CfadError):
    """A gradient does not match its numerical check."""
