"""Rows are a table where they fit, and a paragraph each where they do not; what is copied from them stays whole."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from onnx_cfad.report.layout import count, listing
from onnx_cfad.report.terminal import show

HEADINGS = ("site", "adjoint", "tape", "because")
SITE = "main/decoder/body/attention/else/inner_loop"
ROWS = [(SITE, "checkpointed(segment=50,levels=2)", "300.0 KiB", "the full tape takes 20,480,000 bytes")]


def lines(width: int) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width).print(listing(HEADINGS, ROWS))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_wide_terminal_gets_a_table() -> None:
    heading, row = lines(160)
    assert heading.split() == list(HEADINGS)
    assert row == "  ".join(ROWS[0])


def test_reason_alone_goes_over_several_lines() -> None:
    found = lines(125)
    assert found[1].startswith("  ".join(ROWS[0][:3]))
    assert len(found) == 3


def test_narrow_terminal_gets_a_paragraph_for_each_row() -> None:
    assert lines(80) == [
        SITE,
        "  adjoint: checkpointed(segment=50,levels=2)  tape: 300.0 KiB",
        "  because: the full tape takes 20,480,000 bytes",
    ]


def test_lines_of_a_pipe_are_whole_and_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    show(listing(HEADINGS, [("a", "b", "c", "because " * 100), *ROWS]))
    found = output.getvalue().splitlines()
    assert len(found) == 3
    assert found == [line.rstrip() for line in found]


def test_one_thing_is_no_plural() -> None:
    assert (count(0, "node"), count(1, "node"), count(2000, "node")) == ("0 nodes", "1 node", "2,000 nodes")
