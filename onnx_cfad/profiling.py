"""Runs a model on many inputs and says what happened: branch outcomes, trip counts, time in each region."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from onnx_cfad.arrays import read_npz
from onnx_cfad.errors import ModelError, TargetError
from onnx_cfad.expand_training import expand_training
from onnx_cfad.given import shown
from onnx_cfad.graph.profile import BranchCount, LoopCount, Profile
from onnx_cfad.graph.regions import ControlFlowGraph, Region, Site, control_flow, is_branch, is_loop
from onnx_cfad.instrument import Counters, add_counters
from onnx_cfad.model import Source, fingerprint, load, normalise
from onnx_cfad.options import Options
from onnx_cfad.ports import Feeds, feeds_of
from onnx_cfad.runtime import Session
from onnx_cfad.simplify import simplify_branches

Progress = Callable[[int], None]

_TRACED = 3  # runs: the runtime keeps a million events, and time varies less than inputs do
_MARK = re.compile(r"@(\d+)@")


def profile_model(source: Source, feeds: Feeds | Iterable[Feeds], progress: Progress = lambda _: None) -> Profile:
    """Runs ``source`` on ``feeds`` and counts.

    The model that runs is the simplified one with counters as further outputs; ``source`` is never changed. Inputs are
    taken one at a time, so an iterator may make them as it goes. The first few are run once more, for the times.

    Args:
        source: A path, a ``ModelProto``, an ``ir.Model`` or a PyTorch ``ONNXProgram``.
        feeds: The inputs by name, or many of these.
        progress: Called after each run with the number of runs so far.

    Raises:
        ModelError: The model is unusable, the feeds do not fit it, or there are none.
        TargetError: ONNX Runtime refuses the model or cannot run it.
    """
    loaded = load(source)
    origin = fingerprint(loaded)
    model = expand_training(normalise(loaded))
    simplify_branches(model, Options())
    plain, sites = model.clone(), control_flow(model)
    shown = [site for site in sites.sites() if is_branch(site.node) or is_loop(site.node)]
    counters = add_counters(model, sites)
    session = Session(model)
    wanted = [name for name in (counters.sums_name, counters.maxima_name) if name]
    sums, maxima = np.zeros(len(counters.sums), np.int64), np.zeros(len(counters.maxima), np.int64)
    kept: list[Feeds] = []
    runs = 0
    for runs, feed in enumerate(_each(feeds), start=1):
        results = session.run(feed, wanted or list(session.outputs))
        if counters.sums_name:
            sums += results[counters.sums_name]
        if counters.maxima_name:
            maxima = np.maximum(maxima, results[counters.maxima_name])
        if runs <= _TRACED:
            kept.append(feed)
        progress(runs)
    if not runs:
        raise ModelError("inputs", "there are none to run the model on", "Name at least one .npz file.")
    seconds = _seconds(plain, kept)
    return _profile(origin, runs, shown, counters, sums, maxima, seconds)


def profile_files(
    source: Source, inputs: Sequence[str | Path], progress: Callable[[int, int], None] | None = None
) -> Profile:
    """``profile_model`` on the arrays of .npz files, read one at a time; a folder stands for those in it.

    Raises:
        ModelError: As for ``profile_model``, or a file is no .npz file.
        TargetError: As for ``profile_model``.
    """
    files = [file for path in inputs for file in _files(Path(path))]
    reading: list[Path] = []

    def arrays() -> Iterator[Feeds]:
        for file in files:
            feeds = read_npz(file)
            reading.append(file)
            yield feeds
            reading.clear()

    try:
        return profile_model(source, arrays(), lambda done: None if progress is None else progress(done, len(files)))
    except (ModelError, TargetError) as error:  # of many files the one that does not fit is told
        if not reading:
            raise
        raise type(error)(f"{reading[0]}: {error.where}", error.what, error.remedy) from error


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.npz"))
    if not found:
        raise ModelError(str(path), "there is no .npz file in this folder", "Save inputs by name with numpy.savez.")
    return found


def _each(feeds: object) -> Iterator[Feeds]:
    if not isinstance(feeds, Iterable) or isinstance(feeds, (str, bytes)) or getattr(feeds, "shape", None) == ():
        raise ModelError("feeds", f"expected inputs by name, or several of these, found {shown(feeds)}", "Give a dict.")
    if isinstance(feeds, Mapping):
        yield feeds_of(cast("object", feeds))
    else:
        yield from cast("Iterable[Feeds]", feeds)


def _profile(
    origin: str, runs: int, sites: Sequence[Site], counters: Counters, sums: np.ndarray[Any, Any],
    maxima: np.ndarray[Any, Any], seconds: Mapping[str, float],
) -> Profile:  # fmt: skip
    found = {
        **dict(zip(counters.sums, map(int, sums), strict=True)),
        **dict(zip(counters.maxima, map(int, maxima), strict=True)),
    }
    branches = {s.path: BranchCount(found[s.path, "then"], found[s.path, "else"]) for s in sites if is_branch(s.node)}
    kinds = ("executions", "iterations", "most")
    loops = {s.path: LoopCount(*(found[s.path, kind] for kind in kinds)) for s in sites if (s.path, "most") in found}
    return Profile(origin, runs, branches, loops, seconds)


def _seconds(model: ir.Model, feeds: Sequence[Feeds]) -> dict[str, float]:
    """Seconds a run in each region of ``model``, from ONNX Runtime's own trace; a loop's own cost is its region's."""
    sites = control_flow(model)
    places = _mark(sites)
    with tempfile.TemporaryDirectory() as folder:
        session = Session(model, threads=1, trace=str(Path(folder) / "trace"))
        session.run(feeds[0])  # warm
        for feed in feeds:
            session.run(feed)
        events = json.loads(Path(session.end_trace()).read_text(encoding="utf-8"))
    total = dict.fromkeys(places, 0.0)
    for place, duration in _own_times(events, places):
        total[place] = total.get(place, 0.0) + duration
    return {path: seconds / (len(feeds) + 1) for path, seconds in total.items()}


def _mark(sites: ControlFlowGraph) -> dict[str, list[int]]:
    """Gives every node a number for a name, which survives in the names of fused nodes; numbers by region path."""
    places: dict[str, list[int]] = {}
    count = 0

    def visit(region: Region) -> None:
        nonlocal count
        places[region.path] = []
        for node in region.graph:
            node.name = f"@{count}@"
            places[region.path].append(count)
            count += 1
        for site in region.sites:
            for inner in site.regions:
                visit(inner)

    visit(sites.root)
    return places


def _own_times(events: Sequence[Any], places: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, float]]:
    """For each operator that ran: its region, and the seconds that are not in operators inside it."""
    region_of = {number: path for path, numbers in places.items() for number in numbers}
    nodes = [e for e in events if e.get("cat") == "Node" and str(e.get("name", "")).endswith("_kernel_time")]
    nodes.sort(key=lambda e: (e["ts"], -e["dur"]))
    open_: list[tuple[int, str, list[float]]] = []
    done: list[tuple[str, list[float]]] = []
    for event in nodes:
        while open_ and open_[-1][0] <= event["ts"]:
            open_.pop()
        mark = _MARK.search(event["name"])
        around = open_[-1][1] if open_ else "main"
        place = region_of.get(int(mark[1]), around) if mark else around
        if open_:
            open_[-1][2][0] -= event["dur"]
        own = [float(event["dur"])]
        done.append((place, own))
        open_.append((event["ts"] + event["dur"], place, own))
    yield from ((place, max(own[0], 0.0) / 1e6) for place, own in done)
