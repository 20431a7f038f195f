"""Showing it: plain lines here, for files, pipes and machines without rich; `rich_screen` for terminals."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Protocol, Self

from examples.demo.checks import Table, Verdict
from examples.demo.view import View

__all__ = ["PlainScreen", "Screen", "choose"]

STATUS_EVERY: Final = 2.0


class Screen(Protocol):
    """Something to look at."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""

    def tell(self, elapsed: float, line: str) -> None:
        """A line of the story."""

    def show(self, view: View) -> None:
        """The state of things."""

    def conclude(self, verdict: Verdict) -> None:
        """The end."""


class PlainScreen:
    """Lines that can be read anywhere."""

    def __init__(self) -> None:
        self._next_status = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def tell(self, elapsed: float, line: str) -> None:
        """With the time before it."""
        print(f"{elapsed:5.1f} s  {line}", flush=True)

    def show(self, view: View) -> None:
        """One line every other second."""
        if view.elapsed < self._next_status:
            return
        self._next_status = view.elapsed + STATUS_EVERY
        nodes = [
            f"{node.name}: " + ("killed" if node.killed else f"{node.running} running, {node.done:,} done")
            for node in view.nodes
        ]
        print(f"{view.elapsed:5.1f} s      {' | '.join(nodes)}", flush=True)

    def conclude(self, verdict: Verdict) -> None:
        """The tables and the checks."""
        for table in verdict.tables:
            print(f"\n{table.title}\n\n{_aligned(table)}")
        print()
        for check in verdict.checks:
            print(f"  {'ok    ' if check.holds else 'FAILED'}  {check.says}")
        print(flush=True)


def _aligned(table: Table) -> str:
    lines: list[Sequence[str]] = [table.columns, *table.rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]

    def text(line: Sequence[str]) -> str:
        figures = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        return "  " + "   ".join((line[0].ljust(widths[0]), *figures)).rstrip()

    rule = "  " + "   ".join("-" * width for width in widths)
    return "\n".join([text(lines[0]), rule, *map(text, lines[1:])])


def choose(*, plain: bool) -> Screen:
    """A live screen on a terminal, if rich is installed; else plain lines."""
    if plain or not sys.stdout.isatty():
        return PlainScreen()
    try:
        from examples.demo.rich_screen import RichScreen  # noqa: PLC0415 - rich may be missing
    except ImportError:
        return PlainScreen()
    return RichScreen()
