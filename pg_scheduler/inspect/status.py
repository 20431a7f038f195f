"""The state of everything, in some sentences and one text for each area. People read this first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pg_scheduler.base.figures import OUTCOMES
from pg_scheduler.facts.lateness import count_held, describe_nothing_late
from pg_scheduler.facts.outcomes import FAILED_ATTEMPTS, count_failed
from pg_scheduler.facts.schedule_state import SCHEDULE_STATES
from pg_scheduler.inspect.cluster import ClusterFigures
from pg_scheduler.inspect.doctor.codes import Severity
from pg_scheduler.inspect.doctor.findings import Diagnosis, Finding, worst_of
from pg_scheduler.inspect.statistics import Statistics
from pg_scheduler.inspect.tasks import describe_waiting
from pg_scheduler.inspect.texts import count, counted, length, listed, plural, rounded

PERIOD: Final = timedelta(minutes=15)
"""The period in which completed and failed attempts are counted."""

MAX_SENTENCES: Final = 5
"""The maximum number of findings that get a sentence."""

AREAS: Final[dict[str, tuple[str, ...]]] = {
    "jobs": ("LATE", "NAME-UNKNOWN", "STUCK"),
    "results": ("FAILING", "JOBS-EXPIRED", "QUARANTINE"),
    "workers": ("WORKER-NONE", "WORKER-DEAD", "WORKER-NO-LISTEN", "WORKER-DRAINING", "LOOP-BLOCKED"),
    "schedules": (
        "SCHED-OVERDUE",
        "SCHED-UNKNOWN",
        "SCHED-LOST",
        "SCHED-BROKEN",
        "SCHED-ZONE",
        "SCHED-AHEAD",
    ),
    "tasks": (),
    "limits": (),
    "tables": ("INDEX-MISSING", "INDEX-INVALID", "HOT-LOST", "BLOAT", "WRAPAROUND", "XMIN-HELD"),
}
"""The areas, and the findings of the doctor that belong to each."""

STATUS_CODES: Final = [code for codes in AREAS.values() for code in codes]
"""The checks of the doctor that decide whether all is well, for every front end."""


@dataclass(frozen=True, slots=True)
class StatusArea:
    """One area: ``jobs``, ``results``, ``workers``, ``schedules``, ``tasks``, ``limits`` or ``tables``."""

    area: str
    """Its name."""
    severity: Severity
    """The severity of its worst finding."""
    text: str
    """Its figures."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of everything."""

    severity: Severity
    """The severity of the worst area; ``error`` if jobs do not run, or will not run."""
    sentences: tuple[str, ...]
    """One sentence if all is well, otherwise a sentence for each of the worst findings, with its remedy."""
    areas: tuple[StatusArea, ...]
    """The areas."""


def problems_of(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are at least warnings. All is well if there are none."""
    return [finding for finding in findings if finding.severity.rank >= Severity.WARNING.rank]


def describe_status(figures: ClusterFigures, statistics: Statistics, diagnosis: Diagnosis) -> Status:
    """Return the status that follows from the figures of all workers and jobs, and from the findings."""
    paused = "none paused"
    if figures.paused:
        paused = f"{len(figures.paused):,} paused: {listed(figures.paused)}"
    texts = {
        "jobs": _jobs(figures),
        "results": _results(statistics),
        "workers": _workers(figures),
        "schedules": _schedules(figures),
        "tasks": paused,
        "limits": _limits(figures),
        "tables": _tables(figures),
    }
    # An area is as severe as the worst of the findings that belong to it.
    severities = {
        area: worst_of(finding.severity for finding in diagnosis.findings if finding.code.value in codes)
        for area, codes in AREAS.items()
    }
    areas = tuple(StatusArea(area, severities[area], texts[area]) for area in AREAS)
    severity = max(severities.values(), key=lambda severity: severity.rank)
    return Status(severity, tuple(_sentences(figures, diagnosis.findings)), areas)


def _sentences(figures: ClusterFigures, findings: Sequence[Finding]) -> Iterator[str]:
    """Yield that all is well, or otherwise the worst findings and the number of the others."""
    problems = problems_of(findings)
    # The loop below then has no finding to state.
    if not problems:
        slots, busy = _slots(figures)
        workers = counted(_count_alive(figures), "worker")
        yield f"All is well: {workers}, {busy:,} of {slots:,} slots busy, {_nothing_late(figures)}."
    for finding in problems[:MAX_SENTENCES]:
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        yield f"{finding.code.value}: {finding.evidence}{remedy}"
    if len(problems) > MAX_SENTENCES:
        yield f"and {counted(len(problems) - MAX_SENTENCES, 'more finding')}: pg-scheduler doctor"


def _count_alive(figures: ClusterFigures) -> int:
    """Return the number of live workers."""
    return sum(worker.is_alive for worker in figures.workers)


def _slots(figures: ClusterFigures) -> tuple[int, int]:
    """Return the number of slots of live workers, and how many of them are in use."""
    alive = [worker for worker in figures.workers if worker.is_alive]
    return sum(worker.slots for worker in alive), sum(worker.busy_slots for worker in alive)


def _nothing_late(figures: ClusterFigures) -> str:
    """Return that no job is late, and how many due jobs wait for the end of a pause."""
    return describe_nothing_late(count_held(figures.backlog, figures.held))


def _jobs(figures: ClusterFigures) -> str:
    """Return how many jobs wait, since when the oldest one waits, and how many are unfinished."""
    due = sum(row.due for row in figures.backlog)
    # These are due jobs of paused tasks.
    held = count_held(figures.backlog, figures.held)
    unfinished = figures.totals.unfinished
    # An estimate below the number of due jobs is outdated, because the table was not analyzed for long.
    is_stale = unfinished is None or unfinished < due
    number = unfinished or 0
    estimate = "" if is_stale else f"; about {rounded(number)} unfinished {plural(number, 'job')} in all"
    blocked_count = sum(figures.blocked.values())
    if not due and not blocked_count:
        return f"none waiting{estimate}"
    parts = [
        describe_waiting(
            due,
            blocked_count,
            is_due_capped=figures.is_capped,
            is_blocked_capped=figures.is_blocked_capped,
        )
    ]
    due_times = [(row.oldest_due_at, row.name) for row in figures.waiting if row.oldest_due_at is not None]
    if due_times:
        oldest_due_at, name = min(due_times)
        parts.append(f"the oldest since {length(figures.now - oldest_due_at)} ({name})")
    if held:
        parts.append(f"{count(held, is_capped=figures.is_capped)} of paused tasks")
    return f"{', '.join(parts)}{estimate}"


def _results(statistics: Statistics) -> str:
    """Return how many attempts ended in the period, by outcome: completed, failed, and the others."""
    total = statistics.total()
    # The numbers of ended attempts have the order of OUTCOMES.
    ended = dict(zip(OUTCOMES, total.ended, strict=True))
    minutes = PERIOD.total_seconds() / 60
    parts = [f"{ended['completed']:,} completed"]
    failed = count_failed(total)
    if failed:
        # Attempts that were retried or lost count as failed too. They are listed behind the number.
        other_failures = [
            f"{ended[name]:,} {name}" for name in FAILED_ATTEMPTS if ended[name] and name != "failed"
        ]
        failures_note = f" ({', '.join(other_failures)})" if other_failures else ""
        parts.append(f"{failed:,} failed{failures_note}")
    other_outcomes = [name for name in OUTCOMES if name != "completed" and name not in FAILED_ATTEMPTS]
    parts += [f"{ended[name]:,} {name}" for name in other_outcomes if ended[name]]
    uncounted = f"; {statistics.uncounted}" if statistics.uncounted else ""
    return f"{', '.join(parts)} in {minutes:.0f} min{uncounted}"


def _workers(figures: ClusterFigures) -> str:
    """Return how many workers are alive and draining, and how many of their slots are in use."""
    slots, busy = _slots(figures)
    draining = sum(worker.is_alive and worker.is_draining for worker in figures.workers)
    draining_note = f", {draining} draining" if draining else ""
    return f"{_count_alive(figures)} alive, {busy:,} of {slots:,} slots busy{draining_note}"


def _schedules(figures: ClusterFigures) -> str:
    """Return the numbers of schedules by state, and which are overdue or else when the next one fires."""
    enabled = [schedule for schedule in figures.schedules if schedule.is_enabled]
    fires = [schedule.next_fire_at for schedule in enabled if schedule.next_fire_at is not None]
    overdue = [schedule.schedule_id for schedule in figures.schedules if schedule.state == "overdue"]
    states = Counter(schedule.state for schedule in figures.schedules)
    # The overdue schedules have a part of their own, with their ids.
    shown_states = [
        state for state in SCHEDULE_STATES if state == "active" or (states[state] and state != "overdue")
    ]
    parts = [f"{states[state]:,} {state}" for state in shown_states]
    if overdue:
        parts.append(f"{len(overdue):,} overdue: {listed(overdue)}")
    elif fires:
        parts.append(f"next fires in {length(min(fires) - figures.now)}")
    return ", ".join(parts)


def _limits(figures: ClusterFigures) -> str:
    """Return how many jobs are blocked, by what they wait for."""
    if not figures.blocked:
        return "no job is blocked"
    parts = [
        f"{count(number, is_capped=figures.is_blocked_capped)} by {name}"
        for name, number in sorted(figures.blocked.items())
    ]
    return f"blocked jobs: {listed(parts)}"


def _tables(figures: ClusterFigures) -> str:
    """Return the size of all tables, their dead rows, and the age of the oldest transaction."""
    size = sum(table.total_bytes for table in figures.tables)
    dead = sum(table.dead for table in figures.tables)
    oldest = length(figures.oldest_transaction_s)
    dead_rows = f"{rounded(dead)} dead {plural(dead, 'row')}"
    return f"{_bytes(size)}, {dead_rows}, the oldest transaction since {oldest}"


def _bytes(number: int) -> str:
    """Return a number of bytes in the largest unit of which there is at least one."""
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"
