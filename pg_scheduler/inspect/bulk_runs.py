"""Change all jobs of a search in the background. The row of the run has what other processes need.

A run is a task of the event loop, for example of the server of the dashboard, where it outlives the page that
started it. It ends with the process. It reads its row after each batch. So any process may receive a request
to stop the run, or to continue it there. Each batch moves the cursor in the row by its own transaction. So if
two tasks continue a run at the same cursor, only one of them changes the jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, aclosing, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final, get_args

from pg_scheduler.base.text.times import read_timestamp
from pg_scheduler.base.text.values import copy_fields
from pg_scheduler.database.author import acting_as
from pg_scheduler.database.faults import is_refused_change
from pg_scheduler.errors import SchedulerError
from pg_scheduler.events.log import describe_refusal, log_refusal, logger, record_fields
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.bulk import Progress
from pg_scheduler.inspect.errors import ErrorGroup
from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.store.bulk import BulkAction, StaleRunError
from pg_scheduler.inspect.store.bulk_runs import RESUME, START, BulkRunRow
from pg_scheduler.inspect.texts import counted
from pg_scheduler.jobs.error_text import fingerprint_of
from pg_scheduler.jobs.validation import check_text
from pg_scheduler.queue.prepare import new_job_id

PREFIX: Final = "bulk-"
"""The start of the id of each run."""

MAX_RUNS: Final = 4
"""The maximum number of runs in one process at once. Each changes a batch of at most 500 jobs at a time."""

SUSPECT_AFTER_S: Final = 60.0
"""Seconds by which a batch may be late before the process of its run is taken for dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJobs:
    """The action and the jobs of a bulk run.

    Attributes:
        verb: The action.
        where: The search; empty for all jobs of the group.
        names: The names to which the search is restricted; None for all.
        rate: Jobs per second; None for no limit.
        to: When moved jobs are due, as ISO 8601.
        group: A group of errors to retry: the name of its jobs, its text, and when its first and its last job
            ended. None for no group.
    """

    verb: BulkAction
    where: str
    names: tuple[str, ...] | None = None
    rate: float | None = None
    to: str | None = None
    group: tuple[str, str, str, str] | None = None

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> BulkJobs | None:
        """Return the action and the jobs that the row of a run states in its JSON.

        None if they are invalid, because a person wrote the row by hand.
        """
        try:
            values = {field.name: details[field.name] for field in fields(cls)}
            # JSON has lists instead of tuples.
            for name in ("names", "group"):
                values[name] = None if values[name] is None else tuple(map(str, values[name]))
            jobs = cls(**values)
            is_valid = jobs.verb in get_args(BulkAction) and isinstance(jobs.where, str)
            is_valid = is_valid and isinstance(jobs.rate, int | float | None)
            # The results are not needed: both conversions raise a ValueError if a time is invalid.
            if jobs.to is not None:
                read_timestamp(jobs.to)
            if jobs.group is not None:
                _group(*jobs.group)
        except (KeyError, TypeError, ValueError):
            return None
        return jobs if is_valid else None

    def steps(
        self,
        inspector: Inspector,
        *,
        is_dry: bool = False,
        run_id: str | None = None,
        after: str | None = None,
    ) -> AsyncGenerator[Progress, None]:
        """Call the method of the Inspector that makes this change, and return its steps.

        No job is changed before the first step is requested.
        """
        # The method is that of the verb: cancel_jobs(), retry_jobs(), delete_jobs() or move_jobs().
        call: Any = getattr(inspector, f"{self.verb}_jobs")
        # Only move_jobs() has a parameter ``to``, and only retry_jobs() has a parameter ``group``.
        arguments: dict[str, Any] = {}
        if self.to is not None:
            arguments["to"] = read_timestamp(self.to)
        if self.group is not None:
            arguments["group"] = _group(*self.group)
        steps: AsyncGenerator[Progress, None] = call(
            where=self.where,
            names=self.names,
            rate=self.rate,
            dry_run=is_dry,
            after=after,
            tz=UTC,
            run_id=run_id,
            **arguments,
        )
        return steps


def _group(job_name: str, text: str, first_at: str, last_at: str) -> ErrorGroup:
    """Return a group with the values that identify the group and its jobs; the others are not needed here."""
    return ErrorGroup(
        fingerprint=fingerprint_of(job_name, text),
        job_name=job_name,
        text=text,
        count=0,
        first_at=read_timestamp(first_at),
        last_at=read_timestamp(last_at),
        last_job_id="",
        example="",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkState(BulkRunRow):
    """The progress of a run, its action and its jobs.

    Attributes:
        jobs: The action and its jobs.
        is_here: Whether the run is in progress in this process.
    """

    jobs: BulkJobs
    is_here: bool = False

    @classmethod
    def of(cls, row: BulkRunRow | None, *, is_here: bool = False) -> BulkState | None:
        """Return the state of a run by its row; None if there is no row, or if its jobs are invalid."""
        jobs = None if row is None else BulkJobs.of(row.details)
        if row is None or jobs is None:
            return None
        return copy_fields(cls, row, jobs=jobs, is_here=is_here)

    def is_suspect(self, now: datetime) -> bool:
        """Return whether the process of a run is probably dead: its row has not changed for too long."""
        if self.is_here or self.phase not in {"running", "stopping"}:
            return False
        # A batch has the jobs of a second, but at least one job. So with a rate below 1, batches are further
        # apart.
        between_batches_s = 1 / self.jobs.rate if self.jobs.rate else 0.0
        age_s = (now - self.answered_at).total_seconds()
        return age_s > SUSPECT_AFTER_S + between_batches_s


def _log_refusals(run_id: str, step: Progress) -> None:
    """Log the first job of a batch that the application refused, and the number of such jobs."""
    refusals = {change.job_id: change.refusal for change in step.changes if change.refusal is not None}
    for job_id, refusal in list(refusals.items())[:1]:
        problem = f"the bulk run {run_id} leaves {counted(len(refusals), 'job')} of a batch as they are"
        log_refusal(f"{problem}, first {job_id!r}", refusal, is_last=True, job_id=job_id)


async def recent_runs(inspector: Inspector, *, limit: int) -> list[BulkState]:
    """Return the runs that were started last, the newest first."""
    rows = await tables_of(inspector).reads.bulk_runs.recent(limit)
    return [state for row in rows if (state := BulkState.of(row)) is not None]


class BusyError(ValueError):
    """This process has as many runs as it may have."""


@dataclass(slots=True)
class _Run:
    """A run of this process."""

    run_id: str
    jobs: BulkJobs
    after: str | None
    """The cursor at which this task begins; None for the first job."""
    begun: int = 0
    """How often the run had begun when this task began it. If its row has another number, another task has
    continued the run."""
    progress: Progress | None = None
    """The last step; None before the first one."""
    is_ending: bool = False
    """Whether this task writes the end of the run already."""


class BulkRuns:
    """The runs of this process, and the rows of all."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._rows = tables_of(inspector).writes.bulk_runs
        self._runs: dict[str, _Run] = {}
        self._tasks: dict[asyncio.Task[None], _Run] = {}

    async def start(self, jobs: BulkJobs) -> str:
        """Start a run, and return its id.

        Raises:
            BusyError: Too many runs are in progress in this process.
            ValueError: The search is invalid.
        """
        # The call that returns the steps checks the arguments, so an invalid search fails before the run
        # begins.
        await jobs.steps(self._inspector).aclose()
        run_id = f"{PREFIX}{new_job_id()}"
        await self._begin(_Run(run_id, jobs, after=None), START)
        return run_id

    async def resume(self, run_id: str, state: BulkState) -> int:
        """Continue a run where it stopped. If another process still works on the run, that process stops.

        Returns:
            How often the run has begun. The number stays the same until another call resumes the run.

        Raises:
            BusyError: Too many runs are in progress in this process.
        """
        return await self._begin(_Run(run_id, state.jobs, after=state.cursor), RESUME)

    async def stop(self, run_id: str) -> None:
        """Ask a run to stop after the batch in progress."""
        with self._acting():
            await self._rows.stop(run_id)

    async def wait(self) -> None:
        """Wait until no run of this process is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def interrupt(self) -> None:
        """End the runs of this process after the batches in progress, and write that they have stopped."""
        # A task that already writes the end of its run is not cancelled. A cancelled task does not write the
        # end, so this method does.
        running = {task: run for task, run in self._tasks.items() if not run.is_ending}
        for task in running:
            task.cancel()
        await self.wait()
        for run in running.values():
            await self._end(run, None)

    def progress(self, run_id: str) -> Progress | None:
        """Return the last step of a run; None if the run is not in this process, or has made no step yet."""
        run = self._runs.get(run_id)
        return None if run is None else run.progress

    async def state(self, run_id: str) -> BulkState | None:
        """Return the state of a run; None if there is no such run."""
        row = await self._rows.read(check_text("run_id", run_id))
        return BulkState.of(row, is_here=run_id in self._runs)

    async def _begin(self, run: _Run, action: str) -> int:
        """Write that a run begins or continues, and start its task; return how often the run has begun.

        ``action`` is the name of the record in the audit: ``START`` or ``RESUME``.
        """
        if len(self._runs) >= MAX_RUNS:
            raise BusyError(
                f"{len(self._runs)} bulk runs are in progress here; wait until one ends, or stop one"
            )
        # The run counts from here on. Otherwise calls that come while its row is written could exceed the
        # maximum.
        self._runs[run.run_id] = run
        try:
            with self._acting():
                run.begun = await self._rows.begin(run.run_id, asdict(run.jobs), action)
            task = asyncio.create_task(self._follow(run))
        except BaseException:  # a cancellation too
            self._forget(run)
            raise
        self._tasks[task] = run
        task.add_done_callback(self._drop_task)
        return run.begun

    async def _follow(self, run: _Run) -> None:
        """Change the jobs until none is left, the run is stopped, or an error occurs; then write the end.

        If another task has continued the run, this one leaves the row as it is, because the other one writes
        it.
        """
        try:
            async with aclosing(self._steps(run)) as steps:
                async for step in steps:
                    _log_refusals(run.run_id, step)
                    # Without a cursor this was the last batch, which has written that the run is complete.
                    if step.cursor is None:
                        run.progress = step
                        break
                    state = await self.state(run.run_id)
                    if state is None or state.begun != run.begun:
                        return  # another task has continued the run
                    # The row also counts the jobs that earlier tasks of the run have changed.
                    run.progress = replace(step, done=state.done)
                    if state.phase == "stopping":
                        break
        except StaleRunError as caught:  # another task has continued or completed the run
            logger.info("%s", caught, extra=record_fields())
            return
        except (SchedulerError, ValueError) as caught:
            error = str(caught)
        except Exception as caught:  # a bug, or an error of the server that no other class has
            logger.exception("the bulk run %s failed", run.run_id, extra=record_fields())
            error = type(caught).__name__
            if is_refused_change(caught):
                # The message of the server may quote arguments. All who see the run see its error.
                error = describe_refusal(caught, has_message=False)
        else:
            await self._end(run, None)
            return
        finally:
            self._forget(run)
        # After an error the database may be unavailable. Then the row keeps what the batches have written.
        with suppress(SchedulerError):
            await self._end(run, error)

    async def _steps(self, run: _Run) -> AsyncGenerator[Progress, None]:
        """Yield the steps of a run: its progress after each batch.

        If this task replaces another one that was just in a batch, it begins again behind that batch.
        """
        # The second round is that new beginning: the batch of the other task has moved the cursor in the row,
        # so the first batch of this one is refused.
        while True:
            steps = run.jobs.steps(self._inspector, run_id=run.run_id, after=run.after)
            try:
                async with aclosing(steps):
                    async for step in steps:
                        yield step
            except StaleRunError:
                state = await self.state(run.run_id)
                # Another task has continued the run, or has completed it.
                if state is None or state.begun != run.begun or state.cursor is None:
                    raise
                run.after = state.cursor
            else:
                return

    async def _end(self, run: _Run, error: str | None) -> None:
        """Write that a run has ended; ``error`` is None if nothing went wrong."""
        # interrupt() does not cancel a task that is about to write the end.
        run.is_ending = True
        counts = {}
        if run.progress is not None:
            counts = {"refused": run.progress.refused, "skipped": run.progress.skipped}
        with self._acting():
            await self._rows.end(run.run_id, run.begun, error, **counts)

    def _acting(self) -> AbstractContextManager[None]:
        """Make the actor of the Inspector the author of the changes in the block."""
        return acting_as(tables_of(self._inspector).author)

    def _forget(self, run: _Run) -> None:
        """Remove a run whose task ends from the runs of this process."""
        # If another task of this process has continued the run, the entry is that of the other task.
        if self._runs.get(run.run_id) is run:
            del self._runs[run.run_id]

    def _drop_task(self, task: asyncio.Task[None]) -> None:
        """Remove a task that has ended, and log its error if it has one."""
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a bulk run failed", exc_info=error, extra=record_fields())
