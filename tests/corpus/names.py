"""Names that repeat, shadow or look like generated ones."""

from __future__ import annotations

from tests.corpus.entry import Example, corpus_model, example


@corpus_model
def names_repeated_in_sibling_scopes(real: str = "double") -> Example:
    """Branches and bodies side by side use the same names for different values."""
    text = """(real[3] x, real[3] w, bool p) => (real[3] y) <int64 two = {2}> {
        m = If (p) <
            then_branch = g () => (real[3] o) { s = Sin (x)  o = Mul (s, w) },
            else_branch = g () => (real[3] o) { s = Tanh (x)  o = Add (s, w) }>
        k = Loop (two, , m) <body = g (int64 i, bool c, real[3] h) => (bool d, real[3] o) {
            d = Identity (c)
            s = Sin (h)
            o = Mul (s, w)
        }>
        y = Loop (two, , k) <body = g (int64 i, bool c, real[3] h) => (bool d, real[3] o) {
            d = Identity (c)
            s = Tanh (h)
            o = Sub (s, w)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,), "p": True})


@corpus_model
def names_that_look_generated(real: str = "double") -> Example:
    """The model uses names that the tool would like to use."""
    text = """(real[3] const, real[3] step) => (real[3] y) <int64 trips = {3}> {
        y = Loop (trips, , const) <body = reverse (int64 trips_1, bool going, real[3] tape)
            => (bool again, real[3] next) {
            again = Identity (going)
            read = Sin (tape)
            next = Mul (read, step)
        }>
    }"""
    found = example(real, text, {"const": (3,), "step": (3,)})
    body = found.model.graph.node[0].attribute[0].g
    for index, node in enumerate(body.node):
        node.name = f"grad/Mul_{index}"
    return found


@corpus_model
def names_of_gradients_inside(real: str = "double") -> Example:
    """Inner values carry the names that a gradient and a seed will have."""
    text = """(real[3] x, real[3] w) => (real[3] y) <int64 trips = {3}> {
        y = Loop (trips, , x) <body = body (int64 i, bool going, real[3] h) => (bool again, real[3] next) {
            again = Identity (going)
            x_grad = Sin (h)
            y_grad = Mul (x_grad, w)
            next = Add (y_grad, h)
        }>
    }"""
    return example(real, text, {"x": (3,), "w": (3,)})


@corpus_model
def node_names_repeated(real: str = "double") -> Example:
    """Exporters repeat node names across branches."""
    text = """(real[3] x, real[3] w, bool p) => (real[3] y) {
        m = If (p) <
            then_branch = left () => (real[3] a) { s = Sin (x)  a = Mul (s, w) },
            else_branch = right () => (real[3] b) { t = Tanh (x)  b = Add (t, w) }>
        y = If (p) <
            then_branch = left () => (real[3] c) { u = Sin (m)  c = Mul (u, w) },
            else_branch = right () => (real[3] d) { v = Tanh (m)  d = Add (v, w) }>
    }"""
    found = example(real, text, {"x": (3,), "w": (3,), "p": True})
    for node in found.model.graph.node:
        for attribute in node.attribute:
            for inner in attribute.g.node:
                inner.name = inner.op_type.lower()
    return found


@corpus_model
def names_repeated_in_folded_branches(real: str = "double") -> Example:
    """Live branches that move out of their If, and would bring one name twice."""
    text = """(real[3] x) => (real[3] y) <bool p = {1}, bool q = {0}> {
        m = If (p) <
            then_branch = l () => (real[3] a) { s = Sin (x)  a = Mul (s, x) },
            else_branch = r () => (real[3] a) { s = Tanh (x)  a = Mul (s, x) }>
        y = If (q) <
            then_branch = l () => (real[3] a) { s = Sin (m)  a = Mul (s, x) },
            else_branch = r () => (real[3] a) { s = Tanh (m)  a = Mul (s, m) }>
    }"""
    return example(real, text, {"x": (3,)})
