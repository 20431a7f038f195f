"""The group ``import``: take over the jobs and schedules of other schedulers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import typer

from pg_scheduler import ConflictResolution, JobSpec, Scheduler
from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.database.author import Author, acting_as
from pg_scheduler.errors import SchedulerError
from pg_scheduler.importing.imported import (
    JobDefinition,
    ScheduleDefinition,
    Source,
    StoreInvalidError,
    StoreUnreadableError,
)
from pg_scheduler.inspect import Inspector
from pg_scheduler.jobs.call_errors import message_for
from pg_scheduler.jobs.deadlines import deadline_after
from pg_scheduler.jobs.rows import AnyJob
from pg_scheduler.tools import (
    added_before,
    conflicting_jobs,
    find_task,
    insert_jobs,
    prepare_job,
    record_additions,
    server_now,
)

from .commands import Command, Group
from .connections import APPLICATION_NAME
from .errors import OPTION_REMEDIES, CommandError, ExitCode, UsageError, exit_code_of
from .output import Column, Shape, columns
from .worker.target import load_targets


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
    described: str | None = None
    """The trigger in words; None for a job at one time."""
    due: datetime | None = None
    """When it is due next; None if it is paused or was left out."""
    reason: str | None = None
    """Why it was left out."""


IMPORTED: Final = Shape(
    "imported",
    Imported,
    (
        Column("source_id", "SOURCE"),
        *columns("result", "task"),
        Column("described", "TRIGGER", is_long=True),
        Column("due"),
        Column("reason", is_long=True),
        Column("id", is_id=True, is_wide=True),
    ),
)

Url = Annotated[str, typer.Argument(metavar="URL", help="The database of the other scheduler.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be imported, and store nothing.")]


Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--jobs", metavar="MODULE", help="A module with functions, whose @job() options jobs get; repeatable."
    ),
]
TableSchema = Annotated[str | None, typer.Option(metavar="NAME", help="The schema of its tables.")]
Again = Annotated[
    bool,
    typer.Option("--again", help="Also add what was imported before, and was deleted or removed since."),
]

GONE: Final = "an earlier import added it, and it exists no more; pass --again to add it again"
"""Why a job that has run and been deleted, or a schedule that was removed, is left out."""


async def apscheduler(
    command: Command,
    url: Url,
    *,
    table: Annotated[str, typer.Option(metavar="NAME", help="The table.")] = "apscheduler_jobs",
    table_schema: TableSchema = None,
    jobs: Modules = None,
    again: Again = False,
    dry_run: DryRun = False,
) -> None:
    """Import a job store of APScheduler 3, which SQLAlchemy reads. Its rows stay as they are."""
    # load_targets() also adds the current folder to sys.path, for the classes of pickled arguments.
    load_targets(jobs or [])
    with _needing("APScheduler 3 and SQLAlchemy"):
        from pg_scheduler.importing import apscheduler as store  # noqa: PLC0415 - of the user's environment
    with _reading():
        sources = await run_in_thread(store.read_store, url, table, table_schema, datetime.now(UTC))
    await _import(command, store.PREFIX, sources, again=again, dry_run=dry_run)


async def django_celery_beat(
    command: Command,
    *,
    django_settings: Annotated[
        str | None,
        typer.Option("--settings", metavar="MODULE", help="Settings of Django [DJANGO_SETTINGS_MODULE]."),
    ] = None,
    database: Annotated[str, typer.Option(metavar="ALIAS", help="The database in them.")] = "default",
    jobs: Modules = None,
    again: Again = False,
    dry_run: DryRun = False,
) -> None:
    """Import the periodic tasks of django-celery-beat, which Django reads. Its rows stay as they are."""
    # Without targets, this only adds the current folder to sys.path, for the settings of Django.
    load_targets([])
    with _needing("Django and django-celery-beat"):
        from pg_scheduler.importing import django_celery_beat as store  # noqa: PLC0415 - as above
    with _reading():
        sources = await run_in_thread(store.read_store, django_settings, database, datetime.now(UTC))
    # These modules may need Django, which the reading has set up.
    load_targets(jobs or [])
    await _import(command, store.PREFIX, sources, again=again, dry_run=dry_run)


async def procrastinate(
    command: Command,
    url: Url,
    *,
    table_schema: TableSchema = None,
    ignore_locks: Annotated[bool, typer.Option(help="Import jobs with a lock too, without it.")] = False,
    jobs: Modules = None,
    again: Again = False,
    dry_run: DryRun = False,
) -> None:
    """Import the waiting jobs of procrastinate. Its rows stay as they are."""
    from pg_scheduler.importing import procrastinate as store  # noqa: PLC0415 - for this command only

    load_targets(jobs or [])
    with _reading():
        sources = await store.read_store(
            url, table_schema, application_name=APPLICATION_NAME, ignores_locks=ignore_locks
        )
    await _import(command, store.PREFIX, sources, again=again, dry_run=dry_run)


COMMANDS: Final = Group(
    "Import the jobs of other schedulers.",
    {"apscheduler": apscheduler, "django-celery-beat": django_celery_beat, "procrastinate": procrastinate},
)


@contextmanager
def _needing(libraries: str) -> Iterator[None]:
    """Raise CommandError (REFUSED) if an import within the block fails."""
    try:
        yield
    except ImportError as error:
        raise CommandError(ExitCode.REFUSED, f"{error}; run this where {libraries} are installed") from error


@contextmanager
def _reading() -> Iterator[None]:
    """Raise CommandError if the job store cannot be read within the block."""
    problem = "the job store cannot be read"
    try:
        yield
    except StoreInvalidError as error:
        raise UsageError(f"{problem}: {error}") from error
    except StoreUnreadableError as error:
        raise CommandError(ExitCode.UNAVAILABLE, f"{problem}: {error}") from error
    except SchedulerError as error:
        raise CommandError(exit_code_of(error) or ExitCode.UNAVAILABLE, f"{problem}: {error}") from error


async def _import(
    command: Command, prefix: str, sources: Sequence[Source], *, again: bool, dry_run: bool
) -> None:
    """Store the jobs and schedules in one transaction, and print the results. A dry run rolls it back."""
    async with command.scheduler() as scheduler:
        ids = [f"{prefix}{source.source_id}" for source in sources]
        # The row of a job that has run is deleted after some time. A repeated import must not run it again,
        # so the ids come from the records of additions, which outlive the row.
        earlier_ids = set() if again else await added_before(scheduler, ids)
        now = await server_now(scheduler)
        sources = [_with_deadline(scheduler, source, now) for source in sources]
        author = Author(Inspector(scheduler).actor, "cli")
        async with scheduler.db_pool.acquire() as connection:
            transaction = connection.transaction(isolation="read_committed")
            await transaction.start()
            try:
                with acting_as(author):
                    results = await _store_all(scheduler, connection, prefix, sources, earlier_ids)
            except BaseException:  # a cancellation too
                await transaction.rollback()
                raise
            if dry_run:
                await transaction.rollback()
            else:
                await transaction.commit()
        # Only a function that is registered in this process has options of @job() that jobs can get.
        job_tasks = {
            source.definition.task for source in sources if isinstance(source.definition, JobDefinition)
        }
        unregistered_names = {name for name in job_tasks if find_task(scheduler, name) is None}
    command.output.write_list(IMPORTED, results)
    counts = Counter(row.result for row in results)
    verb = "would be imported" if dry_run else "imported"
    command.output.say(
        f"{counts['imported']} {verb}, {counts['exists']} existed, {counts['left out']} left out"
    )
    if unregistered_names:
        command.output.say(
            f"jobs of {', '.join(sorted(unregistered_names))} have one attempt and the other defaults of "
            "@job(); pass --jobs with each module that registers these functions"
        )


def _reason(source: Source, error: Exception) -> str:
    """Return why a job or a schedule of another scheduler is left out, and what to do."""
    kind = "schedules" if isinstance(source.definition, ScheduleDefinition) else "jobs"
    remedies = dict.fromkeys(OPTION_REMEDIES, f"add it by pg-scheduler {kind} add")
    # The arguments would be too large for that command, too.
    remedies["size"] = OPTION_REMEDIES["size"]
    return message_for(error, remedies)


def _with_deadline(scheduler: Scheduler, source: Source, now: datetime) -> Source:
    """Return a source whose job, if it is overdue, has its deadline counted from now.

    The deadline of a task counts from the due time of a job. That of an overdue job could have passed before
    the job can start here.
    """
    job = source.definition
    if not isinstance(job, JobDefinition) or job.due >= now:
        return source
    task = find_task(scheduler, job.task)
    if task is None or task.deadline is None:
        return source
    return replace(source, definition=replace(job, deadline=deadline_after(now, task.deadline)))


async def _store_all(
    scheduler: Scheduler, connection: Any, prefix: str, sources: Sequence[Source], earlier_ids: Set[str]
) -> list[Imported]:
    """Store all jobs and schedules whose ids are free, and return the results in the order of ``sources``.

    ``earlier_ids`` are the ids that an earlier import has added. They are not added again.
    """
    results: list[Imported] = []
    # The rows of jobs, by the places of their results. All of them are inserted together, after the loop.
    rows: dict[int, AnyJob] = {}
    for source in sources:
        new_id = f"{prefix}{source.source_id}"
        result = Imported(source_id=source.source_id, result="imported", id=new_id, task=source.task)
        try:
            if isinstance(source.definition, JobDefinition):
                row = _row(scheduler, new_id, source.definition)
                rows[len(results)] = row
                result = replace(result, due=row.execution_time)
            elif isinstance(source.definition, ScheduleDefinition):
                result = await _add_schedule(
                    scheduler, connection, result, new_id, source.definition, is_earlier=new_id in earlier_ids
                )
            else:
                result = replace(result, result="left out", id=None, reason=source.reason)
        except (TypeError, ValueError) as error:  # the arguments do not fit, or a value is out of range
            result = replace(result, result="left out", id=None, reason=_reason(source, error))
        results.append(result)
    if rows:
        new_rows = [row for row in rows.values() if row.job_id not in earlier_ids]
        inserted_ids = await insert_jobs(scheduler, new_rows, connection) if new_rows else set()
        # Further imports read these ids, and leave out the jobs.
        await record_additions(scheduler, inserted_ids, connection)
        rejected_rows = {place: row for place, row in rows.items() if row.job_id not in inserted_ids}
        if rejected_rows:
            await _explain_rejected(scheduler, connection, rejected_rows, results, earlier_ids)
    return results


async def _explain_rejected(
    scheduler: Scheduler,
    connection: Any,
    rejected_rows: Mapping[int, AnyJob],
    results: list[Imported],
    earlier_ids: Set[str],
) -> None:
    """Replace the results of rows that were not inserted by results with the reason for that.

    A row was not inserted because its id exists, because an earlier import added it, or because another job
    has its unique key. ``rejected_rows`` has the rows by the places of their results.
    """
    # The jobs in the database that have the id or the unique key of a rejected row.
    conflicts = await conflicting_jobs(scheduler, list(rejected_rows.values()), connection)
    ids = {holder.job_id for holder in conflicts}
    # Only a job that has not ended reserves its unique key.
    holders = {holder.unique_key: holder.job_id for holder in conflicts if holder.is_unfinished}
    for place, row in rejected_rows.items():
        if row.job_id in ids:
            results[place] = replace(results[place], result="exists")
            continue
        if row.job_id in earlier_ids:
            reason = GONE
        else:
            # The job that had the key at the insertion may have ended before the conflicts were read.
            holder_id = holders.get(row.unique_key, "a job that has ended since")
            reason = f"its unique key {row.unique_key!r} is taken by {holder_id}"
        results[place] = replace(results[place], result="left out", id=None, due=None, reason=reason)


def _row(scheduler: Scheduler, job_id: str, job: JobDefinition) -> AnyJob:
    """Return the row of an imported job.

    Raises:
        TypeError: The arguments do not fit the function.
        ValueError: A value is out of range.
    """
    # The fields of the definition are parameters of JobSpec, of which the task and the time are positional.
    values = {field.name: getattr(job, field.name) for field in fields(job)}
    task = values.pop("task")
    due = values.pop("due")
    spec = JobSpec(task, due, job_id=job_id, **values)
    return prepare_job(scheduler, spec)


async def _add_schedule(
    scheduler: Scheduler,
    connection: Any,
    result: Imported,
    schedule_id: str,
    definition: ScheduleDefinition,
    *,
    is_earlier: bool,
) -> Imported:
    """Add a schedule unless its id exists, and return the result with its trigger and next fire time.

    ``is_earlier`` is whether an earlier import added a schedule of this id. If this schedule was removed
    since, it is left out.

    Raises:
        TypeError: The arguments do not fit the function.
        ValueError: A value is out of range.
    """
    # The result of add() does not state whether the schedule is new.
    exists = await scheduler.schedules.get(schedule_id) is not None
    if is_earlier and not exists:
        return replace(result, result="left out", id=None, reason=GONE)
    # The fields of the definition are parameters of add(), of which the task is positional.
    values = {field.name: getattr(definition, field.name) for field in fields(definition)}
    task = values.pop("task")
    schedule = await scheduler.schedules.add(
        task,
        schedule_id=schedule_id,
        conflict_resolution=ConflictResolution.IGNORE,
        connection=connection,
        **values,
    )
    return replace(
        result,
        result="exists" if exists else "imported",
        described=schedule.described,
        due=schedule.next_fire_at,
    )
