"""Carries that grow, shapes that vary inside a body, symbolic and missing shapes."""

from __future__ import annotations

import onnx
from onnx import NodeProto, TensorProto, TypeProto

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def growing_carry(real: str = "double") -> Example:
    text = """(real[N] x, real[1] w, int64 trips) => (real[M] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[K] h) => (bool again, real[L] next) {
            again = Identity (going)
            s = Sin (h)
            p = Mul (s, w)
            total = ReduceSum <keepdims = 1> (p)
            next = Concat <axis = 0> (p, total)
        }>
    }"""
    return example(real, text, {"x": (2,), "w": (1,), "trips": 3})


@corpus_model
def growing_carry_static(real: str = "double") -> Example:
    text = """(real[2] x, real[1] w) => (real[M] y) <int64 trips = {3}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[K] h) => (bool again, real[L] next) {
            again = Identity (going)
            s = Sin (h)
            p = Mul (s, w)
            next = Concat <axis = 0> (p, w)
        }>
    }"""
    return example(real, text, {"x": (2,), "w": (1,)})


@corpus_model
def growing_carry_zero_trips(real: str = "double") -> Example:
    text = """(real[2] x, real[1] w, int64 trips) => (real[M] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[K] h) => (bool again, real[L] next) {
            again = Identity (going)
            s = Sin (h)
            next = Concat <axis = 0> (s, w)
        }>
    }"""
    return example(real, text, {"x": (2,), "w": (1,), "trips": 0})


@corpus_model
def growing_carry_until_stop(real: str = "double") -> Example:
    """Grows until it has five elements."""
    text = """(real[2] x, real[1] w) => (real[M] y) <int64 five = {5}> {
        y = Loop (, , x) <body = body (int64 i, bool going, real[K] h) => (bool again, real[L] next) {
            s = Sin (h)
            p = Mul (s, w)
            next = Concat <axis = 0> (p, w)
            n = Size (next)
            again = Less (n, five)
        }>
    }"""
    return example(real, text, {"x": (2,), "w": (1,)})


@corpus_model
def growing_carry_in_if(real: str = "double") -> Example:
    """Grows only in some iterations."""
    text = """(real[2] x, real[1] w, int64 trips) => (real[M] y) <int64 two = {2}, int64 zero = {0}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[K] h) => (bool again, real[L] next) {
            again = Identity (going)
            rest = Mod (i, two)
            even = Equal (rest, zero)
            s = Sin (h)
            next = If (even) <
                then_branch = left () => (real[P] a) { p = Mul (s, w)  a = Concat <axis = 0> (p, w) },
                else_branch = right () => (real[Q] b) { b = Mul (s, h) }>
        }>
    }"""
    return example(real, text, {"x": (2,), "w": (1,), "trips": 4})


@corpus_model
def growing_carry_loop_in_if(real: str = "double") -> Example:
    text = """(real[2] x, real[1] w, bool p, int64 trips) => (real[M] y) {
        y = If (p) <
            then_branch = left () => (real[P] a) {
                a = Loop (trips, , x) <body = body (int64 i, bool going, real[K] h) => (bool again, real[L] next) {
                    again = Identity (going)
                    s = Sin (h)
                    q = Mul (s, w)
                    next = Concat <axis = 0> (q, w)
                }>
            },
            else_branch = right () => (real[2] b) { b = Mul (x, w) }>
    }"""
    return example(real, text, {"x": (2,), "w": (1,), "p": True, "trips": 3})


@corpus_model
def growing_carry_in_loop(real: str = "double") -> Example:
    """An inner loop whose carry grows, reduced to a scalar each outer iteration."""
    text = """(real[2] x, real[1] w, int64 outer) => (real[2] y) <int64 inner = {2}> {
        y = Loop (outer, , x) <body = outside (int64 i, bool going, real[2] h) => (bool again, real[2] next) {
            again = Identity (going)
            long = Loop (inner, , h) <body = inside (int64 j, bool on, real[K] g) => (bool onward, real[L] g2) {
                onward = Identity (on)
                s = Sin (g)
                p = Mul (s, w)
                g2 = Concat <axis = 0> (p, w)
            }>
            q = Mul (long, long)
            total = ReduceSum <keepdims = 0> (q)
            c = Sin (total)
            next = Mul (h, c)
        }>
    }"""
    return example(real, text, {"x": (2,), "w": (1,), "outer": 3})


@corpus_model
def shrinking_carry(real: str = "double") -> Example:
    """Folds a vector in half until one element is left."""
    text = """(real[8] x) => (real[M] y) <int64 three = {3}> {
        y = Loop (three, , x) <body = body (int64 i, bool going, real[K] h) => (bool again, real[L] next) {
            again = Identity (going)
            left, right = Split <num_outputs = 2, axis = 0> (h)
            s = Sin (left)
            next = Mul (s, right)
        }>
    }"""
    return example(real, text, {"x": (8,)})


@corpus_model
def slice_by_index_then_reduced(real: str = "double") -> Example:
    """The first i + 1 elements, summed: shapes vary inside the body, the carry's does not."""
    text = """(real[3] x, real[6] v, int64 trips) => (real[3] y) <int64[1] zero = {0}, int64[1] one = {1}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            at = Unsqueeze (i, zero)
            end = Add (at, one)
            head = Slice (v, zero, end, zero)
            s = Sin (head)
            q = Mul (s, s)
            total = ReduceSum <keepdims = 0> (q)
            t = Sin (h)
            next = Mul (t, total)
        }>
    }"""
    return example(real, text, {"x": (3,), "v": (6,), "trips": 4})


@corpus_model
def slice_of_carry_by_index(real: str = "double") -> Example:
    """The last elements of the carry from i on, summed."""
    text = """(real[4] x, real[4] w, int64 trips) => (real[4] y) <int64[1] zero = {0}, int64[1] four = {4}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[4] h) => (bool again, real[4] next) {
            again = Identity (going)
            at = Unsqueeze (i, zero)
            tail = Slice (h, at, four, zero)
            s = Sin (tail)
            q = Mul (s, tail)
            total = ReduceSum <keepdims = 0> (q)
            t = Mul (h, w)
            next = Add (t, total)
        }>
    }"""
    return example(real, text, {"x": (4,), "w": (4,), "trips": 4})


@corpus_model
def varying_shapes_with_product(real: str = "double") -> Example:
    """An intermediate matrix of i + 1 rows between two products."""
    text = """(real[3] x, real[5, 3] rows, real[3, 3] w, int64 trips) => (real[3] y)
        <int64[1] zero = {0}, int64[1] one = {1}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            at = Unsqueeze (i, zero)
            end = Add (at, one)
            head = Slice (rows, zero, end, zero)
            m = MatMul (head, w)
            s = Tanh (m)
            p = Mul (s, h)
            next = ReduceSum <keepdims = 0> (p, zero)
        }>
    }"""
    return example(real, text, {"x": (3,), "rows": (5, 3), "w": (3, 3), "trips": 3})


@corpus_model
def symbolic_dims_with_broadcasting(real: str = "double") -> Example:
    """Every dimension is symbolic, and two of them are 1 at run time."""
    text = """(real[A, B] x, real[C, D] w, real[E] b, int64 trips) => (real[F, G] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[P, Q] h) => (bool again, real[R, S] next) {
            again = Identity (going)
            s = Sin (h)
            p = Mul (s, w)
            next = Add (p, b)
        }>
    }"""
    return example(real, text, {"x": (2, 3), "w": (1, 3), "b": (1,), "trips": 3})


@corpus_model
def symbolic_dims_without_broadcasting(real: str = "double") -> Example:
    text = """(real[A, B] x, real[A, B] w, real[B] b, int64 trips) => (real[A, B] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[A, B] h) => (bool again, real[A, B] next) {
            again = Identity (going)
            s = Sin (h)
            p = Mul (s, w)
            next = Add (p, b)
        }>
    }"""
    return example(real, text, {"x": (2, 3), "w": (2, 3), "b": (3,), "trips": 3})


@corpus_model
def carry_broadcast_in_first_iteration(real: str = "double") -> Example:
    """The carry has shape [1, 3] at first, and [2, 3] from the first iteration on."""
    text = """(real[1, 3] x, real[2, 3] w, int64 trips) => (real[A, B] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[P, Q] h) => (bool again, real[R, S] next) {
            again = Identity (going)
            s = Sin (h)
            p = Mul (s, w)
            next = Add (p, w)
        }>
    }"""
    return example(real, text, {"x": (1, 3), "w": (2, 3), "trips": 3})


@corpus_model
def carry_changes_rank(real: str = "double") -> Example:
    """A scalar carry becomes a vector."""
    text = """(real x, real[3] w, int64 trips) => (real[A] y) {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real h) => (bool again, real[3] next) {
            again = Identity (going)
            s = Sin (h)
            p = Mul (s, w)
            next = Add (p, w)
        }>
    }"""
    found = example(real, text, {"x": 0.7, "w": (3,), "trips": 3})
    _forget_shapes(found.model)
    return found


@corpus_model
def shapes_undeclared(real: str = "double") -> Example:
    """As exporters write it: nothing inside a subgraph has a declared shape."""
    text = """(real[A, 3] x, real[3] w, int64 trips) => (real[B, 3] y, real[N, A, 3] rows)
        <int64 two = {2}, int64 zero = {0}> {
        y, rows = Loop (trips, , x) <body = body (int64 i, bool going, real[A, 3] h)
            => (bool again, real[A, 3] next, real[A, 3] row) {
            again = Identity (going)
            rest = Mod (i, two)
            even = Equal (rest, zero)
            row = Sin (h)
            next = If (even) <
                then_branch = left () => (real[A, 3] a) { a = Mul (row, w) },
                else_branch = right () => (real[A, 3] b) { b = Sub (row, w) }>
        }>
    }"""
    found = example(real, text, {"x": (2, 3), "w": (3,), "trips": 3})
    _forget_shapes(found.model)
    return found


@corpus_model
def empty_tensors(real: str = "double") -> Example:
    """A carry without elements beside one with some."""
    text = """(real[N] x, real[3] w, int64 trips) => (real[N] y, real[3] z) {
        y, z = Loop (trips, , x, w) <body = body (int64 i, bool going, real[N] h, real[3] g)
            => (bool again, real[N] h2, real[3] g2) {
            again = Identity (going)
            h2 = Sin (h)
            total = ReduceSum <keepdims = 0> (h2)
            s = Sin (g)
            g2 = Add (s, total)
        }>
    }"""
    return example(real, text, {"x": (0,), "w": (3,), "trips": 2})


def _forget_shapes(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        _forget_in(node)


def _forget_in(node: NodeProto) -> None:
    for attribute in node.attribute:
        for info in (*attribute.g.input, *attribute.g.output):
            element = info.type.tensor_type.elem_type
            if element in (TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16):
                info.type.CopyFrom(TypeProto(tensor_type=TypeProto.Tensor(elem_type=element)))
        for inner in attribute.g.node:
            _forget_in(inner)


@corpus_model
def unranked_carry(real: str = "double") -> Example:
    """The rank of the carry is known at run time only: it is reshaped to an input."""
    text = """(real[A, B] x, real[C] w, int64[R] target, int64 trips) => (real[D, E] y, real[N, F, G] rows) {
        u = Reshape (x, target)
        y, rows = Loop (trips, , u) <body = body (int64 i, bool going, real[] h)
            => (bool again, real[] next, real[] row) {
            again = Identity (going)
            s = Sin (h)
            row = Mul (s, w)
            next = Add (row, h)
        }>
    }"""
    return example(real, text, {"x": (2, 3), "w": (2,), "target": [3, 2], "trips": 3})


@corpus_model
def unranked_captured(real: str = "double") -> Example:
    text = """(real[2, 3] x, real[C] w, int64[R] target, int64 trips) => (real[2, 3] y) {
        u = Reshape (w, target)
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[2, 3] h) => (bool again, real[2, 3] next) {
            again = Identity (going)
            s = Sin (h)
            p = Mul (s, u)
            next = Sub (p, u)
        }>
    }"""
    return example(real, text, {"x": (2, 3), "w": (2,), "target": [2, 1], "trips": 3})


@corpus_model
def unranked_in_branch(real: str = "double") -> Example:
    text = """(real[A] x, real[C] w, int64[R] target, bool p) => (real[D, E] y) {
        u = Reshape (x, target)
        y = If (p) <
            then_branch = left () => (real[] a) { s = Sin (u)  a = Mul (s, w) },
            else_branch = right () => (real[] b) { t = Sin (w)  b = Sub (t, u) }>
    }"""
    return example(real, text, {"x": (6,), "w": (3,), "target": [2, 3], "p": False})


@corpus_model
def unranked_early_exit(real: str = "double") -> Example:
    text = """(real[A] x, real[C] w, int64[R] target) => (real[D, E] y) <int64 last = {2}> {
        u = Reshape (x, target)
        y = Loop (, , u) <body = body (int64 i, bool going, real[] h) => (bool again, real[] next) {
            again = Less (i, last)
            s = Sin (h)
            next = Mul (s, w)
        }>
    }"""
    return example(real, text, {"x": (6,), "w": (3,), "target": [2, 3]})
