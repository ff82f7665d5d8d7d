# Claim: as one compiled function (TVM's Relax, LLVM), the gradient of a recurrent network with H=8 and B=16 over 10^5
# steps takes at most a quarter of ONNX Runtime's CPU time, fully taped and checkpointed.
"""Gradients of loops with small bodies in TVM and in ONNX Runtime; an If against a mask; memory of Relay's machine."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import heat_and_ode
import numpy as np
import onnx
import onnx_ir as ir
import recurrent
import w7_branches
from gradients import ours
from meter import HERE, Bench, Case, System

from onnx_cfad.errors import TargetError
from onnx_cfad.model import load
from onnx_cfad.rewriters.legalise import legalise
from onnx_cfad.runtime import Session
from onnx_cfad.targets.base import Options
from onnx_cfad.targets.compilation import compile_model
from onnx_cfad.targets.rounding import in_float64
from onnx_cfad.targets.tvm.environments import interpreter
from onnx_cfad.targets.tvm.whole_loop import with_shapes

PARTS = ("recurrent", "exported", "branches", "memory", "float64")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"of {', '.join(PARTS)}")
    chosen = parser.parse_args().parts
    bench = Bench("w8_targets")
    parts: tuple[Callable[[Bench], None], ...] = (_recurrent, _exported, _branches, _memory, _float64)
    for name, part in zip(PARTS, parts, strict=True):
        if name in chosen:
            part(bench)
    bench.finish()


def _recurrent(bench: Bench) -> None:
    """Gradients of recurrent networks as one function."""
    for width, steps, bar in ((8, 100_000, 4.0), (64, 10_000, None)):
        case = recurrent.case("scan", steps, width=width, inputs=4 if width == 8 else 16)
        for plan in ("taped", "checkpointed"):
            ratio = _compare(bench, case, plan, rounds=2)
            if bar is not None and ratio is not None:
                bench.claim(f"{case.name}, {plan}: times faster than ONNX Runtime", ratio, at_least=bar)


def _exported(bench: Bench) -> None:
    """Gradients of exported models as one function."""
    for name in ("heat", "neural_ode"):
        _compare(bench, heat_and_ode.case_of(name), "default", rounds=2)


def _compare(bench: Bench, case: Case, plan: str, rounds: int) -> float | None:
    """The gradient in ONNX Runtime and by Relax; how many times less CPU time Relax takes."""
    options = {} if plan == "default" else {"plan": plan}
    runtime = ours(case, f"{plan}, ONNX Runtime", **options)
    relax = in_tvm("relax", case, f"{plan}, Relax", Path(runtime.command[1]))
    measured = bench.measure(case, [runtime, relax], rounds=rounds, reference=runtime.name)
    if relax.absent is not None:
        return None
    ratio = measured[runtime.name].cpu_s / measured[relax.name].cpu_s
    bench.report({"case": case.name, "plan": plan, "times_faster": ratio})
    return ratio


def in_tvm(kind: str, case: Case, name: str, model: Path) -> System:
    """A model in a build of TVM, with all shapes that follow from its inputs; absent where TVM refuses it."""
    try:
        python = interpreter(kind)
    except TargetError as error:
        return System(name, absent=error.what)
    path = model.with_name(f"{model.stem}.{kind}.onnx")
    onnx.save(prepared(kind, model), path)
    command = [str(python), "-W", "ignore", str(HERE / "measured_tvm.py"), kind, str(path), str(case.feeds_file)]
    done = subprocess.run(
        [*command, json.dumps({"at_most": 1, "seconds": 0})], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "Refused: " in line] or done.stderr.strip().splitlines()
        return System(name, absent="refused: " + (said[-1].partition("Refused: ")[2] or said[-1])[:200])
    return System(name, ("measured_tvm.py", kind, str(path)), python=str(python))


def prepared(kind: str, model: Path) -> onnx.ModelProto:
    """A model as a build of TVM gets it: with shapes, and for Relay with the operators that it knows."""
    found = with_shapes(load(onnx.load(model)))
    return ir.to_proto(legalise(found, kind) if kind == "relay" else found)


def _branches(bench: Bench) -> None:
    """Time to compile the gradient of 16 Ifs in Relay: branches kept, and masked."""
    case = w7_branches.case_of("perceptrons", 16)
    sites = tuple(f"main/if_{k}=masked" for k in range(16))
    systems: list[System] = []
    for name, options in (("If", {}), ("masked", {"sites": sites})):
        runtime = ours(case, f"{name}, ONNX Runtime", **options)
        systems += [runtime, in_tvm("relay", case, f"{name}, Relay", Path(runtime.command[1]))]
    measured = bench.measure(case, systems, rounds=1, reference=systems[0].name, at_most=10)
    times = {s.name: measured[s.name].figures["create_cpu_s"] for s in systems if s.absent is None}
    if "If, Relay" in times and "masked, Relay" in times:
        ratio = times["If, Relay"] / times["masked, Relay"]
        bench.report({"case": case.name, "compile_time_if_by_masked": ratio})


def _memory(bench: Bench) -> None:
    """Memory of Relay's virtual machine: a loop of 10^4 iterations flat, and as 100 of 100."""
    rng = np.random.default_rng(0)
    feeds = {"h0": rng.standard_normal((4, 8)).astype(np.float32), "w": rng.standard_normal((8, 8)).astype(np.float32)}
    for name, levels in (("10,000 iterations", (10_000,)), ("100 x 100 iterations", (100, 100))):
        case = Case(name, _nested(levels), feeds, ())
        path = case.folder / "primal.onnx"
        onnx.save(case.model, path)
        runtime = System("ONNX Runtime", ("measured_run.py", str(path)))
        relay = in_tvm("relay", case, "Relay", path)
        measured: dict[str, Any] = bench.measure(case, [runtime, relay], rounds=1, at_most=2)
        for system, figures in measured.items():
            bench.report({"case": name, "system": system, "growth_mib": figures.growth / 2**20})


def _float64(bench: Bench) -> None:
    """How far from float64 the gradients of a recurrent network are, in ONNX Runtime and by Relax."""
    case = recurrent.case("scan", 100_000, width=8, inputs=4)
    for plan in ("taped", "checkpointed"):
        path = Path(ours(case, plan, plan=plan).command[1])
        model, feeds = load(path), {name: case.feeds[name] for name in case.feeds}
        exact = in_float64(model, feeds)
        assert exact is not None, "ONNX Runtime runs it in float64"
        options = Options("relax")
        found = {
            "ONNX Runtime": Session(model, threads=1).run(feeds),
            "Relax": compile_model(path, "llvm", feeds=feeds, options=options, check=False).run(feeds),
        }
        for name in exact:
            off = {system: _distance(results[name], exact[name]) for system, results in found.items()}
            between = _distance(found["Relax"][name], found["ONNX Runtime"][name])
            bench.report({"case": case.name, "plan": plan, "output": name, "from_float64": off, "between": between})


def _distance(value: Any, exact: Any) -> float:
    """The 2-norm of the difference relative to that of ``exact``."""
    exact = np.asarray(exact, np.float64)
    return float(np.linalg.norm(np.asarray(value, np.float64) - exact) / (np.linalg.norm(exact) or 1.0))


def _nested(levels: tuple[int, ...]) -> onnx.ModelProto:
    """h <- tanh(h w), so often, in nested Loops."""
    text = "u = MatMul (h, w)  next = Tanh (u)"
    entry, result = "h", "next"
    for depth, trips in reversed(list(enumerate(levels))):
        around, made = (f"h{depth}", f"next{depth}") if depth else ("h0", "y")
        text = (
            f"n{depth} = Constant <value = int64 {{{trips}}}> () t{depth} = Constant <value = bool {{1}}> () "
            f"{made} = Loop (n{depth}, t{depth}, {around}) <body = b{depth} (int64 i{depth}, bool on{depth}, "
            f"float[4,8] {entry}) => (bool again{depth}, float[4,8] {result}) "
            f"{{ again{depth} = Identity (on{depth}) {text} }}>"
        )
        entry, result = around, made
    head = '<ir_version: 8, opset_import: ["": 17]> '
    model = onnx.parser.parse_model(f"{head}nested (float[4,8] h0, float[8,8] w) => (float[4,8] y) {{ {text} }}")
    onnx.checker.check_model(model)
    return model


if __name__ == "__main__":
    main()
