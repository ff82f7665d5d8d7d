"""Loops as one compiled function: forward and gradients, nested and reversed, against ONNX Runtime; and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnx_cfad as cfad
from onnx_cfad.errors import TargetError
from onnx_cfad.graph.regions import is_loop
from onnx_cfad.model import load
from onnx_cfad.targets.onnxruntime import onnxruntime_bodies
from onnx_cfad.targets.tvm.environments import interpreter
from onnx_cfad.targets.tvm.hostprog import run
from onnx_cfad.targets.tvm.partition import partition
from onnx_cfad.targets.tvm.whole_loop import whole, why_not_whole, with_shapes
from onnx_cfad.targets.tvm.worker import Worker
from tests.corpus import CORPUS
from tests.execution import relative_error, run_in_onnxruntime
from tests.targets.tvm.host_corpus import corpus_case

Array = np.ndarray[Any, Any]

NETWORK = """
<ir_version: 9, opset_import: ["" : 18]>
network (float[16,8] h0, float[N,16,4] xs, float[8,8] W, float[4,8] U, float[8] b) => (float loss)
{
    h_end = Scan <num_scan_inputs = 1, body = cell (float[16,8] h, float[16,4] x) => (float[16,8] h_next) {
        recurrent = MatMul (h, W)
        driven = MatMul (x, U)
        sum = Add (recurrent, driven)
        before = Add (sum, b)
        h_next = Tanh (before)
    }> (h0, xs)
    loss = ReduceSum <keepdims = 0> (h_end)
}
"""
FUNCTIONS = """
<ir_version: 9, opset_import: ["" : 18]>
functions (float[N,16] xs) => (float[N,16] tanh, float[N,16] exp, float[N,16] sigmoid)
{
    tanh, exp, sigmoid = Scan <
        num_scan_inputs = 1,
        body = each (float[16] x) => (float[16] a, float[16] b, float[16] c) {
        a = Tanh (x)
        b = Exp (x)
        c = Sigmoid (x)
    }> (xs)
}
"""
ROWS = """
<ir_version: 9, opset_import: ["" : 18]>
rows (float[4,3] x, int64 n, float[3] h0) => (float[3] h)
{
    h = Loop (n, "", h0) <body = step (int64 i, bool on, float[3] s) => (bool go, float[3] t) {
        go = Identity (on)
        row = Gather <axis = 0> (x, i)
        t = Add (s, row)
    }>
}
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker("relax", interpreter("relax"))
    yield made
    made.close()


class Compiled:
    """A model in a worker, as one function for the shapes of each call."""

    def __init__(self, worker: Worker, model: ir.Model, folder: Path) -> None:
        self.worker, self.folder = worker, folder
        self.names = [value.name or "" for value in model.graph.inputs if not value.is_initializer()]
        self.outputs = [value.name or "" for value in model.graph.outputs]
        folder.mkdir()
        onnx.save(ir.to_proto(model), folder / "model.onnx")

    def compiled(self, shapes: dict[str, list[int | None]]) -> str:
        library = str(self.folder / f"{len(list(self.folder.iterdir()))}.so")
        arguments = {"model": str(self.folder / "model.onnx"), "library": library, "shapes": shapes}
        self.worker.call("compile_model", arguments)
        return library

    def run(self, library: str, values: list[Array]) -> list[Array]:
        _, found = self.worker.call("run_library", {"library": library}, {str(k): v for k, v in enumerate(values)})
        return [found[str(k)] for k in range(len(found))]

    def __call__(self, values: Any) -> list[Array]:
        arrays = [np.asarray(value) for value in values]
        shapes: Any = {name: list(array.shape) for name, array in zip(self.names, arrays, strict=True)}
        return self.run(self.compiled(shapes), arrays)


def assert_same(found: dict[str, Any], expected: dict[str, Array]) -> None:
    for name, value in expected.items():
        assert np.asarray(found[name]).shape == value.shape
        if value.dtype.kind == "f":
            error = relative_error(np.asarray(found[name]), value)
            assert error < 1e-5, f"{name}: {error:.1e}"
        else:
            np.testing.assert_array_equal(found[name], value)


CASES = (
    ("loops", "loop_dynamic_trips"),
    ("loops", "loop_zero_trips"),
    ("captures", "loop_captured_at_depth_three"),
    ("carries", "loop_carries_swapped"),
    ("carries", "loop_index_gathers_rows"),
    ("carries", "loop_boolean_carry"),
    ("tapes", "loop_scan_outputs"),
    ("scans", "scan_axes_and_directions"),
    ("scans", "scan_symbolic_length"),
    ("scans", "scan_body_returns_its_slice"),
    ("nests", "scan_in_scan"),
    ("branch_nests", "if_in_loop"),
)


@pytest.mark.relax
@pytest.mark.parametrize("form", ["primal", "taped", "checkpointed"])
@pytest.mark.parametrize(("group", "name"), CASES)
def test_whole_loops_give_what_onnxruntime_gives(
    worker: Worker, group: str, name: str, form: str, tmp_path: Path
) -> None:
    case = corpus_case(CORPUS[group][name], form)
    assert case is not None
    refused: set[str] = set()
    parts = partition(load(case.model), whole)
    bodies: dict[str, Any] = dict(onnxruntime_bodies(parts.bodies))
    loops = [name for name, body in parts.bodies.items() if any(is_loop(node) for node in body.graph)]
    assert loops

    def body(name: str, number: int) -> Any:
        compiled, reference = Compiled(worker, parts.bodies[name], tmp_path / str(number)), bodies[name]

        def call(values: Any) -> Any:
            try:
                return compiled(values)
            except TargetError as error:
                if "failed" in str(error):  # a refusal says why
                    raise
                refused.add(name)
                return reference(values)

        return call

    wrapped = {**bodies, **{name: body(name, number) for number, name in enumerate(loops)}}
    assert_same(run(parts.program, wrapped, case.feeds), run_in_onnxruntime(case.model, case.feeds))
    assert len(refused) < len(loops) or form == "checkpointed"


def network(steps: int, plan: str) -> tuple[ir.Model, dict[str, Array]]:
    """The gradient of a recurrent network, over a length that the model leaves open."""
    rng = np.random.default_rng(0)
    shapes = {"h0": (16, 8), "xs": (steps, 16, 4), "W": (8, 8), "U": (4, 8), "b": (8,)}
    feeds = {name: (0.3 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}
    model = onnx.parser.parse_model(NETWORK)
    if plan == "checkpointed":  # segments of a length that is known
        model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = steps
    gradient = cfad.grad(model, loss="loss", wrt=("h0", "W", "U", "b"), plan=plan)
    return load(gradient.proto()), feeds


@pytest.mark.relax
@pytest.mark.parametrize("plan", ["taped", "checkpointed"])
def test_gradient_of_a_network_is_one_function(worker: Worker, plan: str, tmp_path: Path) -> None:
    model, feeds = network(150, plan)
    compiled = Compiled(worker, with_shapes(model), tmp_path / "network")
    found = compiled([feeds[name] for name in compiled.names])
    assert_same(dict(zip(compiled.outputs, found, strict=True)), run_in_onnxruntime(ir.to_proto(model), feeds))


@pytest.mark.relax
def test_one_function_for_every_length(worker: Worker, tmp_path: Path) -> None:
    model = load(onnx.parser.parse_model(NETWORK))
    compiled = Compiled(worker, with_shapes(model), tmp_path / "network")
    library = compiled.compiled({})
    for steps in (1, 7, 40):
        _, feeds = network(steps, "taped")
        found = compiled.run(library, [feeds[name] for name in compiled.names])
        assert_same(dict(zip(compiled.outputs, found, strict=True)), run_in_onnxruntime(ir.to_proto(model), feeds))


@pytest.mark.relax
def test_functions_are_right_at_every_size(worker: Worker, tmp_path: Path) -> None:
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-30,
        -1e-8,
        3e38,
        88.7,
        88.8,
        -87.0,
        -87.5,
        -104.0,
        9.5,
        -9.5,
        1e-3,
    ]
    x = np.concatenate([np.array(special, np.float32), np.linspace(-95, 95, 1600, dtype=np.float32)]).reshape(-1, 16)
    compiled = Compiled(worker, with_shapes(load(onnx.parser.parse_model(FUNCTIONS))), tmp_path / "functions")
    found = compiled([x])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        expected = [np.tanh(wide), np.exp(wide), 1 / (1 + np.exp(-wide))]
        for name, value, exact in zip(compiled.outputs, found, expected, strict=True):
            np.testing.assert_allclose(
                value, exact.astype(np.float32), rtol=1e-6, atol=1.2e-38 if name == "sigmoid" else 3e-45, err_msg=name
            )


@pytest.mark.relax
def test_no_row_outside_of_a_tensor_is_read(worker: Worker, tmp_path: Path) -> None:
    compiled = Compiled(worker, with_shapes(load(onnx.parser.parse_model(ROWS))), tmp_path / "rows")
    x, h0 = np.arange(12, dtype=np.float32).reshape(4, 3), np.zeros(3, np.float32)
    library = compiled.compiled({})
    for trips in (-1, 0, 2, 4):
        (h,) = compiled.run(library, [x, np.array(trips), h0])
        np.testing.assert_array_equal(h, x[: max(trips, 0)].sum(0))
    (h,) = compiled.run(library, [x, np.array(6), h0])
    np.testing.assert_array_equal(h, x.sum(0) + 2 * x[3])


@pytest.mark.relax
@pytest.mark.parametrize("wrong", [np.zeros((4, 2), np.float32), np.zeros((4, 3)), np.zeros(12, np.float32)])
def test_an_array_of_another_shape_or_type_is_refused(worker: Worker, tmp_path: Path, wrong: Array) -> None:
    compiled = Compiled(worker, with_shapes(load(onnx.parser.parse_model(ROWS))), tmp_path / "rows")
    library = compiled.compiled({})
    with pytest.raises(TargetError, match="input 'x' is .*expected float32"):
        compiled.run(library, [wrong, np.array(2), np.zeros(3, np.float32)])


REASONS = {
    ("loops", "loop_dynamic_stop"): "computes the condition that ends it",
    ("loops", "loop_no_limit"): "has no trip limit",
    ("loops", "loop_zero_trips_by_condition"): "computes its initial condition",
    ("sequences", "sequence_carried"): "is no tensor",
    ("shapes", "growing_carry_static"): "may change its shape",
    ("branch_nests", "if_in_loop_shapes_differ"): "depends on a branch",
}


@pytest.mark.parametrize(("group", "name"), list(REASONS))
def test_what_a_loop_decides_while_it_runs_stays_with_the_host(group: str, name: str) -> None:
    model = with_shapes(load(CORPUS[group][name]("float").model))
    reasons = [why_not_whole(node) for node in model.graph if is_loop(node)]
    assert any(REASONS[group, name] in (reason or "") for reason in reasons), reasons


def test_random_draws_are_refused() -> None:
    with pytest.raises(TargetError, match="draws random numbers"):
        with_shapes(load(CORPUS["draws"]["random_draw_in_body"]("float").model))


def test_a_branch_stays_with_the_host() -> None:
    model = with_shapes(load(CORPUS["branches"]["if_captures"]("float").model))
    (branch,) = [node for node in model.graph if node.op_type == "If"]
    assert "is no loop" in str(why_not_whole(branch))
