"""Measures libraries whose fixed points are differentiated implicitly, as measured_run does an ONNX model.

``measured_implicit.py NAME TOLERANCE FEEDS.npz SETTINGS`` prints one JSON object; NAME is jaxopt, optimistix or
torchdeq. All iterate z = tanh(z W + x U + b) from zero until the 2-norm of its change is at most TOLERANCE, and solve
the adjoint system to a relative tolerance by type, with the solver named here. JAX compiles before the first run
(``create_cpu_s``); PyTorch runs eagerly, its state as one row, so that its norm is that of the whole state.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import repeated

CAP = 3_000  # iterations and steps of a solver; torchdeq fills its traces up to it, which takes time
WRT = ("x", "W", "U", "b")
ADJOINT_TOLERANCE = {"float32": 4e-6, "float64": 1e-12}  # relative, as this package's

Arrays = Mapping[str, Any]


def main() -> None:
    name, tolerance, feeds, settings = sys.argv[1], float(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    with np.load(feeds) as arrays:
        inputs = {key: arrays[key] for key in (*WRT, "probe")}
    adjoint_tolerance = ADJOINT_TOLERANCE[inputs["x"].dtype.name]
    started, started_cpu = time.perf_counter(), time.process_time()
    if name == "torchdeq":
        gradients, packages = _torchdeq(inputs, tolerance, adjoint_tolerance), ("torchdeq", "torch")
    else:
        solve = {"jaxopt": _jaxopt, "optimistix": _optimistix}[name]
        gradients, packages = _jax(inputs, solve(tolerance, adjoint_tolerance)), (name, "jax")
    create = {"create_s": time.perf_counter() - started, "create_cpu_s": time.process_time() - started_cpu}
    runs, outputs = repeated.repeat(gradients, settings["at_most"], settings["seconds"])
    found: dict[str, Any] = {f"{key}_grad": np.asarray(value) for key, value in zip(WRT, outputs, strict=True)}
    size = {
        "input_bytes": sum(value.nbytes for value in inputs.values()),
        "output_bytes": sum(value.nbytes for value in found.values()),
    }
    if settings.get("save"):
        np.savez(settings["save"], **found)
    versions = {package: importlib.metadata.version(package) for package in packages}
    print(json.dumps({**create, **dataclasses.asdict(runs), **size, "versions": versions}))


def _jax(inputs: Mapping[str, np.ndarray], solve: Callable[..., Any]) -> Callable[[], Any]:
    """The compiled gradient, on one thread."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", inputs["x"].dtype == np.float64)  # else optimistix mixes types
    arrays = [jax.numpy.asarray(inputs[name]) for name in (*WRT, "probe")]

    def loss(x: Any, w: Any, u: Any, b: Any, probe: Any) -> Any:
        return (solve(jax.numpy.zeros_like(probe), w, x @ u + b) * probe).sum()

    compiled = jax.jit(jax.grad(loss, argnums=range(len(WRT)))).lower(*arrays).compile()
    return lambda: jax.block_until_ready(compiled(*arrays))


def _jaxopt(tolerance: float, adjoint_tolerance: float) -> Callable[..., Any]:
    """FixedPointIteration with BiCGStab; its default, CG on the normal equations, squares the condition."""
    jaxopt = importlib.import_module("jaxopt")
    numpy = importlib.import_module("jax.numpy")
    adjoint = functools.partial(jaxopt.linear_solve.solve_bicgstab, tol=adjoint_tolerance, maxiter=CAP)

    def step(z: Any, w: Any, driven: Any) -> Any:
        return numpy.tanh(z @ w + driven)

    iteration = jaxopt.FixedPointIteration(
        step, maxiter=CAP, tol=tolerance, implicit_diff=True, implicit_diff_solve=adjoint
    )
    return lambda *arguments: iteration.run(*arguments).params


def _optimistix(tolerance: float, adjoint_tolerance: float) -> Callable[..., Any]:
    """fixed_point with GMRES: the default makes the Jacobian, 4,096 by 4,096; float32 BiCGStab reports a breakdown."""
    optimistix, lineax = importlib.import_module("optimistix"), importlib.import_module("lineax")
    numpy = importlib.import_module("jax.numpy")
    iteration = optimistix.FixedPointIteration(rtol=0.0, atol=tolerance, norm=optimistix.two_norm)
    linear = lineax.GMRES(adjoint_tolerance, adjoint_tolerance, norm=optimistix.rms_norm, max_steps=CAP)
    adjoint = optimistix.ImplicitAdjoint(linear_solver=linear)

    def step(z: Any, args: Any) -> Any:
        return numpy.tanh(z @ args[0] + args[1])

    def solve(start: Any, w: Any, driven: Any) -> Any:
        return optimistix.fixed_point(step, iteration, start, (w, driven), adjoint=adjoint, max_steps=CAP).value

    return solve


def _torchdeq(inputs: Mapping[str, np.ndarray], tolerance: float, adjoint_tolerance: float) -> Callable[[], Any]:
    """get_deq with implicit differentiation, both ways by fixed-point iteration, as the loop itself."""
    torch, torchdeq = importlib.import_module("torch"), importlib.import_module("torchdeq")
    torch.set_num_threads(1)
    arrays = {name: torch.from_numpy(value) for name, value in inputs.items()}
    leaves = [arrays[name].requires_grad_(True) for name in WRT]
    x, w, u, b = leaves
    probe = arrays["probe"]
    deq = torchdeq.get_deq(
        ift=True,
        f_solver="fixed_point_iter",
        f_max_iter=CAP,
        f_tol=tolerance,
        f_stop_mode="abs",
        b_solver="fixed_point_iter",
        b_max_iter=CAP,
        b_tol=adjoint_tolerance,
        b_stop_mode="rel",
    )

    def gradients() -> Any:
        driven = x @ u + b

        def step(z: Any) -> Any:
            return torch.tanh(z.view(probe.shape) @ w + driven).view(1, -1)

        row = torch.zeros(1, probe.numel(), dtype=probe.dtype)
        results, _ = deq(step, row)
        loss = (results[-1].view(probe.shape) * probe).sum()
        return [value.detach() for value in torch.autograd.grad(loss, leaves)]

    return gradients


if __name__ == "__main__":
    main()
