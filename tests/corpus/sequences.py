"""Loops and branches that carry, grow and read sequences and optionals."""

from __future__ import annotations

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def sequence_carried(real: str = "double") -> Example:
    """Collects the carries in a sequence and joins them after the loop."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[N] y) {
        none = SequenceEmpty <dtype = 11> ()
        last, all = Loop (trips, , x, none) <body = body (int64 i, bool going, real[3] h, seq(real[3]) q)
            => (bool again, real[3] next, seq(real[3]) q2) {
            again = Identity (going)
            s = Sin (h)
            next = Mul (s, w)
            q2 = SequenceInsert (q, next)
        }>
        y = ConcatFromSequence <axis = 0> (all)
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})


@corpus_model
def sequence_carried_static(real: str = "double") -> Example:
    text = """(real[3] x, real[3] w) => (real[N, 3] y) <int64 trips = {3}> {
        some = SequenceConstruct (x, w)
        last, all = Loop (trips, , x, some) <body = body (int64 i, bool going, real[3] h, seq(real[3]) q)
            => (bool again, real[3] next, seq(real[3]) q2) {
            again = Identity (going)
            s = Sin (h)
            next = Mul (s, w)
            q2 = SequenceInsert (q, next)
        }>
        y = ConcatFromSequence <axis = 0, new_axis = 1> (all)
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def sequence_read_by_index(real: str = "double") -> Example:
    """A captured sequence of tensors, one read each iteration."""
    text = """(real[3] x, real[3] a, real[3] b, real[3] c) => (real[3] y) <int64 trips = {3}> {
        parts = SequenceConstruct (a, b, c)
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            part = SequenceAt (parts, i)
            s = Sin (h)
            next = Mul (s, part)
        }>
    }"""
    return example(real, text, {"x": (3,), "a": (3,), "b": (3,), "c": (3,)})


@corpus_model
def sequence_read_by_index_until_stop(real: str = "double") -> Example:
    """Elements that the loop does not reach get zeros."""
    text = """(real[3] x, real[3] a, real[3] b, real[3] c) => (real[3] y) <int64 one = {1}> {
        parts = SequenceConstruct (a, b, c)
        y = Loop (, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Less (i, one)
            part = SequenceAt (parts, i)
            s = Sin (h)
            next = Mul (s, part)
        }>
    }"""
    return example(real, text, {"x": (3,), "a": (3,), "b": (3,), "c": (3,)})


@corpus_model
def sequence_split_and_read(real: str = "double") -> Example:
    """The rows of a matrix as a sequence, read from its end."""
    text = """(real[3] x, real[4, 3] rows, int64 trips) => (real[3] y) <int64 minus = {-1}, int64 one = {1}> {
        parts = SplitToSequence <axis = 0, keepdims = 0> (rows)
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            m = Mul (i, minus)
            at = Sub (m, one)
            part = SequenceAt (parts, at)
            s = Sin (h)
            next = Mul (s, part)
        }>
    }"""
    return example(real, text, {"x": (3,), "rows": (4, 3), "trips": 3})


@corpus_model
def sequence_carried_and_read(real: str = "double") -> Example:
    """Reads the last element of the sequence that the loop itself makes grow."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) <int64 minus = {-1}> {
        some = SequenceConstruct (x, w)
        all = Loop (trips, , some) <body = body (int64 i, bool going, seq(real[3]) q) => (bool again, seq(real[3]) q2) {
            again = Identity (going)
            h = SequenceAt (q, minus)
            g = SequenceAt (q, i)
            s = Sin (h)
            next = Mul (s, g)
            q2 = SequenceInsert (q, next)
        }>
        y = SequenceAt (all, minus)
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})


@corpus_model
def sequence_of_growing_elements(real: str = "double") -> Example:
    """Elements of lengths 1, 2, 3, collected and joined."""
    text = """(real[5] x, int64 trips) => (real[N] y) <int64[1] zero = {0}, int64[1] one = {1}> {
        none = SequenceEmpty <dtype = 11> ()
        all = Loop (trips, , none) <body = body (int64 i, bool going, seq(real[M]) q) => (bool again, seq(real[M]) q2) {
            again = Identity (going)
            at = Unsqueeze (i, zero)
            end = Add (at, one)
            head = Slice (x, zero, end, zero)
            s = Sin (head)
            q2 = SequenceInsert (q, s)
        }>
        y = ConcatFromSequence <axis = 0> (all)
    }"""
    return example(real, text, {"x": (5,), "trips": 3})


@corpus_model
def sequence_in_if(real: str = "double") -> Example:
    """A branch inserts into a sequence, the other returns it as it is."""
    text = """(real[3] x, real[3] w, bool p) => (real[N] y) {
        some = SequenceConstruct (x)
        all = If (p) <
            then_branch = left () => (seq(real[3]) a) { s = Sin (x)  t = Mul (s, w)  a = SequenceInsert (some, t) },
            else_branch = right () => (seq(real[3]) b) { b = Identity (some) }>
        y = ConcatFromSequence <axis = 0> (all)
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": True})


@corpus_model
def sequence_grows_in_if_in_loop(real: str = "double") -> Example:
    """Only every other iteration inserts."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[N] y, real[3] last) <int64 two = {2}, int64 zero = {0}> {
        some = SequenceConstruct (x)
        last, all = Loop (trips, , x, some) <body = body (int64 i, bool going, real[3] h, seq(real[3]) q)
            => (bool again, real[3] next, seq(real[3]) q2) {
            again = Identity (going)
            rest = Mod (i, two)
            even = Equal (rest, zero)
            s = Sin (h)
            next = Mul (s, w)
            q2 = If (even) <
                then_branch = left () => (seq(real[3]) a) { a = SequenceInsert (q, next) },
                else_branch = right () => (seq(real[3]) b) { b = Identity (q) }>
        }>
        y = ConcatFromSequence <axis = 0> (all)
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 4})


@corpus_model
def sequence_map_over_elements(real: str = "double") -> Example:
    """A loop over the elements of a sequence with a result stacked for each."""
    text = """(real[4, 3] rows, real[3] w) => (real[N, 3] y) <bool true = {1}> {
        parts = SplitToSequence <axis = 0, keepdims = 0> (rows)
        count = SequenceLength (parts)
        y = Loop (count, true) <body = body (int64 i, bool going) => (bool again, real[3] row) {
            again = Identity (going)
            part = SequenceAt (parts, i)
            s = Sin (part)
            row = Mul (s, w)
        }>
    }"""
    return example(real, text, {"rows": (4, 3), "w": (3,)})


@corpus_model
def sequence_element_erased_in_loop(real: str = "double") -> Example:
    """A queue: its first element is read and erased, a new one is put behind."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[N] y) <int64 zero = {0}> {
        some = SequenceConstruct (x, w)
        all = Loop (trips, , some) <body = body (int64 i, bool going, seq(real[3]) q) => (bool again, seq(real[3]) q3) {
            again = Identity (going)
            h = SequenceAt (q, zero)
            q2 = SequenceErase (q, zero)
            s = Sin (h)
            next = Mul (s, w)
            q3 = SequenceInsert (q2, next)
        }>
        y = ConcatFromSequence <axis = 0> (all)
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})


@corpus_model
def optional_in_branch(real: str = "double") -> Example:
    """A value wrapped as an optional outside, unwrapped inside a branch when present."""
    text = """(real[3] x, real[3] w) => (real[3] y) {
        s = Sin (x)
        o = Optional (s)
        present = OptionalHasElement (o)
        y = If (present) <
            then_branch = left () => (real[3] a) { e = OptionalGetElement (o)  a = Mul (e, w) },
            else_branch = right () => (real[3] b) { b = Mul (x, w) }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def optional_carried(real: str = "double") -> Example:
    """A carry that is an optional, unwrapped and wrapped again each iteration."""
    text = """(real[3] x, real[3] w, int64 trips) => (real[3] y) {
        some = Optional (x)
        last = Loop (trips, , some) <body = body (int64 i, bool going, optional(real[3]) o)
            => (bool again, optional(real[3]) next) {
            again = Identity (going)
            h = OptionalGetElement (o)
            s = Sin (h)
            p = Mul (s, w)
            next = Optional (p)
        }>
        y = OptionalGetElement (last)
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "trips": 3})
