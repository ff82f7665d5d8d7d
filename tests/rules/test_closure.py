"""What the package emits, it differentiates, in both modes: every operator that its source can record has a way.

The operators are read off the source of everything that makes nodes: ``op.Name(...)``, arithmetic on expressions,
``builder.call("Name", ...)`` and ``ir.Node("", "Name", ...)``.
"""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
import textwrap

import onnx.defs
import onnx_ir as ir
import pytest

import onnx_cfad
from onnx_cfad.adjoint import expr
from onnx_cfad.rules.registry import NoDerivative, Rule, entries, rule_for

PACKAGE = pathlib.Path(onnx_cfad.__file__).parent
RULE_TESTS = pathlib.Path(__file__).parent
CONTROL_FLOW = {"Loop", "Scan", "If"}


def emitted() -> set[str]:
    """The operators of the default domain that the package can record."""
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        found |= recorded_in(ast.parse(path.read_text(encoding="utf-8")))
    found |= recorded_in(ast.parse(textwrap.dedent(inspect.getsource(expr.Expr))))
    return found & known


def recorded_in(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "op":
            found.add(node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            constants = [a.value for a in node.args[:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            found.update(constants if node.func.attr in ("call", "Node") else ())
    return found


def test_the_walk_sees_what_it_should() -> None:
    found = emitted()
    assert {"Mul", "ReduceSum", "Identity", "Scan", "Loop", "If", "SequenceInsert", "ScatterElements", "Range"} <= found
    assert len(found) > 80


@pytest.mark.parametrize("op_type", sorted(emitted()))
def test_an_emitted_operator_is_differentiable_or_has_a_reason(op_type: str) -> None:
    entry = rule_for(ir.Node("", op_type, []))
    assert op_type in CONTROL_FLOW or isinstance(entry, (Rule, NoDerivative)), f"{op_type} has no entry"


def operators_with_rules() -> list[tuple[str, str]]:
    return [(domain, name) for domain, name, entry in entries() if isinstance(entry, Rule)]


def named_in_tests(name: str, pattern: str) -> bool:
    """Whether a test file that checks derivatives as ``pattern`` says has the operator's name."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(RULE_TESTS.glob("test_*.py"))]
    return any(re.search(pattern, text) and re.search(rf"\b{name}\b", text) for text in texts)


@pytest.mark.parametrize(("domain", "name"), operators_with_rules(), ids=lambda part: part or "onnx")
def test_every_rule_is_checked_in_both_modes(domain: str, name: str) -> None:
    del domain
    assert named_in_tests(name, r"\b(check|assert_vjp)\(")
