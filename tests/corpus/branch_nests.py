"""Branches in loops, loops in branches, and both deeper down."""

from __future__ import annotations

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def if_in_loop(real: str = "double") -> Example:
    """The predicate alternates with the iteration number."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {5}, int64 two = {2}, int64 zero = {0}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            rest = Mod (i, two)
            even = Equal (rest, zero)
            next = If (even) <
                then_branch = left () => (real[3] a) { s = Sin (h)  a = Mul (s, w) },
                else_branch = right () => (real[3] b) { t = Tanh (h)  b = Sub (t, w) }>
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def if_in_loop_predicate_from_carry(real: str = "double") -> Example:
    text = """(real[2] x, real[2] w, int64 trips) => (real[2] y) <real zero = {0}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2] h) => (bool again, real[2] next) {
            again = Identity (going)
            total = ReduceSum <keepdims = 0> (h)
            p = Greater (total, zero)
            next = If (p) <
                then_branch = left () => (real[2] a) { s = Sin (h)  t = Sub (s, w)  a = Mul (t, w) },
                else_branch = right () => (real[2] b) { t = Mul (h, h)  b = Add (t, w) }>
        }>
    }"""
    return example(real, text, {"x": [0.9, 0.5], "w": [1.4, 0.8], "trips": 4})


@corpus_model
def if_in_loop_only_one_branch_differentiable(real: str = "double") -> Example:
    """The else-branch resets the carry to a constant: nothing passes through that iteration."""
    text = """(real[3] x, real[3] w) => (real[3] y, real[3] z) <int64 trips = {5}, int64 two = {2}> {
        y, z = Loop (trips, , x, x) <body = body (int64 i, bool going, real[3] h, real[3] g)
            => (bool again, real[3] next, real[3] later) {
            again = Identity (going)
            other = Equal (i, two)
            p = Not (other)
            next = If (p) <
                then_branch = left () => (real[3] a) { s = Sin (h)  a = Mul (s, w) },
                else_branch = right () => (real[3] b) { b = Constant <value = real[3] {0.3, 0.1, -0.2}> () }>
            later = Mul (next, g)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def if_in_loop_passes_carry_through(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) <int64 one = {1}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            p = Greater (i, one)
            next = If (p) <
                then_branch = left () => (real[3] a) { a = Identity (h) },
                else_branch = right () => (real[3] b) { s = Sin (h)  b = Mul (s, w) }>
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 4})


@corpus_model
def if_in_loop_shapes_differ(real: str = "double") -> Example:
    """Branches of different lengths inside a loop, reduced before they are carried."""
    text = """(real[3] x, real[5] w, int64 trips) => (real[3] y) <int64 one = {1}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            p = Equal (i, one)
            m = If (p) <
                then_branch = left () => (real[3] a) { s = Sin (h)  a = Mul (s, s) },
                else_branch = right () => (real[5] b) { t = Sin (w)  u = ReduceSum <keepdims = 1> (h)  b = Mul (t, u) }>
            q = Mul (m, m)
            total = ReduceSum <keepdims = 0> (q)
            c = Sin (total)
            next = Mul (h, c)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (5,), "trips": 3})


@corpus_model
def if_in_loop_ranks_differ(real: str = "double") -> Example:
    text = """(real[3] x, real[2, 3] w, int64 trips) => (real[3] y) <int64 one = {1}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            p = Equal (i, one)
            m = If (p) <
                then_branch = left () => (real[3] a) { s = Sin (h)  a = Mul (s, s) },
                else_branch = right () => (real[2, 3] b) { t = Sin (h)  b = Mul (t, w) }>
            q = Mul (m, m)
            total = ReduceSum <keepdims = 0> (q)
            c = Sin (total)
            next = Mul (h, c)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (2, 3), "trips": 3})


@corpus_model
def if_in_if_in_loop(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) <int64 two = {2}, int64 one = {1}, int64 zero = {0}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            rest = Mod (i, two)
            even = Equal (rest, zero)
            first = Less (i, one)
            next = If (even) <
                then_branch = left () => (real[3] a) {
                    m = Mul (h, w)
                    a = If (first) <
                        then_branch = inner_left () => (real[3] c) { s = Sin (m)  c = Add (s, h) },
                        else_branch = inner_right () => (real[3] d) { s = Tanh (m)  d = Mul (s, w) }>
                },
                else_branch = right () => (real[3] b) { t = Sin (h)  b = Sub (t, w) }>
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 5})


@corpus_model
def loop_in_if(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool p, int64 trips) => (real[3] y) {
        y = If (p) <
            then_branch = left () => (real[3] a) {
                a = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
                    again = Identity (going)
                    s = Sin (h)
                    next = Mul (s, w)
                }>
            },
            else_branch = right () => (real[3] b) { b = Tanh (x) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": True, "trips": 3})


@corpus_model
def loop_in_if_not_taken(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool p, int64 trips) => (real[3] y) {
        y = If (p) <
            then_branch = left () => (real[3] a) {
                a = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
                    again = Identity (going)
                    s = Sin (h)
                    next = Mul (s, w)
                }>
            },
            else_branch = right () => (real[3] b) { b = Tanh (x) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": False, "trips": 3})


@corpus_model
def loop_with_stop_in_if(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool p) => (real[3] y) <int64 trips = {9}, int64 last = {2}> {
        y = If (p) <
            then_branch = left () => (real[3] a) {
                a = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
                    again = Less (i, last)
                    s = Sin (h)
                    next = Mul (s, w)
                }>
            },
            else_branch = right () => (real[3] b) { s = Sin (x)  b = Mul (s, w) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": True})


@corpus_model
def loop_with_stop_in_if_in_loop(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, int64 outer) => (real[3] y) <int64 trips = {9}, int64 one = {1}> {
        y = Loop (outer, , x) <body = outside (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            p = Greater (i, one)
            next = If (p) <
                then_branch = left () => (real[3] a) {
                    a = Loop (trips, , h) <body = inside (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                        onward = Less (j, i)
                        s = Sin (g)
                        g2 = Mul (s, w)
                    }>
                },
                else_branch = right () => (real[3] b) { s = Sin (h)  b = Sub (s, w) }>
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "outer": 4})


@corpus_model
def if_loop_if_loop(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool p, int64 trips) => (real[3] y) <int64 one = {1}> {
        y = If (p) <
            then_branch = left () => (real[3] a) {
                a = Loop (trips, , x) <body = outside (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
                    again = Identity (going)
                    q = Less (i, one)
                    next = If (q) <
                        then_branch = inner_left () => (real[3] c) {
                            c = Loop (trips, , h) <body = inside (int64 j, bool on, real[3] g)
                                => (bool onward, real[3] g2) {
                                onward = Identity (on)
                                s = Sin (g)
                                g2 = Mul (s, w)
                            }>
                        },
                        else_branch = inner_right () => (real[3] d) { s = Sin (h)  d = Sub (s, w) }>
                }>
            },
            else_branch = right () => (real[3] b) { b = Mul (x, w) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": True, "trips": 3})


@corpus_model
def if_in_scan(real: str = "double") -> Example:
    text = """(real[3] h0, real[4, 3] xs, bool[4] flags, real[3] w) => (real[3] h, real[4, 3] ys) {
        h, ys = Scan <num_scan_inputs = 2, body = body (real[3] s, real[3] u, bool p) => (real[3] s2, real[3] y) {
            s2 = If (p) <
                then_branch = left () => (real[3] a) { t = Sin (s)  a = Mul (t, u) },
                else_branch = right () => (real[3] b) { t = Tanh (s)  b = Sub (t, w) }>
            y = Mul (s2, u)
        }> (h0, xs, flags)
    }"""
    return example(real, text, {"h0": (3,), "xs": (4, 3), "flags": [True, False, False, True], "w": (3,)})


@corpus_model
def scan_in_if_in_loop(real: str = "double") -> Example:
    text = """(real[3] x, real[4, 3] xs, real[3] w, int64 trips) => (real[3] y) <int64 one = {1}> {
        y = Loop (trips, , x) <body = outside (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            p = Equal (i, one)
            next = If (p) <
                then_branch = left () => (real[3] a) {
                    a = Scan <num_scan_inputs = 1, body = inside (real[3] s, real[3] u) => (real[3] s2) {
                        t = Sin (s)
                        q = Mul (t, u)
                        s2 = Add (q, w)
                    }> (h, xs)
                },
                else_branch = right () => (real[3] b) { t = Sin (h)  b = Mul (t, w) }>
        }>
    }"""
    return example(real, text, {"x": (3,), "xs": (4, 3), "w": (3,), "trips": 3})
