"""The rule of Col2Im against central differences of the operator in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.oracle import FLOAT, Array
from tests.rules.forms import Case, case, check, each_form

RNG = np.random.default_rng(0)


def columns(name: str, shape: tuple[int, ...], image: list[int], block: list[int], **attributes: Any) -> Case:
    x: Array = RNG.standard_normal(shape).astype(np.float32)
    inputs = {"x": x, "image": np.asarray(image), "block": np.asarray(block)}
    return case(name, "Col2Im", inputs, outputs={"y": FLOAT}, forms=("static", "symbolic", "computed"), **attributes)


CASES = [
    columns("2d", (2, 12, 12), [4, 5], [2, 2]),
    columns("strided", (1, 12, 15), [5, 7], [2, 3], strides=[2, 1], pads=[0, 0, 1, 0]),
    columns("dilated", (2, 4, 12), [5, 6], [2, 2], dilations=[1, 2], pads=[0, 1, 0, 0], strides=[1, 2]),
    columns("1d", (2, 6, 4), [8], [2], strides=[2]),
    columns("3d", (1, 8, 8), [3, 3, 3], [2, 2, 2]),
]


@each_form(CASES)
def test_col2im(case: Case, form: str) -> None:
    check(case, form, step=0.3, check=form != "computed")


@pytest.mark.parametrize("batch", [1, 3])
def test_a_block_as_large_as_the_image_only_reshapes(batch: int) -> None:
    x = RNG.standard_normal((batch, 6, 1)).astype(np.float32)
    node = helper.make_node("Col2Im", ["x", "image", "block"], ["y"])
    constants = {"image": np.asarray([2, 3]), "block": np.asarray([2, 3])}
    check(Case("whole", node, {"x": x}, constants, outputs={"y": FLOAT}), "static", step=0.3)
