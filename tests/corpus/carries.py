"""Loops by what they carry, and how carries, captures and exits coincide."""

from __future__ import annotations

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def loop_index_in_arithmetic(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {4}, real tenth = {0.1}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            n = Cast <to = 11> (i)
            t = Mul (n, tenth)
            wt = Mul (w, t)
            s = Sin (h)
            p = Add (s, wt)
            next = Mul (p, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_index_gathers_rows(real: str = "double") -> Example:
    """Reads row i of an outer tensor that has more rows than the loop has iterations."""
    text = """(real[3] x, real[6, 3] rows) => (real[3] y) <int64 trips = {4}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            row = Gather (rows, i)
            s = Sin (h)
            p = Mul (row, s)
            next = Add (p, row)
        }>
    }"""
    return example(real, text, {"x": (3,), "rows": (6, 3)})


@corpus_model
def loop_index_gathers_columns_until_stop(real: str = "double") -> Example:
    """Reads column i of an outer tensor until the condition ends the loop; other columns get zeros."""
    text = """(real[3] x, real[3, 7] columns) => (real[3] y) <int64 trips = {7}, int64 last = {3}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Less (i, last)
            column = Gather <axis = 1> (columns, i)
            s = Sin (h)
            p = Mul (column, s)
            next = Add (p, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "columns": (3, 7)})


@corpus_model
def loop_index_gathers_element(real: str = "double") -> Example:
    """Reads scalar i of an outer vector, and the same vector whole."""
    text = """(real x, real[5] v, int64 trips) => (real y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real h) => (bool again, real next) {
            again = Identity (going)
            e = Gather (v, i)
            s = Sin (h)
            p = Mul (e, s)
            total = ReduceSum <keepdims = 0> (v)
            q = Mul (total, p)
            next = Add (q, h)
        }>
    }"""
    return example(real, text, {"x": 0.4, "v": (5,), "trips": 3})


@corpus_model
def loop_index_compared(real: str = "double") -> Example:
    """The iteration number chooses what an iteration does, through masks."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {6}, int64 two = {2}, int64 zero = {0}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            rest = Mod (i, two)
            even = Equal (rest, zero)
            s = Sin (h)
            ws = Mul (w, s)
            wh = Mul (w, h)
            next = Where (even, ws, wh)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_integer_carry(real: str = "double") -> Example:
    """A carried position walks over the rows of an outer tensor."""
    text = """(real[3] x, real[5, 3] rows, int64 start) => (real[3] y, int64 position)
        <int64 trips = {4}, int64 two = {2}, int64 five = {5}> {
        y, position = Loop (trips, , x, start) <body = body (int64 i, bool going, real[3] h, int64 at)
            => (bool again, real[3] next, int64 then) {
            again = Identity (going)
            row = Gather (rows, at)
            s = Sin (h)
            p = Mul (row, s)
            next = Add (p, row)
            far = Add (at, two)
            then = Mod (far, five)
        }>
    }"""
    return example(real, text, {"x": (3,), "rows": (5, 3), "start": 1})


@corpus_model
def loop_boolean_carry(real: str = "double") -> Example:
    """A carried flag flips each iteration and selects."""
    text = """(real[3] x, real[3] w, bool flag) => (real[3] y, bool last) <int64 trips = {5}> {
        y, last = Loop (trips, , x, flag) <body = body (int64 i, bool going, real[3] h, bool on)
            => (bool again, real[3] next, bool off) {
            again = Identity (going)
            s = Sin (h)
            ws = Mul (w, s)
            next = Where (on, ws, s)
            off = Not (on)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "flag": True})


@corpus_model
def loop_carry_from_comparison(real: str = "double") -> Example:
    """A carried mask compares what is differentiated."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {4}, bool[3] mask = {1, 0, 1}> {
        y, last = Loop (trips, , x, mask) <body = body (int64 i, bool going, real[3] h, bool[3] on)
            => (bool again, real[3] next, bool[3] other) {
            again = Identity (going)
            s = Sin (h)
            ws = Mul (w, s)
            hw = Sub (w, h)
            next = Where (on, ws, hw)
            other = Greater (next, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_carry_unchanged(real: str = "double") -> Example:
    """One carry goes through the body as it is, and is read there."""
    text = """(real[3] x, real[3] w) => (real[3] y, real[3] z) <int64 trips = {4}> {
        y, z = Loop (trips, , x, w) <body = body (int64 i, bool going, real[3] h, real[3] k)
            => (bool again, real[3] next, real[3] k) {
            again = Identity (going)
            s = Sin (h)
            p = Mul (k, s)
            next = Add (p, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_carry_unchanged_and_unread(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y, real[3] z) {
        y, z = Loop (trips, , x, w) <body = body (int64 i, bool going, real[3] h, real[3] k)
            => (bool again, real[3] next, real[3] k) {
            again = Identity (going)
            s = Sin (h)
            next = Sub (h, s)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})


@corpus_model
def loop_carries_swapped(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y, real[3] z) <int64 trips = {5}> {
        y, z = Loop (trips, , x, w) <body = body (int64 i, bool going, real[3] a, real[3] b)
            => (bool again, real[3] b, real[3] c) {
            again = Identity (going)
            s = Sin (b)
            p = Mul (a, s)
            c = Add (p, a)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_carries_only_swapped(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y, real[3] z) {
        p, q = Loop (trips, , x, w) <body = body (int64 i, bool going, real[3] a, real[3] b)
            => (bool again, real[3] b, real[3] a) {
            again = Identity (going)
        }>
        y = Mul (p, p)
        z = Sin (q)
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})


@corpus_model
def loop_same_value_carried_and_captured(real: str = "double") -> Example:
    text = """(real[3] x) => (real[3] y) <int64 trips = {4}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            p = Mul (x, s)
            next = Add (p, x)
        }>
    }"""
    return example(real, text, {"x": (3,)})


@corpus_model
def loop_same_value_carried_twice(real: str = "double") -> Example:
    text = """(real[3] x) => (real[3] y, real[3] z) <int64 trips = {4}> {
        y, z = Loop (trips, , x, x) <body = body (int64 i, bool going, real[3] a, real[3] b)
            => (bool again, real[3] c, real[3] d) {
            again = Identity (going)
            s = Sin (a)
            c = Mul (s, b)
            d = Sub (a, b)
        }>
    }"""
    return example(real, text, {"x": (3,)})


@corpus_model
def loop_carry_overwritten_by_captured(real: str = "double") -> Example:
    """What the carry held is lost each iteration; only the last iteration counts."""
    text = """(real[3] x, real[3] w) => (real[3] y, real[3] z) <int64 trips = {4}> {
        y, z = Loop (trips, , x, x) <body = body (int64 i, bool going, real[3] h, real[3] g)
            => (bool again, real[3] next, real[3] later) {
            again = Identity (going)
            s = Sin (w)
            next = Mul (s, w)
            later = Mul (g, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_exit_is_captured_value(real: str = "double") -> Example:
    """The body returns an outer value as the next carry (through Identity, as ONNX demands)."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y, real[3] z) {
        v = Sin (w)
        y, z = Loop (trips, , x, x) <body = body (int64 i, bool going, real[3] h, real[3] g)
            => (bool again, real[3] next, real[3] later) {
            again = Identity (going)
            next = Identity (v)
            later = Mul (g, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})


@corpus_model
def loop_initial_carry_constant(real: str = "double") -> Example:
    """The carry starts from a constant: only the captured value is differentiated."""
    text = """(real[3] w) => (real[3] y) <int64 trips = {4}, real[3] zero = {0.3, -0.2, 0.1}> {
        y = Loop (trips, , zero) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            p = Sub (w, s)
            next = Mul (p, w)
        }>
    }"""
    return example(real, text, {"w": (3,)})


@corpus_model
def loop_initial_carry_not_wrt(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            p = Sub (w, s)
            next = Mul (p, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3}, wrt=("w",))


@corpus_model
def loop_two_carries_with_one_exit(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y, real[3] z) <int64 trips = {4}> {
        y, z = Loop (trips, , x, w) <body = body (int64 i, bool going, real[3] a, real[3] b)
            => (bool again, real[3] c, real[3] c) {
            again = Identity (going)
            s = Sin (a)
            p = Mul (s, b)
            c = Add (p, b)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_carry_used_in_no_output(real: str = "double") -> Example:
    """A carry whose final value nobody reads still feeds the other one."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {4}> {
        y, unread = Loop (trips, , x, w) <body = body (int64 i, bool going, real[3] a, real[3] b)
            => (bool again, real[3] c, real[3] d) {
            again = Identity (going)
            s = Sin (a)
            c = Mul (s, b)
            d = Add (b, s)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_carry_reached_late(real: str = "double") -> Example:
    """A chain of carries: the wrt value reaches the output only after three iterations."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {5}, real[3] o = {1, 2, 3}> {
        y, q, r = Loop (trips, , o, o, x) <body = body (int64 i, bool going, real[3] a, real[3] b, real[3] c)
            => (bool again, real[3] d, real[3] e, real[3] f) {
            again = Identity (going)
            d = Mul (b, w)
            e = Sin (c)
            f = Add (c, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_final_used_twice(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y, real[3] z) <int64 trips = {3}> {
        h_last = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            next = Mul (s, w)
        }>
        y = Mul (h_last, h_last)
        z = Sin (h_last)
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_final_is_two_outputs(real: str = "double") -> Example:
    """An exit that is an output itself and is read by further nodes."""
    text = """(real[3] x, real[3] w) => (real[3] h_last, real[3] z) <int64 trips = {3}> {
        h_last = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            next = Mul (s, w)
        }>
        z = Mul (h_last, w)
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_without_carry(real: str = "double") -> Example:
    """Nothing is carried: only stacked results."""
    text = """(real[3] w) => (real[N, 3] y) <int64 trips = {4}, bool true = {1}> {
        y = Loop (trips, true) <body = body (int64 i, bool going) => (bool again, real[3] row) {
            again = Identity (going)
            n = Cast <to = 11> (i)
            p = Mul (w, n)
            row = Sin (p)
        }>
    }"""
    return example(real, text, {"w": (3,)})


@corpus_model
def loop_in_chain(real: str = "double") -> Example:
    """The final carry of one loop is the initial carry of the next."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) <int64 two = {2}> {
        m = Loop (two, , x) <body = first (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            next = Mul (s, w)
        }>
        y = Loop (trips, , m) <body = second (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            p = Mul (s, m)
            next = Add (p, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})
