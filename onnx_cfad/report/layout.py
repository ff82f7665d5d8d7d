"""How tables and single lines look on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table without lines, its headings bold."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def pair(title: str, text: str) -> Text:
    """One line: a title in bold, and what belongs to it."""
    return Text.assemble((f"{title}: ", "bold"), text)
