"""Check whether finished jobs are deleted, and whether the table of jobs stays small.

The check forecasts when the table of jobs reaches its limit, from its size, its rows and the jobs that ended
lately. Suppose the load is the same every day. After t days, the table contains the unfinished jobs. It also
contains the finished jobs of each status: those of t days, or of the days for which they are kept if that is
less. The present number of rows gives the present t. The number of rows that fit into the limit, with the
present bytes per row, gives the t of the limit. The difference of the two is the forecast in days. A policy
that keeps a number of jobs counts as no growth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pg_scheduler.base.text.numbers import plural, two_digits
from pg_scheduler.base.text.remedies import execute
from pg_scheduler.errors import SchemaForbiddenError
from pg_scheduler.inspect.doctor.check import CheckResults, SharedFacts, check, warning
from pg_scheduler.inspect.doctor.codes import FindingCode
from pg_scheduler.inspect.doctor.findings import Finding, Thresholds, UnmadeCheck
from pg_scheduler.inspect.paths import BLOCKED_INDEX, CLAIM_INDEX, UNSUCCESSFUL_INDEX
from pg_scheduler.inspect.statistics import why_uncounted
from pg_scheduler.inspect.store.doctor import MAX_STEPS
from pg_scheduler.inspect.store.searches import TABLE
from pg_scheduler.inspect.texts import length, listed
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.worker_report import ReportedSettings

DAY_S: Final = 86_400.0
WEEK_S: Final = 7 * DAY_S
FACTOR: Final = 2
"""How many times the days of its policy the oldest job may be old."""

SMALL: Final = 0.01
"""The share of the limit below which nothing is forecast: the bytes per row of a small table vary."""

STATUSES: Final = ("failed", "cancelled", "expired")
UNKNOWN: Final = f"the growth of {TABLE} is unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The facts that the forecast considers.

    Attributes:
        bytes: The size of the table.
        rows: About how many rows it has.
        unfinished: About how many of them are unfinished jobs.
        ended: By status, how many jobs ended in a day, and the days for which such jobs are kept.
        since_s: The length of the period in which these jobs were counted, in seconds.
    """

    bytes: int
    rows: int
    unfinished: int
    ended: Mapping[str, tuple[float, float]]
    since_s: float


@check(FindingCode.RETENTION)
async def _check_retention(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Check whether tables are large or soon will be, and whether old unsuccessful jobs are deleted."""
    for table in await facts.once(facts.store.doctor.tables):
        if table.bytes >= thresholds.table_bytes:
            yield warning(
                FindingCode.RETENTION,
                table.name,
                f"the table {table.name} has {table.bytes / 1e9:.1f} GB, without its indexes",
                "vacuum_enabled=True with a shorter retention",
                execute("VACUUM FULL", "or pg_repack gives the space back"),
            )
    async for finding in _check_growth(facts, thresholds):
        yield finding
    if UNSUCCESSFUL_INDEX in await facts.once(facts.store.doctor.find_missing_indexes):
        reason = f"the age of failed jobs needs the index {UNSUCCESSFUL_INDEX}; see INDEX-MISSING"
        yield UnmadeCheck(FindingCode.RETENTION, reason)
        return
    # By status, the shortest time for which a live worker keeps the jobs.
    days_by_status: dict[str, float] = {}
    for worker in await facts.once(facts.store.workers.list_workers):
        if not worker.is_alive:
            continue
        for status in STATUSES:
            # The days are None if the worker keeps the jobs by another rule, or without end.
            days = ReportedSettings(worker.settings).retention_of(status).days
            if days is not None:
                days_by_status[status] = min(days_by_status.get(status, days), days)
    oldest_s = await facts.store.doctor.oldest()
    for status, age_s in sorted(oldest_s.items()):
        max_days = days_by_status.get(status)
        # Jobs are deleted some time after their days, so only much older ones show that none are deleted.
        if max_days is not None and age_s > max(FACTOR * max_days, 1) * DAY_S:
            yield warning(
                FindingCode.RETENTION,
                status,
                f"the oldest {status} job ended {length(age_s)} ago; the workers keep such jobs for "
                f"{max_days:g} {plural(max_days, 'day')}",
                execute("pg-scheduler vacuum"),
                "read the logs of the workers for errors of the vacuum",
            )


@check(FindingCode.STEPS_ORPHANED)
async def _check_steps(facts: SharedFacts, _: Thresholds) -> CheckResults:
    """Check whether stored steps belong to no job."""
    steps, job_ids = await facts.store.doctor.orphaned_steps()
    if steps:
        yield warning(
            FindingCode.STEPS_ORPHANED,
            "scheduler_steps",
            f"{steps:,} of the first {MAX_STEPS:,} stored steps belong to no job, such as {listed(job_ids)}",
            execute(
                "pg-scheduler vacuum", "which deletes those that are older than an hour", command_end=", "
            ),
        )


async def _check_growth(facts: SharedFacts, thresholds: Thresholds) -> CheckResults:
    """Yield a finding if the table of jobs will soon be large, or the reason why that is unknown."""
    tables = await facts.once(facts.store.doctor.tables)
    size_bytes = next((table.bytes for table in tables if table.name == TABLE), 0)
    # For a small table, the forecast is unreliable. A large one has a finding already.
    if not thresholds.table_bytes * SMALL <= size_bytes < thresholds.table_bytes:
        return
    all_workers = await facts.once(facts.store.workers.list_workers)
    workers = [worker for worker in all_workers if worker.is_alive and worker.settings]
    try:
        ended, since_s = await facts.store.doctor.endings(WEEK_S)
    except SchemaForbiddenError as error:
        # Of this check, only the forecast needs the table of statistics.
        yield UnmadeCheck(FindingCode.RETENTION, f"{UNKNOWN}: {error}")
        return
    estimates = (await facts.store.searches.sizes()).estimates
    rows = estimates.get(TABLE) or 0
    # The first reason that applies is the one that is stated.
    reason = why_uncounted(workers)
    if reason is None and not workers:
        reason = "no live worker reports its retention"
    if reason is None and since_s < DAY_S:
        reason = f"statistics of a day are needed; there are {length(since_s)}"
    if reason is None and not rows:
        reason = f"the server does not know the number of its rows; execute ANALYZE {TABLE}"
    if reason is not None:
        yield UnmadeCheck(FindingCode.RETENTION, f"{UNKNOWN}: {reason}")
        return
    unfinished = (estimates.get(CLAIM_INDEX) or 0) + (estimates.get(BLOCKED_INDEX) or 0)
    ended_per_day = {status: number / since_s * DAY_S for status, number in ended.items()}
    growth = Growth(
        bytes=size_bytes,
        rows=rows,
        # Both are estimates, so there may seem to be more unfinished jobs than rows.
        unfinished=min(unfinished, rows),
        ended={status: (number, days_kept(workers, status)) for status, number in ended_per_day.items()},
        since_s=since_s,
    )
    for finding in judge_growth(growth, thresholds.table_bytes, thresholds.table_days):
        yield finding


def judge_growth(growth: Growth, most: int, within_days: float) -> Iterator[Finding]:
    """Yield a finding if the table will have ``most`` bytes within these days.

    Suppose the load was always as it is now. Then the number of finished jobs in the table shows for how many
    days the table has been filled, and the number of those that fit into it shows after how many it is full.
    """
    # For each status: how many jobs end in a day, and the days for which such jobs are kept.
    additions = [*growth.ended.values()]
    bytes_per_row = growth.bytes / growth.rows
    max_rows = most / bytes_per_row
    present_age_days = _age(growth.rows - growth.unfinished, additions)
    age_at_limit_days = _age(max_rows - growth.unfinished, additions)
    days_left = age_at_limit_days - present_age_days
    # The present age is infinite if the table already has more rows than the present load would give it.
    # Then it does not grow.
    if math.isinf(present_age_days) or days_left > within_days:
        return
    yield warning(
        FindingCode.RETENTION,
        TABLE,
        f"the table {TABLE} has {two_digits(growth.bytes / 1e9)} GB in about {growth.rows:,} rows; with "
        f"{sum(number for number, _ in additions):,.0f} jobs a day, as in the last {length(growth.since_s)}, "
        f"it has {two_digits(most / 1e9)} GB in about {length(days_left * DAY_S)}",
        execute(
            "pg-scheduler vacuum",
            "from cron",
            before="vacuum_enabled=True on a worker with a shorter retention, or",
        ),
    )


def days_kept(workers: Sequence[Worker], status: str) -> float:
    """Return for how many days the workers keep the jobs of a status; infinity if no worker deletes them.

    The worker that deletes them first decides.
    """
    return min((_days(worker, status) for worker in workers), default=math.inf)


def _days(worker: Worker, status: str) -> float:
    """Return for how many days a worker keeps the jobs of a status; infinity if it does not delete them.

    A policy that keeps a number of jobs counts as 0 days, because with it the table does not grow.
    """
    retention = ReportedSettings(worker.settings).retention_of(status)
    if retention.days is not None:
        return retention.days
    return 0.0 if retention.deletes else math.inf


def _age(rows: float, additions: Sequence[tuple[float, float]]) -> float:
    """Return after how many days there are so many rows of finished jobs; infinity if there never are.

    Args:
        rows: The number of rows.
        additions: For each status, the rows that are added in a day, and the days for which they are kept.
    """
    # The days for which the jobs of the statuses are kept divide the time into parts. Within a part, the
    # table grows evenly. At its end, as many jobs of a status are deleted as are added, so that this status
    # adds no more rows.
    part_start = 0.0
    rows_left = rows
    for part_end in sorted({days for _, days in additions}):
        rows_per_day = sum(number for number, days in additions if days > part_start)
        # A part in which no rows are added is left out. If it had no end, zero would be multiplied by
        # infinity, which is not a number.
        if rows_per_day:
            rows_of_part = rows_per_day * (part_end - part_start)
            if rows_left <= rows_of_part:
                return part_start + max(rows_left, 0) / rows_per_day
            rows_left -= rows_of_part
        part_start = part_end
    return math.inf
