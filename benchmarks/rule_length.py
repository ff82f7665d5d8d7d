# Claim: the VJP rules of 20 common operators are at most 45 statements, def lines and decorators left out.
"""Length of rules: ``rule_length.py``; of onnx-ad's too where ``ONNX_CFAD_PEERS`` names a Python that has it.

What is counted is the body of the function that is registered for an operator, docstring left out; a function that
serves several operators counts once. Sub-formulas with a name of their own, in functions that a rule calls, are
reported beside (of this package only) and are not in the claim.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gradients import python_with
from meter import Bench

from onnx_cfad.rules import registry

OPERATORS = (
    *("Identity", "Neg", "Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Erf", "Relu", "LeakyRelu", "Add", "Sub", "Mul"),
    *("Div", "Pow", "Where", "MatMul", "Softmax", "Reshape", "ReduceSum"),
)


def statements(function: ast.FunctionDef) -> int:
    """The statements of a function, nested ones too, without its docstring."""
    found = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
    return len(found) - 1 - (ast.get_docstring(function) is not None)


def own() -> tuple[int, int]:
    """The statements of this package's rules, and of the functions of the rule modules that they call."""
    entries = {op_type: rule for domain, op_type, rule in registry.entries() if domain == ""}
    rules: list[Callable[..., Any]] = []
    for operator in OPERATORS:
        rule = entries[operator]
        assert isinstance(rule, registry.Rule)
        rules.append(rule.function)
    called: list[Callable[..., Any]] = []
    for function in (waiting := list(dict.fromkeys(rules))):
        for callee in _called(function):
            if callee not in waiting:
                waiting.append(callee)
                called.append(callee)
    return _total(dict.fromkeys(rules)), _total(called)


def _total(functions: Iterable[Callable[..., Any]]) -> int:
    return sum(statements(_parsed(function)) for function in functions)


def _called(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The functions of rule modules that ``function`` names."""
    names = sorted(
        {node.id for part in _parsed(function).body for node in ast.walk(part) if isinstance(node, ast.Name)}
    )
    found = [getattr(inspect.getmodule(function), name, None) for name in names]
    return [f for f in found if inspect.isfunction(f) and f.__module__.startswith("onnx_cfad.rules.")]


def _parsed(function: Callable[..., Any]) -> ast.FunctionDef:
    (parsed,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(parsed, ast.FunctionDef)
    return parsed


def onnx_ad() -> int | None:
    """The statements of onnx-ad's reverse rules (elementwise ones give a derivative), where it is there."""
    python = python_with("onnx_ad")
    if python is None:
        return None
    command = [python, "-c", "import onnx_ad.rules as rules; print(rules.__file__)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    functions = ast.parse(Path(done.stdout.strip()).read_text()).body
    return sum(statements(f) for f in functions if isinstance(f, ast.FunctionDef) and _serves(f))


def _serves(function: ast.FunctionDef) -> bool:
    """Whether it is registered for one of the operators."""
    calls = [entry for entry in function.decorator_list if isinstance(entry, ast.Call)]
    reverse = [call for call in calls if ast.unparse(call.func) in ("elementwise", "reverse_rule")]
    named = [argument.value for call in reverse for argument in call.args if isinstance(argument, ast.Constant)]
    return not set(OPERATORS).isdisjoint(named)


def main() -> None:
    bench = Bench("rule_length")
    rules, called = own()
    bench.report({"rules": rules, "named_sub_formulas": called, "onnx_ad_rules": onnx_ad()})
    bench.claim("statements of the rules of 20 common operators", rules, at_most=45)
    bench.finish()


if __name__ == "__main__":
    main()
