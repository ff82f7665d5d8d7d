"""Sequences as rows of tensors give what they gave as sequences, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

from onnx_cfad.graph.types import infer_types
from onnx_cfad.model import load, normalise
from onnx_cfad.rewriters.legalise import fold_known
from onnx_cfad.rewriters.preallocate_sequences import PreallocateSequencesPass
from tests.corpus import CORPUS
from tests.graph.reading import nodes, parsed
from tests.rewriters.check_pass import Feeds, assert_pass_keeps_meaning, operators, run
from tests.targets.tvm.host_corpus import corpus_case

X = {"x": np.array([0.5, -1.25, 2], np.float32)}


def rewriting(most: int | None = None, *, computed: bool = True) -> Callable[[ir.Model], PreallocateSequencesPass]:
    """Makes the pass for a model, whose types are inferred before."""

    def make(model: ir.Model) -> PreallocateSequencesPass:
        infer_types(model)
        return PreallocateSequencesPass(most, computed=computed)

    return make


def sequences_in(model: ir.Model) -> list[str | None]:
    values = [v for node in model.graph.all_nodes() for v in (*node.inputs, *node.outputs) if v is not None]
    return [value.name for value in values if isinstance(value.type, ir.SequenceType)]


def assert_becomes_tensors(text: str, feeds: Feeds) -> ir.Model:
    model = assert_pass_keeps_meaning(rewriting(), text, feeds)
    assert not sequences_in(model)
    return model


COLLECTED = """(float[3] x, int64 n) => (float[m, 3] y, int64 k) {
    none = SequenceEmpty <dtype = 1> ()
    last, all = Loop (n, , x, none) <body = step (int64 i, bool on, float[3] h, seq(float[3]) q)
        => (bool go, float[3] next, seq(float[3]) r) {
        go = Identity (on)  next = Sin (h)  r = SequenceInsert (q, next)
    }>
    some = SequenceInsert (all, x)
    y = ConcatFromSequence <axis = 0, new_axis = 1> (some)
    k = SequenceLength (all)
}"""


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_loop_that_only_collects_stacks_what_it_collects(trips: int) -> None:
    model = assert_becomes_tensors(COLLECTED, {**X, "n": np.array(trips)})
    assert not nodes(model, "ScatterND")
    (loop,) = nodes(model, "Loop")
    assert len(loop.outputs) == 2


READ = """(float[3] x, LIMIT) => (float[3] y, float[m, 3] all) CONSTANT {
    some = SequenceConstruct (x)
    seen, last = Loop (n, , some, x) <body = step (int64 i, bool on, seq(float[3]) q, float[3] h)
        => (bool go, seq(float[3]) r, float[3] next) {
        go = PREDICATE
        minus = Constant <value_int = -1> ()
        first = SequenceAt (q, i)  newest = SequenceAt (q, minus)
        s = Sin (first)  next = Add (s, newest)  r = SequenceInsert (q, next)
    }>
    y = Neg (last)
    all = ConcatFromSequence <axis = 0, new_axis = 1> (seen)
}"""
PREDICATES = {"always": "Identity (on)", "stops": "Less (i, two)"}


@pytest.mark.parametrize("predicate", PREDICATES)
@pytest.mark.parametrize("trips", [0, 1, 5])
@pytest.mark.parametrize("known", [True, False])
def test_loop_that_reads_what_it_inserts(trips: int, known: bool, predicate: str) -> None:
    text = READ.replace("PREDICATE", PREDICATES[predicate])
    text = text.replace("(float[3] x, LIMIT)", "(float[3] x)" if known else "(float[3] x, int64 n)")
    constants = [f"int64 n = {{{trips}}}"] * known + ["int64 two = {2}"] * (predicate == "stops")
    text = text.replace("CONSTANT", f"<{', '.join(constants)}>" if constants else "")
    model = assert_becomes_tensors(text, X if known else {**X, "n": np.array(trips)})
    assert len(nodes(model, "ScatterND")) == 1
    if known:
        (loop,) = nodes(model, "Loop")
        assert [str(v.shape) for v in loop.inputs if v is not None][1] == f"[{trips + 1},3]"


TAPE = """(float[3] x, int64 n) => (float[3] y, float[3] back) {
    none = SequenceEmpty <dtype = 1> ()
    y, tape = Loop (n, , x, none) <body = forward (int64 i, bool on, float[3] h, seq(float[3]) q)
        => (bool go, float[3] next, seq(float[3]) r) {
        go = Identity (on)  next = Sin (h)  r = SequenceInsert (q, h)
    }>
    one = Constant <value_int = 1> ()
    end = Sub (n, one)
    back = Loop (n, , x) <body = reverse (int64 j, bool on2, float[3] ct) => (bool go2, float[3] before) {
        go2 = Identity (on2)
        at = Sub (end, j)  saved = SequenceAt (tape, at)  c = Cos (saved)  before = Mul (ct, c)
    }>
}"""
POPPED = TAPE.replace(
    "back = Loop (n, , x) <body = reverse (int64 j, bool on2, float[3] ct) => (bool go2, float[3] before) {",
    """back, rest = Loop (n, , x, tape) <body = reverse (int64 j, bool on2, float[3] ct, seq(float[3]) t)
        => (bool go2, float[3] before, seq(float[3]) less) {""",
).replace("saved = SequenceAt (tape, at)", "saved = SequenceAt (t, at)  less = SequenceErase (t)")


@pytest.mark.parametrize("text", [TAPE, POPPED], ids=["read", "popped"])
@pytest.mark.parametrize("trips", [0, 1, 5])
def test_tape_that_is_read_in_reverse(text: str, trips: int) -> None:
    assert_becomes_tensors(text, {**X, "n": np.array(trips)})


IN_BRANCH = """(float[3] x, bool p, int64 n) => (float[3] y, float[m] all, float[k, 3] rows) {
    two = Constant <value_int = 2> ()  zero = Constant <value_int = 0> ()
    some = SequenceConstruct (x, x)
    grown = If (p) <
        then_branch = yes () => (seq(float[3]) a) {
            a = Loop (n, , some) <body = step (int64 i, bool on, seq(float[3]) q) => (bool go, seq(float[3]) r) {
                go = Identity (on)
                rest = Mod (i, two)  even = Equal (rest, zero)
                e = SequenceAt (q, zero)  s = Sin (e)
                r = If (even) <
                    then_branch = more () => (seq(float[3]) c) { t = SequenceInsert (q, s)  c = SequenceInsert (t, e) },
                    else_branch = less () => (seq(float[3]) d) { d = SequenceErase (q, zero) }>
            }>
        },
        else_branch = no () => (seq(float[3]) b) { b = Identity (some) }>
    y = SequenceAt (grown, zero)
    all = ConcatFromSequence <axis = -1> (grown)
    rows = ConcatFromSequence <axis = 0, new_axis = 1> (grown)
}"""


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("trips", [0, 1, 5])
def test_sequences_in_branches(taken: bool, trips: int) -> None:
    assert_becomes_tensors(IN_BRANCH, {**X, "p": np.array(taken), "n": np.array(trips)})


NESTED = """(float[3] x) => (float[m, 3] y) <int64 n = {3}, int64 m = {2}> {
    some = SequenceConstruct (x)
    all = Loop (n, , some) <body = outer (int64 i, bool on, seq(float[3]) q) => (bool go, seq(float[3]) r) {
        go = Identity (on)
        t = Loop (m, , q) <body = inner (int64 j, bool on2, seq(float[3]) u) => (bool go2, seq(float[3]) v) {
            go2 = Identity (on2)  e = SequenceAt (u, i)  s = Sin (e)  v = SequenceInsert (u, s)
        }>
        zero = Constant <value_int = 0> ()
        r = SequenceErase (t, zero)
    }>
    y = ConcatFromSequence <axis = 0, new_axis = 1> (all)
}"""


def test_sequence_of_nested_loops() -> None:
    model = assert_becomes_tensors(NESTED, X)
    outer = next(node for node in model.graph if node.op_type == "Loop")
    assert [str(v.shape) for v in outer.inputs if v is not None][1] == "[5,3]"  # 1 + 3 * (2 - 1), and one more inside


SPLIT = """(float[2, 6] x) => (float[2, N] y, float[2, 6] joined, int64 n) <int64 ax = {1}> {
    parts = SplitToSequence <axis = AXIS, keepdims = KEEP> (x SIZES)
    n = SequenceLength (parts)
    joined = ConcatFromSequence <axis = AXIS, new_axis = NEW> (parts)
    minus = Constant <value_int = -2> ()
    e = SequenceAt (parts, minus)
    y = READ
}"""


@pytest.mark.parametrize("axis", ["1", "-1", "0"])
@pytest.mark.parametrize("sizes", ["kept", "dropped", "of three", "three each"])
def test_parts_of_a_tensor(axis: str, sizes: str) -> None:
    if axis == "0" and sizes in {"of three", "three each"}:
        pytest.skip("the axis has two rows")
    given = {"of three": ", size", "three each": ", size"}.get(sizes, "")
    constant = {"of three": "int64 size = {3}", "three each": "int64[2] size = {3, 3}"}.get(sizes, "int64 size = {1}")
    dropped = sizes == "dropped"
    text = SPLIT.replace("SIZES", given).replace("AXIS", axis).replace("<int64 ax = {1}>", f"<{constant}>")
    text = text.replace("KEEP", str(int(not dropped))).replace("NEW", str(int(dropped)))
    one = "Constant <value_ints = [0]> ()  y = Unsqueeze (e, axes)" if dropped else ""
    text = text.replace("y = READ", f"axes = {one}" if dropped else "y = Identity (e)")
    shape = "float[R, C] y"
    assert_becomes_tensors(text.replace("float[2, N] y", shape), {"x": np.arange(12, dtype=np.float32).reshape(2, 6)})


BODY = """(float[2] x, int64 n, bool p) => (float[2] y, float[m, 2] all) <CONSTANTS> {
    start = SequenceConstruct (STARTS)
    y, left = Loop (LIMIT, , x, start) <body = step (int64 i, bool on, float[2] h0, seq(float[2]) q0)
        => (bool go, float[2] h, seq(float[2]) q) {
        go = Identity (on)
STEPS
    }>
    all = ConcatFromSequence <axis = 0, new_axis = 1> (left)
}"""
PLACES = ("zero", "one", "minus", "back", "i")
CONSTANTS = "int64 zero = {0}, int64 one = {1}, int64 minus = {-1}, int64 back = {-2}"


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, Feeds]:
    """A loop whose body inserts, erases, replaces and reads at any places."""
    places, steps = st.sampled_from(PLACES), draw(st.integers(1, 5))
    lines: list[str] = []
    carried, sequence = "h0", "q0"
    for k in range(steps):
        kind, place = (
            draw(st.sampled_from(("insert", "append", "erase", "pop", "replace", "read", "branch"))),
            draw(places),
        )
        if kind == "read":
            lines.append(
                f"e{k} = SequenceAt ({sequence}, {place})  s{k} = Sin (e{k})  h{k + 1} = Add ({carried}, s{k})"
            )
            carried = f"h{k + 1}"
            continue
        made = f"q{k + 1}"
        written = {
            "insert": f"{made} = SequenceInsert ({sequence}, {carried}, {place})",
            "append": f"{made} = SequenceInsert ({sequence}, {carried})",
            "erase": f"{made} = SequenceErase ({sequence}, {place})",
            "pop": f"{made} = SequenceErase ({sequence})",
            "replace": f"""r{k} = SequenceErase ({sequence}, {place})
                {made} = SequenceInsert (r{k}, {carried}, {place})""",
            "branch": f"""{made} = If (p) <
                then_branch = yes{k} () => (seq(float[2]) a{k}) {{ a{k} = SequenceInsert ({sequence}, {carried}) }},
                else_branch = no{k} () => (seq(float[2]) b{k}) {{ b{k} = SequenceErase ({sequence}, {place}) }}>""",
        }
        lines.append(written[kind])
        sequence = made
    lines.append(f"h = Sin ({carried})  q = Identity ({sequence})")
    trips, known = draw(st.integers(0, 4)), draw(st.booleans())
    text = BODY.replace("STARTS", ", ".join(["x"] * draw(st.integers(1, 4)))).replace("STEPS", "\n".join(lines))
    text = text.replace("LIMIT", "limit" if known else "n").replace(
        "CONSTANTS", CONSTANTS + (f", int64 limit = {{{trips}}}" if known else "")
    )
    return text, {"x": np.array([0.5, -1.5], np.float32), "n": np.array(trips), "p": np.array(draw(st.booleans()))}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(programs())
def test_any_program_on_sequences(program: tuple[str, Feeds]) -> None:
    text, feeds = program
    before = parsed(text)
    try:
        expected = run(ir.to_proto(before), feeds)
    except (InvalidArgument, Fail):  # a place that is not there, or nothing to join
        assume(False)
    else:
        after = parsed(text)
        rewriting()(after)(after)
        assert not sequences_in(after)
        assert_equal(after, expected, feeds)


def assert_equal(model: ir.Model, expected: list[Any], feeds: Feeds) -> None:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    for found, wanted in zip(run(proto, feeds), expected, strict=True):
        assert (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


@pytest.mark.parametrize("form", ["primal", "taped", "checkpointed"])
@pytest.mark.parametrize("computed", [True, False])
def test_corpus_and_its_gradients(form: str, computed: bool) -> None:
    changed: list[str] = []
    for name, maker in CORPUS["sequences"].items():
        case = corpus_case(maker, form)
        assert case is not None
        model = normalise(load(case.model))
        for value in model.graph.inputs:
            value.shape = ir.Shape(np.shape(case.feeds[value.name or ""]))
        infer_types(model)
        fold_known(model)
        infer_types(model)
        expected = run(ir.to_proto(model), case.feeds)
        if PreallocateSequencesPass(computed=computed)(model).modified:
            changed.append(name)
            infer_types(model)
            assert_equal(model, expected, case.feeds)
    assert len(changed) >= 8


STAYS = {
    "elements of several shapes": (
        "(float[4] x, float[2] z, int64 k) => (float[m] y) { q = SequenceConstruct (x, z)  y = SequenceAt (q, k) }",
        "the elements of 'q' have no static shape",
    ),
    "elements of several ranks": (
        "(float[4] x, float[2, 2] z, int64 k) => (float[m] y) { q = SequenceConstruct (x, z)  y = SequenceAt (q, k) }",
        "the elements of 'q' have no one known shape",
    ),
    "output of the model": (
        "(float[4] x) => (seq(float[4]) q) { q = SequenceConstruct (x) }",
        "'q' is an input or an output of the model",
    ),
    "another in each iteration": (
        """(float[3] x, int64 n) => (float[3] y) <int64 zero = {0}> {
            some = SequenceConstruct (x)
            all = Loop (n, , some) <body = step (int64 i, bool on, seq(float[3]) q) => (bool go, seq(float[3]) r) {
                go = Identity (on)  e = SequenceAt (q, zero)  s = Sin (e)  r = SequenceConstruct (s, e)
            }>
            y = SequenceAt (all, zero)
        }""",
        "'q': it is another sequence after an iteration, and nothing says that it is as long",
    ),
    "nothing bounds it": (
        READ.replace("(float[3] x, LIMIT)", "(float[3] x)")
        .replace("CONSTANT", "<int64 two = {2}>")
        .replace("PREDICATE", PREDICATES["stops"])
        .replace("Loop (n, ,", "Loop ( , ,"),
        "'q': nothing says before Loop how many elements it will get",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_stays_says_why(case: str) -> None:
    text, told = STAYS[case]
    model = parsed(text)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    rewrite = rewriting()(model)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert not rewrite(model).modified
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert rewrite.stays == [told]


def test_rows_that_a_loop_would_copy_are_limited() -> None:
    text = READ.replace("PREDICATE", PREDICATES["always"])
    known = text.replace("(float[3] x, LIMIT)", "(float[3] x)").replace("CONSTANT", "<int64 n = {999}>")
    for limit, stays in ((12_000, 0), (11_999, 1)):
        model = parsed(known)
        rewrite = rewriting(limit)(model)
        assert rewrite(model).modified is (stays == 0)
        assert len(rewrite.stays) == stays
        assert operators(model).count("ScatterND") == 1 - stays
    assert rewrite.stays == ["'q': Loop carries 1,000 elements, which each iteration would copy"]
    model = parsed(text.replace("LIMIT", "int64 n").replace("CONSTANT", ""))
    rewrite = rewriting(computed=False)(model)
    assert not rewrite(model).modified
    assert "a number of elements that the run decides" in rewrite.stays[0]
