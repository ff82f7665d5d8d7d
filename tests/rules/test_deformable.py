"""The rule of DeformConv against central differences of the operator in ONNX Runtime, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import onnx_cfad as cfad
from tests.oracle import assert_vjp, node_model

RNG = np.random.default_rng(0)


def deformable(
    x: tuple[int, ...],
    w: tuple[int, ...],
    output: tuple[int, int],
    *,
    groups: int = 1,
    more: str = "",
    **attributes: Any,
) -> tuple[Any, dict[str, Any]]:
    """A node whose offsets move taps up to about two elements; ``more``: "b" for a bias, "m" for a mask."""
    taps = w[2] * w[3]
    feeds = {"x": RNG.standard_normal(x), "w": RNG.standard_normal(w)}
    feeds["offset"] = RNG.standard_normal((x[0], groups * taps * 2, *output))
    feeds.update({"b": RNG.standard_normal(w[0])} if "b" in more else {})
    feeds.update({"mask": RNG.standard_normal((x[0], groups * taps, *output))} if "m" in more else {})
    inputs = [name if name in feeds else "" for name in ("x", "w", "offset", "b", "mask")]
    node = helper.make_node("DeformConv", inputs, ["y"], kernel_shape=w[2:], offset_group=groups, **attributes)
    return node, feeds


CASES = {
    "plain": deformable((2, 2, 4, 5), (3, 2, 2, 2), (3, 4)),
    "mask": deformable((1, 2, 4, 4), (2, 2, 2, 2), (3, 3), more="bm"),
    "padded": deformable((1, 2, 4, 5), (2, 2, 3, 3), (2, 3), pads=[1, 1, 1, 1], strides=[2, 2], more="b"),
    "dilated": deformable((1, 1, 5, 6), (2, 1, 2, 2), (3, 4), dilations=[2, 2], more="m"),
    "groups": deformable((2, 4, 4, 4), (4, 2, 2, 2), (3, 3), group=2, more="b"),
    "offset_groups": deformable((2, 4, 4, 4), (3, 4, 2, 2), (3, 3), groups=2, more="m"),
    "both": deformable((2, 4, 4, 4), (4, 2, 2, 2), (3, 3), group=2, groups=2, more="bm"),
}


@pytest.mark.parametrize("dims", ["static", "symbolic"])
@pytest.mark.parametrize("name", CASES)
def test_deform_conv(name: str, dims: str) -> None:
    node, feeds = CASES[name]
    assert_vjp(node, feeds, dims=dims)


def test_a_kernel_of_unknown_size_is_refused() -> None:
    node, feeds = deformable((1, 1, 3, 3), (1, 1, 2, 2), (2, 2))
    del node.attribute[:]
    with pytest.raises(cfad.UnsupportedOp, match="kernel_shape"):
        cfad.vjp(node_model(node, feeds, dims="symbolic"), wrt=["x"])
