"""Loops by their stacked outputs, and by what their reverse pass needs to have kept."""

from __future__ import annotations

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def loop_scan_output(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y, real[N, 3] rows) <int64 trips = {4}> {
        y, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] row) {
            again = Identity (going)
            s = Sin (h)
            row = Mul (s, w)
            next = Add (row, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_scan_output_dynamic(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y, real[N, 3] rows) {
        y, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] row) {
            again = Identity (going)
            s = Sin (h)
            row = Mul (s, w)
            next = Add (row, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})


@corpus_model
def loop_scan_output_zero_trips(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y, real[N, 3] rows) {
        y, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] row) {
            again = Identity (going)
            s = Sin (h)
            row = Mul (s, w)
            next = Add (row, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 0})


@corpus_model
def loop_scan_output_until_stop(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y, real[N, 3] rows) <int64 trips = {9}, int64 last = {2}> {
        y, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] row) {
            again = Less (i, last)
            s = Sin (h)
            row = Mul (s, w)
            next = Add (row, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_scan_output_only_seeded(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y, real[N, 3] rows) {
        y, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] row) {
            again = Identity (going)
            s = Sin (h)
            row = Mul (s, w)
            next = Add (row, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3}, outputs=("rows",))


@corpus_model
def loop_scan_output_not_seeded(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y, real[N, 3] rows) <int64 trips = {4}> {
        y, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] row) {
            again = Identity (going)
            s = Sin (h)
            row = Mul (s, w)
            next = Add (row, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)}, outputs=("y",))


@corpus_model
def loop_scan_output_never_read(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {4}> {
        y, unread = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] row) {
            again = Identity (going)
            s = Sin (h)
            row = Mul (s, w)
            next = Add (row, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_scan_output_read_after(real: str = "double") -> Example:
    """The stacked rows are summed after the loop, and multiplied by the final carry."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) <int64[1] zero = {0}> {
        last, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] row) {
            again = Identity (going)
            s = Sin (h)
            row = Mul (s, w)
            next = Add (row, h)
        }>
        total = ReduceSum <keepdims = 0> (rows, zero)
        y = Mul (total, last)
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})


@corpus_model
def loop_scan_output_is_entry(real: str = "double") -> Example:
    """The body stacks its carry before the update: the input itself is a result."""
    text = """(real[3] x, real[3] w) => (real[3] y, real[N, 3] rows) <int64 trips = {4}> {
        y, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] h) {
            again = Identity (going)
            s = Sin (h)
            next = Mul (s, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_scan_output_is_exit(real: str = "double") -> Example:
    """The next carry is stacked too: one value is returned twice."""
    text = """(real[3] x, real[3] w) => (real[3] y, real[N, 3] rows, real[N, 3] again_rows) <int64 trips = {4}> {
        y, rows, again_rows = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] next, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            next = Mul (s, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_scan_output_is_captured(real: str = "double") -> Example:
    """The body stacks an outer value (through Identity, as ONNX demands)."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y, real[N, 3] rows) {
        y, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] row) {
            again = Identity (going)
            row = Identity (w)
            s = Sin (h)
            next = Mul (s, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})


@corpus_model
def loop_scan_outputs(real: str = "double") -> Example:
    """Stacked scalars, rows, integers and masks side by side."""
    text = """(real[3] x, real[3] w) => (real[3] y, real[N] totals, real[N, 3] rows, int64[N] numbers, bool[N, 3] masks)
        <int64 trips = {4}> {
        y, totals, rows, numbers, masks = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real total, real[3] row, int64 number, bool[3] mask) {
            again = Identity (going)
            s = Sin (h)
            row = Mul (s, w)
            total = ReduceSum <keepdims = 0> (row)
            number = Identity (i)
            mask = Greater (s, w)
            next = Add (row, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_linear(real: str = "double") -> Example:
    """A body that is linear in its carry needs nothing of an iteration for its reverse pass."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) <real[3] k = {0.9, -1.2, 1.1}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            p = Mul (h, k)
            next = Add (p, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 4})


@corpus_model
def loop_shape_only(real: str = "double") -> Example:
    """The reverse pass needs the shape of a body value and nothing else of it."""
    text = """(real[M, 3] x, real[3] w, int64 trips) => (real[M, 3] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[M, 3] h) => (bool again, real[M, 3] next) {
            again = Identity (going)
            mean = ReduceSum <keepdims = 1> (h)
            p = Sub (h, mean)
            next = Add (p, w)
        }>
    }"""
    return example(real, text, {"x": (2, 3), "w": (3,), "trips": 2})


@corpus_model
def loop_replays_products(real: str = "double") -> Example:
    """Cheap products of the carry, which the reverse pass may compute again."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {4}, real tenth = {0.1}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            a = Mul (h, w)
            b = Mul (a, h)
            c = Mul (b, a)
            d = Mul (c, tenth)
            next = Sub (a, d)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def loop_poles_cut_off(real: str = "double") -> Example:
    """A logarithm of a negative number that a mask throws away, every second iteration."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {4}, real zero = {0}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            positive = Greater (h, zero)
            l = Log (h)
            s = Sin (h)
            kept = Where (positive, l, s)
            p = Mul (kept, w)
            next = Neg (p)
        }>
    }"""
    return example(real, text, {"x": [0.7, -0.4, 1.9], "w": [0.8, 1.1, -0.9]})


@corpus_model
def loop_scan_output_is_entry_of_unread_carry(real: str = "double") -> Example:
    """The final carry is not read, but what entered each iteration is stacked."""
    text = """(real[3] x) => (real[N, 3] rows) <int64 trips = {4}> {
        unread, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] next, real[3] h) {
            again = Identity (going)
            next = Sin (h)
        }>
    }"""
    return example(real, text, {"x": (3,)})


@corpus_model
def loop_scan_output_is_entry_of_unread_unchanged_carry(real: str = "double") -> Example:
    text = """(real[3] x, int64 trips) => (real[N, 3] rows) {
        unread, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h)
            => (bool again, real[3] h, real[3] h) {
            again = Identity (going)
        }>
    }"""
    return example(real, text, {"x": (3,), "trips": 3})


@corpus_model
def loop_scan_output_zero_trips_symbolic(real: str = "double") -> Example:
    """No iteration, and a stacked output whose rows have a symbolic length: ONNX Runtime gives it 0 columns."""
    text = """(real[A] x, real[A] w, int64 trips) => (real[A] y, real[N, B] rows) {
        y, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[A] h)
            => (bool again, real[A] next, real[A] row) {
            again = Identity (going)
            s = Sin (h)
            row = Mul (s, w)
            next = Add (row, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 0})


@corpus_model
def loop_scan_output_zero_trips_symbolic_and_summed(real: str = "double") -> Example:
    """The sum over no rows: what ONNX Runtime gives it for a length, the gradients have the shapes of the inputs."""
    text = """(real[A] x, real[A] w, int64 trips) => (real total) <int64[1] zero = {0}> {
        y, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[A] h)
            => (bool again, real[A] next, real[A] row) {
            again = Identity (going)
            s = Sin (h)
            row = Mul (s, w)
            next = Add (row, h)
        }>
        sums = ReduceSum <keepdims = 0> (rows, zero)
        sines = Sin (sums)
        total = ReduceSum <keepdims = 0> (sines)
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 0})
