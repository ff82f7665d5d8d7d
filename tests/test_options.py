"""What callers in Python give is taken as names, or refused with what was found; nothing is left out silently."""

from __future__ import annotations

from typing import Any

import pytest

import onnx_cfad as cfad
from onnx_cfad.errors import CfadError
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
        ({"memory": -1}, "memory -1: expected a number of bytes"),
        ({"trips": 1.5}, "trips 1.5: expected a whole number"),
        ({"seeds": 2.0}, "seeds '2.0': expected a number from 1 up"),
    ],
    ids=str,
)
def test_what_is_no_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CfadError) as caught:
        cfad.vjp(model(LOOP), **options)
    assert message in str(caught.value)


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
