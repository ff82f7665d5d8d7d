"""What the adjoints of RNN, GRU and LSTM share: directions, masks, shifted states, and one contraction for a weight.

Gates are computed again for all steps at once from the hidden states of the primal's output. Only the recurrence of the
cotangents themselves runs in a Scan; it gives the cotangents of the gates' arguments, from which every weight's
cotangent is one product over all steps.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from onnx_cfad.adjoint.cotangents import wide
from onnx_cfad.adjoint.expr import Builder, Expr, concat, full, op, where, zeros_like
from onnx_cfad.adjoint.subgraph_operators import cond, scan
from onnx_cfad.rules.recurrent_activations import Activation, activations
from onnx_cfad.rules.windows import Size, size_of, vector

Step = Callable[[Builder, list[Expr], list[Expr]], tuple[list[Expr], list[Expr]]]
"""From a builder, the states and the slices of a step to its states and results."""


@dataclasses.dataclass(frozen=True)
class Recurrence(abc.ABC):
    """One direction of a recurrent operator: T steps, N sequences, I inputs, H hidden units, G gates.

    A single step needs no axis T: the body of a decoder's loop runs a cell so.

    Attributes:
        x: Inputs [T, N, I].
        w: Input weights [G * H, I].
        r: Recurrence weights [G * H, H].
        b: Biases [2 * G * H], or None.
        initial: First hidden state [N, H].
        y: Hidden states [T, N, H].
        mask: Whether a step is within its sequence [T, N, 1]; None where all are.
        started: Whether a sequence has a step [N, 1]; None where all have.
        backward: Steps run from the last to the first.
        functions: Activation functions of the direction.
        ct_y: Cotangent of ``y``, or None.
        ct_last: Cotangent of the last hidden state [N, H].
        is_step: There is one step, and no axis for it.
    """

    x: Expr
    w: Expr
    r: Expr
    b: Expr | None
    initial: Expr
    y: Expr
    mask: Expr | None
    started: Expr | None
    backward: bool
    functions: Sequence[Activation]
    ct_y: Expr | None
    ct_last: Expr
    is_step: bool

    @property
    def steps(self) -> Size:
        """The number T."""
        return size_of(self.x, 0)

    def over_steps(
        self,
        body: Step,
        states: Sequence[Expr],
        inputs: Sequence[Expr],
        *,
        reverse: bool,
        name: str,
        widened: int = 1,
    ) -> tuple[list[Expr], list[Expr]]:
        """As ``scan_steps``; a single step needs no Scan."""
        if not self.is_step:
            return scan_steps(body, states, inputs, steps=self.steps, reverse=reverse, name=name, widened=widened)
        new, results = body(self.x.builder, list(states), list(inputs))
        return [ranked(x, 2) for x in new], [ranked(x, 2) for x in results]

    @functools.cached_property
    def previous(self) -> Expr:
        """The hidden state that each step starts from [T, N, H]."""
        return self.shifted(self.y, self.initial)

    def shifted(self, states: Expr, initial: Expr) -> Expr:
        """For each step the one of ``states`` that it starts from; ``initial`` [N, H] for the first."""
        if self.is_step:
            return initial
        first = initial.unsqueeze([0])
        if not self.backward:
            return op.Slice(concat([first, states]), [0], [-1], [0])  # none of no steps
        earlier = op.Slice(concat([states, first]), [1], [2**62], [0])
        if self.mask is None:
            return earlier
        running = op.Slice(self.mask, [1], [2**62], [0])
        beyond = op.And(op.Slice(self.mask, [0], [1], [0]), False)
        return where(concat([running, beyond]), earlier, first)

    @functools.cached_property
    def halves(self) -> tuple[Expr, Expr] | None:
        """The biases of the inputs and of the recurrence, [G * H] each."""
        return None if self.b is None else op.Split(self.b, axis=0, num_outputs=2, outputs=2)

    @functools.cached_property
    def arguments(self) -> Expr:
        """The gates' arguments without peepholes [T, N, G * H], all steps in two products."""
        bias = None if self.halves is None else self.halves[0] + self.halves[1]
        if self.is_step:
            return op.Gemm(self.previous, self.r, op.Gemm(self.x, self.w, bias, transB=1), transB=1)
        parts = self.x @ transposed(self.w), self.previous @ transposed(self.r)
        return op.Sum(*parts, *([] if bias is None else [bias]))

    def within(self, x: Expr, otherwise: float = 0) -> Expr:
        """``x`` [T, N, ...] at the steps within their sequences, a number at the others."""
        return x if self.mask is None else where(self.mask, x, otherwise)

    @property
    def seeds(self) -> list[Expr]:
        """The cotangents of ``y`` at the steps that count, as a Scan input where there are any."""
        return [] if self.ct_y is None else [self.within(self.ct_y)]

    @property
    def idle(self) -> list[Expr]:
        """1 at the steps beyond their sequence and 0 within [T, N, 1], as a Scan input where there is a mask."""
        return [] if self.mask is None else [op.Cast(op.Not(self.mask), to=int(self.y.dtype))]

    def at_start(self, ct: Expr) -> Expr:
        """The cotangent of an initial state; 0 for a sequence of no steps, whose last state ONNX Runtime makes 0."""
        return ct if self.started is None else where(self.started, ct, 0)

    @functools.cached_property
    @abc.abstractmethod
    def adjoint(self) -> tuple[Expr, list[Expr]]:
        """The cotangents of the gates' arguments [T, N, G * H], and those of the initial states."""

    @functools.cached_property
    def to_recurrence(self) -> Expr:
        """The cotangents of what the recurrence weights and biases add to the gates' arguments [T, N, G * H]."""
        return self.adjoint[0]

    def contraction(self, left: Expr, right: Expr) -> Expr:
        """The sum over steps and sequences of ``transpose(left) @ right``: [T, N, K] and [T, N, M] to [K, M]."""
        factors = [wide(left), wide(right)]
        kind = max((factor.dtype for factor in factors), key=lambda dtype: dtype.bitwidth)
        wider = [factor.cast(kind) for factor in factors]
        rows = wider if self.is_step else [op.Flatten(x, axis=2) for x in wider]
        return op.Gemm(*(ranked(row, 2) for row in rows), transA=1).cast(left.dtype)

    def total(self, x: Expr) -> Expr:
        """The sum over steps and sequences: [T, N, K] to [K]."""
        return wide(x).sum([0] if self.is_step else [0, 1]).cast(x.dtype)

    def ct_x(self) -> Expr:
        """The cotangent of the inputs [T, N, I]."""
        return self.adjoint[0] @ self.w

    def ct_w(self) -> Expr:
        """The cotangent of the input weights [G * H, I]."""
        return self.contraction(self.adjoint[0], self.x)

    def ct_r(self) -> Expr:
        """The cotangent of the recurrence weights [G * H, H]."""
        return self.contraction(self.to_recurrence, self.previous)

    def ct_b(self) -> Expr:
        """The cotangent of the biases [2 * G * H]."""
        return concat([self.total(self.adjoint[0]), self.total(self.to_recurrence)])


def transposed(weights: Expr) -> Expr:
    """A weight matrix with its axes swapped."""
    return op.Transpose(weights, perm=[1, 0])


def ranked(x: Expr, rank: int) -> Expr:
    """``x``, known to have ``rank`` dimensions: ONNX Runtime wants to know of what a Scan body returns."""
    if x.value.shape is None:
        x.value.shape = ir.Shape([None] * rank)
    return x


def scan_steps(
    body: Step,
    states: Sequence[Expr],
    inputs: Sequence[Expr],
    *,
    steps: Size,
    reverse: bool,
    name: str,
    widened: int = 1,
) -> tuple[list[Expr], list[Expr]]:
    """A Scan over the steps of ``inputs`` [T, N, ...] with ``states`` [N, H], and one result a step.

    ONNX Runtime refuses a Scan of no steps, and makes the last states of none 0, so that nothing depends on the first.

    Args:
        body: As for ``scan``.
        states: Initial carries.
        inputs: What the steps read; the first is [T, N, W].
        steps: The number T.
        reverse: From the last step to the first.
        name: Of the body.
        widened: A result is [N, widened * W].
    """

    def step(inner: Builder, carries: list[Expr], slices: list[Expr]) -> tuple[list[Expr], list[Expr]]:
        new, results = body(inner, carries, slices)
        return [ranked(x, 2) for x in new], [ranked(x, 2) for x in results]

    states, inputs = [ranked(x, 2) for x in states], [ranked(x, 3) for x in inputs]
    if isinstance(steps, int) and steps > 0:
        return scan(step, states, inputs, reverse=reverse, name=name)

    def some(inner: Builder) -> list[Expr]:
        started, read = ([inner.expr(x.value) for x in part] for part in (states, inputs))
        last, results = scan(step, started, read, reverse=reverse, name=name)
        return [*last, *results]

    def none(inner: Builder) -> list[Expr]:
        nothing = inner.expr(inner.fresh_identity(inputs[0].value))
        return [*(zeros_like(inner.expr(x.value)) for x in states), concat([nothing] * widened, axis=-1)]

    if isinstance(steps, int):
        *last, result = none(states[0].builder)
    else:
        *last, result = cond(op.Greater(steps.squeeze([0]), 0), some, none, name=f"{name}.any_steps")
    return [ranked(x, 2) for x in last], [ranked(result, 3)]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How an operator's tensors are laid out.

    Attributes:
        directions: 1 or 2.
        batch_first: The sequences' axis comes first (layout 1).
    """

    directions: int
    batch_first: bool

    def time_major(self, x: Expr) -> Expr:
        """Inputs or their cotangents with the steps first; its own inverse."""
        return op.Transpose(x, perm=[1, 0, 2]) if self.batch_first else x

    def direction(self, x: Expr, index: int, axis: int = 0) -> Expr:
        """One direction's part of a weight (or of any tensor that has the directions at ``axis``)."""
        part = x.squeeze([axis]) if self.directions == 1 else op.Gather(x, x.builder.constant(index), axis=axis)
        if part.value.shape is None and x.value.shape is not None:
            part.value.shape = ir.Shape([dim for k, dim in enumerate(x.value.shape.dims) if k != axis])
        return part

    def outputs(self, y: Expr, index: int) -> Expr:
        """One direction of Y or its cotangent, [T, N, H]."""
        if self.batch_first:
            return op.Transpose(self.direction(y, index, 2), perm=[1, 0, 2])
        return self.direction(y, index, 1)

    def state(self, x: Expr, index: int) -> Expr:
        """One direction of an initial or last state or its cotangent, [N, H]."""
        return self.direction(x, index, 1 if self.batch_first else 0)

    def joined_states(self, parts: Sequence[Expr]) -> Expr:
        """The cotangents of all directions' initial states as the operator lays them out."""
        axis = 1 if self.batch_first else 0
        return concat([part.unsqueeze([axis]) for part in parts], axis=axis)


def joined(parts: Sequence[Expr]) -> Expr:
    """The cotangents of all directions' weights as one tensor."""
    return concat([part.unsqueeze([0]) for part in parts])


@dataclasses.dataclass(frozen=True)
class Named:
    """The attributes that RNN, GRU and LSTM have in common, under their ONNX names."""

    direction: str
    layout: int
    hidden_size: int | None
    activations: Sequence[str] | None
    activation_alpha: Sequence[float] | None
    activation_beta: Sequence[float] | None
    clip: float | None

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of a node."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class RecurrentOperator:
    """A recurrent node: what its directions have in common.

    Attributes:
        named: Its attributes.
        defaults: Activation functions of a direction where it names none.
        x: Its inputs, and so on under their ONNX names.
        states: Its output Y.
        cts: Cotangents of Y, Y_h and Y_c.
    """

    named: Named
    defaults: Sequence[str]
    x: Expr
    w: Expr
    r: Expr
    b: Expr | None
    sequence_lens: Expr | None
    initial_h: Expr | None
    states: Expr
    cts: Sequence[Expr | None]

    @functools.cached_property
    def backward(self) -> list[bool]:
        """For each direction whether its steps run from the last to the first."""
        return {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[self.named.direction]

    @functools.cached_property
    def layout(self) -> Layout:
        """How the node's tensors are laid out."""
        return Layout(len(self.backward), bool(self.named.layout))

    @functools.cached_property
    def inputs(self) -> Expr:
        """The inputs [T, N, I]."""
        return self.layout.time_major(self.x)

    @property
    def is_step(self) -> bool:
        """Whether there is one step, in every sequence."""
        return self.sequence_lens is None and self.inputs.has_rank and self.inputs.dims[0] == 1

    def of_steps(self, x: Expr) -> Expr:
        """``x`` [T, N, ...], without the axis of a single step."""
        return x.squeeze([0]) if self.is_step else x

    @functools.cached_property
    def mask(self) -> Expr | None:
        """Which steps are within their sequences [T, N, 1]."""
        if self.sequence_lens is None:
            return None
        builder = self.x.builder
        steps = op.Range(builder.constant(0), op.Squeeze(self.inputs.dim(0), [0]), builder.constant(1))
        steps = op.Cast(steps, to=int(ir.DataType.INT32)).unsqueeze([1, 2])
        return steps < self.sequence_lens.unsqueeze([0, 2])

    def state(self, value: Expr | None, index: int) -> Expr:
        """One direction of a state [N, H]; zeros where there is none."""
        if value is not None:
            return self.layout.state(value, index)
        return full(
            vector([size_of(self.inputs, 1), size_of(self.r, 2)], self.x.builder), 0, self.x.dtype, self.x.builder
        )

    def direction(self, index: int) -> dict[str, Any]:
        """The fields of ``Recurrence`` for one direction."""
        named = self.named
        names = named.activations or [*self.defaults] * len(self.backward)
        each = len(self.defaults)
        functions = activations(names, named.activation_alpha, named.activation_beta, named.clip)
        return {
            "x": self.of_steps(self.inputs),
            "w": self.layout.direction(self.w, index),
            "r": self.layout.direction(self.r, index),
            "b": None if self.b is None else self.layout.direction(self.b, index),
            "initial": self.state(self.initial_h, index),
            "y": self.of_steps(self.layout.outputs(self.states, index)),
            "mask": self.mask,
            "started": None if self.sequence_lens is None else op.Greater(self.sequence_lens, 0).unsqueeze([1]),
            "backward": self.backward[index],
            "functions": functions[each * index : each * (index + 1)],
            "ct_y": None if self.cts[0] is None else self.of_steps(self.layout.outputs(self.cts[0], index)),
            "ct_last": self.state(self.cts[1], index),
            "is_step": self.is_step,
        }

    def results(self, parts: Sequence[Recurrence]) -> tuple[Callable[[], Expr] | None, ...]:
        """The cotangents of X, W, R, B, sequence_lens and initial_h."""

        def by_x() -> Expr:
            total_ct = functools.reduce(operator.add, [part.ct_x() for part in parts])
            return self.layout.time_major(total_ct.unsqueeze([0]) if self.is_step else total_ct)

        return (
            by_x,
            lambda: joined([part.ct_w() for part in parts]),
            lambda: joined([part.ct_r() for part in parts]),
            lambda: joined([part.ct_b() for part in parts]),
            None,
            lambda: self.layout.joined_states([part.adjoint[1][0] for part in parts]),
        )


def seeds_and_states(
    ct: Expr | tuple[Expr | None, ...] | None, y: Expr | tuple[Expr, ...]
) -> tuple[list[Expr | None], Expr | None]:
    """The cotangents of Y, Y_h and Y_c, and Y itself where the node has it."""
    states = y[0] if isinstance(y, tuple) else y
    cts = [*(ct if isinstance(ct, tuple) else (ct,)), None, None]
    return cts, states if states.value.name else None
