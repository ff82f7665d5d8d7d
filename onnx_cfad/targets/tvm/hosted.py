"""A model as bodies that a host program drives in the worker: bodies are compiled in order, then it is run once."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_cfad.graph.regions import is_loop
from onnx_cfad.targets.base import Array, Lowered, Tell
from onnx_cfad.targets.branch_order import BranchOrder
from onnx_cfad.targets.tvm.body_order import Schedule, Scheduled, schedule
from onnx_cfad.targets.tvm.partition import Partition, Whole, partition
from onnx_cfad.targets.tvm.programs import joined, split
from onnx_cfad.targets.tvm.signatures import digest
from onnx_cfad.targets.tvm.specialise import meet, write_bodies
from onnx_cfad.targets.tvm.step import Step
from onnx_cfad.targets.tvm.tuning import Tunable, tune
from onnx_cfad.targets.tvm.whole_loop import whole
from onnx_cfad.targets.tvm.worker import BodyError

_PROGRAM, _BODIES = "program.json", "bodies"
_TOLD = 5  # bodies that a note names


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a host program is made by.

    Attributes:
        step: The worker.
        order: What is known of the model's branches.
        tell: Called with what is being done.
        notes: Why this form was chosen.
        seconds: What a search for schedules may take; None for none.
    """

    step: Step
    order: BranchOrder
    tell: Tell
    notes: tuple[str, ...]
    seconds: float | None


def hosted(model: ir.Model, folder: Path, feeds: Mapping[str, Array], plan: Plan) -> Lowered:
    """A host program with its bodies in ``folder``; with Relax, a loop is one function where that takes it.

    Raises:
        TargetError: A body is refused.
    """
    refused: dict[str, str] = {}

    def is_function(node: ir.Node) -> bool:
        return plan.step.worker.kind == "relax" and _first_output(node) not in refused and whole(node)

    while True:
        reasons = [f"the host runs {site}: {reason}" for site, reason in refused.items()]
        try:
            noted = dataclasses.replace(plan, notes=(*plan.notes, *reasons))
            return _compiled(model, folder, feeds, noted, is_function)
        except BodyError as error:
            sites = [node for node in partition(model, is_function).bodies[error.body].graph if is_loop(node)]
            if not sites:
                raise
            refused.update((_first_output(node), error.what) for node in sites)
            shutil.rmtree(folder / _BODIES)


def run_hosted(
    folder: Path, program: Mapping[str, Any], feeds: Mapping[str, Array], step: Step
) -> tuple[dict[str, Any], dict[str, int]]:
    """The outputs of a host program, and the libraries that bodies were compiled to by this run, by body."""
    flat, lists = split(feeds)
    places = {"program": str(folder / _PROGRAM), "bodies": str(folder / _BODIES), "lists": lists}
    wanted = {key: program[key] for key in ("stems", "guarded")}
    result, arrays = step.call("run_program", {**places, **wanted}, flat)
    return joined(arrays, result["lists"]), dict(result["compiled_now"])


def _first_output(node: ir.Node) -> str:
    return node.outputs[0].name or ""


def _compiled(model: ir.Model, folder: Path, feeds: Mapping[str, Array], plan: Plan, is_function: Whole) -> Lowered:
    parts = partition(model, is_function)
    stems = {name: f"body{index}" for index, name in enumerate(parts.bodies)}
    (folder / _BODIES).mkdir()
    met, _ = meet(parts, feeds)
    order = schedule(parts, met, plan.order)
    signatures = {name: tuple(record.counts) for name, record in met.items()}
    signatures |= {entry.name: entry.signatures for entry in order.ahead}
    write_bodies(parts, signatures, folder / _BODIES, stems, plan.step.worker.kind)
    (folder / _PROGRAM).write_text(parts.program.to_json(), encoding="utf-8")
    guarded = {name: list(record.guarded) for name, record in met.items()}
    for number, entry in enumerate(order.ahead, start=1):
        plan.tell(f"body {number} of {len(order.ahead)}: {entry.name}")
        _compile(entry, folder / _BODIES / stems[entry.name], guarded.get(entry.name, []), plan.step)
    program: dict[str, Any] = {"stems": stems, "guarded": guarded}
    found = None
    if plan.seconds is not None:
        found = tune(list(_tunables(parts, order, folder / _BODIES, stems)), plan.seconds, plan.step, plan.tell)
        program["tuning"] = dataclasses.asdict(found)
    _, used = run_hosted(folder, program, feeds, plan.step)
    program |= {
        "ahead": [{"body": e.name, "branch": e.side, "taken": e.taken, "calls": e.calls} for e in order.ahead],
        "on_first_use": list(order.on_first_use),
        "used_by_samples": sorted(used),
    }
    form = f"a host program over {len(stems)} bodies"
    notes = (*plan.notes, *_told(order, plan.order, used), *([] if found is None else [found.note()]))
    return Lowered(form, program, notes, lasting=found is None or found.complete)


def _tunables(parts: Partition, order: Schedule, bodies: Path, stems: Mapping[str, str]) -> Iterator[Tunable]:
    """The bodies that were compiled ahead; a loop that is one function has a schedule of its own."""
    for entry in order.ahead:
        body = parts.bodies[entry.name]
        if any(map(is_loop, body.graph)):
            continue
        inputs = tuple(value.name or "" for value in body.graph.inputs)
        for signature in entry.signatures:
            place = bodies / f"{stems[entry.name]}-{digest(signature)}"
            model, library = place.with_suffix(".onnx"), place.with_suffix(".so")
            yield Tunable(entry.name, model, library, inputs, signature, entry.calls)


def _compile(entry: Scheduled, place: Path, guarded: Sequence[int], step: Step) -> None:
    for signature in entry.signatures:
        step.call(
            "compile_body",
            {"name": entry.name, "place": str(place), "signature": signature, "guarded": list(guarded)},
        )


def _told(order: Schedule, branches: BranchOrder, used: Mapping[str, int]) -> list[str]:
    """What was compiled in which order, and what was not, in words."""
    by = f", hot branches first by {branches.origin}" if branches.origin else ""
    told = [f"{_bodies(len(order.ahead))} compiled{by}"]
    if order.on_first_use:
        names = ", ".join(order.on_first_use[:_TOLD]) + (", ..." if len(order.on_first_use) > _TOLD else "")
        told.append(f"{_bodies(len(order.on_first_use))} compiled on first use: {names}")
    if used:
        told.append(f"{_bodies(len(used))} of these used by the sample inputs, and so compiled: {', '.join(used)}")
    return told


def _bodies(count: int) -> str:
    return "1 body is" if count == 1 else f"{count} bodies are"
