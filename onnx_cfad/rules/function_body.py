"""Rules for operators that their specification writes as a function: the body is computed again and run backwards.

The primal keeps the fused operator. Only the operator's inputs are residuals: everything inside is recomputed, as a
checkpointed attention does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnx_cfad.adjoint.cotangents import Cotangents, guarded, sum_to
from onnx_cfad.adjoint.expr import Builder, Expr, Update
from onnx_cfad.errors import UnsupportedOp
from onnx_cfad.graph.specification import made_outputs, specified_body
from onnx_cfad.graph.types import infer_types
from onnx_cfad.rules.registry import NoDerivative, Rule, attributes_of, expanded, rule_for, vjp

_CUT = frozenset(("Softmax",))  # of a row that is masked throughout it makes NaN, which the body then takes out


def vjp_by_body(*op_types: str) -> None:
    """Registers the rule that goes through the function body for operators."""
    for op_type in op_types:
        vjp(op_type)(_through_body)
        expanded(op_type, _body)


def _through_body(
    ct: Expr | tuple[Expr | None, ...] | None, y: Expr | tuple[Expr, ...], *xs: Expr | None
) -> tuple[Callable[[], Expr | None], ...]:
    outputs = y if isinstance(y, tuple) else (y,)
    cts = ct if isinstance(ct, tuple) else (ct,)
    node = outputs[0].value.producer()
    assert node is not None  # the node that the rule is called for

    @functools.cache
    def results() -> list[Expr | None]:
        builder = outputs[0].builder
        return Body(*_inlined(node, xs, builder.opset), xs, builder).pulled_back(cts)

    return tuple((lambda index=index: results()[index]) for index in range(len(xs)))


def _body(
    node: ir.Node, xs: Sequence[Expr | None], builder: Builder
) -> tuple[Sequence[ir.Node], Mapping[int, ir.Value]]:
    body = Body(*_inlined(node, xs, builder.opset), xs, builder)
    return body.nodes, body.outputs


class Body:
    """The nodes of an operator's body, recorded after the nodes of a builder.

    Args:
        model: Computes what the operator does, from its present inputs; consumed.
        kept: The outputs of the operator that the model gives, by number.
        xs: The operator's inputs.
        builder: Takes the nodes.

    Raises:
        UnsupportedOp: The body has control flow.
    """

    def __init__(self, model: ir.Model, kept: Sequence[int], xs: Sequence[Expr | None], builder: Builder) -> None:
        self.xs = xs
        self.builder = builder
        self.nodes: list[ir.Node] = []
        self.outputs = self._record(model, kept)

    def _record(self, model: ir.Model, kept: Sequence[int]) -> dict[int, ir.Value]:
        """Records the nodes and gives the outputs that the body makes, by number."""
        infer_types(model)
        graph = model.graph
        if any(a.type == ir.AttributeType.GRAPH for n in graph for a in n.attributes.values()):
            raise UnsupportedOp("", f"the body of {graph.name} has control flow", "Expand the operator in the model.")
        for value in list(graph.initializers.values()):
            assert value.const_value is not None
            constant = self.builder.constant(value.const_value.numpy(), value.const_value.dtype)
            ir.convenience.replace_all_uses_with(value, constant.value)
        outputs = dict(zip(kept, graph.outputs, strict=True))
        graph.outputs.clear()  # they are plain values from now on, which nobody may need
        for value, x in zip(graph.inputs, [x for x in self.xs if x is not None], strict=True):
            ir.convenience.replace_all_uses_with(value, x.value)
        for inner in list(graph):
            graph.remove(inner)
            inner.name = self.builder.namer.fresh(f"grad/{inner.op_type}")
            for output in inner.outputs:
                output.name = self.builder.namer.fresh(f"grad/{output.name or inner.op_type}")
            self.nodes.append(inner)
        self.builder.nodes.extend(self.nodes)
        return outputs

    def pulled_back(self, cts: Sequence[Expr | None]) -> list[Expr | None]:
        """The cotangents of the inputs from those of the outputs."""
        cotangents = Cotangents(self.builder)
        for index, ct in enumerate(cts):
            if ct is not None:
                cotangents.add(self.outputs[index], ct)
        active = self._active()
        for node in reversed(self.nodes):
            if any(output in cotangents for output in node.outputs):
                self._apply(node, cotangents, active)
        return [None if x is None or x.value not in cotangents else cotangents.take(x.value) for x in self.xs]

    def _active(self) -> set[ir.Value]:
        """The values that a derivative by a floating-point input passes through."""
        active = {x.value for x in self.xs if x is not None and x.dtype.is_floating_point()}
        for node in self.nodes:
            if active.isdisjoint(node.inputs) or isinstance(rule_for(node), NoDerivative):
                continue
            active.update(v for v in node.outputs if v.dtype is not None and v.dtype.is_floating_point())
        return active

    def _apply(self, node: ir.Node, cotangents: Cotangents, active: set[ir.Value]) -> None:
        cts = tuple(cotangents.take(output) for output in node.outputs)
        rule = rule_for(node)
        if active.isdisjoint(node.inputs) or isinstance(rule, NoDerivative):
            return
        if not isinstance(rule, Rule):
            raise UnsupportedOp("", f"no VJP rule for {node.op_type}, which the operator's body uses", "Register one.")
        single = len(node.outputs) == 1
        ys = tuple(map(self.builder.expr, node.outputs))
        xs = [self.builder.optional(value) for value in node.inputs]
        attributes = attributes_of(node, rule.attributes, self.builder.opset)
        found = rule.function(cts[0] if single else cts, ys[0] if single else ys, *xs, **attributes)
        for x, given in zip(xs, found if isinstance(found, (tuple, list)) else (found,), strict=False):
            if x is None or x.value not in active:
                continue
            result = given() if callable(given) else given
            if isinstance(result, Expr):
                if node.op_type in _CUT and cts[0] is not None:
                    result = guarded(cts[0], result)
                result = sum_to(result, node.outputs[0], x) if rule.broadcasts else result
            if isinstance(result, (Expr, Update)):
                cotangents.add(x.value, result)


def _inlined(node: ir.Node, xs: Sequence[Expr | None], opset: int) -> tuple[ir.Model, list[int]]:
    """A model that is the body of ``node`` with inputs typed as ``xs``, and which outputs of the node it has."""
    proto = specified_body(node, [None if x is None else x.value for x in xs], opset)
    kept = made_outputs(proto)
    names = [proto.output[index] for index in kept]
    del proto.output[:]
    proto.output.extend(names)
    function = ir.serde.deserialize_function(proto)
    inputs = [
        None if x is None else ir.Value(name=f"in{index}", type=x.type, shape=x.value.shape)
        for index, x in enumerate(xs)
    ]
    call = ir.Node(function.domain, function.name, inputs, list(node.attributes.values()), num_outputs=len(kept))
    for output, name in zip(call.outputs, names, strict=True):
        output.name = name
    graph = ir.Graph([v for v in inputs if v is not None], list(call.outputs), nodes=[call], name=node.op_type)
    graph.opset_imports[""] = opset
    model = ir.Model(graph, ir_version=10, functions=[function])
    InlinePass()(model)
    return model, kept


vjp_by_body("Attention", "CausalConvWithState", "RotaryEmbedding")
