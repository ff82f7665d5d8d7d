"""Compiles the corpus and the exported models, differentiated, with each build of TVM; see ``make targets-table``.

``python -m tests.targets RESULTS.jsonl [BUILD] [FORM] [NAME...]`` adds verdicts to the file; what it has is not done
again.
"""

from __future__ import annotations

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


def main(path: Path, builds: tuple[str, ...], forms: tuple[str, ...], names: list[str]) -> None:
    done = {(v.model, v.form, v.build) for v in read(path)}
    for build, form in itertools.product(builds, forms):
        for name, make in cases(form):
            if (name, form, build) in done or (names and not any(part in name for part in names)):
                continue
            case = make()
            if case is not None:
                write(judge(case.model, case.feeds, name, form, build), path)
    sys.stdout.write(table(read(path)))


if __name__ == "__main__":
    build, form = (sys.argv[2:4] + ["all", "all"])[:2] if len(sys.argv) > 3 else ((sys.argv + ["all"])[2], "all")
    main(
        Path(sys.argv[1]),
        BUILDS if build == "all" else (build,),
        FORMS if form == "all" else (form,),
        sys.argv[4:],
    )
