"""Rules of rules/sequences.py against central differences of models that pass values through sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.oracle import DOUBLE, Feeds, assert_vjp

RNG = np.random.default_rng(8)
DIMS = pytest.mark.parametrize("dims", ["static", "symbolic"])
POSITIONS: list[int | None] = [None, 0, 1, 2, -1, -2]


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node from blank-separated names; "-" is an absent input."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op_type, names, outputs.split(), **attributes)


def graph(name: str, nodes: Sequence[onnx.NodeProto], inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs))


def tensor(name: str, elem: int = DOUBLE, shape: Sequence[int | str | None] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def sequence(name: str, elem: int = DOUBLE) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, elem, None)


def check(nodes: Sequence[onnx.NodeProto], feeds: Feeds, *, constants: Feeds | None = None, **options: Any) -> Feeds:
    """Asserts the gradient of ``nodes`` with the result as a vector: the rank of a sequence's element may be open."""
    last = onnx.NodeProto.FromString(nodes[-1].SerializeToString())
    last.output[0] = "whole"
    flat = {"whole_shape": np.array([-1]), **(constants or {})}
    return assert_vjp([*nodes[:-1], last, node("Reshape", "whole whole_shape", "y")], feeds, constants=flat, **options)


THREE = {"a": normal(2, 3), "b": normal(2, 1), "c": normal(2, 2)}
CONSTANTS = {"p0": np.asarray(0), "p1": np.asarray(1), "last": np.asarray(-1, np.int32)}


def position_of(position: int | None, computed: bool) -> tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The input's name, and constants or feeds that give it."""
    if position is None:
        return "", {}, {}
    array = {"at": np.asarray(position)}
    return " at", {} if computed else array, array if computed else {}


@DIMS
@pytest.mark.parametrize("axis", [1, -1])
def test_construct_and_concat_along_an_axis(axis: int, dims: str) -> None:
    nodes = [node("SequenceConstruct", "a b c", "s"), node("ConcatFromSequence", "s", "y", axis=axis)]
    check(nodes, THREE, dims=dims)


@DIMS
@pytest.mark.parametrize("axis", [0, 1, -1, 2])
def test_construct_and_stack(axis: int, dims: str) -> None:
    nodes = [node("SequenceConstruct", "a b a", "s"), node("ConcatFromSequence", "s", "y", axis=axis, new_axis=1)]
    check(nodes, {"a": normal(2, 3), "b": normal(2, 3)}, dims=dims)


@DIMS
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("position", POSITIONS)
def test_insert(position: int | None, computed: bool, dims: str) -> None:
    name, constants, feeds = position_of(position, computed)
    nodes = [
        node("SequenceConstruct", "a b", "s"),
        node("SequenceInsert", f"s c{name}", "t"),
        node("ConcatFromSequence", "t", "y", axis=1),
    ]
    check(nodes, {**THREE, **feeds}, wrt=["a", "b", "c"], constants=constants, dims=dims)


@DIMS
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("position", [*POSITIONS, -3])
def test_erase(position: int | None, computed: bool, dims: str) -> None:
    name, constants, feeds = position_of(position, computed)
    nodes = [
        node("SequenceConstruct", "a b c", "s"),
        node("SequenceErase", f"s{name}", "t"),
        node("ConcatFromSequence", "t", "y", axis=1),
    ]
    check(nodes, {**THREE, **feeds}, wrt=["a", "b", "c"], constants=constants, dims=dims)


@DIMS
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("position", [0, 1, 2, -1, -2, -3])
def test_at(position: int, computed: bool, dims: str) -> None:
    name, constants, feeds = position_of(position, computed)
    nodes = [node("SequenceConstruct", "a b c", "s"), node("SequenceAt", f"s{name}", "y")]
    check(nodes, {**THREE, **feeds}, wrt=["a", "b", "c"], constants=constants, dims=dims)


@DIMS
def test_reads_of_one_sequence_add_up(dims: str) -> None:
    """Two elements are read, one of them twice, and the whole sequence twice: updates onto a sum of sequences."""
    nodes = [
        node("SequenceConstruct", "a b c", "s"),
        node("SequenceAt", "s last", "u"),
        node("SequenceAt", "s p0", "v"),
        node("SequenceAt", "s p0", "w"),
        node("ConcatFromSequence", "s", "q", axis=1),
        node("SequenceErase", "s p1", "t"),
        node("ConcatFromSequence", "t", "r", axis=1),
        node("Mul", "v w", "m"),
        node("Concat", "u m q r", "y", axis=1),
    ]
    check(nodes, THREE, constants=CONSTANTS, dims=dims)


SPLITS = [
    pytest.param(None, {"axis": 1}, id="ones"),
    pytest.param(None, {"axis": 1, "keepdims": 0}, id="ones-without-axis"),
    pytest.param(None, {"axis": -2, "keepdims": 0}, id="ones-without-negative-axis"),
    pytest.param(np.asarray(2), {"axis": 1}, id="equal"),
    pytest.param(np.asarray(2), {"axis": -1}, id="equal-negative-axis"),
    pytest.param(np.asarray([1, 3, 1]), {"axis": 1}, id="sizes"),
    pytest.param(np.asarray([3, 0, 2], np.int32), {"axis": 1}, id="sizes-int32"),
]


@DIMS
@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize(("split", "attributes"), SPLITS)
def test_split_to_sequence(split: np.ndarray | None, attributes: dict[str, int], computed: bool, dims: str) -> None:
    feeds = {"x": normal(2, 5)}
    sizes = {} if split is None else {"n": split}
    nodes = [
        node("SplitToSequence", "x" if split is None else "x n", "s", **attributes),
        node("SequenceAt", "s last", "u"),
        node("SequenceAt", "s p0", "v"),
        node("Reshape", "u flat", "u1"),
        node("Reshape", "v flat", "v1"),
        node("Concat", "u1 v1", "y", axis=0),
    ]
    constants = {**CONSTANTS, "flat": np.array([-1]), **({} if computed else sizes)}
    check(nodes, {**feeds, **(sizes if computed else {})}, wrt=["x"], constants=constants, dims=dims)


def test_split_of_an_empty_axis() -> None:
    """The sequence is empty, and a Loop over it does not run."""
    body = graph(
        "body",
        [
            node("SequenceAt", "s i", "e"),
            node("Add", "total e", "next"),
            node("Identity", "go", "go_on"),
        ],
        [tensor("i", TensorProto.INT64, []), tensor("go", TensorProto.BOOL, []), tensor("total")],
        [tensor("go_on", TensorProto.BOOL, []), tensor("next")],
    )
    nodes = [
        node("SplitToSequence", "x", "s", axis=0, keepdims=0),
        node("SequenceLength", "s", "n"),
        node("Loop", "n - z", "y", body=body),
    ]
    for rows in (0, 3):
        found = check(nodes, {"x": normal(rows, 2), "z": normal(2)}, dims="symbolic")
        assert "x_grad" not in found or found["x_grad"].shape == (rows, 2)


def collecting_loop(elem: int) -> list[onnx.NodeProto]:
    """Step i appends x[:i + 1] * w to a carried sequence, whose elements so differ in shape."""
    body = graph(
        "body",
        [
            node("Add", "i one", "end"),
            node("Unsqueeze", "end zero", "ends"),
            node("Slice", "x zero ends", "part"),
            node("Mul", "part w", "scaled"),
            node("SequenceInsert", "carry scaled", "next"),
            node("Identity", "go", "go_on"),
        ],
        [tensor("i", TensorProto.INT64, []), tensor("go", TensorProto.BOOL, []), sequence("carry", elem)],
        [tensor("go_on", TensorProto.BOOL, []), sequence("next", elem)],
    )
    return [
        node("SequenceEmpty", "", "empty", dtype=elem),
        node("Loop", "trips - empty", "s", body=body),
        node("ConcatFromSequence", "s", "y", axis=0),
    ]


@DIMS
@pytest.mark.parametrize("trips", [1, 3])
def test_sequence_carried_by_a_loop(trips: int, dims: str) -> None:
    constants = {"one": np.asarray(1), "zero": np.array([0]), "trips": np.asarray(trips)}
    check(collecting_loop(DOUBLE), {"x": normal(4, 2), "w": normal(2)}, constants=constants, dims=dims)


def test_half_precision_sequence_keeps_its_type() -> None:
    constants = {"one": np.asarray(1), "zero": np.array([0]), "trips": np.asarray(3)}
    feeds = {"x": normal(4, 2).astype(np.float16), "w": normal(2).astype(np.float16)}
    check(collecting_loop(TensorProto.FLOAT16), feeds, constants=constants, dims="symbolic", rtol=6e-2, atol=1e-2)


@DIMS
@pytest.mark.parametrize("stop", [1, 3])
def test_captured_sequence_read_by_a_loop(stop: int, dims: str) -> None:
    """The total of the elements times the carry; elements that no iteration reads get zeros."""
    body = graph(
        "body",
        [
            node("SequenceAt", "s i", "e"),
            node("Mul", "e total", "m"),
            node("Add", "m e", "next"),
            node("Identity", "go", "go_on"),
        ],
        [tensor("i", TensorProto.INT64, []), tensor("go", TensorProto.BOOL, []), tensor("total")],
        [tensor("go_on", TensorProto.BOOL, []), tensor("next")],
    )
    nodes = [node("SequenceConstruct", "a b c", "s"), node("Loop", "trips - z", "y", body=body)]
    feeds = {name: normal(2, 2) for name in ("a", "b", "c", "z")}
    check(nodes, feeds, constants={"trips": np.asarray(stop)}, dims=dims)


@DIMS
@pytest.mark.parametrize("flag", [True, False])
def test_sequence_out_of_a_branch(flag: bool, dims: str) -> None:
    then = graph("then", [node("SequenceConstruct", "a b", "s1")], [], [sequence("s1")])
    orelse = graph("else", [node("SequenceConstruct", "b", "s2")], [], [sequence("s2")])
    nodes = [
        node("If", "flag", "s", then_branch=then, else_branch=orelse),
        node("ConcatFromSequence", "s", "y", axis=1),
    ]
    check(nodes, {"a": normal(2, 3), "b": normal(2, 1), "flag": np.asarray(flag)}, wrt=["a", "b"], dims=dims)


@DIMS
@pytest.mark.parametrize("flag", [True, False])
def test_sequence_read_in_a_branch(flag: bool, dims: str) -> None:
    then = graph("then", [node("SequenceAt", "s p1", "t1")], [], [tensor("t1")])
    orelse = graph("else", [node("ConcatFromSequence", "s", "t2", axis=1)], [], [tensor("t2")])
    nodes = [
        node("SequenceConstruct", "a b", "s"),
        node("If", "flag", "y", then_branch=then, else_branch=orelse),
    ]
    feeds = {"a": normal(2, 3), "b": normal(2, 1), "flag": np.asarray(flag)}
    check(nodes, feeds, wrt=["a", "b"], constants=CONSTANTS, dims=dims)
