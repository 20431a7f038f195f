"""What ought to come in order: the windows of periodic jobs, and claims."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

from tools.chaos.evidence import Evidence, Row
from tools.chaos.jobs import PERIODIC
from tools.chaos.nemesis import LEAST_STEP, WORKER_CLOCK, Fault
from tools.chaos.overlaps import AFTERMATH

__all__ = ["by_a_steady_clock", "inversions", "too_early", "windows"]

OVERLOOKED: Final = 3.0
"""Seconds for which a claim may overlook a job that came in late with an earlier time: the polling interval's
two, and one for the job to be committed."""

LATE: Final = 5
"""Seconds by which the planner may be late where lateness is not judged. Windows that it is late for become
one."""

ROUNDED: Final = 1e-5
"""Seconds that are lost when an instant becomes a float."""


def windows(evidence: Evidence) -> Iterator[str]:
    """Each window once; only in the wake of a fault, or of a planner that is late, may several become one."""
    most = 1 if evidence.timed else LATE
    planned = Counter(word.about[1] for word in evidence.book.words["PeriodicJobPlanned"])
    for job_id, times in planned.items():
        if times > 1:
            yield f"{job_id} was planned {times} times"
    # A window's time is the one that the server's clock showed, also while that was moved.
    moved = [
        replace(fault, began=fault.began + fault.step, ended=fault.ended + fault.step)
        for fault in evidence.faults
        if fault.step
    ]
    wakes = _Wakes([*evidence.faults, *moved], evidence.lease + AFTERMATH)
    due: dict[str, list[float]] = {name: [] for name in PERIODIC}
    for row in evidence.rows.values():
        if row.job_name in due:
            due[row.job_name].append(row.due)
    for name, instants in due.items():
        if not instants:
            yield f"{name}: no window"
        for one, other in pairwise(sorted(instants)):
            steps = round(other - one)
            if steps < 1:
                yield f"{name}: two jobs for one window"
            elif steps > most and not wakes.touch(one, other):
                yield f"{name}: {steps - 1} windows were left out with no fault near"


def too_early(evidence: Evidence) -> Iterator[str]:
    """No job is claimed before its time, wherever the server's clock stands: both are that clock's."""
    for row in evidence.rows.values():
        if row.started is not None and row.started < row.due - ROUNDED:
            yield f"{row.job_id} was claimed {row.due - row.started:.6f} s before its time"


def by_a_steady_clock(evidence: Evidence, row: Row) -> bool:
    """Whether the server's clock was right when this one was claimed: its first try says when that was."""
    tries = evidence.book.tries.get(row.job_id)
    if not tries or row.started is None:
        return False
    return row.created <= row.started and abs(row.started - tries[0].started) < LEAST_STEP / 2


def inversions(evidence: Evidence) -> Iterator[str]:
    """While nothing was wrong, nobody was claimed before one of a higher priority that had been due."""
    wakes = _Wakes(evidence.faults, evidence.lease)
    calm: list[tuple[float, Row]] = []
    waiting: dict[int, list[tuple[float, float]]] = {}
    for row in evidence.rows.values():
        if row.attempt != 1 or row.started is None or evidence.is_replaced(row.job_id):
            continue
        if not by_a_steady_clock(evidence, row):
            continue
        calm.append((row.started, row))
        since = max(row.due, row.created) + OVERLOOKED
        if since < row.started and not wakes.touch(since - OVERLOOKED, row.started):
            waiting.setdefault(row.priority, []).append((since, row.started))
    for priority, spans in waiting.items():
        merged = _merged(spans)
        starts = [since for since, _ in merged]
        for started, row in calm:
            index = bisect_right(starts, started) - 1
            if row.priority > priority and index >= 0 and started < merged[index][1]:
                yield f"{row.job_id} of priority {row.priority} was claimed while some of {priority} waited"


class _Wakes:
    """The spans of time in which faults are felt. A worker's own clock is nothing that anybody may feel."""

    def __init__(self, faults: Iterable[Fault], aftermath: float) -> None:
        felt = (fault for fault in faults if fault.kind != WORKER_CLOCK)
        self._spans = _merged((fault.began, fault.ended + aftermath) for fault in felt)
        self._begins = [began for began, _ in self._spans]

    def touch(self, began: float, ended: float) -> bool:
        """Whether one of them has an instant in common with this span."""
        index = bisect_right(self._begins, ended)
        return index > 0 and self._spans[index - 1][1] >= began


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for since, until in sorted(spans):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(until, merged[-1][1]))
        else:
            merged.append((since, until))
    return merged
