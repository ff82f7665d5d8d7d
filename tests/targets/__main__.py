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


HEAD = """# What TVM makes of the corpus

Made by `make targets-table`; do not edit.

The models of the test corpus and the exported models (`own`, `reference`), differentiated, their loops run backwards as
told, in float32, compiled for LLVM and run on the inputs of the tests. The outputs are compared with those of ONNX
Runtime: the largest error of an output relative to its largest element may be 1e-5 (16-bit outputs: 1e-2). *whole*: one
program of the build's own machine; *host*: compiled bodies that a host program drives; *refused*: an error that says
why; *differs*: an output is over the tolerance, so `onnx-cfad compile` refuses it too.

A form that a model's plan refuses has no row. What is left out was not run. An error over the tolerance is rounding
where the results are about as far from those of the model in float64 as ONNX Runtime's are: where the exact value is
zero, such as the residual of a fixed point (`fixed_point_of_two_carries`) or the gradient by a bias in front of a
softmax (`alphafold_recycling`), and in a loop that makes small errors large (`slice_of_carry_by_index`).

"""


def main() -> None:
    """Judges what is not judged yet, and prints the table of all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--build", choices=BUILDS, action="append")
    parser.add_argument("--plan", choices=FORMS, action="append")
    parser.add_argument("--form", choices=("auto", "whole", "host"), default="auto")
    parser.add_argument("--name", action="append", help="a part of the names of models to judge")
    parser.add_argument("--page", type=Path, help="where the table goes, as a page")
    given = parser.parse_args()
    done = {(v.model, v.form, v.build) for v in read(given.results)}
    for build, plan in itertools.product(given.build or BUILDS, given.plan or FORMS):
        for name, make in cases(plan):
            chosen = given.name is None or any(part in name for part in given.name)
            case = make() if chosen and (name, plan, build) not in done else None
            if case is not None:
                write(judge(case.model, case.feeds, name, plan, build, how=given.form), given.results)
    text = table(read(given.results))
    if given.page is None:
        sys.stdout.write(text)
    else:
        given.page.write_text(HEAD + text, encoding="utf-8")


if __name__ == "__main__":
    main()
