"""Change all jobs of a search in the background; the audit has all that another process needs to continue.

A run is a task of the event loop, for example of the server of the dashboard, where it outlives the page
that started it. It ends with the process. It reads the newest records after each batch, so a request to stop
it, or to continue it elsewhere, may reach any process. A batch of a task that another one has replaced
meanwhile changes nothing, because the records show another cursor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pg_scheduler.errors import SchedulerError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.inspect.bulk import Progress
from pg_scheduler.inspect.bulk_jobs import BulkJobs
from pg_scheduler.inspect.bulk_records import (
    END,
    PREFIX,
    RECENT,
    RESUME,
    START,
    STOP,
    BulkState,
    beginning_of,
    last_control,
    read_state,
)
from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.store.bulk import StaleRunError
from pg_scheduler.jobs.ids import new_job_id

MAX_RUNS: Final = 4
"""Runs of one process at once. Each changes a batch of at most 500 jobs at a time."""


class BusyError(ValueError):
    """This process has as many runs as it may have."""


@dataclass(slots=True)
class _Run:
    """A run of this process."""

    jobs: BulkJobs
    after: str | None
    done_before: int
    begun: int = 0
    progress: Progress | None = None


class BulkRuns:
    """The runs of this process, and the records of all."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._runs: dict[str, _Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, jobs: BulkJobs) -> str:
        """Start a run, and return its id.

        Raises:
            BusyError: Too many run already.
            ValueError: The search is invalid.
        """
        await jobs.steps(self._inspector).aclose()  # checks the arguments
        run_id = f"{PREFIX}{new_job_id()}"
        await self._begin(run_id, START, _Run(jobs, None, 0))
        return run_id

    async def resume(self, run_id: str, state: BulkState) -> int:
        """Continue a run where its records end. If it still runs somewhere, it stops there.

        Returns:
            The id of the record by which it is resumed, its ``begun`` until another call resumes it.

        Raises:
            BusyError: Too many run already.
        """
        return await self._begin(run_id, RESUME, _Run(state.jobs, state.cursor, state.done))

    async def stop(self, run_id: str, state: BulkState) -> None:
        """Request of a run to stop after the batch in progress."""
        await self._inspector.record_action(STOP, run_id, begun=state.begun)

    async def wait(self) -> None:
        """Wait until no run of this process is left."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def interrupt(self) -> None:
        """End the runs of this process after the batches in progress, and record that they have stopped."""
        runs = dict(self._runs)
        for task in self._tasks:
            task.cancel()
        await self.wait()
        for run_id, run in runs.items():
            await self._inspector.record_action(END, run_id, begun=run.begun, is_complete=False, error=None)

    def progress(self, run_id: str) -> Progress | None:
        """Return the last step of a run of this process; None if there is none."""
        run = self._runs.get(run_id)
        return None if run is None else run.progress

    async def state(self, run_id: str) -> BulkState | None:
        """Return how far a run is; None if there is no such run."""
        state = await read_state(self._inspector, run_id)
        run = self._runs.get(run_id)
        if state is None or run is None:
            return state
        total = state.total_estimate if run.progress is None else run.progress.total_estimate
        return replace(state, is_here=True, total_estimate=total)

    async def _begin(self, run_id: str, action: str, run: _Run) -> int:
        if len(self._runs) >= MAX_RUNS:
            raise BusyError(
                f"{len(self._runs)} bulk runs are in progress here; wait until one ends, or stop one"
            )
        self._runs[run_id] = run  # before the record is written, so that the bound holds
        try:
            run.begun = await self._inspector.record_action(action, run_id, **asdict(run.jobs))
            task = asyncio.create_task(self._follow(run_id, run))
        except BaseException:  # a cancellation too
            self._forget(run_id, run)
            raise
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return run.begun

    async def _follow(self, run_id: str, run: _Run) -> None:
        """Change the jobs until none is left, the run is stopped, or an error occurs."""
        error = None
        try:
            async with aclosing(self._steps(run_id, run)) as steps:
                async for step in steps:
                    run.progress = replace(step, done=step.done + run.done_before)
                    if step.cursor is not None and (request := await self._request(run_id, run)) is not None:
                        if request == RESUME:
                            return  # another task continues it
                        break
        except StaleRunError as caught:  # another task continues it, or has completed it
            logger.info("%s", caught, extra=record_fields())
            return
        except (SchedulerError, ValueError) as caught:
            error = str(caught)
        except Exception as caught:  # a bug, or an error of the server that no other class has
            logger.exception("the bulk run %s failed", run_id, extra=record_fields())
            error = type(caught).__name__
        else:
            await self._record_end(run_id, run, error)
            return
        finally:
            self._forget(run_id, run)
        with suppress(SchedulerError):  # the database is unavailable: the records of the batches remain
            await self._record_end(run_id, run, error)

    async def _steps(self, run_id: str, run: _Run) -> AsyncGenerator[Progress, None]:
        """Yield the steps of a run, which follow the last batch of the task that this one replaces."""
        while True:
            steps = run.jobs.steps(
                self._inspector,
                run_id=run_id,
                begun=run.begun,
                after=run.after,
                done_before=run.done_before,
            )
            try:
                async with aclosing(steps):
                    async for step in steps:
                        yield step
            except StaleRunError:
                state = await self.state(run_id)
                if state is None or state.begun != run.begun or state.phase == "complete":
                    raise
                run.after, run.done_before = state.cursor, state.done
            else:
                return

    async def _request(self, run_id: str, run: _Run) -> str | None:
        """Return the action by which a run is to end here; None if it continues."""
        recent = (await self._inspector.audit(subject=run_id, limit=RECENT)).items
        if beginning_of(recent) > run.begun:  # whatever was recorded since concerns the other task
            return RESUME
        last = last_control(recent, run.begun)
        return None if last is None or last.id == run.begun else last.action

    async def _record_end(self, run_id: str, run: _Run, error: str | None) -> None:
        progress = run.progress
        details: dict[str, Any] = {"begun": run.begun, "is_complete": False, "error": error}
        if progress is not None:
            details |= {
                "is_complete": progress.cursor is None and error is None,
                "done": progress.done,
                "refused": progress.refused,
                "skipped": progress.skipped,
                "searched": progress.searched,
                "total": progress.total_estimate,
            }
        await self._inspector.record_action(END, run_id, **details)

    def _forget(self, run_id: str, run: _Run) -> None:
        if self._runs.get(run_id) is run:
            del self._runs[run_id]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a bulk run failed", exc_info=error, extra=record_fields())
