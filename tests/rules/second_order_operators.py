"""The operators whose second derivative a test compares with differences, read off the tests' cases.

python -m tests.rules.second_order_operators prints them as onnx_cfad/report/second_order.py has them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import onnx

from onnx_cfad.rules.registry import Rule, entries
from tests.modes import SECOND_ORDER_MODES, checks_of

FOLDER = pathlib.Path(__file__).parent


def tested_twice() -> dict[tuple[str, str], str]:
    """(domain, operator) to the first test that has it in a case of order 2, sorted."""
    ruled = {(domain, name) for domain, name, entry in entries() if isinstance(entry, Rule)}
    found: dict[tuple[str, str], str] = {}
    for path in sorted(FOLDER.glob("test_*.py")):
        module = importlib.import_module(f"tests.rules.{path.stem}")
        for name, test in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_") and checks_of(test) == SECOND_ORDER_MODES:
                for key in sorted(set(operators_of(test, module)) & ruled):
                    found.setdefault(key, f"tests/rules/{path.name}::{name}")
    return dict(sorted(found.items()))


def operators_of(test: Any, module: Any) -> Iterator[tuple[str, str]]:
    """The operators of the nodes that a test is given, or makes itself."""
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            for value in mark.args[1]:
                for part in _parts(value):
                    yield from _of_case(part, getattr(module, "CASES", None))
    for call in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(test)))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "make_node":
            first = call.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield _domain_of(call), first.value


def _domain_of(call: ast.Call) -> str:
    given = next((k.value for k in call.keywords if k.arg == "domain"), None)
    return str(given.value) if isinstance(given, ast.Constant) else ""


def _parts(value: Any) -> list[Any]:
    """The arguments of one case of a parametrised test."""
    values = getattr(value, "values", value)
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _of_case(part: Any, cases: Any) -> Iterator[tuple[str, str]]:
    if isinstance(part, str) and isinstance(cases, dict) and part in cases:
        yield from _of_case(cases[part], None)
        return
    if isinstance(part, str):
        yield "", part
    for made in getattr(part, "nodes", ()):
        yield made.domain, made.op_type
    node = part if isinstance(part, onnx.NodeProto) else getattr(part, "node", None)
    if isinstance(node, onnx.NodeProto):
        yield node.domain, node.op_type
    op_type = None if isinstance(part, onnx.NodeProto) else getattr(part, "op_type", None)
    if isinstance(op_type, str):
        yield "", op_type
    if isinstance(part, tuple):
        for inner in part:
            yield from _of_case(inner, None)


def module_text() -> str:
    """What onnx_cfad/report/second_order.py is to hold."""
    tests: dict[str, list[str]] = {}
    for (domain, name), test in tested_twice().items():
        tests.setdefault(test, []).append(f"{domain}::{name}" if domain else name)
    lines = [f'    "{test}": """\n{_filled(names)}\n    """,' for test, names in sorted(tests.items())]
    return _HEAD + "\n".join(lines) + _TAIL


def _filled(names: list[str]) -> str:
    indent = " " * 8
    return textwrap.fill(" ".join(names), 112, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


_HEAD = '''"""Second derivatives that tests compare with differences: the operators, by the first test that has each.

Made by `python -m tests.rules.second_order_operators > onnx_cfad/report/second_order.py`; do not edit.
"""

from __future__ import annotations

from typing import Final

TESTED_TWICE: Final = {
'''
_TAIL = '''
}

ORDER_TWO: Final = frozenset(name for names in TESTED_TWICE.values() for name in names.split())
"""``domain::operator``, the domain left out where it is the default one."""
'''


if __name__ == "__main__":
    sys.stdout.write(module_text())
