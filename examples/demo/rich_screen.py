"""The live screen."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from examples.demo.checks import Table, Verdict
from examples.demo.view import Act, NodeView, View

__all__ = ["RichScreen"]

FRAMES_PER_SECOND: Final = 10
LINES_ABOVE: Final = 15
BAR: Final = 10


class RichScreen:
    """One screen that changes in place; the last one stays, and the verdict comes below."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=FRAMES_PER_SECOND)
        self._story: list[Text] = []
        self._view: View | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def tell(self, elapsed: float, line: str) -> None:
        """Add a line below the figures."""
        style = "bold red" if "SIGKILL" in line else ""
        self._story.append(Text.assemble((f"{elapsed:5.1f} s  ", "dim"), (line, style)))
        self._draw()

    def show(self, view: View) -> None:
        """Draw the figures."""
        self._view = view
        self._draw()

    def conclude(self, verdict: Verdict) -> None:
        """The tables and the checks."""
        self._live.stop()
        for table in verdict.tables:
            self._console.print()
            self._console.print(_table(table))
        self._console.print()
        for check in verdict.checks:
            mark = Text("  ✔  ", "bold green") if check.holds else Text("  ✘  ", "bold red")
            self._console.print(mark + Text(check.says, "" if check.holds else "red"))
        self._console.print()

    def _draw(self) -> None:
        parts: list[RenderableType] = []
        if self._view is not None:
            parts += [_header(self._view), Text(), _acts(self._view), Text()]
        room = max(self._console.height - (LINES_ABOVE if parts else 0), 4)
        self._live.update(Group(*parts, *self._latest(room)))

    def _latest(self, room: int) -> list[Text]:
        latest: list[Text] = []
        for line in reversed(self._story):
            room -= 1 + len(line) // self._console.width
            if room < 0:
                break
            latest.insert(0, line)
        return latest


def _header(view: View) -> RenderableType:
    title = Text.assemble(("pg_scheduler", "bold cyan"), "  one database, two nodes")
    bar = ProgressBar(total=view.duration, completed=min(view.elapsed, view.duration), width=BAR)
    clock = Text(f"{view.elapsed:4.1f} s", "dim")
    grid = RichTable.grid(padding=(0, 2))
    grid.add_row(title, bar, clock)
    return Group(grid, *(_node(node) for node in view.nodes))


def _node(node: NodeView) -> Text:
    if node.killed:
        state = Text.assemble(("●", "red"), f" {node.name}  pid {node.pid:<8}", ("killed", "bold red"))
    else:
        busy = f"{node.running:3} running"
        state = Text.assemble(("●", "green"), f" {node.name}  pid {node.pid:<8}{busy}")
    return state + Text(f"{node.done:8,} done", "dim")


def _acts(view: View) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("jobs", no_wrap=True)
    for node in view.nodes:
        table.add_column(node.name, justify="right", style="dim strike" if node.killed else "")
    table.add_column("running", justify="right", style="cyan")
    table.add_column("failed", justify="right", style="yellow")
    table.add_column("done", justify="right", min_width=len("2,000/2,000"))
    table.add_column("", width=BAR)
    for act in view.acts:
        table.add_row(
            act.title,
            *(f"{done:,}" for done in act.done),
            str(act.running or ""),
            str(act.failed_tries or ""),
            *_progress(act),
        )
    return table


def _progress(act: Act) -> tuple[str, RenderableType]:
    if act.planned is None:
        return f"{act.ended:,}", ""
    if act.planned == 0:
        return "", Text("later", "dim")
    return f"{act.ended:,}/{act.planned:,}", ProgressBar(total=act.planned, completed=act.ended, width=BAR)


def _table(table: Table) -> RichTable:
    drawn = RichTable(title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if index else "left")
    for row in table.rows:
        drawn.add_row(*row, style="bold" if row[0] == "all" else "")
    return drawn
