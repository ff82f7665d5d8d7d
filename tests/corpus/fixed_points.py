"""Loops that iterate to a fixed point, tight enough for the automatic plan to differentiate them implicitly.

The tolerance is at the rounding floor of the type, so that differences of the loop are those of the fixed point.
"""

from __future__ import annotations

from tests.corpus.entry import Example, corpus_model, example

_DONE = """a = Abs (d)
        r = ReduceMax <keepdims = 0> (a)
        go = Greater (r, tol)"""


def _tolerance(real: str) -> str:
    number = {"double": "1e-14", "float": "1e-6"}.get(real, "1e-3")
    return f"tol = Constant <value = real {{{number}}}> ()\n    true = Constant <value = bool {{1}}> ()"


@corpus_model
def fixed_point_equilibrium(real: str = "double") -> Example:
    """A cap by And, a counter, a symbolic batch, weights from outside."""
    text = f"""(real[B,3] x, real[3,3] w, real[B,3] z0) => (real[B,3] y, int64 steps) {{
    {_tolerance(real)}
    zero = Constant <value_int = 0> ()
    most = Constant <value_int = 300> ()
    one = Constant <value_int = 1> ()
    [loop] steps, y = Loop (, true, zero, z0) <
        body = step (int64 i, bool on, int64 k, real[B,3] z) => (bool again, int64 next, real[B,3] f) {{
        p = MatMul (z, w)
        q = Add (p, x)
        f = Tanh (q)
        d = Sub (f, z)
        {_DONE}
        next = Add (k, one)
        below = Less (next, most)
        again = And (go, below)
    }}>
}}"""
    weights = [[0.3, -0.2, 0.1], [0.25, 0.2, -0.3], [-0.1, 0.35, 0.15]]
    return example(real, text, {"x": (2, 3), "w": weights, "z0": (2, 3)}, wrt=("x", "w"))


@corpus_model
def fixed_point_newton(real: str = "double") -> Example:
    """Square roots by Newton's method: the map contracts to nothing; then a function of them."""
    text = f"""(real[3] x) => (real[3] y) {{
    {_tolerance(real)}
    half = Constant <value = real {{0.5}}> ()
    cap = Constant <value_int = 50> ()
    z = Loop (cap, true, x) <body = step (int64 i, bool on, real[3] s) => (bool go, real[3] f) {{
        u = Div (x, s)
        v = Add (s, u)
        f = Mul (v, half)
        d = Sub (f, s)
        {_DONE}
    }}>
    y = Sin (z)
}}"""
    return example(real, text, {"x": [0.7, 2.0, 3.1]})


@corpus_model
def fixed_point_of_two_carries(real: str = "double") -> Example:
    """Coupled carries of different shapes; the one before and a residual are carried too, and all are results."""
    text = f"""(real[2] x, real[3,2] w) => (real[2] a_end, real[3] b_end, real[2] before_end, real rest) {{
    {_tolerance(real)}
    cap = Constant <value_int = 300> ()
    a0 = Constant <value = real[2] {{0, 0}}> ()
    b0 = Constant <value = real[3] {{0, 0, 0}}> ()
    r0 = Constant <value = real {{1}}> ()
    a_end, b_end, before_end, rest = Loop (cap, true, a0, b0, a0, r0) <
        body = step (int64 i, bool on, real[2] a, real[3] b, real[2] before, real r_before) =>
            (bool go, real[2] a1, real[3] b1, real[2] before1, real r) {{
        p = MatMul (b, w)
        q = Add (p, x)
        a1 = Sin (q)
        s = MatMul (w, a)
        b1 = Tanh (s)
        before1 = Identity (a)
        da = Sub (a1, a)
        db = Sub (b1, b)
        d = Concat <axis = 0> (da, db)
        r = ReduceL2 <keepdims = 0> (d)
        go = Greater (r, tol)
    }}>
}}"""
    feeds = {"x": (2,), "w": [[0.4, -0.3], [0.2, 0.5], [-0.35, 0.3]]}
    return example(real, text, feeds, outputs=("a_end", "b_end", "before_end"))


@corpus_model
def fixed_point_in_each_step(real: str = "double") -> Example:
    """A recurrent layer whose new state is a fixed point: in a Loop of dynamic trip count."""
    text = f"""(real[T,2] xs, real[2,2] w, real[2] h0, int64 n) => (real[2] h_end, real[K,2] hs) {{
    {_tolerance(real)}
    cap = Constant <value_int = 300> ()
    h_end, hs = Loop (n, true, h0) <body = time (int64 t, bool on, real[2] h) => (bool up, real[2] h1, real[2] row) {{
        up = Identity (on)
        x = Gather <axis = 0> (xs, t)
        inject = Add (x, h)
        h1 = Loop (cap, true, x) <body = step (int64 i, bool going, real[2] z) => (bool go, real[2] f) {{
            p = MatMul (w, z)
            q = Add (p, inject)
            f = Tanh (q)
            d = Sub (f, z)
            {_DONE}
        }}>
        row = Mul (h1, x)
    }}>
}}"""
    feeds = {"xs": (3, 2), "w": [[0.4, -0.3], [0.2, 0.5]], "h0": (2,), "n": 3}
    return example(real, text, feeds)


@corpus_model
def fixed_point_in_a_branch_of_a_scan(real: str = "double") -> Example:
    """Some slices are iterated to a fixed point, others are not."""
    text = f"""(real[T,2] xs, real[2,2] w, real[2] h0) => (real[2] h_end, real[T,2] hs) {{
    {_tolerance(real)}
    none = Constant <value = real {{0}}> ()
    cap = Constant <value_int = 300> ()
    h_end, hs = Scan <num_scan_inputs = 1,
        body = time (real[2] h, real[2] x) => (real[2] h1, real[2] row) {{
        total = ReduceSum <keepdims = 0> (x)
        positive = Greater (total, none)
        y = If (positive) <
            then_branch = iterated () => (real[2] a_end) {{
                a_end = Loop (cap, true, h) <body = step (int64 i, bool going, real[2] z) => (bool go, real[2] f) {{
                    p = MatMul (w, z)
                    q = Add (p, x)
                    f = Tanh (q)
                    d = Sub (f, z)
                    {_DONE}
                }}>
            }},
            else_branch = plain () => (real[2] b) {{ b = Sin (x) }}>
        h1 = Add (y, h)
        row = Mul (h1, y)
    }}> (h0, xs)
}}"""
    feeds = {"xs": [[0.5, 0.4], [-0.6, 0.1], [0.9, -0.2]], "w": [[0.4, -0.3], [0.2, 0.5]], "h0": (2,)}
    return example(real, text, feeds)


@corpus_model
def fixed_point_of_a_fixed_point(real: str = "double") -> Example:
    """The map of the outer loop solves an inner fixed point; the weight is read by both."""
    text = f"""(real[2] x, real[2,2] w) => (real[2] y) {{
    {_tolerance(real)}
    cap = Constant <value_int = 200> ()
    y = Loop (cap, true, x) <body = outer (int64 i, bool on, real[2] z) => (bool go, real[2] g) {{
        inner_end = Loop (cap, true, z) <body = inner (int64 j, bool going, real[2] u) => (bool go_on, real[2] f) {{
            p = MatMul (w, u)
            q = Add (p, z)
            s = Sin (q)
            half = Constant <value = real {{0.4}}> ()
            f = Mul (s, half)
            e = Sub (f, u)
            b = Abs (e)
            m = ReduceMax <keepdims = 0> (b)
            go_on = Greater (m, tol)
        }}>
        v = MatMul (inner_end, w)
        t = Add (v, x)
        g = Tanh (t)
        d = Sub (g, z)
        {_DONE}
    }}>
}}"""
    return example(real, text, {"x": (2,), "w": [[0.4, -0.3], [0.2, 0.5]]})


@corpus_model
def fixed_point_with_a_loop_and_a_branch_inside(real: str = "double") -> Example:
    """The map itself runs a Loop of two steps and takes a branch; then a second fixed point starts from the first."""
    text = f"""(real[2] x, real[2,2] w) => (real[2] y, real[2] y2) {{
    {_tolerance(real)}
    cap = Constant <value_int = 200> ()
    two = Constant <value_int = 2> ()
    none = Constant <value = real {{0}}> ()
    y = Loop (cap, true, x) <body = outer (int64 i, bool on, real[2] z) => (bool go, real[2] g) {{
        v = Loop (two, true, z) <body = twice (int64 j, bool going, real[2] u) => (bool more, real[2] f) {{
            more = Identity (going)
            p = MatMul (w, u)
            f = Tanh (p)
        }}>
        total = ReduceSum <keepdims = 0> (v)
        positive = Greater (total, none)
        g = If (positive) <then_branch = up () => (real[2] c) {{ c = Add (v, x) }},
                           else_branch = down () => (real[2] e) {{ n = Sin (v) e = Sub (x, n) }}>
        d = Sub (g, z)
        {_DONE}
    }}>
    y2 = Loop (cap, true, y) <body = other (int64 i, bool on, real[2] z) => (bool go, real[2] g) {{
        p = MatMul (z, w)
        q = Mul (p, y)
        g = Add (q, x)
        d = Sub (g, z)
        {_DONE}
    }}>
}}"""
    return example(real, text, {"x": [0.6, 0.3], "w": [[0.4, -0.3], [0.2, 0.5]]})


@corpus_model
def fixed_point_sinkhorn(real: str = "double") -> Example:
    """Scalings of a kernel to given marginals: one scaling follows from the other."""
    text = f"""(real[3,3] c, real[3] rows, real[3] columns) => (real[3,3] plan) {{
    {_tolerance(real)}
    cap = Constant <value_int = 400> ()
    ones = Constant <value = real[3] {{1, 1, 1}}> ()
    ax = Constant <value_ints = [1]> ()
    minus = Neg (c)
    k = Exp (minus)
    kt = Transpose (k)
    u, v = Loop (cap, true, ones, ones) <
        body = step (int64 i, bool on, real[3] a0, real[3] b0) => (bool go, real[3] a1, real[3] b1) {{
        kb = MatMul (k, b0)
        a1 = Div (rows, kb)
        ka = MatMul (kt, a1)
        b1 = Div (columns, ka)
        d = Sub (b1, b0)
        {_DONE}
    }}>
    column = Unsqueeze (u, ax)
    q = Mul (column, k)
    plan = Mul (q, v)
}}"""
    # The scalings are fixed but for a factor that cancels in the plan, and only marginals of one mass have any.
    feeds = {
        "c": [[0.1, 0.8, 0.5], [0.9, 0.2, 0.4], [0.6, 0.7, 0.3]],
        "rows": [0.2, 0.5, 0.3],
        "columns": [0.4, 0.25, 0.35],
    }
    return example(real, text, feeds, wrt=("c",))
