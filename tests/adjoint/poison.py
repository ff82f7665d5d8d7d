"""Branches that make NaN, Inf or an error of the runtime when they run on the wrong values, and one that does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

import onnx_cfad as cfad
from tests.adjoint.agreement import run

Array = np.ndarray[Any, Any]

# What the branch that is not taken computes from x (3 elements), w (3 elements) and u (3 x 3).
POISONS = {
    "square root of a negative number": "a = Sqrt (x)",
    "logarithm of zero": "a = Log (x)",
    "zero divided by zero": "a = Div (x, x)",
    "overflow of an exponential": "big = Mul (x, x)  more = Mul (big, big)  a = Exp (more)",
    "pole behind a pole": "s = Sqrt (x)  a = Log (s)",
    "power of a negative number": "a = Pow (x, w)",
    "NaN through a matrix product": "l = Log (x)  m = MatMul (l, u)  a = Mul (m, w)",
    "NaN through a softmax": "l = Log (x)  m = Softmax (l)  a = Div (m, x)",
    "NaN through a reduction": "r = ReduceLogSum (x)  a = Div (x, r)",
    "index out of range": "i = Cast <to = 7> (x)  g = Gather (w, i)  a = Mul (g, x)",
    "integer divided by zero": "n = Cast <to = 7> (x)  q = Mod (n, n)  f = Cast <to = 11> (q)  a = Mul (f, x)",
    "index out of range in a loop": """a = Loop (trips, , x) <
        body = body (int64 i, bool going, double[3] h) => (bool again, double[3] next) {
            again = Identity (going)
            n = Cast <to = 7> (h)
            g = Gather (w, n)
            next = Mul (g, h)
        }>""",
    "logarithm in an inner branch": """zero = CastLike (0.0, x)  l = ReduceMin <keepdims = 0> (x)  q = Less (l, zero)
        a = If (q) <
            then_branch = inner () => (double[3] c) { c = Log (x) },
            else_branch = other () => (double[3] d) { d = Sqrt (x) }>""",
}
WRONG = {
    "finite": np.asarray([-1.0, 0.0, 1e10]),
    "not finite": np.asarray([np.nan, np.inf, -np.inf]),
}
W = np.asarray([0.3, -0.7, 1.1])
SEED = np.asarray([1.0, -2.0, 0.5])


def model_of(poison: str, before: str = "") -> onnx.ModelProto:
    """The poison in the then-branch of an If on p; its else-branch gives tanh(w) w."""
    text = f"""<ir_version: 10, opset_import: ["": 21]> poison
    (double[3] x, double[3] w, double[3, 3] u, bool p) => (double[3] y) <int64 trips = {{2}}> {{
        {before}
        y = If (p) <
            then_branch = poison () => (double[3] a) {{ {poison.replace("0.0", "none")} }},
            else_branch = good () => (double[3] b) {{ t = Tanh (w)  b = Mul (t, w) }}>
    }}"""
    return onnx.parser.parse_model(text.replace("{2}>", "{2}, double none = {0}>"))


def feeds_of(x: Array, *, taken: bool = False) -> dict[str, Array]:
    """Inputs with wrong values for the poison, which runs only where it is ``taken``."""
    return {"x": x, "w": W, "u": np.eye(3) + 0.1, "p": np.asarray(taken)}


def first_and_second(model: onnx.ModelProto, adjoint: str, feeds: dict[str, Array]) -> tuple[Any, Any]:
    """The outputs of the gradient model, and those of the gradient of its gradients (by x, w, u and the seed)."""
    site = next(iter(cfad.plan(model)))
    gradient = cfad.vjp(model, wrt=["x", "w", "u"], sites=[f"{site}={adjoint}"]).model
    feeds = {**feeds, "y_seed": SEED}
    gradient.graph.inputs[-1].name = "y_seed"
    for value in gradient.graph.outputs[1:]:
        value.name = (value.name or "").removesuffix("_grad") + "_first"
    names = [output.name or "" for output in gradient.graph.outputs[1:]]
    emitted = ir.to_proto(gradient)
    again = cfad.vjp(emitted, wrt=["x", "w", "u", "y_seed"], outputs=names).proto()
    onnx.checker.check_model(again, full_check=True)
    shapes = {"x_first_grad": (3,), "w_first_grad": (3,), "u_first_grad": (3, 3)}
    seeds = {name: np.full(shape, 0.7) for name, shape in shapes.items()}
    return run(emitted, feeds, "ORT_ENABLE_ALL"), run(again, {**feeds, **seeds}, "ORT_ENABLE_ALL")
