"""The direction of imports: graph below plans below adjoint below the pipeline; rules know the notation only."""

from __future__ import annotations

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "onnx_cfad"
LEAVES = {"onnx_cfad.errors", "onnx_cfad.names"}

# For each part of the package, the parts (or modules) of it that it may import.
ALLOWED = {
    "graph": {"onnx_cfad.graph", *LEAVES},
    "rewriters": {"onnx_cfad.rewriters", "onnx_cfad.graph", *LEAVES},
    "rules": {
        "onnx_cfad.rules",
        "onnx_cfad.graph",
        "onnx_cfad.adjoint.expr",
        "onnx_cfad.adjoint.subgraph_operators",
        "onnx_cfad.adjoint.cotangents",
        *LEAVES,
    },
}
# Never imported by the part, at any depth of its folder.
FORBIDDEN = {
    "adjoint": {"onnx_cfad.api", "onnx_cfad.cli", "onnx_cfad.differentiate", "onnx_cfad.targets", "onnx_cfad.report"},
    "plans": {"onnx_cfad.api", "onnx_cfad.cli", "onnx_cfad.differentiate", "onnx_cfad.targets", "onnx_cfad.report"},
    "targets": {"onnx_cfad.adjoint", "onnx_cfad.rules", "onnx_cfad.plans", "onnx_cfad.api", "onnx_cfad.cli"},
}
# Heavy packages that only the function which needs them may import.
LAZY = {"torch", "tvm", "onnxruntime", "cupy"}


def modules(part: str) -> list[pathlib.Path]:
    return sorted((PACKAGE / part).rglob("*.py"))


def imported(path: pathlib.Path, *, top_level_only: bool = False) -> set[str]:
    """The modules that a file imports; imports for type checkers alone do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in tree.body if top_level_only else ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "onnx_cfad" or (PACKAGE.parent / node.module.replace(".", "/")).is_dir():
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
                found.discard(node.module)
    return found


def _within(module: str, parts: set[str]) -> bool:
    return any(module == part or module.startswith(f"{part}.") for part in parts)


def _cases(table: dict[str, set[str]]) -> list[tuple[str, pathlib.Path]]:
    return [(part, path) for part in table for path in modules(part)]


@pytest.mark.parametrize(("part", "path"), _cases(ALLOWED), ids=lambda x: getattr(x, "stem", x))
def test_part_imports_only_what_lies_below(part: str, path: pathlib.Path) -> None:
    own = {m for m in imported(path) if m.split(".")[0] == "onnx_cfad"}
    assert not {m for m in own if not _within(m, ALLOWED[part])}


@pytest.mark.parametrize(("part", "path"), _cases(FORBIDDEN), ids=lambda x: getattr(x, "stem", x))
def test_part_imports_nothing_above(part: str, path: pathlib.Path) -> None:
    assert not {m for m in imported(path) if _within(m, FORBIDDEN[part])}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_are_imported_where_needed(path: pathlib.Path) -> None:
    heavy = {m for m in imported(path, top_level_only=True) if m.split(".")[0] in LAZY}
    assert not heavy, f"{path.name} imports {heavy} when it is imported itself"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_module_builds_protobuf_by_hand(path: pathlib.Path) -> None:
    """``onnx.helper`` makes nodes from strings; the package works on ir values and nodes, where a child has onnx-ir."""
    nodes = {"make_node", "make_graph", "make_tensor_value_info", "make_attribute"}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr in nodes}
    assert not used or path.relative_to(PACKAGE).as_posix() in {
        "model.py",
        "graph/constants.py",
        "targets/tvm/loop_graph.py",
    }
