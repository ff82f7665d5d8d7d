"""Loops by what they read from outside, and from how far."""

from __future__ import annotations

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def loop_captured_weight(real: str = "double") -> Example:
    text = """(real[2, 3] x, real[3, 3] w, real[3] b) => (real[2, 3] y) <int64 trips = {4}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            p = MatMul (h, w)
            q = Add (p, b)
            next = Sin (q)
        }>
    }"""
    return example(real, text, {"x": (2, 3), "w": (3, 3), "b": (3,)})


@corpus_model
def loop_captured_weight_dynamic(real: str = "double") -> Example:
    text = """(real[2, 3] x, real[3, 3] w, real[3] b, int64 trips) => (real[2, 3] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            p = Gemm <transB = 1> (h, w, b)
            next = Sin (p)
        }>
    }"""
    return example(real, text, {"x": (2, 3), "w": (3, 3), "b": (3,), "trips": 3})


@corpus_model
def loop_captured_weight_zero_trips(real: str = "double") -> Example:
    text = """(real[2, 3] x, real[3, 3] w, real[3] b, int64 trips) => (real[2, 3] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            p = MatMul (h, w)
            q = Add (p, b)
            next = Sin (q)
        }>
    }"""
    return example(real, text, {"x": (2, 3), "w": (3, 3), "b": (3,), "trips": 0})


@corpus_model
def loop_captured_weight_as_vector_product(real: str = "double") -> Example:
    text = """(real[3] x, real[3, 3] w, int64 trips) => (real[3] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            p = MatMul (w, h)
            next = Sin (p)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3, 3), "trips": 4})


@corpus_model
def loop_captured_weight_used_twice(real: str = "double") -> Example:
    """A matrix that is multiplied from both sides and added: contracted and summed contributions meet."""
    text = """(real[3, 3] x, real[3, 3] w) => (real[3, 3] y) <int64 trips = {3}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3, 3] h) => (bool again, real[3, 3] next) {
            again = Identity (going)
            p = MatMul (h, w)
            s = Sin (p)
            q = MatMul (w, s)
            next = Sub (q, w)
        }>
    }"""
    return example(real, text, {"x": (3, 3), "w": (3, 3)})


@corpus_model
def loop_captured_weight_computed(real: str = "double") -> Example:
    """The captured value is computed outside, and computed again from captured values inside."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {4}> {
        v = Sin (w)
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            u = Mul (v, w)
            s = Sin (h)
            p = Mul (u, s)
            next = Sub (p, v)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_captured_weight_broadcast(real: str = "double") -> Example:
    """Captured values of lower rank and with axes of length 1."""
    text = """(real[2, 3] x, real[3] row, real[2, 1] column, real scale) => (real[2, 3] y) <int64 trips = {3}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            s = Sin (h)
            p = Mul (s, row)
            q = Add (p, column)
            next = Mul (q, scale)
        }>
    }"""
    return example(real, text, {"x": (2, 3), "row": (3,), "column": (2, 1), "scale": 1.3})


@corpus_model
def loop_captured_at_depth_two(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 outer = {3}, int64 inner = {2}> {
        y = Loop (outer, , x) <body = one (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            next = Loop (inner, , h) <body = two (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                onward = Identity (on)
                s = Sin (g)
                g2 = Mul (s, w)
            }>
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_captured_at_depth_three(real: str = "double") -> Example:
    """Read at depths one, two and three."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) <int64 two = {2}> {
        y = Loop (two, , x) <body = one (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            m = Loop (trips, , h) <body = middle (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                onward = Identity (on)
                k = Loop (two, , g) <body = three (int64 l, bool in, real[3] f) => (bool inward, real[3] f2) {
                    inward = Identity (in)
                    s = Sin (f)
                    p = Mul (s, w)
                    f2 = Add (p, h)
                }>
                g2 = Mul (k, w)
            }>
            next = Sub (m, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 2})


@corpus_model
def loop_captured_matrix_at_depth_two(real: str = "double") -> Example:
    text = """(real[2, 3] x, real[3, 3] w, int64 trips) => (real[2, 3] y) <int64 two = {2}> {
        y = Loop (trips, , x) <body = one (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            k = Loop (two, , h) <body = two (int64 j, bool on, real[2, 3] g) => (bool onward, real[2, 3] g2) {
                onward = Identity (on)
                p = MatMul (g, w)
                g2 = Sin (p)
            }>
            next = MatMul (k, w)
        }>
    }"""
    return example(real, text, {"x": (2, 3), "w": (3, 3), "trips": 2})


@corpus_model
def loop_with_two_inner_loops_sharing_a_weight(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) <int64 two = {2}> {
        y = Loop (trips, , x) <body = outer (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            a = Loop (two, , h) <body = left (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                onward = Identity (on)
                s = Sin (g)
                g2 = Mul (s, w)
            }>
            b = Loop (two, , a) <body = right (int64 j, bool on, real[3] g) => (bool onward, real[3] g2) {
                onward = Identity (on)
                s = Sin (g)
                p = Mul (s, w)
                g2 = Add (p, a)
            }>
            next = Mul (a, b)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})


@corpus_model
def loop_value_captured_and_used_after(real: str = "double") -> Example:
    """An intermediate value is captured, and read again after the loop."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {3}> {
        v = Sin (w)
        last = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            p = Mul (s, v)
            next = Add (p, w)
        }>
        y = Mul (last, v)
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_captures_final_of_other_loop(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y, real[3] m) <int64 two = {2}, int64 trips = {3}> {
        m = Loop (two, , x) <body = first (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            next = Mul (s, w)
        }>
        y = Loop (trips, , w) <body = second (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            next = Mul (s, m)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_wrt_initializer(real: str = "double") -> Example:
    text = """(real[3] x) => (real[3] y) <real[3] w = {0.9, -1.4, 0.6}, int64 trips = {4}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            next = Mul (s, w)
        }>
    }"""
    return example(real, text, {"x": (3,)}, wrt=("w", "x"))


@corpus_model
def loop_wrt_matrix_initializer(real: str = "double") -> Example:
    text = """(real[2, 2] x, int64 trips) => (real[2, 2] y) <real[2, 2] w = {0.9, -1.4, 0.6, 1.1}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 2] h) => (bool again, real[2, 2] next) {
            again = Identity (going)
            p = MatMul (h, w)
            next = Sin (p)
        }>
    }"""
    return example(real, text, {"x": (2, 2), "trips": 3}, wrt=("w",))


@corpus_model
def loop_initializer_in_body(real: str = "double") -> Example:
    text = """(real[3] x) => (real[3] y) <int64 trips = {4}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next)
            <real[3] w = {0.9, -1.4, 0.6}> {
            again = Identity (going)
            s = Sin (h)
            p = Mul (s, w)
            next = Add (p, h)
        }>
    }"""
    return example(real, text, {"x": (3,)})


@corpus_model
def loop_constant_in_body(real: str = "double") -> Example:
    text = """(real[3] x) => (real[3] y) <int64 trips = {4}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            w = Constant <value = real[3] {0.9, -1.4, 0.6}> ()
            t = Sin (w)
            s = Sin (h)
            p = Mul (s, t)
            next = Add (p, h)
        }>
    }"""
    return example(real, text, {"x": (3,)})


@corpus_model
def loop_several_wrt(real: str = "double") -> Example:
    """Five wrt values, one of which nothing depends on."""
    text = """(real[3] x, real[3] a, real[3] b, real[3] c, real[2] unused) => (real[3] y, real[2] z)
        <int64 trips = {3}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            p = Mul (h, a)
            q = Sin (p)
            r = Mul (q, b)
            next = Sub (r, c)
        }>
        z = Sin (unused)
    }"""
    return example(real, text, {"x": (3,), "a": (3,), "b": (3,), "c": (3,), "unused": (2,)}, outputs=("y",))


@corpus_model
def loop_attends_to_captured_memory(real: str = "double") -> Example:
    """Stacks of matrices from outside, multiplied by rows and by columns that each iteration makes."""
    text = """(real[2, 3] x, real[2, 4, 3] memory, real[2, 3, 4] keys) => (real[2, 3] y)
        <int64 trips = {5}, int64[1] one = {1}, int64[1] two = {2}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            row = Unsqueeze (h, one)
            scores = MatMul (row, keys)
            shares = Softmax <axis = 2> (scores)
            context = MatMul (shares, memory)
            flat = Squeeze (context, one)
            column = Unsqueeze (h, two)
            matched = MatMul (memory, column)
            back = MatMul (keys, matched)
            level = Squeeze (back, two)
            total = Add (flat, level)
            next = Sin (total)
        }>
    }"""
    return example(real, text, {"x": (2, 3), "memory": (2, 4, 3), "keys": (2, 3, 4)})


@corpus_model
def loop_captured_weight_of_gates_split_by_computed_sizes(real: str = "double") -> Example:
    """As TorchScript writes chunk: the gates are taped in sequences, and factors of products are stacked by a Loop."""
    text = """(real[B, 2] x, real[4, 2] w, real[4] b, int64 trips) => (real[B, 2] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[B, 2] h) => (bool again, real[B, 2] next) {
            again = Identity (going)
            z = Gemm <transB = 1> (h, w, b)
            shape = Shape (z)
            one = Constant <value = int64[1] {1}> ()
            two = Constant <value = int64 {2}> ()
            width = Gather (shape, one)
            half = Div (width, two)
            sizes = Concat <axis = 0> (half, half)
            gates = SplitToSequence <axis = 1> (z, sizes)
            zero = Constant <value = int64 {0}> ()
            last = Constant <value = int64 {-1}> ()
            f = SequenceAt (gates, zero)
            c = SequenceAt (gates, last)
            s = Sigmoid (f)
            t = Tanh (c)
            m = Mul (s, t)
            r = ReduceSum <keepdims = 0> (m)
            next = Mul (h, r)
        }>
    }"""
    return example(real, text, {"x": (3, 2), "w": (4, 2), "b": (4,), "trips": 3})
