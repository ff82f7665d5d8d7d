"""Measures systems side by side, each run in a fresh process, and prints figures and claims as JSON lines.

A benchmark makes a ``Case`` (a model, its inputs, what to differentiate by), measures systems on it, and checks
claims:

    bench = Bench("w2_time")
    case = Case("scan, N=1,000", model, feeds, wrt=("W",))
    measured = bench.measure(case, [forward(case), ours(case, "taped", plan="taped")])
    bench.claim("full tape <= 3.3x forward", measured["taped"].ratio, at_most=3.3)
    bench.finish()

The processes of one case take turns (forward, gradient, forward, ...), so that a machine whose speed changes favours
none; of each time the least of all rounds counts, of each growth of memory the most.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np
import onnx

HERE = Path(__file__).parent
FORWARD = "forward"


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with its inputs.

    Attributes:
        name: What is measured, such as "scan, N=1,000".
        model: The primal, with a scalar output ``loss``.
        feeds: Its inputs by name.
        wrt: The inputs to differentiate by.
        scratch: Holds the files of this case as long as it lives.
    """

    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]
    wrt: tuple[str, ...]
    scratch: tempfile.TemporaryDirectory[str] = dataclasses.field(default_factory=tempfile.TemporaryDirectory)

    @property
    def folder(self) -> Path:
        """Where the files of this case are."""
        return Path(self.scratch.name)

    @property
    def feeds_file(self) -> Path:
        """The inputs, written on first use; the seed that onnx-ad wants is among them."""
        path = self.folder / "feeds.npz"
        if not path.exists():
            kinds = [value.dtype for value in self.feeds.values() if value.dtype.kind == "f"]
            arrays: dict[str, Any] = {**self.feeds, "adj_loss": np.ones(1, np.result_type(*kinds))}
            np.savez(path, **arrays)
        return path


@dataclasses.dataclass(frozen=True)
class System:
    """One way to compute something, ready to be measured.

    Attributes:
        name: As printed.
        command: The measuring script and what it measures.
        about: What is known before a run: transform time, node count, options.
        absent: Why it cannot be measured; None when it can.
        python: The interpreter that runs the script.
    """

    name: str
    command: tuple[str, ...] = ()
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    absent: str | None = None
    python: str = sys.executable


@dataclasses.dataclass
class Measured:
    """The figures of one system on one case.

    Attributes:
        figures: As measured_run prints them: the least times and the most memory of all rounds.
        outputs: The file of its outputs.
        forward: The figures of the forward run of the same case.
    """

    figures: dict[str, Any]
    outputs: Path
    forward: dict[str, Any] | None = None

    @property
    def cpu_s(self) -> float:
        """Processor seconds of the fastest run."""
        return self.figures["cpu_s"]

    @property
    def ratio(self) -> float:
        """Processor time in units of the forward run's."""
        if self.forward is None:
            raise ValueError("the forward run was not measured")
        return self.cpu_s / self.forward["cpu_s"]

    @property
    def growth(self) -> int:
        """Peak growth in bytes, of the first or the second run, whichever is more."""
        return max(self.figures["growth_first"], self.figures["growth_second"])

    @property
    def beyond(self) -> int:
        """Peak growth less the outputs, in bytes (the inputs are there before the run)."""
        return self.growth - self.figures["output_bytes"]

    @property
    def create_cpu_s(self) -> float:
        """Processor seconds of transformation and session creation."""
        return self.figures.get("transform_cpu_s", 0.0) + self.figures["create_cpu_s"]


class Bench:
    """The claims of one benchmark file.

    Args:
        name: The file's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._failed: list[str] = []
        self._print({"machine": machine.description(), "versions": machine.versions(), "command": machine.command()})

    def measure(
        self,
        case: Case,
        systems: Sequence[System],
        *,
        rounds: int = 3,
        at_most: int = 20,
        seconds: float = 2.0,
        reference: str | None = None,
    ) -> dict[str, Measured]:
        """Measures every system that is there, in turns, and prints a line for each.

        Args:
            case: The case.
            systems: What to measure; those that are absent are printed as such.
            rounds: Fresh processes for each system.
            at_most: Runs in one process.
            seconds: Time after which no further run is begun in one process; the second run always is.
            reference: The system with whose gradients those of the others are compared; default: the second.
        """
        present = [system for system in systems if system.absent is None]
        best: dict[str, Measured] = {}
        for _ in range(rounds):
            for system in present:
                measured = _run(case, system, at_most, seconds)
                best[system.name] = _merged(best.get(system.name), measured)
        reference = reference or (present[1].name if len(present) > 1 else present[0].name)
        for system in systems:
            if system.absent is not None:
                self._print({"case": case.name, "system": system.name, "absent": system.absent})
                continue
            measured = best[system.name]
            measured.forward = best[FORWARD].figures if FORWARD in best else None
            compared = system.name != FORWARD and case.wrt
            error = _error(measured.outputs, best[reference].outputs, case.wrt) if compared else None
            self._print_figures(case, system, measured, error)
        return best

    def claim(self, text: str, figure: float, *, at_most: float | None = None, at_least: float | None = None) -> None:
        """Prints a claim and whether it holds."""
        holds = (at_most is None or figure <= at_most) and (at_least is None or figure >= at_least)
        bar = {key: value for key, value in (("at_most", at_most), ("at_least", at_least)) if value is not None}
        self._print({"claim": text, "figure": _short(figure), **bar, "holds": bool(holds)})
        if not holds:
            self._failed.append(text)

    def report(self, line: Mapping[str, Any]) -> None:
        """Prints figures that belong to no single system."""
        self._print({key: _short(value) for key, value in line.items()})

    def finish(self) -> None:
        """Ends the process with 1 when a claim did not hold."""
        if self._failed:
            sys.exit("does not hold: " + "; ".join(self._failed))

    def _print_figures(self, case: Case, system: System, measured: Measured, error: float | None) -> None:
        line: dict[str, Any] = {"case": case.name, "system": system.name}
        if measured.forward is not None and system.name != FORWARD:
            line["ratio"] = _short(measured.ratio)
        line["beyond_mib"] = _short(measured.beyond / 2**20)
        if error is not None:
            line["relative_difference"] = float(f"{error:.1e}")
        self._print({**line, **system.about, **{key: _short(value) for key, value in measured.figures.items()}})

    def _print(self, line: Mapping[str, Any]) -> None:
        print(json.dumps({"benchmark": self.name, **line}), flush=True)


def forward(case: Case) -> System:
    """The primal itself."""
    return onnx_system(case, FORWARD, case.model, {})


def onnx_system(case: Case, name: str, model: onnx.ModelProto, about: Mapping[str, Any]) -> System:
    """A model to be run in ONNX Runtime."""
    path = case.folder / f"{name}.onnx"
    onnx.save(model, path)
    return System(name, ("measured_run.py", str(path)), {"nodes": machine.count_nodes(model.graph), **about})


def _run(case: Case, system: System, at_most: int, seconds: float) -> Measured:
    """One fresh process."""
    outputs = case.folder / f"{system.name}.npz"
    settings = {"at_most": at_most, "seconds": seconds, "save": str(outputs), "wrt": case.wrt}
    script, *subject = system.command
    command = [system.python, str(HERE / script), *subject, str(case.feeds_file), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{system.name} on {case.name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    return Measured({**figures, **{k: v for k, v in system.about.items() if k.endswith("_s")}}, outputs)


_TIMES = ("cpu_s", "wall_s", "first_cpu_s", "create_s", "create_cpu_s")
_GROWTHS = ("growth_first", "growth_second")


def _merged(one: Measured | None, other: Measured) -> Measured:
    """The least of each time and the most of each growth."""
    if one is None:
        return other
    times = {key: min(one.figures[key], other.figures[key]) for key in _TIMES if key in other.figures}
    growths = {key: max(one.figures[key], other.figures[key]) for key in _GROWTHS}
    return Measured({**other.figures, **times, **growths}, other.outputs)


def _error(path: Path, reference: Path, wrt: Sequence[str]) -> float:
    """The largest relative difference (2-norm) of a gradient from the reference's; zeros have to be exact.

    Raises:
        RuntimeError: A gradient is missing or not finite, is not zero where the reference's is, or all are zero.
    """
    with np.load(path) as got, np.load(reference) as expected:
        worst, zeros = 0.0, 0
        for name in wrt:
            own, other = _gradient(got, name), _gradient(expected, name)
            norm = float(np.linalg.norm(other))
            if not np.isfinite(own).all() or (norm == 0 and own.any()):
                raise RuntimeError(f"the gradient by {name} in {path.name} is not finite, or zero in {reference.name}")
            zeros += norm == 0
            worst = max(worst, float(np.linalg.norm(own - other)) / norm) if norm else worst
        if zeros == len(wrt):
            raise RuntimeError(f"all gradients in {reference.name} are zero")
        return worst


def _gradient(outputs: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """A gradient in float64, under this project's name or onnx-ad's."""
    found = outputs[f"{name}_grad"] if f"{name}_grad" in outputs else outputs[f"adj_{name}"]
    return found.astype(np.float64).ravel()


def _short(value: Any) -> Any:
    """Four digits are enough."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
