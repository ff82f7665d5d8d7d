"""What a build of TVM makes of models: run as a whole, run by a host program, or refused, as a Markdown table.

``python -m onnx_cfad.report.targets RESULTS.jsonl`` prints the table of results that were written before.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from onnx_cfad.errors import CfadError, ValidationError
from onnx_cfad.model import Source
from onnx_cfad.ports import Feeds
from onnx_cfad.targets.base import Limits, Options
from onnx_cfad.targets.compilation import compile_model

LIMIT = 1e-5
"""The relative error of float32 results that holds."""

_TOLD = 110  # characters of a reason in the table


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What one build made of one model.

    Attributes:
        model: The model's name.
        form: What was compiled: ``primal``, or how its loops are run backwards.
        build: ``relay`` or ``relax``.
        outcome: ``whole``, ``host``, ``refused``, or ``differs`` where results are not those of ONNX Runtime.
        error: The largest relative error of an output; None where there is none.
        reason: Why it was refused, or in what it differs.
        seconds: What compiling and checking took.
    """

    model: str
    form: str
    build: str
    outcome: str
    error: float | None = None
    reason: str = ""
    seconds: float = 0.0

    @property
    def runs(self) -> bool:
        """Whether it runs and gives what ONNX Runtime gives."""
        return self.outcome in {"whole", "host"}


def judge(
    model: Source, feeds: Feeds, name: str, form: str, build: str, *, seconds: float = 300.0, how: str = "auto"
) -> Verdict:
    """Compiles ``model`` for LLVM with ``build``, runs it on ``feeds`` and compares with ONNX Runtime.

    Args:
        model: The model.
        feeds: Its inputs.
        name: Its name in the table.
        form: What it is, for the table.
        build: ``relay`` or ``relax``.
        seconds: What one step may take.
        how: ``whole``, ``host`` or ``auto``; see ``Options``.
    """
    start = time.monotonic()

    def verdict(outcome: str, error: float | None = None, reason: str = "") -> Verdict:
        return Verdict(name, form, build, outcome, error, reason, round(time.monotonic() - start, 1))

    options = Options(build=build, form=how, limits=Limits(seconds))
    try:
        artifact = compile_model(model, "llvm", feeds=feeds, options=options)
    except ValidationError as error:
        return verdict("differs", reason=str(error))
    except CfadError as error:
        return verdict("refused", reason=str(error))
    errors = artifact.manifest.errors or {}
    hosted = "stems" in artifact.manifest.program
    return verdict("host" if hosted else "whole", max(errors.values(), default=0.0), "; ".join(artifact.manifest.notes))


def write(verdict: Verdict, path: Path) -> None:
    """Adds a verdict to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dataclasses.asdict(verdict)) + "\n")


def read(path: Path) -> list[Verdict]:
    """The verdicts of a file, the last one of each model, form and build."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = (Verdict(**json.loads(line)) for line in lines)
    return list({(v.model, v.form, v.build): v for v in found}.values())


def table(verdicts: Sequence[Verdict]) -> str:
    """Counts by build and form, then a row for each model and form with a column for each build."""
    builds = sorted({v.build for v in verdicts})
    rows = [_header("compiled", "build", "models", "runs", "as a whole", "by a host program", "refused", "differs")]
    for build in builds:
        for form in dict.fromkeys(v.form for v in verdicts):
            mine = [v for v in verdicts if (v.build, v.form) == (build, form)]
            rows += [_row(form, build, *_counts(mine))] if mine else []
        rows.append(_row("all", build, *_counts([v for v in verdicts if v.build == build])))
    rows += ["", _header("model", "compiled", *builds)]
    cells = {(v.model, v.form, v.build): _cell(v) for v in verdicts}
    for model, form in dict.fromkeys((v.model, v.form) for v in verdicts):
        rows.append(_row(f"`{model}`", form, *(cells.get((model, form, build), "") for build in builds)))
    return "\n".join(rows) + "\n"


def _counts(verdicts: Sequence[Verdict]) -> list[str]:
    runs = sum(v.runs for v in verdicts)
    outcomes = [v.outcome for v in verdicts]
    share = f"{runs} ({100 * runs / len(verdicts):.0f} %)" if verdicts else "0"
    return [str(len(verdicts)), share, *(str(outcomes.count(o)) for o in ("whole", "host", "refused", "differs"))]


def _cell(verdict: Verdict) -> str:
    if verdict.runs:
        return f"{verdict.outcome}, {verdict.error:.0e}" if verdict.error else f"{verdict.outcome}, equal"
    reason = " ".join(verdict.reason.split()).replace("|", "\\|")
    return f"{verdict.outcome}: {reason if len(reason) <= _TOLD else reason[: _TOLD - 1] + '…'}"


def _header(*cells: str) -> str:
    return _row(*cells) + "\n" + _row(*("---" for _ in cells))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Iterable[str]) -> int:
    """Prints the table of one file of results."""
    paths = [Path(argument) for argument in arguments]
    if len(paths) != 1 or not paths[0].is_file():
        sys.stderr.write("usage: python -m onnx_cfad.report.targets RESULTS.jsonl\n")
        return 2
    sys.stdout.write(table(read(paths[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
