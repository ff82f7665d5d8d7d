"""Optionals that cross control flow as lists, and as lists with a flag: no number and no interface changes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnx_cfad.graph.types import infer_types
from onnx_cfad.rewriters.flag_optionals import FlagOptionalListsPass
from onnx_cfad.rewriters.hide_ranks import HideRanksPass
from onnx_cfad.rewriters.list_optionals import ListOptionalsPass
from tests.rewriters.check_pass import assert_pass_keeps_meaning, operators

SWITCH = """(double[2] x, int64 n) => (double[2] y) {
    none = Optional <type: type_proto = KIND> ()
    a, r = Loop (n, , x, none) <body = body (int64 i, bool go, double[2] v, optional(KIND) e) =>
        (bool on, double[2] u, optional(KIND) m) {
        on = Identity (go)
        some = Optional (HELD)
        full = OptionalHasElement (e)
        again = OptionalHasElement (some)
        u = If (full) <
            then_branch = yes () => (double[2] b) { g = OptionalGetElement (e)  READ  b = Add (s, x) },
            else_branch = no () => (double[2] c) { c = Sin (v) }>
        m = If (full) <
            then_branch = drop () => (optional(KIND) d) { d = Optional <type: type_proto = KIND> () },
            else_branch = keep () => (optional(KIND) f) { f = Identity (some) }>
    }>
    full = OptionalHasElement (r)
    y = If (full) <
        then_branch = yes () => (double[2] p) { g = OptionalGetElement (r)  READ  p = Neg (s) },
        else_branch = no () => (double[2] q) { q = Identity (a) }>
}"""
"""There is something after every second iteration."""


def switch(kind: str) -> str:
    text = SWITCH.replace("KIND", kind)
    if kind.startswith("seq"):
        text = text.replace("some = Optional (HELD)", "l = SequenceConstruct (v, x)  some = Optional (l)")
        return text.replace("READ", "k = Constant <value = int64 {0}> ()  s = SequenceAt (g, k)")
    return text.replace("HELD", "v").replace("READ", "s = Identity (g)")


@pytest.mark.parametrize("kind", ["seq(double[2])", "double[2]"])
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_what_comes_and_goes(kind: str, n: int) -> None:
    make = FlagOptionalListsPass if kind.startswith("seq") else ListOptionalsPass
    feeds = {"x": np.array([0.3, -2.0]), "n": np.array(n)}
    result = assert_pass_keeps_meaning(lambda _: make(), switch(kind), feeds)
    assert not {"Optional", "OptionalHasElement", "OptionalGetElement"}.intersection(operators(result))


@pytest.mark.parametrize(
    ("make", "kind"), [(FlagOptionalListsPass, "double[2]"), (ListOptionalsPass, "seq(double[2])")]
)
def test_each_leaves_the_others_alone(make: type[ir.passes.PassBase], kind: str) -> None:
    feeds = {"x": np.array([0.3, -2.0]), "n": np.array(2)}
    assert_pass_keeps_meaning(lambda _: make(), switch(kind), feeds, modifies=False)


MIXED = """(double x, int64 n) => (int64 y) {
    s = SequenceConstruct (x)
    r = Loop (n, , s) <body = body (int64 i, bool go, seq(double) e) => (bool on, seq(double) m) {
        on = Identity (go)
        v = Constant <value = double[2] {1, 2}> ()
        w = WHAT
        m = SequenceInsert (e, w)
    }>
    y = SequenceLength (r)
}"""


def _hidden(model: ir.Model) -> HideRanksPass:
    infer_types(model)
    return HideRanksPass()


def test_elements_of_other_ranks_are_not_promised() -> None:
    feeds = {"x": np.array(0.3), "n": np.array(2)}
    result = assert_pass_keeps_meaning(_hidden, MIXED.replace("WHAT", "Mul (v, x)"), feeds)
    assert operators(result)[1:5] == ["Constant", "Constant", "SequenceInsert", "SequenceErase"]
    assert_pass_keeps_meaning(_hidden, MIXED.replace("WHAT", "Mul (x, x)"), feeds, modifies=False)
