"""Read the unfinished jobs that a deployment finds, and their steps, a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from pg_scheduler.database.migrations.plan import check, shipped_migrations
from pg_scheduler.database.migrations.verify import has_table, read_state
from pg_scheduler.database.statements import Repository
from pg_scheduler.errors import SchemaMissingError

PAGE_ROWS: Final = 5000
"""Rows that one statement reads."""

MAX_READ_BYTES: Final = 512 * 1024
"""The maximum bytes, as stored, of the large arguments that one statement reads, unless a single job has
more."""

FIRST: Final = datetime.min.replace(tzinfo=UTC)

JOBS: Final = "scheduled_jobs"
"""The table of jobs, which already existed before the first migration."""

SCANS: Final = {"check_waiting": (0, FIRST, ""), "check_blocked": ("", 0, FIRST, "")}
"""The statements that together return every unfinished job, each with the position before its first row."""

UNMIGRATED_SCANS: Final = {"check_unmigrated": ("",)}
"""The statement for a table of pg-scheduler 0.2, with the position before its first row, as in ``SCANS``."""


class CheckedJob(NamedTuple):
    """An unfinished job.

    Attributes:
        task: The name under which its function must be registered.
        version: The version of its stored steps; None if it has none.
        on_failure: The task that is to alert of its failure; None for none.
        on_cancel: The task that is to clean up after its cancellation; None for none.
        task_data: Its arguments; None if they are large.
        size: The size of the arguments in bytes, as stored.
    """

    job_id: str
    job_name: str
    task: str
    version: str | None
    on_failure: str | None
    on_cancel: str | None
    task_data: str | None
    size: int


class CheckedStep(NamedTuple):
    """A stored step of a job.

    Attributes:
        value: Its value as JSON; None if it has no value, or a large one.
        size: The size of the value in bytes, as stored; 0 if it has no value.
    """

    job_id: str
    name: str
    kind: str
    value: str | None
    size: int


T = TypeVar("T", CheckedJob, CheckedStep)


class DeployRepository(Repository):
    """The statements that read jobs for the check of a deployment."""

    async def tables(self) -> frozenset[str]:
        """Return the tables that migrations have made; none in a database of pg-scheduler 0.2.

        Raises:
            SchemaMissingError: There is no table of jobs yet, as before the first deployment.
            SchemaTooNewError: A newer release has changed the tables so that this one cannot use them.
            MigrationChangedError: An applied migration differs from the shipped one.
        """
        schema = await self._statements.schema()
        shipped = shipped_migrations()
        async with self._statements.connections.acquire() as connection:
            try:
                state = await read_state(connection, schema, shipped)
            except SchemaMissingError as error:
                # Without the tables of migrations, there may still be jobs of pg-scheduler 0.2.
                if not await has_table(connection, schema, JOBS):
                    raise SchemaMissingError(f"{error.problem}, so there is nothing to check yet") from error
                return frozenset()
        check(state.applied, shipped)
        return state.tables if state.applied else frozenset()

    async def unfinished(self, *, is_migrated: bool) -> AsyncIterator[Sequence[CheckedJob]]:
        """Yield all unfinished jobs in pages.

        A job that changes meanwhile may be missed, or come twice, because its place in the index changes.

        Args:
            is_migrated: Whether migrations have changed the table; False for a table of pg-scheduler 0.2.

        Raises:
            SchemaMissingError: There is no table of jobs.
        """
        scans = SCANS if is_migrated else UNMIGRATED_SCANS
        # The columns after those of a job are its position in the index that the statement reads.
        job_columns = len(CheckedJob._fields)
        for name, start in scans.items():
            rows = await self._statements.fetch(name, PAGE_ROWS, *start)
            while rows:
                yield [CheckedJob(*row[:job_columns]) for row in rows]
                is_last_page = len(rows) < PAGE_ROWS
                position = rows[-1][job_columns:]
                rows = [] if is_last_page else await self._statements.fetch(name, PAGE_ROWS, *position)

    async def with_arguments(self, jobs: Iterable[CheckedJob]) -> AsyncIterator[CheckedJob]:
        """Yield jobs together with their large arguments, except jobs that were deleted meanwhile."""
        for part in _parts(jobs):
            rows = await self._statements.fetch("check_payloads", [job.job_id for job in part])
            texts = {row["job_id"]: row["task_data"] for row in rows}
            for job in part:
                if job.job_id in texts:
                    yield job._replace(task_data=texts[job.job_id])

    async def steps(self, job_ids: Sequence[str]) -> AsyncIterator[Sequence[CheckedStep]]:
        """Yield the steps of jobs in pages, in the order of the jobs and of the names of steps."""
        after_name = ""
        remaining_ids = list(job_ids)
        while remaining_ids:
            page = await self._rows(CheckedStep, "check_steps", PAGE_ROWS, remaining_ids, after_name)
            yield page
            if len(page) < PAGE_ROWS:
                return
            # The last job of the page may have more steps: those whose names follow. So the next page begins
            # with this job.
            last_step = page[-1]
            remaining_ids = remaining_ids[remaining_ids.index(last_step.job_id) :]
            after_name = last_step.name

    async def with_values(self, steps: Iterable[CheckedStep]) -> AsyncIterator[CheckedStep]:
        """Yield steps together with their large values, except steps that were deleted meanwhile."""
        for part in _parts(steps):
            ids, names = [step.job_id for step in part], [step.name for step in part]
            rows = await self._statements.fetch("check_step_values", ids, names)
            values = {(row["job_id"], row["name"]): row["value"] for row in rows}
            for step in part:
                if (step.job_id, step.name) in values:
                    yield step._replace(value=values[step.job_id, step.name])


def _parts(rows: Iterable[T]) -> Iterator[list[T]]:
    """Divide jobs or steps into parts whose large texts have at most ``MAX_READ_BYTES`` together.

    A single text may be larger, so it is a part of its own.
    """
    part: list[T] = []
    part_bytes = 0
    for row in rows:
        if part and part_bytes + row.size > MAX_READ_BYTES:
            yield part
            part, part_bytes = [], 0
        part.append(row)
        part_bytes += row.size
    if part:
        yield part
