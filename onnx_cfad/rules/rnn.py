"""RNN: the adjoint of the fused operator. Ht = f(Xt W + Ht-1 R + b)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from onnx_cfad.adjoint.expr import Builder, Expr, op
from onnx_cfad.rules.recurrent import Named, Recurrence, RecurrentOperator, seeds_and_states
from onnx_cfad.rules.registry import vjp


@dataclasses.dataclass(frozen=True)
class RnnRecurrence(Recurrence):
    """One direction of an RNN."""

    @functools.cached_property
    def adjoint(self) -> tuple[Expr, list[Expr]]:
        """The cotangents of the activation's arguments [T, N, H], and that of the initial hidden state."""
        slope = self.within(self.functions[0].slope(self.arguments, self.y))
        inputs = [slope, *self.seeds, *self.idle]
        (hidden,), (arguments,) = self.over_steps(
            self._step, [self.ct_last], inputs, reverse=not self.backward, name="rnn"
        )
        return arguments, [self.at_start(hidden)]

    def _step(self, inner: Builder, carries: list[Expr], slices: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        slope, *rest = slices
        hidden = carries[0] if self.ct_y is None else carries[0] + rest[0]
        argument = hidden * slope
        before = argument @ inner.expr(self.r.value)
        if self.mask is not None:
            before = before + hidden * rest[-1]
        return [before], [argument]


@vjp("RNN")
def rnn(
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
) -> tuple[Callable[[], Expr] | None, ...]:
    named = Named(direction, layout, hidden_size, activations, activation_alpha, activation_beta, clip)
    cts, states = seeds_and_states(ct, y)
    if states is None:
        states = op.RNN(x, w, r, b, sequence_lens, initial_h, **named.attributes)
    operator = RecurrentOperator(named, ("Tanh",), x, w, r, b, sequence_lens, initial_h, states, cts)
    parts = [RnnRecurrence(**operator.direction(index)) for index in range(operator.layout.directions)]
    return operator.results(parts)
