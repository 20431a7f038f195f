"""The tools that change something, in two calls.

The first call proposes a change: it reads the objects, states what would happen, and returns a token. The
second one, ``confirm_change()``, makes that change and no other. The person stands between the two calls:
clients ask for permission before they call a tool that changes something, and show its arguments. So the
second call has the summary of the proposal besides its token. A question of the server to the person
(elicitation) would need one call only. But many clients do not support it, so the second call would be
needed nevertheless.

A token stands for the objects as the person saw them. Jobs, pauses and schedules are compared while their
rows are locked, in the transaction that changes them. So a job that was claimed, moved, retried or replaced
in between is left out, and a pause or a schedule that has changed is refused. Workers are read again directly
before they are asked to drain or to continue: another person can ask them in between, and the audit has both.

A token makes its change once, within five minutes, in the process that made it. The change runs in a task of
its own, which a cancelled call does not end. Its outcome is kept with the token, so a call that is repeated
changes nothing, and returns what the first one did.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from pg_scheduler import Job, JobStatus, Schedule
from pg_scheduler.base.text.values import copy_fields
from pg_scheduler.dashboard.access import Right
from pg_scheduler.dashboard.texts import short
from pg_scheduler.database.author import Author, acting_as
from pg_scheduler.database.faults import is_lock_timeout
from pg_scheduler.database.session import Connection
from pg_scheduler.errors import DatabaseUnavailableError, ScheduleConflictError, ScheduleNotFoundError
from pg_scheduler.events.log import refusal_of
from pg_scheduler.facts.worker_state import is_draining
from pg_scheduler.inspect import ChangeOutcome, JobChange, PausePrice, Progress
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.bulk import RULES
from pg_scheduler.inspect.store.bulk import BulkAction
from pg_scheduler.inspect.tasks import ExpiringJobs, claimed_names, tasks_of_aliases
from pg_scheduler.inspect.texts import counted, listed
from pg_scheduler.jobs.pause import Pause, linked_names
from pg_scheduler.jobs.validation import check_text
from pg_scheduler.scheduler.parts import parts_of
from pg_scheduler.scheduler.schedules import change_as_seen
from pg_scheduler.scheduler.tasks import pause_task, resume_task
from pg_scheduler.tools import default_author

from ..errors import NotFoundError, RefusedError, UsageError
from ..values import read_move, read_time
from .reads import check_search
from .results import value_of
from .tools import Arguments, ChangedObject, MadeChange, Proposal, Session, Tool

_log: Final = logging.getLogger("pg_scheduler.mcp")

VIA: Final = "mcp"
"""The way of the changes in the audit."""

MAX_JOBS: Final = 100
"""Jobs of one change: no more than a person can read before the confirmation."""

MAX_STEPS: Final = 20
"""Pages of a search that a proposal reads."""

MAX_WORKERS: Final = 100

PROPOSAL_S: Final = 300.0
"""Seconds for which a proposal can be confirmed."""

MAX_NOTE_LENGTH: Final = 500
"""Characters of a note, which a person has to read before the confirmation."""

MAX_ERROR_LENGTH: Final = 100
"""Characters of an error in a proposal."""

MAX_NAME_LENGTH: Final = 200
"""Characters of an id or a name in a summary."""

FEWER: Final = "pass a smaller limit, or fewer ids"
"""How to propose a smaller change."""

NEXT: Final = (
    "Nothing has changed. Show this to the person. Call confirm_change, with this token and this summary, "
    "only after the person has agreed."
)

JobAction = BulkAction
TaskAction = Literal["pause", "resume"]
ScheduleAction = Literal["pause", "resume", "trigger"]
WorkerAction = Literal["drain", "resume"]

_DONE: Final[Mapping[BulkAction, str]] = {
    "cancel": "would be cancelled",
    "retry": "would run again now",
    "delete": "would be deleted; nothing can bring them back",
    "move": "would be moved",
}
"""What a change does to jobs, after their number."""


@dataclass(frozen=True, slots=True)
class ProposedJob:
    """A job that would be changed."""

    job_id: str
    job_name: str
    status: JobStatus
    execution_time: datetime
    """When it is due."""
    attempt: int
    """The number of its claims so far."""
    created_at: datetime
    finished_at: datetime | None
    schedule_id: str | None
    error_message: str | None
    """The beginning of its last error."""


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """A change that waits for its confirmation."""

    summary: str
    """What would happen, which `confirm_change` takes too."""
    remarks: Sequence[str]
    """What else the person should know before the confirmation."""
    jobs: Sequence[ProposedJob]
    """All jobs that would be changed, as they are now."""
    has_more: bool
    """Whether there may be further jobs of the search, which this change leaves out."""
    token: str
    """The token that `confirm_change` takes."""
    expires_at: datetime
    """When the token expires."""
    what_next: str
    """What to do with this."""


def _propose(
    session: Session,
    right: Right,
    make: Callable[[], Awaitable[MadeChange]],
    summary: str,
    *,
    remarks: Sequence[str] = (),
    jobs: Sequence[ProposedJob] = (),
    has_more: bool = False,
    is_atomic: bool = True,
) -> ProposedChange:
    """Keep a proposal, and return what the person has to read before the confirmation.

    Raises:
        CommandError: The person cannot read it as a whole, since it is too large. It is not kept.
    """
    token = secrets.token_urlsafe(16)
    expires_at = datetime.now(UTC) + timedelta(seconds=PROPOSAL_S)
    proposed_change = ProposedChange(summary, remarks, jobs, has_more, token, expires_at, NEXT)
    value_of(proposed_change, remedy=FEWER)
    session.keep(token, Proposal(right, summary, make, session.clock() + PROPOSAL_S, is_atomic))
    return proposed_change


def _named(texts: Sequence[str]) -> str:
    """Return the first of these ids or names, as a summary has them; people see each character of them."""
    return listed([repr(short(text, MAX_NAME_LENGTH)) for text in texts])


# -- jobs ----------------------------------------------------------------------------------------------


class JobChangeArguments(Arguments):
    """The arguments of `propose_job_change()`."""

    action: Annotated[
        JobAction,
        Field(
            description="cancel pending or running jobs; retry finished jobs now; "
            "move pending jobs to another due time; delete jobs that do not run (admin only)."
        ),
    ]
    ids: Annotated[
        list[str] | None, Field(min_length=1, max_length=MAX_JOBS, description="The ids of the jobs.")
    ] = None
    where: Annotated[
        str | None,
        Field(description="A search instead, as for search_jobs; its first jobs."),
    ] = None
    limit: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_JOBS,
            description=f"Only with where: the number of jobs; null for {MAX_JOBS}, which is the most.",
        ),
    ] = None
    to: Annotated[
        str | None,
        Field(
            description="Only with move: the due time, such as 2027-01-31T09:00Z, "
            "or a time from the present due time: +1h, -30m."
        ),
    ] = None


async def propose_job_change(session: Session, arguments: JobChangeArguments) -> ProposedChange:
    """Propose to cancel, retry, move or delete jobs.

    Nothing changes until confirm_change is called with the token of the result.
    """
    action = arguments.action
    session.require(action)
    if (arguments.ids is None) is (arguments.where is None):
        raise UsageError("name the jobs either by ids or by where")
    if arguments.limit is not None and arguments.where is None:
        raise UsageError("limit belongs to where; leave it out")
    if (action == "move") is (arguments.to is None):
        raise UsageError("pass to with move, and only with move")
    jobs_of: dict[str, Any] = {"ids": arguments.ids}
    if arguments.where is not None:
        check_search(session, arguments.where)
        jobs_of = {"where": arguments.where, "tz": UTC}
    timing: dict[str, Any] = {}
    summary_end = _DONE[action]
    if arguments.to is not None:
        target = read_move("to", arguments.to, UTC)
        timing = {"to": target} if isinstance(target, datetime) else {"by": target}
        summary_end += f" by {arguments.to}" if isinstance(target, timedelta) else f" to {target.isoformat()}"
    names = session.access.visible_names
    # The dry run decides by the rules of the change itself which jobs it would change.
    dry_run = _change_of(session.reads, action)(
        **jobs_of, **timing, limit=arguments.limit or MAX_JOBS, names=names, dry_run=True
    )
    changes, is_complete = await _first_changes(dry_run)
    changeable_ids = [change.job_id for change in changes if change.outcome is ChangeOutcome.DONE]
    # The versions are read before the jobs: a job that changes in between is left out by the confirmation.
    versions = await session.reads.job_versions(changeable_ids)
    jobs = await session.reads.get_jobs(versions)
    if not jobs:
        raise RefusedError(f"there is no job to change: {RULES[action]}")
    versions = {job_id: versions[job_id] for job_id in jobs}
    remarks = _remarks_about(action, changes, list(jobs.values()))
    has_more = not is_complete
    if has_more:
        remarks.append("the search may find further jobs; propose again after this change")

    async def make() -> MadeChange:
        """Change the jobs that are still as the person saw them."""
        steps = _change_of(session.writes, action)(
            ids=list(versions), **timing, names=names, versions=versions
        )
        made_changes = [change async for step in steps for change in step.changes]
        outcomes = [ChangedObject(change.job_id, change.outcome.value) for change in made_changes]
        done_count = sum(change.outcome is ChangeOutcome.DONE for change in made_changes)
        refusals = [change.refusal for change in made_changes if change.refusal is not None]
        # Nothing was changed, and the error becomes the text that states why.
        if refusals and not done_count:
            raise refusals[0]
        left_out_count = len(outcomes) - done_count
        left_out = (
            f"; {left_out_count} left out, since they have changed or their state does not allow it"
            if left_out_count
            else ""
        )
        if refusals:
            left_out += f"; the database refuses {counted(len(refusals), 'job')}: {refusal_of(refusals[0])}"
        summary = f"{action}: {counted(done_count, 'job')} done{left_out}"
        return MadeChange(summary, outcomes, session.access.actor)

    return _propose(
        session,
        action,
        make,
        f"{counted(len(jobs), 'job')} {summary_end}: {_named(list(jobs))}",
        remarks=remarks,
        jobs=[_proposed(session, job) for job in jobs.values()],
        has_more=has_more,
    )


def _proposed(session: Session, job: Job) -> ProposedJob:
    """Return a job as a proposal has it."""
    job = session.visibility.job(job)
    error = None if job.error_message is None else short(job.error_message, MAX_ERROR_LENGTH)
    return copy_fields(ProposedJob, job, error_message=error)


def _change_of(inspector: Any, action: BulkAction) -> Callable[..., AsyncGenerator[Progress, None]]:
    """Return the method of an Inspector that changes jobs in this way."""
    method: Callable[..., AsyncGenerator[Progress, None]] = getattr(inspector, f"{action}_jobs")
    return method


async def _first_changes(steps: AsyncGenerator[Progress, None]) -> tuple[list[JobChange], bool]:
    """Return the first changes of a dry run, and whether these are all."""
    changes: list[JobChange] = []
    is_complete, number = False, 0
    async for step in steps:
        changes += step.changes
        is_complete, number = step.cursor is None, number + 1
        # The search may examine millions of jobs.
        if number == MAX_STEPS:
            break
    await steps.aclose()
    return changes, is_complete


def _remarks_about(action: BulkAction, changes: Sequence[JobChange], jobs: Sequence[Job]) -> list[str]:
    """Return what the person should know about a change of jobs besides their number."""
    remarks = []
    running = sum(job.status is JobStatus.RUNNING for job in jobs)
    if action == "cancel" and running:
        remarks.append(
            f"running now: {counted(running, 'job')}; an attempt is stopped, and what it has done stays done"
        )
    if action == "retry":
        remarks.append("the functions run again from their start, or from their last stored step")
    refused = sum(change.outcome is ChangeOutcome.REFUSED for change in changes)
    if refused:
        remarks.append(f"{counted(refused, 'job')} left out: {RULES[action]}")
    missing = sum(change.outcome is ChangeOutcome.SKIPPED for change in changes)
    if missing:
        remarks.append(f"{counted(missing, 'job')} left out, since there is no such job")
    return remarks


# -- tasks ---------------------------------------------------------------------------------------------

Until = Annotated[
    str | None,
    Field(description="Only with pause: when it ends, 2h or 2027-01-31T09:00Z; null until it is resumed."),
]
Note = Annotated[
    str | None, Field(max_length=MAX_NOTE_LENGTH, description="Only with pause: why, for people.")
]


async def _end_of(
    session: Session, until: str | None, note: str | None, *, is_pause: bool
) -> datetime | None:
    """Return when a pause ends; None if it lasts until it is resumed.

    Raises:
        CommandError: The text is no time, the time has passed, or one is given without a pause.
        ValueError: The database cannot store the note.
    """
    if not is_pause and (until is not None or note is not None):
        raise UsageError("until and note belong to a pause; leave them out")
    if note is not None:
        check_text("note", note)
    if until is None:
        return None
    end = read_time("until", until, UTC)
    now = await tables_of(session.reads).reads.statements.read_clock()
    if end <= now:
        raise UsageError(f"until {end.isoformat()} has passed; it must be after {now.isoformat()}")
    return end


def _pause_text(until: datetime | None, note: str | None) -> str:
    """Return the end of a summary of a pause: when it ends, and its note."""
    end = "" if until is None else f" until {until.isoformat()}"
    return end if note is None else f"{end}, with the note {note!r}"


class TaskChangeArguments(Arguments):
    """The arguments of `propose_task_change()`."""

    action: TaskAction
    name: Annotated[str, Field(min_length=1, description="The name of the task, as list_tasks has it.")]
    until: Until = None
    note: Note = None
    suspend_expiry: Annotated[
        bool, Field(description="Only with pause: whether no job of the task expires during the pause.")
    ] = False


async def propose_task_change(session: Session, arguments: TaskChangeArguments) -> ProposedChange:
    """Propose to pause a task, so that no job of it starts on any node, or to resume it.

    Nothing changes until confirm_change is called with the token of the result.
    """
    session.require("task_pause")
    name, is_pause = check_text("name", arguments.name), arguments.action == "pause"
    note, suspends_expiry = arguments.note, arguments.suspend_expiry
    until = await _end_of(session, arguments.until, note, is_pause=is_pause)
    if suspends_expiry and not is_pause:
        raise UsageError("suspend_expiry belongs to a pause; leave it out")
    seen_pauses = await tables_of(session.reads).reads.pauses.paused()
    present_pauses = _pauses_of(name, seen_pauses)
    if not is_pause and not present_pauses:
        raise RefusedError(f"task {name!r} is not paused")
    price = await session.reads.pause_price(name, [until])
    remarks: list[str] = []
    if is_pause:
        remarks += await _remarks_about_name(session, name, price, is_paused=bool(present_pauses))
        if not suspends_expiry:
            remarks.append(ExpiringJobs(price.expiring[0], price.is_capped).summary)
        remarks += [f"{_described(pause)}; the new pause replaces that one" for pause in present_pauses]
    else:
        remarks += [_described(pause) for pause in present_pauses]

    async def make() -> MadeChange:
        """Pause or resume the task, if its pause is the one that the person has seen."""
        parts = parts_of(session.scheduler)
        if is_pause:
            is_made = await pause_task(
                parts,
                name,
                until=until,
                note=note,
                suspend_expiry=suspends_expiry,
                seen_pauses=seen_pauses,
            )
        else:
            is_made = await resume_task(parts, name, seen_pauses=present_pauses)
        if not is_made:
            raise RefusedError(
                f"nothing was changed, since the pause of task {name!r} has changed since the proposal, or "
                "is as proposed already; propose again"
            )
        return MadeChange(
            f"task {name!r}: {arguments.action}d", [ChangedObject(name, "done")], session.access.actor
        )

    due = counted(price.due, "due job", is_capped=price.is_capped)
    expiry = "; no job of it would expire meanwhile" if suspends_expiry else ""
    ending = _pause_text(until, note) + expiry
    summary = f"task {name!r}, which has {due}, would be {arguments.action}d{ending}"
    # The end of a pause that suspends expiry is followed by further transactions, for the jobs.
    is_atomic = is_pause or not any(pause.suspends_expiry for pause in present_pauses)
    return _propose(session, "task_pause", make, summary, remarks=remarks, is_atomic=is_atomic)


def _pauses_of(name: str, pauses: Sequence[Pause]) -> list[Pause]:
    """Return the pauses that have not ended and that resuming a task ends."""
    names = linked_names([name], pauses)
    return [pause for pause in pauses if pause.name in names and not pause.is_over]


def _described(pause: Pause) -> str:
    """Return what a person should know about a pause."""
    since = f"task {pause.name!r} was paused at {pause.paused_at.isoformat()} by {pause.actor!r}"
    note = None if pause.note is None else short(pause.note, MAX_NOTE_LENGTH)
    expiry = ", and its jobs do not expire" if pause.suspends_expiry else ""
    return since + _pause_text(pause.paused_until, note) + expiry


async def _remarks_about_name(
    session: Session, name: str, price: PausePrice, *, is_paused: bool
) -> Sequence[str]:
    """Return a remark if it is unknown whether there is a task of a name; nothing if there is one.

    Raises:
        CommandError: No worker claims the name, it has no job, and no pause.
    """
    workers = await tables_of(session.reads).reads.worker_reads.workers()
    names = {*claimed_names(workers), *tasks_of_aliases(workers)}
    if name in names or price.due or is_paused:
        return ()
    # The steps of a dry run read the jobs of the name alone, also those that are not due.
    jobs = session.reads.cancel_jobs(where="status:pending,running", names=[name], limit=1, dry_run=True)
    changes, is_complete = await _first_changes(jobs)
    if changes:
        return ()
    if is_complete and not price.is_capped:
        raise NotFoundError(
            f"no live worker claims a task {name!r}, and it has no unfinished job; list_tasks has the names"
        )
    return (f"no live worker claims a task {name!r}, and of the jobs that were read none has it",)


# -- schedules -----------------------------------------------------------------------------------------


class ScheduleChangeArguments(Arguments):
    """The arguments of `propose_schedule_change()`."""

    action: Annotated[ScheduleAction, Field(description="trigger enqueues one job of the schedule now.")]
    schedule_id: Annotated[str, Field(min_length=1)]
    until: Until = None
    note: Note = None


async def propose_schedule_change(session: Session, arguments: ScheduleChangeArguments) -> ProposedChange:
    """Propose to pause, resume or trigger a schedule.

    Nothing changes until confirm_change is called with the token of the result.
    """
    action, schedule_id = arguments.action, arguments.schedule_id
    right: Right = "schedule_trigger" if action == "trigger" else "schedule_pause"
    session.require(right)
    until = await _end_of(session, arguments.until, arguments.note, is_pause=action == "pause")
    seen_schedule = await _find_schedule(session, schedule_id)
    if action == "resume" and seen_schedule.paused_at is None:
        raise RefusedError(f"schedule {schedule_id!r} is not paused")
    remarks = []
    if seen_schedule.paused_at is not None:
        present_pause = f"it was paused at {seen_schedule.paused_at.isoformat()}" + _pause_text(
            seen_schedule.paused_until,
            None if seen_schedule.note is None else short(seen_schedule.note, MAX_NOTE_LENGTH),
        )
        consequence = {
            "pause": "; the new end replaces that of this pause",
            "resume": "; the fire times of the pause get no job",
            "trigger": "; one job is enqueued nevertheless",
        }[action]
        remarks.append(present_pause + consequence)

    def is_as_seen(schedule: Schedule) -> bool:
        """Return whether a schedule is the one that the person saw, with its definition and its pause."""
        return _version_of(schedule) == _version_of(seen_schedule)

    async def make() -> MadeChange:
        """Change the schedule, unless its definition or its pause has changed."""
        done = {"pause": "paused", "resume": "resumed", "trigger": "triggered"}[action]

        async def change(connection: Connection) -> str:
            """Change the locked schedule, and return what is to be added to the summary."""
            schedules = session.scheduler.schedules
            match action:
                case "pause":
                    await schedules.pause(
                        schedule_id, note=arguments.note, until=until, connection=connection
                    )
                case "resume":
                    await schedules.resume(schedule_id, connection=connection)
                case "trigger":
                    job_id = await schedules.trigger(schedule_id, connection=connection)
                    return f", which enqueued job {job_id!r}"
            return ""

        try:
            addition = await change_as_seen(parts_of(session.scheduler), schedule_id, is_as_seen, change)
        except ScheduleConflictError:
            raise RefusedError(
                f"nothing was changed, since schedule {schedule_id!r} has changed since the proposal; "
                "propose again"
            ) from None
        objects = [ChangedObject(schedule_id, "done")]
        return MadeChange(f"schedule {schedule_id!r}: {done}{addition}", objects, session.access.actor)

    verb = {"pause": "be paused", "resume": "be resumed", "trigger": "enqueue one job now"}[action]
    ending = _pause_text(until, arguments.note)
    summary = f"schedule {schedule_id!r} of task {seen_schedule.task!r} would {verb}{ending}"
    return _propose(session, right, make, summary, remarks=remarks)


PLANNED: Final = frozenset(
    {"next_fire_at", "last_fire_at", "last_job_id", "runs", "skipped", "missed", "failures", "updated_at"}
)
"""What of a schedule changes with its fire times, without any change by a person."""


def _version_of(schedule: Schedule) -> tuple[Any, ...]:
    """Return what of a schedule must be as the person saw it: all but what changes with its fire times."""
    return tuple(getattr(schedule, field.name) for field in fields(schedule) if field.name not in PLANNED)


async def _find_schedule(session: Session, schedule_id: str) -> Schedule:
    """Return a schedule.

    Raises:
        ScheduleNotFoundError: It does not exist.
    """
    schedule = await session.reads.get_schedule(schedule_id)
    if schedule is None:
        raise ScheduleNotFoundError(schedule_id)
    return schedule


# -- workers -------------------------------------------------------------------------------------------


class WorkerChangeArguments(Arguments):
    """The arguments of `propose_worker_change()`."""

    action: WorkerAction
    worker_ids: Annotated[
        list[str],
        Field(min_length=1, max_length=MAX_WORKERS, description="The ids, as list_workers has them."),
    ]


async def propose_worker_change(session: Session, arguments: WorkerChangeArguments) -> ProposedChange:
    """Propose to drain workers, so that they claim no more jobs, or to resume them. Running jobs continue.

    Nothing changes until confirm_change is called with the token of the result.
    """
    session.require("drain")
    action, worker_ids = arguments.action, list(dict.fromkeys(arguments.worker_ids))
    seen_states = await _draining_of(session, worker_ids)

    async def make() -> MadeChange:
        """Ask the workers, unless one has ended or was asked by another person."""
        if await _draining_of(session, worker_ids) != seen_states:
            raise RefusedError("another person has drained or resumed a worker of these; propose again")
        request = session.writes.drain_workers if action == "drain" else session.writes.resume_workers
        asked_ids = await request(worker_ids)
        outcomes = [
            ChangedObject(worker_id, "done" if worker_id in asked_ids else "skipped")
            for worker_id in worker_ids
        ]
        return MadeChange(
            f"{action}: {counted(len(asked_ids), 'worker')} asked", outcomes, session.access.actor
        )

    verb = "be asked to claim no more jobs" if action == "drain" else "be asked to claim jobs again"
    draining = sum(seen_states.values())
    remarks = [f"already draining: {draining} of them"] if draining else []
    summary = f"{counted(len(worker_ids), 'worker')} would {verb}: {_named(worker_ids)}"
    return _propose(session, "drain", make, summary, remarks=remarks)


async def _draining_of(session: Session, worker_ids: Sequence[str]) -> Mapping[str, bool]:
    """Return for each of these workers whether it drains, or was requested to.

    Raises:
        CommandError: One of them does not exist.
    """
    states = {worker.worker_id: is_draining(worker) for worker in await session.reads.workers()}
    for worker_id in worker_ids:
        if worker_id not in states:
            raise NotFoundError(f"there is no worker {worker_id!r}; list_workers has the ids")
    return {worker_id: states[worker_id] for worker_id in worker_ids}


# -- the confirmation ----------------------------------------------------------------------------------


class ConfirmArguments(Arguments):
    """The arguments of `confirm_change()`."""

    token: Annotated[str, Field(min_length=1, description="The token of the proposal.")]
    summary: Annotated[
        str, Field(min_length=1, description="The summary of the proposal, which the person reads here.")
    ]


async def confirm_change(session: Session, arguments: ConfirmArguments) -> MadeChange:
    """Make a change that was proposed.

    Call this only after the person has read the proposal and agreed to it. A token makes its change once: a
    repeated call changes nothing, and returns what the first one did.
    """
    proposal = session.proposals.get(arguments.token)
    if proposal is None:
        raise RefusedError(
            "there is no proposal with this token; another process made it, or newer proposals have replaced "
            "it; if it may have been confirmed before, look at its objects; then propose the change again"
        )
    session.require(proposal.right)
    if arguments.summary.split() != proposal.summary.split():
        raise RefusedError(
            "nothing was changed, since the summary is not that of the proposal, which is: "
            f"{proposal.summary}; show this to the person"
        )
    is_repeated = proposal.change is not None
    if proposal.change is None:
        if session.clock() >= proposal.expires_at_s:
            raise RefusedError(
                "nothing was changed, since the token expired 5 minutes after the proposal; propose again"
            )
        proposal.change = asyncio.create_task(_make(session, proposal))
    change = proposal.change
    try:
        # The change continues without a call that is cancelled, and a repeated call waits for it.
        made_change = await asyncio.shield(change)
    except asyncio.CancelledError:
        change.add_done_callback(_log_failure)
        raise
    return replace(made_change, is_repeated=is_repeated)


def _log_failure(change: asyncio.Task[MadeChange]) -> None:
    """Log that a change has failed whose call was cancelled, since a person may never ask for its outcome."""
    error = None if change.cancelled() else change.exception()
    if error is not None:
        _log.warning("a change failed after its call was cancelled: %s", error, exc_info=error)


async def _make(session: Session, proposal: Proposal) -> MadeChange:
    """Make the change of a proposal under the name of the person.

    Raises:
        CommandError: The change was refused, or it is unknown whether it was made.
    """
    release = default_author(session.scheduler).release
    try:
        with acting_as(Author(session.access.actor, VIA, release)):
            return await proposal.make()
    except DatabaseUnavailableError as error:
        if is_lock_timeout(error) and proposal.is_atomic:
            # The transaction was rolled back, so the token can be used again.
            proposal.change = None
            raise RefusedError(
                f"nothing was changed, since another transaction holds a lock: {error}; the person can "
                "confirm this token later, until it expires"
            ) from error
        raise RefusedError(
            f"the database was lost while the change was made: {error}; it may have been made or not, and "
            "this token does not make it again; look at its objects before you propose it again"
        ) from error


_CHANGES: Final = (
    Tool(
        propose_job_change,
        "Propose to change jobs",
        JobChangeArguments,
        ProposedChange,
        frozenset({"cancel", "retry", "move", "delete"}),
        remedy=FEWER,
    ),
    Tool(
        propose_task_change,
        "Propose to pause or resume a task",
        TaskChangeArguments,
        ProposedChange,
        frozenset({"task_pause"}),
    ),
    Tool(
        propose_schedule_change,
        "Propose to change a schedule",
        ScheduleChangeArguments,
        ProposedChange,
        frozenset({"schedule_pause", "schedule_trigger"}),
    ),
    Tool(
        propose_worker_change,
        "Propose to drain or resume workers",
        WorkerChangeArguments,
        ProposedChange,
        frozenset({"drain"}),
    ),
)
CHANGES: Final = (
    *_CHANGES,
    Tool(
        confirm_change,
        "Make a proposed change",
        ConfirmArguments,
        MadeChange,
        frozenset().union(*(tool.rights for tool in _CHANGES)),
        changes=True,
    ),
)
