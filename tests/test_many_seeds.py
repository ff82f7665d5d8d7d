"""Many seeds in one run: K rows equal K single runs and float64 differences; the primal and its tapes run once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import onnx_cfad as cfad
from onnx_cfad.cli import app
from onnx_cfad.testing import check_vjp
from tests.corpus import CORPUS
from tests.oracle import DOUBLE, check_emitted, node_model, run_ort

Array = np.ndarray[Any, Any]
K = 3

MODELS = {name: maker for group in CORPUS.values() for name, maker in group.items()}
CHOSEN = (
    "loop_static", "loop_dynamic_stop", "loop_zero_trips", "loop_scan_outputs", "loop_captured_weight",
    "loop_in_loop_stops_early", "if_captures", "if_ranks_differ", "if_in_loop", "scan_axes_and_directions",
    "scan_in_loop", "loop_with_stop_in_scan", "scan_in_if_in_loop", "sequence_carried", "optional_in_branch",
    "growing_carry", "carry_changes_rank", "unranked_carry", "unranked_early_exit", "empty_tensors",
    "symbolic_dims_with_broadcasting", "names_that_look_generated", "fixed_point_equilibrium",
)  # fmt: skip


def single_and_many(mode: str, model: onnx.ModelProto, seeds: int | str, **options: Any) -> tuple[Any, Any]:
    derive: Callable[..., Any] = cfad.vjp if mode == "reverse" else cfad.jvp
    return derive(model, **options), derive(model, seeds=seeds, **options)


def assert_rows_are_single_runs(
    mode: str, model: onnx.ModelProto, feeds: Mapping[str, Array], seeds: int | str = K, **options: Any
) -> onnx.ModelProto:
    """Asserts that each row is what one run gives, and that primal outputs are those of the original bit for bit."""
    one, many = single_and_many(mode, model, seeds, **options)
    proto, report = many.proto(), one.report
    check_emitted(proto)
    primal, rng = run_ort(model, feeds), np.random.default_rng(0)
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer} | {**feeds} | primal
    inputs, results = (report.seeds, report.gradients) if mode == "reverse" else (report.tangents, report.pushed)
    stacks = {
        given: rng.standard_normal((K, *np.shape(values[name]))).astype(values[name].dtype)
        for name, given in inputs.items()
    }
    found = run_ort(proto, {**feeds, **stacks})
    for row in range(K):
        expected = run_ort(one.proto(), {**feeds, **{name: np.asarray(stack[row]) for name, stack in stacks.items()}})
        for name in results.values():
            assert found[name].shape == (K, *expected[name].shape)
            np.testing.assert_allclose(found[name][row], expected[name], rtol=1e-9, atol=1e-12)
    for name, value in primal.items():
        if not isinstance(value, list) and "checkpointed" not in options.values():
            np.testing.assert_array_equal(found[name], value)
    return proto


@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("name", CHOSEN)
def test_rows_are_what_single_runs_give(name: str, mode: str) -> None:
    example = MODELS[name]()
    assert_rows_are_single_runs(mode, example.model, example.feeds, wrt=example.wrt, outputs=example.outputs)


REST = [name for name in MODELS if name not in (*CHOSEN, *CORPUS["draws"], "loop_long")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), [*zip(REST, itertools.cycle(["reverse", "forward"]), strict=False)])
def test_rows_are_what_single_runs_give_on_the_whole_corpus(name: str, mode: str) -> None:
    """Each model in one of the modes, which take turns."""
    example = MODELS[name]()
    assert_rows_are_single_runs(mode, example.model, example.feeds, "k", wrt=example.wrt, outputs=example.outputs)


@pytest.mark.parametrize("plan", ["taped", "checkpointed", "unrolled"])
def test_every_plan(plan: str) -> None:
    example = MODELS["loop_static"]()
    assert_rows_are_single_runs("reverse", example.model, example.feeds, wrt=example.wrt, plan=plan)


def jacobian(model: onnx.ModelProto, feeds: Mapping[str, Array], wrt: str, output: str) -> Array:
    """[output size, input size] by central differences."""
    columns: list[Array] = []
    for index in np.ndindex(feeds[wrt].shape):
        step = np.zeros_like(feeds[wrt])
        step[index] = 1e-6
        ahead, behind = (run_ort(model, {**feeds, wrt: feeds[wrt] + s * step})[output] for s in (1, -1))
        columns.append((ahead - behind).ravel() / 2e-6)
    return np.stack(columns, axis=1)


STRAIGHT = """<ir_version: 10, opset_import: ["": 21]> m (double[3] x, double[2, 3] w) => (double[2] y) {
    u = Sin (x)
    v = MatMul (w, u)
    y = Tanh (v)
}"""


def straight_line() -> onnx.ModelProto:
    return onnx.parser.parse_model(STRAIGHT)


@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("seeds", ["fixed", "directions"])
@pytest.mark.parametrize("name", ["straight line", "loop_static", "scan_one_state", "if_captures", "loop_in_loop"])
def test_seeds_of_ones_give_the_jacobian(name: str, seeds: str, mode: str) -> None:
    if name == "straight line":
        model = straight_line()
        feeds = {"x": np.asarray([0.3, -1.2, 0.7]), "w": np.arange(6.0).reshape(2, 3) / 5 - 0.4}
        wrt = "x"
    else:
        example = MODELS[name]()
        model, feeds, wrt = example.model, example.feeds, example.wrt[0]
    primal = run_ort(model, feeds)
    output = next(n for n, v in primal.items() if v.dtype == np.float64)
    shape = primal[output].shape if mode == "reverse" else feeds[wrt].shape
    size = int(np.prod(shape))
    _, many = single_and_many(mode, model, size if seeds == "fixed" else seeds, wrt=[wrt], outputs=[output])
    ones = np.eye(size).reshape(size, *shape)
    given = many.report.seeds[output] if mode == "reverse" else many.report.tangents[wrt]
    result = many.report.gradients[wrt] if mode == "reverse" else many.report.pushed[output]
    found = run_ort(many.proto(), {**feeds, given: ones})[result].reshape(size, -1)
    expected = jacobian(model, feeds, wrt, output)
    np.testing.assert_allclose(found if mode == "reverse" else found.T, expected, atol=1e-7, rtol=1e-6)


def operators_outside(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node if node.op_type not in ("Scan", "Constant")]


def test_what_does_not_depend_on_the_seeds_runs_once() -> None:
    """The factor 1 - y * y is outside; inside is what takes the seed."""
    proto = cfad.vjp(straight_line(), wrt=["x"], seeds="k").proto()
    (node,) = [n for n in proto.graph.node if n.op_type == "Scan"]
    inside = {n.op_type for a in node.attribute if a.name == "body" for n in a.g.node}
    assert {"Sin", "Tanh", "Cos"} <= set(operators_outside(proto))
    assert inside.isdisjoint({"Sin", "Tanh", "Cos", "Sub"})


def test_a_loop_is_taped_once() -> None:
    """Its Sin and Cos are not in the body of the seeds' Scan, whose loop reads the tape."""
    proto = cfad.vjp(MODELS["loop_static"]().model, plan="taped", seeds=K).proto()
    assert sum(node.op_type in ("Loop", "Scan") for node in proto.graph.node) == 2
    single = cfad.vjp(MODELS["loop_static"]().model, plan="taped").proto()
    forward, emitted = (next(n for n in p.graph.node if n.op_type in ("Loop", "Scan")) for p in (single, proto))
    assert [n.op_type for n in forward.attribute[0].g.node] == [n.op_type for n in emitted.attribute[0].g.node]


def test_axis_is_declared() -> None:
    def dims(value: onnx.ValueInfoProto) -> list[int | str]:
        return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]

    for seeds in (4, "directions"):
        proto = cfad.vjp(straight_line(), wrt=["x"], seeds=seeds).proto()
        assert dims(proto.graph.input[-1]) == [seeds, 2]
        assert dims(proto.graph.output[-1]) == [seeds, 3]
    assert cfad.jvp(straight_line(), wrt=["x"], seeds=4).report.directions == 4


def test_a_gradient_of_zero_has_a_row_for_each_seed() -> None:
    nodes = [helper.make_node("Sin", ["x"], ["y"]), helper.make_node("Cos", ["z"], ["v"])]
    feeds = {"x": np.ones(2), "z": np.ones(3)}
    model = node_model(nodes, feeds, outputs={"y": DOUBLE, "v": DOUBLE})
    found = run_ort(cfad.vjp(model, wrt=["z"], outputs=["y"], seeds=K).proto(), {**feeds, "y_grad": np.ones((K, 2))})
    np.testing.assert_array_equal(found["z_grad"], np.zeros((K, 3)))


def test_clipping_is_of_each_seed_alone() -> None:
    feeds = {"x": np.asarray([0.3, -1.2, 0.7]), "w": np.ones((2, 3))}
    assert_rows_are_single_runs("reverse", straight_line(), feeds, wrt=["x", "w"], clip_norm=0.5)


def test_draws_in_a_loop_are_taped_in_reverse_and_refused_in_forward_mode() -> None:
    example = MODELS["random_draw_in_body"]()
    cfad.vjp(example.model, wrt=example.wrt, seeds=K)
    with pytest.raises(cfad.PlanError, match="main/.*draws random numbers"):
        cfad.jvp(example.model, wrt=example.wrt, seeds=K)


@pytest.mark.parametrize("seeds", [0, -1, True, "2k", "", "a b"])
def test_wrong_numbers_are_refused(seeds: Any) -> None:
    with pytest.raises(cfad.ModelError, match="number from 1 .*the name of a dimension"):
        cfad.vjp(straight_line(), seeds=seeds)


def test_the_name_of_a_dimension_of_the_model_is_refused() -> None:
    model = node_model(helper.make_node("Sin", ["x"], ["y"]), {"x": np.ones(2)}, outputs={"y": DOUBLE}, dims="symbolic")
    with pytest.raises(cfad.ModelError, match="dimension of this name"):
        cfad.vjp(model, seeds="x_0")


def test_what_has_no_seed_or_one_solve_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Sin", ["x"], ["t"]), helper.make_node("ReduceSum", ["t"], ["loss"], keepdims=0)]
    path = tmp_path / "m.onnx"
    onnx.save(node_model(nodes, {"x": np.ones(3)}, outputs={"loss": DOUBLE}), path)
    for arguments, what in (
        (["--loss", "loss"], "loss 'loss'"),
        (["--loss", "loss", "--mode", "hvp"], "seeds: "),
        (["--implicit-outputs"], "implicit_outputs"),
    ):
        result = CliRunner().invoke(app, ["transform", str(path), "--seeds", "4", *arguments])
        assert (result.exit_code, what in result.stderr) == (2, True), result.stderr
    assert not list(tmp_path.glob("*.*.onnx"))


def test_sequences_have_no_axis_for_seeds() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> m (seq(double[2]) s, double[2] x) => (double[2] y) {
        zero = Constant <value = int64 {0}> ()
        e = SequenceAt (s, zero)
        y = Mul (e, x)
    }"""
    model = onnx.parser.parse_model(text)
    with pytest.raises(cfad.ModelError, match="wrt 's'"):
        cfad.vjp(model, wrt=["s"], seeds=K)
    proto = cfad.vjp(model, wrt=["x"], seeds=K).proto()
    sequence: Any = [np.asarray([2.0, 3.0])]
    found = run_ort(proto, {"s": sequence, "x": np.ones(2), "y_grad": np.ones((K, 2))})
    np.testing.assert_array_equal(found["x_grad"], np.tile([2.0, 3.0], (K, 1)))


@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("seeds", [1, 4, "k"])
def test_validate_checks_every_row(mode: str, seeds: int | str) -> None:
    model = straight_line()
    _, many = single_and_many(mode, model, seeds, wrt=["x"])
    assert cfad.validate(model, many).holds
    loop = MODELS["loop_static"]().model
    assert cfad.validate(loop, single_and_many(mode, loop, seeds)[1]).holds


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_validate_finds_rows_in_the_wrong_order(mode: str) -> None:
    model = straight_line()
    proto = single_and_many(mode, model, K, wrt=["x"])[1].proto()
    (scan,) = [node for node in proto.graph.node if node.op_type == "Scan"]
    scan.attribute.append(helper.make_attribute("scan_output_directions", [1]))
    assert not cfad.validate(model, proto).holds


def test_validate_makes_up_the_seeds() -> None:
    many = cfad.vjp(straight_line(), wrt=["x"], seeds=K)
    with pytest.raises(cfad.ModelError, match="input 'y_grad'"):
        cfad.validate(straight_line(), many, {"x": np.ones(3), "w": np.ones((2, 3)), "y_grad": np.ones((K, 2))})


def test_it_differentiates_again() -> None:
    """The derivative of the rows by x, which the Scan captures."""
    many = cfad.vjp(straight_line(), wrt=["x"], seeds=K).proto()
    check_vjp(many, wrt=["x", "y_grad"], outputs=["x_grad"])


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(straight_line(), path)
    runner = CliRunner()
    result = runner.invoke(app, ["transform", str(path), "--seeds", "5", "--wrt", "x"])
    assert result.exit_code == 0, result.output
    assert "5 in one run" in result.output
    assert runner.invoke(app, ["validate", str(path), str(tmp_path / "m.grad.onnx")]).exit_code == 0
    named = runner.invoke(app, ["transform", str(path), "--mode", "forward", "--seeds", "k", "--json"])
    assert '"directions": "k"' in named.output
