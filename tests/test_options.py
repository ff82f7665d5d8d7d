"""What callers in Python give is taken as names, or refused with what was found; nothing is left out silently."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import onnx_cfad as cfad
from onnx_cfad import testing
from onnx_cfad.adjoint.taped import NARROW
from onnx_cfad.errors import CfadError
from onnx_cfad.options import TAPES, TARGETS
from onnx_cfad.plans.branch_choice import BRANCHES
from tests.onnx_text import LOOP, LOSS, model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrt": []}, "wrt: nothing is named"),
        ({"wrt": [3]}, "wrt: expected names, found 3"),
        ({"wrt": 3}, "wrt: expected a name or several, found 3"),
        ({"wrt": [cfad.INITIALIZERS, None]}, "wrt: expected names, found None"),
        ({"outputs": []}, "outputs: nothing is named"),
        ({"outputs": [None]}, "outputs: expected names, found None"),
        ({"stop_gradient": [b"x"]}, "stop_gradient: expected names, found b'x'"),
        ({"straight_through": 1}, "straight_through: expected a name or several, found 1"),
        ({"sites": {1: 2}}, "sites: expected names, found 1"),
        ({"plan": None}, "plan: expected the path of a file or a Plan, found None"),
        ({"profile": {}}, "profile: expected the path of a file or a Profile, found {}"),
        ({"wrt": b"x"}, "wrt: expected a name or several, found b'x'"),
        ({"segment": True}, "segment True: expected a whole number from 0"),
        ({"tape": ["float16"]}, "tape ['float16']: expected one of float16, bfloat16"),
        ({"tape": "bf16"}, "Did you mean 'bfloat16'?"),
        ({"target": {}}, "target {}: expected one of ort, llvm, cuda, ascend"),
        ({"implicit_fallback": 0}, "implicit_fallback 0: expected one of checkpointed, nan, none"),
        ({"clip_value": "1"}, "clip_value '1': expected a finite number above 0"),
        ({"clip_norm": True}, "clip_norm True: expected a finite number above 0"),
        ({"clip_norm": 10**400}, "clip_norm of more than 100 digits: expected a finite number above 0"),
        ({"clip_carries": 1}, "clip_carries 1: expected True or False"),
        ({"replace_nan": "false"}, "replace_nan 'false': expected True or False"),
        ({"implicit_outputs": None}, "implicit_outputs None: expected True or False"),
        ({"memory": "9" * 400 + "GiB"}, "expected a number of bytes"),
        ({"memory": 2**63}, "memory 9223372036854775808: expected a whole number from 0"),
        ({"seeds": "1x"}, "seeds '1x': expected a whole number from 1 up, or the name of a dimension"),
        ({"memory": -1}, "memory -1: expected a whole number from 0"),
        ({"trips": 1.5}, "trips 1.5: expected a whole number"),
        ({"seeds": 2.0}, "seeds 2.0: expected a whole number from 1"),
    ],
    ids=str,
)
def test_what_is_no_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CfadError) as caught:
        cfad.vjp(model(LOOP), **options)
    assert message in str(caught.value)


FUNCTIONS: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "vjp": (cfad.vjp, {}),
    "grad": (cfad.grad, {"loss": "loss"}),
    "jvp": (cfad.jvp, {}),
    "hvp": (cfad.hvp, {"loss": "loss"}),
    "plan": (cfad.plan, {}),
    "profile": (cfad.profile, {"feeds": {"x": np.ones(3, np.float32)}}),
    "validate": (cfad.validate, {}),
    "compile": (cfad.compile, {"target": "llvm", "build": "none"}),
    "expand": (cfad.expand, {}),
    "check_vjp": (testing.check_vjp, {}),
    "check_grads": (testing.check_grads, {}),
    "assert_same_model": (testing.assert_same_model, {"one": model(LOSS)}),
}
PARAMETERS = [
    (name, parameter)
    for name, (function, _) in FUNCTIONS.items()
    for parameter in inspect.signature(function).parameters
    if parameter not in ("settings", "progress", "check", "rtol")
]
NO_VALUES = (-1, 2.5, float("nan"), "\0", b"x", [1], {1: 2}, {"x"}, object(), np.zeros(()), np.array(["a", "b"]))


def refusal(function: Callable[..., object], arguments: dict[str, Any]) -> str:
    """The message with which arguments are refused; none where they are taken."""
    try:
        function(**arguments)
    except CfadError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("name", "parameter"), PARAMETERS, ids=str)
def test_every_parameter_refuses_in_our_words(name: str, parameter: str) -> None:
    """Whatever is given is taken, or refused in one line; nothing fails deep inside."""
    function, needed = FUNCTIONS[name]
    for given in NO_VALUES:
        source = {} if parameter in ("model", "other") else {"other" if "one" in needed else "model": model(LOSS)}
        message = refusal(function, {**needed, **source, parameter: given})
        assert len(message.splitlines()) <= 1, message
        assert len(message) < 400, message


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({"clip_value": np.float32(0.5), "clip_norm": np.int64(2)}, {"clip_value": 0.5, "clip_norm": 2.0}),
        ({"clip_value": 1, "clip_carries": np.True_}, {"clip_value": 1.0, "clip_carries": True}),
        ({"segment": np.int32(2), "plan": "checkpointed"}, {"segment": 2, "plan": "checkpointed"}),
        ({"trips": np.int64(5), "memory": np.uint64(10)}, {"trips": 5, "memory": "10"}),
        ({"seeds": np.int8(3), "wrt": np.array(["x"])}, {"seeds": 3, "wrt": ["x"]}),
        ({"wrt": {"w", "x"}, "outputs": iter(["y"])}, {"wrt": ["w", "x"], "outputs": ["y"]}),
    ],
    ids=["clipping", "flags", "segment", "trips", "array", "set and iterator"],  # a set has no order to be named by
)
def test_values_of_numpy_and_sets_are_taken_in_one_form(options: dict[str, Any], plain: dict[str, Any]) -> None:
    assert cfad.vjp(model(LOOP), **options).proto() == cfad.vjp(model(LOOP), **plain).proto()


def test_words_of_options_are_those_of_the_adjoints() -> None:
    assert set(TAPES) == set(NARROW)
    assert set(TARGETS) == set(BRANCHES)


@pytest.mark.parametrize("feeds", [{"x": [[1], [2, 3]]}, {1: 2}, [1], "x", np.zeros(3)], ids=str)
def test_feeds_that_are_none_are_refused(feeds: Any) -> None:
    for function in (cfad.profile, functools.partial(cfad.validate, gradient=None)):
        with pytest.raises(CfadError, match=r"input 'x': expected|feeds: expected|no value is given"):
            function(model(LOSS), feeds=feeds)


@pytest.mark.parametrize("path", [b"out.onnx", 1, None])
def test_path_that_is_none_is_refused(path: Any) -> None:
    with pytest.raises(CfadError, match="output: expected the path of a file"):
        cfad.vjp(model(LOSS)).save(path)


def test_loss_that_is_no_name_is_refused() -> None:
    with pytest.raises(CfadError, match="loss: expected names, found 5"):
        cfad.grad(model(LOSS), loss=5)  # type: ignore[arg-type]


def test_one_name_needs_no_list() -> None:
    given = {
        "wrt": "w",
        "outputs": "y",
        "stop_gradient": "x",
        "sites": "main/loop_0=taped",
        "straight_through": "Round",
    }
    listed = {name: [value] for name, value in given.items()}
    one, several = (cfad.vjp(model(LOOP), **options) for options in (given, listed))  # type: ignore[arg-type]
    assert one.proto() == several.proto()


def test_gradient_is_shown_by_its_report_and_briefly() -> None:
    gradient = cfad.vjp(model(LOOP), wrt=["x"], outputs=["y"])
    assert str(gradient) == str(gradient.report)
    assert repr(gradient) == f"<Gradient of y by x: {gradient.report.nodes[1]} nodes, reverse mode>"
