"""Rules for fused operators of other domains: written out in standard operators, which are run backwards.

The primal keeps the fused operator. Its inputs are the residuals: what it computes inside is computed again, from
standard operators, so that the derivative runs wherever ONNX does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr
from onnx_cfad.rules.function_body import Body
from onnx_cfad.rules.registry import expanded, vjp

Decomposition = Callable[..., "Expr | tuple[Expr | None, ...]"]
DecompositionFunction = TypeVar("DecompositionFunction", bound=Decomposition)


def decomposed(*op_types: str, domain: str) -> Callable[[DecompositionFunction], DecompositionFunction]:
    """Registers how operators of ``domain`` are written in standard operators, for their derivative.

    The function is called with the inputs (None where an optional one is absent) and, as keywords, the attributes it
    names, where the node has them: their defaults are its own. It gives the outputs in order, None or nothing for
    those that have no derivative.
    """

    def register(function: DecompositionFunction) -> DecompositionFunction:
        rule = functools.partial(_through, function)
        rule.__module__ = function.__module__  # where the table of operators finds it
        vjp(*op_types, domain=domain)(rule)
        for op_type in op_types:
            expanded(op_type, functools.partial(_body, function), domain=domain)
        return function

    return register


def _through(
    function: Decomposition, ct: Expr | tuple[Expr | None, ...] | None, y: Expr | tuple[Expr, ...], *xs: Expr | None
) -> tuple[Callable[[], Expr | None], ...]:
    outputs = y if isinstance(y, tuple) else (y,)
    cts = ct if isinstance(ct, tuple) else (ct,)
    results = functools.cache(lambda: pulled_through(function, cts, outputs, xs))
    return tuple((lambda index=index: results()[index]) for index in range(len(xs)))


def _body(
    function: Decomposition, node: ir.Node, xs: Sequence[Expr | None], builder: Builder
) -> tuple[Sequence[ir.Node], Mapping[int, ir.Value]]:
    body = Body(*_written_out(function, node, xs, builder), xs, builder)
    return body.nodes, body.outputs


def pulled_through(
    function: Decomposition, cts: Sequence[Expr | None], outputs: Sequence[Expr], xs: Sequence[Expr | None]
) -> list[Expr | None]:
    """The cotangents of ``xs`` by the decomposition ``function`` of the node that made ``outputs``."""
    node, builder = outputs[0].value.producer(), outputs[0].builder
    assert node is not None  # the node that the rule is called for
    model, kept = _written_out(function, node, xs, builder)
    reached = [None if ct is None or index not in kept else ct for index, ct in enumerate(cts)]
    return Body(model, kept, xs, builder).pulled_back(reached)


def _written_out(
    function: Decomposition, node: ir.Node, xs: Sequence[Expr | None], outer: Builder
) -> tuple[ir.Model, list[int]]:
    """A model of standard operators that does what ``node`` does, and which outputs of the node it gives."""
    inner = Builder(outer.namer, outer.opset)
    inputs = [
        None if x is None else ir.Value(name=outer.namer.fresh("in"), type=x.type, shape=x.value.shape) for x in xs
    ]
    for value, x in zip(inputs, xs, strict=True):
        if value is not None and x is not None and x.const is not None:
            value.const_value = ir.Tensor(x.const)
    wanted = inspect.signature(function).parameters.values()
    names = [p.name for p in wanted if p.kind is p.KEYWORD_ONLY and p.name in node.attributes]
    found = function(*map(inner.optional, inputs), **{name: _attribute(node, name) for name in names})
    results = found if isinstance(found, tuple) else (found,)
    kept = [index for index, result in enumerate(results) if result is not None]
    made = {output for made in inner.nodes for output in made.outputs}
    given = [result.value for result in results if result is not None]
    values = [value if value in made else inner.fresh_identity(value) for value in given]
    graph = ir.Graph(
        [v for v in inputs if v is not None],
        values,
        nodes=inner.nodes,
        initializers=inner.initializers,
        name=node.op_type,
        opset_imports={"": outer.opset},
    )
    return ir.Model(graph, ir_version=10), kept


def _attribute(node: ir.Node, name: str) -> Any:
    attribute = node.attributes[name]
    return attribute.as_string() if attribute.type == ir.AttributeType.STRING else attribute.value
