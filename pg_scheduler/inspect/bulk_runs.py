"""Change all jobs of a search in the background; the audit has all that another process needs to continue.

A run is a task of the event loop, for example of the server of the dashboard, where it outlives the page
that started it. It ends with the process. Its state is in the audit, under its id: ``start_bulk`` or
``resume_bulk`` with what to do, a record per batch with the cursor behind it, ``stop_bulk`` as a request,
and ``end_bulk``. A run reads the newest records after each batch, so a request to stop it, or to continue
it elsewhere, may reach any process. A batch of a task that another one has replaced meanwhile changes
nothing, because the records show another cursor. Every record names the one by which the run was started or
resumed last, so that it is found behind any number of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from pg_scheduler.errors import SchedulerError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.inspect.audit import AuditRecord
from pg_scheduler.inspect.bulk import Progress
from pg_scheduler.inspect.bulk_jobs import BulkJobs
from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.jobs.ids import new_job_id
from pg_scheduler.store.bulk import StaleRunError

__all__ = [
    "MAX_RUNS",
    "PREFIX",
    "BulkRuns",
    "BulkState",
    "BusyError",
    "Phase",
    "StartedRun",
    "recent_runs",
]

MAX_RUNS: Final = 4
"""Runs of one process at once. Each changes a batch of at most 500 jobs at a time."""

RECENT: Final = 20
"""Records that are read after each batch: fewer are written in between."""

SUSPECT_AFTER_S: Final = 60.0
"""Seconds without a record, beyond those between two batches, after which a run is taken for dead."""

PREFIX: Final = "bulk-"
"""Of the ids of runs."""

START: Final = "start_bulk"
RESUME: Final = "resume_bulk"
STOP: Final = "stop_bulk"
END: Final = "end_bulk"
BEGINNINGS: Final = frozenset({START, RESUME})
CONTROL: Final = BEGINNINGS | {STOP, END}

Phase: TypeAlias = Literal["running", "stopping", "stopped", "complete"]

_PHASES: Final[Mapping[str, Phase]] = {STOP: "stopping", END: "stopped"}


class StartedRun(NamedTuple):
    """A run in a list, as the record of its start has it."""

    run_id: str
    jobs: BulkJobs
    actor: str
    started_at: datetime


async def recent_runs(inspector: Inspector, *, limit: int) -> list[StartedRun]:
    """Return the runs that were started last, the newest first."""
    found = (await inspector.audit(action=START, limit=limit)).items
    read = ((each, BulkJobs.of(each.details)) for each in found)
    return [
        StartedRun(each.subject, jobs, each.actor, each.at)
        for each, jobs in read
        if each.subject and jobs is not None
    ]


class BusyError(ValueError):
    """This process has as many runs as it may have."""


@dataclass(frozen=True, slots=True)
class BulkState:
    """How far a run is, as the audit and this process know it.

    Attributes:
        jobs: What it does.
        begun: The id of the record by which it was started or resumed last.
        actor: Who started or resumed it last.
        started_at: When.
        last_at: When its newest record was written.
        answered_at: When its newest record was written that is no request to stop.
        phase: Whether it runs. A run whose process has ended without a record stays ``running``; see
            ``is_suspect()``.
        is_here: Whether it runs in this process.
        cursor: Where it continues; None for the start.
        done: Jobs that were changed, before it was resumed too.
        searched: Jobs that were examined.
        total_estimate: About how many jobs it examines; None if unknown.
        error: Why it has stopped; None if nothing went wrong.
    """

    jobs: BulkJobs
    begun: int
    actor: str
    started_at: datetime
    last_at: datetime
    answered_at: datetime
    phase: Phase
    is_here: bool
    cursor: str | None
    done: int
    searched: int
    total_estimate: int | None
    error: str | None

    def is_suspect(self, now: datetime) -> bool:
        """Return whether a run that has not ended lacks the records that each batch writes."""
        if self.is_here or self.phase not in {"running", "stopping"}:
            return False
        between_s = 1 / self.jobs.rate if self.jobs.rate else 0.0  # the jobs of a batch are those of a second
        return (now - self.answered_at) / timedelta(seconds=1) > SUSPECT_AFTER_S + between_s


@dataclass(slots=True)
class _Run:
    """A run of this process."""

    jobs: BulkJobs
    after: str | None
    done_before: int
    begun: int = 0
    progress: Progress | None = None


class BulkRuns:
    """The runs of this process, and the records of all.

    Args:
        inspector: Makes the changes and reads the audit, as the author of the caller's context.
    """

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
        return await self._begin(run_id, RESUME, _Run(state.jobs, state.cursor, state.done), done=state.done)

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
        recent = (await self._inspector.audit(subject=run_id, limit=RECENT)).items
        begun = await self._record(run_id, _beginning(recent))
        jobs = None if begun is None else BulkJobs.of(begun.details)
        if begun is None or jobs is None:
            return None
        batch = f"{jobs.verb}_jobs"
        newest: Sequence[AuditRecord] = [each for each in recent if each.action == batch][:1]
        newest = newest or (await self._inspector.audit(subject=run_id, action=batch, limit=1)).items
        return self._state(run_id, jobs, begun, recent, newest)

    async def _record(self, run_id: str, record_id: int) -> AuditRecord | None:
        """Return a record of a run by its id; None if it does not exist."""
        if record_id <= 0:
            return None
        found = (await self._inspector.audit(subject=run_id, after=str(record_id + 1), limit=1)).items
        return next((each for each in found if each.id == record_id), None)

    def _state(
        self,
        run_id: str,
        jobs: BulkJobs,
        begun: AuditRecord,
        recent: Sequence[AuditRecord],
        newest: Sequence[AuditRecord],
    ) -> BulkState:
        records = [each for each in recent if each.id >= begun.id]
        last = _last_control(records, begun.id) or begun
        placed = next((each for each in records if "searched" in each.details), begun).details
        cursor = newest[0].details.get("next") if newest else None
        run = self._runs.get(run_id)
        progress = None if run is None else run.progress
        phase: Phase = _PHASES.get(last.action, "running")
        if newest and cursor is None:
            phase = "complete"
        error = last.details.get("error")
        return BulkState(
            jobs=jobs,
            begun=begun.id,
            actor=begun.actor,
            started_at=begun.at,
            last_at=records[0].at if records else begun.at,
            answered_at=next((each.at for each in records if each.action != STOP), begun.at),
            phase=phase,
            is_here=run is not None,
            cursor=cursor if isinstance(cursor, str) else None,
            done=progress.done
            if progress
            else sum(_number(placed, name) for name in ("done_before", "done", "count")),
            searched=progress.searched if progress else _number(placed, "searched"),
            total_estimate=progress.total_estimate if progress else _number(placed, "total") or None,
            error=error if isinstance(error, str) else None,
        )

    async def _begin(self, run_id: str, action: str, run: _Run, **details: Any) -> int:
        if len(self._runs) >= MAX_RUNS:
            raise BusyError(
                f"{len(self._runs)} bulk runs are in progress here; wait until one ends, or stop one"
            )
        self._runs[run_id] = run  # before the record is written, so that the bound holds
        try:
            run.begun = await self._inspector.record_action(action, run_id, **asdict(run.jobs), **details)
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
        if _beginning(recent) > run.begun:  # whatever was recorded since concerns the other task
            return RESUME
        last = _last_control(recent, run.begun)
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


def _beginning(recent: Sequence[AuditRecord]) -> int:
    """Return the id of the record by which a run was started or resumed last; 0 if none names it."""
    named = [each.id if each.action in BEGINNINGS else _number(each.details, "begun") for each in recent]
    return max(named, default=0)


def _last_control(recent: Sequence[AuditRecord], begun: int) -> AuditRecord | None:
    """Return the newest record that is no batch, except those of a task that another one has replaced."""
    own = (each for each in recent if each.details.get("begun", begun) == begun)
    return next((each for each in own if each.action in CONTROL), None)


def _number(details: Mapping[str, Any], name: str) -> int:
    value = details.get(name)
    return value if isinstance(value, int) else 0
