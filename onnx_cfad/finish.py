"""The last steps of a transformation: dead values and initializers out, shapes declared as far as they are certain."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from onnx_cfad.dimension_names import author_dimension_names
from onnx_cfad.graph.element_types import INTEGER
from onnx_cfad.graph.regions import is_branch, is_loop
from onnx_cfad.graph.walk import graphs_of, scopes_of, subgraphs_of
from onnx_cfad.names import InterfaceNames
from onnx_cfad.rewriters.hide_ranks import HideRanksPass
from onnx_cfad.rewriters.prune import PruneDeadValuesPass
from onnx_cfad.rewriters.release import release_readers_outside
from onnx_cfad.rewriters.turn_vector_products import TurnVectorProductsPass

_NOTE = "pkg.onnx_shape_inference.sym_data"  # what onnx-shape-inference keeps on the values it knows


@dataclasses.dataclass(frozen=True)
class Declared:
    """What the author of a model wrote.

    Attributes:
        shapes: Those of inputs and outputs, by name.
        spare: The initializers and constants that nothing reads.
    """

    shapes: Mapping[str, ir.Shape | None]
    spare: frozenset[str]


def declared_in(model: ir.Model) -> Declared:
    """What the author wrote."""
    values = (*model.graph.inputs, *model.graph.outputs)
    shapes = {v.name or "": None if v.shape is None else v.shape.copy() for v in values}
    return Declared(
        shapes,
        frozenset(value.name or "" for value in (*_unread(graphs_of(model.graph)), *_unread_constants(model.graph))),
    )


def _unread(graphs: Iterable[ir.Graph]) -> list[ir.Value]:
    held = (value for graph in graphs for value in graph.initializers.data.values())
    return [v for v in held if not (v.uses() or v.is_graph_output() or v.is_graph_input())]


def _unread_constants(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    outputs = (node.outputs[0] for node in nodes if node.op_type == "Constant")
    return [output for output in outputs if not (output.uses() or output.is_graph_output())]


def _drop_unread(graphs: Iterable[ir.Graph], kept: Collection[str]) -> None:
    """Removes the initializers that nothing reads any more: ONNX Runtime names each in every session."""
    for value in _unread(graphs):
        if value.name not in kept and value.graph is not None:
            del value.graph.initializers[value.name or ""]


def finish(
    model: ir.Model,
    primal: frozenset[ir.Node],
    declared: Declared,
    names: InterfaceNames,
    directions: int | str | None = None,
) -> tuple[str, ...]:
    """Prunes ``model`` and settles its shapes; the ``primal`` nodes of the main graph stay.

    An initializer or a constant that is read no more goes: to change it would change nothing, and ONNX Runtime warns of
    it in every session. One that was spare already stays, and so does one that is differentiated by.

    Seeds, tangents and what they give have a leading axis of ``directions`` unless that is None.

    Where the author declared a shape that cannot be, the one that the graph proves takes its place.

    Returns:
        A warning for each such shape.
    """
    scopes = scopes_of(model.graph)
    operators = {node.op_type for _, nodes in scopes for node in nodes}
    if "MatMul" in operators and TurnVectorProductsPass()(model).modified:
        scopes = scopes_of(model.graph)
    release_readers_outside(scopes)
    asked = {*declared.spare, *names.gradients, *names.tangents}
    spent = [v.producer() for v in _unread_constants(primal) if v.name not in asked]
    PruneDeadValuesPass(primal.difference(spent))(model)
    if "Loop" in operators:
        HideRanksPass()(model)
    scopes = scopes_of(model.graph)
    _drop_unread((graph for graph, _ in scopes), asked)
    shapes = declared.shapes
    author = _symbols_of(shapes)
    doubtful = _inside_branches(model.graph, dict(scopes))
    for graph, nodes in scopes:
        for value in (*graph.inputs, *graph.outputs, *(o for node in nodes for o in node.outputs)):
            found = value.shape
            if found is not None:
                value.shape = None if value in doubtful or _misleads(value) else _settled(found, author)
            value.metadata_props.pop(_NOTE, None)
    parts = (names.seeds, names.gradients, names.tangents, names.pushed)
    pairs = [pair for part in parts for pair in part.items()]
    interface = {**{g: _stacked(shapes[name], directions) for name, g in pairs if name in shapes}, **shapes}
    owners = {given: name for name, given in pairs}
    of_outputs = {*names.seeds.values(), *names.pushed.values()}
    wrong: dict[str, str] = {}
    for value in (*model.graph.inputs, *model.graph.outputs):
        name = value.name or ""
        shape = interface.get(name)
        if shape is None:
            continue
        if not _contradicts(shape, value.shape):
            value.shape = _proven(shape, value.shape) if name in of_outputs else shape
            continue
        own = owners.get(name, name)
        one, other = (_written(s, 0 if own == name or directions is None else 1) for s in (shape, value.shape))
        first = f"'{own}' is declared with shape {one}, but the model gives it {other}"
        wrong[own] = f"{wrong.get(own, first)}, which '{name}' has too" if own != name else wrong.get(own, first)
    author_dimension_names(model)
    return tuple(wrong.values())


def _written(shape: ir.Shape | None, start: int) -> str:
    """The dimensions from ``start`` on."""
    dims = () if shape is None else shape.dims[start:]
    return f"[{', '.join(str(d) if isinstance(d, int) else d.value or '?' for d in dims)}]"


def _stacked(shape: ir.Shape | None, directions: int | str | None) -> ir.Shape | None:
    return shape if shape is None or directions is None else ir.Shape([directions, *shape.dims])


def _inside_branches(graph: ir.Graph, scopes: Mapping[ir.Graph, list[ir.Node]]) -> set[ir.Value]:
    """What is made inside branches, except the outputs of loop bodies, whose shape an empty loop needs.

    Exporters write an If over the rank of a value, whose dead branch removes an axis that is not there. A reader that
    knows the rank from outside would find a contradiction in what is declared there.
    """
    made: set[ir.Value] = set()
    returned: set[ir.Value] = set()
    _add_inside_branches(graph, scopes, made, returned)
    return made - returned


def _add_inside_branches(
    graph: ir.Graph, scopes: Mapping[ir.Graph, list[ir.Node]], made: set[ir.Value], returned: set[ir.Value]
) -> list[ir.Value] | None:
    """Adds what the branches below ``graph`` make, and what loop bodies return; gives what ``graph`` makes itself.

    None for a graph with a loop in it, at any depth: what a branch with a loop makes is not added.
    """
    found: list[ir.Value] = []
    loops = False
    for node in scopes[graph]:
        found += node.outputs
        for inner in subgraphs_of(node):
            own = _add_inside_branches(inner, scopes, made, returned)
            if own is None:
                loops = True
            elif is_branch(node):
                made.update(own)
            else:
                found += own
        if is_loop(node):
            loops = True
            returned.update(output for body in subgraphs_of(node) for output in body.outputs)
    return None if loops else found


def _misleads(value: ir.Value) -> bool:
    """Whether a reader would conclude too much from the shape: that of an integer made inside a graph.

    The data propagation of onnx 1.23 takes a vector of known length for a shape and adds a column and a row as if both
    were shapes.
    """
    return value.dtype in INTEGER and value.producer() is not None and not value.is_graph_output()


def _proven(declared: ir.Shape, found: ir.Shape | None) -> ir.Shape:
    """``declared`` with the numbers that the graph proves for symbols: a seed of any other size would not fit."""
    if found is None:
        return declared
    return ir.Shape([b if isinstance(b, int) else a for a, b in zip(declared.dims, found.dims, strict=True)])


def _contradicts(declared: ir.Shape, found: ir.Shape | None) -> bool:
    """Whether what the author wrote cannot be. Runtimes only warn of it, but no seed of that shape could be given."""
    if found is None or declared.rank() != found.rank():
        return found is not None
    pairs = zip(declared.dims, found.dims, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def _symbols_of(shapes: Mapping[str, ir.Shape | None]) -> set[str]:
    return {str(d.value) for s in shapes.values() if s is not None for d in s.dims if not isinstance(d, int)}


def _settled(shape: ir.Shape, author: set[str]) -> ir.Shape:
    """``shape`` with numbers and the author's symbols; what inference invented is unknown to a reader."""
    if shape.is_static():
        return shape
    return ir.Shape([d if isinstance(d, int) or d.value in author else None for d in shape.dims])
