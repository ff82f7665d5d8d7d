"""Documents that are run: links, commands with the output shown below them, and Python blocks, in reading order.

``python -m tests.documents FILE.md ...`` puts today's output under the commands of documents.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
ELISION = "..."
_NUMBER = re.compile(r"(?<![\w,.])-?\d+\.\d{3,}(?:e[-+]\d+)?|(?<![\w,.])-?\d+(?:\.\d+)?e[-+]\d+")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language and its text, and where the text starts in the document."""

    language: str
    text: str
    start: int

    def commands(self) -> list[Command]:
        """The commands of a console block, each with the lines below it."""
        found: list[Command] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(Command(tuple(shlex.split(line[2:], comments=True)), line, []))
            else:
                found[-1].output.append(line)
        return found


@dataclasses.dataclass(frozen=True)
class Command:
    """A command as it is shown: its words, its line, and the lines of output below it."""

    words: tuple[str, ...]
    line: str
    output: list[str]

    @property
    def is_ours(self) -> bool:
        return self.words[0] == "onnx-cfad"


def documents() -> list[Path]:
    """The documents that users read."""
    return [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "models" / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]


def blocks(path: Path, language: str | None = None) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found = _FENCE.finditer(path.read_text(encoding="utf-8"))
    all_blocks = [Block(match[1], match[2], match.start(2)) for match in found]
    return [block for block in all_blocks if language in (None, block.language)]


def links(path: Path) -> list[str]:
    """The targets of the links outside fenced blocks."""
    return _LINK.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))


def anchors(path: Path) -> set[str]:
    """The anchors of the headings, as hosts of Markdown make them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def workplace(folder: Path) -> Path:
    """``folder`` with what the documents expect beside them: the models."""
    shutil.copytree(ROOT / "models", folder / "models")
    return folder


def replay(path: Path, folder: Path) -> Iterator[tuple[Block, Command | None, str]]:
    """Runs the blocks of a document in order, in ``folder``; gives what each command or Python block printed."""
    for block in blocks(path):
        if block.language == "python":
            yield block, None, _run([sys.executable, "-c", block.text], folder, must=True)
        for command in block.commands() if block.language == "console" else []:
            if command.is_ours:
                yield block, command, _run([sys.executable, "-m", "onnx_cfad", *command.words[1:]], folder)
            elif command.words[0] == "cat":
                yield block, command, (folder / command.words[1]).read_text(encoding="utf-8")


def _run(words: Sequence[str], folder: Path, *, must: bool = False) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    if must and done.returncode:
        raise AssertionError(f"exit code {done.returncode}:\n{done.stderr}")
    return done.stdout + done.stderr


def matches(shown: Sequence[str], printed: str) -> bool:
    """Whether ``printed`` is what is shown, but for elisions, the width of gaps and the digits of measured numbers."""
    pattern = "".join(_line_pattern(line.strip()) for line in shown if line.strip())
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


def _line_pattern(line: str) -> str:
    if line == ELISION:
        return r"(?:.*\n)*"
    parts = re.split(r"(\.\.\.|\s+)", _NUMBER.sub("\0", line))
    texts = {ELISION: ".*"}
    pattern = "".join(texts.get(part) or (r"\s+" if part.isspace() else re.escape(part)) for part in parts if part)
    number = r"(?:-?\d+(?:\.\d+)?(?:e[-+]\d+)?)"
    return pattern.replace(re.escape("\0"), number) + r"\n"


def rewrite(path: Path) -> None:
    """Puts today's output under the commands that have no elision; names those that have one and do not match."""
    text, shift = path.read_text(encoding="utf-8"), 0
    with tempfile.TemporaryDirectory() as temporary:
        found = list(replay(path, workplace(Path(temporary))))
    for block in dict.fromkeys(block for block, _, _ in found):
        printed = {id(command): output for own, command, output in found if own is block and command is not None}
        commands = [command for own, command, _ in found if own is block and command is not None]
        new = block.text
        for command in commands:
            output = printed[id(command)]
            if matches(command.output, output):
                continue
            if any(ELISION in line for line in command.output):
                print(f"{path.name}: {command.line}\n{output}")
                continue
            old = "\n".join([command.line, *command.output])
            lines = [line.rstrip() for line in output.rstrip().splitlines()]
            new = new.replace(old, "\n".join([command.line, *lines]), 1)
        start = block.start + shift
        text = text[:start] + new + text[start + len(block.text) :]
        shift += len(new) - len(block.text)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name))
