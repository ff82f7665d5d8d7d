"""One-node gradients and tangents in float32 and float16 in ONNX Runtime, against the same ones in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import RUNNERS, Array, check_emitted, node_model

TOLERANCE: dict[Any, float] = {np.float32: 2e-5, np.float16: 2e-2}


def assert_same_gradient(
    node: onnx.NodeProto,
    feeds: Mapping[str, Array],
    *,
    wrt: Sequence[str],
    dtype: type,
    runner: str,
    seeded: Sequence[str] | None = None,
    tolerance: float | None = None,
    check: bool = True,
    **build: Any,
) -> None:
    """Asserts that gradient and tangents of ``node`` in ``dtype`` by ONNX Runtime are those in float64 by ``runner``.

    Args:
        node: Reads ``feeds``.
        feeds: Inputs in float64; they are rounded to ``dtype`` for both.
        wrt: Inputs to differentiate by.
        dtype: Element type, NumPy's.
        runner: "ort" or "reference", for float64.
        seeded: Outputs to differentiate.
        tolerance: Relative to the largest element; default by ``dtype``.
        check: Also check the emitted model's validity.
        build: For ``node_model``.
    """
    narrow = {k: a.astype(dtype) if a.dtype.kind == "f" else a for k, a in feeds.items()}
    wide = {k: a.astype(np.float64) if a.dtype.kind == "f" else a for k, a in narrow.items()}
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    typed = {name: elem for name in node.output if name}
    model = node_model(node, narrow, outputs=typed, **build)
    if check:
        check_emitted(cfad.vjp(model, wrt=wrt, outputs=seeded).proto())
        check_emitted(cfad.jvp(model, wrt=wrt, outputs=seeded).proto())
    wide_model = node_model(node, wide, **build)
    for derived in (_gradients, _tangents):
        found = derived(model, narrow, wrt, seeded, "ort")
        expected = derived(wide_model, wide, wrt, seeded, runner)
        for name, value in found.items():
            assert value.dtype == dtype
            scale = float(np.abs(expected[name]).max(initial=0.0))
            error = float(np.abs(value.astype(np.float64) - expected[name]).max(initial=0.0))
            limit = TOLERANCE[dtype] if tolerance is None else tolerance
            assert error <= limit * max(scale, 1e-3), f"{name}: {value} against {expected[name]}"


def _tangents(
    model: onnx.ModelProto, feeds: Mapping[str, Array], wrt: Sequence[str], seeded: Sequence[str] | None, runner: str
) -> dict[str, Array]:
    derived = cfad.jvp(model, wrt=wrt, outputs=seeded)
    rng = np.random.default_rng(8)
    along = {derived.report.tangents[n]: rng.standard_normal(feeds[n].shape) for n in wrt}
    typed = {n: np.asarray(a).astype(feeds[wrt[0]].dtype) for n, a in along.items()}
    results = RUNNERS[runner](derived.proto(), {**feeds, **typed})
    return {name: results[name] for name in derived.report.pushed.values()}


def _gradients(
    model: onnx.ModelProto, feeds: Mapping[str, Array], wrt: Sequence[str], seeded: Sequence[str] | None, runner: str
) -> dict[str, Array]:
    emitted = cfad.vjp(model, wrt=wrt, outputs=seeded).proto()
    run = RUNNERS[runner]
    primal = run(model, feeds)
    rng = np.random.default_rng(7)
    names = [i.name for i in emitted.graph.input if i.name not in feeds]
    seeds = {n: np.asarray(rng.standard_normal(primal[n[: -len("_grad")]].shape)) for n in names}
    typed = {n: a.astype(primal[n[: -len("_grad")]].dtype) for n, a in seeds.items()}
    results = run(emitted, {**feeds, **typed})
    return {name: results[f"{name}_grad"] for name in wrt}
