"""The group ``import``: take over the jobs and schedules of other schedulers."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from pg_scheduler import ConflictResolution, JobSpec, Scheduler
from pg_scheduler.inspect.texts import counted

from .commands import Command, Group
from .errors import CommandError, ExitCode
from .output import Column, Shape

if TYPE_CHECKING:
    import asyncpg

    from pg_scheduler.integrations.apscheduler import Found

IGNORE: Final = ConflictResolution.IGNORE


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A job of another scheduler."""

    source_id: str
    """Its id there."""
    result: Literal["imported", "exists", "left out"]
    """Whether it was imported; by a dry run, whether it would be."""
    id: str | None
    """The id of the job or the schedule; None if it was left out."""
    task: str | None
    described: str | None
    """The trigger in words; None for a job at one time."""
    due: datetime | None
    """When it is due next; None if it is paused or was left out."""
    reason: str | None
    """Why it was left out."""


IMPORTED: Final = Shape(
    "imported",
    Imported,
    "source_id",
    (
        Column("source_id", "SOURCE"),
        Column("result", "RESULT"),
        Column("task", "TASK"),
        Column("described", "TRIGGER", is_long=True),
        Column("due", "DUE"),
        Column("reason", "REASON", is_long=True),
        Column("id", "ID", is_id=True, is_wide=True),
    ),
)

Url = Annotated[str, typer.Argument(metavar="URL", help="The database of the other scheduler.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be imported, and store nothing.")]


async def apscheduler(
    command: Command,
    url: Url,
    *,
    table: Annotated[str, typer.Option(metavar="NAME", help="The table.")] = "apscheduler_jobs",
    table_schema: Annotated[str | None, typer.Option(metavar="NAME", help="Its schema.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Import a job store of APScheduler 3, which SQLAlchemy reads. Its rows stay as they are."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)  # for the classes of pickled arguments
    try:
        from pg_scheduler.integrations import apscheduler as store  # noqa: PLC0415 - of the user's environment
    except ImportError as error:
        problem = f"{error}; run this where APScheduler 3 and SQLAlchemy are installed"
        raise CommandError(ExitCode.REFUSED, problem) from error
    try:
        rows = await asyncio.to_thread(store.read_store, url, table, table_schema)
    except store.StoreUnreadableError as error:
        raise CommandError(ExitCode.UNAVAILABLE, f"the job store cannot be read: {error}") from error
    now = datetime.now(UTC)
    results = []
    async with command.scheduler() as scheduler, scheduler.db_pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        try:
            for row in rows:
                try:
                    found = store.convert(row, now)
                    results.append(await _store(scheduler, connection, store.PREFIX, row.source_id, found))
                except (store.NotImportedError, TypeError, ValueError) as error:
                    results.append(_left_out(row.source_id, row.state, error))
        except BaseException:  # a cancellation too
            await transaction.rollback()
            raise
        await (transaction.rollback() if dry_run else transaction.commit())
    command.output.write_list(IMPORTED, results)
    counts = Counter(each.result for each in results)
    imported = "would be imported" if dry_run else "imported"
    command.output.say(
        f"{counted(counts['imported'], 'job')} {imported}, {counts['exists']} existed, "
        f"{counts['left out']} left out"
    )


COMMANDS: Final = Group("Import the jobs of other schedulers.", {"apscheduler": apscheduler})


async def _store(
    scheduler: Scheduler,
    connection: asyncpg.Connection[asyncpg.Record] | Any,
    prefix: str,
    source_id: str,
    found: Found,
) -> Imported:
    """Store a job or a schedule unless its id exists.

    Raises:
        TypeError: The arguments do not fit the function, or JSON cannot represent them.
        ValueError: Another value is out of range.
    """
    new_id = f"{prefix}{source_id}"
    values = {each.name: getattr(found, each.name) for each in fields(found)}
    task, described = values.pop("task"), None
    due: datetime | None = values.pop("due", None)
    values["misfire_grace_time"] = None
    if due is not None:
        exists = await scheduler.get_job(new_id) is not None
        spec = JobSpec(task, due, job_id=new_id, **values)
        parts = scheduler._parts  # noqa: SLF001 - a front end of the Scheduler
        (job,) = parts.preparer.prepare((spec,), allows_names=True)
        await parts.enqueuer.insert(job, IGNORE, connection)
    else:
        exists = await scheduler.schedules.get(new_id) is not None
        schedule = await scheduler.schedules.add(
            task, schedule_id=new_id, conflict_resolution=IGNORE, connection=connection, **values
        )
        described, due = schedule.described, schedule.next_fire_at
    return Imported(
        source_id=source_id,
        result="exists" if exists else "imported",
        id=new_id,
        task=task,
        described=described,
        due=due,
        reason=None,
    )


def _left_out(source_id: str, state: dict[str, Any] | None, error: Exception) -> Imported:
    task = None if state is None else str(state.get("func", "")).replace(":", ".")
    return Imported(
        source_id=source_id,
        result="left out",
        id=None,
        task=task,
        described=None,
        due=None,
        reason=str(error),
    )
