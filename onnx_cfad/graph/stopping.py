"""Why a Loop stops: its condition as a tree of tolerance tests, with iteration caps set apart.

A tolerance test goes on while a measure is above a threshold. Exporters write ``a and b`` as an If, ``any`` as a
reduction over integers, and negate comparisons; all of these are read as And and Or of tests.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnx_cfad.graph.regions import branch_site, is_branch
from onnx_cfad.graph.trips import constant_of

_THROUGH = frozenset(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten"))

_TIGHT = {ir.DataType.FLOAT: 1e-5, ir.DataType.DOUBLE: 1e-9}  # tolerances of loops that are implicit unasked


@dataclasses.dataclass(frozen=True)
class Test:
    """Goes on while ``measure`` is above ``threshold``.

    Attributes:
        measure: The greater side.
        threshold: The smaller side.
        strict: At equality the test is done.
        elements: The sides are compared element by element, and any element above the threshold goes on.
    """

    measure: ir.Value
    threshold: ir.Value
    strict: bool
    elements: bool = False


@dataclasses.dataclass(frozen=True)
class Other:
    """A part of the condition that compares no floating-point numbers: a cap, a flag, a constant."""

    constant: bool | None = None


@dataclasses.dataclass(frozen=True)
class Joint:
    """Goes on while ``every`` part does (And), or while any part does (Or)."""

    every: bool
    parts: tuple[Condition, ...]


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """A part of the condition that is none of the forms above."""

    why: str


Condition = Test | Other | Joint | Unreadable


def read_condition(value: ir.Value | None, *, negated: bool = False, elements: bool = False) -> Condition:
    """The condition that the boolean ``value`` (negated, if so) states; None is a condition that always holds.

    Args:
        value: The value, in the loop body or in a branch inside it.
        negated: Read its negation.
        elements: It is a tensor of which any element goes on.
    """
    if value is None:
        return Other(constant=True)
    constant = constant_of(value)
    if constant is not None and constant.size == 1:
        return Other(constant=bool(constant.reshape(-1)[0]) != negated)
    node = value.producer()
    if node is None:
        return Other()
    return _read_node(node, value, negated, elements)


def _read_node(node: ir.Node, value: ir.Value, negated: bool, elements: bool) -> Condition:
    kind, first = node.op_type, node.inputs[0] if node.inputs else None
    if kind in ("And", "Or"):
        parts = tuple(read_condition(v, negated=negated, elements=elements) for v in node.inputs)
        return _joint((kind == "And") != negated, parts)
    if kind == "Not":
        return read_condition(first, negated=not negated, elements=elements)
    if is_branch(node):
        site, k = branch_site(node), list(node.outputs).index(value)
        return _choice(site.predicate, site.then_branch.outputs[k], site.else_branch.outputs[k], negated, elements)
    if kind == "Where":
        return _choice(node.inputs[0], node.inputs[1], node.inputs[2], negated, elements)
    if kind in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        return _comparison(node, negated, elements)
    if kind in ("ReduceMax", "ReduceSum", "ReduceMin"):
        return _reduction(node, negated)
    if kind in _THROUGH:
        return read_condition(first, negated=negated, elements=elements)
    return Other()


def _joint(every: bool, parts: tuple[Condition, ...]) -> Condition:
    return Joint(every, parts)


def _choice(
    predicate: ir.Value | None, then: ir.Value | None, orelse: ir.Value | None, negated: bool, elements: bool
) -> Condition:
    """``predicate ? then : orelse`` where one side is a constant, which is an And or an Or."""
    a, b = (read_condition(v, negated=negated, elements=elements) for v in (then, orelse))
    if isinstance(b, Other) and b.constant is not None:
        return _joint(not b.constant, (read_condition(predicate, negated=b.constant, elements=elements), a))
    if isinstance(a, Other) and a.constant is not None:
        return _joint(not a.constant, (read_condition(predicate, negated=not a.constant, elements=elements), b))
    if all(isinstance(x, Other) for x in (a, b, read_condition(predicate))):
        return Other()
    return Unreadable("a choice between two conditions")


def _comparison(node: ir.Node, negated: bool, elements: bool) -> Condition:
    a, b = node.inputs[0], node.inputs[1]
    if a is None or b is None:
        return Unreadable("a comparison with nothing")
    counted = _counted(node, a, b, negated)
    if counted is not None:
        return counted
    floating = [v.dtype is not None and v.dtype.is_floating_point() for v in (a, b)]
    if not any(floating):
        return Other()
    greater = node.op_type.startswith("Greater")
    if not greater:
        a, b = b, a  # now: a above b
    strict = not node.op_type.endswith("OrEqual")
    if negated:
        a, b, strict = b, a, not strict
    return Test(a, b, strict, elements)


def _counted(node: ir.Node, a: ir.Value, b: ir.Value, negated: bool) -> Condition | None:
    """``count > 0`` where the count is a reduction of booleans: whether any holds."""
    zero = constant_of(b)
    if node.op_type != "Greater" or zero is None or zero.size != 1 or float(zero.reshape(-1)[0]) != 0:
        return None
    reduction = a.producer()
    while reduction is not None and reduction.op_type in _THROUGH and reduction.inputs[0] is not None:
        reduction = reduction.inputs[0].producer()
    if reduction is None or reduction.op_type not in ("ReduceMax", "ReduceSum", "ReduceMin"):
        return None
    return _reduction(reduction, negated) if _flags(reduction) is not None else None


def _flags(reduction: ir.Node) -> ir.Value | None:
    """The booleans that a reduction of integers or floats counts, seen through casts."""
    value = reduction.inputs[0]
    while value is not None and value.dtype != ir.DataType.BOOL:
        node = value.producer()
        if node is None or node.op_type not in _THROUGH:
            return None
        value = node.inputs[0]
    return value


def _reduction(node: ir.Node, negated: bool) -> Condition:
    flags = _flags(node)
    if flags is None:
        return Other()
    every = node.op_type == "ReduceMin"
    if every == negated:  # any(x), or not all(x) = any(not x)
        return read_condition(flags, negated=negated, elements=True)
    return Unreadable("it stops as soon as one element has converged")


def tests_in(condition: Condition) -> list[Test]:
    """Every tolerance test of a condition, in order."""
    if isinstance(condition, Joint):
        return [test for part in condition.parts for test in tests_in(part)]
    return [condition] if isinstance(condition, Test) else []


def is_tight(condition: Condition | None) -> bool:
    """Whether all tolerances are constants that leave no more error than a gradient has anyway; there has to be one."""
    tests = tests_in(condition) if condition is not None else []
    return bool(tests) and all(_leaves_rounding(test.threshold) for test in tests)


def _leaves_rounding(threshold: ir.Value) -> bool:
    constant = constant_of(threshold)
    if constant is None or threshold.dtype is None:
        return False
    return bool((constant <= _TIGHT.get(threshold.dtype, 0.0)).all())


def only_tests(condition: Condition) -> Condition | None:
    """The condition with everything but its tolerance tests left out; None where it has none."""
    if isinstance(condition, Joint):
        parts = tuple(part for part in map(only_tests, condition.parts) if part is not None)
        return None if not parts else parts[0] if len(parts) == 1 else Joint(condition.every, parts)
    return condition if isinstance(condition, Test) else None


def has_cap(condition: Condition) -> bool:
    """Whether something else than a tolerance can end the loop."""
    if isinstance(condition, Joint):
        return any(map(has_cap, condition.parts)) and condition.every
    return isinstance(condition, Other) and condition.constant is None


def unreadable(condition: Condition) -> list[str]:
    """Why parts of the condition could not be read."""
    if isinstance(condition, Joint):
        return [why for part in condition.parts for why in unreadable(part)]
    return [condition.why] if isinstance(condition, Unreadable) else []
