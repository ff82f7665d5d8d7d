"""Loops in two levels give what they gave in one, bit for bit, rows and conditions included."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_cfad.graph.types import infer_types
from onnx_cfad.model import load, normalise
from onnx_cfad.rewriters.scan_to_loop import ScanToLoopPass
from onnx_cfad.rewriters.strip_mine import StripMinePass, block_size
from onnx_cfad.rewriters.supply_limits import SupplyLimitsPass
from tests.corpus import CORPUS
from tests.graph.reading import nodes, parsed
from tests.rewriters.check_pass import Feeds, operators, run
from tests.targets.tvm.host_corpus import corpus_case

UNRANKED = {"carry_changes_rank", "unranked_carry", "unranked_in_branch", "unranked_early_exit"}
"""Outputs of no declared rank, which the full check of onnx wants."""


def split(model: ir.Model, longest: int = 1) -> ir.Model:
    infer_types(model)
    SupplyLimitsPass()(model)
    infer_types(model)
    ScanToLoopPass()(model)
    infer_types(model)
    StripMinePass(longest)(model)
    infer_types(model)
    return model


def flat(values: list[Any]) -> list[Any]:
    return [v for value in values for v in (flat(value) if isinstance(value, list) else [value])]


def assert_equal(model: ir.Model, expected: list[Any], feeds: Feeds) -> None:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    for found, wanted in zip(flat(run(proto, feeds)), flat(expected), strict=True):
        if wanted is None:
            assert found is None
        else:
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


LOOP = """(float[3] x, int64 n, bool start) => (float[3] y, float[rows, 3] hs, int64[rows] is) {
    y, hs, is = Loop (n, start, x) <body = step (int64 i, bool on, float[3] h)
        => (bool go, float[3] next, float[3] row, int64 number) {
        PREDICATE  k = Cast <to = 1> (i)  s = Sin (h)  next = Add (s, k)  row = Neg (next)  number = Identity (i)
    }>
}"""
PREDICATES = {
    "endless": "go = Identity (on)",
    "until_the_eleventh": "ten = Constant <value_int = 10> ()  go = Less (i, ten)",
    "never": "go = Constant <value = bool {0}> ()",
    "by_value": "big = Constant <value_float = 20.0> ()  top = ReduceMax <keepdims = 0> (h)  go = Less (top, big)",
}


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("trips", [-1, 0, 1, 255, 256, 257, 700])
@pytest.mark.parametrize("predicate", PREDICATES)
def test_limit_that_the_run_knows(predicate: str, trips: int, start: bool) -> None:
    model = parsed(LOOP.replace("PREDICATE", PREDICATES[predicate]))
    feeds = {"x": np.array([0.1, 0.5, 2], np.float32), "n": np.array(trips), "start": np.array(start)}
    expected = run(ir.to_proto(model), feeds)
    split(model)
    assert operators(model).count("Loop") == 2
    assert_equal(model, expected, feeds)


@pytest.mark.parametrize("trips", [0, 1, 2, 36, 37, 40])
@pytest.mark.parametrize("predicate", PREDICATES)
def test_limit_that_the_model_says(predicate: str, trips: int) -> None:
    text = LOOP.replace("PREDICATE", PREDICATES[predicate]).replace("(n, start, x)", "(n, , x)")
    text = text.replace("float[3] x, int64 n, bool start", "float[3] x").replace(
        "{\n    y,", f"<int64 n = {{{trips}}}> {{\n    y,", 1
    )
    model = parsed(text)
    feeds = {"x": np.array([0.1, 0.5, 2], np.float32)}
    expected = run(ir.to_proto(model), feeds)
    split(model)
    assert_equal(model, expected, feeds)


def test_short_loop_stays() -> None:
    text = """(float[3] x) => (float[3] y) <int64 n = {10}> {
        y = Loop (n, , x) <body = step (int64 i, bool on, float[3] h) => (bool go, float[3] next) {
            go = Identity (on)  next = Sin (h)
        }>
    }"""
    assert operators(split(parsed(text), 10)).count("Loop") == 1
    assert operators(split(parsed(text), 9)).count("Loop") == 2


def test_rows_of_unknown_shape_stay_in_one_loop() -> None:
    text = """(float[k] x) => (float[20, k] y) <int64 n = {20}> {
        y = Loop (n, ) <body = step (int64 i, bool on) => (bool go, float[k] row) {
            go = Identity (on)  row = Sin (x)
        }>
    }"""
    assert operators(split(parsed(text))).count("Loop") == 1


def test_blocks_of_equal_size_need_no_padding() -> None:
    assert block_size(100_000) == 400
    assert block_size(36) == 6
    assert block_size(37) == 7
    text = """(float[3] x) => (float[36, 3] y) <int64 n = {36}> {
        y = Loop (n, ) <body = step (int64 i, bool on) => (bool go, float[3] row) {
            go = Identity (on)  k = Cast <to = 1> (i)  row = Mul (x, k)
        }>
    }"""
    model = split(parsed(text))
    assert not nodes(model, "Pad")
    assert not nodes(model, "Slice")


CASES = [
    (name, maker)
    for makers in CORPUS.values()
    for name, maker in makers.items()
    if name not in UNRANKED and "random" not in name
]


@pytest.mark.parametrize("maker", [maker for _, maker in CASES[::3]], ids=[name for name, _ in CASES[::3]])
def test_corpus(maker: Any) -> None:
    example = maker("float")
    model = normalise(load(example.model))
    expected = run(ir.to_proto(model), example.feeds)
    assert_equal(split(model, 0), expected, example.feeds)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["primal", "taped", "checkpointed"])
@pytest.mark.parametrize("size", [None, 2, 3])
def test_whole_corpus_and_its_gradients(form: str, size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if size is not None:
        monkeypatch.setattr("onnx_cfad.rewriters.strip_mine.block_size", lambda _: size)
    for _, maker in CASES:
        case = corpus_case(maker, form)
        model = None if case is None else normalise(load(case.model))
        if case is None or model is None or any(value.shape is None for value in model.graph.outputs):
            continue
        shapes = [value.shape for value in model.graph.outputs]
        expected = run(ir.to_proto(model), case.feeds)
        found = split(model, 0)
        for value, declared in zip(found.graph.outputs, shapes, strict=True):
            value.shape = declared  # branches of two ranks: what the gradient declares cannot be inferred again
        assert_equal(found, expected, case.feeds)
