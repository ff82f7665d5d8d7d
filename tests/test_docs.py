"""The documents are true: links lead somewhere, commands parse and print what is shown, Python blocks run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from onnx_cfad.cli import app
from tests.documents import ROOT, Command, anchors, blocks, documents, links, matches, replay, workplace

NAMES = [str(path.relative_to(ROOT)) for path in documents()]
REPLAYED = [name for name in NAMES if blocks(ROOT / name, "console") or blocks(ROOT / name, "python")]


def commands() -> list[Command]:
    """Every command of ours that a document shows, in blocks for the console."""
    shown = [c for name in NAMES for block in blocks(ROOT / name, "console") for c in block.commands()]
    return [command for command in shown if command.is_ours]


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files_and_headings(name: str) -> None:
    path = ROOT / name
    for link in links(path):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{link}: there is no such file"
        assert not anchor or anchor in anchors(target), f"{link}: there is no such heading"


def test_every_document_is_reached_from_the_readme() -> None:
    reached, pending = set[Path](), [ROOT / "README.md"]
    while pending:
        path = pending.pop()
        if path not in reached and path.suffix == ".md" and path.exists():
            reached.add(path)
            files = [link.partition("#")[0] for link in links(path) if not link.startswith("http")]
            pending += [(path.parent / file).resolve() for file in files if file]
    assert set(documents()) <= reached


@pytest.mark.parametrize("name", NAMES)
def test_tests_that_are_named_exist(name: str) -> None:
    for file, function in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / name).read_text(encoding="utf-8")):
        assert (ROOT / file).exists(), f"there is no {file}"
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8") or not function, (
            f"no {function} in {file}"
        )


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.line)
def test_command_parses(command: Command) -> None:
    group: Any = typer.main.get_command(app)
    with group.make_context("onnx-cfad", list(command.words[1:])) as context:
        name, sub, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        sub.make_context(name, rest, parent=context)


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLAYED)
def test_commands_print_what_is_shown(name: str, tmp_path: Path) -> None:
    for _, command, printed in replay(ROOT / name, workplace(tmp_path)):
        if command is not None:
            shown = "\n".join(command.output)
            assert matches(command.output, printed), f"{command.line}\nshown:\n{shown}\nprinted:\n{printed}"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a  b"], "a    b   \n", True),
        (["error 1.4e-05"], "error 2.0e-05\n", True),
        (["u  -0.00837544"], "u  -0.00837\n", True),
        (["300.0 KiB"], "301.0 KiB\n", False),
        (["10,000 trips"], "10,001 trips\n", False),
        (["first", "...", "last"], "first\nx\ny\nlast\n", True),
        (["first", "...", "last"], "first\nx\ny\n", False),
        (["captured: a, ..., z"], "captured: a, b, c, z\n", True),
        ([], "something\n", False),
    ],
)
def test_matching(shown: list[str], printed: str, same: bool) -> None:
    assert matches(shown, printed) is same
