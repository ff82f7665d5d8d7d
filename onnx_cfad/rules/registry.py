"""The table of VJP rules, and what a rule is: cotangents of the outputs to cotangents of the inputs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import onnx.defs
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Expr, Update
from onnx_cfad.graph.straight_through import is_straight_through

Cotangent = Expr | Update | Callable[[], Any] | None
RuleFunction = TypeVar("RuleFunction", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Rule:
    """How one operator is run backwards.

    Attributes:
        function: Called as ``function(ct, y, *inputs, **attributes)``; one result for each input.
        broadcasts: The operator broadcasts its inputs: the sweep sums each result back to its input's shape.
        elementwise: Output element k depends on input element k only (after broadcasting), so that an exact zero
            in the cotangent may cut off a NaN or Inf.
        attributes: The ONNX attributes that the rule reads.
    """

    function: Callable[..., Any]
    broadcasts: bool
    elementwise: bool
    attributes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class NoDerivative:
    """Why no derivative passes through an operator."""

    reason: str


RUNTIME_OPERATORS = frozenset(("SimplifiedLayerNormalization",))
"""What ONNX Runtime adds to the default domain."""

_RULES: dict[tuple[str, str], Rule] = {}
_NONDIFFERENTIABLE: dict[tuple[str, str], NoDerivative] = {}
_STRAIGHT_THROUGH: dict[tuple[str, str], Rule] = {}


def vjp(
    *op_types: str, domain: str = "", broadcasts: bool = False, elementwise: bool = False
) -> Callable[[RuleFunction], RuleFunction]:
    """Registers a VJP rule for operators.

    The rule is called with the cotangent of the output (a tuple with None entries where there are several), the
    output (a tuple likewise), the inputs in ONNX order (None where an optional one is absent) and, as keywords, the
    attributes it names. It returns one result for each input: an expression, None (no derivative), an ``Update``, or
    a function without arguments that gives one of these and is called only when that cotangent is wanted.

    Raises:
        TypeError: The rule names an attribute that the operator's schema lacks.
        ValueError: The operator has an entry already.
    """

    def register(function: RuleFunction) -> RuleFunction:
        parameters = inspect.signature(function).parameters.values()
        attributes = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        for op_type in op_types:
            _refuse_second(domain, op_type)
            if domain == "" and op_type not in RUNTIME_OPERATORS:
                known = onnx.defs.get_schema(op_type, domain).attributes
                unknown = [name for name in attributes if name not in known]
                if unknown:
                    raise TypeError(f"the VJP rule for {op_type} names {unknown}, which {op_type} has no attribute of")
            _RULES[domain, op_type] = Rule(function, broadcasts, elementwise or broadcasts, attributes)
        return function

    return register


def straight_through(
    *op_types: str, domain: str = "", broadcasts: bool = False
) -> Callable[[RuleFunction], RuleFunction]:
    """Registers the rule that stands in for an operator's own where ``--straight-through`` names the operator.

    The rule is called like that of ``vjp``. Not a derivative, but what is put in its place (Bengio et al. 2013,
    https://arxiv.org/abs/1308.3432).

    Raises:
        ValueError: The operator has one already.
    """

    def register(function: RuleFunction) -> RuleFunction:
        parameters = inspect.signature(function).parameters.values()
        attributes = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        for op_type in op_types:
            if (domain, op_type) in _STRAIGHT_THROUGH:
                raise ValueError(f"{domain or 'ai.onnx'}::{op_type} already has a straight-through rule")
            _STRAIGHT_THROUGH[domain, op_type] = Rule(function, broadcasts, broadcasts, attributes)
        return function

    return register


def straight_through_operators() -> tuple[str, ...]:
    """The operators that have a straight-through rule, as ``--straight-through`` names them, sorted."""
    _load()
    return tuple(sorted(f"{domain}::{name}" if domain else name for domain, name in _STRAIGHT_THROUGH))


def nondifferentiable(*op_types: str, reason: str, domain: str = "") -> None:
    """Declares that no derivative passes through operators, and why."""
    for op_type in op_types:
        _refuse_second(domain, op_type)
        _NONDIFFERENTIABLE[domain, op_type] = NoDerivative(reason)


def rule_for(node: ir.Node) -> Rule | NoDerivative | None:
    """The entry for a node's operator; None where there is none."""
    _load()
    key = (node.domain if node.domain != "ai.onnx" else "", node.op_type)
    if key in _STRAIGHT_THROUGH and is_straight_through(node):
        return _STRAIGHT_THROUGH[key]
    return _RULES.get(key) or _NONDIFFERENTIABLE.get(key)


def entries() -> Iterator[tuple[str, str, Rule | NoDerivative]]:
    """Every operator with an entry as (domain, operator, entry), sorted."""
    _load()
    table: dict[tuple[str, str], Rule | NoDerivative] = {**_RULES, **_NONDIFFERENTIABLE}
    for domain, op_type in sorted(table):
        yield domain, op_type, table[domain, op_type]


def attributes_of(node: ir.Node, names: tuple[str, ...], opset: int) -> dict[str, Any]:
    """The attributes ``names`` of ``node``, filled with the defaults of its schema; None where there is no default."""
    given = {name: node.attributes[name].value for name in names if name in node.attributes}
    return {name: given[name] if name in given else _default(node.domain, node.op_type, name, opset) for name in names}


@functools.cache
def _default(domain: str, op_type: str, name: str, opset: int) -> Any:
    if domain not in ("", "ai.onnx"):
        return None
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        schema = onnx.defs.get_schema(op_type, "")
    if name not in schema.attributes:
        schema = onnx.defs.get_schema(op_type, "")
    proto = schema.attributes[name].default_value
    if not proto.name:
        return None
    return ir.serde.deserialize_attribute(proto).value


def _refuse_second(domain: str, op_type: str) -> None:
    if (domain, op_type) in _RULES or (domain, op_type) in _NONDIFFERENTIABLE:
        raise ValueError(f"{domain or 'ai.onnx'}::{op_type} already has a rule")


@functools.cache
def _load() -> None:
    """Imports the rule modules, which register themselves."""
    import onnx_cfad.rules  # noqa: F401, PLC0415
