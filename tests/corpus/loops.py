"""Loops by how they start, go on and end."""

from __future__ import annotations

import numpy as np

from tests.corpus.entry import Example, corpus_model, example

BODY = """body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
    again = Identity (going)
    s = Sin (h)
    ws = Mul (w, s)
    next = Add (ws, h)
}"""


@corpus_model
def loop_static(real: str = "double") -> Example:
    text = f"""(real[3] x, real[3] w) => (real[3] y) <int64 trips = {{5}}, bool true = {{1}}> {{
        y = Loop (trips, true, x) <{BODY}>
    }}"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_one_trip(real: str = "double") -> Example:
    text = f"""(real[3] x, real[3] w) => (real[3] y) <int64 trips = {{1}}, bool true = {{1}}> {{
        y = Loop (trips, true, x) <{BODY}>
    }}"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_zero_trips(real: str = "double") -> Example:
    text = f"""(real[3] x, real[3] w, int64 trips) => (real[3] y) <bool true = {{1}}> {{
        y = Loop (trips, true, x) <{BODY}>
    }}"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 0})


@corpus_model
def loop_zero_trips_static(real: str = "double") -> Example:
    text = f"""(real[3] x, real[3] w) => (real[3] y) <int64 trips = {{0}}> {{
        y = Loop (trips, , x) <{BODY}>
    }}"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_zero_trips_by_condition(real: str = "double") -> Example:
    text = f"""(real[3] x, real[3] w, bool start) => (real[3] y) <int64 trips = {{4}}> {{
        y = Loop (trips, start, x) <{BODY}>
    }}"""
    return example(real, text, {"x": (3,), "w": (3,), "start": False})


@corpus_model
def loop_zero_trips_by_constant_condition(real: str = "double") -> Example:
    text = f"""(real[3] x, real[3] w) => (real[3] y) <int64 trips = {{4}}, bool false = {{0}}> {{
        y = Loop (trips, false, x) <{BODY}>
    }}"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_negative_limit(real: str = "double") -> Example:
    text = f"""(real[3] x, real[3] w, int64 trips) => (real[3] y) {{
        y = Loop (trips, , x) <{BODY}>
    }}"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": -2})


@corpus_model
def loop_dynamic_trips(real: str = "double") -> Example:
    text = f"""(real[3] x, real[3] w, int64 trips) => (real[3] y) <bool true = {{1}}> {{
        y = Loop (trips, true, x) <{BODY}>
    }}"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 4})


@corpus_model
def loop_limit_of_shape_one(real: str = "double") -> Example:
    text = f"""(real[3] x, real[3] w, int64[1] trips) => (real[3] y) {{
        y = Loop (trips, , x) <{BODY}>
    }}"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": [4]})


@corpus_model
def loop_condition_of_shape_one(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool[1] start) => (real[3] y) <int64 trips = {4}> {
        y = Loop (trips, start, x) <body = body (int64 i, bool[1] going, real[3] h) => (bool[1] again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            ws = Mul (w, s)
            next = Add (ws, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "start": [True]})


@corpus_model
def loop_limit_from_a_shape(real: str = "double") -> Example:
    text = f"""(real[3] x, real[3] w, real[N] rows) => (real[3] y) {{
        dims = Shape (rows)
        trips = Squeeze (dims)
        y = Loop (trips, , x) <{BODY}>
    }}"""
    return example(real, text, {"x": (3,), "w": (3,), "rows": (4,)}, wrt=("x", "w"))


@corpus_model
def loop_dynamic_stop(real: str = "double") -> Example:
    """The condition ends the loop after 4 of 9 iterations."""
    text = """(real[3] x, real[3] w, real far) => (real[3] y) <int64 trips = {9}, bool true = {1}> {
        y = Loop (trips, true, x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            s = Sin (h)
            ws = Mul (w, s)
            next = Add (ws, w)
            n = Cast <to = 11> (i)
            again = Less (n, far)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "far": 2.5}, wrt=("x", "w"))


@corpus_model
def loop_stop_by_carry(real: str = "double") -> Example:
    """The condition depends on the carry that is differentiated; it ends the loop after 5 iterations."""
    text = """(real[2] x, real[2] w) => (real[2] y) <int64 trips = {30}, real limit = {2.9}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2] h) => (bool again, real[2] next) {
            s = Sin (h)
            p = Mul (w, s)
            next = Add (h, p)
            total = ReduceSum <keepdims = 0> (next)
            again = Less (total, limit)
        }>
    }"""
    return example(real, text, {"x": [0.4, 0.3], "w": [0.3, 0.4]})


@corpus_model
def loop_stop_after_first(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {6}, bool false = {0}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (false)
            s = Sin (h)
            next = Mul (w, s)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_no_limit(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y) <bool true = {1}, int64 last = {3}> {
        y = Loop (, true, x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Less (i, last)
            s = Sin (h)
            ws = Mul (w, s)
            next = Sub (ws, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_no_limit_zero_trips(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, bool start) => (real[3] y) <int64 last = {3}> {
        y = Loop (, start, x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Less (i, last)
            s = Sin (h)
            ws = Mul (w, s)
            next = Sub (ws, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "start": False})


@corpus_model
def loop_huge_limit(real: str = "double") -> Example:
    """What exporters write for a while loop: the largest limit there is."""
    text = """(real[3] x, real[3] w) => (real[3] y)
        <int64 trips = {9223372036854775807}, bool true = {1}, int64 last = {3}> {
        y = Loop (trips, true, x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Less (i, last)
            s = Sin (h)
            ws = Mul (w, s)
            next = Sub (ws, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_no_cond(real: str = "double") -> Example:
    """Without an initial condition; the body's condition ends the loop all the same."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {7}, int64 last = {2}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Less (i, last)
            s = Sin (h)
            ws = Mul (w, s)
            next = Sub (ws, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_nothing(real: str = "double") -> Example:
    """Neither limit nor initial condition: the body decides alone."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 last = {2}> {
        y = Loop (, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Less (i, last)
            s = Sin (h)
            ws = Mul (w, s)
            next = Sub (ws, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_condition_from_captured_value(real: str = "double") -> Example:
    """The condition compares a captured value, which is differentiated too, with the iteration number."""
    text = """(real[3] x, real far) => (real[3] y) <int64 trips = {9}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            s = Sin (h)
            ws = Mul (far, s)
            next = Add (ws, h)
            n = Cast <to = 11> (i)
            again = Less (n, far)
        }>
    }"""
    return example(real, text, {"x": (3,), "far": 2.5})


@corpus_model
def loop_condition_read_in_body(real: str = "double") -> Example:
    """The body reads the condition that it was given, as a number and as a mask."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {5}, bool true = {1}> {
        y = Loop (trips, true, x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            one = Cast <to = 11> (going)
            s = Sin (h)
            kept = Where (going, s, h)
            scaled = Mul (kept, one)
            ws = Mul (w, scaled)
            next = Add (ws, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_long(real: str = "double") -> Example:
    """2,000 iterations of a small rotation."""
    text = """(real[2] x, real[2] w) => (real[2] y)
        <int64 trips = {2000}, real step = {0.003}, int64[2] cross = {1, 0}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2] h) => (bool again, real[2] next) {
            again = Identity (going)
            swapped = Gather (h, cross)
            s = Sin (swapped)
            ws = Mul (w, s)
            move = Mul (ws, step)
            next = Add (h, move)
        }>
    }"""
    return example(real, text, {"x": [0.5, -0.8], "w": np.asarray([1.0, -1.3])})


@corpus_model
def loop_fixed_point(real: str = "double") -> Example:
    """Iterates until two iterates agree; the gradient is that of the iterations that ran."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {100}, real tolerance = {0.01}, real half = {0.5}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            s = Tanh (h)
            p = Mul (half, s)
            next = Add (p, w)
            gap = Sub (next, h)
            square = Mul (gap, gap)
            worst = ReduceMax <keepdims = 0> (square)
            again = Greater (worst, tolerance)
        }>
    }"""
    return example(real, text, {"x": [1.5, -0.4, 0.3], "w": [0.7, 0.2, -0.6]})
