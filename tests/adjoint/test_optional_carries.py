"""Loops that carry optionals and optional lists, and lists whose elements do not have one rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import onnx_cfad as cfad
from tests.onnx_text import model
from tests.oracle import check_emitted, run_ort

OPTIONAL = """g (float[3] x, int64 n) => (float[3] y) <int64 last = {-1}> {
    s = SequenceConstruct (x)
    o = Optional (s)
    r = Loop (n, , o) <body = body (int64 i, bool go, optional(seq(float[3])) e) => (bool on, seq(float[3]) m) {
        on = Identity (go)
        full = OptionalHasElement (e)
        l = If (full) <
            then_branch = some () => (seq(float[3]) a) { a = OptionalGetElement (e) },
            else_branch = none () => (seq(float[3]) b) { b = SequenceEmpty () }
        >
        minus = Constant <value = int64 {-1}> ()
        t = SequenceAt (l, minus)
        u = Sin (t)
        m = SequenceInsert (l, u)
    }>
    y = SequenceAt (r, last)
}"""
"""The last element after n iterations is sin applied n times to x."""

MIXED = """g (float[3] x, int64 n, int64 k) => (float y) {
    e = SequenceConstruct (x)
    r, z = Loop (n, , e, x) <body = body (int64 i, bool go, seq(float) l, float[3] a) =>
        (bool on, seq(float) m, float[3] b) {
        on = Identity (go)
        b = Sin (a)
        s = ReduceSum <keepdims = 0> (b)
        two = Constant <value = int64 {2}> ()
        zero = Constant <value = int64 {0}> ()
        odd = Mod (i, two)
        even = Equal (odd, zero)
        w = If (even) <
            then_branch = one () => (float u) { u = Sin (s) },
            else_branch = all () => (float v) { v = Cos (b) }
        >
        old = SequenceAt (l, i)
        q = Sin (old)
        f = ReduceSum <keepdims = 0> (q)
        p = Mul (w, f)
        m = SequenceInsert (l, p)
    }>
    o = SequenceAt (r, k)
    y = ReduceSum <keepdims = 0> (o)
}"""
"""The list grows by a scalar or a vector, made from the element before."""


def mixed() -> onnx.ModelProto:
    proto = model(MIXED)
    body = next(node for node in proto.graph.node if node.op_type == "Loop").attribute[0].g
    for node in body.node:
        if node.op_type == "If":
            for branch in node.attribute:
                branch.g.output[0].type.tensor_type.ClearField("shape")
    return proto


@pytest.mark.parametrize("plan", ["taped", "checkpointed"])
@pytest.mark.parametrize("trips", [1, 3])
def test_optional_list_is_carried_as_its_list(plan: str, trips: int) -> None:
    proto = cfad.vjp(model(OPTIONAL), plan=plan).proto()
    check_emitted(proto)
    x, ct = np.array([0.4, -1.0, 2.0], np.float32), np.array([1.0, 2.0, -3.0], np.float32)
    expected, value = ct.astype(np.float64), x.astype(np.float64)
    for _ in range(trips):
        expected, value = expected * np.cos(value), np.sin(value)
    found = run_ort(proto, {"x": x, "n": np.array(trips), "y_grad": ct})
    np.testing.assert_allclose(found["y"], value, rtol=1e-6)
    np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-5)


NONE_AT_FIRST = """g (double[2] x, double[2] w, int64 n, optional(seq(double[2])) o) => (double[2] y) {
    r = Loop (n, , o) <body = body (int64 i, bool go, optional(seq(double[2])) e) =>
        (bool on, optional(seq(double[2])) m) {
        on = Identity (go)
        full = OptionalHasElement (e)
        l = If (full) <
            then_branch = some () => (seq(double[2]) a) { a = OptionalGetElement (e) },
            else_branch = none () => (seq(double[2]) b) { s = Cos (x)  b = SequenceConstruct (s) }
        >
        minus = Constant <value = int64 {-1}> ()
        t = SequenceAt (l, minus)
        u = Sin (t)
        v = Mul (u, w)
        q = SequenceInsert (l, v)
        m = Optional (q)
    }>
    full = OptionalHasElement (r)
    y = If (full) <
        then_branch = last () => (double[2] c) {
            l = OptionalGetElement (r)
            minus = Constant <value = int64 {-1}> ()
            e = SequenceAt (l, minus)
            f = Constant <value = int64 {0}> ()
            h = SequenceAt (l, f)
            c = Add (e, h)
        },
        else_branch = nothing () => (double[2] d) { d = Mul (x, w) }
    >
}"""
"""The list is None at first, or given; after n iterations the sum of its first and last element."""


def none_at_first(
    x: np.ndarray[Any, Any], w: np.ndarray[Any, Any], trips: int, given: list[Any] | None
) -> np.ndarray[Any, Any]:
    items = None if given is None else list(given)
    for _ in range(trips):
        items = [np.cos(x)] if items is None else items
        items.append(np.sin(items[-1]) * w)
    return x * w if items is None else items[0] + items[-1]


@pytest.mark.parametrize("plan", ["taped", "checkpointed"])
@pytest.mark.parametrize("trips", [0, 1, 3])
@pytest.mark.parametrize("shape", ["double[2]", "double[]"])
@pytest.mark.parametrize("given", [True, False, None])
def test_list_that_may_not_be_there_is_carried_with_a_flag(
    plan: str, trips: int, shape: str, given: bool | None
) -> None:
    """It is an input of the model that is given, or is not; or None in the model itself."""
    text = NONE_AT_FIRST.replace("seq(double[2])", f"seq({shape})")
    if given is None:
        text = text.replace(f", optional(seq({shape})) o) =>", ") =>", 1)
        text = text.replace("{", f"{{ o = Optional <type: type_proto = seq({shape})> ()", 1)
    proto = cfad.vjp(model(text), wrt=["x", "w"], plan=plan, segment=2 if plan == "checkpointed" else None).proto()
    check_emitted(proto)
    x, w, ct, step = np.array([0.4, -1.0]), np.array([0.7, 0.3]), np.array([1.0, -2.0]), 1e-6
    items = [np.array([3.0, 5.0]), np.array([0.2, 0.1])] if given else None
    feeds = {"x": x, "w": w, "n": np.array(trips), **({} if given is None else {"o": items})}
    found = run_ort(proto, {**feeds, "y_grad": ct})  # type: ignore[dict-item]
    np.testing.assert_allclose(found["y"], none_at_first(x, w, trips, items), rtol=1e-12)
    by_x = (none_at_first(x + step, w, trips, items) - none_at_first(x - step, w, trips, items)) / (2 * step)
    by_w = (none_at_first(x, w + step, trips, items) - none_at_first(x, w - step, trips, items)) / (2 * step)
    np.testing.assert_allclose(found["x_grad"], ct * by_x, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found["w_grad"], ct * by_w, rtol=1e-6, atol=1e-9)
    pushed = cfad.jvp(model(text), wrt=["x"]).proto()
    check_emitted(pushed)
    tangent = run_ort(pushed, {**feeds, "x_tangent": ct})["y_tangent"]  # type: ignore[dict-item]
    np.testing.assert_allclose(tangent, ct * by_x, rtol=1e-6, atol=1e-9)


BRANCHES = """g (double[2] x, double[2] w, int64 n) => (double[2] y, optional(seq(double[2])) o) {
    zero = Constant <value = int64 {0}> ()
    some = Greater (n, zero)
    o = If (some) <
        then_branch = one () => (optional(seq(double[2])) a) {
            s = Sin (x)
            l = SequenceConstruct (w, s)
            a = Optional (l)
        },
        else_branch = none () => (optional(seq(double[2])) b) { b = Optional <type: type_proto = seq(double[2])> () }
    >
    copy = Identity (o)
    full = OptionalHasElement (copy)
    y = If (full) <
        then_branch = read () => (double[2] c) {
            e = OptionalGetElement (copy)
            one = Constant <value = int64 {1}> ()
            p = SequenceAt (e, one)
            q = SequenceAt (e, zero)
            c = Mul (p, q)
        },
        else_branch = plain () => (double[2] d) { d = Mul (x, w) }
    >
}"""


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("kind", ["list", "tensor"])
def test_optional_that_a_branch_returns_may_be_an_output(n: int, kind: str) -> None:
    tensor = CHOSEN.replace("(double[2] y) {", "(double[2] y, optional(double[2]) o) {", 1)
    proto = cfad.vjp(model(BRANCHES if kind == "list" else tensor), wrt=["x", "w"], outputs=["y"]).proto()
    check_emitted(proto)
    x, w, ct = np.array([0.4, -1.0]), np.array([0.7, 0.3]), np.array([1.0, -2.0])
    found = run_ort(proto, {"x": x, "w": w, "n": np.array(n), "y_grad": ct})
    np.testing.assert_allclose(found["x_grad"], ct * w * (np.cos(x) if n else 1), rtol=1e-12)
    np.testing.assert_allclose(found["w_grad"], ct * (np.sin(x) if n else x), rtol=1e-12)
    made = found["o"]
    assert (made is not None) == bool(n)
    if n:
        np.testing.assert_allclose(made, [w, np.sin(x)] if kind == "list" else np.sin(x), rtol=1e-12)


def test_list_of_elements_of_any_shape_is_there_from_the_second_iteration_on() -> None:
    """As in the conformance model loop16_seq_none: what enters may be an optional, what leaves is a list."""
    text = OPTIONAL.replace("seq(float[3])", "seq(float)").replace("u = Sin (t)", "u = Mul (t, x)")
    proto = cfad.vjp(model(text), wrt=["x"]).proto()
    check_emitted(proto)
    x, ct = np.array([0.4, -1.0, 2.0], np.float32), np.array([1.0, 2.0, -3.0], np.float32)
    found = run_ort(proto, {"x": x, "n": np.array(3), "y_grad": ct})
    np.testing.assert_allclose(found["y"], x**4, rtol=1e-6)
    np.testing.assert_allclose(found["x_grad"], ct * 4 * x**3, rtol=1e-5)


def _last_mixed(x: np.ndarray[Any, Any], trips: int) -> float:
    items, a = [x], x
    for i in range(trips):
        a = np.sin(a)
        w = np.sin(a.sum()) if i % 2 == 0 else np.cos(a)
        items.append(w * np.sin(items[i]).sum())
    return float(np.sum(items[trips]))


@pytest.mark.parametrize("plan", ["taped", "checkpointed"])
@pytest.mark.parametrize("name", ["l", "tape.l"])
def test_list_of_elements_without_a_common_rank(plan: str, name: str) -> None:
    """Whatever its name: one that looks like a tape is none."""
    proto = mixed()
    body = next(node for node in proto.graph.node if node.op_type == "Loop").attribute[0].g
    body.input[2].name = name
    for node in body.node:
        node.input[:] = [name if operand == "l" else operand for operand in node.input]
    x, trips, step = np.array([0.4, -1.0, 0.7]), 3, 1e-6
    feeds = {"x": x.astype(np.float32), "n": np.array(trips), "k": np.array(trips), "y_grad": np.array(1, np.float32)}
    emitted = cfad.vjp(proto, wrt=["x"], plan=plan, segment=2 if plan == "checkpointed" else None).proto()
    check_emitted(emitted)
    found = run_ort(emitted, feeds)["x_grad"]
    expected = [(_last_mixed(x + d, trips) - _last_mixed(x - d, trips)) / (2 * step) for d in np.eye(3) * step]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


PREVIOUS = """g (double[2] x, double[2] w, int64 n) => (double[2] y) {
    none = Optional <type: type_proto = double[2]> ()
    y, last = Loop (n, , x, none) <body = step (int64 i, bool go, double[2] v, optional(double[2]) before) =>
        (bool on, double[2] next, optional(double[2]) now) {
        on = Identity (go)
        u = Sin (v)
        full = OptionalHasElement (before)
        next = If (full) <
            then_branch = some () => (double[2] a) {
                old = OptionalGetElement (before)
                p = Mul (old, w)
                a = Add (u, p)
            },
            else_branch = first () => (double[2] b) { b = Mul (u, w) }
        >
        now = Optional (v)
    }>
}"""
"""y[k + 1] = sin(y[k]) + w y[k - 1], as TorchScript writes a variable that is None at first."""

CHOSEN = """g (double[2] x, double[2] w, int64 n) => (double[2] y) {
    zero = Constant <value = int64 {0}> ()
    some = Greater (n, zero)
    o = If (some) <
        then_branch = one () => (optional(double[2]) a) { s = Sin (x)  a = Optional (s) },
        else_branch = none () => (optional(double[2]) b) { b = Optional <type: type_proto = double[2]> () }
    >
    copy = Identity (o)
    full = OptionalHasElement (copy)
    y = If (full) <
        then_branch = read () => (double[2] c) { e = OptionalGetElement (o)  c = Mul (e, w) },
        else_branch = plain () => (double[2] d) { d = Mul (x, w) }
    >
}"""


@pytest.mark.parametrize("plan", ["taped", "checkpointed"])
@pytest.mark.parametrize("trips", [0, 1, 4])
@pytest.mark.parametrize("shaped", [True, False])
def test_tensor_that_is_none_at_first_is_carried_as_a_list(plan: str, trips: int, shaped: bool) -> None:
    proto = model(PREVIOUS if shaped else PREVIOUS.replace("optional(double[2])", "optional(double[])"))
    emitted = cfad.vjp(proto, plan=plan, segment=2 if plan == "checkpointed" else None).proto()
    check_emitted(emitted)
    x, w, ct = np.array([0.4, -1.0]), np.array([0.7, 0.3]), np.array([1.0, -2.0])
    found = run_ort(emitted, {"x": x, "w": w, "n": np.array(trips), "y_grad": ct})

    def value(x: np.ndarray[Any, Any], w: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        y, before = x, None
        for _ in range(trips):
            y, before = (np.sin(y) * w if before is None else np.sin(y) + w * before), y
        return y

    step = 1e-6
    np.testing.assert_allclose(found["y"], value(x, w), rtol=1e-12)
    np.testing.assert_allclose(found["x_grad"], ct * (value(x + step, w) - value(x - step, w)) / (2 * step), rtol=1e-6)
    np.testing.assert_allclose(
        found["w_grad"], ct * (value(x, w + step) - value(x, w - step)) / (2 * step), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("n", [0, 1])
def test_optional_that_a_branch_returns(n: int) -> None:
    emitted = cfad.vjp(model(CHOSEN), wrt=["x", "w"]).proto()
    check_emitted(emitted)
    x, w, ct = np.array([0.4, -1.0]), np.array([0.7, 0.3]), np.array([1.0, -2.0])
    found = run_ort(emitted, {"x": x, "w": w, "n": np.array(n), "y_grad": ct})
    np.testing.assert_allclose(found["x_grad"], ct * w * (np.cos(x) if n else 1), rtol=1e-12)
    np.testing.assert_allclose(found["w_grad"], ct * (np.sin(x) if n else x), rtol=1e-12)


@pytest.mark.parametrize("given", [True, False])
def test_optional_input_that_a_loop_carries(given: bool) -> None:
    text = PREVIOUS.replace("int64 n)", "int64 n, optional(double[2]) none)")
    text = text.replace("none = Optional <type: type_proto = double[2]> ()", "")
    emitted = cfad.vjp(model(text), wrt=["x", "w"]).proto()
    check_emitted(emitted)
    x, w, ct, old = np.array([0.4, -1.0]), np.array([0.7, 0.3]), np.array([1.0, -2.0]), np.array([3.0, 5.0])
    feeds = {"x": x, "w": w, "n": np.array(1), "y_grad": ct, "none": old if given else None}
    found = run_ort(emitted, feeds)  # type: ignore[arg-type]
    np.testing.assert_allclose(found["x_grad"], ct * np.cos(x) * (1 if given else w), rtol=1e-12)
    np.testing.assert_allclose(found["w_grad"], ct * (old if given else np.sin(x)), rtol=1e-12)
