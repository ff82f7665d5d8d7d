"""RNN, GRU and LSTM written out as a Scan over their steps, where what runs the model lacks them.

The inputs' part of all gates is one product before the Scan; a step adds the state's part, and a sequence that has
ended keeps its state. The formulas are those of the ONNX specification:

    LSTM  i = f(Xt Wi + Ht-1 Ri + Pi Ct-1 + bi)    Ct = F Ct-1 + i g(Xt Wc + Ht-1 Rc + bc)
          F = f(Xt Wf + Ht-1 Rf + Pf Ct-1 + bf)    o = f(Xt Wo + Ht-1 Ro + Po Ct + bo)    Ht = o h(Ct)
    GRU   z = f(Xt Wz + Ht-1 Rz + bz)    r = f(Xt Wr + Ht-1 Rr + br)    Ht = (1 - z) c + z Ht-1
          c = g(Xt Wh + (r Ht-1) Rh + bh), or g(Xt Wh + r (Ht-1 Rh + Rbh) + Wbh) with linear_before_reset
    RNN   Ht = f(Xt W + Ht-1 R + b)

As in ONNX Runtime, a clip bounds the arguments of f and g but not that of h, and a sequence of no steps ends in zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.rewriters.decompose_operators import Decomposition, input_of, optional_input, static_shape
from onnx_cfad.rewriters.recorder import Recorder

_Apply = Callable[[Recorder, ir.Value], ir.Value]
_Step = Callable[[Recorder, "_Direction", ir.Value, list[ir.Value]], list[ir.Value]]
"""The new states [N, H], the hidden one first, from the inputs' part of the gates [N, G * H] and the old states."""


@dataclasses.dataclass(frozen=True)
class _Direction:
    """What a step of one direction reads from outside: N sequences, H hidden units, G gates.

    Attributes:
        weights: Recurrence weights [H, G * H].
        late: Biases [H] that a GRU adds before its reset gate; None where there are none.
        peepholes: Those of an LSTM for i, o, f [H]; None where there are none.
        functions: The activation functions.
        flag: ``input_forget`` of an LSTM, ``linear_before_reset`` of a GRU.
    """

    weights: ir.Value
    late: ir.Value | None
    peepholes: Sequence[ir.Value] | None
    functions: Sequence[_Apply]
    flag: bool


def _lstm_step(op: Recorder, own: _Direction, inputs: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
    hidden, cell = states
    zi, zo, zf, zc = op.Split(op.Add(inputs, op.MatMul(hidden, own.weights)), axis=-1, num_outputs=4, _outputs=4)
    f, g, h = own.functions

    def peeping(argument: ir.Value, which: int, at: ir.Value) -> ir.Value:
        return argument if own.peepholes is None else op.Add(argument, op.Mul(own.peepholes[which], at))

    i = f(op, peeping(zi, 0, cell))
    forget = op.Sub(1.0, i) if own.flag else f(op, peeping(zf, 2, cell))
    new = op.Add(op.Mul(forget, cell), op.Mul(i, g(op, zc)))
    return [op.Mul(f(op, peeping(zo, 1, new)), h(op, new)), new]


def _gru_step(op: Recorder, own: _Direction, inputs: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
    hidden, (f, g) = states[0], own.functions
    size = _size(own.weights)
    xz, xr, xh = op.Split(inputs, axis=-1, num_outputs=3, _outputs=3)
    columns = (op.Slice(own.weights, op.ints(a * size), op.ints(b * size), op.ints(1)) for a, b in ((0, 2), (2, 3)))
    gates, candidate = columns
    hz, hr = op.Split(op.MatMul(hidden, gates), axis=-1, num_outputs=2, _outputs=2)
    z, r = f(op, op.Add(xz, hz)), f(op, op.Add(xr, hr))
    if own.flag:
        product = op.MatMul(hidden, candidate)
        product = op.Mul(r, product if own.late is None else op.Add(product, own.late))
    else:
        product = op.MatMul(op.Mul(r, hidden), candidate)
    new = g(op, op.Add(xh, product))
    return [op.Add(op.Mul(op.Sub(1.0, z), new), op.Mul(z, hidden))]


def _rnn_step(op: Recorder, own: _Direction, inputs: ir.Value, states: list[ir.Value]) -> list[ir.Value]:
    return [own.functions[0](op, op.Add(inputs, op.MatMul(states[0], own.weights)))]


@dataclasses.dataclass(frozen=True)
class _Kind:
    """An operator: its gates, states, step, default functions of a direction, and the attribute that is its flag."""

    gates: int
    states: int
    step: _Step
    functions: tuple[str, ...]
    flag: str


_KINDS = {
    "LSTM": _Kind(4, 2, _lstm_step, ("Sigmoid", "Tanh", "Tanh"), "input_forget"),
    "GRU": _Kind(3, 1, _gru_step, ("Sigmoid", "Tanh"), "linear_before_reset"),
    "RNN": _Kind(1, 1, _rnn_step, ("Tanh",), ""),
}


def _expand(op: Recorder, node: ir.Node) -> list[ir.Value] | None:
    """The outputs of a recurrent operator; None where its hidden size is not known."""
    shape = static_shape(input_of(node, 2))
    names = [str(name).lower() for name in node.attributes.get_strings("activations", ())]
    if shape is None or any(name not in _KNOWN for name in names):
        return None
    kind, size = _KINDS[node.op_type], shape[2]
    batch_first = bool(node.attributes.get_int("layout", 0))
    x = input_of(node, 0)
    x = op.Transpose(x, perm=[1, 0, 2]) if batch_first else x
    lengths = optional_input(node, 4)
    within = None if lengths is None else _within(op, x, lengths)
    backward = {"reverse": [True], "bidirectional": [False, True]}
    directions = backward.get(node.attributes.get_string("direction", "forward"), [False])
    functions = _functions(node, kind, len(directions))
    parts: list[list[ir.Value]] = []
    for index, reverse in enumerate(directions):
        initial = [_initial(op, node, 5 + k, index, x, size, batch_first) for k in range(kind.states)]
        own, inputs = _direction(op, node, kind, index, x, functions[index])
        parts.append(_scan(op, kind, own, inputs, within, initial, reverse=reverse))
    if lengths is not None:  # a sequence of no steps has no last state
        runs = op.Unsqueeze(op.Greater(lengths, op.constant(np.array(0, np.int32))), op.ints(1))
        zero = op.constant(0, x.dtype)
        parts = [[*(op.Where(runs, state, zero) for state in part[:-1]), part[-1]] for part in parts]
    rows = _joined(op, [part[-1] for part in parts], 1)  # [T, D, N, H]
    results = [op.Transpose(rows, perm=[2, 0, 1, 3]) if batch_first else rows]
    results += [_joined(op, [part[k] for part in parts], int(batch_first)) for k in range(kind.states)]
    return results[: len(node.outputs)]


def _scan(
    op: Recorder,
    kind: _Kind,
    own: _Direction,
    inputs: ir.Value,
    within: ir.Value | None,
    initial: list[ir.Value],
    *,
    reverse: bool,
) -> list[ir.Value]:
    """The last states [N, H], and the hidden ones of all steps [T, N, H]."""
    inner = op.inside()
    states = [inner.entry(state, f"state{k}") for k, state in enumerate(initial)]
    slices = [inner.entry(inputs, "inputs")] + ([] if within is None else [inner.entry(within, "within")])
    new = kind.step(inner, own, slices[0], states)
    if within is None:
        row = inner.Identity(new[0])
    else:
        new = [inner.Where(slices[1], after, before) for after, before in zip(new, states, strict=True)]
        row = inner.Where(slices[1], new[0], inner.constant(0, inputs.dtype))
    for value in (*new, row):
        value.type, value.shape = inputs.type, ir.Shape([None, None])
    body = ir.Graph([*states, *slices], [*new, row], nodes=inner.nodes, name="step")
    given = [inputs] if within is None else [inputs, within]
    back = [1] * len(given) if reverse else None
    return list(
        op.Scan(
            *initial, *given,
            body=body, num_scan_inputs=len(given), scan_input_directions=back,
            scan_output_directions=[1] if reverse else None, _outputs=len(new) + 1,
        )
    )  # fmt: skip


def _direction(
    op: Recorder, node: ir.Node, kind: _Kind, index: int, x: ir.Value, functions: Sequence[_Apply]
) -> tuple[_Direction, ir.Value]:
    """What a direction's steps read, and the inputs' part of its gates [T, N, G * H]."""
    w, r = (op.Transpose(_at(op, input_of(node, k), index), perm=[1, 0]) for k in (1, 2))
    r.shape = _transposed_shape(input_of(node, 2))
    inputs, late = op.MatMul(x, w), None
    flag = bool(kind.flag and node.attributes.get_int(kind.flag, 0))
    biases = optional_input(node, 3)
    if biases is not None:
        of_inputs, of_states = op.Split(_at(op, biases, index), axis=0, num_outputs=2, _outputs=2)
        if kind.gates == 3 and flag:
            of_gates, late = _split_last(op, of_states, _size(r))
            of_states = op.Pad(of_gates, op.ints(0, _size(r)))
        inputs = op.Add(inputs, op.Add(of_inputs, of_states))
    p = optional_input(node, 7) if node.op_type == "LSTM" else None
    peepholes = None if p is None else op.Split(_at(op, p, index), axis=0, num_outputs=3, _outputs=3)
    return _Direction(r, late, peepholes, functions, flag), inputs


def _split_last(op: Recorder, x: ir.Value, size: int) -> tuple[ir.Value, ir.Value]:
    first, last = op.Split(x, op.ints(2 * size, size), axis=0, _outputs=2)
    return first, last


def _transposed_shape(weights: ir.Value) -> ir.Shape:
    shape = static_shape(weights)
    assert shape is not None, "the caller has asked"
    return ir.Shape([shape[2], shape[1]])


def _size(weights: ir.Value) -> int:
    """The hidden size, from recurrence weights [H, G * H]."""
    assert weights.shape is not None
    return int(weights.shape[0])  # pyright: ignore[reportArgumentType] - a number, as it was written


def _at(op: Recorder, x: ir.Value, index: int) -> ir.Value:
    """One direction's part of a tensor that has the directions first."""
    return op.Gather(x, op.constant(np.array(index)), axis=0)


def _joined(op: Recorder, parts: Sequence[ir.Value], axis: int) -> ir.Value:
    """One tensor with the directions at ``axis``."""
    rows = [op.Unsqueeze(part, op.ints(axis)) for part in parts]
    return rows[0] if len(rows) == 1 else op.Concat(*rows, axis=axis)


def _initial(
    op: Recorder, node: ir.Node, position: int, index: int, x: ir.Value, size: int, batch_first: bool
) -> ir.Value:
    """One direction of an initial state [N, H]; zeros where there is none."""
    given = optional_input(node, position)
    if given is not None:
        return op.Gather(given, op.constant(np.array(index)), axis=int(batch_first))
    sequences = op.Shape(x, start=1, end=2)
    return op.Expand(op.constant(0, x.dtype), op.Concat(sequences, op.ints(size), axis=0))


def _within(op: Recorder, x: ir.Value, lengths: ir.Value) -> ir.Value:
    """Which steps are within their sequences [T, N, 1]."""
    steps = op.Squeeze(op.Shape(x, start=0, end=1), op.ints(0))
    numbers = op.Range(op.constant(np.array(0)), steps, op.constant(np.array(1)))
    numbers = op.Cast(numbers, to=int(ir.DataType.INT32))
    return op.Less(op.Unsqueeze(numbers, op.ints(1, 2)), op.Unsqueeze(lengths, op.ints(0, 2)))


# The functions that take alpha and beta, with what ONNX says they are where they are left out.
_ALPHA = {"affine": 1.0, "leakyrelu": 0.01, "thresholdedrelu": 1.0, "scaledtanh": 1.0, "hardsigmoid": 0.2, "elu": 1.0}
_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}
_OPERATORS = {
    name.lower(): name
    for name in (
        "Sigmoid",
        "Tanh",
        "Relu",
        "HardSigmoid",
        "LeakyRelu",
        "ThresholdedRelu",
        "Elu",
        "Softsign",
        "Softplus",
    )
}
_KNOWN = {*_OPERATORS, "affine", "scaledtanh"}


def _functions(node: ir.Node, kind: _Kind, directions: int) -> list[list[_Apply]]:
    """The activation functions of each direction; parameters go in order to the functions that take them."""
    named = node.attributes
    names = [str(n).lower() for n in named.get_strings("activations", None) or [*kind.functions] * directions]
    alphas, betas = (iter(named.get_floats(f"activation_{key}", ())) for key in ("alpha", "beta"))
    clip = named["clip"].as_float() if "clip" in named else None
    each = len(kind.functions)
    found = [
        _function(name, _next(alphas, _ALPHA, name), _next(betas, _BETA, name), None if k % each == 2 else clip)
        for k, name in enumerate(names)
    ]
    return [found[each * k : each * (k + 1)] for k in range(directions)]


def _next(given: Iterator[float], defaults: dict[str, float], name: str) -> float | None:
    return float(next(given, defaults[name])) if name in defaults else None


def _function(name: str, alpha: float | None, beta: float | None, clip: float | None) -> _Apply:
    def apply(op: Recorder, z: ir.Value) -> ir.Value:
        z = z if clip is None else op.Clip(z, -clip, clip)
        if name == "affine":
            return op.Add(op.Mul(z, alpha), beta)
        if name == "scaledtanh":
            return op.Mul(op.Tanh(op.Mul(z, beta)), alpha)
        return getattr(op, _OPERATORS[name])(z, alpha=alpha, beta=beta)

    return apply


RECURRENT: dict[str, Decomposition] = dict.fromkeys(_KINDS, _expand)
