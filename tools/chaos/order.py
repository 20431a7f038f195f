"""The checks of order: fire times of periodic jobs, and claims."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

from tools.chaos.evidence import Evidence, Row
from tools.chaos.jobs import ALLOWED, PERIODIC
from tools.chaos.nemesis import JOBS_LOCKED, MIN_STEP_S, SCHEDULES_LOCKED, WORKER_CLOCK, Fault
from tools.chaos.overlaps import AFTERMATH_S

LATE_INSERT_S: Final = 3.0
"""Seconds for which a claim may miss a job with an earlier due time that was inserted late: the polling
interval of 2 s, and 1 s for the commit.
"""

CONCURRENT_S: Final = 1.0
"""Seconds by which a claim may precede another one that had locked a job of a higher priority."""

MAX_STEPS_UNTIMED: Final = 5
"""Seconds by which the planner may be late if lateness is not judged; it merges late fire times."""

ROUNDING_S: Final = 1e-5
"""Seconds of rounding error when an instant becomes a float."""


def repeated_or_missing_fire_times(evidence: Evidence) -> Iterator[str]:
    """Yield fire times that were enqueued twice or left out.

    Fire times may be merged only near a fault, or if the planner may be late.
    """
    most = 1 if evidence.timed else MAX_STEPS_UNTIMED
    planned = Counter(record.details[0] for record in evidence.ledgers.events["PeriodicJobPlanned"])
    for job_id, times in planned.items():
        if times > 1 and job_id not in evidence.inserted_again:
            yield f"{job_id} was planned {times} times"
    # A fire time is what the server's clock showed, even while it was stepped.
    moved = [
        replace(fault, began=fault.began + fault.step, ended=fault.ended + fault.step)
        for fault in evidence.faults
        if fault.step
    ]
    affected = AffectedPeriods([*evidence.faults, *moved], evidence.lease + AFTERMATH_S)
    due: dict[str, list[float]] = {name: [] for name in (*PERIODIC, ALLOWED)}
    for row in evidence.rows.values():
        if row.job_name in due:
            due[row.job_name].append(row.due if row.fire_time is None else row.fire_time)
    for name, instants in due.items():
        if not instants:
            yield f"{name}: no fire time"
        for one, other in pairwise(sorted(instants)):
            steps = round(other - one)
            if steps < 1:
                yield f"{name}: two jobs for one fire time"
            elif steps > most and not affected.touch(one, other):
                yield f"{name}: {steps - 1} fire times are missing without a fault near"


def early_claims(evidence: Evidence) -> Iterator[str]:
    """Yield jobs that were claimed before their execution time; both times are the server clock's."""
    for row in evidence.rows.values():
        if row.started is not None and row.started < row.due - ROUNDING_S:
            yield f"{row.job_id} was claimed {row.due - row.started:.6f} s before its time"


def claimed_at_steady_clock(evidence: Evidence, row: Row) -> bool:
    """Return whether the server's clock was right at the claim, judged by the start of the first attempt."""
    attempts = evidence.ledgers.attempts.get(row.job_id)
    if not attempts or row.started is None:
        return False
    return row.created <= row.started and abs(row.started - attempts[0].started) < MIN_STEP_S / 2


def inversions(evidence: Evidence) -> Iterator[str]:
    """Yield claims that passed over a due job of a higher priority while there was no fault."""
    faults = [fault for fault in evidence.faults if fault.kind != SCHEDULES_LOCKED]
    locked = {job_id for fault in faults if fault.kind == JOBS_LOCKED for job_id in fault.rows}
    affected = AffectedPeriods(faults, evidence.lease)
    calm: list[tuple[float, Row]] = []
    waiting: dict[int, list[tuple[float, float, str]]] = {}
    for row in evidence.rows.values():
        if row.attempt != 1 or row.started is None or evidence.is_replaced(row.job_id):
            continue
        if evidence.was_blocked(row.job_id):
            continue
        if not claimed_at_steady_clock(evidence, row):
            continue
        calm.append((row.started, row))
        since, until = max(row.due, row.created) + LATE_INSERT_S, row.started - CONCURRENT_S
        if (
            row.job_id not in locked
            and since < until
            and not affected.touch(since - LATE_INSERT_S, row.started)
        ):
            waiting.setdefault(row.priority, []).append((since, until, f"{row.job_id} ({row.job_name})"))
    for priority, spans in waiting.items():
        merged = _merged((since, until) for since, until, _ in spans)
        starts = [since for since, _ in merged]
        for started, row in calm:
            index = bisect_right(starts, started) - 1
            if row.priority > priority and index >= 0 and started < merged[index][1]:
                waits = next(name for since, until, name in spans if since <= started < until)
                yield (
                    f"{row.job_id} of priority {row.priority} was claimed while some of {priority} waited, "
                    f"such as {waits}"
                )


class AffectedPeriods:
    """The periods affected by faults. A worker's own clock and locked jobs affect nothing else."""

    def __init__(self, faults: Iterable[Fault], aftermath: float) -> None:
        effective = (fault for fault in faults if fault.kind not in (WORKER_CLOCK, JOBS_LOCKED))
        self._spans = _merged((fault.began, fault.ended + aftermath) for fault in effective)
        self._begins = [began for began, _ in self._spans]

    def touch(self, began: float, ended: float) -> bool:
        """Return whether a fault affects any instant of this period."""
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
