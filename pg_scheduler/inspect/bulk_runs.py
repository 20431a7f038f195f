"""Change all jobs of a search in the background; the row of the run has what other processes need.

A run is a task of the event loop, for example of the server of the dashboard, where it outlives the page
that started it. It ends with the process. It reads its row after each batch, so a request to stop it, or to
continue it elsewhere, may reach any process. Each batch moves the cursor of the row in its own transaction,
so of two tasks that continue a run at one cursor, only one changes the jobs there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, aclosing, suppress
from dataclasses import asdict, dataclass, replace
from typing import Final

from pg_scheduler.errors import SchedulerError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.inspect.bulk import Progress
from pg_scheduler.inspect.bulk_jobs import BulkJobs
from pg_scheduler.inspect.bulk_state import BulkState
from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.store.bulk import StaleRunError
from pg_scheduler.inspect.store.bulk_runs import RESUME, START
from pg_scheduler.jobs.rows import new_job_id
from pg_scheduler.jobs.validation import check_text
from pg_scheduler.store.author import acting_as

PREFIX: Final = "bulk-"
"""Of the ids of runs."""

MAX_RUNS: Final = 4
"""Runs of one process at once. Each changes a batch of at most 500 jobs at a time."""


class BusyError(ValueError):
    """This process has as many runs as it may have."""


@dataclass(slots=True)
class _Run:
    """A run of this process."""

    run_id: str
    jobs: BulkJobs
    after: str | None
    begun: int = 0
    progress: Progress | None = None
    is_ending: bool = False


class BulkRuns:
    """The runs of this process, and the rows of all."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._rows = inspector._store.bulk_runs  # noqa: SLF001 - runs are no public part of an Inspector
        self._runs: dict[str, _Run] = {}
        self._tasks: dict[asyncio.Task[None], _Run] = {}

    async def start(self, jobs: BulkJobs) -> str:
        """Start a run, and return its id.

        Raises:
            BusyError: Too many run already.
            ValueError: The search is invalid.
        """
        await jobs.steps(self._inspector).aclose()  # checks the arguments
        run_id = f"{PREFIX}{new_job_id()}"
        await self._begin(_Run(run_id, jobs, None), START)
        return run_id

    async def resume(self, run_id: str, state: BulkState) -> int:
        """Continue a run where it stopped. If it still runs somewhere, it stops there.

        Returns:
            Its ``begun`` until another call resumes it.

        Raises:
            BusyError: Too many run already.
        """
        return await self._begin(_Run(run_id, state.jobs, state.cursor), RESUME)

    async def stop(self, run_id: str) -> None:
        """Request of a run to stop after the batch in progress."""
        with self._acting():
            await self._rows.stop(run_id)

    async def wait(self) -> None:
        """Wait until no run of this process is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def interrupt(self) -> None:
        """End the runs of this process after the batches in progress, and write that they have stopped."""
        running = {task: run for task, run in self._tasks.items() if not run.is_ending}
        for task in running:
            task.cancel()
        await self.wait()
        for run in running.values():
            await self._end(run, None)

    def progress(self, run_id: str) -> Progress | None:
        """Return the last step of a run of this process; None if there is none."""
        run = self._runs.get(run_id)
        return None if run is None else run.progress

    async def state(self, run_id: str) -> BulkState | None:
        """Return how far a run is; None if there is no such run."""
        row = await self._rows.read(check_text("run_id", run_id))
        return BulkState.of(row, is_here=run_id in self._runs)

    async def _begin(self, run: _Run, action: str) -> int:
        if len(self._runs) >= MAX_RUNS:
            raise BusyError(
                f"{len(self._runs)} bulk runs are in progress here; wait until one ends, or stop one"
            )
        self._runs[run.run_id] = run  # before the row is written, so that the bound holds
        try:
            with self._acting():
                run.begun = await self._rows.begin(run.run_id, asdict(run.jobs), action)
            task = asyncio.create_task(self._follow(run))
        except BaseException:  # a cancellation too
            self._forget(run)
            raise
        self._tasks[task] = run
        task.add_done_callback(self._ended)
        return run.begun

    async def _follow(self, run: _Run) -> None:
        """Change the jobs until none is left, the run is stopped, or an error occurs."""
        error = None
        try:
            async with aclosing(self._steps(run)) as steps:
                async for step in steps:
                    if step.cursor is None:  # the last batch has written that the run is complete
                        run.progress = step
                        break
                    state = await self.state(run.run_id)
                    if state is None or state.begun != run.begun:
                        return  # another task continues it
                    run.progress = replace(step, done=state.done)
                    if state.phase == "stopping":
                        break
        except StaleRunError as caught:  # another task continues it, or has completed it
            logger.info("%s", caught, extra=record_fields())
            return
        except (SchedulerError, ValueError) as caught:
            error = str(caught)
        except Exception as caught:  # a bug, or an error of the server that no other class has
            logger.exception("the bulk run %s failed", run.run_id, extra=record_fields())
            error = type(caught).__name__
        else:
            await self._end(run, error)
            return
        finally:
            self._forget(run)
        with suppress(SchedulerError):  # the database is unavailable: the row has what the batches wrote
            await self._end(run, error)

    async def _steps(self, run: _Run) -> AsyncGenerator[Progress, None]:
        """Yield the steps of a run, which follow the last batch of the task that this one replaces."""
        while True:
            steps = run.jobs.steps(self._inspector, run_id=run.run_id, after=run.after)
            try:
                async with aclosing(steps):
                    async for step in steps:
                        yield step
            except StaleRunError:
                state = await self.state(run.run_id)
                if state is None or state.begun != run.begun or state.cursor is None:
                    raise
                run.after = state.cursor
            else:
                return

    async def _end(self, run: _Run, error: str | None) -> None:
        run.is_ending = True
        progress, counts = run.progress, {}
        if progress is not None:
            counts = {"refused": progress.refused, "skipped": progress.skipped}
        with self._acting():
            await self._rows.end(run.run_id, run.begun, error, **counts)

    def _acting(self) -> AbstractContextManager[None]:
        return acting_as(self._inspector._author())  # noqa: SLF001

    def _forget(self, run: _Run) -> None:
        if self._runs.get(run.run_id) is run:
            del self._runs[run.run_id]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a bulk run failed", exc_info=error, extra=record_fields())
