"""Define what a screen does, and print plain lines where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from .report import Report, Table
from .rich_screen import RichScreen
from .view import View

STATUS_INTERVAL_S: Final = 2.0


class Screen(Protocol):
    """Output of the demo."""

    def __enter__(self) -> Self:
        """Start the output."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the terminal."""

    def log(self, elapsed: float, line: str) -> None:
        """Show one line about an action of the scenario."""

    def update(self, view: View) -> None:
        """Show the current figures."""

    def show_report(self, report: Report) -> None:
        """Show the result."""


class PlainScreen:
    """Plain lines for files and pipes."""

    def __init__(self) -> None:
        self._next_status = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def log(self, elapsed: float, line: str) -> None:
        """Print the line with the time in front."""
        print(f"{elapsed:5.1f} s  {line}", flush=True)

    def update(self, view: View) -> None:
        """Print one line every two seconds."""
        if view.elapsed < self._next_status:
            return
        self._next_status = view.elapsed + STATUS_INTERVAL_S
        nodes = [
            f"{node.name}: " + ("killed" if node.killed else f"{node.running} running, {node.done:,} done")
            for node in view.nodes
        ]
        print(f"{view.elapsed:5.1f} s      {' | '.join(nodes)}", flush=True)

    def show_report(self, report: Report) -> None:
        """Print the tables and the checks."""
        for table in report.tables:
            print(f"\n{table.title}\n\n{_align(table)}")
        print()
        for check in report.checks:
            print(f"  {'ok    ' if check.passed else 'FAILED'}  {check.text}")
        print(flush=True)


def _align(table: Table) -> str:
    lines: list[Sequence[str]] = [table.columns, *table.rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]

    def text(line: Sequence[str]) -> str:
        figures = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        return "  " + "   ".join((line[0].ljust(widths[0]), *figures)).rstrip()

    rule = "  " + "   ".join("-" * width for width in widths)
    return "\n".join([text(lines[0]), rule, *map(text, lines[1:])])


def choose_screen(*, plain: bool) -> Screen:
    """Return a live screen on a terminal, else a plain one."""
    return PlainScreen() if plain or not sys.stdout.isatty() else RichScreen()
