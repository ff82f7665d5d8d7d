"""The tables of rules: VJP, from cotangents of the outputs to those of the inputs; JVP, from tangents to tangents.

An operator needs a VJP rule only: forward mode applies an elementwise one as it is and transposes the others. A JVP
rule, or the word that the operator is linear, is there where that emits less.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import onnx.defs
import onnx_ir as ir

from onnx_cfad.adjoint.expr import Builder, Expr, Update
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
class TangentRule:
    """How tangents pass through one operator.

    Attributes:
        function: Called as ``function(tangents, y, *inputs, **attributes)``; gives the tangent of the output, a tuple
            where there are several, None for zero.
        attributes: The ONNX attributes that the rule reads.
    """

    function: Callable[..., Any]
    attributes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Linear:
    """An operator that is a sum of functions, each linear in some of its inputs taken together, the others fixed.

    Attributes:
        groups: The inputs, by number, that each function is linear in; None for all inputs together.
        added: Inputs that are added to the result, such as a bias: any one function takes their tangent along.
        offsets: Attributes that are numbers added to the result or put in: 0 for a tangent.
    """

    groups: tuple[tuple[int, ...], ...] | None
    added: tuple[int, ...] = ()
    offsets: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Expanded:
    """An operator that is a function of other operators: tangents pass through these.

    Attributes:
        expand: From the node, its inputs and a builder to the nodes that the function records with the builder, and
            the outputs that it makes, by number.
    """

    expand: Callable[[ir.Node, Sequence[Expr | None], Builder], tuple[Sequence[ir.Node], Mapping[int, ir.Value]]]


TangentEntry = TangentRule | Linear | Expanded


@dataclasses.dataclass(frozen=True)
class NoDerivative:
    """Why no derivative passes through an operator."""

    reason: str


RUNTIME_OPERATORS = frozenset(("SimplifiedLayerNormalization",))
"""What ONNX Runtime adds to the default domain."""

_RULES: dict[tuple[str, str], Rule] = {}
_NONDIFFERENTIABLE: dict[tuple[str, str], NoDerivative] = {}
_STRAIGHT_THROUGH: dict[tuple[str, str], Rule] = {}
_TANGENTS: dict[tuple[str, str], TangentEntry] = {}


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
        attributes = _keywords(function)
        for op_type in op_types:
            _refuse_second(domain, op_type)
            _check_attributes("VJP", domain, op_type, attributes)
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
        attributes = _keywords(function)
        for op_type in op_types:
            if (domain, op_type) in _STRAIGHT_THROUGH:
                raise ValueError(f"{domain or 'ai.onnx'}::{op_type} already has a straight-through rule")
            _STRAIGHT_THROUGH[domain, op_type] = Rule(function, broadcasts, broadcasts, attributes)
        return function

    return register


def jvp(*op_types: str, domain: str = "") -> Callable[[RuleFunction], RuleFunction]:
    """Registers a JVP rule for operators that have a VJP rule, where it emits less than the VJP rule transposed.

    The rule is called with a tuple of the inputs' tangents (None for zero), the output (a tuple where there are
    several), the inputs in ONNX order and, as keywords, the attributes it names. It returns the tangent of the output
    (a tuple where there are several), None for zero, or NotImplemented where the VJP rule is to be transposed.

    Raises:
        TypeError: The rule names an attribute that the operator's schema lacks.
        ValueError: The operator has a JVP rule already.
    """

    def register(function: RuleFunction) -> RuleFunction:
        attributes = _keywords(function)
        for op_type in op_types:
            _check_attributes("JVP", domain, op_type, attributes)
            _enter_tangent(domain, op_type, TangentRule(function, attributes))
        return function

    return register


def straight_through_operators() -> tuple[str, ...]:
    """The operators that have a straight-through rule, as ``--straight-through`` names them, sorted."""
    _load()
    return tuple(sorted(f"{domain}::{name}" if domain else name for domain, name in _STRAIGHT_THROUGH))


def linear(
    *op_types: str,
    groups: tuple[tuple[int, ...], ...] | None = ((0,),),
    added: tuple[int, ...] = (),
    offsets: tuple[str, ...] = (),
    domain: str = "",
) -> None:
    """Declares operators linear in inputs: a tangent passes through the operator itself.

    Args:
        op_types: The operators, which have a VJP rule.
        groups: For each function that the operator is a sum of, the numbers of the inputs it is linear in together
            (such as data and updates of a scatter); a product is linear in each of its factors alone. None for all
            inputs together.
        added: The numbers of inputs that are added to the result, such as a bias.
        offsets: Attributes that are numbers added to the result or put in.
        domain: Of the operators.

    Raises:
        ValueError: An operator has a JVP rule already.
    """
    for op_type in op_types:
        _enter_tangent(domain, op_type, Linear(groups, added, offsets))


def expanded(
    op_type: str,
    expand: Callable[[ir.Node, Sequence[Expr | None], Builder], tuple[Sequence[ir.Node], Mapping[int, ir.Value]]],
    *,
    domain: str = "",
) -> None:
    """Declares that tangents pass through the function of an operator, which ``expand`` records.

    Raises:
        ValueError: The operator has a JVP rule already.
    """
    _enter_tangent(domain, op_type, Expanded(expand))


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


def tangent_rule_for(node: ir.Node) -> TangentEntry | None:
    """The JVP rule for a node's operator; None where forward mode goes by the VJP rule."""
    _load()
    if is_straight_through(node):
        return None
    return _TANGENTS.get((node.domain if node.domain != "ai.onnx" else "", node.op_type))


def tangent_entry(domain: str, op_type: str) -> TangentEntry | None:
    """The JVP rule for an operator; None where forward mode goes by the VJP rule."""
    _load()
    return _TANGENTS.get((domain, op_type))


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


def _keywords(function: Callable[..., Any]) -> tuple[str, ...]:
    """The attributes that a rule reads: its keyword-only parameters."""
    return tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY)


def _check_attributes(kind: str, domain: str, op_type: str, attributes: tuple[str, ...]) -> None:
    if domain != "" or op_type in RUNTIME_OPERATORS:
        return
    known = onnx.defs.get_schema(op_type, domain).attributes
    unknown = [name for name in attributes if name not in known]
    if unknown:
        raise TypeError(f"the {kind} rule for {op_type} names {unknown}, which {op_type} has no attribute of")


def _enter_tangent(domain: str, op_type: str, rule: TangentEntry) -> None:
    if (domain, op_type) in _TANGENTS:
        raise ValueError(f"{domain or 'ai.onnx'}::{op_type} already has a JVP rule")
    _TANGENTS[domain, op_type] = rule


def _refuse_second(domain: str, op_type: str) -> None:
    if (domain, op_type) in _RULES or (domain, op_type) in _NONDIFFERENTIABLE:
        raise ValueError(f"{domain or 'ai.onnx'}::{op_type} already has a rule")


@functools.cache
def _load() -> None:
    """Imports the rule modules, which register themselves."""
    import onnx_cfad.rules  # noqa: F401, PLC0415
