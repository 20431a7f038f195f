"""``schedules preview`` and ``backfill``: fire times to come, and jobs for those of the past."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final

import typer

from pg_scheduler import Schedule
from pg_scheduler.inspect.clock_changes import mark_fires
from pg_scheduler.inspect.fire_searches import search_one
from pg_scheduler.inspect.texts import counted
from pg_scheduler.triggers import Trigger
from pg_scheduler.triggers.base import is_fixed_delay
from pg_scheduler.triggers.search import INSTANT

from .commands import Command
from .completion import complete_schedules
from .errors import RefusedError, UsageError
from .job_run import import_code
from .output import Column, Shape
from .progress import ProgressStyle, Reporter, read_style
from .schedule_options import ACTION, Action, ScheduleId, TriggerOptions, get_schedule
from .values import CodeModules, read_rate, read_since


@dataclass(frozen=True, slots=True)
class FireTime:
    """A fire time of a schedule or a trigger."""

    schedule_id: str | None
    fire_time: datetime
    note: str | None
    """The clock change that concerns it."""


FIRE_TIME: Final = Shape(
    "fire_time",
    FireTime,
    (Column("fire_time"), Column("note", "CLOCK CHANGE", is_long=True)),
)

MAX_BATCH: Final = 1000


async def preview(
    command: Command,
    timing: TriggerOptions,
    schedule_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The id of a schedule.", autocompletion=complete_schedules),
    ] = None,
    *,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="How many.")] = 20,
) -> None:
    """Print the next fire times of a schedule, as if it were not paused, or of a trigger."""
    trigger = timing.read(command)
    # Exactly one of the two must be given.
    if (schedule_id is None) == (trigger is None):
        raise UsageError("pass the id of a schedule, or --cron, --every, --at or --trigger")
    if trigger is not None:
        now = datetime.now(UTC)
        command.output.say(str(trigger))
        search = partial(trigger.upcoming, count, after=now, anchor=now)
        await _write_fires(command, None, trigger, now, search)
    elif schedule_id is not None:
        schedule = await get_schedule(command, schedule_id)
        command.output.say(str(schedule))
        trigger = _trigger_of(schedule)
        await _write_fires(command, schedule_id, trigger, schedule.anchor, partial(schedule.upcoming, count))


async def backfill(
    command: Command,
    schedule_id: ScheduleId,
    *,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="The start of the span; 2d: ago.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Its end, which is excluded.")] = "now",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Refuse more fire times.")] = 100,
    rate: Annotated[
        str | None, typer.Option(metavar="10/m", help="Spread the jobs: per s, m or h. Else all at once.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the fire times, change nothing.")] = False,
    progress: ProgressStyle = None,
    jobs: CodeModules = None,
) -> None:
    """Enqueue a job for each fire time of a span, unless it has one.

    Fire times whose jobs were deleted, by the retention or by hand, count as missed: they get a job again.
    """
    import_code(jobs)
    zone = command.output.zone
    since = read_since("--from", start, zone)
    until = read_since("--to", end, zone)
    if until < since:
        raise UsageError(f"--to {end} is before --from {start}; swap them: 2d is two days ago")
    jobs_per_s = read_rate(rate)
    style = read_style(progress)
    schedule = await get_schedule(command, schedule_id)
    search = partial(_fires_between, schedule, since, until, limit)
    fires = await search_one(schedule.trigger, search)
    if dry_run:
        trigger = _trigger_of(schedule)
        await _write_fires(command, schedule_id, trigger, schedule.anchor, lambda: fires)
        command.output.say(f"{counted(len(fires), 'fire time')}; those that have a job get no other")
        return
    command.output.say("fire times whose jobs were deleted count as missed and get a job again")
    job_ids: list[str] = []
    # The fire times for which jobs were enqueued, or which have jobs already.
    count = 0
    size = MAX_BATCH
    if jobs_per_s is not None:
        # A batch has the jobs of one second, or one job if a second has less than one.
        size = min(max(int(jobs_per_s), 1), MAX_BATCH)
    try:
        with Reporter(style, command.output) as reporter:
            async with command.scheduler() as scheduler:
                while batch := fires[count : count + size]:
                    # The end of the span is excluded, so it is behind the last fire time.
                    job_ids += await scheduler.schedules.backfill(
                        schedule_id, batch[0], batch[-1] + INSTANT, limit=len(batch)
                    )
                    count += len(batch)
                    reporter.show(f"{count:,} of {counted(len(fires), 'fire time')}", count, len(fires))
                    if jobs_per_s is not None and count < len(fires):
                        await asyncio.sleep(len(batch) / jobs_per_s)
    finally:
        # An interrupted command writes what it has done, too.
        command.output.write_list(ACTION, [Action(schedule_id, "backfilled", job_id) for job_id in job_ids])
        command.output.say(f"{counted(len(job_ids), 'job')} enqueued for {counted(count, 'fire time')}")
        if count < len(fires):
            command.output.say(f"continue with --from {fires[count].isoformat()}")


def _fires_between(schedule: Schedule, since: datetime, until: datetime, limit: int) -> list[datetime]:
    """Return the fire times of a schedule from ``since`` on and before ``until``.

    Raises:
        CommandError: There are more than the limit, or the schedule has none in the past.
    """
    trigger = _trigger_of(schedule)
    if is_fixed_delay(trigger):
        raise RefusedError(f"'{trigger}' has no fire times in the past; use pg-scheduler schedules trigger")
    if schedule.start is not None:
        since = max(since, schedule.start)
    # A schedule may fire at its end, while the end of the span is excluded.
    if schedule.end is not None:
        until = min(until, schedule.end + INSTANT)
    # A fire time at the start of the span counts, and one at the instant of after= does not. One more than
    # the limit shows that there are too many.
    upcoming = trigger.upcoming(limit + 1, after=since - INSTANT, anchor=schedule.anchor)
    fires = [fire for fire in upcoming if fire < until]
    if len(fires) > limit:
        raise RefusedError(
            f"schedule {schedule.schedule_id!r} has more than --limit {limit} fire times in this span; "
            "raise it, or shorten the span"
        )
    return fires


def _trigger_of(schedule: Schedule) -> Trigger:
    """Return the trigger of a schedule; raise CommandError (REFUSED) if this program lacks its kind."""
    if schedule.trigger is None:
        raise RefusedError(f"this program cannot interpret the trigger of {schedule.schedule_id!r}")
    return schedule.trigger


async def _write_fires(
    command: Command,
    schedule_id: str | None,
    trigger: Trigger,
    anchor: datetime,
    search: Callable[[], Sequence[datetime]],
) -> None:
    """Print the fire times that a search returns, with the clock changes that concern them.

    ``anchor`` is the instant from which the trigger counts its intervals.
    """

    # search_one() waits for a few seconds only, since the code of a trigger may take any time.
    def find() -> tuple[Sequence[datetime], Mapping[datetime, str]]:
        fires = search()
        return fires, mark_fires(trigger, anchor, fires)

    fires, notes = await search_one(trigger, find)
    rows = [FireTime(schedule_id, fire.astimezone(UTC), notes.get(fire)) for fire in fires]
    command.output.write_list(FIRE_TIME, rows)
