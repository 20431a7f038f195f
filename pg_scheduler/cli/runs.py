"""``jobs runs``: list the bulk runs that the dashboard has recorded, stop one, or continue one here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import typer

from pg_scheduler.base.text.values import copy_fields
from pg_scheduler.inspect.bulk_runs import BulkRuns, BulkState, recent_runs
from pg_scheduler.inspect.store.bulk import BulkAction
from pg_scheduler.inspect.store.bulk_runs import Phase

from .commands import Command
from .errors import CommandError, ExitCode, NotFoundError, RefusedError, UsageError
from .output import Column, Shape, columns
from .progress import ProgressStyle, Reporter, read_style


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A bulk run and how far it is."""

    run_id: str
    action: BulkAction
    phase: Literal[Phase, "suspect"]
    """`suspect`: a run that has not ended, without a record for a minute; its process has probably ended."""
    done: int
    searched: int
    total_estimate: int | None
    started_at: datetime
    last_at: datetime
    actor: str
    which: str
    """The search, or the group of errors."""
    names: Sequence[str] | None
    """The names to which it is restricted."""
    rate: float | None
    """Jobs per second."""
    to: str | None
    """When moved jobs are due."""
    error: str | None


RUN: Final = Shape(
    "bulk_run",
    Run,
    (
        Column("run_id", "ID"),
        *columns("action", "phase", "done"),
        Column("searched", is_wide=True),
        Column("started_at"),
        Column("last_at", "LAST CHANGE", is_wide=True),
        Column("actor", "BY", is_wide=True),
        Column("which", "JOBS", is_long=True),
        *columns("rate", "error", is_wide=True),
    ),
)
PROBABLY_ENDED: Final = "makes no progress, so its process has probably ended; continue it with"

PROGRESS_INTERVAL_S: Final = 0.2
"""Seconds between two reads of the progress."""


async def runs(
    command: Command,
    stop: Annotated[
        str | None, typer.Option(metavar="ID", help="Stop a run after the batch in progress.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Continue a run in this process, where it stopped.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Runs of the list.")] = 20,
    progress: ProgressStyle = None,
) -> ExitCode:
    """Print the bulk runs that were started last in the dashboard, and how far they are."""
    if stop is not None and resume is not None:
        raise UsageError("pass --stop or --resume, not both")
    style = read_style(progress)
    async with command.inspector() as inspector:
        bulk = BulkRuns(inspector)
        if stop is not None:
            state = await _read_state(bulk, stop)
            if state.phase in {"stopped", "complete"}:
                raise RefusedError(f"the run {stop} does not run: it is {state.phase}")
            await bulk.stop(stop)
            command.output.say(_stopping(command, stop, state))
            return ExitCode.DONE
        if resume is not None:
            return await _resume(command, bulk, resume, Reporter(style, command.output))
        rows = [_row(state) for state in await recent_runs(inspector, limit=limit)]
    command.output.write_list(RUN, rows)
    for row in rows:
        if row.phase == "suspect":
            command.output.say(f"{row.run_id} {PROBABLY_ENDED}: pg-scheduler jobs runs --resume {row.run_id}")
    return ExitCode.DONE


def _stopping(command: Command, run_id: str, state: BulkState) -> str:
    """Return a sentence about what a request to stop a run will cause."""
    if not state.is_suspect(datetime.now(UTC)):
        return f"the run {run_id} stops after the batch in progress"
    since = command.output.when(state.answered_at)
    return f"no process has answered for the run {run_id} since {since}; it has probably ended"


async def _read_state(bulk: BulkRuns, run_id: str) -> BulkState:
    """Return how far a bulk run is; raise CommandError (NOT_FOUND) if there is no such run."""
    state = await bulk.state(run_id)
    if state is None:
        hint = "pg-scheduler jobs runs lists them"
        raise NotFoundError(f"there is no bulk run {run_id!r}; {hint}")
    return state


async def _resume(command: Command, bulk: BulkRuns, run_id: str, reporter: Reporter) -> ExitCode:
    """Continue a run, show its progress until it ends, and write how far it is then."""
    state = await _read_state(bulk, run_id)
    if state.phase == "complete":
        raise RefusedError(f"the run {run_id} is complete")
    # How often the run has begun. Another call that continues the run raises this number.
    begin_number = await bulk.resume(run_id, state)
    try:
        with reporter:
            end_task = asyncio.create_task(bulk.wait())
            while True:
                await asyncio.wait({end_task}, timeout=PROGRESS_INTERVAL_S)
                if end_task.done():
                    break
                step = bulk.progress(run_id)
                # There is no progress before the first batch.
                if step is not None:
                    reporter.show(step.summary, step.searched, step.total_estimate)
    finally:
        # An interrupted command stops the run and writes how far it is, too.
        await bulk.interrupt()
        state = await _read_state(bulk, run_id)
        command.output.write_one(RUN, _row(state))
        # Another call that has resumed the run since then has changed this number.
        is_own = state.begun == begin_number
        if not is_own:
            since = command.output.when(state.started_at)
            command.output.say(
                f"the run {run_id} was taken over by another call, of {state.actor} at {since}"
            )
        elif state.phase != "complete":
            command.output.say(f"continue with: pg-scheduler jobs runs --resume {run_id}")
    if state.phase != "complete":
        other_reason = "another process stopped it" if is_own else "another call has taken it over"
        reason = state.error or other_reason
        raise CommandError(ExitCode.NEGATIVE, f"the run {run_id} is not complete here: {reason}")
    return ExitCode.DONE


def _group_text(job_name: str, text: str, *_times: str) -> str:
    """Return a group of errors as people read it: the name of its jobs, and the text of the errors.

    The parameters are the parts of the group as a bulk run stores it.
    """
    return f"{job_name}: {text}"


def _row(state: BulkState) -> Run:
    """Return a bulk run as a row of output."""
    jobs = state.jobs
    return copy_fields(
        Run,
        state,
        action=jobs.verb,
        phase="suspect" if state.is_suspect(datetime.now(UTC)) else state.phase,
        which=jobs.where if jobs.group is None else _group_text(*jobs.group),
        names=jobs.names,
        rate=jobs.rate,
        to=jobs.to,
    )
