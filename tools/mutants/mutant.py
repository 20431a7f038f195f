"""One change of one place in the package."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from itertools import accumulate
from typing import Final

NEAREST_LINES: Final = 3
"""The lines of a diff before and after the change."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of a text, named by its place and operator.

    Attributes:
        path: The file in the checkout.
        function: The qualified name of the function, or the name of the statement.
        function_lines: The lines of the function or statement, from 1.
        operator: The kind of the change.
        line: The line of the change, from 1.
        column: The column of the change, from 1.
        start: The offset in the text at which the replaced part begins.
        end: The offset at which it ends.
        replacement: The text in its place.
    """

    path: str
    function: str
    function_lines: range
    operator: str
    line: int
    column: int
    start: int
    end: int
    replacement: str

    @property
    def name(self) -> str:
        """What ``--mutant`` takes; it is unique in a commit."""
        return f"{self.path}:{self.line}:{self.column}:{self.operator}"

    def apply(self, text: str) -> str:
        """Return the changed text of the file."""
        return text[: self.start] + self.replacement + text[self.end :]

    def diff(self, text: str) -> str:
        """Return the change as a diff."""
        lines = unified_diff(
            text.splitlines(keepends=True),
            self.apply(text).splitlines(keepends=True),
            f"a/{self.path}",
            f"b/{self.path}",
            n=NEAREST_LINES,
        )
        return "".join(lines)


class Places:
    """Converts between offsets of a text, its lines, and the columns in bytes that ``ast`` counts."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Python does not end a line at the other characters at which splitlines() does.
        self._lines = [f"{line}\n" for line in text.split("\n")]
        self._starts = [0, *accumulate(len(line) for line in self._lines)]

    def offset(self, line: int, column_bytes: int) -> int:
        """Return the offset of a place that ``ast`` names."""
        line_text = self._lines[line - 1]
        if not line_text.isascii():
            column_bytes = len(line_text.encode("utf-8")[:column_bytes].decode("utf-8"))
        return self._starts[line - 1] + column_bytes

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """Return the line and the column of an offset, both from 1."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


Finder = Callable[[str, str], Iterator[Mutant]]
"""Yields the mutants of a file, by its path and its text."""
