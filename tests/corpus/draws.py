"""Random draws inside loops: drawn once, never again by the reverse pass."""

from __future__ import annotations

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def random_draw_in_body(real: str = "double") -> Example:
    """Noise drawn in the body, with the seed that makes runs repeatable."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            noise = RandomNormalLike <seed = 7.0> (h)
            s = Sin (h)
            p = Mul (s, noise)
            next = Add (p, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})


@corpus_model
def random_draw_in_if_in_body(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) <int64 one = {1}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            p = Less (i, one)
            s = Sin (h)
            next = If (p) <
                then_branch = left () => (real[3] a) {
                    noise = RandomUniformLike <seed = 3.0, low = 0.5, high = 1.5> (s)
                    t = Sin (noise)
                    m = Mul (s, t)
                    a = Mul (m, w)
                },
                else_branch = right () => (real[3] b) { b = Sub (s, w) }>
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})
