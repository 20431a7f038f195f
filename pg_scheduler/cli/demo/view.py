"""Compute the figures that a screen shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .jobs import BROKEN_ATTEMPTS
from .ledger import Tally
from .nodes import Nodes
from .scenario import DURATION_S, Scenario

TITLES: Final = {
    "reminder": "reminders, timed",
    "interval": "interval, every 1 s",
    "cron": "cron, every 2 s",
    "card": "cards, 2 retries each",
    "broken": "broken, always fails",
    "import": "imports, low priority",
    "order": "orders, 4 priorities",
    "video": "videos of 3 s",
}


@dataclass(frozen=True, slots=True)
class NodeView:
    """Figures of one node."""

    name: str
    pid: int
    killed: bool
    running: int
    done: int


@dataclass(frozen=True, slots=True)
class KindView:
    """Figures of one kind of job.

    Attributes:
        done: Completed jobs by node.
        planned: Scheduled jobs, or None for a periodic job.
    """

    title: str
    done: Sequence[int]
    finished: int
    running: int
    failed_attempts: int
    planned: int | None


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a screen shows."""

    elapsed: float
    duration: float
    nodes: Sequence[NodeView]
    kinds: Sequence[KindView]


def build_view(scenario: Scenario, nodes: Nodes, tallies: Sequence[Tally]) -> View:
    """Return the figures for the current content of the ledger."""
    return View(
        elapsed=scenario.elapsed,
        duration=DURATION_S,
        nodes=[
            NodeView(
                node.name,
                node.pid,
                node.killed,
                sum(tally.open for tally in tallies if tally.node == node.name),
                sum(tally.done for tally in tallies if tally.node == node.name),
            )
            for node in nodes
        ],
        kinds=[_kind_view(kind, scenario, nodes, tallies) for kind in TITLES],
    )


def _kind_view(kind: str, scenario: Scenario, nodes: Nodes, tallies: Sequence[Tally]) -> KindView:
    of_kind = [tally for tally in tallies if tally.kind.partition(",")[0] == kind]
    alive = {node.name for node in nodes if not node.killed}
    failed = sum(tally.failed for tally in of_kind)
    return KindView(
        TITLES[kind],
        [sum(tally.done for tally in of_kind if tally.node == node.name) for node in nodes],
        failed // BROKEN_ATTEMPTS if kind == "broken" else sum(tally.done for tally in of_kind),
        sum(tally.open for tally in of_kind if tally.node in alive),
        failed,
        None if kind in ("interval", "cron") else scenario.planned(kind),
    )
