"""What is imported when: the package and the start of the command line are light; public names stay what they are."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pathlib
import pkgutil
import subprocess
import sys
import types

import pytest

import onnx_cfad

ROOT = pathlib.Path(__file__).parents[1]
HEAVY = {"numpy", "onnx", "onnx_ir", "onnx_shape_inference", "onnxruntime", "sympy", "torch", "tvm", "onnx_cfad.model"}
"""What takes long to import, and what imports it."""
COMMANDS = ["transform", "inspect", "plan", "profile", "validate", "expand", "run", "compile"]


def imported(program: str, *arguments: str) -> set[str]:
    """The modules that are imported when ``program`` is over."""
    whole = f"""if True:
        import atexit, json, sys
        atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
        sys.argv[0] = "onnx-cfad"
        {program}
    """
    done = subprocess.run(
        [sys.executable, "-c", whole, *arguments],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=120,
    )  # fmt: skip
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_package_imports_no_heavy_module() -> None:
    found = imported("import onnx_cfad")
    assert "onnx_cfad.options" in found
    assert not found & {*HEAVY, "typer", "rich", "onnx_cfad.api"}


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["no-command"]], ids=" ".join)
def test_command_line_starts_without_a_heavy_module(arguments: list[str]) -> None:
    found = imported("from onnx_cfad.__main__ import main; main()", *arguments)
    assert "onnx_cfad.cli" in found
    assert not found & HEAVY


def test_help_of_every_command_needs_no_heavy_module() -> None:
    calls = [[name, "--help"] for name in [*COMMANDS, "targets"]]
    program = f"from onnx_cfad.cli import app; print([app(call, standalone_mode=False) for call in {calls}])"
    found = imported(program)
    assert "typer.rich_utils" in found
    assert not found & HEAVY


@pytest.mark.parametrize("command", ["transform", "inspect", "plan", "validate", "expand"])
def test_file_that_is_not_there_is_found_missing_before_a_heavy_module_is_imported(command: str) -> None:
    assert not imported("from onnx_cfad.__main__ import main; main()", command, "absent.onnx") & HEAVY


def test_public_names_are_there_when_asked_for() -> None:
    assert set(onnx_cfad.__all__) <= set(dir(onnx_cfad))
    assert all(getattr(onnx_cfad, name) is getattr(onnx_cfad, name) for name in onnx_cfad.__all__)
    with pytest.raises(AttributeError, match="module 'onnx_cfad' has no attribute 'backward'"):
        onnx_cfad.backward  # type: ignore[attr-defined]  # noqa: B018


def test_no_module_takes_the_place_of_a_public_name() -> None:
    modules = {module.name for module in pkgutil.iter_modules(onnx_cfad.__path__)}
    assert not modules & set(onnx_cfad.__all__)
    for name in sorted(modules - {"__main__"}):
        importlib.import_module(f"onnx_cfad.{name}")
    assert not [name for name in onnx_cfad.__all__ if isinstance(getattr(onnx_cfad, name), types.ModuleType)]


def test_public_modules_need_no_import_of_their_own() -> None:
    assert "onnx_cfad.testing" in imported(
        "import onnx_cfad; onnx_cfad.testing.check_vjp; onnx_cfad.rules.registry.vjp"
    )


def test_type_checkers_and_programs_are_told_the_same_names() -> None:
    tree = ast.parse((ROOT / "onnx_cfad" / "__init__.py").read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    told = {
        alias.name: node.module.removeprefix("onnx_cfad.")
        for node in checked.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    assert told == onnx_cfad._HOMES
