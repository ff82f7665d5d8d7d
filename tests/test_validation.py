"""Validation: right gradients hold, wrong ones are caught, and what cannot be told is said so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_cfad as cfad
from onnx_cfad.errors import ModelError, ValidationError
from onnx_cfad.numeric.differences import Outcome
from onnx_cfad.verdict import Validation
from tests.corpus import CORPUS
from tests.onnx_text import LOOP, LOSS, model

Array = np.ndarray[Any, Any]
REPOSITORY = Path(__file__).parents[1]
MODELS = {f"{group}.{name}": make for group, makers in CORPUS.items() for name, make in makers.items()}
RANDOM = [name for name in MODELS if name.startswith("draws.")]


def verdicts(validation: Validation) -> dict[str, Outcome]:
    return {row.name: row.verdict for row in validation.rows}


def replaced(gradient: cfad.Gradient, output: str, *operator: Any) -> ir.Model:
    """The gradient model with an output passed through one more operator: (type, constant or None)."""
    spoilt = gradient.model.clone()
    value = next(o for o in spoilt.graph.outputs if o.name == output)
    index = list(spoilt.graph.outputs).index(value)
    op_type, constant = operator
    inputs = [value]
    if constant is not None:
        assert value.dtype is not None
        tensor = ir.tensor(np.asarray(constant, value.dtype.numpy()))
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])
        node.outputs[0].name = "spoil.constant"
        spoilt.graph.append(node)
        inputs.append(node.outputs[0])
    last = ir.Node("", op_type, inputs)
    spoilt.graph.append(last)
    result = last.outputs[0]
    result.type, result.shape, result.name = value.type, value.shape, output
    value.name = f"spoil.{output}"
    spoilt.graph.outputs[index] = result
    return spoilt


@pytest.mark.parametrize("name", [name for name in MODELS if name not in RANDOM])
def test_corpus_gradient_holds(name: str) -> None:
    example = MODELS[name]("float")
    found = cfad.validate(example.model, feeds=example.feeds, wrt=example.wrt, outputs=example.outputs, directions=2)
    assert found.holds, str(found)
    assert all(row.verdict is Outcome.HOLDS for row in found.rows), str(found)
    assert all(row.identical for row in found.primal), str(found)


@pytest.mark.parametrize(("real", "tolerance"), [("double", 1e-6), ("float16", 5e-2)])
def test_gradient_holds_in_other_types(real: str, tolerance: float) -> None:
    example = CORPUS["loops"]["loop_static"](real)
    found = cfad.validate(example.model, feeds=example.feeds)
    assert found.holds, str(found)
    assert [row.tolerance for row in found.rows] == pytest.approx([tolerance] * 2, rel=0.2)


@pytest.mark.parametrize("name", RANDOM)
def test_random_model_is_not_checked(name: str) -> None:
    example = MODELS[name]("float")
    found = cfad.validate(example.model, feeds=example.feeds, wrt=example.wrt)
    assert set(verdicts(found).values()) == {Outcome.UNCHECKED}
    assert "random" in str(found)
    assert not found.holds
    with pytest.raises(ValidationError, match="nothing was checked.*Turn off what draws random numbers"):
        found.raise_if_failed()


@pytest.mark.parametrize("real", ["double", "float", "float16"])
@pytest.mark.parametrize("operator", [("Mul", 1.1), ("Neg", None), ("Mul", 0.0)], ids=["scaled", "negated", "zeroed"])
def test_wrong_gradient_is_caught(real: str, operator: tuple[str, Any]) -> None:
    example = CORPUS["loops"]["loop_static"](real)
    gradient = cfad.vjp(example.model)
    found = cfad.validate(example.model, replaced(gradient, "w_grad", *operator), example.feeds)
    assert verdicts(found) == {"x": Outcome.HOLDS, "w": Outcome.WRONG}
    assert not found.holds


def test_one_wrong_element_is_caught() -> None:
    example = CORPUS["loops"]["loop_static"]("float")
    spoilt = replaced(cfad.vjp(example.model), "x_grad", "Mul", [1.0, 1.01, 1.0])
    found = cfad.validate(example.model, spoilt, example.feeds)
    assert verdicts(found)["x"] is Outcome.WRONG


def test_small_error_in_float64_is_caught() -> None:
    example = CORPUS["loops"]["loop_static"]("double")
    spoilt = replaced(cfad.vjp(example.model), "x_grad", "Mul", 1 + 1e-5)
    assert verdicts(cfad.validate(example.model, spoilt, example.feeds))["x"] is Outcome.WRONG


def test_failure_names_the_wrt_both_numbers_and_what_to_do() -> None:
    example = CORPUS["loops"]["loop_static"]("float")
    found = cfad.validate(example.model, replaced(cfad.vjp(example.model), "w_grad", "Mul", 2.0), example.feeds)
    row = next(row for row in found.rows if row.name == "w")
    with pytest.raises(ValidationError) as raised:
        found.raise_if_failed()
    text = str(raised.value)
    assert text.startswith("wrt 'w': ")
    assert f"{row.numeric:.9g}" in text
    assert f"{row.gradient:.9g}" in text
    assert row.gradient == pytest.approx(2 * row.numeric, rel=1e-4)
    assert "report" in text
    assert "1 wrong" in str(found)


def test_changed_primal_output_is_caught() -> None:
    example = CORPUS["loops"]["loop_static"]("float")
    found = cfad.validate(example.model, replaced(cfad.vjp(example.model), "y", "Mul", 1.01), example.feeds)
    assert not found.holds
    assert not found.primal[0].identical
    with pytest.raises(ValidationError, match="output 'y': the gradient model gives other values"):
        found.raise_if_failed()


def test_primal_output_that_differs_by_rounding_is_named_but_holds() -> None:
    example = CORPUS["loops"]["loop_static"]("float")
    found = cfad.validate(example.model, replaced(cfad.vjp(example.model), "y", "Mul", 1 + 2e-7), example.feeds)
    assert found.holds
    assert not found.primal[0].identical
    assert "y differs by" in found.primal_conclusion


def test_wrong_type_or_shape_of_a_gradient_is_caught() -> None:
    text = "g (float[2] x) => (float[2] y) { y = Neg (x) }"
    other = """g (float[2] x, float[2] y_grad) => (float[2] y, double[2] x_grad) {
        y = Neg (x)
        n = Neg (y_grad)
        x_grad = Cast <to = 11> (n)
    }"""
    found = cfad.validate(model(text), model(other))
    assert verdicts(found)["x"] is Outcome.WRONG
    assert "float64[2], not float32[2]" in str(found)


def test_jump_at_a_weight_is_said_so() -> None:
    jump = "g (int64[2] n) => (float[2] y) <float[2] w = {1.0, 2.0}> { f = Floor (w) p = Mul (f, w) y = Add (p, w) }"
    found = cfad.validate(model(jump), feeds={"n": np.zeros(2, np.int64)}, wrt=["w"])
    assert verdicts(found)["w"] is Outcome.KINK
    assert not found.holds
    assert "1 not smooth here" in found.conclusion
    assert "nothing was checked" in str(found)


def test_jump_at_one_of_two_weights_spares_the_other() -> None:
    jump = """g (int64[2] n) => (float[2] y) <float[2] w = {1.0, 2.0}, float[2] v = {1.5, 2.0}> {
        f = Floor (w) p = Mul (f, w) q = Add (p, w) y = Mul (q, v)
    }"""
    found = cfad.validate(model(jump), feeds={"n": np.zeros(2, np.int64)}, wrt=["w", "v"])
    assert verdicts(found) == {"w": Outcome.KINK, "v": Outcome.HOLDS}
    assert found.holds


@pytest.mark.parametrize(
    "setting",
    [{"rtol": -1.0}, {"rtol": 0.0}, {"rtol": np.nan}, {"rtol": 1.0}, {"directions": 0}, {"directions": 10**9},
         {"every_element_up_to": -1},
     {"seed": -1}],
    ids=str,
)  # fmt: skip
def test_number_out_of_range_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=f"{next(iter(setting))} .*expected a (whole )?number"):
        cfad.validate(model("g (float[2] x) => (float[2] y) { y = Sin (x) }"), **setting)


def test_another_point_is_tried_where_the_given_one_is_a_kink() -> None:
    text = "g (float[4] x) => (float[4] y) { f = Floor (x) p = Mul (f, x) y = Add (p, x) }"
    found = cfad.validate(model(text), feeds={"x": np.asarray([1.0, -2.0, 3.0, 5.0], np.float32)})
    assert verdicts(found)["x"] is Outcome.HOLDS
    assert "at another point" in found.rows[0].method


def test_wrong_gradient_beside_a_kink_is_caught() -> None:
    text = "g (float[4] x) => (float[4] y) { f = Floor (x) p = Mul (f, x) y = Add (p, x) }"
    spoilt = replaced(cfad.vjp(model(text)), "x_grad", "Mul", 1.5)
    found = cfad.validate(model(text), spoilt, {"x": np.asarray([1.0, -2.0, 3.5, 5.0], np.float32)})
    assert verdicts(found)["x"] is Outcome.WRONG


def test_trip_count_that_flips_is_not_a_failure() -> None:
    """The loop doubles x until it passes 1: at x = 1/4 a small step changes the trip count."""
    text = """g (float x) => (float y) <float one = {1.0}> {
        start = Less (x, one)
        y = Loop (, start, x) <body = body (int64 i, bool going, float s) => (bool again, float next) {
            next = Add (s, s)
            again = Less (next, one)
        }>
    }"""
    at = {"x": np.asarray(0.25, np.float32)}
    found = cfad.validate(model(text), feeds=at)
    assert found.holds
    assert verdicts(found)["x"] in (Outcome.KINK, Outcome.HOLDS)
    spoilt = replaced(cfad.vjp(model(text)), "x_grad", "Mul", 2.0)
    assert not cfad.validate(model(text), spoilt, {"x": np.asarray(0.3, np.float32)}).holds


def test_gradient_of_a_loss_needs_no_seed() -> None:
    gradient = cfad.grad(model(LOSS), loss="loss", wrt=["x", "w"])
    found = cfad.validate(model(LOSS), gradient)
    assert verdicts(found) == {"x": Outcome.HOLDS, "w": Outcome.HOLDS}
    assert cfad.validate(model(LOSS), loss="loss").holds
    assert not cfad.validate(model(LOSS), replaced(gradient, "w_grad", "Neg", None)).holds


BRANCHES = """branches (float[2] x, bool up) => (float[2] y) <float[2] w = {1.0, 2.0}> {
    a = Mul (x, w)
    y = If (up) <
        then_branch = up () => (float[2] r) <float[2] k = {5.0, 6.0}> { r = Mul (a, k) },
        else_branch = down () => (float[2] q) { k = Constant <value = float[2] {7.0, 8.0}> () q = Mul (a, k) }
    >
}"""
"""Two weights of one name, in two branches."""


@pytest.mark.parametrize("up", [True, False])
def test_initializer_of_a_branch_is_varied(up: bool) -> None:
    feeds = {"x": np.asarray([0.5, -1.0], np.float32), "up": np.asarray(up)}
    gradient = cfad.vjp(model(BRANCHES), wrt=cfad.INITIALIZERS)
    found = cfad.validate(model(BRANCHES), gradient, feeds)
    assert found.holds, str(found)
    then, other = "main/if_0/then:k", "main/if_0/else:k"
    assert list(verdicts(found)) == ["w", then, other]
    assert found.vacuous == ((other,) if up else (then,))
    assert cfad.validate(model(BRANCHES), replaced(gradient, f"{then}_grad", "Neg", None), feeds).holds == (not up)


@pytest.mark.parametrize("up", [True, False])
def test_constant_of_a_branch_is_varied(up: bool) -> None:
    feeds = {"x": np.asarray([0.5, -1.0], np.float32), "up": np.asarray(up)}
    name = "main/if_0/else:k"
    gradient = cfad.vjp(model(BRANCHES), wrt=[name])
    found = cfad.validate(model(BRANCHES), gradient, feeds, wrt=[name])
    assert list(verdicts(found)) == [name]
    assert (found.vacuous == (name,)) == up
    assert cfad.validate(model(BRANCHES), replaced(gradient, f"{name}_grad", "Neg", None), feeds).holds == up


OVERRIDABLE = """g (float[2] x, float[2] w) => (float y) <float[2] w = {2, 3}> {
    squared = Mul (w, w)
    scaled = Mul (x, squared)
    y = ReduceSum <keepdims = 0> (scaled)
}"""


@pytest.mark.parametrize("given", [None, [0.5, -4.0]])
def test_weight_that_is_an_input_with_a_default_is_varied(given: list[float] | None) -> None:
    feeds = {"x": np.asarray([1.0, 2.0], np.float32)}
    value = np.asarray(given or [2.0, 3.0], np.float32)
    feeds |= {"w": value} if given else {}
    gradient = cfad.grad(model(OVERRIDABLE), loss="y", wrt=["w"])
    found = cfad.validate(model(OVERRIDABLE), gradient, feeds)
    assert found.holds, str(found)
    assert verdicts(found) == {"w": Outcome.HOLDS}
    assert abs(found.rows[0].numeric) > 0
    assert not cfad.validate(model(OVERRIDABLE), replaced(gradient, "w_grad", "Neg", None), feeds).holds
    tangents = cfad.jvp(model(OVERRIDABLE), wrt=["w"], outputs=["y"])
    assert cfad.validate(model(OVERRIDABLE), tangents, feeds).holds


MASKED = """g (float[2,3] x, float[3] m) => (float[2,3] s, float[2,3] y) {
    s = Add (x, m)
    y = Softmax (s)
}"""


@pytest.mark.parametrize("right", [True, False])
def test_an_infinite_score_hides_nothing(right: bool) -> None:
    """Output s is -inf where the mask m is; the other elements of x and m are still told right from wrong."""
    feeds = {
        "x": np.asarray([[0.5, -1, 2], [1, 0.1, 0.3]], np.float32),
        "m": np.asarray([0.1, -np.inf, -0.2], np.float32),
    }
    gradient = cfad.vjp(model(MASKED))
    changed = gradient if right else replaced(gradient, "m_grad", "Neg", None)
    found = verdicts(cfad.validate(model(MASKED), changed, feeds))
    assert found == {"x": Outcome.HOLDS, "m": Outcome.HOLDS if right else Outcome.WRONG}


def test_an_infinite_derivative_of_one_element_spares_the_others() -> None:
    text = "g (float[3] x) => (float[3] y) { y = Acosh (x) }"
    found = cfad.validate(model(text), feeds={"x": np.asarray([10.0, np.e, 1.0], np.float32)})
    assert found.holds
    assert found.rows[0].verdict is Outcome.HOLDS


def test_nothing_is_told_where_the_primal_has_no_value() -> None:
    text = "g (double[3] x, double[3] y) => (double[3] z) { z = Mod <fmod = 1> (x, y) }"
    feeds = {"x": np.asarray([1.5, 1.0, 2.5]), "y": np.asarray([1.0, 0.0, 0.7])}
    found = cfad.validate(model(text), feeds=feeds)
    assert found.holds
    row = found.rows[1]
    assert row.verdict is Outcome.HOLDS
    assert row.unresolved == 4  # the random directions, and the division by zero


@pytest.mark.parametrize("x", [[np.nan, np.nan], [-1.0, -2.0], [np.inf, np.inf]], ids=["nan", "pole", "infinite"])
def test_nothing_is_checked_where_no_output_is_finite(x: list[float]) -> None:
    text = "<ir_version: 8, opset_import: ['' : 18]> g (float[2] x) => (float[2] y) { y = Log (x) }".replace("'", '"')
    validation = cfad.validate(onnx.parser.parse_model(text), feeds={"x": np.array(x, np.float32)})
    assert verdicts(validation) == {"x": Outcome.UNCHECKED}
    assert validation.conclusion == "0 of 1 gradients hold, 1 not checked"
    assert not validation.holds
    with pytest.raises(ValidationError, match="nothing was checked.*Give other inputs"):
        validation.raise_if_failed()


def test_an_output_without_a_number_takes_no_part() -> None:
    text = "g (float[3] x) => (float[3] y, float total) { y = Mul (x, x) total = ReduceSum <keepdims = 0> (y) }"
    found = cfad.validate(model(text), feeds={"x": np.asarray([1.0, np.nan, 3.0], np.float32)})
    assert verdicts(found) == {"x": Outcome.HOLDS}, str(found)
    assert "output 'total' is nowhere finite: derivatives are not checked through it" in found.remarks
    wrong = replaced(cfad.vjp(model(text)), "x_grad", "Neg", None)
    assert verdicts(cfad.validate(model(text), wrong, {"x": np.asarray([1.0, np.nan, 3.0], np.float32)})) == {
        "x": Outcome.WRONG
    }


def test_zero_on_both_sides_is_named() -> None:
    example = CORPUS["loops"]["loop_zero_trips"]("float")
    found = cfad.validate(example.model, feeds=example.feeds)
    assert found.vacuous == ("w",)
    assert "ok (zero)" in str(found)


def test_some_of_the_gradients_can_be_checked() -> None:
    example = CORPUS["loops"]["loop_static"]("float")
    gradient = cfad.vjp(example.model)
    assert list(verdicts(cfad.validate(example.model, gradient, example.feeds, wrt=["w"]))) == ["w"]
    with pytest.raises(ModelError, match="wrt 'q': the gradient model has no such gradient; it has 'x', 'w'"):
        cfad.validate(example.model, gradient, example.feeds, wrt=["q"])


def test_seeds_can_be_given() -> None:
    text = "g (float[2] x) => (float[2] y) { y = Mul (x, x) }"
    feeds = {"x": np.asarray([1.0, 3.0], np.float32), "y_grad": np.asarray([0.0, 1.0], np.float32)}
    found = cfad.validate(model(text), feeds=feeds, directions=1)
    assert found.holds
    assert next(row for row in found.rows).gradient != 0
    silent = {**feeds, "y_grad": np.zeros(2, np.float32)}
    assert cfad.validate(model(text), feeds=silent).vacuous == ("x",)


def test_other_models_gradient_is_named() -> None:
    text, other = ("g (float[2] x) => (float[2] y) { y = %s (x) }" % name for name in ("Sin", "Tanh"))  # noqa: UP031
    found = cfad.validate(model(text), cfad.vjp(model(other)))
    assert "made from another model" in str(found)
    assert not found.holds


def test_result_is_the_same_for_the_same_seed() -> None:
    first, second, other = (str(cfad.validate(model(LOOP), seed=seed)) for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_files_are_validated(tmp_path: Path) -> None:
    source, target = tmp_path / "loop.onnx", tmp_path / "loop.grad.onnx"
    onnx.save(model(LOOP), source)
    cfad.vjp(source).save(target)
    assert cfad.validate(source, target).holds


def test_progress_is_told() -> None:
    told: list[tuple[int, int, str]] = []
    cfad.validate(model(LOOP), progress=lambda done, total, name: told.append((done, total, name)))
    assert told == [(1, 2, "x"), (2, 2, "w")]


def test_text_has_a_line_for_each_gradient_and_no_colour() -> None:
    text = str(cfad.validate(model(LOOP)))
    lines = text.splitlines()
    assert lines[0].startswith("gradient by")
    assert [line.split()[0] for line in lines[1:3]] == ["x", "w"]
    assert "float64 in ONNX Runtime" in text
    assert lines[-1] == "2 of 2 gradients hold"
    assert "\x1b" not in text


@pytest.mark.parametrize("name", ["equilibrium", "neural_ode", "gnmt_v2"])
def test_exported_model_holds(name: str) -> None:
    path = REPOSITORY / "models" / f"{name}.onnx"
    with np.load(path.with_suffix(".npz")) as data:
        feeds = {key[3:]: data[key] for key in data.files if key.startswith("in_")}
    found = cfad.validate(path, feeds=feeds, directions=1, every_element_up_to=4)
    assert found.holds, str(found)
    assert all(row.verdict is Outcome.HOLDS for row in found.rows), str(found)
