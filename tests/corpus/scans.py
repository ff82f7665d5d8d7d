"""Scans by states, inputs, outputs, axes and directions."""

from __future__ import annotations

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def scan_one_state(real: str = "double") -> Example:
    text = """(real[3] h0, real[4, 3] xs, real[3] w) => (real[3] h, real[4, 3] ys) {
        h, ys = Scan <num_scan_inputs = 1, body = body (real[3] s, real[3] x) => (real[3] next, real[3] y) {
            p = Mul (s, w)
            q = Add (p, x)
            next = Sin (q)
            y = Mul (next, x)
        }> (h0, xs)
    }"""
    return example(real, text, {"h0": (3,), "xs": (4, 3), "w": (3,)})


@corpus_model
def scan_symbolic_length(real: str = "double") -> Example:
    text = """(real[3] h0, real[T, 3] xs, real[3] w) => (real[3] h, real[T, 3] ys) {
        h, ys = Scan <num_scan_inputs = 1, body = body (real[3] s, real[3] x) => (real[3] next, real[3] y) {
            p = Mul (s, w)
            q = Add (p, x)
            next = Sin (q)
            y = Mul (next, x)
        }> (h0, xs)
    }"""
    return example(real, text, {"h0": (3,), "xs": (4, 3), "w": (3,)})


@corpus_model
def scan_length_one(real: str = "double") -> Example:
    text = """(real[3] h0, real[1, 3] xs, real[3] w) => (real[3] h, real[1, 3] ys) {
        h, ys = Scan <num_scan_inputs = 1, body = body (real[3] s, real[3] x) => (real[3] next, real[3] y) {
            p = Mul (s, w)
            q = Add (p, x)
            next = Sin (q)
            y = Mul (next, x)
        }> (h0, xs)
    }"""
    return example(real, text, {"h0": (3,), "xs": (1, 3), "w": (3,)})


@corpus_model
def scan_several_states_inputs_outputs(real: str = "double") -> Example:
    text = """(real[3] a0, real[2] b0, real[4, 3] us, real[4, 2] vs, real[3] w)
        => (real[3] a, real[2] b, real[4, 3] ps, real[4] qs) {
        a, b, ps, qs = Scan <num_scan_inputs = 2, body = body (real[3] s, real[2] r, real[3] u, real[2] v)
            => (real[3] s2, real[2] r2, real[3] p, real q) {
            su = Mul (s, u)
            wu = Add (su, w)
            s2 = Sin (wu)
            total = ReduceSum <keepdims = 0> (s)
            rv = Mul (r, v)
            r2 = Add (rv, total)
            p = Sub (s2, u)
            q = ReduceSum <keepdims = 0> (r2)
        }> (a0, b0, us, vs)
    }"""
    return example(real, text, {"a0": (3,), "b0": (2,), "us": (4, 3), "vs": (4, 2), "w": (3,)})


@corpus_model
def scan_without_state(real: str = "double") -> Example:
    """A map over rows."""
    text = """(real[4, 3] xs, real[3] w) => (real[4, 3] ys) {
        ys = Scan <num_scan_inputs = 1, body = body (real[3] x) => (real[3] y) {
            s = Sin (x)
            y = Mul (s, w)
        }> (xs)
    }"""
    return example(real, text, {"xs": (4, 3), "w": (3,)})


@corpus_model
def scan_without_output(real: str = "double") -> Example:
    text = """(real[3] h0, real[4, 3] xs) => (real[3] h) {
        h = Scan <num_scan_inputs = 1, body = body (real[3] s, real[3] x) => (real[3] next) {
            p = Mul (s, x)
            next = Sin (p)
        }> (h0, xs)
    }"""
    return example(real, text, {"h0": (3,), "xs": (4, 3)})


@corpus_model
def scan_axes(real: str = "double") -> Example:
    """Inputs and outputs along different axes, counted from either end."""
    text = """(real[2, 3] h0, real[2, 4, 3] us, real[2, 3, 4] vs)
        => (real[2, 3] h, real[2, 4, 3] ps, real[2, 3, 4] qs, real[4, 2, 3] rs) {
        h, ps, qs, rs = Scan <num_scan_inputs = 2, scan_input_axes = [1, -1], scan_output_axes = [-2, 2, 0],
            body = body (real[2, 3] s, real[2, 3] u, real[2, 3] v)
                => (real[2, 3] next, real[2, 3] p, real[2, 3] q, real[2, 3] r) {
            su = Mul (s, u)
            t = Sin (su)
            next = Add (t, v)
            p = Mul (u, v)
            q = Sub (next, u)
            r = Mul (next, s)
        }> (h0, us, vs)
    }"""
    return example(real, text, {"h0": (2, 3), "us": (2, 4, 3), "vs": (2, 3, 4)})


@corpus_model
def scan_directions(real: str = "double") -> Example:
    """One input and one output backwards, the others forwards."""
    text = """(real[3] h0, real[4, 3] us, real[4, 3] vs) => (real[3] h, real[4, 3] ps, real[4, 3] qs) {
        h, ps, qs = Scan <num_scan_inputs = 2, scan_input_directions = [1, 0], scan_output_directions = [0, 1],
            body = body (real[3] s, real[3] u, real[3] v) => (real[3] next, real[3] p, real[3] q) {
            su = Mul (s, u)
            t = Sin (su)
            next = Add (t, v)
            p = Mul (next, u)
            q = Sub (next, v)
        }> (h0, us, vs)
    }"""
    return example(real, text, {"h0": (3,), "us": (4, 3), "vs": (4, 3)})


@corpus_model
def scan_axes_and_directions(real: str = "double") -> Example:
    text = """(real[2] h0, real[2, 3] us, real[3, 2] vs) => (real[2] h, real[2, 3] ps, real[3, 2] qs) {
        h, ps, qs = Scan <num_scan_inputs = 2, scan_input_axes = [-1, 0], scan_input_directions = [1, 1],
            scan_output_axes = [1, -2], scan_output_directions = [1, 0],
            body = body (real[2] s, real[2] u, real[2] v) => (real[2] next, real[2] p, real[2] q) {
            su = Mul (s, u)
            t = Sin (su)
            next = Add (t, v)
            p = Mul (next, u)
            q = Sub (next, v)
        }> (h0, us, vs)
    }"""
    return example(real, text, {"h0": (2,), "us": (2, 3), "vs": (3, 2)})


@corpus_model
def scan_same_input_twice(real: str = "double") -> Example:
    """One tensor read from both ends at once, and whole."""
    text = """(real[3] h0, real[4, 3] xs) => (real[3] h, real[4, 3] ys) <int64[1] zero = {0}> {
        h, ys = Scan <num_scan_inputs = 2, scan_input_directions = [0, 1],
            body = body (real[3] s, real[3] u, real[3] v) => (real[3] next, real[3] y) {
            all = ReduceSum <keepdims = 0> (xs, zero)
            uv = Mul (u, v)
            t = Sin (s)
            y = Mul (t, uv)
            next = Add (y, all)
        }> (h0, xs, xs)
    }"""
    return example(real, text, {"h0": (3,), "xs": (4, 3)})


@corpus_model
def scan_body_returns_its_slice(real: str = "double") -> Example:
    """The slice itself is the next state and a result (through Identity, as ONNX Runtime needs it)."""
    text = """(real[3] h0, real[4, 3] xs) => (real[3] h, real[4, 3] ys, real[4, 3] zs) {
        h, ys, zs = Scan <num_scan_inputs = 1,
            body = body (real[3] s, real[3] x) => (real[3] next, real[3] y, real[3] z) {
            next = Identity (x)
            y = Identity (x)
            z = Mul (s, x)
        }> (h0, xs)
    }"""
    return example(real, text, {"h0": (3,), "xs": (4, 3)})


@corpus_model
def scan_state_unchanged(real: str = "double") -> Example:
    text = """(real[3] w0, real[4, 3] xs) => (real[3] w, real[4, 3] ys) {
        w, ys = Scan <num_scan_inputs = 1, body = body (real[3] s, real[3] x) => (real[3] same, real[3] y) {
            same = Identity (s)
            t = Sin (x)
            y = Mul (s, t)
        }> (w0, xs)
    }"""
    return example(real, text, {"w0": (3,), "xs": (4, 3)})


@corpus_model
def scan_integer_and_boolean_inputs(real: str = "double") -> Example:
    text = """(real[3] h0, int64[4] positions, bool[4, 3] masks, real[5, 3] rows) => (real[3] h) {
        h, n = Scan <num_scan_inputs = 2, body = body (real[3] s, int64 at, bool[3] on)
            => (real[3] next, int64 same) {
            row = Gather (rows, at)
            t = Sin (s)
            p = Mul (t, row)
            next = Where (on, p, row)
            same = Identity (at)
        }> (h0, positions, masks)
    }"""
    masks = [[True, True, False], [False, True, True], [True, False, True], [True, True, True]]
    return example(real, text, {"h0": (3,), "positions": [3, 0, 3, 1], "masks": masks, "rows": (5, 3)})


@corpus_model
def scan_captured_weight(real: str = "double") -> Example:
    text = """(real[2, 3] h0, real[4, 2, 3] xs, real[3, 3] w, real[3] b) => (real[2, 3] h, real[4, 2, 3] ys) {
        h, ys = Scan <num_scan_inputs = 1, body = body (real[2, 3] s, real[2, 3] x) => (real[2, 3] next, real[2, 3] y) {
            p = MatMul (s, w)
            q = Add (p, b)
            r = Add (q, x)
            next = Tanh (r)
            y = MatMul (x, w)
        }> (h0, xs)
    }"""
    return example(real, text, {"h0": (2, 3), "xs": (4, 2, 3), "w": (3, 3), "b": (3,)})


@corpus_model
def scan_outputs_only_seeded(real: str = "double") -> Example:
    text = """(real[3] h0, real[4, 3] xs) => (real[3] h, real[4, 3] ys, real[4, 3] zs) {
        h, ys, zs = Scan <num_scan_inputs = 1, body = body (real[3] s, real[3] x)
            => (real[3] next, real[3] y, real[3] z) {
            p = Mul (s, x)
            next = Sin (p)
            y = Mul (next, s)
            z = Sub (next, x)
        }> (h0, xs)
    }"""
    return example(real, text, {"h0": (3,), "xs": (4, 3)}, outputs=("zs",))


@corpus_model
def scan_state_only_wrt(real: str = "double") -> Example:
    text = """(real[3] h0, real[4, 3] xs) => (real[3] h, real[4, 3] ys) {
        h, ys = Scan <num_scan_inputs = 1, body = body (real[3] s, real[3] x) => (real[3] next, real[3] y) {
            p = Mul (s, x)
            next = Sin (p)
            y = Mul (next, s)
        }> (h0, xs)
    }"""
    return example(real, text, {"h0": (3,), "xs": (4, 3)}, wrt=("h0",))


@corpus_model
def scan_after_scan(real: str = "double") -> Example:
    """Stacked results of one Scan are read backwards by the next, as in a bidirectional network."""
    text = """(real[3] h0, real[4, 3] xs, real[3] w) => (real[3] h, real[4, 3] zs) {
        m, ys = Scan <num_scan_inputs = 1, body = there (real[3] s, real[3] x) => (real[3] next, real[3] y) {
            p = Mul (s, w)
            q = Add (p, x)
            next = Sin (q)
            y = Mul (next, x)
        }> (h0, xs)
        h, zs = Scan <num_scan_inputs = 2, scan_input_directions = [1, 1], scan_output_directions = [1],
            body = back (real[3] s, real[3] y, real[3] x) => (real[3] next, real[3] z) {
            p = Mul (s, w)
            q = Add (p, y)
            next = Sin (q)
            z = Mul (next, x)
        }> (m, ys, xs)
    }"""
    return example(real, text, {"h0": (3,), "xs": (4, 3), "w": (3,)})


@corpus_model
def scan_symbolic_everything(real: str = "double") -> Example:
    """Symbolic batch, length and width; the captured bias may broadcast."""
    text = """(real[B, H] h0, real[B, T, H] xs, real[H, H] w, real[1, K] b) => (real[B, H] h, real[B, T, H] ys) {
        h, ys = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
            body = body (real[B, H] s, real[B, H] x) => (real[B, H] next, real[B, H] y) {
            p = MatMul (s, w)
            q = Add (p, b)
            r = Add (q, x)
            next = Sin (r)
            y = Mul (next, x)
        }> (h0, xs)
    }"""
    return example(real, text, {"h0": (2, 3), "xs": (2, 4, 3), "w": (3, 3), "b": (1, 1)})
