"""Show on stderr how far a command got: a bar on a terminal, else a line every 10 seconds."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar, get_args

import typer

from pg_scheduler.base.text.values import escape

from .errors import UsageError
from .output import Output

if TYPE_CHECKING:
    from rich.progress import Progress

Style = Literal["bar", "lines", "off"]

ProgressStyle = Annotated[str | None, typer.Option("--progress", help="On stderr: bar, lines or off.")]
"""The option of commands that take long."""

Result = TypeVar("Result")

LINE_INTERVAL_S: Final = 10.0
LOOK_INTERVAL_S: Final = 1.0
BAR_WIDTH: Final = 10
"""Characters of the bar: a line of 80 has room for what was done."""


def read_style(text: str | None) -> Style:
    """Return how progress is shown.

    Raises:
        CommandError: The style is unknown.
    """
    if text is None:
        return "bar" if sys.stderr.isatty() else "lines"
    # The name of the style, which has the type of one, unlike the text.
    style: Style | None = next((name for name in get_args(Style) if name == text), None)
    if style is None:
        raise UsageError(f"--progress must be one of {', '.join(get_args(Style))}, not {text!r}")
    return style


async def watch(
    work: Awaitable[Result], show_progress: Callable[[], Awaitable[None]], output: Output
) -> Result:
    """Return the result of work, and call ``show_progress`` every second until then.

    If ``show_progress`` raises an error, the error is written to stderr, and the work continues without
    further calls. A cancellation of this function cancels the work.
    """
    task = asyncio.ensure_future(work)
    try:
        with suppress(OSError):  # stderr may be closed
            try:
                while True:
                    await asyncio.wait({task}, timeout=LOOK_INTERVAL_S)
                    if task.done():
                        break
                    await show_progress()
            except Exception as error:  # noqa: BLE001 - the work matters more than its progress
                output.say(f"progress is no longer shown: {error}; the command continues")
        return await task
    finally:
        # Work that has ended is not affected. Otherwise this function was cancelled, and ends after the work.
        task.cancel()
        await asyncio.wait({task})


@dataclass(slots=True)
class Reporter:
    """A context in which progress is shown."""

    style: Style
    output: Output
    clock: Callable[[], float] = field(default=monotonic)
    _bar: Progress | None = None
    _shown_at: float = 0.0

    def __enter__(self) -> Reporter:
        """Start to show progress."""
        self._shown_at = self.clock()
        if self.style == "bar":
            from rich.console import Console  # noqa: PLC0415 - rich is for the bar only
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn  # noqa: PLC0415

            text = TextColumn("{task.description}", markup=False)
            columns = BarColumn(bar_width=BAR_WIDTH), TaskProgressColumn(), text
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            # Until the first call of show(), the total is unknown.
            self._bar.add_task("", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def show(self, text: str, completed: float, total: float | None) -> None:
        """Show how far the command got, in words and as a part of the total, which is None if unknown."""
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, description=escape(text, kept=""), completed=completed, total=total)
        elif self.style == "lines" and self.clock() - self._shown_at >= LINE_INTERVAL_S:
            self._shown_at = self.clock()
            self.output.say(text)
