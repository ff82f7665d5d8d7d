# Claim: the gradient of z = tanh(z W + x U + b), iterated to a tolerance (H=256, B=16, spectral radius of W 0.5, 0.9
# and 0.99), takes together with the forward run at most 2.5x the CPU time of the forward run; its memory is flat within
# 5 % from 20 to 2,000 iterations; its relative error is at most 1e-5 in float32 and 1e-9 in float64; at about 1,000
# iterations the gradient (beyond the forward run) is at least 5x faster than those that run them back: our own from a
# full tape, and onnx-ad's.
# Beside it, without a claim: the libraries that differentiate such an equation when told to.
"""The gradient of a loop that iterates to a fixed point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import recurrent
from gradients import implicit_library, onnx_ad, ours
from meter import Bench, Case, Measured, forward
from onnx import TensorProto, helper, numpy_helper

WIDTH, BATCH, INPUTS = 256, 16, 16
WEIGHTS = ("x", "W", "U", "b")
RADII = (0.5, 0.9, 0.99)
DRIVE = 0.03  # the size of x and b: so small that tanh leaves the radius as it is

SETTINGS = (("float32", 1e-5, 1e-5), ("float64", 1e-11, 1e-9))  # a type, the loop's tolerance, and the error allowed
LONG = ("float32", 0.992, 0.001, 1e-6)  # about 1,000 iterations in float32: a type, a radius, a drive, a tolerance
LIBRARIES = ("jaxopt", "optimistix", "torchdeq")  # no model of ours: they run the equation themselves
FEW, MANY = 20, 2_000  # iterations between which memory is flat


def main() -> None:
    bench = Bench("w5_implicit")
    for name, tolerance, allowed in SETTINGS:
        for radius in RADII:
            case = case_of(radius, np.dtype(name), tolerance)
            systems = [forward(case), ours(case, "implicit", plan="implicit"), ours(case, "taped", plan="taped")]
            systems += [onnx_ad(case), *(implicit_library(library, tolerance) for library in LIBRARIES)]
            measured = bench.measure(case, systems, at_most=10, rounds=2, seconds=1.0)
            implicit = measured["implicit"]
            steps, error = _steps(case, tolerance), _error(implicit, case)
            bench.claim(f"{case.name}, {steps} iterations: times forward", implicit.ratio, at_most=2.5)
            bench.claim(f"{case.name}: relative error", error, at_most=allowed)
            for library in (library for library in LIBRARIES if library in measured):
                text, figure = f"{case.name}: relative error by {library}", _error(measured[library], case)
                bench.report({"case": text, "figure": figure})
            if radius == RADII[-1]:
                bar = 5 if steps > 900 else None
                _against_unrolled(bench, measured, f"{case.name}, {steps} iterations", bar)
    kind, radius, drive, tolerance = LONG
    case = case_of(radius, np.dtype(kind), tolerance, drive=drive)
    systems = [forward(case), ours(case, "implicit", plan="implicit"), ours(case, "taped", plan="taped"), onnx_ad(case)]
    measured = bench.measure(case, systems, at_most=10, rounds=2, seconds=1.0)
    text = f"{case.name}, {_steps(case, tolerance)} iterations"
    bench.claim(f"{text}: times forward", measured["implicit"].ratio, at_most=2.5)
    bench.report({"case": f"{text}: relative error", "figure": _error(measured["implicit"], case)})
    _against_unrolled(bench, measured, text, at_least=5)
    beyond: dict[int, int] = {}
    for steps in (FEW, MANY):
        case = case_of(RADII[0], np.dtype(np.float32), 0.0, cap=steps)
        systems = [forward(case), ours(case, "implicit", sites=("main/solve=implicit",))]
        beyond[steps] = bench.measure(case, systems, at_most=3, rounds=2)["implicit"].beyond
    bench.claim(f"memory at {MANY:,} iterations by that at {FEW}", beyond[MANY] / beyond[FEW], at_most=1.05)
    bench.finish()


def _against_unrolled(bench: Bench, measured: Mapping[str, Measured], case: str, at_least: float | None = None) -> None:
    """How much longer the gradients of the iterations take, each beyond the forward run."""
    own = measured["implicit"].ratio - 1
    for peer in [name for name in ("taped", "onnx-ad") if name in measured]:
        figure, text = (measured[peer].ratio - 1) / own, f"{case}: gradient by {peer}, in units of the implicit one"
        if at_least is None:
            bench.report({"case": text, "figure": figure})
        else:
            bench.claim(text, figure, at_least=at_least)


def case_of(
    radius: float, dtype: np.dtype[Any], tolerance: float, cap: int = 20_000, drive: float = DRIVE, width: int = WIDTH
) -> Case:
    """The loop with a tolerance; without one (0) it runs ``cap`` iterations."""
    kind = helper.np_dtype_to_tensor_dtype(dtype)

    def tensor(name: str, dims: list[int]) -> Any:
        return helper.make_tensor_value_info(name, kind, dims)

    state = [BATCH, width]
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["z", "W"], ["zw"]),
            helper.make_node("Add", ["zw", "driven"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["z_next"]),
            helper.make_node("Sub", ["z_next", "z"], ["change"]),
            helper.make_node("ReduceL2", ["change"], ["norm"], keepdims=0),
            helper.make_node("Greater", ["norm", "tolerance"], ["on"])
            if tolerance
            else helper.make_node("Identity", ["going"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            tensor("z", state),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), tensor("z_next", state)],
    )
    sizes = {"x": [BATCH, INPUTS], "W": [width, width], "U": [INPUTS, width], "b": [width], "probe": state}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "U"], ["xu"]),
            helper.make_node("Add", ["xu", "b"], ["driven"]),
            helper.make_node("Loop", ["cap", "true", "z0"], ["z_end"], name="solve", body=body),
            helper.make_node("Mul", ["z_end", "probe"], ["weighed"]),
            helper.make_node("ReduceSum", ["weighed"], ["loss"], keepdims=0),
        ],
        "equilibrium",
        [tensor(name, dims) for name, dims in sizes.items()],
        [tensor("loss", [])],
        [
            numpy_helper.from_array(np.array(cap), "cap"),
            numpy_helper.from_array(np.array(True), "true"),
            numpy_helper.from_array(np.array(tolerance, dtype), "tolerance"),
            numpy_helper.from_array(np.zeros(state, dtype), "z0"),
        ],
    )
    feeds = {name: value.astype(dtype) for name, value in _feeds(radius, drive, width).items()}
    name = f"radius {radius}, {dtype.name}" if tolerance else f"radius {radius}, {cap:,} iterations"
    return Case(name, recurrent.model_of(graph), feeds, WEIGHTS)


def _feeds(radius: float, drive: float, width: int) -> dict[str, np.ndarray]:
    """A symmetric W, whose spectral radius is the rate of convergence, and inputs so small that tanh keeps it."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((width, width))
    w = w + w.T
    return {
        "x": drive * rng.standard_normal((BATCH, INPUTS)),
        "W": w * (radius / np.abs(np.linalg.eigvalsh(w)).max()),
        "U": rng.standard_normal((INPUTS, width)) / np.sqrt(INPUTS),
        "b": drive * rng.standard_normal(width),
        "probe": rng.standard_normal((BATCH, width)),
    }


def _steps(case: Case, tolerance: float) -> int:
    """How many iterations the loop takes."""
    w, driven = case.feeds["W"], case.feeds["x"] @ case.feeds["U"] + case.feeds["b"]
    z, steps = np.zeros_like(driven), 0
    while True:
        z, before, steps = np.tanh(z @ w + driven), z, steps + 1
        if np.linalg.norm(z - before) <= tolerance:
            return steps


def _error(measured: Measured, case: Case) -> float:
    """The largest relative error of a gradient, from the exact one of the same inputs, by dense solves in float64."""
    feeds = {name: value.astype(np.float64) for name, value in case.feeds.items() if value.dtype.kind == "f"}
    w, driven = feeds["W"], feeds["x"] @ feeds["U"] + feeds["b"]
    z = np.zeros_like(driven)
    while True:
        z, before = np.tanh(z @ w + driven), z
        if np.linalg.norm(z - before) < 1e-13:  # an error of 1e-11 at a radius of 0.99
            break
    slope = 1 - z * z
    rows = [np.linalg.solve(np.eye(len(w)) - w * slope[k], feeds["probe"][k]) for k in range(BATCH)]
    v = np.stack(rows) * slope
    exact = {"x": v @ feeds["U"].T, "W": z.T @ v, "U": feeds["x"].T @ v, "b": v.sum(0)}
    with np.load(measured.outputs) as found:
        return max(
            float(np.linalg.norm(found[f"{name}_grad"] - value) / np.linalg.norm(value))
            for name, value in exact.items()
        )


if __name__ == "__main__":
    main()
