"""GRU: the adjoint of the fused operator.

z = f(Xt Wz + Ht-1 Rz + bz)    h = g(Xt Wh + (r Ht-1) Rh + bh)           linear_before_reset = 0
r = f(Xt Wr + Ht-1 Rr + br)    h = g(Xt Wh + r (Ht-1 Rh + Rbh) + Wbh)    otherwise
Ht = (1 - z) h + z Ht-1
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from onnx_cfad.adjoint.expr import Builder, Expr, concat, op
from onnx_cfad.rules.recurrent import (
    Named,
    Recurrence,
    RecurrentOperator,
    seeds_and_states,
    transposed,
)
from onnx_cfad.rules.registry import vjp


@dataclasses.dataclass(frozen=True)
class GruRecurrence(Recurrence):
    """One direction of a GRU; gates in the order z, r, h.

    Attributes:
        linear: The reset gate multiplies the product with Rh, not the hidden state (linear_before_reset).
    """

    linear: bool

    @functools.cached_property
    def weights(self) -> tuple[Expr, Expr, Expr]:
        """Rz, Rr and Rh, [H, H] each."""
        return op.Split(self.r, axis=0, num_outputs=3, outputs=3)

    @functools.cached_property
    def reset(self) -> Expr:
        """The reset gate r [T, N, H]."""
        return self.functions[0](self.gates[1])

    @functools.cached_property
    def gates(self) -> tuple[Expr, Expr]:
        """The arguments of z and r [T, N, H]."""
        z, r, _ = op.Split(self.arguments, axis=-1, num_outputs=3, outputs=3)
        return z, r

    @functools.cached_property
    def from_state(self) -> Expr:
        """What the hidden state brings into h before the reset gate, where ``linear`` [T, N, H]."""
        product = self.previous @ transposed(self.weights[2])
        if self.halves is None:
            return product
        return product + op.Split(self.halves[1], axis=0, num_outputs=3, outputs=3)[2]

    @functools.cached_property
    def candidate(self) -> Expr:
        """The argument of h [T, N, H]."""
        inputs = self.x @ transposed(op.Split(self.w, axis=0, num_outputs=3, outputs=3)[2])
        biases = [] if self.halves is None else [op.Split(h, axis=0, num_outputs=3, outputs=3)[2] for h in self.halves]
        if self.linear:
            argument = inputs + self.reset * self.from_state
            return argument + biases[0] if biases else argument
        argument = inputs + (self.reset * self.previous) @ transposed(self.weights[2])
        return argument + (biases[0] + biases[1]) if biases else argument

    @functools.cached_property
    def adjoint(self) -> tuple[Expr, list[Expr]]:
        """The cotangents of the gates' arguments [T, N, 3 * H], and that of the initial hidden state."""
        (hidden,), (gates,) = self.over_steps(
            self._linear_step if self.linear else self._step,
            [self.ct_last],
            self._factors(),
            reverse=not self.backward,
            name="gru",
            widened=3,
        )
        return gates, [self.at_start(hidden)]

    def _factors(self) -> list[Expr]:
        """What a step multiplies cotangents with: for z, for h, for r, the reset gate and z [T, N, H]."""
        f, g = self.functions
        (zz, zr), zh = self.gates, self.candidate
        z, r, h = f(zz), self.reset, g(zh)
        to_z = (self.previous - h) * f.slope(zz, z)
        to_h = (1 - z) * g.slope(zh, h)
        to_r = (self.from_state if self.linear else self.previous) * f.slope(zr, r)
        return [self.within(to_z), self.within(to_h), to_r, r, self.within(z, 1), *self.seeds]

    def _step(self, inner: Builder, carries: list[Expr], slices: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        to_z, to_h, to_r, r, z, *seed = slices
        hidden = carries[0] + seed[0] if seed else carries[0]
        update, candidate = hidden * to_z, hidden * to_h
        product = candidate @ inner.expr(self.weights[2].value)
        reset = product * to_r
        both = concat([update, reset], axis=-1) @ inner.expr(self._gate_weights.value)
        return [hidden * z + product * r + both], [concat([update, reset, candidate], axis=-1)]

    def _linear_step(self, inner: Builder, carries: list[Expr], slices: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        to_z, to_h, to_r, r, z, *seed = slices
        hidden = carries[0] + seed[0] if seed else carries[0]
        update, candidate = hidden * to_z, hidden * to_h
        reset = candidate * to_r
        all_gates = concat([update, reset, candidate * r], axis=-1) @ inner.expr(self.r.value)
        return [hidden * z + all_gates], [concat([update, reset, candidate], axis=-1)]

    @functools.cached_property
    def _gate_weights(self) -> Expr:
        return concat(self.weights[:2])

    @functools.cached_property
    def to_recurrence(self) -> Expr:
        """The cotangents of what the recurrence adds to the gates' arguments [T, N, 3 * H]."""
        if not self.linear:
            return self.adjoint[0]
        z, r, h = op.Split(self.adjoint[0], axis=-1, num_outputs=3, outputs=3)
        return concat([z, r, h * self.reset], axis=-1)

    def ct_r(self) -> Expr:
        """The cotangent of the recurrence weights [3 * H, H]."""
        if self.linear:
            return self.contraction(self.to_recurrence, self.previous)
        z, r, h = op.Split(self.adjoint[0], axis=-1, num_outputs=3, outputs=3)
        return concat(
            [
                self.contraction(concat([z, r], axis=-1), self.previous),
                self.contraction(h, self.reset * self.previous),
            ]
        )


@vjp("GRU")
def gru(
    ct: Expr | tuple[Expr | None, ...] | None,
    y: Expr | tuple[Expr, ...],
    x: Expr,
    w: Expr,
    r: Expr,
    b: Expr | None = None,
    sequence_lens: Expr | None = None,
    initial_h: Expr | None = None,
    *,
    direction: str,
    layout: int,
    hidden_size: int | None,
    activations: Sequence[str] | None,
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    clip: float | None,
    linear_before_reset: int,
) -> tuple[Callable[[], Expr] | None, ...]:
    named = Named(direction, layout, hidden_size, activations, activation_alpha, activation_beta, clip)
    cts, states = seeds_and_states(ct, y)
    if states is None:
        inputs = (x, w, r, b, sequence_lens, initial_h)
        states = op.GRU(*inputs, **named.attributes, linear_before_reset=linear_before_reset)
    operator = RecurrentOperator(named, ("Sigmoid", "Tanh"), x, w, r, b, sequence_lens, initial_h, states, cts)
    linear = bool(linear_before_reset)
    parts = [GruRecurrence(**operator.direction(index), linear=linear) for index in range(operator.layout.directions)]
    return operator.results(parts)
