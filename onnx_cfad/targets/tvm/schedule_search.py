"""MetaSchedule's design spaces, searched at random for a number of seconds. Runs in the child of a worker.

Random search needs no package beside TVM. TVM's own driver is not used: it needs psutil and other processes, and a hard
limit of time is not known to it. Candidates are built and measured here, one after the other; what crashes or hangs
takes the worker with it, and the records that were written until then stay.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnx_cfad.targets.tvm.commands import Arguments, Arrays, Refused, Result, command, last_part

_BATCH = 4  # candidates that are drawn at once
_SLOW = 1.5  # a candidate that takes so many times the best one is measured once
_MEASURED_SECONDS = 0.01  # each of three times
_ENDLESS = 10**6  # trials


@dataclasses.dataclass(frozen=True)
class Task:
    """A kernel that is to be scheduled, and how often the model calls it."""

    name: str
    weight: int
    module: Any


@dataclasses.dataclass(frozen=True)
class Scheduler:
    """What a build of TVM needs to search.

    Attributes:
        package: The module that holds MetaSchedule.
        intrinsics: The module of tensor intrinsics, which no rule for this target asks for and whose import takes
            seconds.
        tasks: The kernels of a model, by the file, the shapes of its inputs, and options.
        target: TVM's target for given options, which names the number of cores.
        tensor: Makes an array one of TVM's.
        why_not: Why no search is possible with what is installed; "" where it is.
    """

    package: str
    intrinsics: str
    tasks: Callable[[Path, Any, Any], Sequence[Task]]
    target: Callable[[Any], Any]
    tensor: Callable[[Any], Any]
    why_not: Callable[[], str] = str


def database(scheduler: Scheduler, folder: str | Path) -> Any:
    """The records of schedules in a folder."""
    places = [str(Path(folder) / name) for name in ("workloads.json", "records.json")]
    return _package(scheduler).database.JSONDatabase(*places)


def offer_search(made: Callable[[], Scheduler]) -> None:
    """Enters ``search_schedules`` into the table of commands."""

    @command
    def search_is_possible(arguments: Arguments, arrays: Arrays) -> Result:  # noqa: ARG001
        """Refuses where this build of TVM cannot search."""
        reason = made().why_not()
        if reason:
            raise Refused(reason)
        return {}, {}

    @command
    def search_schedules(arguments: Arguments, arrays: Arrays) -> Result:  # noqa: ARG001
        """Searches schedules for the kernels of ``model`` for ``seconds``, and adds them to the records in ``folder``.

        ``seed`` decides which candidates are tried. The answer counts trials and those that failed.
        """
        deadline, scheduler = time.monotonic() + float(arguments["seconds"]), made()
        options = arguments.get("options", {})
        tasks = scheduler.tasks(Path(arguments["model"]), arguments.get("shapes", {}), options)
        if not tasks:
            raise Refused("it has no kernel that is scheduled")
        records = database(scheduler, arguments["folder"])
        trials = failed = 0
        reason = ""
        for number, task in enumerate(tasks):
            share = (deadline - time.monotonic()) * task.weight / sum(t.weight for t in tasks[number:])
            found = _search(scheduler, task, options, records, time.monotonic() + share, int(arguments["seed"]))
            trials, failed, reason = trials + found[0], failed + found[1], reason or found[2]
        return {"kernels": len(tasks), "trials": trials, "failed": failed, "reason": reason}, {}


def _search(
    scheduler: Scheduler, task: Task, options: Any, records: Any, deadline: float, seed: int
) -> tuple[int, int, str]:
    """Trials, those that failed, and why the first of these did."""
    ms, target = _package(scheduler), scheduler.target(options)
    workload = records.commit_workload(task.module)
    known = records.get_top_k(workload, 1)
    best = float(known[0].run_secs[0]) if known else float("inf")
    space = ms.space_generator.PostOrderApply(
        sch_rules=ms.schedule_rule.schedule_rule.ScheduleRule.create("llvm"),
        postprocs=ms.postproc.Postproc.create("llvm"),
        mutator_probs={},  # replaying needs none
    )
    context = ms.TuneContext(
        task.module, target=target, space_generator=space, search_strategy=ms.search_strategy.ReplayTrace(),
        task_name=task.name, rand_state=seed, num_threads=1,
    )  # fmt: skip
    context.pre_tuning(_ENDLESS, _BATCH, context.generate_design_space())
    trials = failed = 0
    reason = ""
    while time.monotonic() < deadline:
        candidates = context.generate_measure_candidates()
        if not candidates:
            break
        results: list[Any] = []
        for candidate in candidates:
            if time.monotonic() >= deadline:
                return trials, failed, reason
            trials += 1
            try:
                seconds = _measured(scheduler, candidate, target, best)
            except Exception as error:  # noqa: BLE001 - whatever TVM raises makes the candidate one that failed
                failed += 1
                reason = reason or last_part(error)
                results.append(ms.runner.RunnerResult(None, "failed"))
                continue
            if seconds < best:
                best = seconds
                record = ms.database.TuningRecord(candidate.sch.trace, workload, [seconds], target, candidate.args_info)
                records.commit_tuning_record(record)
            results.append(ms.runner.RunnerResult([seconds], None))
        context.notify_runner_results(candidates, results)
    return trials, failed, reason


def _measured(scheduler: Scheduler, candidate: Any, target: Any, best: float) -> float:
    """Seconds that a candidate takes; of a slow one those of its first call."""
    tvm = importlib.import_module("tvm")
    builder = importlib.import_module(f"{scheduler.package}.builder.local_builder")
    built = builder.default_build(candidate.sch.mod, target, None)
    built = built.jit() if hasattr(built, "jit") else built
    given = [scheduler.tensor(_array(info)) for info in candidate.args_info]

    def timed(number: int, repeat: int) -> float:
        return float(min(built.time_evaluator("main", tvm.cpu(), number=number, repeat=repeat)(*given).results))

    first = timed(1, 1)
    return first if first > _SLOW * best else timed(max(1, int(_MEASURED_SECONDS / max(first, 1e-7))), 3)


def _array(info: Any) -> np.ndarray[Any, Any]:
    """An operand: numbers around zero, and zeros for indices, which are in range everywhere."""
    shape, dtype = [int(d) for d in info.shape], np.dtype(str(info.dtype))
    if dtype.kind != "f":
        return np.zeros(shape, dtype)
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def _package(scheduler: Scheduler) -> Any:
    """MetaSchedule."""
    sys.modules.setdefault(scheduler.intrinsics, types.ModuleType(scheduler.intrinsics))
    return importlib.import_module(scheduler.package)
