"""Which models become CUDA C, and does nvcc compile it: ``python -m tests.targets.cuda.coverage [--every K]``.

Models are primals and gradients of the corpus and of models/, in float32. Kernels of several models are compiled
together, because nvcc takes a second to begin. Prints one table, as docs/targets.md has it. Nothing runs on a GPU.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterator, Mapping
from typing import Any

from onnx_cfad.errors import CfadError
from onnx_cfad.model import load
from onnx_cfad.targets.cuda import nvcc
from onnx_cfad.targets.cuda.lowering import Kernels, lower_bodies
from onnx_cfad.targets.cuda.target import predicated
from onnx_cfad.targets.tvm.environments import interpreter
from onnx_cfad.targets.tvm.partition import partition
from onnx_cfad.targets.tvm.specialise import meet
from onnx_cfad.targets.tvm.worker import Worker
from tests.targets.tvm.host_corpus import Case, corpus_case, corpus_makers, exported_case, exported_names

_TOGETHER = 400  # kernels that nvcc gets at once


class Row:
    """One kind of model, counted."""

    def __init__(self) -> None:
        self.models = self.refused = self.whole = self.bodies = self.hosted = self.kernels = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="one model of so many")
    parser.add_argument("--forms", nargs="+", default=["primal", "taped", "checkpointed", "gradient"])
    settings = parser.parse_args()
    rows: dict[str, Row] = collections.defaultdict(Row)
    reasons: collections.Counter[str] = collections.Counter()
    worker = Worker("relax", interpreter("relax"))
    waiting: list[tuple[str, Kernels]] = []
    faults: list[str] = []
    for number, (name, form, case) in enumerate(_cases(settings.every, settings.forms)):
        row = rows[form]
        row.models += 1
        kernels = _lowered(worker, f"m{number}", case)
        if isinstance(kernels, str):
            row.refused += 1
            reasons[kernels] += 1
            continue
        row.bodies += len(kernels.bodies)
        row.hosted += len(kernels.hosted)
        row.whole += not kernels.hosted
        row.kernels += len(kernels.kernels)
        reasons.update(kernels.hosted.values())
        waiting.append((name, kernels))
        if sum(len(k.kernels) for _, k in waiting) >= _TOGETHER:
            faults += _compile(waiting)
            waiting = []
    faults += _compile(waiting)
    worker.close()
    _print(rows, reasons, faults)


def _cases(every: int, forms: list[str]) -> Iterator[tuple[str, str, Case]]:
    corpus = [(name, form, maker) for form in forms if form != "gradient" for name, maker in corpus_makers()]
    for name, form, maker in corpus[::every]:
        case = corpus_case(maker, form)
        if case is not None:
            yield name, f"corpus, {form}", case
    for group, name in exported_names() if "gradient" in forms else ():
        yield name, "exported, gradient", exported_case(group, name, "gradient")


def _lowered(worker: Worker, prefix: str, case: Case) -> Kernels | str:
    """The kernels of a model; a sentence where there are none."""

    def ask(command: str, arguments: Mapping[str, Any]) -> Any:
        return worker.call(command, arguments, timeout_s=120)

    try:
        model, _ = predicated(load(case.model))
        parts = partition(model)
        met, _ = meet(parts, case.feeds)
        return lower_bodies(parts, met, nvcc.ARCHITECTURES[0], ask, prefix)
    except CfadError as error:
        return str(error)


def _compile(models: list[tuple[str, Kernels]]) -> list[str]:
    """What nvcc says of the kernels of some models, for each architecture; together first, alone where that fails."""
    faults: list[str] = []
    texts: dict[str, list[tuple[str, Kernels]]] = {}
    for name, kernels in models:
        if kernels.kernels:
            texts.setdefault(kernels.preamble, []).append((name, kernels))
    for preamble, group in texts.items():
        source = "\n".join([preamble, *(text for _, k in group for text in k.kernels.values())])
        found = [fault for architecture in nvcc.ARCHITECTURES for fault in _fault(source, architecture)]
        if found:
            faults += found if len(group) == 1 else _compile_alone(group)
    return faults


def _fault(source: str, architecture: str) -> list[str]:
    try:
        nvcc.compiled(source, architecture, "cubin")
    except CfadError as error:
        return [f"{architecture}: {error}"]
    return []


def _compile_alone(group: list[tuple[str, Kernels]]) -> list[str]:
    return [f"{name}: {fault}" for name, kernels in group for fault in _compile([(name, kernels)])]


def _print(rows: Mapping[str, Row], reasons: collections.Counter[str], faults: list[str]) -> None:
    print("| models | number | no program | all bodies on the GPU | bodies on the GPU | on the CPU | kernels |")
    print("|---|---|---|---|---|---|---|")
    for form, row in rows.items():
        counts = (row.models, row.refused, row.whole, row.bodies, row.hosted, row.kernels)
        print("| " + " | ".join([form, *map(str, counts)]) + " |")
    print(f"\nnvcc, {' and '.join(nvcc.ARCHITECTURES)}: {len(faults)} models whose kernels do not compile")
    for fault in faults:
        print(f"- {fault}")
    print("\nWhy bodies stay on the CPU:")
    for reason, count in reasons.most_common(25):
        print(f"- {count}: {reason[:160]}")


if __name__ == "__main__":
    main()
