"""Branches in loops that multiply by captured matrices, whose gradients are contracted after the loop."""

from __future__ import annotations

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def if_in_loop_weights(real: str = "double") -> Example:
    """A matrix in each branch and a bias in both; both branches run."""
    text = """(real[2, 3] x, real[3, 3] u, real[3, 3] v, real[3] b) => (real[2, 3] y)
        <int64 trips = {5}, int64 two = {2}, int64 zero = {0}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            rest = Mod (i, two)
            even = Equal (rest, zero)
            next = If (even) <
                then_branch = left () => (real[2, 3] a) { m = MatMul (h, u)  n = Add (m, b)  a = Sin (n) },
                else_branch = right () => (real[2, 3] c) { m = MatMul (h, v)  n = Add (m, b)  c = Cos (n) }>
        }>
    }"""
    return example(real, text, {"x": (2, 3), "u": (3, 3), "v": (3, 3), "b": (3,)})


@corpus_model
def if_in_loop_weights_by_carry(real: str = "double") -> Example:
    """The carry decides, the run knows the trip count, and the matrices are not square."""
    text = """(real[2, 3] x, real[3, 4] u, real[4, 3] w, real[3] b, int64 trips) => (real[2, 3] y) <real zero = {0}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            total = ReduceSum <keepdims = 0> (h)
            p = Greater (total, zero)
            next = If (p) <
                then_branch = left () => (real[2, 3] a) { m = MatMul (h, u)  s = Sin (m)  a = MatMul (s, w) },
                else_branch = right () => (real[2, 3] c) { s = Sin (h)  c = Add (s, b) }>
        }>
    }"""
    feeds = {"x": [[0.9, 0.5, -0.2], [0.3, -0.8, 0.4]], "u": (3, 4), "w": (4, 3), "b": (3,), "trips": 5}
    return example(real, text, feeds)


@corpus_model
def if_in_loop_weights_no_trips(real: str = "double") -> Example:
    text = """(real[2, 3] x, real[3, 3] u, real[3, 3] v, int64 trips) => (real[2, 3] y) <real zero = {0}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            total = ReduceSum <keepdims = 0> (h)
            p = Greater (total, zero)
            next = If (p) <
                then_branch = left () => (real[2, 3] a) { m = MatMul (h, u)  a = Sin (m) },
                else_branch = right () => (real[2, 3] c) { m = MatMul (h, v)  c = Sin (m) }>
        }>
    }"""
    return example(real, text, {"x": (2, 3), "u": (3, 3), "v": (3, 3), "trips": 0})


@corpus_model
def if_in_loop_weight_never_reached(real: str = "double") -> Example:
    """One branch is never taken: the gradient by its matrix is exactly zero."""
    text = """(real[2, 3] x, real[3, 3] u, real[3, 3] v) => (real[2, 3] y) <int64 trips = {4}, int64 many = {9}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            p = Less (many, i)
            next = If (p) <
                then_branch = left () => (real[2, 3] a) { m = MatMul (h, u)  a = Sin (m) },
                else_branch = right () => (real[2, 3] c) { m = MatMul (h, v)  c = Sin (m) }>
        }>
    }"""
    return example(real, text, {"x": (2, 3), "u": (3, 3), "v": (3, 3)})


@corpus_model
def if_in_if_in_loop_weights(real: str = "double") -> Example:
    """Three matrices, one of them read in two branches at different depths."""
    text = """(real[2, 3] x, real[3, 3] u, real[3, 3] v, real[3, 3] w) => (real[2, 3] y)
        <int64 trips = {7}, int64 three = {3}, int64 one = {1}, int64 zero = {0}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            rest = Mod (i, three)
            first = Equal (rest, zero)
            next = If (first) <
                then_branch = left () => (real[2, 3] a) { m = MatMul (h, u)  a = Sin (m) },
                else_branch = right () => (real[2, 3] c) {
                    second = Equal (rest, one)
                    c = If (second) <
                        then_branch = low () => (real[2, 3] d) { s = MatMul (h, v)  d = Sin (s) },
                        else_branch = high () => (real[2, 3] e) { s = MatMul (h, w)  t = MatMul (s, u)  e = Cos (t) }>
                }>
        }>
    }"""
    return example(real, text, {"x": (2, 3), "u": (3, 3), "v": (3, 3), "w": (3, 3)})


@corpus_model
def if_in_loop_weight_of_infinite_factor(real: str = "double") -> Example:
    """The factor of the matrix is infinite in the iteration that does not take the branch: it counts nothing."""
    text = """(real[2, 3] x, real[3, 3] u) => (real[2, 3] y) <int64 trips = {4}, int64 two = {2}, real one = {1}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            away = Sub (i, two)
            distance = Cast <to = 11> (away)
            close = CastLike (distance, one)
            far = Div (h, close)
            same = Equal (i, two)
            p = Not (same)
            next = If (p) <
                then_branch = left () => (real[2, 3] a) { m = MatMul (far, u)  a = Sin (m) },
                else_branch = right () => (real[2, 3] c) { c = Cos (h) }>
        }>
    }"""
    return example(real, text, {"x": (2, 3), "u": (3, 3)})
