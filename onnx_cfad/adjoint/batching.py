"""What an iteration computes from its slices alone, computed for a whole segment at once.

A product ``MatMul(x_t, U)`` of a slice with a captured matrix does not wait for the carry: over a segment it is one
product. The reverse pass then has one product for the gradients of U and x too. Used inside checkpointed loops, where
results may round differently from the model's own.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, op
from onnx_cfad.graph.operator_types import keep_shape
from onnx_cfad.graph.regions import LoopSite, loop_site

_UNARY = frozenset(
    ("Neg", "Abs", "Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Relu", "Sin", "Cos", "Softplus", "Erf", "Cast")
)
_BINARY = frozenset(("Add", "Sub", "Mul", "Div"))


@dataclasses.dataclass(frozen=True)
class _Rows:
    """A stacked tensor [S, ...] whose rows an iteration reads, and how."""

    whole: ir.Value
    backwards: bool


def batch_slices(node: ir.Node, builder: Builder) -> ir.Node:
    """Moves what depends on slices and captured values alone in front of the Scan or Loop ``node``, batched.

    Slices are Scan inputs along axis 0, and reads ``Gather(x, i)`` of an outer tensor in a Loop.

    Args:
        node: The loop over one segment.
        builder: Gives names and the opset; nothing is recorded with it.

    Returns:
        The loop, a new node where it is a Scan with new inputs.
    """
    return _Batching(loop_site(node), builder).run()


class _Batching:
    def __init__(self, site: LoopSite, builder: Builder) -> None:
        self.site = site
        self.before = builder.child()
        self.rows: dict[ir.Value, _Rows] = {
            s.slice: _Rows(s.source, s.reverse) for s in site.inputs if s.axis == 0 and s.slice.shape is not None
        }
        self.added: list[tuple[ir.Value, _Rows]] = []

    def run(self) -> ir.Node:
        site, graph = self.site, self.site.node.graph
        assert graph is not None
        reads = set(site.rows())
        for node in list(site.body):
            if node in reads:
                source = node.inputs[0]
                assert source is not None
                self.rows[node.outputs[0]] = _Rows(source, backwards=False)
            elif self._can_batch(node):
                self._batch(node)
            else:
                self._join_addends(node)
        graph.insert_before(site.node, self.before.nodes)
        for initializer in self.before.initializers:
            graph.initializers.add(initializer)
        return self._with_inputs() if site.is_scan and self.added else site.node

    def _can_batch(self, node: ir.Node) -> bool:
        """Whether the node gives, on whole stacks, the stack of what it gives on their rows."""
        inputs = [v for v in node.inputs if v is not None]
        stacked = [v for v in inputs if v in self.rows]
        output = node.outputs[0]
        if not stacked or output.is_graph_output() or len(inputs) != len(node.inputs) or output.shape is None:
            return False
        if any(v not in self.rows and v.graph is self.site.body for v in inputs) or any(
            v.shape is None for v in inputs
        ):
            return False
        if len({self.rows[v].backwards for v in stacked}) > 1:
            return False
        ranks = [v.shape.rank() for v in inputs if v.shape is not None]
        if node.op_type == "MatMul":
            return inputs[0] in self.rows and inputs[1] not in self.rows and ranks[1] == 2 and ranks[0] >= 2
        rank = output.shape.rank()
        whole = all(v.shape is not None and v.shape.rank() == rank for v in stacked)
        return node.op_type in _UNARY or (node.op_type in _BINARY and whole and all(r <= rank for r in ranks))

    def _join_addends(self, node: ir.Node) -> None:
        """Makes ``(a + row) + c`` to ``a + (row + c)``, so that the second addition is one for all rows."""
        inner = node.inputs[0].producer() if node.op_type == "Add" and node.inputs[0] is not None else None
        addend, shape = node.inputs[1] if inner is not None else None, node.outputs[0].shape
        if inner is None or addend is None or shape is None or inner.op_type != "Add" or inner.graph is not node.graph:
            return
        partial = inner.outputs[0]
        row = next((k for k, v in enumerate(inner.inputs) if v in self.rows), None)
        steady = addend.graph is not self.site.body and addend.shape is not None and addend.shape.rank() <= shape.rank()
        if row is None or not (steady or addend in self.rows) or len(partial.uses()) != 1 or partial.is_graph_output():
            return
        old = inner.inputs[row]
        if old is None or old.shape is None or partial.shape != shape or old.shape != shape:
            return
        joined = Builder(self.before.namer, self.before.opset)
        total = op.Add(joined.expr(old), joined.expr(addend))
        total.value.shape = shape
        self.site.body.insert_before(inner, joined.nodes)
        inner.replace_input_with(row, total.value)
        ir.convenience.replace_all_uses_with(node.outputs[0], partial, replace_graph_outputs=True)
        self.site.body.remove(node, safe=True)
        made = joined.nodes[0]
        if self._can_batch(made):
            self._batch(made)

    def _batch(self, node: ir.Node) -> None:
        stacked = next(self.rows[v] for v in node.inputs if v in self.rows)
        operands = [self.before.expr(self.rows[v].whole if v in self.rows else v) for v in node.inputs if v is not None]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        old = node.outputs[0]
        assert old.type is not None
        (whole,) = self.before.call(node.op_type, operands, attributes, types=[old.type])
        length = stacked.whole.shape[0] if stacked.whole.shape is not None else None
        keep_shape(whole.value, ir.Shape([length, *(old.shape.dims if old.shape is not None else ())]))
        rows = _Rows(whole.value, stacked.backwards)
        entry = self._entry(node, rows)
        ir.convenience.replace_all_uses_with(old, entry)
        self.site.body.remove(node, safe=True)
        self.rows[entry] = rows

    def _entry(self, node: ir.Node, rows: _Rows) -> ir.Value:
        """What stands in the body for a row of the batched result."""
        old = node.outputs[0]
        if self.site.is_scan:
            entry = ir.Value(name=self.before.namer.fresh(f"{old.name}.row"), type=old.type, shape=old.shape)
            self.site.body.inputs.append(entry)
            self.added.append((entry, rows))
            return entry
        assert self.site.index is not None
        read = Builder(self.before.namer, self.before.opset)
        row = op.Gather(read.expr(rows.whole), read.expr(self.site.index), axis=0)
        row.value.shape = old.shape
        self.site.body.insert_before(node, read.nodes)
        return row.value

    def _with_inputs(self) -> ir.Node:
        """The Scan with the batched results as further inputs."""
        site, node = self.site, self.site.node
        more = len(self.added)
        attributes = dict(node.attributes)
        attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(site.inputs) + more)
        attributes["scan_input_axes"] = ir.AttrInt64s("scan_input_axes", [*(s.axis for s in site.inputs), *[0] * more])
        back = [*(int(s.reverse) for s in site.inputs), *(int(rows.backwards) for _, rows in self.added)]
        attributes["scan_input_directions"] = ir.AttrInt64s("scan_input_directions", back)
        new = ir.Node(
            "",
            "Scan",
            [*node.inputs, *(rows.whole for _, rows in self.added)],
            list(attributes.values()),
            num_outputs=len(node.outputs),
            name=node.name,
        )
        graph = node.graph
        assert graph is not None
        ir.convenience.replace_nodes_and_values(graph, node, [node], [new], node.outputs, new.outputs)
        return new
