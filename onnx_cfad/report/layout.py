"""How tables and single lines look on a terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_GAP = 2  # columns between cells
_LAST = 32  # columns that the last cell needs to be read, if it is longer


@dataclasses.dataclass(frozen=True)
class Listing:
    """Rows under headings: a table where the terminal is wide enough, else a paragraph for each row.

    Cells stay whole, so that names can be copied from them; only the last one, a reason, may go over several lines.

    Attributes:
        headings: The headings of the cells.
        rows: The cells of each row.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A table or paragraphs, by the width that there is."""
        columns = zip(self.headings, *self.rows, strict=True)
        widths = [max(map(cell_len, column)) for column in columns]
        if sum(widths[:-1]) + _GAP * (len(widths) - 1) + min(widths[-1], _LAST) <= options.max_width:
            yield self._table()
            return
        for row in self.rows:
            yield Text(row[0], style="bold", overflow="fold")
            middle = [f"{heading}: {cell}" for heading, cell in zip(self.headings[1:-1], row[1:-1], strict=True)]
            last = f"{self.headings[-1]}: {row[-1]}" if self.headings[-1] else row[-1]
            for line in (["  ".join(middle)] if middle else []) + [last]:
                yield Padding(Text(line), (0, 0, 0, _GAP))

    def _table(self) -> Table:
        made = table(self.headings, self.rows)
        for column in made.columns[:-1]:
            column.no_wrap = True
        return made


def listing(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Listing:
    """Rows under headings, as the width of the terminal allows."""
    return Listing(tuple(headings), tuple(map(tuple, rows)))


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table without lines, its headings bold."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def pair(title: str, text: str) -> Text:
    """One line: a title in bold, and what belongs to it."""
    return Text.assemble((f"{title}: ", "bold"), text)


def count(number: int, noun: str) -> str:
    """A number of things: ``1 node``, ``2,000 nodes``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
