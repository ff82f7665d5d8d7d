"""Loops and Scans inside each other."""

from __future__ import annotations

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def loop_in_loop(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 outer = {3}, int64 inner = {2}> {
        y = Loop (outer, , x) <body = outside (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            k = Loop (inner, , h) <body = inside (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                onward = Identity (on)
                s = Sin (g)
                g2 = Mul (s, w)
            }>
            next = Add (k, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_in_loop_trips_from_outer_index(real: str = "double") -> Example:
    """The inner loop runs 0, 1, 2 and 3 times."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 outer = {4}> {
        y = Loop (outer, , x) <body = outside (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            k = Loop (i, , h) <body = inside (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                onward = Identity (on)
                s = Sin (g)
                g2 = Mul (s, w)
            }>
            next = Add (k, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_in_loop_trips_from_data(real: str = "double") -> Example:
    """Trip counts of the inner loop are data: 2, 0, 3."""
    text = """(real[3] x, real[3] w, int64[3] counts) => (real[3] y) <int64 outer = {3}> {
        y = Loop (outer, , x) <body = outside (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            trips = Gather (counts, i)
            k = Loop (trips, , h) <body = inside (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                onward = Identity (on)
                s = Sin (g)
                g2 = Mul (s, w)
            }>
            next = Sub (k, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "counts": [2, 0, 3]})


@corpus_model
def loop_in_loop_stops_early(real: str = "double") -> Example:
    """The inner loop's condition ends it after i + 1 iterations, or by its limit."""
    text = """(real[3] x, real[3] w, int64 outer) => (real[3] y) <int64 inner = {3}> {
        y = Loop (outer, , x) <body = outside (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            k = Loop (inner, , h) <body = inside (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                onward = Less (j, i)
                s = Sin (g)
                g2 = Mul (s, w)
            }>
            next = Add (k, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "outer": 4})


@corpus_model
def loop_in_loop_stops_by_value(real: str = "double") -> Example:
    """An inner while loop on what is differentiated."""
    text = """(real[2] x, real[2] w, int64 outer) => (real[2] y)
        <int64 inner = {20}, real limit = {3.1}, real half = {0.5}> {
        y = Loop (outer, , x) <body = outside (int64 i, bool going, real[2] h) => (bool again, real[2] next) {
            again = Identity (going)
            k = Loop (inner, , h) <body = inside (int64 j, bool on, real[2] g) => (bool onward, real[2] g2) {
                s = Sin (g)
                p = Mul (s, w)
                g2 = Add (g, p)
                total = ReduceSum <keepdims = 0> (g2)
                onward = Less (total, limit)
            }>
            next = Mul (k, half)
        }>
    }"""
    return example(real, text, {"x": [0.4, 0.3], "w": [0.5, 0.7], "outer": 3})


@corpus_model
def loop_in_loop_both_stop(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 many = {9}, int64 two = {2}> {
        y = Loop (many, , x) <body = outside (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Less (i, two)
            k = Loop (many, , h) <body = inside (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                onward = Less (j, i)
                s = Sin (g)
                g2 = Mul (s, w)
            }>
            next = Add (k, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_in_loop_inner_scan_output(real: str = "double") -> Example:
    """Rows that the inner loop stacks are summed, and the outer loop stacks the sums."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y, real[N, 3] sums)
        <int64 inner = {2}, int64[1] zero = {0}> {
        y, sums = Loop (trips, , x) <body = outside (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] sum) {
            again = Identity (going)
            k, rows = Loop (inner, , h) <body = inside (int64 j, bool on, real[3] g)
                => (bool onward, real[3] g2, real[3] row) {
                onward = Identity (on)
                row = Sin (g)
                g2 = Mul (row, w)
            }>
            total = ReduceSum <keepdims = 0> (rows, zero)
            sum = Mul (total, h)
            next = Add (k, total)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})


@corpus_model
def loop_in_loop_in_loop(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) <int64 two = {2}> {
        y = Loop (two, , x) <body = one (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            m = Loop (trips, , h) <body = middle (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                onward = Identity (on)
                g1 = Loop (two, , g) <body = three (int64 l, bool in, real[3] f) => (bool inward, real[3] f2) {
                    inward = Identity (in)
                    s = Sin (f)
                    f2 = Mul (s, w)
                }>
                g2 = Add (g1, g)
            }>
            next = Sub (m, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 2})


@corpus_model
def scan_in_loop(real: str = "double") -> Example:
    """Each iteration is one pass over a sequence."""
    text = """(real[3] x, real[4, 3] xs, real[3] w, int64 trips) => (real[3] y) {
        y = Loop (trips, , x) <body = outside (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            next = Scan <num_scan_inputs = 1, body = inside (real[3] s, real[3] u) => (real[3] s2) {
                p = Mul (s, w)
                q = Add (p, u)
                s2 = Sin (q)
            }> (h, xs)
        }>
    }"""
    return example(real, text, {"x": (3,), "xs": (4, 3), "w": (3,), "trips": 3})


@corpus_model
def loop_in_scan(real: str = "double") -> Example:
    text = """(real[3] h0, real[4, 3] xs, real[3] w) => (real[3] h, real[4, 3] ys) <int64 inner = {2}> {
        h, ys = Scan <num_scan_inputs = 1, body = outside (real[3] s, real[3] u) => (real[3] s2, real[3] y) {
            s2 = Loop (inner, , s) <body = inside (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                onward = Identity (on)
                t = Sin (g)
                p = Mul (t, w)
                g2 = Add (p, u)
            }>
            y = Mul (s2, u)
        }> (h0, xs)
    }"""
    return example(real, text, {"h0": (3,), "xs": (4, 3), "w": (3,)})


@corpus_model
def loop_with_stop_in_scan(real: str = "double") -> Example:
    """The inner loop runs as often as the slice of an integer input says."""
    text = """(real[3] h0, real[4, 3] xs, int64[4] counts) => (real[3] h, real[4, 3] ys) <int64 many = {9}> {
        h, ys = Scan <num_scan_inputs = 2, body = outside (real[3] s, real[3] u, int64 count)
            => (real[3] s2, real[3] y) {
            s2 = Loop (many, , s) <body = inside (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                onward = Less (j, count)
                t = Sin (g)
                g2 = Mul (t, u)
            }>
            y = Mul (s2, u)
        }> (h0, xs, counts)
    }"""
    return example(real, text, {"h0": (3,), "xs": (4, 3), "counts": [1, 0, 2, 1]})


@corpus_model
def scan_in_scan(real: str = "double") -> Example:
    """Over rows, and over the elements of each row; the inner Scan runs backwards."""
    text = """(real[2] h0, real[3, 4, 2] xs, real[2] w) => (real[2] h, real[3, 4, 2] ys) {
        h, ys = Scan <num_scan_inputs = 1, body = outside (real[2] s, real[4, 2] row) => (real[2] s2, real[4, 2] out) {
            s2, out = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1],
                body = inside (real[2] r, real[2] u) => (real[2] r2, real[2] o) {
                p = Mul (r, w)
                q = Add (p, u)
                r2 = Sin (q)
                o = Mul (r2, u)
            }> (s, row)
        }> (h0, xs)
    }"""
    return example(real, text, {"h0": (2,), "xs": (3, 4, 2), "w": (2,)})
