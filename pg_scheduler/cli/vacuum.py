"""``vacuum``: apply the retention of the workers now."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Final

import typer

from pg_scheduler import JobStatus, Scheduler, VacuumConfig
from pg_scheduler.base.settings import VacuumPolicy, VacuumTrigger
from pg_scheduler.base.text.numbers import plural
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.texts import counted
from pg_scheduler.tools import configure, vacuum_of
from pg_scheduler.worker.vacuum import VacuumStep

from .commands import Command
from .errors import RefusedError, UsageError
from .output import Column, Shape, columns
from .progress import ProgressStyle, Reporter, Style, read_style


@dataclass(frozen=True, slots=True)
class Retention:
    """The jobs that the retention of a status deletes."""

    status: JobStatus
    policy: str
    jobs: int | None
    """Deleted jobs, or those that would be; None if that is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedJobs:
    """The numbers of jobs that were deleted on a day, in UTC."""

    day: date
    completed: int
    failed: int
    cancelled: int
    expired: int
    last_run: datetime | None
    worker_id: str | None


RETENTION: Final = Shape(
    "retention",
    Retention,
    (Column("status"), Column("policy", "RETENTION"), Column("jobs")),
)
VACUUM_DAY: Final = Shape(
    "vacuum_day",
    DeletedJobs,
    (
        *columns("day", "completed", "failed", "cancelled", "expired"),
        Column("last_run", is_wide=True),
        Column("worker_id", "BY", is_wide=True),
    ),
)
STATUSES: Final = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED)


async def vacuum(
    command: Command,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the jobs, and delete nothing.")] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print the deletions of the last days instead.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="How many days --stats prints.")] = 7,
    progress: ProgressStyle = None,
) -> None:
    """Delete finished jobs past the retention that the live workers report."""
    if dry_run and stats:
        raise UsageError("pass --dry-run or --stats, not both")
    async with command.scheduler() as scheduler:
        if stats:
            await _write_stats(command, scheduler, days)
            return
        style = read_style(progress)
        try:
            config = await Inspector(scheduler).retention()
        except ConfigurationError as error:
            raise RefusedError(f"{error}; nothing was deleted") from error
        # The Scheduler of this command gets the retention of the live workers.
        configure(scheduler, vacuum=config)
        act = _count if dry_run else _delete
        await act(command, scheduler, config, style)


async def _count(command: Command, scheduler: Scheduler, config: VacuumConfig, style: Style) -> None:
    """Count the jobs that a vacuum would delete, and write their numbers."""
    counts: Counter[JobStatus] = Counter()
    await _follow(command, vacuum_of(scheduler).preview(), style, counts, "found")
    _write_counts(command, config, counts, is_dry=True)
    command.output.say(f"{counted(counts.total(), 'job')} would be deleted")


async def _delete(command: Command, scheduler: Scheduler, config: VacuumConfig, style: Style) -> None:
    """Delete the jobs past the retention, and write their numbers."""
    vacuum = vacuum_of(scheduler)
    counts: Counter[JobStatus] = Counter()
    is_complete = False
    try:
        await _follow(command, vacuum.steps(), style, counts, "deleted")
        is_complete = True
    finally:
        # An interrupted command writes what it has done, too.
        deleted_counts = {status.value: number for status, number in counts.items() if number}
        try:
            # The database comes before the output, which raises an error if its reader has gone.
            await Inspector(scheduler).record_action(
                "vacuum_jobs", deleted=deleted_counts, is_complete=is_complete
            )
            await vacuum.report(counts)
        finally:
            _write_counts(command, config, counts, is_dry=False)
            continuation = "" if is_complete else " so far; run the command again to continue"
            command.output.say(f"{counted(counts.total(), 'job')} deleted{continuation}")


async def _follow(
    command: Command, steps: AsyncIterator[VacuumStep], style: Style, counts: Counter[JobStatus], verb: str
) -> None:
    """Show the progress of the steps of a vacuum, and add their jobs to ``counts``.

    ``verb`` is what the steps do with the jobs, such as ``deleted``.
    """
    with Reporter(style, command.output) as reporter:
        async for step in steps:
            counts.update(step.jobs)
            jobs = f"{counted(counts.total(), 'job')} {verb}"
            reporter.show(f"read {step.done:,} of {step.blocks:,} blocks, {jobs}", step.done, step.blocks)


def _write_counts(
    command: Command, config: VacuumConfig, counts: Counter[JobStatus], *, is_dry: bool
) -> None:
    """Write how many jobs of each status were deleted, or would be."""
    rows = []
    for status in STATUSES:
        policy: VacuumPolicy = getattr(config, status.value)
        # A dry run does not count the jobs of such a policy: that would read the whole table at once.
        is_uncounted = is_dry and policy.trigger is VacuumTrigger.COUNT_BASED
        jobs = None if is_uncounted else counts[status]
        rows.append(Retention(status, _described(policy), jobs))
    command.output.write_list(RETENTION, rows)


def _described(policy: VacuumPolicy) -> str:
    """Return a retention in words."""
    match policy.trigger:
        case VacuumTrigger.IMMEDIATE:
            return "deleted at once"
        case VacuumTrigger.TIME_BASED:
            return f"kept for {policy.days:g} {plural(policy.days, 'day')}"
        case VacuumTrigger.COUNT_BASED:
            return f"the last {policy.keep_count:,} of each name kept"
        case VacuumTrigger.NEVER:
            return "kept"


async def _write_stats(command: Command, scheduler: Scheduler, days: int) -> None:
    """Write how many jobs were deleted on each of the last days."""
    # Without this setting, the Scheduler returns no statistics.
    configure(scheduler, vacuum=VacuumConfig(track_metrics=True))
    rows = []
    for record in await scheduler.get_vacuum_stats(days):
        # DeletedJobs has a field for each status.
        counts = {status.value: record[f"deleted_{status.value}"] or 0 for status in STATUSES}
        row = DeletedJobs(
            day=record["stat_date"], last_run=record["last_run"], worker_id=record["worker_id"], **counts
        )
        rows.append(row)
    command.output.write_list(VACUUM_DAY, rows)
    if not rows:
        command.output.say("no deletion was counted; pass VacuumConfig(track_metrics=True) to count them")
