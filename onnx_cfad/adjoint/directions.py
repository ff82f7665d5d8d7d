"""Many seed directions in one run: what depends on the seeds becomes the body of a Scan over their leading axis.

What does not depend on them stays where it is, runs once, and is read by the body as captured values: the primal, its
tapes, and every factor of a derivative outside loops. Cost of the rest: K times that of one direction, one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, concat, op
from onnx_cfad.errors import ModelError, PlanError
from onnx_cfad.graph.purity import is_pure
from onnx_cfad.graph.regions import captured_by
from onnx_cfad.options import Options

Directions = int | str
"""How many seeds one run takes: a number from 1 up, or the name of a dimension that the run decides."""


def check_directions(options: Options, graph: ir.Graph) -> None:
    """Refuses what many directions cannot be combined with.

    Raises:
        ModelError: There is no seed, or the model has a dimension of the name.
        PlanError: Another option does not go with them.
    """
    count = options.seeds
    if count is None:
        return
    if options.mode == "hvp":
        raise PlanError("seeds", "is of modes reverse and forward, found mode hvp", "Leave it out.")
    if options.loss is not None and options.mode == "reverse":
        raise ModelError(
            f"loss '{options.loss}'", "its seed is 1, and many seeds are asked for", "Name the output as outputs."
        )
    if options.implicit_outputs:
        raise PlanError("implicit_outputs", "tells of one solve, and there is one for each seed", "Leave it out.")
    shapes = [value.shape for value in (*graph.inputs, *graph.outputs) if value.shape is not None]
    if any(isinstance(d, ir.SymbolicDim) and d.value == count for shape in shapes for d in shape.dims):
        raise ModelError(f"seeds '{count}'", "the model has a dimension of this name", "Give another name.")


def refuse_draws(site: ir.Node, path: str) -> None:
    """Refuses a loop or branch with random draws, whose primal part would run again for each direction.

    Raises:
        PlanError: There is a draw inside.
    """
    if not is_pure(site):
        raise PlanError(
            path,
            "it draws random numbers and carries tangents, and would draw others for each seed",
            "Leave out seeds, or use reverse mode, where draws are taped.",
        )


def scan_directions(
    graph: ir.Graph, seeds: Sequence[str], results: Mapping[str, ir.Value], count: Directions, builder: Builder
) -> frozenset[ir.Node]:
    """Gives the inputs ``seeds`` and outputs ``results`` of a main graph a leading axis of ``count``.

    Args:
        graph: The graph, in which one direction is pushed or pulled.
        seeds: Names of inputs (cotangents or tangents): [...] becomes [count, ...].
        results: Names of outputs, which become [count, ...], each with the primal value that has its shape.
        count: The length of the axis; at least 1 when it runs, since ONNX Runtime refuses a Scan of length 0.
        builder: Gives names and the opset; nothing is recorded with it.

    Returns:
        The nodes that have moved into the body.
    """
    namer = builder.namer
    rows = [value for value in graph.inputs if value.name in seeds]
    given = [value for value in graph.outputs if value.name in results]
    names = [value.name or "" for value in given]
    moved = _dependent(graph, rows)
    stacked = [_stack(row, count, row.name or "") for row in rows]
    graph.inputs[:] = [stacked[rows.index(v)] if v in rows else v for v in graph.inputs]
    rest = [value for value in graph.outputs if value not in given]
    order = [value.name or "" for value in graph.outputs]
    graph.outputs[:] = rest
    graph.remove(moved)
    for value in (*rows, *given):
        value.name = namer.fresh(f"{value.name}.row")
    inner = builder.child()  # a body returns no input, nothing captured, nothing twice, and nothing of unknown rank
    ends = [inner.fresh_identity(v) if v.shape is not None else _flat(v, inner) for v in given]
    body = ir.Graph(
        rows, ends, nodes=[*moved, *inner.nodes], initializers=inner.initializers, name=namer.fresh("directions/body")
    )
    node = ir.Node(
        "",
        "Scan",
        stacked,
        [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", len(rows))],
        num_outputs=len(given),
        name=namer.fresh("directions"),
    )
    graph.append(node)
    outer = builder.child()
    stacks: list[ir.Value] = []
    for output, end, value, name in zip(node.outputs, ends, given, names, strict=True):
        output.type, output.shape = value.type, _with_axis(end.shape, count)
        output.name = name if value.shape is not None else namer.fresh(f"{name}.flat")
        stacks.append(output if value.shape is not None else _shaped(output, results[name], stacked[0], outer))
        stacks[-1].name = name
    outer.append_to(graph)
    known = {value.name: value for value in (*rest, *stacks)}
    graph.outputs[:] = [known[name] for name in order]
    return frozenset(moved)


def _dependent(graph: ir.Graph, seeds: Sequence[ir.Value]) -> list[ir.Node]:
    """The nodes that a seed reaches, in order."""
    reached, found = set(seeds), list[ir.Node]()
    for node in graph:
        if any(value in reached for value in (*node.inputs, *captured_by(node)) if value is not None):
            reached.update(node.outputs)
            found.append(node)
    return found


def _stack(row: ir.Value, count: Directions, name: str) -> ir.Value:
    return ir.Value(name=name, type=row.type, shape=_with_axis(row.shape, count))


def _with_axis(shape: ir.Shape | None, count: Directions) -> ir.Shape | None:
    return None if shape is None else ir.Shape([count, *shape.dims])


def _flat(value: ir.Value, inner: Builder) -> ir.Value:
    """``value`` as a vector: ONNX Runtime 1.32 stacks nothing whose rank the body does not tell."""
    flat = inner.expr(value).reshape([-1])
    flat.value.shape = ir.Shape([None])
    return flat.value


def _shaped(flat: ir.Value, like: ir.Value, stack: ir.Value, outer: Builder) -> ir.Value:
    """Vectors ``flat`` [K, size] in the shape of ``like``, which is known when it runs; K is that of ``stack``."""
    count = op.Shape(outer.expr(stack), start=0, end=1)
    return outer.expr(flat).reshape(concat([count, op.Shape(outer.expr(like))])).value
