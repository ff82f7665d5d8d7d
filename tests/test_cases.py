"""Small models after public bug reports, against references made without this package.

``cases.json`` says what each tests and what must come out. ``NAME.npz`` holds ``in_*``, ``out_*``, ``cot_*`` (seeds),
``grad_*`` (wrt inputs), ``gradinit_*`` (wrt initializers), ``hess_*`` (second order) and ``allow_*`` (another accepted
subgradient), all in float64; ``NAME.onnx`` is the model in float32, ``NAME_f64.onnx`` in float64.
"""

from __future__ import annotations

import functools
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

import onnx_cfad
from tests.execution import operators, relative_error, run_in_onnxruntime, run_in_reference

FOLDER = pathlib.Path(__file__).parents[2] / "shared" / "cases"
SUFFIX = {"float32": "", "float64": "_f64"}
FLOAT64_TOLERANCE = 1e-7
CASES: dict[str, dict[str, Any]] = (
    {case["name"]: case for case in json.loads((FOLDER / "cases.json").read_text())} if FOLDER.is_dir() else {}
)
LONG = ("long_loop_100k", "memory_captured_const")
# What the text of a refusal must name, where a refusal is asked for or allowed: operators, nodes or values.
NAMED_IN_ERROR = {
    "branch_output_is_outer_name_invalid": ("If", "e"),
    "if_det_active_unsupported": ("Det",),
    "random_in_body_recompute": ("RandomUniformLike",),
    "shadowed_subgraph_input": ("x",),
}
TAPE_OF_MEMORY_CASE = 3000 * 200 * 200 * 4  # bytes

pytestmark = pytest.mark.skipif(not CASES, reason="the folder of reference cases is absent")


def each_dtype(*expectations: str) -> pytest.MarkDecorator:
    """One test for each case that expects one of ``expectations`` and each element type."""
    names = [name for name, case in CASES.items() if case["expect"] in expectations]
    return pytest.mark.parametrize(
        ("name", "dtype"),
        [
            pytest.param(name, dtype, id=f"{name}-{dtype}", marks=[pytest.mark.slow] if name in LONG else [])
            for name in names
            for dtype in SUFFIX
        ],
    )


def path_of(name: str, dtype: str) -> pathlib.Path:
    return FOLDER / f"{name}{SUFFIX[dtype]}.onnx"


@functools.cache
def arrays_of(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as stored:
        return {key: stored[key] for key in stored.files}


def in_dtype(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(dtype) if array.dtype == np.float64 else array


def feeds_of(name: str, dtype: str) -> dict[str, np.ndarray]:
    """The inputs and the seeds."""
    arrays = arrays_of(name)
    inputs = {key[3:]: in_dtype(array, dtype) for key, array in arrays.items() if key.startswith("in_")}
    return inputs | {f"{key}_grad": in_dtype(arrays[f"cot_{key}"], dtype) for key in CASES[name]["outputs_seeded"]}


def tolerance_of(name: str, dtype: str) -> float:
    return CASES[name]["tol"] if dtype == "float32" else FLOAT64_TOLERANCE


def differentiate(name: str, dtype: str) -> ModelProto | None:
    """The differentiated model, or None where the case allows a clear error and that is what came."""
    case = CASES[name]
    wrt = [*case["wrt"], *case.get("wrt_init", [])]
    try:
        return onnx_cfad.vjp(path_of(name, dtype), wrt=wrt, outputs=case["outputs_seeded"]).proto()
    except onnx_cfad.CfadError as error:
        if "clear error" not in case["expect"]:
            raise
        check_error(name, error)
        return None


def check_error(name: str, error: onnx_cfad.CfadError) -> None:
    for word in NAMED_IN_ERROR[name]:
        assert re.search(rf"\b{word}\b", str(error)), f"the error does not name {word}: {error}"


def run(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """In ONNX Runtime, except for Det, which has no kernel there."""
    return run_in_reference(model, feeds) if "Det" in operators(model) else run_in_onnxruntime(model, feeds)


@each_dtype("gradient", "gradient or clear error")
def test_gradient_matches_reference(name: str, dtype: str) -> None:
    gradient = differentiate(name, dtype)
    if gradient is None:
        return
    results = run(gradient, feeds_of(name, dtype))
    arrays = arrays_of(name)
    for key in CASES[name]["wrt"]:
        accepted = [arrays[f"grad_{key}"], *(arrays[k] for k in arrays if re.fullmatch(rf"allow_{key}_\d+", k))]
        check_gradient(key, results, accepted, tolerance_of(name, dtype))
    for key in CASES[name].get("wrt_init", []):
        check_gradient(key, results, [arrays[f"gradinit_{key}"]], tolerance_of(name, dtype))


def check_gradient(key: str, results: Mapping[str, np.ndarray], accepted: list[np.ndarray], tolerance: float) -> None:
    found = results[f"{key}_grad"]
    errors = [relative_error(found, expected) for expected in accepted]
    assert found.shape == accepted[0].shape
    assert min(errors) <= tolerance, (
        f"gradient by '{key}': {found}, expected {accepted}: relative error {min(errors):.2e}"
    )


@each_dtype("gradient", "gradient or clear error")
def test_primal_outputs_are_bit_equal(name: str, dtype: str) -> None:
    gradient = differentiate(name, dtype)
    if gradient is None:
        return
    results = run(gradient, feeds_of(name, dtype))
    model = onnx.load(path_of(name, dtype))
    inputs = [value.name for value in model.graph.input]
    for key, expected in run(model, {k: feeds_of(name, dtype)[k] for k in inputs}).items():
        assert results[key].dtype == expected.dtype
        assert np.array_equal(results[key], expected, equal_nan=True), f"output '{key}' is not what the model gives"


@each_dtype("gradient", "gradient or clear error", "gradient (self-consistent) or clear error")
def test_emitted_model_passes_the_full_check(name: str, dtype: str) -> None:
    gradient = differentiate(name, dtype)
    if gradient is None:
        return
    onnx.checker.check_model(gradient, full_check=True)
    onnx.shape_inference.infer_shapes(gradient, check_type=True, strict_mode=True, data_prop=True)


@each_dtype("clear error")
def test_invalid_model_is_refused_by_name(name: str, dtype: str) -> None:
    with pytest.raises(onnx_cfad.CfadError) as caught:
        onnx_cfad.vjp(path_of(name, dtype), wrt=CASES[name]["wrt"], outputs=CASES[name]["outputs_seeded"])
    check_error(name, caught.value)


@each_dtype("gradient (self-consistent) or clear error")
def test_gradient_uses_the_draws_of_the_same_run(name: str, dtype: str) -> None:
    """s' = sin(s r) with r drawn in every step: the derivative is the product of r cos(s r) over the returned draws."""
    gradient = differentiate(name, dtype)
    if gradient is None:
        return
    feeds = feeds_of(name, dtype)
    results = run(gradient, feeds)
    s, derivative = feeds["x"].astype(np.float64), np.ones(3)
    for r in results["rs"].astype(np.float64):
        derivative *= r * np.cos(s * r)
        s = np.sin(s * r)
    assert relative_error(results["y"], s) <= 1e-6
    expected = feeds["y_grad"].astype(np.float64) * derivative
    check_gradient("x", results, [expected], tolerance_of(name, "float32"))  # the kernel draws in float32


@pytest.mark.parametrize("dtype", SUFFIX)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["order"] == 2])
def test_hessian_is_the_gradient_of_the_gradient(name: str, dtype: str) -> None:
    (wrt,) = CASES[name]["wrt"]
    first = differentiate(name, dtype)
    assert first is not None
    rename_output(first, f"{wrt}_grad", "slope")
    second = onnx_cfad.vjp(first, wrt=[wrt], outputs=["slope"]).proto()
    hessian = arrays_of(name)[f"hess_{wrt}"]
    rows = [
        run(second, feeds_of(name, dtype) | {"slope_grad": row})[f"{wrt}_grad"]
        for row in np.eye(len(hessian), dtype=dtype)
    ]
    assert relative_error(np.stack(rows), hessian) <= tolerance_of(name, dtype)


def rename_output(model: ModelProto, old: str, new: str) -> None:
    """Gives an output another name by way of an Identity, so that ``old`` may name the next gradient."""
    for node in model.graph.node:
        node.output[:] = [f"{name}.inner" if name == old else name for name in node.output]
        node.input[:] = [f"{name}.inner" if name == old else name for name in node.input]
    model.graph.node.append(helper.make_node("Identity", [f"{old}.inner"], [new]))
    for value in model.graph.output:
        value.name = new if value.name == old else value.name


# getrusage will not do: its peak is that of the parent where that was larger.
MEASURE = """
import pathlib, re, sys
import numpy as np, onnxruntime

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feeds = dict(np.load(sys.argv[2]))
before = peak()
session.run(None, feeds)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_captured_constant_is_not_taped(tmp_path: pathlib.Path) -> None:
    """The peak of memory while the gradient runs, in a process of its own, stays far below one [N, 200, 200] tape."""
    name = "memory_captured_const"
    gradient = differentiate(name, "float32")
    assert gradient is not None
    onnx.save(gradient, tmp_path / "gradient.onnx")
    np.savez(tmp_path / "feeds.npz", allow_pickle=False, **feeds_of(name, "float32"))
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "gradient.onnx"), str(tmp_path / "feeds.npz")]
    growth = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert growth < TAPE_OF_MEMORY_CASE / 8, f"the peak grew by {growth} bytes"
