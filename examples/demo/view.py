"""What there is to see at one moment, without saying how it looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from examples.demo.jobs import TRIES_OF_BROKEN
from examples.demo.ledger import Tally
from examples.demo.nodes import Nodes
from examples.demo.story import DURATION, Story

__all__ = ["Act", "NodeView", "View", "look"]

TITLES: Final = {
    "reminder": "reminders, timed",
    "interval": "interval, every 1 s",
    "cron": "cron, * * * * * */2",
    "card": "cards, fail twice",
    "broken": "broken, always fails",
    "import": "imports, low priority",
    "order": "orders, 4 priorities",
    "video": "videos of 3 s",
}


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node."""

    name: str
    pid: int
    killed: bool
    running: int
    done: int


@dataclass(frozen=True, slots=True)
class Act:
    """One kind of job. ``done`` is by node; ``planned`` None: there is no end to them."""

    title: str
    done: Sequence[int]
    ended: int
    running: int
    failed_tries: int
    planned: int | None


@dataclass(frozen=True, slots=True)
class View:
    """All of it."""

    elapsed: float
    duration: float
    nodes: Sequence[NodeView]
    acts: Sequence[Act]


def look(story: Story, nodes: Nodes, tallies: Sequence[Tally]) -> View:
    """The view of what the ledger says now."""
    return View(
        elapsed=story.elapsed,
        duration=DURATION,
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
        acts=[_act(kind, story, nodes, tallies) for kind in TITLES],
    )


def _act(kind: str, story: Story, nodes: Nodes, tallies: Sequence[Tally]) -> Act:
    ours = [tally for tally in tallies if tally.kind.partition(",")[0] == kind]
    alive = {node.name for node in nodes if not node.killed}
    failed = sum(tally.failed for tally in ours)
    return Act(
        TITLES[kind],
        [sum(tally.done for tally in ours if tally.node == node.name) for node in nodes],
        failed // TRIES_OF_BROKEN if kind == "broken" else sum(tally.done for tally in ours),
        sum(tally.open for tally in ours if tally.node in alive),
        failed,
        None if kind in ("interval", "cron") else story.planned(kind),
    )
