"""What a validation found: a row for each wrt, a row for each primal output, and a text of it."""

from __future__ import annotations

import dataclasses

from onnx_cfad.errors import ValidationError
from onnx_cfad.numeric.differences import Outcome
from onnx_cfad.ports import describe
from onnx_cfad.tape_error import TapeError


@dataclasses.dataclass(frozen=True)
class Row:
    """The check of one gradient.

    Attributes:
        name: The wrt name.
        dtype: Element type of the gradient.
        shape: Shape of the gradient.
        method: How it was checked.
        place: Where the error is largest: a direction or an element.
        numeric: The derivative there by differences.
        gradient: The derivative there by the gradient model.
        error: Their difference, relative to the size of the gradient.
        tolerance: The largest error that holds.
        scale: The size of the gradient there.
        verdict: Whether it holds, is wrong, or could not be told.
        unresolved: Directions and elements in which it could not be told.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    method: str
    place: str
    numeric: float
    gradient: float
    error: float
    tolerance: float
    scale: float
    verdict: Outcome
    unresolved: int = 0

    @property
    def is_zero(self) -> bool:
        """Whether it holds because both numbers are zero, everywhere."""
        return self.verdict is Outcome.HOLDS and self.scale == 0 and 0 not in self.shape

    def __str__(self) -> str:
        return (
            f"{describe(self.dtype, self.shape)}: differences give {self.numeric:.9g}, "
            f"the gradient {self.gradient:.9g} ({self.place}); "
            f"relative error {self.error:.2g}, tolerance {self.tolerance:.2g}"
        )


@dataclasses.dataclass(frozen=True)
class PrimalRow:
    """An output of the original model beside the same output of the gradient model.

    Attributes:
        name: The output.
        identical: They are equal bit for bit.
        error: Their largest difference, relative to the largest element.
        holds: They are equal up to rounding.
    """

    name: str
    identical: bool
    error: float
    holds: bool


@dataclasses.dataclass(frozen=True)
class Validation:
    """The result of ``validate``.

    Attributes:
        rows: One for each wrt.
        primal: One for each output of the original model.
        evaluator: What the differences were taken with.
        remarks: What else the reader should know.
        seed: Of the random directions and seeds.
        subject: What was checked: "gradient" or "tangent".
        tape: What a tape in fewer bits costs, where there is one.
    """

    rows: tuple[Row, ...]
    primal: tuple[PrimalRow, ...]
    evaluator: str
    remarks: tuple[str, ...]
    seed: int
    subject: str = "gradient"
    tape: TapeError | None = None

    @property
    def headings(self) -> tuple[str, ...]:
        """The columns of the table of rows."""
        if self.subject == "gradient":
            return HEADINGS
        return ("tangent of", *(heading.replace("gradient", "tangent") for heading in HEADINGS[1:]))

    @property
    def holds(self) -> bool:
        """Whether something was checked and nothing is wrong; one gradient that cannot be told spares the others."""
        wrong = any(row.verdict is Outcome.WRONG for row in self.rows) or not all(row.holds for row in self.primal)
        return self.checked and not wrong and (self.tape is None or self.tape.holds)

    @property
    def checked(self) -> bool:
        """Whether any gradient was compared with differences at all."""
        return any(not is_open(row.verdict) for row in self.rows)

    def raise_if_failed(self) -> None:
        """Raises where something is wrong, or nothing was checked.

        Raises:
            ValidationError: Names the first wrong gradient or output, both numbers and what to do.
        """
        remedy = (
            "Check that the gradient was made from this model; if it was, this is a bug of onnx-cfad: "
            f"please report it with the model and seed {self.seed}."
        )
        for row in self.rows:
            if row.verdict is Outcome.WRONG:
                where = f"wrt '{row.name}'" if self.subject == "gradient" else f"output '{row.name}'"
                what = str(row) if self.subject == "gradient" else str(row).replace("the gradient", "the tangent")
                raise ValidationError(where, f"the {self.subject} is wrong, {what}", remedy)
        for output in self.primal:
            if not output.holds:
                what = f"the gradient model gives other values than the original, relative error {output.error:.2g}"
                raise ValidationError(f"output '{output.name}'", what, remedy)
        if self.tape is not None and not self.tape.holds:
            raise ValidationError("tape", str(self.tape), "Use bfloat16 where values exceed 65,504, or an exact tape.")
        if not self.checked:
            raise ValidationError(f"{self.subject}s", f"nothing was checked: {self.conclusion}", self.advice)

    @property
    def advice(self) -> str:
        """What to do where nothing was checked."""
        if not self.primal:
            return "Turn off what draws random numbers (Dropout's training mode) and validate that model."
        return "Give other inputs (--inputs X.npz, feeds): some at which the outputs are finite and smooth."

    @property
    def vacuous(self) -> tuple[str, ...]:
        """The names whose gradient is exactly zero on both sides: nothing that they reach was exercised."""
        return tuple(row.name for row in self.rows if row.is_zero)

    @property
    def conclusion(self) -> str:
        """One line: how many gradients hold, are wrong, or could not be told."""
        counts = {outcome: sum(row.verdict is outcome for row in self.rows) for outcome in Outcome}
        wrong = counts[Outcome.WRONG]
        open_ = [f"{count} {outcome.value}" for outcome, count in counts.items() if count and is_open(outcome)]
        changed = sum(not row.holds for row in self.primal)
        parts = [f"{counts[Outcome.HOLDS]} of {len(self.rows)} {self.subject}s hold"]
        parts += [f"{wrong} wrong"] if wrong else []
        parts += open_
        parts += [f"{len(self.vacuous)} only as zero"] if self.vacuous else []
        parts += [] if self.tape is None or self.tape.holds else ["the tape costs more than it may"]
        parts += [f"{changed} of {len(self.primal)} primal outputs changed"] if changed else []
        return ", ".join(parts)

    @property
    def primal_conclusion(self) -> str:
        """One line on the primal outputs."""
        if not self.primal:
            return "primal outputs: not compared"
        identical = sum(row.identical for row in self.primal)
        text = f"primal outputs: {identical} of {len(self.primal)} equal bit for bit"
        others = [f"{row.name} differs by {row.error:.1e}" for row in self.primal if not row.identical]
        return f"{text}; {', '.join(others)}" if others else text

    def __str__(self) -> str:
        lines = _table([self.headings, *(cells(row) for row in self.rows)])
        lines += [self.primal_conclusion, f"differences: {self.evaluator}"]
        lines += [] if self.tape is None else [f"tape: {self.tape}"]
        lines += [f"note: {remark}" for remark in self.remarks]
        lines += [] if self.checked else [f"nothing was checked. {self.advice}"]
        return "\n".join([*lines, self.conclusion])


HEADINGS = ("gradient by", "type", "differences", "gradient", "error", "tolerance", "verdict", "checked")
"""The columns of the table of rows."""


def cells(row: Row) -> tuple[str, ...]:
    """A row as texts, one for each of ``HEADINGS``."""
    verdict = row.verdict.value
    if row.is_zero:
        verdict += " (zero)"
    if row.unresolved and not is_open(row.verdict):
        verdict += f" ({row.unresolved} not told)"
    numbers = (f"{row.numeric:.6g}", f"{row.gradient:.6g}", f"{row.error:.1e}", f"{row.tolerance:.1e}")
    return (row.name, describe(row.dtype, row.shape), *numbers, verdict, row.method)


def is_open(outcome: Outcome) -> bool:
    """Whether it could not be told."""
    return outcome not in (Outcome.HOLDS, Outcome.WRONG)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
