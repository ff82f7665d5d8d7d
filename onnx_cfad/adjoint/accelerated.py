"""Anderson's acceleration of the iterations of a loop: a mixture of the last steps takes the place of the last one.

D. G. Anderson, Iterative procedures for nonlinear integral equations, J. ACM 12 (1965), with a history of 5; where a
step is more than twice as long as the one before, the plain iteration is taken. The loop stops by the test it has, of
the same map, and its result is what the map gave: another approximation of the same fixed point. Its path is another
one, so that it is off unless asked for.

Cost of an iteration: 12 vector operations, and a least-squares problem of 5 columns in about 150 scalar operations.
Memory: 12 states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, concat, full, op, where
from onnx_cfad.adjoint.extend import NewCarry, extend_loop
from onnx_cfad.errors import PlanError
from onnx_cfad.graph.accelerated import ACCELERATED, is_accelerated
from onnx_cfad.graph.fixed_point import FixedPoint
from onnx_cfad.graph.regions import Carry, label, loop_site
from onnx_cfad.graph.stopping import tests_in
from onnx_cfad.solvers.anderson import DEPTH, differences, shifted
from onnx_cfad.solvers.least_squares import least_squares
from onnx_cfad.solvers.system import norm

_LONGER = 2.0  # than the step before: a step after which the mixture is not trusted


def accelerated(node: ir.Node, point: FixedPoint, builder: Builder) -> ir.Node:
    """Has ``node``, a loop that iterates to a fixed point, hand mixtures on; gives the loop that replaces it.

    Args:
        node: The loop; one that is accelerated already stays as it is.
        point: What it iterates.
        builder: Gives names and the opset; nothing is recorded with it.

    Raises:
        PlanError: Its test does not measure the step that an iteration takes.
    """
    site = loop_site(node)
    if is_accelerated(site):
        return node
    mixed = [site.carries[k] for k in point.states if site.carries[k].entry in _cone(site.carries[k].exit, site.body)]
    tests = tests_in(point.condition) if point.condition is not None else []
    exits = {carry.exit for carry in mixed}
    if not tests or not all(exits & _cone(test.measure, site.body) for test in tests):
        found = "it cannot be accelerated: its condition does not measure the step that the iteration took"
        raise PlanError(label(node), found, "Leave out forward=anderson.")
    outside, inside = builder.child(), Builder(builder.namer, builder.opset)
    kind = ir.DataType.DOUBLE if any(c.entry.dtype == ir.DataType.DOUBLE for c in mixed) else ir.DataType.FLOAT
    size = concat([outside.expr(carry.initial).size.unsqueeze([0]) for carry in mixed])
    rows = concat([outside.constant(np.asarray([DEPTH + 1])), op.ReduceSum(size, keepdims=1)])
    empty = full(rows, 0, kind, outside)
    empty.value.shape = ir.Shape([DEPTH + 1, None])
    history = ir.TensorType(kind)
    entries = [inside.input(f"{name}.history", history, empty.value.shape) for name in ("points", "steps")]
    assert site.index is not None
    assert site.proceed is not None
    before = _joined(inside, [carry.entry for carry in mixed], kind)
    after = _joined(inside, [carry.exit for carry in mixed], kind)
    histories = [shifted(entries[0], before, DEPTH), shifted(entries[1], after - before, DEPTH)]
    mixture = _mixture(histories, after, inside.expr(site.index))
    going = inside.expr(site.proceed)
    for carry, part in zip(mixed, _parted(mixture, mixed), strict=True):
        chosen = op.Where(going, part, inside.expr(carry.exit))
        chosen.value.shape = carry.exit.shape
        maker = chosen.value.producer()
        assert maker is not None
        maker.metadata_props[ACCELERATED] = "anderson"
        site.body.outputs[1 + site.carries.index(carry)] = chosen.value
    inside.append_to(site.body)
    graph = node.graph
    assert graph is not None
    graph.insert_before(node, outside.nodes)
    for initializer in outside.initializers:
        graph.initializers.add(initializer)
    carries = [NewCarry(empty.value, e.value, h.value) for e, h in zip(entries, histories, strict=True)]
    return extend_loop(node, carries, [], 0, builder.namer).node


def _mixture(histories: Sequence[Expr], after: Expr, index: Expr) -> Expr:
    """What to go on with, from points and steps of the last iterations, and where the map led: a vector."""
    points, steps = histories
    builder = after.builder
    known = op.GreaterOrEqual(builder.constant(np.arange(DEPTH)), op.Sub(builder.constant(np.int64(DEPTH)), index))
    turns, moves = (where(known.unsqueeze([1]), differences(x, DEPTH), 0) for x in (steps, points))
    last, previous = (op.Gather(steps, builder.constant(np.int64(row)), axis=0) for row in (DEPTH, DEPTH - 1))
    gram = op.MatMul(turns, op.Transpose(turns, perm=[1, 0]))
    weights = least_squares(gram, op.MatMul(turns, last.unsqueeze([1])).squeeze([1]), DEPTH, DEPTH)
    mixed = after - op.MatMul(weights.unsqueeze([0]), moves + turns).squeeze([0])
    return where(op.LessOrEqual(norm(last), _LONGER * norm(previous)), mixed, after)


def _joined(builder: Builder, values: Sequence[ir.Value], kind: ir.DataType) -> Expr:
    return concat([builder.expr(value).reshape([-1]).cast(kind) for value in values])


def _parted(vector: Expr, carries: Sequence[Carry]) -> list[Expr]:
    """The tensors that a vector joins, in the shapes and types of the carries."""
    builder = vector.builder
    like = [builder.expr(carry.exit) for carry in carries]
    parts: Sequence[Expr] = [vector]
    if len(like) > 1:
        parts = op.Split(vector, concat([x.size.unsqueeze([0]) for x in like]), axis=0, outputs=len(like))
    return [part.reshape(x.shape).cast(x.dtype) for part, x in zip(parts, like, strict=True)]


def _cone(value: ir.Value, body: ir.Graph) -> set[ir.Value]:
    """The values of the body's own scope that ``value`` depends on, itself included."""
    found, pending = set[ir.Value](), [value]
    while pending:
        each = pending.pop()
        if each in found or each.graph is not body:
            continue
        found.add(each)
        node = each.producer()
        pending += [] if node is None else [v for v in node.inputs if v is not None]
    return found
