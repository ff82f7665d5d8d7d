"""Branches by predicate, by what they read and by what they return."""

from __future__ import annotations

import numpy as np

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def if_then_taken(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool p) => (real[3] y) {
        y = If (p) <
            then_branch = left () => (real[3] a) { s = Sin (x)  a = Mul (s, w) },
            else_branch = right () => (real[3] b) { t = Tanh (x)  b = Add (t, w) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": True})


@corpus_model
def if_else_taken(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool p) => (real[3] y) {
        y = If (p) <
            then_branch = left () => (real[3] a) { s = Sin (x)  a = Mul (s, w) },
            else_branch = right () => (real[3] b) { t = Tanh (x)  b = Add (t, w) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": False})


@corpus_model
def if_predicate_of_shape_one(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool[1] p) => (real[3] y) {
        y = If (p) <
            then_branch = left () => (real[3] a) { s = Sin (x)  a = Mul (s, w) },
            else_branch = right () => (real[3] b) { t = Tanh (x)  b = Add (t, w) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": [False]})


@corpus_model
def if_predicate_from_data(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y) <real zero = {0}> {
        total = ReduceSum <keepdims = 0> (x)
        p = Greater (total, zero)
        y = If (p) <
            then_branch = left () => (real[3] a) { s = Sin (x)  a = Mul (s, total) },
            else_branch = right () => (real[3] b) { t = Tanh (x)  b = Add (t, w) }>
    }"""
    return example(real, text, {"x": [0.5, -0.2, 0.4], "w": (3,)})


@corpus_model
def if_captures(real: str = "double") -> Example:
    """Each branch captures values that the other does not."""
    text = """(real[3] x, real[3] u, real[3] v, bool p) => (real[3] y) {
        m = Mul (u, v)
        y = If (p) <
            then_branch = left () => (real[3] a) { s = Sin (x)  a = Mul (s, u) },
            else_branch = right () => (real[3] b) { t = Sin (m)  b = Mul (t, v) }>
    }"""
    return example(real, text, {"x": (3,), "u": (3,), "v": (3,), "p": False})


@corpus_model
def if_shapes_differ(real: str = "double") -> Example:
    text = """(real[4] x, real[2] w, bool p) => (real[N] y) {
        y = If (p) <
            then_branch = left () => (real[2] a) { s = Sin (w)  a = Mul (s, w) },
            else_branch = right () => (real[4] b) { t = Sin (x)  b = Mul (t, x) }>
    }"""
    return example(real, text, {"x": (4,), "w": (2,), "p": False})


@corpus_model
def if_ranks_differ(real: str = "double") -> Example:
    text = """(real[2, 3] x, real[3] w, bool p) => (real y) {
        m = If (p) <
            then_branch = left () => (real[2, 3] a) { s = Sin (x)  a = Mul (s, w) },
            else_branch = right () => (real[3] b) { t = Tanh (w)  b = Mul (t, w) }>
        q = Mul (m, m)
        y = ReduceSum <keepdims = 0> (q)
    }"""
    return example(real, text, {"x": (2, 3), "w": (3,), "p": True})


@corpus_model
def if_ranks_differ_else(real: str = "double") -> Example:
    text = """(real[2, 3] x, real[3] w, bool p) => (real y) {
        m = If (p) <
            then_branch = left () => (real[2, 3] a) { s = Sin (x)  a = Mul (s, w) },
            else_branch = right () => (real[3] b) { t = Tanh (w)  b = Mul (t, w) }>
        q = Mul (m, m)
        y = ReduceSum <keepdims = 0> (q)
    }"""
    return example(real, text, {"x": (2, 3), "w": (3,), "p": False})


@corpus_model
def if_constants_inside(real: str = "double") -> Example:
    text = """(real[3] x, bool p) => (real[3] y) {
        y = If (p) <
            then_branch = left () => (real[3] a) <real[3] k = {0.4, -1.2, 0.7}> { s = Sin (x)  a = Mul (s, k) },
            else_branch = right () => (real[3] b) {
                k = Constant <value = real[3] {1.4, 0.2, -0.7}> ()
                t = Mul (x, k)
                b = Sin (t)
            }>
    }"""
    return example(real, text, {"x": (3,), "p": False})


@corpus_model
def if_returns_constant(real: str = "double") -> Example:
    """One branch returns a constant: nothing depends on wrt there."""
    text = """(real[3] x, bool p) => (real[3] y) {
        m = If (p) <
            then_branch = left () => (real[3] a) { s = Sin (x)  a = Mul (s, x) },
            else_branch = right () => (real[3] b) { b = Constant <value = real[3] {1.4, 0.2, -0.7}> () }>
        y = Mul (m, m)
    }"""
    return example(real, text, {"x": (3,), "p": True})


@corpus_model
def if_independent_branch_taken(real: str = "double") -> Example:
    text = """(real[3] x, bool p) => (real[3] y) {
        m = If (p) <
            then_branch = left () => (real[3] a) { s = Sin (x)  a = Mul (s, x) },
            else_branch = right () => (real[3] b) { b = Constant <value = real[3] {1.4, 0.2, -0.7}> () }>
        y = Mul (m, m)
    }"""
    return example(real, text, {"x": (3,), "p": False})


@corpus_model
def if_returns_captured_value(real: str = "double") -> Example:
    """A branch hands an outer value through (an Identity, as ONNX demands)."""
    text = """(real[3] x, real[3] w, bool p) => (real[3] y) {
        y = If (p) <
            then_branch = left () => (real[3] a) { a = Identity (x) },
            else_branch = right () => (real[3] b) { b = Mul (x, w) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": True})


@corpus_model
def if_several_outputs(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool p) => (real[3] y, real[2] z, int64 n) <int64[2] ends = {0, 2}> {
        y, z, n = If (p) <
            then_branch = left () => (real[3] a, real[2] b, int64 c) {
                a = Sin (x)
                b = Gather (a, ends)
                c = Size (x)
            },
            else_branch = right () => (real[3] d, real[2] e, int64 f) <int64 f = {7}> {
                d = Mul (x, w)
                t = Sin (d)
                e = Gather (t, ends)
            }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": False})


@corpus_model
def if_outputs_unused(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool p) => (real[3] y) {
        y, unread = If (p) <
            then_branch = left () => (real[3] a, real[3] b) { a = Sin (x)  b = Mul (a, w) },
            else_branch = right () => (real[3] c, real[3] d) { d = Mul (x, w)  c = Sin (d) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": False})


@corpus_model
def if_same_value_returned_twice(real: str = "double") -> Example:
    """Once as it is and once through Identity: ONNX Runtime 1.32 gives garbage for the same name twice."""
    text = """(real[3] x, real[3] w, bool p) => (real[3] y, real[3] z) {
        y, z = If (p) <
            then_branch = left () => (real[3] a, real[3] b) { s = Sin (x)  a = Mul (s, w)  b = Identity (a) },
            else_branch = right () => (real[3] c, real[3] d) { d = Mul (x, w)  c = Sin (d) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": True})


@corpus_model
def if_constant_predicate(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y) <bool true = {1}> {
        y = If (true) <
            then_branch = left () => (real[3] a) { s = Sin (x)  a = Mul (s, w) },
            else_branch = right () => (real[3] b) { b = Tanh (x) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def if_predicate_from_shape(real: str = "double") -> Example:
    """What exporters write for `if x.dim() == 2`: a predicate that shapes fix."""
    text = """(real[2, 3] x, real[3] w) => (real[2, 3] y) <int64 two = {2}> {
        dims = Shape (x)
        rank = Size (dims)
        p = Equal (rank, two)
        y = If (p) <
            then_branch = left () => (real[2, 3] a) { s = Sin (x)  a = Mul (s, w) },
            else_branch = right () => (real[2, 3] b) { b = Tanh (x) }>
    }"""
    return example(real, text, {"x": (2, 3), "w": (3,)})


@corpus_model
def if_in_if(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool p, bool q) => (real[3] y) {
        y = If (p) <
            then_branch = left () => (real[3] a) {
                s = Sin (x)
                a = If (q) <
                    then_branch = inner_left () => (real[3] c) { c = Mul (s, w) },
                    else_branch = inner_right () => (real[3] d) { t = Sin (s)  d = Mul (t, x) }>
            },
            else_branch = right () => (real[3] b) { t = Tanh (x)  b = Add (t, w) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": True, "q": False})


@corpus_model
def if_four_deep(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool p, bool q, bool r, bool o) => (real[3] y) {
        y = If (p) <
            then_branch = one () => (real[3] a1) { m1 = Sin (x)
                a1 = If (q) <
                    then_branch = two () => (real[3] a2) { m2 = Mul (m1, w)
                        a2 = If (r) <
                            then_branch = three () => (real[3] a3) { m3 = Sin (m2)
                                a3 = If (o) <
                                    then_branch = four () => (real[3] a4) { m4 = Mul (m3, m1)  a4 = Mul (m4, x) },
                                    else_branch = f () => (real[3] b4) { b4 = Sin (m3) }>
                            },
                            else_branch = e () => (real[3] b3) { b3 = Sin (m2) }>
                    },
                    else_branch = d () => (real[3] b2) { b2 = Sin (m1) }>
            },
            else_branch = c () => (real[3] b1) { b1 = Sin (x) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": True, "q": True, "r": True, "o": True})


@corpus_model
def if_after_if(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool p) => (real[3] y) {
        m = If (p) <
            then_branch = left () => (real[3] a) { s = Sin (x)  a = Mul (s, w) },
            else_branch = right () => (real[3] b) { b = Mul (x, w) }>
        no = Not (p)
        y = If (no) <
            then_branch = left2 () => (real[3] a) { s = Sin (m)  a = Mul (s, m) },
            else_branch = right2 () => (real[3] b) { t = Sin (m)  b = Mul (t, w) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": True})


@corpus_model
def if_inactive_branch_has_pole(real: str = "double") -> Example:
    """The branch that is not taken would give NaN."""
    text = """(real[3] x, real[3] w, bool p) => (real[3] y) {
        y = If (p) <
            then_branch = left () => (real[3] a) { s = Log (x)  a = Div (s, x) },
            else_branch = right () => (real[3] b) { t = Tanh (x)  b = Add (t, w) }>
    }"""
    return example(real, text, {"x": np.asarray([-0.5, 0.3, -2.0]), "w": (3,), "p": False})


@corpus_model
def if_weights_in_branches(real: str = "double") -> Example:
    """Matrices in each branch, one of them shared."""
    text = """(real[2, 3] x, real[3, 3] u, real[3, 3] v, bool p) => (real[2, 3] y) {
        y = If (p) <
            then_branch = left () => (real[2, 3] a) { m = MatMul (x, u)  s = Sin (m)  a = MatMul (s, v) },
            else_branch = right () => (real[2, 3] b) { m = MatMul (x, v)  b = Sin (m) }>
    }"""
    return example(real, text, {"x": (2, 3), "u": (3, 3), "v": (3, 3), "p": True})
