"""Walks over a graph: all that is below it, in order, and what tells that it was changed."""

from __future__ import annotations

import onnx_ir as ir

from onnx_cfad.graph.walk import graphs_of, nodes_of, structure, subgraphs_of
from tests.graph.reading import parsed

NEST = """(float[3] x, bool p, bool q) => (float[3] y) {
    a = Sin (x)
    y = If (p) <
        then_branch = outer_then () => (float[3] b) {
            b = If (q) <
                then_branch = inner_then () => (float[3] c) { c = Cos (a) },
                else_branch = inner_else () => (float[3] d) { d = Neg (a) }
            >
        },
        else_branch = outer_else () => (float[3] e) { e = Tanh (a) }
    >
}"""


def test_subgraphs_of_a_plain_node_are_none() -> None:
    assert subgraphs_of(ir.Node("", "Sin", [])) == []


def test_graphs_that_one_attribute_lists_are_subgraphs() -> None:
    graphs = [ir.Graph([], [], nodes=[ir.Node("", "Sin", [None])], name=name) for name in ("one", "two")]
    holder = ir.Node("custom", "Choose", [], [ir.Attr("graphs", ir.AttributeType.GRAPHS, graphs)])
    assert subgraphs_of(holder) == graphs
    main = ir.Graph([], [], nodes=[holder], opset_imports={"": 21, "custom": 1})
    assert [node.op_type for node in nodes_of(main)] == ["Choose", "Sin", "Sin"]
    assert graphs_of(main) == [main, *graphs]


def test_a_reference_to_an_attribute_of_a_function_holds_no_graph() -> None:
    node = ir.Node("", "If", [None], [ir.RefAttr("then_branch", "body", ir.AttributeType.GRAPH)])
    assert subgraphs_of(node) == []
    assert nodes_of(ir.Graph([], [], nodes=[node])) == [node]


def test_everything_is_found_as_onnx_ir_finds_it() -> None:
    graph = parsed(NEST).graph
    assert nodes_of(graph) == list(graph.all_nodes())
    assert graphs_of(graph) == [graph, *graph.subgraphs()]
    assert len(nodes_of(graph)) == 6
    assert len(graphs_of(graph)) == 5


def test_a_list_of_nodes_outlives_changes_of_the_graph() -> None:
    graph = parsed(NEST).graph
    for node in nodes_of(graph):
        if node.op_type == "If":
            owner = node.graph
            assert owner is not None
            owner.insert_before(node, ir.Node("", "Abs", [graph.inputs[0]]))
    assert len(nodes_of(graph)) == 8


def test_structure_tells_whether_something_was_rewired() -> None:
    model = parsed(NEST)
    before = structure(model.graph)
    assert structure(model.graph) == before
    cos = next(node for node in nodes_of(model.graph) if node.op_type == "Cos")
    cos.replace_input_with(0, model.graph.inputs[0])
    assert structure(model.graph) != before


def test_structure_tells_of_a_new_initializer() -> None:
    model = parsed(NEST)
    before = structure(model.graph)
    tensor = ir.tensor([1.0], name="w")
    model.graph.initializers.add(ir.Value(name="w", const_value=tensor))
    assert structure(model.graph) != before
