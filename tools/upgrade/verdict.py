"""The verdict of a rehearsal: whether all jobs ran as often as they must, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from tools.upgrade.kinds import Kind
from tools.upgrade.ledger import Entry

PHASES: Final = {
    "both": "old next to new",
    "back": "rolled back",
    "forward": "rolled forward",
    "down": "after down",
}


@dataclass
class Verdict:
    """The table, and what was wrong."""

    title: str
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    """The text for each name of a kind and each phase."""
    problems: list[str] = field(default_factory=list)

    def add_cell(self, row: str, phase: str, text: str) -> None:
        """Add a cell to the table."""
        self.cells.setdefault(row, {})[phase] = text

    def lines(self) -> Iterator[str]:
        """Return the lines of the table: a kind of jobs in each row, a phase in each column."""
        phases = [phase for phase in PHASES if any(phase in cells for cells in self.cells.values())]
        yield f"| {self.title} | {' | '.join(PHASES[phase] for phase in phases)} |"
        yield "|---|" + "---|" * len(phases)
        for name, cells in self.cells.items():
            yield f"| {name} | {' | '.join(cells.get(phase, '-') for phase in phases)} |"


def problems_by_job(kind: Kind, tags: Sequence[str], entries: Sequence[Entry]) -> Mapping[str, list[str]]:
    """Return what is wrong with each job that did not run as often as its kind must."""
    counts = Counter((entry.tag, entry.event) for entry in entries)
    problems: dict[str, list[str]] = {}
    for tag in tags:
        for suffix, events in kind.events.items():
            for event, times in events.items():
                count = counts[tag + suffix, event]
                if count != times:
                    problem = f"{tag}{suffix}: {event!r} {count} times, not {times}"
                    problems.setdefault(tag, []).append(problem)
    return problems


def due_times(fire_times: Sequence[datetime]) -> Sequence[datetime]:
    """Return the fire times that a schedule of each second must have had, from the first to the last one."""
    first = min(fire_times)
    seconds = round((max(fire_times) - first).total_seconds())
    return [first + timedelta(seconds=number) for number in range(seconds + 1)]


def problems_of_schedule(fire_times: Sequence[datetime]) -> Sequence[str]:
    """Return the fire times that a schedule of each second has missed, or has had twice."""
    counts = Counter(fire_times)
    return [
        f"the schedule in the code fired {counts[due_time]} times at {due_time}, not once"
        for due_time in due_times(fire_times)
        if counts[due_time] != 1
    ]
