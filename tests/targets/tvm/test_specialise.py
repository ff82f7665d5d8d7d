"""Bodies made for the inputs that they meet: the same numbers, static shapes, and no more than was met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_cfad.model import load
from onnx_cfad.rewriters.legalise import TABLES
from onnx_cfad.targets.onnxruntime import OnnxRuntimeBody, onnxruntime_bodies
from onnx_cfad.targets.tvm.hostprog import Machine
from onnx_cfad.targets.tvm.partition import partition
from onnx_cfad.targets.tvm.signatures import signature_of
from onnx_cfad.targets.tvm.specialise import meet, specialised
from tests.corpus import CORPUS
from tests.graph.reading import parsed
from tests.targets.tvm.host_corpus import Case, corpus_case

OPEN = frozenset(("Compress", "NonZero", "Unique"))
"""Operators whose results have shapes that floating-point values decide."""


def assert_specialised_bodies_agree(case: Case, target: str) -> None:
    """Every call of every body gives the same in its specialised form, all shapes of which are known."""
    parts = partition(load(case.model))
    met, _ = meet(parts, case.feeds)
    plain = onnxruntime_bodies(parts.bodies, threads=1)
    made: dict[Any, OnnxRuntimeBody] = {}

    def checked(name: str) -> Any:
        def call(values: Sequence[Any]) -> Sequence[Any]:
            signature = signature_of([np.asarray(value) for value in values], met[name].guarded)
            if (name, signature) not in made:
                model = specialised(parts.bodies[name], signature, target)
                onnx.checker.check_model(ir.to_proto(model), full_check=True)
                assert_static(model)
                made[name, signature] = OnnxRuntimeBody(name, model, threads=1)
            expected, found = plain[name](values), made[name, signature](values)
            for a, b in zip(expected, found, strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                scale = float(np.max(np.abs(a), initial=0.0)) if a.dtype.kind == "f" else 0.0
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5 * scale)
            return expected

        return call

    Machine(parts.program, {name: checked(name) for name in parts.bodies}).run(case.feeds)


def assert_static(model: ir.Model) -> None:
    if any(node.op_type in OPEN for node in model.graph):
        return
    for node in model.graph:
        for output in node.outputs:
            assert output.shape is not None, f"{node.op_type} {output.name}"
            assert output.shape.is_static(), f"{node.op_type} {output.name}: {output.shape}"


@pytest.mark.parametrize("target", TABLES)
def test_specialised_bodies_of_some_of_the_corpus(target: str) -> None:
    names = ("growing_carry_until_stop", "carry_changes_rank", "slice_by_index_then_reduced", "unranked_in_branch")
    for name in names:
        case = corpus_case(CORPUS["shapes"][name], "taped")
        assert case is not None
        assert_specialised_bodies_agree(case, target)


@pytest.mark.slow
@pytest.mark.parametrize("group", CORPUS)
def test_specialised_bodies_of_the_corpus(group: str) -> None:
    for maker in CORPUS[group].values():
        case = corpus_case(maker, "taped")
        if case is not None and "random" not in case.model.graph.name:
            assert_specialised_bodies_agree(case, "relay")


GROWING = """(float[3] x, int64 n) => (float[3] y) {
    zero = Constant <value_ints = [0]> ()
    y = Loop (n, , x) <body = body (int64 i, bool go, float[3] h) => (bool again, float[3] next) {
        again = Identity (go)
        one = Constant <value_ints = [1]> ()
        at = Unsqueeze (i, zero)
        end = Add (at, one)
        head = Slice (h, zero, end, zero)
        t = ReduceSum <keepdims = 0> (head, zero)
        s = Sin (t)
        next = Add (h, s)
    }>
}"""


def test_values_that_decide_shapes_are_part_of_the_signature() -> None:
    parts = partition(parsed(GROWING))
    met, results = meet(parts, {"x": np.ones(3, np.float32), "n": np.asarray(3)})
    (record,) = met.values()
    assert record.calls == 3
    assert [signature[record.guarded[0]] for signature in record.counts] == [("int64", (), (k,)) for k in range(3)]
    assert results["y"].shape == (3,)


def test_signatures_beyond_the_limit_are_counted_but_not_kept() -> None:
    parts = partition(parsed(GROWING))
    met, _ = meet(parts, {"x": np.ones(3, np.float32), "n": np.asarray(3)}, most=2)
    (record,) = met.values()
    assert (record.calls, len(record.counts)) == (3, 2)


def test_body_of_a_branch_that_is_not_taken_meets_nothing() -> None:
    text = """(bool c, float[4] x) => (float[4] y) {
        y = If (c) <
            then_branch = t () => (float[4] p) { p = Exp (x) }, else_branch = e () => (float[4] q) { q = Neg (x) }>
    }"""
    met, _ = meet(partition(parsed(text)), {"c": np.array(False), "x": np.zeros(4, np.float32)})
    assert list(met) == ["main/y/else/0"]
