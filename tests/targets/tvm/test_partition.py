"""A model in two parts, its bodies run by ONNX Runtime, gives what ONNX Runtime gives for the whole.

Nearly all results are equal bit for bit. A few are not, by rounding: inside a body ONNX Runtime reads an array where
the host put it, and its vectorised kernels round differently by how that address is aligned; a fixed point that
iterates until two values agree may then take a step more.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_cfad.model import load
from onnx_cfad.runtime import Session
from onnx_cfad.targets.onnxruntime import run_partition
from onnx_cfad.targets.tvm.hostprog import Call, HostProgram, Repeat
from onnx_cfad.targets.tvm.partition import Partition, partition
from tests.corpus import CORPUS
from tests.graph.reading import parsed
from tests.targets.tvm.host_corpus import FORMS, Case, corpus_case, exported_case, exported_names

CONTROL_FLOW = {"If", "Loop", "Scan"}


def compare(case: Case) -> tuple[int, int]:
    """How many of the outputs are equal bit for bit, of how many; all of them are equal but for rounding."""
    expected = Session(case.model, threads=1).run(case.feeds)
    parts = partition(load(case.model))
    for body in parts.bodies.values():
        assert not CONTROL_FLOW & {node.op_type for node in body.graph}
        assert not any("Sequence" in node.op_type or "Optional" in node.op_type for node in body.graph)
    program = HostProgram.from_json(parts.program.to_json())
    found = run_partition(Partition(program, parts.bodies), case.feeds, threads=1)
    assert list(found) == list(expected)
    flat = [pair for name in expected for pair in _pairs(expected[name], found[name])]
    for wanted, value in flat:
        assert wanted.dtype == value.dtype
        assert wanted.shape == value.shape
        if wanted.dtype.kind == "f":
            scale = float(np.max(np.abs(wanted), initial=0.0, where=np.isfinite(wanted)))
            np.testing.assert_allclose(value, wanted, rtol=1e-3, atol=1e-4 * scale)
        else:
            np.testing.assert_array_equal(value, wanted)
    return sum(wanted.tobytes() == value.tobytes() for wanted, value in flat), len(flat)


def _pairs(a: Any, b: Any) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    if isinstance(a, list):
        assert isinstance(b, list)
        return [pair for x, y in zip(a, b, strict=True) for pair in _pairs(x, y)]
    if a is None:
        assert b is None
        return []
    return [(np.asarray(a), np.asarray(b))]


def assert_nearly_all_equal(counts: list[tuple[int, int]]) -> None:
    equal, total = (sum(column) for column in zip(*counts, strict=True))
    assert equal >= 0.95 * total, f"{total - equal} of {total} outputs are rounded differently"


@pytest.mark.parametrize("group", CORPUS)
def test_corpus_in_two_parts(group: str) -> None:
    """Each model in one of its forms."""
    makers = CORPUS[group].items()
    forms = {name: FORMS[zlib.crc32(name.encode()) % len(FORMS)] for name, _ in makers}
    cases = [corpus_case(maker, forms[name]) or corpus_case(maker, "primal") for name, maker in makers]
    assert_nearly_all_equal([compare(case) for case in cases if case is not None])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("group", CORPUS)
def test_corpus_in_two_parts_in_every_form(group: str, form: str) -> None:
    cases = [corpus_case(maker, form) for maker in CORPUS[group].values()]
    assert_nearly_all_equal([compare(case) for case in cases if case is not None] or [(1, 1)])


CLOSE = {("own", "cond_resnet"), ("own", "heat"), ("reference", "heat2d_10k"), ("reference", "moe_token_loop_if")}
"""Results are close, not the same: ONNX Runtime fuses a Conv with what lies in another body (with its optimisations off
they are the same), and in the last one they differ in rounding for a reason that is not known."""


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), list(exported_names()))
def test_exported_model_in_two_parts(group: str, name: str) -> None:
    counts = [compare(exported_case(group, name, form)) for form in ("primal", "auto")]
    assert (group, name) in CLOSE or all(equal == total for equal, total in counts), counts


LOOP = """(float[3] x, float[3] w, int64 n) => (float[3] y, float[n, 3] hs) {
    a = Sin (x)
    y, hs = Loop (n, , a) <body = body (int64 i, bool go, float[3] h) => (bool again, float[3] next, float[3] row) {
        again = Identity (go)
        b = Mul (h, w)
        next = Add (b, x)
        row = Identity (next)
    }>
}"""


def test_straight_line_loop_body_is_one_call() -> None:
    parts = partition(parsed(LOOP))
    call, loop = parts.program.main.steps
    assert isinstance(call, Call)
    assert isinstance(loop, Repeat)
    assert (loop.index, loop.predicate, loop.proceed) == ("", "", "")
    assert [step.outputs for step in loop.body.steps if isinstance(step, Call)] == [("next",)]
    assert list(parts.bodies) == ["main/0", f"{loop.site}/body/0"]


def test_model_is_not_changed() -> None:
    model = parsed(LOOP)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    partition(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_same_model_gives_the_same_parts() -> None:
    first, second = (partition(parsed(LOOP)) for _ in range(2))
    assert first.program.to_json() == second.program.to_json()
    for name, body in first.bodies.items():
        assert ir.to_proto(body).SerializeToString() == ir.to_proto(second.bodies[name]).SerializeToString()


def test_bodies_are_valid_models() -> None:
    for body in partition(parsed(LOOP)).bodies.values():
        onnx.checker.check_model(ir.to_proto(body), full_check=True)


def test_whole_loop_is_a_body_of_its_own() -> None:
    parts = partition(parsed(LOOP), whole=lambda node: node.op_type == "Loop")
    assert [node.op_type for node in parts.bodies["main/0"].graph] == ["Sin"]
    assert [node.op_type for node in parts.bodies["main/0.0"].graph] == ["Loop"]
    feeds = {"x": np.array([1, 2, 3], np.float32), "w": np.array([1, -1, 1], np.float32), "n": np.asarray(4)}
    expected = Session(parsed(LOOP), threads=1).run(feeds)
    for name, value in run_partition(parts, feeds, threads=1).items():
        np.testing.assert_array_equal(value, expected[name])


def test_two_sites_that_do_not_depend_on_each_other_need_no_body_between() -> None:
    text = """(float[3] x, bool c) => (float[3] y) {
        a = If (c) <
            then_branch = t () => (float[3] p) { p = Sin (x) }, else_branch = e () => (float[3] q) { q = Cos (x) }>
        z = Neg (x)
        b = If (c) <
            then_branch = t () => (float[3] r) { r = Exp (z) }, else_branch = e () => (float[3] s) { s = Abs (z) }>
        d = Mul (a, b)
        y = Add (d, z)
    }"""
    program = partition(parsed(text)).program
    assert [type(step).__name__ for step in program.main.steps] == ["Call", "Branch", "Branch", "Call"]


def test_default_of_an_input_and_outputs_that_are_not_computed() -> None:
    text = """(float[2] x, float[2] w = {1, 2}) => (float[2] y, float[2] z, float[2] v) <float[2] k = {3, 4}> {
        y = Identity (x)
        z = Identity (k)
        v = Identity (w)
    }"""
    parts = partition(parsed(text))
    assert not parts.program.main.steps
    found = run_partition(parts, {"x": np.array([5, 6], np.float32)})
    assert {name: list(value) for name, value in found.items()} == {"y": [5, 6], "z": [3, 4], "v": [1, 2]}
