"""Compiles the corpus and the exported models, differentiated, with each build of TVM; see ``make targets-table``.

``python -m tests.targets RESULTS.jsonl`` adds verdicts to the file; what it has is not done again, so that the work can
be interrupted, and shared among processes: ``--build relay --plan taped``.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from onnx_cfad.report.targets import judge, read, table, write
from tests.targets.tvm.host_corpus import Case, corpus_case, corpus_makers, exported_case, exported_names

FORMS = ("taped", "checkpointed")
BUILDS = ("relay", "relax")


def cases(form: str) -> Iterator[tuple[str, Callable[[], Case | None]]]:
    """Every model with its name, made when asked for."""
    for name, maker in corpus_makers():
        yield name, lambda maker=maker: corpus_case(maker, form)
    for group, name in exported_names():
        yield f"{group}/{name}", lambda group=group, name=name: exported_case(group, name, form)


def main() -> None:
    """Judges what is not judged yet, and prints the table of all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--build", choices=BUILDS, action="append")
    parser.add_argument("--plan", choices=FORMS, action="append")
    parser.add_argument("--form", choices=("auto", "whole", "host"), default="auto")
    parser.add_argument("--name", action="append", help="a part of the names of models to judge")
    given = parser.parse_args()
    done = {(v.model, v.form, v.build) for v in read(given.results)}
    for build, plan in itertools.product(given.build or BUILDS, given.plan or FORMS):
        for name, make in cases(plan):
            chosen = given.name is None or any(part in name for part in given.name)
            case = make() if chosen and (name, plan, build) not in done else None
            if case is not None:
                write(judge(case.model, case.feeds, name, plan, build, how=given.form), given.results)
    sys.stdout.write(table(read(given.results)))


if __name__ == "__main__":
    main()
