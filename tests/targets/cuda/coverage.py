"""Which gradients become CUDA C, and does nvcc compile it: ``python -m tests.targets.cuda.coverage RESULTS.jsonl``.

Models are those of the corpus and the exported ones, differentiated, their loops taped and checkpointed, in float32.
What RESULTS.jsonl has is not done again, so that the work can be interrupted. Prints one table, as docs/targets.md has
it. Nothing runs on a GPU.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_cfad.errors import CfadError
from onnx_cfad.model import load
from onnx_cfad.targets.base import plain_feeds
from onnx_cfad.targets.cuda import nvcc
from onnx_cfad.targets.cuda.lowering import lower_bodies
from onnx_cfad.targets.cuda.target import predicated
from onnx_cfad.targets.tvm.environments import interpreter
from onnx_cfad.targets.tvm.partition import partition
from onnx_cfad.targets.tvm.prepared import prepared
from onnx_cfad.targets.tvm.specialise import meet
from onnx_cfad.targets.tvm.worker import Worker
from tests.targets.__main__ import FORMS, cases
from tests.targets.tvm.host_corpus import Case

_SECONDS = 120.0  # for the kernels of one body


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a gradient.

    Attributes:
        model: The name of the model.
        form: How its loops are run backwards.
        bodies: Bodies whose kernels are for the GPU.
        kernels: Their kernels.
        hosted: Why bodies stay on the CPU.
        no_program: Why there is no program at all; "" where there is one.
        fault: What nvcc says of the kernels, "" where it compiles them for all architectures.
    """

    model: str
    form: str
    bodies: int = 0
    kernels: int = 0
    hosted: tuple[str, ...] = ()
    no_program: str = ""
    fault: str = ""


def main() -> None:
    """Compiles what is not compiled yet, and prints the table of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--form", choices=FORMS, action="append")
    parser.add_argument("--name", action="append", help="a part of the names of models to compile")
    given = parser.parse_args()
    done = {(outcome.model, outcome.form) for outcome in _read(given.results)}
    worker = Worker("relax", interpreter("relax"))
    for form in given.form or FORMS:
        for number, (name, make) in enumerate(cases(form)):
            chosen = given.name is None or any(part in name for part in given.name)
            case = make() if chosen and (name, form) not in done else None
            if case is not None:
                _write(_outcome(worker, name, form, f"m{number}", case), given.results)
    worker.close()
    _print(_read(given.results))


def _outcome(worker: Worker, name: str, form: str, prefix: str, case: Case) -> Outcome:
    def ask(command: str, arguments: Mapping[str, Any]) -> Any:
        return worker.call(command, arguments, timeout_s=_SECONDS)

    try:
        feeds = plain_feeds(case.feeds)
        model, _ = predicated(prepared(load(case.model), feeds, "relax")[0])
        parts = partition(model)
        met, _ = meet(parts, feeds)
        made = lower_bodies(parts, met, nvcc.ARCHITECTURES[0], ask, prefix)
    except CfadError as error:
        return Outcome(name, form, no_program=str(error))
    fault = ""
    try:
        if made.kernels:
            nvcc.fat_binary(made.source())
    except CfadError as error:
        fault = str(error)
    return Outcome(name, form, len(made.bodies), len(made.kernels), tuple(made.hosted.values()), "", fault)


def _write(outcome: Outcome, path: Path) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")


def _read(path: Path) -> list[Outcome]:
    """The outcomes of a file, the last one of each gradient."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [Outcome(**json.loads(line)) for line in lines]
    return list({(outcome.model, outcome.form): outcome for outcome in found}.values())


def _print(outcomes: Sequence[Outcome]) -> None:
    print("| gradients | number | no program | all bodies on the GPU | bodies on the GPU | on the CPU | kernels |")
    print("|---|---|---|---|---|---|---|")
    for group, form in itertools.product(("corpus", "exported"), FORMS):
        mine = [o for o in outcomes if o.form == form and ("/" in o.model) == (group == "exported")]
        counts = (
            len(mine), sum(bool(o.no_program) for o in mine), sum(not (o.hosted or o.no_program) for o in mine),
            sum(o.bodies for o in mine), sum(len(o.hosted) for o in mine), sum(o.kernels for o in mine),
        )  # fmt: skip
        print(f"| {group}, {form} | " + " | ".join(f"{count:,}" for count in counts) + " |")
    faults = [o for o in outcomes if o.fault]
    print(f"\nnvcc, {' and '.join(nvcc.ARCHITECTURES)}: {len(faults)} gradients whose kernels do not compile")
    for outcome in faults:
        print(f"- {outcome.model}, {outcome.form}: {outcome.fault}")
    reasons = collections.Counter(reason for outcome in outcomes for reason in outcome.hosted)
    print("\nWhy bodies stay on the CPU:")
    for reason, count in reasons.most_common(25):
        print(f"- {count}: {reason[:160]}")
    print("\nWhy there is no program:")
    for outcome in outcomes:
        if outcome.no_program:
            print(f"- {outcome.model}, {outcome.form}: {outcome.no_program[:200]}")


if __name__ == "__main__":
    main()
