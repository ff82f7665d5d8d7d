"""Which values a derivative passes through."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.activity import Activity, find_activity
from onnx_cfad.graph.types import infer_types
from tests.graph.reading import parsed, values

PIECEWISE_CONSTANT = frozenset(("Less", "Greater", "Equal", "Floor", "Shape"))


def passes(node: ir.Node) -> bool:
    return node.op_type not in PIECEWISE_CONSTANT


class Found:
    """The activity of a model, asked by names."""

    def __init__(self, text: str, wrt: tuple[str, ...], seeded: tuple[str, ...], stopped: tuple[str, ...] = ()) -> None:
        model = parsed(text)
        infer_types(model)
        self.values = values(model)
        self.activity: Activity = find_activity(
            model.graph,
            [self.values[n] for n in wrt],
            [self.values[n] for n in seeded],
            passes,
            frozenset(self.values[n] for n in stopped),
        )

    def active(self, *names: str) -> list[bool]:
        return [self.activity.is_active(self.values[name]) for name in names]


LOOP = """(float[3] x, float[3] w, float[3] v) => (float[3] y, float[3] z) <int64 trips = {4}> {
    y, z = Loop (trips, , x, w) <body = b (int64 i, bool c, float[3] a, float[3] k)
        => (bool d, float[3] e, float[3] l) {
        d = Identity (c)
        s = Sin (a)
        e = Mul (s, v)
        l = Sin (k)
    }>
}"""


def test_carries_are_active_one_by_one() -> None:
    found = Found(LOOP, ("x", "w"), ("y",))
    assert found.active("x", "a", "s", "e", "y") == [True] * 5
    assert found.active("w", "k", "l", "z") == [False] * 4


def test_captured_value_makes_the_carry_active_and_not_its_start() -> None:
    found = Found(LOOP, ("v",), ("y",))
    assert found.active("v", "e", "y", "a", "s") == [True] * 5
    assert not found.activity.is_active(found.values["x"])


def test_value_behind_the_loop_only_is_not_useful() -> None:
    found = Found(LOOP, ("x",), ("z",))
    assert found.active("x", "a", "s", "e", "y") == [False] * 5


CHAIN = """(float[3] x, float[3] o) => (float[3] y) <int64 trips = {5}> {
    y, q, r = Loop (trips, , o, o, x) <body = body (int64 i, bool c, float[3] a, float[3] b, float[3] k)
        => (bool d, float[3] e, float[3] f, float[3] g) {
        d = Identity (c)
        e = Sin (b)
        f = Sin (k)
        g = Sin (k)
    }>
}"""


def test_chain_of_carries_is_followed_to_its_end() -> None:
    found = Found(CHAIN, ("x",), ("y",))
    assert found.active("x", "k", "g", "f", "b", "e", "y") == [True] * 7
    assert found.active("a", "o") == [False, False], "the first carry is overwritten each iteration"


def test_integers_and_booleans_are_never_active() -> None:
    found = Found(
        """(float[3] x, int64 n) => (float[3] y, int64 m) <int64 trips = {4}> {
        y, m = Loop (trips, , x, n) <body = b (int64 i, bool c, float[3] h, int64 k) => (bool d, float[3] g, int64 l) {
            d = Identity (c)
            count = Cast <to = 7> (h)
            first = ReduceSum <keepdims = 0> (count)
            l = Add (k, first)
            back = Cast <to = 1> (l)
            s = Sin (h)
            g = Mul (s, back)
        }>
    }""",
        ("x",),
        ("y",),
    )
    assert found.active("k", "l", "count", "first", "back") == [False] * 5
    assert found.active("h", "s", "g") == [True] * 3


def test_piecewise_constant_operator_cuts() -> None:
    found = Found(
        """(float[3] x) => (float[3] y) {
        f = Floor (x)
        s = Sin (f)
        t = Sin (x)
        y = Mul (s, t)
    }""",
        ("x",),
        ("y",),
    )
    assert found.active("f", "s") == [False, False]
    assert found.active("t", "y") == [True, True]


def test_stopped_value_cuts_what_lies_behind_it_only() -> None:
    found = Found(LOOP, ("x", "v"), ("y",), stopped=("s",))
    assert not found.activity.is_active(found.values["s"])
    assert found.active("v", "e", "y") == [True] * 3


def test_stopped_carry_stays_stopped_in_all_iterations() -> None:
    found = Found(LOOP, ("x", "v"), ("y",), stopped=("a",))
    assert found.active("a", "s") == [False] * 2
    assert found.active("v", "e", "y") == [True] * 3


def test_branch_that_does_not_depend_on_wrt_is_inactive() -> None:
    found = Found(
        """(float[3] x, float[3] w, bool p) => (float[3] y) {
        y = If (p) <
            then_branch = l () => (float[3] a) { s = Sin (x)  a = Mul (s, w) },
            else_branch = r () => (float[3] b) { b = Sin (w) }>
    }""",
        ("x",),
        ("y",),
    )
    assert found.active("x", "s", "a", "y") == [True] * 4
    assert found.active("w", "b") == [False, False]


def test_unread_branch_output_is_not_useful() -> None:
    found = Found(
        """(float[3] x, bool p) => (float[3] y, float[3] z) {
        y, z = If (p) <
            then_branch = l () => (float[3] a, float[3] b) { a = Sin (x)  b = Tanh (x) },
            else_branch = r () => (float[3] e, float[3] f) { e = Tanh (x)  f = Sin (x) }>
    }""",
        ("x",),
        ("y",),
    )
    assert found.active("a", "e", "y") == [True] * 3
    assert found.active("b", "f", "z") == [False] * 3


def test_value_captured_at_depth_three_is_active() -> None:
    found = Found(
        """(float[3] x, float[3] w, bool p) => (float[3] y) <int64 two = {2}> {
        y = Loop (two, , x) <body = one (int64 i, bool c, float[3] h) => (bool d, float[3] g) {
            d = Identity (c)
            g = Loop (two, , h) <body = two (int64 j, bool e, float[3] f) => (bool k, float[3] l) {
                k = Identity (e)
                l = If (p) <
                    then_branch = t () => (float[3] a) { a = Mul (f, w) },
                    else_branch = u () => (float[3] b) { b = Sin (f) }>
            }>
        }>
    }""",
        ("w",),
        ("y",),
    )
    assert found.active("w", "a", "l", "f", "b", "g", "h", "y") == [True] * 8
    assert not found.activity.is_active(found.values["x"])


def test_slices_and_stacked_outputs_of_a_scan_are_active() -> None:
    found = Found(
        """(float[4, 3] xs, float[4, 3] us) => (float[4, 3] ys, float[4, 3] zs) {
        ys, zs = Scan <num_scan_inputs = 2, body = b (float[3] x, float[3] u) => (float[3] y, float[3] z) {
            y = Sin (x)
            z = Sin (u)
        }> (xs, us)
    }""",
        ("xs", "us"),
        ("ys",),
    )
    assert found.active("xs", "x", "y", "ys") == [True] * 4
    assert found.active("us", "u", "z", "zs") == [False] * 4


def test_zero_trips_keep_the_start_active() -> None:
    """The final carry is the initial one when the loop does not run, whatever the body does."""
    found = Found(
        """(float[3] x, int64 n) => (float[3] y) {
        y = Loop (n, , x) <body = b (int64 i, bool c, float[3] h) => (bool d, float[3] g) {
            d = Identity (c)
            f = Floor (h)
            g = Sin (f)
        }>
    }""",
        ("x",),
        ("y",),
    )
    assert found.active("x", "y") == [True, True]


def test_what_reaches_a_selecting_operator_may_be_cut() -> None:
    found = Found(
        """(float[3] x, bool[3] m) => (float[3] y) {
        l = Log (x)
        s = Sin (x)
        k = Where (m, l, x)
        y = Mul (k, s)
    }""",
        ("x",),
        ("y",),
    )
    assert found.values["l"] in found.activity.cuttable
    assert found.values["s"] not in found.activity.cuttable


def test_sequence_of_floats_is_active() -> None:
    found = Found(
        """(float[3] x, int64 n) => (float[a] y) {
        none = SequenceEmpty ()
        all = Loop (n, , none) <body = b (int64 i, bool c, seq(float[3]) q) => (bool d, seq(float[3]) r) {
            d = Identity (c)
            s = Sin (x)
            r = SequenceInsert (q, s)
        }>
        y = ConcatFromSequence <axis = 0> (all)
    }""",
        ("x",),
        ("y",),
    )
    assert found.active("x", "s", "r", "q", "all", "y") == [True] * 6
