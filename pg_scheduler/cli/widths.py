"""Fit the columns of a table into the width of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rich.cells import cell_len, chop_cells

Kind = Literal["id", "cut", "folded", "whole"]
"""An id is shortened in its middle, a cut text at its end; a folded text continues on the next line."""

GAP: Final = 2
MARK: Final = "\N{HORIZONTAL ELLIPSIS}"

_STEPS: Final[tuple[tuple[Kind, int], ...]] = (
    ("cut", 12),
    ("folded", 20),
    ("id", 13),
    ("cut", 6),
    ("id", 9),
    ("folded", 10),
)
"""Which columns become narrower, in this order, and the width at which the next ones follow."""


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


def fit(fields: Sequence[Field], available: int) -> list[int]:
    """Return the width of each column in cells. The table is wider than available if it cannot be legible.

    Example:
        >>> fit([Field(36, 2, "id"), Field(9, 6, "whole")], 30)
        [19, 9]
    """
    widths = [field.width for field in fields]
    excess = sum(widths) + GAP * (len(widths) - 1) - available
    for kind, least in _STEPS:
        columns = [index for index, field in enumerate(fields) if field.kind == kind]
        while excess > 0 and columns:
            widest = max(columns, key=widths.__getitem__)
            if widths[widest] <= max(least, fields[widest].title_width):
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
    tail = (width - 1) // 2
    head = width - 1 - tail
    start = chop_cells(text, head)[0] if head else ""
    end = chop_cells(text[::-1], tail)[0][::-1] if tail else ""
    return f"{start}{MARK}{end}"
