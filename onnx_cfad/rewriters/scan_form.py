"""A Loop with a fixed trip count as a Scan, whose stacked outputs cost their bytes and no more.

A stacked Loop output costs twice its bytes and about 600 bytes an iteration in ONNX Runtime 1.32; a Scan writes into
one buffer. The operators of the body and their nesting stay, so results are bit-equal.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_cfad.graph.regions import LoopSite
from onnx_cfad.names import Namer
from onnx_cfad.rewriters.recorder import Recorder
from onnx_cfad.rewriters.separate_outputs import separate_outputs

_FEW = 256  # iteration numbers that need not be computed


def loop_to_scan(site: LoopSite, trips: int, namer: Namer, *, slice_rows: bool = False) -> ir.Node:
    """Replaces the Loop of ``site`` by a Scan of ``trips`` (at least 1) iterations and gives the Scan.

    The caller has made sure that no condition ends the loop early and that every carry is a tensor that keeps its
    shape. The iteration number becomes a slice of a Range; the condition is true.

    Args:
        site: The Loop.
        trips: Its trip count.
        namer: For new names.
        slice_rows: A read ``Gather(x, i)`` of an outer tensor becomes a slice of x.
    """
    node, body = site.node, site.body
    assert site.index is not None
    assert site.predicate is not None
    rows = _rows(site, trips) if slice_rows else []
    first_rows: dict[tuple[ir.Value, int], ir.Value] = {}
    _replace_predicate(site, namer)
    body.outputs.pop(0)
    index = site.index
    body.inputs.pop(0)
    body.inputs.pop(0)
    sources = [_first_rows(_slice_row(body, row, namer), row, trips, first_rows, site, namer) for row in rows]
    axes = [row.attributes.get_int("axis", 0) for row in rows] + [0]
    body.inputs.append(index)
    _copy_stacked(body, len(site.carries), namer)
    separate_outputs(body, namer)
    steps = _range_before(node, trips, namer)
    new = ir.Node(
        "",
        "Scan",
        [*node.inputs[2:], *sources, steps],
        [
            ir.AttrGraph("body", body),
            ir.AttrInt64("num_scan_inputs", len(axes)),
            *([ir.AttrInt64s("scan_input_axes", axes)] if any(axes) else []),
        ],
        num_outputs=len(node.outputs),
        name=node.name,
        doc_string=node.doc_string,
        metadata_props=node.metadata_props,
    )
    graph = node.graph
    assert graph is not None
    ir.convenience.replace_nodes_and_values(graph, node, [node], [new], node.outputs, new.outputs)
    return new


def is_read_elsewhere(element: ir.Value) -> bool:
    """Whether a stacked value, or what it is a copy of, has another reader in the body.

    Only then does ONNX Runtime keep a copy in front of a Scan output; without one the operator writes into the
    unaligned slice of the whole, where vectorised functions round differently.
    """
    maker = element.producer()
    source = maker.inputs[0] if maker is not None and maker.op_type == "Identity" else element
    graph = element.graph
    if source is None or graph is None:
        return False
    returned = sum(output is source for output in graph.outputs)
    return len(source.uses()) + returned >= 2


def _copy_stacked(body: ir.Graph, carries: int, namer: Namer) -> None:
    """Copies what is stacked, unless it is a copy already."""
    for position in range(carries, len(body.outputs)):
        value = body.outputs[position]
        maker = value.producer()
        if maker is not None and maker.op_type == "Identity":
            continue
        copy = ir.Node("", "Identity", [value], name=namer.fresh("grad/Identity"))
        copy.outputs[0].name, copy.outputs[0].type = namer.fresh(f"{value.name}.copy"), value.type
        copy.outputs[0].shape = value.shape
        body.append(copy)
        body.outputs[position] = copy.outputs[0]


def _rows(site: LoopSite, trips: int) -> list[ir.Node]:
    """The Gather nodes that read row i of an outer tensor in iteration i, unless it has fewer than ``trips`` rows."""
    found: list[ir.Node] = []
    for node in site.body:
        source = node.inputs[0] if node.op_type == "Gather" else None
        if source is None or source.shape is None or node.inputs[1] is not site.index or source.graph is site.body:
            continue
        axis = node.attributes.get_int("axis", 0)
        sized = all(isinstance(d, int) and d > 0 for d in source.shape.dims)  # else a Scan may crash off the first axis
        rows = source.shape[axis]
        if not (isinstance(rows, int) and rows < trips) and (axis == 0 or sized):
            found.append(node)
    return found


def _first_rows(
    source: ir.Value, row: ir.Node, trips: int, made: dict[tuple[ir.Value, int], ir.Value], site: LoopSite, namer: Namer
) -> ir.Value:
    """As many rows of ``source`` as there are iterations."""
    assert source.shape is not None
    axis = row.attributes.get_int("axis", 0) % source.shape.rank()
    if source.shape[axis] == trips:
        return source
    if (source, axis) not in made:
        op, graph = Recorder(namer, "rows"), site.node.graph
        assert graph is not None
        part = made[source, axis] = op.Slice(source, op.ints(0), op.ints(trips), op.ints(axis))
        part.type = source.type
        part.shape = ir.Shape([*source.shape.dims[:axis], trips, *source.shape.dims[axis + 1 :]])
        graph.insert_before(site.node, op.nodes)
    return made[source, axis]


def _slice_row(body: ir.Graph, row: ir.Node, namer: Namer) -> ir.Value:
    """Makes what ``row`` reads an input of the body; gives the tensor it is a slice of."""
    source, old = row.inputs[0], row.outputs[0]
    assert source is not None
    entry = ir.Value(name=namer.fresh(f"{old.name}.slice"), type=old.type, shape=old.shape)
    ir.convenience.replace_all_uses_with(old, entry, replace_graph_outputs=True)
    body.remove(row, safe=True)
    body.inputs.append(entry)
    return source


def _replace_predicate(site: LoopSite, namer: Namer) -> None:
    """Readers of the condition see a constant: an iteration that runs has it true."""
    assert site.predicate is not None
    if not site.predicate.uses() and site.predicate not in site.body.outputs:
        return
    tensor = ir.Tensor(np.asarray(True))
    true = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], name=namer.fresh("grad/true"))
    value = true.outputs[0]
    value.name, value.type, value.shape = namer.fresh("true"), ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    first = next(iter(site.body), None)
    if first is None:
        site.body.append(true)
    else:
        site.body.insert_before(first, true)
    ir.convenience.replace_all_uses_with(site.predicate, value, replace_graph_outputs=True)


def _range_before(node: ir.Node, trips: int, namer: Namer) -> ir.Value:
    """The iteration numbers 0 .. trips - 1, made right before ``node``: few are declared, many computed."""
    graph = node.graph
    assert graph is not None

    def put(op_type: str, inputs: list[ir.Value], tensor: np.ndarray | None, hint: str) -> ir.Value:
        attributes = [] if tensor is None else [ir.AttrTensor("value", ir.Tensor(tensor))]
        made = ir.Node("", op_type, inputs, attributes, name=namer.fresh(f"grad/{hint}"))
        value = made.outputs[0]
        value.name, value.type = namer.fresh(hint), ir.TensorType(ir.DataType.INT64)
        value.shape = ir.Shape([trips] if tensor is None else tensor.shape)
        graph.insert_before(node, made)
        return value

    if trips <= _FEW:
        return put("Constant", [], np.arange(trips, dtype=np.int64), "steps")
    bounds = [put("Constant", [], np.asarray(n, dtype=np.int64), "bound") for n in (0, trips, 1)]
    return put("Range", bounds, None, "steps")
