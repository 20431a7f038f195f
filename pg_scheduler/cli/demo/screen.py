"""The output of the demo: a live screen on a terminal, else plain lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, Self, TypeAlias

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from .report import Report, Table
from .scenario import KindView, NodeView, View

STATUS_INTERVAL_S: Final = 2.0

FRAMES_PER_SECOND: Final = 10
LINES_ABOVE_LOG: Final = 15
BAR_WIDTH: Final = 10
EMPTY_BAR: Final = "grey50"


class PlainScreen:
    """Plain lines for files and pipes."""

    def __init__(self) -> None:
        self._next_status = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def log(self, elapsed: float, line: str) -> None:
        """Print the line with the time in front."""
        print(f"{elapsed:5.1f} s  {line}", flush=True)

    def update(self, view: View) -> None:
        """Print one line every two seconds."""
        if view.elapsed < self._next_status:
            return
        self._next_status = view.elapsed + STATUS_INTERVAL_S
        node_texts = []
        for node in view.nodes:
            state = "killed" if node.killed else f"{node.running} running, {node.done:,} done"
            node_texts.append(f"{node.name}: {state}")
        print(f"{view.elapsed:5.1f} s      {' | '.join(node_texts)}", flush=True)

    def show_report(self, report: Report) -> None:
        """Print the tables and the checks."""
        for table in report.tables:
            print(f"\n{table.title}\n\n{_align(table)}")
        print()
        for check in report.checks:
            print(f"  {'ok    ' if check.passed else 'FAILED'}  {check.text}")
        print(flush=True)


def _align(table: Table) -> str:
    """Return a table as text: the first column is aligned to the left, the figures are to the right."""
    lines: list[Sequence[str]] = [table.columns, *table.rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]

    def text(line: Sequence[str]) -> str:
        first_cell = line[0].ljust(widths[0])
        figures = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        return "  " + "   ".join([first_cell, *figures]).rstrip()

    rule = "  " + "   ".join("-" * width for width in widths)
    heading, *rows = [text(line) for line in lines]
    return "\n".join([heading, rule, *rows])


class RichScreen:
    """Live screen. Its last state stays, and the report is printed below it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=FRAMES_PER_SECOND)
        self._log: list[Text] = []
        self._view: View | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def log(self, elapsed: float, line: str) -> None:
        """Add a line below the figures."""
        style = "bold red" if "SIGKILL" in line else ""
        self._log.append(Text.assemble((f"{elapsed:5.1f} s  ", "dim"), (line, style)))
        self._draw()

    def update(self, view: View) -> None:
        """Draw the figures."""
        self._view = view
        self._draw()

    def show_report(self, report: Report) -> None:
        """Print the tables and the checks."""
        self._live.stop()
        for table in report.tables:
            self._console.print()
            self._console.print(_report_table(table))
        self._console.print()
        for check in report.checks:
            mark = Text("  ✔  ", "bold green") if check.passed else Text("  ✘  ", "bold red")
            self._console.print(Text.assemble(mark, (check.text, "" if check.passed else "red")))
        self._console.print()

    def _draw(self) -> None:
        """Draw the figures, and below them as much of the log as fits into the terminal."""
        parts: list[RenderableType] = []
        if self._view is not None:
            parts += [_header(self._view), Text(), _kinds(self._view), Text()]
        lines_above = LINES_ABOVE_LOG if parts else 0
        # Even a low terminal shows four lines of the log.
        room = max(self._console.height - lines_above, 4)
        self._live.update(Group(*parts, *self._latest_lines(room)))

    def _latest_lines(self, room: int) -> list[Text]:
        """Return the newest lines of the log, in order, that fit into so many lines of the terminal."""
        latest: list[Text] = []
        for line in reversed(self._log):
            # A long line takes several lines of the terminal.
            room -= 1 + len(line) // self._console.width
            if room < 0:
                break
            # The lines are read from the newest one on, and shown from the oldest one on.
            latest.insert(0, line)
        return latest


def _header(view: View) -> RenderableType:
    """Return the title with the progress of the demo, and a line for each node."""
    title = Text.assemble(("pg_scheduler", "bold cyan"), "  one database, two nodes")
    bar = _bar(view.duration, min(view.elapsed, view.duration))
    clock = Text(f"{view.elapsed:4.1f} s", "dim")
    grid = RichTable.grid(padding=(0, 2))
    grid.add_row(title, bar, clock)
    return Group(grid, *(_node(node) for node in view.nodes))


def _node(node: NodeView) -> Text:
    """Return the line of a node: its name and process, what it does, and how many jobs it has done."""
    if node.killed:
        dot_style, state, state_style = "red", "killed", "bold red"
    else:
        dot_style, state, state_style = "green", f"{node.running} running", ""
    return Text.assemble(
        ("●", dot_style),
        f" {node.name}  pid {node.pid:<8}",
        (f"{state:>10}", state_style),
        (f"{node.done:8,} done", "dim"),
    )


def _kinds(view: View) -> RichTable:
    """Return the table with a row for each kind of job."""
    table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("jobs", no_wrap=True)
    for node in view.nodes:
        table.add_column(node.name, justify="right", style="dim" if node.killed else "")
    table.add_column("running", justify="right", style="cyan")
    table.add_column("failed", justify="right", style="yellow")
    table.add_column("done", justify="right", min_width=len("2,000/2,000"))
    table.add_column("", width=BAR_WIDTH)
    for kind in view.kinds:
        table.add_row(
            kind.title,
            *(f"{count:,}" for count in kind.done),
            # Zeros are left out.
            str(kind.running or ""),
            str(kind.failed_attempts or ""),
            *_progress(kind),
        )
    return table


def _progress(kind: KindView) -> tuple[str, RenderableType]:
    """Return the last two cells of a kind of job: how many are done, and a bar."""
    # A periodic job has no number of jobs that are planned.
    if kind.planned is None:
        return f"{kind.finished:,}", ""
    # The demo schedules the first ones later.
    if kind.planned == 0:
        return "", Text("later", "dim")
    return f"{kind.finished:,}/{kind.planned:,}", _bar(kind.planned, kind.finished)


def _bar(total: float, completed: float) -> ProgressBar:
    return ProgressBar(total=total, completed=completed, width=BAR_WIDTH, style=EMPTY_BAR)


def _report_table(table: Table) -> RichTable:
    """Return a table of the report: the first column is text, the others are figures. Sums are bold."""
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if index else "left")
    for row in table.rows:
        drawn.add_row(*row, style="bold" if row[0] == "all" else "")
    return drawn


Screen: TypeAlias = PlainScreen | RichScreen


def choose_screen(*, plain: bool) -> Screen:
    """Return a live screen on a terminal, else or if ``plain`` one of plain lines."""
    if plain or not sys.stdout.isatty():
        return PlainScreen()
    return RichScreen()
