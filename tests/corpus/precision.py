"""Several floating-point types in one body."""

from __future__ import annotations

import numpy as np

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def casts_in_body(real: str = "double") -> Example:
    """Half of the body computes in float32."""
    text = """(real[3] x, float[3] w, int64 trips) => (real[3] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            narrow = Cast <to = 1> (s)
            p = Mul (narrow, w)
            wide = Cast <to = 11> (p)
            next = Add (wide, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": np.asarray([0.6, -0.8, 1.1], np.float32), "trips": 3}, wrt=("x",))


@corpus_model
def half_weight_in_body(real: str = "double") -> Example:
    """A captured float16 weight, as quantised exports have it."""
    text = """(real[3] x, float16[3] w, int64 trips) => (real[3] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            wide = Cast <to = 11> (w)
            p = Mul (s, wide)
            next = Add (p, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": np.asarray([0.5, -0.75, 1.25], np.float16), "trips": 3}, wrt=("x", "w"))


@corpus_model
def half_carry_beside_wide_one(real: str = "double") -> Example:
    text = """(real[3] x, float16[3] c, int64 trips) => (real[3] y, float16[3] z) {
        y, z = Loop (trips, , x, c) <body = body (int64 i, bool going, real[3] h, float16[3] g)
            => (bool again, real[3] next, float16[3] later) {
            again = Identity (going)
            s = Sin (h)
            wide = Cast <to = 11> (g)
            next = Mul (s, wide)
            later = Add (g, g)
        }>
    }"""
    return example(real, text, {"x": (3,), "c": np.asarray([0.5, -0.75, 1.25], np.float16), "trips": 3}, wrt=("x", "c"))
