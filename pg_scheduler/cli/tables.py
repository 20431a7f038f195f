"""Draw tables, and fit their columns into the width of a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TextIO

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table
from rich.text import Text

Kind = Literal["id", "cut", "folded", "whole"]
"""An id is shortened in its middle, a cut text at its end; a folded text continues on the next line."""

GAP: Final = 2
MARK: Final = "\N{HORIZONTAL ELLIPSIS}"

_UNBOUNDED: Final = 100_000
"""Wider than any line."""

_STEPS: Final[tuple[tuple[Kind, int], ...]] = (
    ("cut", 12),
    ("folded", 20),
    ("id", 13),
    ("cut", 6),
    ("id", 9),
    ("folded", 10),
)
"""The kinds of columns that become narrower, in this order, and the width at which the next kind follows."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column.

    Attributes:
        width: The cells of its longest value or title.
        title_width: The cells of its title, below which it never goes.
        kind: How it becomes narrower.
    """

    width: int
    title_width: int
    kind: Kind


def draw_list(
    titles: Sequence[str],
    lines: Sequence[Sequence[str]],
    kinds: Sequence[Kind],
    numbers: Sequence[bool],
    *,
    out: TextIO,
    is_wide: bool,
) -> Iterator[str]:
    """Yield the lines of a table, which is fitted into the width of a terminal unless ``is_wide``.

    Args:
        titles: The title of each column.
        lines: The lines, each with a text for each column.
        kinds: The kind of each column, which decides how it becomes narrower.
        numbers: Whether each column has numbers, which are aligned to the right.
        out: Where the table will be written.
        is_wide: Whether the columns are as wide as their texts.
    """
    fields = []
    for index, (title, kind) in enumerate(zip(titles, kinds, strict=True)):
        texts = [title, *(line[index] for line in lines)]
        fields.append(Field(max(map(cell_len, texts)), cell_len(title), kind))
    widths = [field.width for field in fields] if is_wide else fit(fields, _console(out).width)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, kind, is_number, width in zip(titles, kinds, numbers, widths, strict=True):
        table.add_column(
            title,
            justify="right" if is_number else "left",
            overflow="ellipsis" if kind == "cut" else "fold",
            no_wrap=kind != "folded",
            width=width,
        )
    for line in lines:
        cells = []
        for text, kind, width in zip(line, kinds, widths, strict=True):
            cells.append(Text(shorten(text, width) if kind == "id" else text))
        table.add_row(*cells)
    # The console has room for the table as it is, so rich makes no column narrower.
    return _drawn(table, _console(out, sum(widths) + 2 * len(widths)))


def draw_one(pairs: Iterable[tuple[str, str]], *, out: TextIO, is_wide: bool) -> Iterator[str]:
    """Yield the lines of a table that has a title and a text in each row."""
    table = Table.grid(padding=(0, 2))
    for title, text in pairs:
        table.add_row(Text(title), Text(text))
    return _drawn(table, _console(out, _UNBOUNDED if is_wide else None))


def _console(out: TextIO, width: int | None = None) -> Console:
    """Return a console. That of a file or a pipe is as wide as its lines, unless ``COLUMNS`` sets a width."""
    if width is None and not out.isatty() and "COLUMNS" not in os.environ:
        width = _UNBOUNDED
    return Console(file=out, width=width, highlight=False, markup=False, emoji=False)


def _drawn(table: Table, console: Console) -> Iterator[str]:
    """Return the lines of a table as the console draws them, without spaces at their ends."""
    with console.capture() as captured:
        console.print(table)
    return (f"{line.rstrip()}\n" for line in captured.get().splitlines())


def fit(fields: Sequence[Field], available: int) -> list[int]:
    """Return the width of each column in cells. Columns stay legible, so the sum may exceed ``available``.

    Example:
        >>> fit([Field(36, 2, "id"), Field(9, 6, "whole")], 30)
        [19, 9]
    """
    widths = [field.width for field in fields]
    # The cells by which the table is too wide for the terminal.
    excess = sum(widths) + GAP * (len(widths) - 1) - available
    for kind, min_width in _STEPS:
        columns = [index for index, field in enumerate(fields) if field.kind == kind]
        # The widest column of this kind loses one cell at a time, until the table fits.
        while excess > 0 and columns:
            widest = max(columns, key=widths.__getitem__)
            # If the widest one has its least width in this step, it keeps this width.
            if widths[widest] <= max(min_width, fields[widest].title_width):
                columns.remove(widest)
                continue
            widths[widest] -= 1
            excess -= 1
    return widths


def shorten(text: str, width: int) -> str:
    """Return the text in at most so many cells, with a mark in its middle if something is missing.

    Example:
        >>> shorten("0f8fad5b-d9cb-469f-a165-70867728950e", 13)
        '0f8fad\N{HORIZONTAL ELLIPSIS}28950e'
    """
    if cell_len(text) <= width:
        return text
    # One cell is for the mark. The others are divided between the start and the end of the text.
    tail = (width - 1) // 2
    head = width - 1 - tail
    # chop_cells() cuts a text from its start, so the text is reversed for its end.
    start = chop_cells(text, head)[0] if head else ""
    end = chop_cells(text[::-1], tail)[0][::-1] if tail else ""
    return f"{start}{MARK}{end}"
