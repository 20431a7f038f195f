"""Check the ledger at the end of the demo and summarise it in tables."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.base.text.numbers import counted

from . import jobs
from .jobs import DONE, FAILED, Attempt

PERIODIC: Final = {"interval": jobs.INTERVAL, "cron": jobs.CRON_STEP}
TITLES: Final = {
    "reminder": "reminders, timed",
    "import": "imports, bulk load",
    "order, critical": "orders, critical",
    "order, high": "orders, high",
    "order, normal": "orders, normal",
    "order, low": "orders, low",
    "card": "cards, 2 retries each",
    "broken": "broken, always fails",
    "video": "videos of 3 s",
    "interval": "interval, every 1 s",
    "cron": "cron, every 2 s",
}
LATENESS_OF_ORDERS: Final = {
    "critical": "orders, critical",
    "high": "orders, high",
    "normal": "orders, normal",
    "low": "orders, low, after the 2,000",
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose first column is text and whose other columns are figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Check:
    """One statement about the ledger, and whether it is true."""

    text: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The result of the demo."""

    tables: list[Table] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def build_report(
    expected: Mapping[str, str],
    attempts: Sequence[Attempt],
    nodes: Sequence[str],
    victim: str,
    killed_at: datetime,
) -> Report:
    """Compare the attempts in the ledger of the demo with the one-off jobs that were scheduled.

    Args:
        expected: The kinds of the one-off jobs, by their ids.
        attempts: The attempts in the ledger.
        nodes: The names of the nodes.
        victim: The name of the node that was killed.
        killed_at: When it was killed.
    """
    by_job: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_job[attempt.job_id].append(attempt)
    return Report(
        [_finished_by_node(attempts, nodes, victim), _lateness(attempts)],
        [
            _check_none_lost(expected, by_job),
            _check_none_doubled(by_job),
            _check_broken_failed(expected, by_job),
            _check_reclaimed(by_job, victim, killed_at),
            *(_check_fire_times(kind, step, attempts) for kind, step in PERIODIC.items()),
        ],
    )


def _finished_by_node(attempts: Sequence[Attempt], nodes: Sequence[str], victim: str) -> Table:
    """Return a table with the number of finished jobs of each kind on each node."""
    finished: Counter[tuple[str, str]] = Counter()
    for attempt in attempts:
        # The broken job finishes with its last failure, any other job with a completion.
        is_last_failure = attempt.outcome == FAILED and attempt.number == jobs.BROKEN_ATTEMPTS
        is_finished = is_last_failure if attempt.kind == "broken" else attempt.outcome == DONE
        if is_finished:
            finished[attempt.kind, attempt.node] += 1

    def row(title: str, kinds: Iterable[str]) -> list[str]:
        """Return a row: the title, the finished jobs of these kinds on each node, and their sum."""
        counts = [sum(finished[kind, node] for kind in kinds) for node in nodes]
        figures = [*counts, sum(counts)]
        return [title, *(f"{figure:,}" for figure in figures)]

    rows = [row(title, [kind]) for kind, title in TITLES.items()]
    rows.append(row("all", TITLES))
    names = [f"{node} (killed)" if node == victim else node for node in nodes]
    return Table("Finished jobs by node", ["jobs", *names, "total"], rows)


def _lateness(attempts: Sequence[Attempt]) -> Table:
    """Return a table of how late the first attempts of jobs began."""

    def row(title: str, delays_s: list[float]) -> list[str]:
        """Return a row: the title, the number of jobs, and percentiles of their lateness."""
        if not delays_s:
            return [title, "0", "-", "-", "-"]
        percentiles = [f"{delay_s * 1000:,.1f} ms" for delay_s in _percentiles(delays_s)]
        return [title, str(len(delays_s)), *percentiles]

    def lateness_of(*kinds: str) -> list[float]:
        """Return the lateness of each job of these kinds, in seconds."""
        # Later attempts are retries, which are due at other times.
        return [attempt.lateness for attempt in attempts if attempt.number == 1 and attempt.kind in kinds]

    rows = [row("reminders", lateness_of("reminder")), row("interval and cron", lateness_of(*PERIODIC))]
    rows += [row(title, lateness_of(f"order, {level}")) for level, title in LATENESS_OF_ORDERS.items()]
    return Table("Lateness (start minus due time)", ["jobs", "count", "p50", "p99", "max"], rows)


def _percentiles(values: list[float]) -> tuple[float, float, float]:
    """Return the median, the 99th percentile and the maximum."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    # The 99 values that cut the sorted ones into 100 parts: the first is the first percentile.
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[98], max(values)


def _check_none_lost(expected: Mapping[str, str], by_job: Mapping[str, Sequence[Attempt]]) -> Check:
    """Check that each job that was scheduled once has completed, except the one that always fails.

    ``expected`` has the kinds of these jobs, and ``by_job`` the attempts of all jobs, by their ids.
    """
    one_offs = [job_id for job_id, kind in expected.items() if kind != "broken"]
    # A job that never ran has no attempts.
    lost = [job_id for job_id in one_offs if _completions(by_job.get(job_id, ())) == 0]
    completed_count = len(one_offs) - len(lost)
    text = f"nothing lost: {completed_count:,} of {len(one_offs):,} one-off jobs completed"
    return Check(text, not lost)


def _check_none_doubled(by_job: Mapping[str, Sequence[Attempt]]) -> Check:
    """Check that no job has completed twice."""
    doubled = [job_id for job_id, attempts in by_job.items() if _completions(attempts) > 1]
    return Check(f"nothing doubled: {len(doubled)} of {len(by_job):,} jobs completed twice", not doubled)


def _check_broken_failed(expected: Mapping[str, str], by_job: Mapping[str, Sequence[Attempt]]) -> Check:
    """Check that the job that always fails has used all of its attempts, and has not completed."""
    broken = [by_job.get(job_id, ()) for job_id, kind in expected.items() if kind == "broken"]
    failure_counts = [sum(attempt.outcome == FAILED for attempt in attempts) for attempts in broken]
    has_failed = all(count == jobs.BROKEN_ATTEMPTS for count in failure_counts)
    has_completed = any(_completions(attempts) for attempts in broken)
    attempts_text = counted(failure_counts[0] if failure_counts else 0, "attempt")
    text = f"retries exhausted: the broken job failed after {attempts_text}"
    return Check(text, has_failed and not has_completed)


def _check_reclaimed(by_job: Mapping[str, Sequence[Attempt]], victim: str, killed_at: datetime) -> Check:
    """Check that each job that ran on the killed node was started again."""
    # The attempts of each job that was running on the node when the node was killed.
    orphaned = [
        attempts
        for attempts in by_job.values()
        if any(attempt.node == victim and attempt.outcome is None for attempt in attempts)
    ]
    # The first start of each orphaned job after the kill.
    restarts = [
        min(attempt.started_at for attempt in attempts if attempt.started_at > killed_at)
        for attempts in orphaned
        if any(attempt.started_at > killed_at for attempt in attempts)
    ]
    # Without an orphaned job, nothing was checked.
    passed = bool(orphaned) and len(restarts) == len(orphaned)
    delay = f", {(min(restarts) - killed_at).total_seconds():.1f} s after the kill" if restarts else ""
    return Check(
        f"reclaimed: {len(restarts)} of {len(orphaned)} orphaned jobs of {victim} restarted{delay}",
        passed,
    )


def _check_fire_times(kind: str, step: timedelta, attempts: Sequence[Attempt]) -> Check:
    """Check that one job of this kind has completed for each fire time. The next one follows after a step."""
    # The number of completions, by fire time.
    completions = Counter(
        attempt.due for attempt in attempts if attempt.kind == kind and attempt.outcome == DONE
    )
    if not completions:
        return Check(f"{kind}: no fire time was run", False)
    # The fire times from the first to the last one that was run, whether they were run or not.
    fire_count = (max(completions) - min(completions)) // step + 1
    once_count = sum(count == 1 for count in completions.values())
    # Every fire time was run once, and no other time was run.
    passed = once_count == fire_count and len(completions) == fire_count
    return Check(f"{kind}: {once_count} of {fire_count} fire times were run exactly once", passed)


def _completions(attempts: Sequence[Attempt]) -> int:
    """Return how many of these attempts have completed."""
    return sum(attempt.outcome == DONE for attempt in attempts)
