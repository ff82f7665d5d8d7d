"""Small models from ONNX text, for tests of what surrounds the differentiation."""

from __future__ import annotations

import onnx
import onnx.parser

LOOP = """loop (float[N] x, float[N] w, int64 trips, bool up) => (float[N] y, float[K,N] ys) {
    true = Constant <value = bool {1}> ()
    y, ys = Loop (trips, true, x) <
        body = body (int64 i, bool going, float[N] s) => (bool again, float[N] next, float[N] row) {
        again = Identity (going)
        p = Mul (s, w)
        next = If (up) <
            then_branch = up () => (float[N] a) { a = Tanh (p) },
            else_branch = down () => (float[N] b) { b = Sin (p) }
        >
        row = Mul (next, next)
    }
    >
}"""
"""A Loop of dynamic trip count with an If inside, a carry, a captured value and a scan output."""

LOSS = """loss (float[3] x) => (float loss) <float[3] w = {0.5, -1.0, 2.0}> {
    p = Mul (x, w)
    s = Sin (p)
    loss = ReduceSum <keepdims = 0> (s)
}"""
"""A scalar loss with a weight."""


def model(text: str, opset: int = 21) -> onnx.ModelProto:
    """The model that ``text`` (inputs, outputs, initializers and nodes, with a name) describes."""
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')
