"""RNN, GRU and LSTM step by step in NumPy, as the operators' documentation writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FUNCTIONS: dict[str, Any] = {
    "Sigmoid": lambda z, _a, _b: 1 / (1 + np.exp(-z)),
    "Tanh": lambda z, _a, _b: np.tanh(z),
    "Relu": lambda z, _a, _b: np.maximum(z, 0),
    "HardSigmoid": lambda z, a, b: np.clip(a * z + b, 0, 1),
    "Affine": lambda z, a, b: a * z + b,
    "LeakyRelu": lambda z, a, _b: np.where(z < 0, a * z, z),
    "ThresholdedRelu": lambda z, a, _b: np.where(z > a, z, 0),
    "ScaledTanh": lambda z, a, b: a * np.tanh(b * z),
    "Elu": lambda z, a, _b: np.where(z < 0, a * np.expm1(z), z),
    "Softsign": lambda z, _a, _b: z / (1 + np.abs(z)),
    "Softplus": lambda z, _a, _b: np.log1p(np.exp(z)),
}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def run(op_type: str, feeds: Mapping[str, Array], attributes: Mapping[str, Any]) -> list[Array]:
    """Y and Y_h (and Y_c) of a recurrent operator; feeds: x w r, and b lens h c p where present."""
    directions = {"forward": [1], "reverse": [-1], "bidirectional": [1, -1]}[attributes.get("direction", "forward")]
    count = len(DEFAULTS[op_type])
    names = attributes.get("activations") or DEFAULTS[op_type] * len(directions)
    alphas = iter(attributes.get("activation_alpha", ()))
    betas = iter(attributes.get("activation_beta", ()))
    functions: list[Any] = []
    for name in names:
        a = (
            next(alphas)
            if name in ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
            else 0
        )
        b = next(betas) if name in ("Affine", "ScaledTanh", "HardSigmoid") else 0
        unclipped = op_type == "LSTM" and len(functions) % 3 == 2  # h, in ONNX Runtime
        functions.append(_clipped(FUNCTIONS[name], a, b, np.inf if unclipped else attributes.get("clip", np.inf)))
    parts = [
        _direction(op_type, feeds, attributes, d, step, functions[count * d : count * (d + 1)])
        for d, step in enumerate(directions)
    ]
    return [
        np.stack([part[0] for part in parts], 1),
        *(np.stack(states) for states in list(zip(*parts, strict=True))[1:]),
    ]


def _clipped(function: Any, a: float, b: float, bound: float) -> Any:
    return lambda z: function(np.clip(z, -bound, bound), a, b)


def _direction(
    op_type: str, feeds: Mapping[str, Array], attributes: Mapping[str, Any], d: int, step: int, f: Sequence[Any]
) -> list[Array]:
    x, w, r = feeds["x"], feeds["w"][d], feeds["r"][d]
    steps, batch, hidden = x.shape[0], x.shape[1], r.shape[1]
    b = feeds["b"][d] if "b" in feeds else np.zeros(2 * len(w))
    lens = feeds.get("lens", np.full(batch, steps))
    y = np.zeros((steps, batch, hidden))
    last, last_cell = np.zeros((batch, hidden)), np.zeros((batch, hidden))
    for n in range(batch):
        h = feeds["h"][d, n] if "h" in feeds else np.zeros(hidden)
        c = feeds["c"][d, n] if "c" in feeds else np.zeros(hidden)
        for t in range(lens[n])[::step]:
            if op_type == "RNN":
                h = f[0](w @ x[t, n] + r @ h + b[:hidden] + b[hidden:])
            elif op_type == "GRU":
                h = _gru(x[t, n], h, w, r, b, f, attributes.get("linear_before_reset", 0))
            else:
                p = feeds["p"][d] if "p" in feeds else np.zeros(3 * hidden)
                h, c = _lstm(x[t, n], h, c, w=w, r=r, b=b, p=p, f=f, coupled=attributes.get("input_forget", 0))
            y[t, n], last[n], last_cell[n] = h, h, c
    return [y, last, *([last_cell] if op_type == "LSTM" else [])]


def _gru(x: Array, h: Array, w: Array, r: Array, b: Array, f: Sequence[Any], linear: int) -> Array:
    (wz, wr, wh), (rz, rr, rh) = np.split(w, 3), np.split(r, 3)
    bz, br, bh, cz, cr, ch = np.split(b, 6)
    z = f[0](wz @ x + rz @ h + bz + cz)
    reset = f[0](wr @ x + rr @ h + br + cr)
    new = f[1](wh @ x + reset * (rh @ h + ch) + bh) if linear else f[1](wh @ x + rh @ (reset * h) + ch + bh)
    return (1 - z) * new + z * h


def _lstm(
    x: Array, h: Array, c: Array, *, w: Array, r: Array, b: Array, p: Array, f: Sequence[Any], coupled: int
) -> tuple[Array, Array]:
    zi, zo, zf, zc = np.split(w @ x + r @ h + b[: len(w)] + b[len(w) :], 4)
    pi, po, pf = np.split(p, 3)
    i = f[0](zi + pi * c)
    forget = 1 - i if coupled else f[0](zf + pf * c)
    c = forget * c + i * f[1](zc)
    return f[0](zo + po * c) * f[2](c), c
