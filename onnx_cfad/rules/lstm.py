"""LSTM: the adjoint of the fused operator.

    i = f(Xt Wi + Ht-1 Ri + Pi Ct-1 + bi)    Ct = F Ct-1 + i c
    F = f(Xt Wf + Ht-1 Rf + Pf Ct-1 + bf)    o = f(Xt Wo + Ht-1 Ro + Po Ct + bo)
    c = g(Xt Wc + Ht-1 Rc + bc)              Ht = o h(Ct)

A clip bounds the arguments of f and g; that of h it does not, in ONNX Runtime.
Cell states are not among the outputs: one Scan of elementwise operations computes them again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from onnx_cfad.adjoint.expr import Builder, Expr, concat, op, where, zeros_like
from onnx_cfad.rules.recurrent import Named, Recurrence, RecurrentOperator, joined, seeds_and_states
from onnx_cfad.rules.registry import vjp


@dataclasses.dataclass(frozen=True)
class LstmRecurrence(Recurrence):
    """One direction of an LSTM; gates in the order i, o, f, c.

    Attributes:
        initial_cell: First cell state [N, H].
        peepholes: [3 * H] in the order i, o, f, or None.
        coupled: The forget gate is 1 - i (input_forget).
        ct_last_cell: Cotangent of the last cell state [N, H].
    """

    initial_cell: Expr
    peepholes: Expr | None
    coupled: bool
    ct_last_cell: Expr

    @functools.cached_property
    def together(self) -> tuple[Expr, Expr, Expr] | None:
        """The arguments of i, o and f as one, their values, and the argument of c, where each is a gate of its own."""
        hidden = self.r.dims[1] if self.r.has_rank else None
        if self.peephole is not None or self.coupled or hidden is None:
            return None
        arguments, candidate = op.Split(self.arguments, [3 * hidden, hidden], axis=-1, outputs=2)
        return arguments, self.functions[0](arguments), candidate

    @functools.cached_property
    def opened(self) -> tuple[Expr, Expr, Expr]:
        """The gates i, o, f [T, N, H], where each is a gate of its own."""
        assert self.together is not None
        return op.Split(self.together[1], axis=-1, num_outputs=3, outputs=3)

    @functools.cached_property
    def gates(self) -> tuple[Expr, Expr, Expr, Expr]:
        """The arguments of i, o, f, c without peepholes [T, N, H]."""
        return op.Split(self.arguments, axis=-1, num_outputs=4, outputs=4)

    @functools.cached_property
    def peephole(self) -> tuple[Expr, Expr, Expr] | None:
        """The peephole weights of i, o, f [H]."""
        return None if self.peepholes is None else op.Split(self.peepholes, axis=0, num_outputs=3, outputs=3)

    @functools.cached_property
    def candidate(self) -> Expr:
        """The block input c [T, N, H]."""
        return self.functions[1](self.gates[3] if self.together is None else self.together[2])

    @functools.cached_property
    def cells(self) -> Expr:
        """The cell states [T, N, H]."""
        _, cells = self.over_steps(
            self._peephole_step if self.peephole is not None else _cell_step,
            [self.initial_cell],
            self._cell_inputs(),
            reverse=self.backward,
            name="cells",
        )
        return cells[0]

    def _cell_inputs(self) -> list[Expr]:
        if self.together is not None:
            i, _, forget = self.opened
            return [self.within(forget, 1), self.within(i * self.candidate)]
        zi, _, zf, _ = self.gates
        if self.peephole is not None:
            return [zi, zf, self.candidate, *([] if self.mask is None else [self.mask])]
        i = self.functions[0](zi)
        forget = 1 - i if self.coupled else self.functions[0](zf)
        return [self.within(forget, 1), self.within(i * self.candidate)]

    def _peephole_step(self, inner: Builder, carries: list[Expr], slices: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        assert self.peephole is not None
        cell, (zi, zf, candidate, *mask) = carries[0], slices
        pi, _, pf = (inner.expr(p.value) for p in self.peephole)
        i = self.functions[0](zi + pi * cell)
        forget = 1 - i if self.coupled else self.functions[0](zf + pf * cell)
        new = forget * cell + i * candidate
        new = where(mask[0], new, cell) if mask else new
        return [new], [new]

    @functools.cached_property
    def previous_cells(self) -> Expr:
        """The cell state that each step starts from [T, N, H]."""
        return self.shifted(self.cells, self.initial_cell)

    @functools.cached_property
    def adjoint(self) -> tuple[Expr, list[Expr]]:
        """The cotangents of the gates' arguments [T, N, 4 * H], and those of the initial hidden and cell states."""
        (hidden, cell), (gates,) = self.over_steps(
            self._step,
            [self.ct_last, self.ct_last_cell],
            self._factors(),
            reverse=not self.backward,
            name="lstm",
        )
        return gates, [self.at_start(hidden), self.at_start(cell)]

    def _factors(self) -> list[Expr]:
        """What a step multiplies cotangents with: for i, o, f, c [T, N, 4 * H], for the cell, for the earlier cell."""
        f, g, h = self.functions[0], self.functions[1], dataclasses.replace(self.functions[2], bound=None)
        before, after = self.previous_cells, self.cells
        if self.together is not None:
            return self._factors_together(h(after))
        zi, zo, zf, zc = self.gates
        if self.peephole is not None:
            pi, po, pf = self.peephole
            zi, zo, zf = zi + pi * before, zo + po * after, zf + pf * before
        i, o, c, squashed = f(zi), f(zo), self.candidate, h(after)
        forget = 1 - i if self.coupled else f(zf)
        input_share = c - before if self.coupled else c
        forget_share = zeros_like(before) if self.coupled else before * f.slope(zf, forget)
        shares = [input_share * f.slope(zi, i), squashed * f.slope(zo, o), forget_share, i * g.slope(zc, c)]
        gates = self.within(concat(shares, axis=-1))
        cell = self.within(o * h.slope(after, squashed))
        return [gates, cell, self.within(forget, 1), *self.seeds, *self.idle]

    def _factors_together(self, squashed: Expr) -> list[Expr]:
        """The same where the gates i, o, f can be taken as one."""
        assert self.together is not None
        (i, o, forget), (arguments, values, argument) = self.opened, self.together
        f, g, h = self.functions[0], self.functions[1], dataclasses.replace(self.functions[2], bound=None)
        shares = concat([self.candidate, squashed, self.previous_cells], axis=-1) * f.slope(arguments, values)
        gates = self.within(concat([shares, i * g.slope(argument, self.candidate)], axis=-1))
        cell = self.within(o * h.slope(self.cells, squashed))
        return [gates, cell, self.within(forget, 1), *self.seeds, *self.idle]

    def _step(self, inner: Builder, carries: list[Expr], slices: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        hidden, cell = carries
        gates, to_cell, forget, *rest = slices
        if self.ct_y is not None:
            hidden = hidden + rest[0]
        cell = cell + hidden * to_cell
        if self.peephole is None:
            arguments = concat([cell, hidden, cell, cell], axis=-1) * gates
            earlier = cell * forget
        else:
            pi, po, pf = (inner.expr(p.value) for p in self.peephole)
            share_i, share_o, share_f, share_c = op.Split(gates, axis=-1, num_outputs=4, outputs=4)
            zo = hidden * share_o
            cell = cell + zo * po
            zi, zf = cell * share_i, cell * share_f
            arguments = concat([zi, zo, zf, cell * share_c], axis=-1)
            earlier = cell * forget + zi * pi + zf * pf
        before = arguments @ inner.expr(self.r.value)
        if self.mask is not None:
            before = before + hidden * rest[-1]
        return [before, earlier], [arguments]

    def ct_peepholes(self) -> Expr:
        """The cotangent of the peephole weights [3 * H]."""
        zi, zo, zf, _ = op.Split(self.adjoint[0], axis=-1, num_outputs=4, outputs=4)
        parts = [zi * self.previous_cells, zo * self.cells, zf * self.previous_cells]
        return self.total(concat(parts, axis=-1))


def _cell_step(_: Builder, carries: list[Expr], slices: list[Expr]) -> tuple[list[Expr], list[Expr]]:
    forget, new = slices
    cell = forget * carries[0] + new
    return [cell], [cell]


@vjp("LSTM")
def lstm(
    ct: Expr | tuple[Expr | None, ...] | None,
    y: Expr | tuple[Expr, ...],
    x: Expr,
    w: Expr,
    r: Expr,
    b: Expr | None = None,
    sequence_lens: Expr | None = None,
    initial_h: Expr | None = None,
    initial_c: Expr | None = None,
    p: Expr | None = None,
    *,
    direction: str,
    layout: int,
    hidden_size: int | None,
    activations: Sequence[str] | None,
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    clip: float | None,
    input_forget: int,
) -> tuple[Callable[[], Expr] | None, ...]:
    named = Named(direction, layout, hidden_size, activations, activation_alpha, activation_beta, clip)
    cts, states = seeds_and_states(ct, y)
    if states is None:
        inputs = (x, w, r, b, sequence_lens, initial_h, initial_c, p)
        states = op.LSTM(*inputs, **named.attributes, input_forget=input_forget)
    operator = RecurrentOperator(named, ("Sigmoid", "Tanh", "Tanh"), x, w, r, b, sequence_lens, initial_h, states, cts)
    parts = [
        LstmRecurrence(
            **operator.direction(index),
            initial_cell=operator.state(initial_c, index),
            peepholes=None if p is None else operator.layout.direction(p, index),
            coupled=bool(input_forget),
            ct_last_cell=operator.state(cts[2], index),
        )
        for index in range(operator.layout.directions)
    ]
    return (
        *operator.results(parts),
        lambda: operator.layout.joined_states([part.adjoint[1][1] for part in parts]),
        lambda: joined([part.ct_peepholes() for part in parts]),
    )
