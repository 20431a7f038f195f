"""The tools that change something, in two calls.

The first call proposes a change: it reads the objects, states what would happen, and returns a token. The
second one, ``confirm_change()``, makes that change and no other. The person stands between the two calls:
clients ask for permission before they call a tool that changes something. A question of the server to the
person (elicitation) would need one call only. But many clients do not support it, so the second call would be
needed nevertheless.

A token stands for the objects in the states in which the person saw them. It works once, for five minutes, in
the process that made it. The states of jobs are compared while their rows are locked, in the transaction that
changes them. So a job that was claimed, moved or retried in between is left out. Pauses, schedules and
workers are read again directly before the change. Between that and the change, another person can make a
change of the same kind only. The audit then has both.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field

from pg_scheduler import Job, JobStatus, Schedule
from pg_scheduler.dashboard.access import Right
from pg_scheduler.database.author import Author, acting_as
from pg_scheduler.errors import ScheduleNotFoundError
from pg_scheduler.facts.worker_state import is_draining
from pg_scheduler.inspect import ChangeOutcome, JobChange, Progress, TaskState
from pg_scheduler.inspect.bulk import RULES
from pg_scheduler.inspect.store.bulk import BulkAction
from pg_scheduler.inspect.texts import counted
from pg_scheduler.tools import default_author

from ..errors import NotFoundError, RefusedError, UsageError
from ..values import read_move, read_time
from .reads import JobSummary, check_search, summary_of
from .tools import MAX_PROPOSALS, Arguments, ChangedObject, MadeChange, Proposal, Session, Tool

VIA: Final = "mcp"
"""The way of the changes in the audit."""

MAX_JOBS: Final = 100
"""Jobs of one change: no more than a person can read before the confirmation."""

MAX_STEPS: Final = 20
"""Pages of a search that a proposal reads."""

MAX_WORKERS: Final = 100

PROPOSAL_S: Final = 300.0
"""Seconds for which a proposal can be confirmed."""

NEXT: Final = (
    "Nothing has changed. Show this to the person. "
    "Call confirm_change with the token only after the person has agreed."
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
class ProposedChange:
    """A change that waits for its confirmation."""

    summary: str
    """What would happen."""
    remarks: Sequence[str]
    """What else the person should know before the confirmation."""
    jobs: Sequence[JobSummary]
    """The jobs that would be changed, as they are now."""
    token: str
    """The token that `confirm_change` takes."""
    expires_at: datetime
    """When the token expires."""
    what_next: str
    """What to do with this."""


class JobVersion(NamedTuple):
    """What of a job must be as the person saw it. Each claim, retry, move and end changes some of it."""

    name: str
    status: JobStatus
    attempt: int
    execution_time: datetime
    finished_at: datetime | None

    @classmethod
    def of(cls, job: Job) -> JobVersion:
        """Return the version of a job."""
        return cls(job.job_name, job.status, job.attempt, job.execution_time, job.finished_at)


def _propose(
    session: Session,
    right: Right,
    make: Callable[[], Awaitable[MadeChange]],
    summary: str,
    *,
    remarks: Sequence[str] = (),
    jobs: Sequence[JobSummary] = (),
) -> ProposedChange:
    """Keep a proposal, and return what the person has to read before the confirmation."""
    token = secrets.token_urlsafe(16)
    proposals = session.proposals
    # A dict keeps the order of its keys, so the first proposal is the oldest one.
    while len(proposals) >= MAX_PROPOSALS:
        del proposals[next(iter(proposals))]
    proposals[token] = Proposal(right, make, session.clock() + PROPOSAL_S)
    expires_at = datetime.now(UTC) + timedelta(seconds=PROPOSAL_S)
    return ProposedChange(summary, remarks, jobs, token, expires_at, NEXT)


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
        Field(description=f"A search instead, as for search_jobs; its first {MAX_JOBS} jobs."),
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
        **jobs_of, **timing, limit=MAX_JOBS, names=names, dry_run=True
    )
    changes, is_complete = await _first_changes(dry_run)
    changeable_ids = [change.job_id for change in changes if change.outcome is ChangeOutcome.DONE]
    jobs = await session.reads.get_jobs(changeable_ids)
    if not jobs:
        raise RefusedError(f"there is no job to change: {RULES[action]}")
    versions = {job_id: JobVersion.of(job) for job_id, job in jobs.items()}
    remarks = _remarks_about(action, changes, list(jobs.values()))
    if not is_complete:
        remarks.append("the search may find further jobs; propose again after this change")

    def is_as_seen(job: Job) -> bool:
        """Return whether a job is as the person saw it."""
        return versions.get(job.job_id) == JobVersion.of(job)

    async def make() -> MadeChange:
        """Change the jobs that are still as the person saw them."""
        steps = _change_of(session.writes, action)(
            ids=list(versions), **timing, names=names, matches=is_as_seen
        )
        made_changes = [change async for step in steps for change in step.changes]
        outcomes = [ChangedObject(change.job_id, change.outcome.value) for change in made_changes]
        done_count = sum(change.outcome is ChangeOutcome.DONE for change in made_changes)
        left_out_count = len(outcomes) - done_count
        left_out = (
            f"; {left_out_count} left out, since they have changed or their state does not allow it"
            if left_out_count
            else ""
        )
        summary = f"{action}: {counted(done_count, 'job')} done{left_out}"
        return MadeChange(summary, outcomes, session.access.actor)

    return _propose(
        session,
        action,
        make,
        f"{counted(len(jobs), 'job')} {summary_end}",
        remarks=remarks,
        jobs=[summary_of(session, job) for job in jobs.values()],
    )


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
Note = Annotated[str | None, Field(description="Only with pause: why, for people.")]


def _end_of(until: str | None, note: str | None, *, is_pause: bool) -> datetime | None:
    """Return when a pause ends; None if it lasts until it is resumed.

    Raises:
        CommandError: The text is no time, or is given without a pause.
    """
    if not is_pause and (until is not None or note is not None):
        raise UsageError("until and note belong to a pause; leave them out")
    return None if until is None else read_time("until", until, UTC)


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
    name, is_pause = arguments.name, arguments.action == "pause"
    until = _end_of(arguments.until, arguments.note, is_pause=is_pause)
    if arguments.suspend_expiry and not is_pause:
        raise UsageError("suspend_expiry belongs to a pause; leave it out")
    seen_state = await _find_task(session, name)
    if not is_pause and seen_state.paused_at is None:
        raise RefusedError(f"task {name!r} is not paused")
    remarks = []
    if is_pause and not arguments.suspend_expiry:
        remarks.append((await session.reads.count_expiring(name, until)).summary)
    if is_pause and seen_state.paused_at is not None:
        remarks.append(f"it is paused already, by {seen_state.actor}; the new pause replaces that one")

    async def make() -> MadeChange:
        """Pause or resume the task, unless its pause has changed."""
        state = await _find_task(session, name)
        if (state.paused_at, state.paused_until) != (seen_state.paused_at, seen_state.paused_until):
            raise RefusedError(f"the pause of task {name!r} has changed since the proposal; propose again")
        tasks = session.scheduler.tasks
        if is_pause:
            await tasks.pause(name, until=until, note=arguments.note, suspend_expiry=arguments.suspend_expiry)
        else:
            await tasks.resume(name)
        return MadeChange(
            f"task {name!r}: {arguments.action}d", [ChangedObject(name, "done")], session.access.actor
        )

    end = "" if until is None else f" until {until.isoformat()}"
    due = counted(seen_state.due, "due job")
    summary = f"task {name!r}, which has {due}, would be {arguments.action}d{end}"
    return _propose(session, "task_pause", make, summary, remarks=remarks)


async def _find_task(session: Session, name: str) -> TaskState:
    """Return the state of a task.

    Raises:
        CommandError: No worker claims the name, and it has no job.
    """
    for state in (await session.reads.tasks()).items:
        if state.name == name:
            return state
    raise NotFoundError(f"no worker claims a task {name!r}, and it has no due job; list_tasks has the names")


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
    until = _end_of(arguments.until, arguments.note, is_pause=action == "pause")
    seen_schedule = await _find_schedule(session, schedule_id)
    if action == "resume" and seen_schedule.paused_at is None:
        raise RefusedError(f"schedule {schedule_id!r} is not paused")
    remarks = []
    if action == "resume":
        remarks.append("the fire times of the pause get no job")
    if action == "trigger" and seen_schedule.paused_at is not None:
        remarks.append("it is paused; one job is enqueued nevertheless")

    async def make() -> MadeChange:
        """Change the schedule, unless its definition or its pause has changed."""
        schedule = await _find_schedule(session, schedule_id)
        if _version_of(schedule) != _version_of(seen_schedule):
            raise RefusedError(f"schedule {schedule_id!r} has changed since the proposal; propose again")
        schedules = session.scheduler.schedules
        done = {"pause": "paused", "resume": "resumed", "trigger": "triggered"}[action]
        match action:
            case "pause":
                await schedules.pause(schedule_id, note=arguments.note, until=until)
            case "resume":
                await schedules.resume(schedule_id)
            case "trigger":
                job_id = await schedules.trigger(schedule_id)
                if job_id is None:
                    raise ScheduleNotFoundError(schedule_id)
                done += f", which enqueued job {job_id!r}"
        objects = [ChangedObject(schedule_id, "done")]
        return MadeChange(f"schedule {schedule_id!r}: {done}", objects, session.access.actor)

    end = "" if until is None else f" until {until.isoformat()}"
    verb = {"pause": "be paused", "resume": "be resumed", "trigger": "enqueue one job now"}[action]
    summary = f"schedule {schedule_id!r} of task {seen_schedule.task!r} would {verb}{end}"
    return _propose(session, right, make, summary, remarks=remarks)


def _version_of(schedule: Schedule) -> tuple[Any, ...]:
    """Return what of a schedule must be as the person saw it; its fire times pass without any change."""
    return schedule.version, schedule.paused_at, schedule.paused_until, schedule.retired_at


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
    remarks = [f"{draining} of them drain already"] if draining else []
    summary = f"{counted(len(worker_ids), 'worker')} would {verb}: {', '.join(worker_ids)}"
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


async def confirm_change(session: Session, arguments: ConfirmArguments) -> MadeChange:
    """Make a change that was proposed.

    Call this only after the person has read the proposal and agreed to it.
    """
    # The proposal is removed before the change begins, so a call that is repeated changes nothing.
    proposal = session.proposals.pop(arguments.token, None)
    if proposal is None or session.clock() >= proposal.expires_at_s:
        raise RefusedError(
            "there is no proposal with this token: it was used, it expired after 5 minutes, or another "
            "process made it; nothing was changed; propose the change again"
        )
    session.require(proposal.right)
    release = default_author(session.scheduler).release
    with acting_as(Author(session.access.actor, VIA, release)):
        return await proposal.make()


_CHANGES: Final = (
    Tool(
        propose_job_change,
        "Propose to change jobs",
        JobChangeArguments,
        ProposedChange,
        frozenset({"cancel", "retry", "move", "delete"}),
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
