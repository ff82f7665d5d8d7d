"""Names: primal ones never change, new ones never collide, and the same model in gives the same bytes out."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import GraphProto

import onnx_cfad as cfad
from onnx_cfad.api import AnyModel
from onnx_cfad.names import Namer
from onnx_cfad.numeric.differences import Outcome
from tests.adjoint.agreement import (
    all_makers,
    assert_float32_follows,
    assert_levels_agree,
    assert_matches_differences,
    emitted,
    emitted_bytes,
    parameters,
)
from tests.corpus import CORPUS, Maker
from tests.oracle import check_emitted

ROOT = pathlib.Path(__file__).parents[1]
DIGESTS = """
import hashlib, json, sys
from tests.adjoint.agreement import all_makers, emitted_bytes
digests = {name: hashlib.sha256(emitted_bytes(maker())).hexdigest() for name, maker in all_makers().items()}
json.dump(digests, sys.stdout)
"""


@pytest.mark.parametrize("maker", parameters("names"))
def test_gradient_matches_differences(maker: Maker) -> None:
    assert_matches_differences(maker())


@pytest.mark.parametrize("maker", parameters("names"))
def test_optimisation_levels_agree(maker: Maker) -> None:
    assert_levels_agree(maker())


@pytest.mark.parametrize("maker", parameters("names"))
def test_float32_follows(maker: Maker) -> None:
    assert_float32_follows(maker)


@pytest.mark.parametrize("maker", parameters(*CORPUS))
def test_same_model_gives_same_bytes(maker: Maker) -> None:
    assert emitted_bytes(maker()) == emitted_bytes(maker())


@pytest.mark.slow
def test_bytes_do_not_depend_on_the_process() -> None:
    """Another process, with another order of every set of strings."""
    env = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DIGESTS]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=env)
    other = json.loads(done.stdout)
    own = {name: hashlib.sha256(emitted_bytes(maker())).hexdigest() for name, maker in all_makers().items()}
    assert own == other


@pytest.mark.parametrize("maker", parameters(*CORPUS))
def test_new_names_are_unique_in_all_scopes(maker: Maker) -> None:
    """What the model repeated in sibling scopes may repeat; what was added is unique everywhere.

    The name of a gradient is fixed: an inner value of that name, in a scope that ends before it, stays what it is.
    """
    example = maker()
    before = Counter(_value_names(example.model.graph))
    after = Counter(_value_names(emitted(example).graph))
    repeated = {name: count for name, count in after.items() if count > max(1, before[name])}
    assert not repeated.keys() - {f"{name}_grad" for name in example.wrt}


@pytest.mark.parametrize("maker", parameters(*CORPUS))
def test_interface_is_the_primal_one_extended(maker: Maker) -> None:
    example = maker()
    model = emitted(example)
    inputs, outputs = [[v.name for v in values] for values in (model.graph.input, model.graph.output)]
    own_inputs, own_outputs = [[v.name for v in g] for g in (example.model.graph.input, example.model.graph.output)]
    assert inputs[: len(own_inputs)] == own_inputs
    assert all(name.endswith("_grad") for name in inputs[len(own_inputs) :])
    assert outputs == [*own_outputs, *(f"{name}_grad" for name in example.wrt)]


TAKEN = {
    "gradient is an output": (
        "g (double[3] x) => (double[3] y, double[3] x_grad) { y = Sin (x) x_grad = Tanh (x) }",
        {"y": "y_grad", "x_grad": "x_grad_grad"},
        {"x": "x_grad_2"},
    ),
    "gradient is an input": (
        "g (double[3] x, double[3] x_grad) => (double[3] y) { y = Mul (x, x_grad) }",
        {"y": "y_grad"},
        {"x": "x_grad_2", "x_grad": "x_grad_grad"},
    ),
    "gradient is an initializer": (
        "g (double[3] x) => (double[3] y) <double[3] x_grad = {1.0, 2.0, 3.0}> { y = Mul (x, x_grad) }",
        {"y": "y_grad"},
        {"x": "x_grad_2"},
    ),
    "seed is an input": (
        "g (double[3] x, double[3] y_grad) => (double[3] y) { s = Sin (x) y = Mul (s, y_grad) }",
        {"y": "y_grad_2"},
        {"x": "x_grad", "y_grad": "y_grad_grad"},
    ),
    "seed is an output": (
        "g (double[3] x) => (double[3] y, double[3] y_grad) { y = Sin (x) y_grad = Mul (x, x) }",
        {"y": "y_grad_2", "y_grad": "y_grad_grad"},
        {"x": "x_grad"},
    ),
    "seed is a gradient": (
        "g (double[3] x) => (double[3] x, double[3] y) { y = Mul (x, x) }",
        {"x": "x_grad", "y": "y_grad"},
        {"x": "x_grad_2"},
    ),
    "inner values": (
        """g (double[3] x) => (double[3] y) <int64 n = {3}> {
            y = Loop (n, , x) <body = b (int64 i, bool on, double[3] x_grad) => (bool again, double[3] y_grad) {
                again = Identity (on) s = Sin (x_grad) y_grad = Mul (s, x)
            }>
        }""",
        {"y": "y_grad"},
        {"x": "x_grad"},
    ),
}
"""A model, and the seeds and gradients it gets."""


@pytest.mark.parametrize("what", TAKEN)
def test_taken_name_is_numbered_and_told(what: str) -> None:
    text, seeds, gradients = TAKEN[what]
    model = _parsed(text)
    gradient = cfad.vjp(model)
    assert (dict(gradient.report.seeds), dict(gradient.report.gradients)) == (seeds, gradients)
    assert [v.name for v in gradient.model.graph.inputs][len(model.graph.input) :] == list(seeds.values())
    assert [v.name for v in gradient.model.graph.outputs][len(model.graph.output) :] == list(gradients.values())
    numbered = [name for name in (*seeds.values(), *gradients.values()) if name.endswith("_2")]
    assert [w for w in gradient.report.warnings if "is taken" in w and w.split("'")[3] in numbered] == list(
        gradient.report.warnings
    )
    assert len(gradient.report.warnings) == len(numbered)
    found = cfad.validate(model, gradient)
    assert [row.verdict for row in found.rows] == [Outcome.HOLDS] * len(gradients), str(found)


@pytest.mark.parametrize("what", TAKEN)
def test_gradient_models_are_differentiated_again_and_again(what: str) -> None:
    """By all inputs and outputs, three times in a row; each against differences of the one before."""
    model: AnyModel = _parsed(TAKEN[what][0])
    for _ in range(3):
        gradient = cfad.vjp(model)
        check_emitted(gradient.proto())
        found = cfad.validate(model, gradient, every_element_up_to=3)
        assert found.holds, str(found)
        assert all(row.verdict is Outcome.HOLDS for row in found.rows), str(found)
        model = gradient.model


def test_gradient_of_a_loss_is_differentiated_again() -> None:
    text = "g (double[3] x) => (double y) { s = Sin (x) p = Mul (s, x) y = ReduceSum <keepdims = 0> (p) }"
    model: AnyModel = cfad.grad(_parsed(text), loss="y").model
    second = cfad.vjp(model, outputs=["x_grad"])
    assert dict(second.report.gradients) == {"x": "x_grad_2"}
    third = cfad.vjp(second.model, outputs=["x_grad_2"], wrt=["x"])
    assert dict(third.report.gradients) == {"x": "x_grad_3"}
    assert cfad.validate(model, second).holds
    assert cfad.validate(second.model, third).holds


def test_gradient_without_records_is_still_read() -> None:
    model = _parsed(TAKEN["seed is a gradient"][0])
    gradient = cfad.vjp(model)
    gradient.model.metadata_props.clear()
    assert cfad.validate(model, gradient).holds


def _parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')


def test_shadowed_name_is_refused_or_told_apart() -> None:
    """A body input that has the name of an outer value: another value, or an error that names it."""
    text = """<ir_version: 10, opset_import: ["": 21]> shadow (double[3] x) => (double[3] y) <int64 trips = {3}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, double[3] x) => (bool again, double[3] next) {
            again = Identity (going)
            s = Sin (x)
            next = Mul (s, x)
        }>
    }"""
    try:
        model = cfad.vjp(onnx.parser.parse_model(text), wrt=["x"]).proto()
    except cfad.ModelError as error:
        assert "x" in error.what  # noqa: PT017 - either outcome is right
        return
    assert [v.name for v in model.graph.output] == ["y", "x_grad"]


def test_namer_counts_up_from_the_hint() -> None:
    namer = Namer({"a", "a_1"})
    assert [namer.fresh(hint) for hint in ("a", "a", "b", "b")] == ["a_2", "a_3", "b", "b_1"]


def test_namer_on_demand_knows_what_it_has_read() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (double[3] x) => (double[3] y) { y = Sin (x) }'
        )
    )
    namer = Namer.on_demand(model)
    namer.read()
    model.graph.outputs.clear()
    model.graph.remove(list(model.graph))
    assert namer.fresh("y") == "y_1"


def test_namer_reserves_once() -> None:
    namer = Namer(set())
    assert namer.reserve("x_grad")
    assert not namer.reserve("x_grad")
    assert namer.fresh("x_grad") == "x_grad_1"


def _value_names(graph: GraphProto) -> Iterator[str]:
    yield from (v.name for v in graph.input)
    yield from (t.name for t in graph.initializer)
    for node in graph.node:
        yield from (name for name in node.output if name)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _value_names(attribute.g)
