"""The operators with subgraphs, whose bodies and branches are given as functions of expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr


def scan(
    body: Callable[[Builder, list[Expr], list[Expr]], tuple[Sequence[Expr], Sequence[Expr]]],
    carries: Sequence[Expr],
    inputs: Sequence[Expr],
    *,
    reverse: bool = False,
    name: str = "scan_body",
) -> tuple[list[Expr], list[Expr]]:
    """Runs ``body`` over axis 0 of ``inputs`` with an ONNX Scan (at least one step).

    Args:
        body: From the body's builder, the carries and the slices to the new carries and the per-step results.
            Inside, wrap outer values with ``builder.expr(outer.value)`` so that nodes land in the body.
        carries: Initial carries.
        inputs: Tensors [N, ...] read slice by slice.
        reverse: Read from the last slice to the first; results are stacked in the inputs' order.
        name: Name of the body graph.

    Returns:
        The final carries, and the stacked results [N, ...].
    """
    outer = carries[0].builder if carries else inputs[0].builder
    inner = outer.child()
    states = [inner.input(f"{name}.carry", c.type, c.value.shape) for c in carries]
    slices = [inner.input(f"{name}.slice", x.type, _without_first(x.value.shape)) for x in inputs]
    new_carries, results = body(inner, states, slices)
    graph = inner.graph([e.value for e in (*states, *slices)], [*new_carries, *results], name)
    directions = [1] if reverse else [0]
    outs = outer.call(
        "Scan",
        [*carries, *inputs],
        {
            "body": graph,
            "num_scan_inputs": len(inputs),
            "scan_input_directions": directions * len(inputs),
            "scan_output_directions": directions * len(results) or None,
        },
        types=[*(c.type for c in carries), *(r.type for r in results)],
        outputs=len(carries) + len(results),
    )
    for out, carry in zip(outs, carries, strict=False):
        out.value.shape = carry.value.shape
    length = _first_dim(inputs[0].value.shape)
    for out, result in zip(outs[len(carries) :], results, strict=True):
        if result.has_rank:
            out.value.shape = ir.Shape([length, *_dims(result.value.shape)])
    return list(outs[: len(carries)]), list(outs[len(carries) :])


def cond(
    predicate: Expr,
    then: Callable[[Builder], Sequence[Expr]],
    orelse: Callable[[Builder], Sequence[Expr]],
    *,
    name: str = "branch",
) -> list[Expr]:
    """An ONNX If: ``then`` and ``orelse`` build their branch and give its results (equal in number and type)."""
    graphs: list[ir.Graph] = []
    results: Sequence[Expr] = ()
    for side, build in (("then", then), ("else", orelse)):
        inner = predicate.builder.child()
        results = build(inner)
        graphs.append(inner.graph([], results, f"{name}.{side}"))
    outs = predicate.builder.call(
        "If",
        [predicate],
        {"then_branch": graphs[0], "else_branch": graphs[1]},
        types=[r.type for r in results],
        outputs=len(results),
    )
    return list(outs)


def loop(
    trips: Expr,
    body: Callable[[Builder, Expr, list[Expr]], tuple[Sequence[Expr], Sequence[Expr]]],
    carries: Sequence[Expr],
    *,
    name: str = "loop_body",
) -> tuple[list[Expr], list[Expr]]:
    """An ONNX Loop that runs ``trips`` times (int64 scalar, zero allowed); carries may be sequences or change shape.

    ``body`` maps builder, iteration number and carries to the new carries and the per-step results (stacked on axis 0).
    """
    outer = trips.builder
    inner = outer.child()
    index = inner.input(f"{name}.index", ir.TensorType(ir.DataType.INT64), ir.Shape([]))
    going = inner.input(f"{name}.cond", ir.TensorType(ir.DataType.BOOL), ir.Shape([]))
    states = [inner.input(f"{name}.carry", c.type, None) for c in carries]
    for state, carry in zip(states, carries, strict=True):
        if carry.has_rank:
            state.value.shape = ir.Shape([None] * carry.rank)
    new_carries, results = body(inner, index, states)
    graph = inner.graph(
        [e.value for e in (index, going, *states)],
        [inner.expr(inner.fresh_identity(going.value)), *new_carries, *results],
        name,
    )
    outs = outer.call(
        "Loop",
        [trips, outer.constant(True), *carries],
        {"body": graph},
        types=[*(c.type for c in carries), *(r.type for r in results)],
        outputs=len(carries) + len(results),
    )
    return list(outs[: len(carries)]), list(outs[len(carries) :])


def _dims(shape: ir.Shape | None) -> Iterator[int | ir.SymbolicDim]:
    yield from shape.dims if shape is not None else ()


def _without_first(shape: ir.Shape | None) -> ir.Shape | None:
    return None if shape is None else ir.Shape(list(shape.dims[1:]))


def _first_dim(shape: ir.Shape | None) -> int | ir.SymbolicDim:
    return ir.SymbolicDim(None) if shape is None else shape.dims[0]
