"""docs/conformance.md: a row for each model with control flow, and a row for each operator of the others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx
import onnxruntime

from tests.conformance.examples import Example
from tests.conformance.judgement import Judgement, Verdict

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
COMMAND = "python -m tests.conformance"

_HEAD = """# Conformance

Made by `{command}`; do not edit.

The models that onnx {onnx} generates to test runtimes (`onnx.backend.test.case.node.collect_testcases`), as far as they
have a float output, and a float input or constants inside control flow: {count} models. Each is differentiated by all
of these, and the result is checked as a model, run in ONNX Runtime {ort}, and compared with central differences of the
original, in random directions and element by element. The differences are taken in float64 where ONNX Runtime or the
reference evaluator of onnx computes the model in float64, else in its own type with a wider tolerance. Sequences and
optional values are put together from tensors inside the model.

- *right*: every gradient is within its tolerance;
- *refused*: an error names the node and the reason;
- *wrong*: none;
- *not told*: a derivative at a jump (a size that a number decides), or a random draw, which no two runs share;
- *not loaded*: neither ONNX Runtime nor the reference evaluator runs the model or its gradient.

The error is that of the gradient nearest to its tolerance, relative to the size of the gradient.
"""

_CONTROL_FLOW = """
## Models with control flow

| model | operators | outcome | error | tolerance | compared with | remark |
| --- | --- | --- | --- | --- | --- | --- |
"""

_OPERATORS = """
## All models, by operator

A model whose operator is written out as a function counts for that operator.

| operator | models | right | refused | wrong | not told | not loaded | worst error / tolerance |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""

_REASONS = """
## {title}

| operator | models | reason |
| --- | --- | --- |
"""


def page(examples: Sequence[Example], judgements: Mapping[str, Judgement]) -> str:
    """The whole page."""
    versions = {"onnx": onnx.__version__, "ort": onnxruntime.__version__}
    text = _HEAD.format(command=f"{COMMAND}", count=len(examples), **versions)
    text += _CONTROL_FLOW
    text += "".join(f"{model_row(e, judgements[e.name])}\n" for e in examples if e.has_control_flow)
    text += _OPERATORS
    for subject in sorted({example.subject for example in examples}):
        text += f"{operator_row(subject, [judgements[e.name] for e in examples if e.subject == subject])}\n"
    text += _total_row(judgements.values()) + "\n"
    for title, verdict in (
        ("Refused", Verdict.REFUSED),
        ("Not told", Verdict.UNTOLD),
        ("Not loaded", Verdict.NOT_LOADED),
    ):
        rows = list(_reason_rows(examples, judgements, verdict))
        text += _REASONS.format(title=title) + "".join(f"{row}\n" for row in rows) if rows else ""
    return text


def model_row(example: Example, judgement: Judgement) -> str:
    """The row of one model with control flow."""
    told = judgement.verdict in (Verdict.RIGHT, Verdict.WRONG)
    figures = (f"{judgement.error:.0e}", f"{judgement.tolerance:.0e}") if told else ("", "")
    operators = ", ".join(example.operators)
    return _row(example.name, operators, judgement.verdict.value, *figures, judgement.method, judgement.reason)


def operator_row(subject: str, judgements: Sequence[Judgement]) -> str:
    """The row of one operator."""
    counts = [sum(j.verdict is v for j in judgements) for v in Verdict]
    worst = max((j for j in judgements if j.tolerance), key=lambda j: j.error / j.tolerance, default=None)
    figures = f"{worst.error:.0e} / {worst.tolerance:.0e}" if worst is not None else ""
    return _row(subject, str(len(judgements)), *(str(count or "") for count in counts), figures)


def without_figures(text: str) -> str:
    """``text`` without the errors, which differ in their last digits from one processor to another."""
    return re.sub(r"\d(\.\d+)?e[+-]\d+", "#", text)


def _total_row(judgements: Iterable[Judgement]) -> str:
    found = list(judgements)
    counts = [sum(j.verdict is v for j in found) for v in Verdict]
    return _row("**all**", f"**{len(found)}**", *(f"**{count}**" for count in counts), "")


def _reason_rows(examples: Sequence[Example], judgements: Mapping[str, Judgement], verdict: Verdict) -> list[str]:
    """One row for each operator and reason, with the number of models."""
    found: dict[tuple[str, str], int] = {}
    for example in examples:
        judgement = judgements[example.name]
        if judgement.verdict is verdict:
            key = example.subject, re.sub(r"^main/[^ :]*: ", "", judgement.reason)
            found[key] = found.get(key, 0) + 1
    return [_row(subject, str(count), reason) for (subject, reason), count in sorted(found.items())]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
