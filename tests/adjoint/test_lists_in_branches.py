"""Lists that grow and shrink inside a branch of a loop: trees and stacks, against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnx_cfad as cfad
from onnx_cfad.numeric.differences import Outcome
from tests.onnx_text import model
from tests.oracle import check_emitted, run_ort

TREE = """tree (float[N,3] x, int64[N] left, int64[N] right, float[3,3] u) => (float[3] y) {
  n = Shape (left)
  zero = Constant <value = int64[1] {0}> ()
  n0 = Squeeze (n, zero)
  none = SequenceEmpty <dtype = 1> ()
  go = Constant <value = bool {1}> ()
  states = Loop (n0, go, none) <body = step (int64 i, bool on, seq(float[3]) s) => (bool again, seq(float[3])
      t) {
     again = Identity (on)
     l = Gather (left, i)
     r = Gather (right, i)
     z = Constant <value = int64 {0}> ()
     leaf = Less (l, z)
     t = If (leaf) <
        then_branch = isleaf () => (seq(float[3]) a) { xi = Gather (x, i) h = Tanh (xi)
            a = SequenceInsert (s, h) },
        else_branch = inner () => (seq(float[3]) b) { hl = SequenceAt (s, l) hr = SequenceAt (s, r)
            d = Sub (hl, hr) p = Mul(hl, hr) e = Add(d, p) f = MatMul (u, e) h2 = Tanh (f)
                b = SequenceInsert (s, h2) }
     >
  }>
  last = Constant <value = int64 {-1}> ()
  y = SequenceAt (states, last)
}"""
"""Post order: a leaf adds to the list, an inner node reads its children and adds too."""

SHIFT_REDUCE = """sr (float[N,3] x, int64[T] shift, float[3,3] u) => (float[3] y) {
  n = Shape (shift)
  zero = Constant <value = int64[1] {0}> ()
  z = Constant <value = int64 {0}> ()
  n0 = Squeeze (n, zero)
  none = SequenceEmpty <dtype = 1> ()
  go = Constant <value = bool {1}> ()
  stack, used = Loop (n0, go, none, z) <body = step (int64 i, bool on, seq(float[3]) s, int64 k)
      => (bool again, seq(float[3]) t, int64 knext) {
     again = Identity (on)
     c = Gather (shift, i)
     one = Constant <value = int64 {1}> ()
     isshift = Equal (c, one)
     t, knext = If (isshift) <
        then_branch = sh () => (seq(float[3]) a, int64 k1) { xi = Gather (x, k) h = Tanh (xi)
            a = SequenceInsert (s, h) k1 = Add (k, one) },
        else_branch = re () => (seq(float[3]) b, int64 k2) {
            len = SequenceLength (s)
            top = Sub (len, one)
            below = Sub (top, one)
            hr = SequenceAt (s, top)
            hl = SequenceAt (s, below)
            s1 = SequenceErase (s, top)
            s2 = SequenceErase (s1, below)
            d = Sub (hl, hr)  p = Mul (hl, hr) e = Add (d, p) f = MatMul (u, e) h2 = Tanh (f)
            b = SequenceInsert (s2, h2) k2 = Identity (k) }
     >
  }>
  last = Constant <value = int64 {-1}> ()
  y = SequenceAt (stack, last)
}"""
"""A stack: shift pushes, reduce takes two from the end, by positions that the length gives, and pushes one."""

SHIFT_REDUCE_AT = SHIFT_REDUCE.replace("b = SequenceInsert (s2, h2)", "b = SequenceInsert (s2, h2, below)")
"""The same, pushed at a computed position."""

RAGGED = """tree (float[N,1] x, int64[N] left, int64[N] right) => (float[M] y) {
  n = Shape (left)
  zero = Constant <value = int64[1] {0}> ()
  n0 = Squeeze (n, zero)
  none = SequenceEmpty <dtype = 1> ()
  go = Constant <value = bool {1}> ()
  states = Loop (n0, go, none) <body = step (int64 i, bool on, seq(float[K]) s) => (bool again, seq(float[K])
      t) {
     again = Identity (on)
     l = Gather (left, i)
     r = Gather (right, i)
     z = Constant <value = int64 {0}> ()
     leaf = Less (l, z)
     t = If (leaf) <
        then_branch = isleaf () => (seq(float[K]) a) { xi = Gather (x, i) h = Tanh (xi)
            a = SequenceInsert (s, h) },
        else_branch = inner () => (seq(float[K]) b) { hl = SequenceAt (s, l) hr = SequenceAt (s, r)
            e = Concat <axis=0> (hl, hr) f = Sin (e) xj = Gather(x, i) h2 = Mul (f, xj)
                b = SequenceInsert (s, h2) }
     >
  }>
  last = Constant <value = int64 {-1}> ()
  y = SequenceAt (states, last)
}"""
"""The state of a node is as long as the states of its children together."""

SKIP = """m (float[N,3] x, float[3,3] u) => (float[3] y) {
  n = Shape (x)
  zero = Constant <value = int64[1] {0}> () one = Constant <value = int64[1] {1}> ()
  n1 = Slice (n, zero, one) n0 = Squeeze (n1)
  none = SequenceEmpty <dtype = 1> ()
  go = Constant <value = bool {1}> ()
  kept = Loop (n0, go, none) <body = step (int64 i, bool on, seq(float[3]) s) => (bool again, seq(float[3]) t) {
     again = Identity (on)
     xi = Gather (x, i)
     k = ReduceSum <keepdims=0> (xi)
     z = Constant <value = float {0}> ()
     keep = Greater (k, z)
     t = If (keep) <
        then_branch = yes () => (seq(float[3]) a) {
            len = SequenceLength (s)
            z0 = Constant <value = int64 {0}> ()
            some = Greater (len, z0)
            h = If (some) < then_branch = more () => (float[3] h1) { m1 = Constant <value = int64 {-1}> ()
                p = SequenceAt (s, m1) g = MatMul (u, p) gx = Add (g, xi) h1 = Tanh (gx) },
                            else_branch = firstone () => (float[3] h2) { h2 = MatMul (u, xi) } >
            a = SequenceInsert (s, h) },
        else_branch = no () => (seq(float[3]) b) { b = Identity (s) }
     >
  }>
  y3 = ConcatFromSequence <axis=0, new_axis=1> (kept)
  y = ReduceSum <keepdims=0> (y3, zero)
}"""
"""An element is kept or not; the first one finds the list empty."""

LSTM = """tree (float[N,2,4] x, int64[N] left, int64[N] right, float[4,20] wx, float[4,20] ul, float[4,20] ur)
    => (float[2,4] y) {
  n = Shape <end=1> (left)
  zero = Constant <value = int64[1] {0}> ()
  n0 = Squeeze (n, zero)
  none = SequenceEmpty <dtype = 1> ()
  go = Constant <value = bool {1}> ()
  hs, cs = Loop (n0, go, none, none) <body = step (int64 i, bool on, seq(float[2,4]) s, seq(float[2,4]) c)
      => (bool again, seq(float[2,4]) t, seq(float[2,4]) tc) {
     again = Identity (on)
     l = Gather (left, i)
     r = Gather (right, i)
     z = Constant <value = int64 {0}> ()
     leaf = Less (l, z)
     xi = Gather (x, i)
     gx = MatMul (xi, wx)
     t, tc = If (leaf) <
        then_branch = isleaf () => (seq(float[2,4]) a, seq(float[2,4]) ac) {
           i1, o1, u1, f1, f2 = Split <axis=1, num_outputs=5> (gx) si = Sigmoid(i1) so = Sigmoid(o1)
               su = Tanh(u1) c1 = Mul(si, su) tc1 = Tanh(c1) h1 = Mul(so, tc1)
           a = SequenceInsert (s, h1) ac = SequenceInsert (c, c1) },
        else_branch = inner () => (seq(float[2,4]) b, seq(float[2,4]) bc) {
           hl = SequenceAt (s, l) hr = SequenceAt (s, r) cl = SequenceAt (c, l) cr = SequenceAt (c, r)
           gl = MatMul (hl, ul) gr = MatMul (hr, ur) g1 = Add (gx, gl) g2 = Add (g1, gr)
           i2, o2, u2, f3, f4 = Split <axis=1, num_outputs=5> (g2) si2 = Sigmoid(i2) so2 = Sigmoid(o2)
               su2 = Tanh(u2) sf3 = Sigmoid(f3) sf4 = Sigmoid(f4)
           ca = Mul(si2, su2) cb = Mul(sf3, cl) cc = Mul(sf4, cr) cd = Add(ca, cb) c2 = Add(cd, cc)
               tc2 = Tanh(c2) h2 = Mul(so2, tc2)
           b = SequenceInsert (s, h2) bc = SequenceInsert (c, c2) }
     >
  }>
  last = Constant <value = int64 {-1}> ()
  y = SequenceAt (hs, last)
}"""
"""A binary Tree-LSTM: two lists, of states and of cells."""

LINKS = {"left": np.array([-1, -1, 0, -1, 2]), "right": np.array([-1, -1, 1, -1, 3])}
MOVES = {"shift": np.array([1, 1, 0, 1, 1, 0, 0])}


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tree": (TREE, {"x": normal(5, 3), "u": normal(3, 3), **LINKS}),
    "shift_reduce": (SHIFT_REDUCE, {"x": normal(4, 3), "u": normal(3, 3), **MOVES}),
    "shift_reduce_at": (SHIFT_REDUCE_AT, {"x": normal(4, 3), "u": normal(3, 3), **MOVES}),
    "ragged": (RAGGED, {"x": normal(5, 1), **LINKS}),
    "skip": (SKIP, {"x": normal(7, 3), "u": normal(3, 3)}),
    "lstm": (LSTM, {"x": normal(5, 2, 4), "wx": normal(4, 20), "ul": normal(4, 20), "ur": normal(4, 20), **LINKS}),
}


def check(source: Any, feeds: dict[str, Any], plan: str) -> cfad.Gradient:
    gradient = cfad.vjp(source, plan=plan)
    check_emitted(gradient.proto())
    found = cfad.validate(source, gradient, feeds, directions=2, every_element_up_to=6)
    assert found.holds, str(found)
    assert all(row.verdict is Outcome.HOLDS for row in found.rows), str(found)
    assert found.vacuous == ()
    return gradient


@pytest.mark.parametrize("plan", ["taped", "checkpointed"])
@pytest.mark.parametrize("name", MODELS)
def test_gradient_matches_differences(name: str, plan: str) -> None:
    text, feeds = MODELS[name]
    check(model(text), feeds, plan)


@pytest.mark.parametrize("name", ["ragged", "shift_reduce"])
def test_second_derivative_matches_differences(name: str) -> None:
    text, feeds = MODELS[name]
    first = cfad.vjp(model(text), plan="taped")
    check(first.model, {**feeds, "y_grad": normal(3)}, "taped")


def test_tree_is_the_closed_form() -> None:
    """Of a root with two leaves: y = tanh(u e), e = (l - r) + l r, l = tanh(x0), r = tanh(x1)."""
    x, u, seed = normal(3, 3).astype(np.float64), normal(3, 3).astype(np.float64), np.array([1.0, -2.0, 0.5])
    left, right = np.tanh(x[0]), np.tanh(x[1])
    e = left - right + left * right
    back = u.T @ (seed * (1 - np.tanh(u @ e) ** 2))
    expected = np.stack([back * (1 + right) * (1 - left**2), back * (left - 1) * (1 - right**2), np.zeros(3)])
    feeds = {"x": x, "u": u, "left": np.array([-1, -1, 0]), "right": np.array([-1, -1, 1]), "y_grad": seed}
    found = run_ort(cfad.vjp(model(TREE), wrt=["x"]).proto(), {n: _single(a) for n, a in feeds.items()})
    np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-5, atol=1e-6)


def _single(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def test_message_under_checkpointing_names_the_path_of_the_model() -> None:
    """The levels that checkpointing adds are not in the file, so no message leads there."""
    text = TREE.replace("f = MatMul (u, e)", "odd = Reshape (e, dims) f = MatMul (u, odd)")
    text = text.replace("(float", "(int64[K] dims, float", 1)
    with pytest.raises(
        cfad.UnsupportedOp, match=r"^main/loop_0/body/if_0/else/MatMul: value 'odd': its rank is unknown"
    ):
        cfad.vjp(model(text), plan="checkpointed")
