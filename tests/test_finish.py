"""The shapes that an emitted model declares: those that its readers do not stumble over."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest

import onnx_cfad as cfad
from onnx_cfad.forward import derive
from onnx_cfad.model import load
from onnx_cfad.options import Options
from tests.adjoint.agreement import all_makers
from tests.corpus import CORPUS
from tests.onnx_text import model
from tests.oracle import check_emitted, run_ort
from tests.rewriters.check_pass import readers_outside

GRID = """g (float[4,6] x) => (float[4,6] y)
<int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] second = {1}> {
    shape = Shape (x)
    rows = Gather (shape, zero)
    columns = Gather (shape, one)
    down = Range (zero, rows, one)
    across = Range (zero, columns, one)
    column = Unsqueeze (down, second)
    row = Unsqueeze (across, first)
    distance = Sub (column, row)
    far = CastLike (distance, x)
    spread = Mul (x, far)
    y = Sin (spread)
}"""


def test_column_and_row_of_integers_are_no_shapes() -> None:
    """With their lengths declared, the data propagation of onnx would add them as if they were shapes."""
    emitted = cfad.vjp(model(GRID), wrt=["x"]).proto()
    check_emitted(emitted)
    again = cfad.vjp(emitted, wrt=["y_grad"], outputs=["x_grad"]).proto()
    check_emitted(again)


RANKS = """g (float[N,3] x, bool batched) => (float[K,L,M] y) <int64[1] first = {0}> {
    alone = Not (batched)
    whole = If (alone) <
        then_branch = up () => (u) { u = Unsqueeze (x, first) },
        else_branch = same () => (s) { s = Identity (x) }
    >
    y = Transpose <perm = [1, 0, 2]> (whole)
}"""


def test_dead_branch_of_another_rank_is_no_contradiction() -> None:
    """As exporters write it: the branch that keeps the rank cannot run, since what follows wants three axes."""
    emitted = cfad.vjp(model(RANKS), wrt=["x"]).proto()
    check_emitted(emitted)
    x = np.asarray([[1, 2, 3]], np.float32)
    found = run_ort(emitted, {"x": x, "batched": np.asarray(False), "y_grad": x[None]})
    np.testing.assert_array_equal(found["x_grad"], x)


def test_shapes_of_floating_point_values_are_declared() -> None:
    emitted = cfad.vjp(model(GRID), wrt=["x"]).proto()
    held = {tensor.name for tensor in emitted.graph.initializer}
    made = [info.type.tensor_type for info in emitted.graph.value_info if info.name not in held]
    kinds = {tensor.elem_type for tensor in made if tensor.shape.dim}
    assert kinds == {onnx.TensorProto.FLOAT}


def test_notes_of_the_inference_stay_inside() -> None:
    emitted = cfad.vjp(model(GRID), wrt=["x"]).proto()
    assert not [info.name for info in emitted.graph.value_info if info.metadata_props]


@pytest.mark.parametrize("dims", [[1], [4], [2, 2], []])
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_shape_that_cannot_be_gives_way_to_the_proven_one(dims: list[int], mode: str) -> None:
    """The session takes a seed of the shape that the model really gives; the primal's declaration would refuse it."""
    proto = model("g (float[3] x) => (float y) { y = Sin (x) }")
    shape = proto.graph.output[0].type.tensor_type.shape
    shape.ClearField("dim")
    shape.SetInParent()
    for dim in dims:
        shape.dim.add().dim_value = dim
    gradient = cfad.vjp(proto) if mode == "reverse" else cfad.jvp(proto)
    given, found = ("y_grad", "x_grad") if mode == "reverse" else ("x_tangent", "y_tangent")
    told = "y_grad" if mode == "reverse" else "y_tangent"
    (warning,) = gradient.report.warnings
    assert warning == f"'y' is declared with shape {dims}, but the model gives it [3], which '{told}' has too"
    x, ct = np.array([0.5, 1.0, -2.0], np.float32), np.array([1.0, 2.0, 3.0], np.float32)
    emitted = gradient.proto()
    check_emitted(emitted)
    np.testing.assert_allclose(run_ort(emitted, {"x": x, given: ct})[found], ct * np.cos(x), rtol=1e-6)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in emitted.graph.output}
    assert shapes == {"y": [3], found: [3]}


def test_shape_of_a_loop_that_cannot_be_gives_way() -> None:
    """The stack of a Loop whose author forgot the axis of the iterations."""
    proto = model("""g (float[3] x) => (float[3] ys) <int64 n = {2}> {
        l, ys = Loop (n, , x) <body = body (int64 i, bool go, float[3] s) => (bool on, float[3] t, float[3] row) {
            on = Identity (go)  t = Mul (s, s)  row = Sin (s) }>
    }""")
    gradient = cfad.vjp(proto)
    assert any("'ys' is declared with shape [3], but the model gives it [2, 3]" in w for w in gradient.report.warnings)
    x, ct = np.array([0.5, 1.0, -2.0], np.float32), np.ones((2, 3), np.float32)
    found = run_ort(gradient.proto(), {"x": x, "ys_grad": ct})["x_grad"]
    np.testing.assert_allclose(found, np.cos(x) + np.cos(x * x) * 2 * x, rtol=1e-5)


@pytest.mark.parametrize("name", [*CORPUS["loops"], *CORPUS["nests"], "fixed_point_sinkhorn"])
def test_nothing_that_was_taken_out_reads_what_is_left(name: str) -> None:
    """Else what it reads would seem to be needed, and stay."""
    example = all_makers()[name]()
    wrt, outputs = list(example.wrt), example.outputs
    results = [cfad.vjp(example.model, wrt=wrt, outputs=outputs), cfad.jvp(example.model, wrt=wrt, outputs=outputs)]
    with contextlib.suppress(cfad.PlanError):
        results.append(cfad.vjp(example.model, wrt=wrt, outputs=outputs, plan="unrolled"))
    assert [readers_outside(result.model) for result in results] == [[]] * len(results)


COUNTED = """c (float[4] x) => (float[1] y)
<int64 n = {50}, bool go = {1}, float[4] w = {1, 2, 3, 4}, float[4] spare = {1, 2, 3, 4}> {
    z = Loop (n, go, x) <body = step (int64 i, bool c, float[4] a) => (bool d, float[4] b) {
        d = Identity (c)
        t = Mul (a, w)
        b = Sin (t)
    }>
    y = ReduceSum <keepdims = 1> (z)
}"""


@pytest.mark.parametrize(
    "options",
    [
        Options(mode="forward"),
        Options(),
        Options(plan="checkpointed"),
        Options(loss="y", mode="hvp"),
        Options(plan="unrolled"),
    ],
)
@pytest.mark.parametrize("wrt", [("x",), ("w", "spare")])
def test_initializers_that_are_read_no_more_are_gone(
    options: Options, wrt: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """The author's own that nothing read stay."""
    emitted = derive(load(model(COUNTED)), dataclasses.replace(options, wrt=wrt)).proto()
    check_emitted(emitted)
    assert {"w", "spare"} <= {initializer.name for initializer in emitted.graph.initializer}
    capfd.readouterr()
    onnxruntime.InferenceSession(emitted.SerializeToString())
    told = [line for line in capfd.readouterr().err.splitlines() if "Removing initializer" in line]
    assert [line for line in told if "'spare'" not in line] == []


def test_weight_that_no_output_reads_stays_where_it_is_differentiated_by() -> None:
    emitted = cfad.vjp(model(COUNTED), wrt=["x", "spare"]).proto()
    assert "spare_grad" in {output.name for output in emitted.graph.output}
    assert "spare" in {initializer.name for initializer in emitted.graph.initializer}


def test_seeds_and_tangents_of_outputs_have_the_shape_that_is_proven() -> None:
    """The author, the TorchScript exporter, gave the output names for dimensions that the loop proves."""
    for emitted, name in (
        (cfad.vjp("models/heat.onnx", wrt=["u"]).proto(), "u_end_grad"),
        (cfad.jvp("models/heat.onnx", wrt=["u"]).proto(), "u_end_tangent"),
        (cfad.vjp("models/heat.onnx", wrt=["u"], seeds=2).proto(), "u_end_grad"),
    ):
        values = {value.name: value.type.tensor_type for value in (*emitted.graph.input, *emitted.graph.output)}
        found = [dim.dim_value for dim in values[name].shape.dim]
        assert found[-4:] == [1, 1, 16, 16]
        assert [dim.dim_param for dim in values["u_end"].shape.dim] == [f"Loopu_end_dim_{k}" for k in range(4)]


def test_symbols_of_inputs_stay_in_seeds() -> None:
    emitted = cfad.vjp(model(RANKS.replace("float[K,L,M] y", "float[K,L,3] y")), wrt=["x"]).proto()
    seed = next(value for value in emitted.graph.input if value.name == "y_grad")
    assert [dim.dim_param or dim.dim_value for dim in seed.type.tensor_type.shape.dim] == ["K", "L", 3]
