"""Jobs as lists show them, with what a request may see."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.base.text.values import copy_fields
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.pauses import pauses_of
from pg_scheduler.dashboard.texts import plain, short
from pg_scheduler.facts.job_state import QUARANTINED, state_of
from pg_scheduler.inspect.bulk import ALLOWED
from pg_scheduler.inspect.dependencies import read_blockers
from pg_scheduler.inspect.store.inspections import BlockerRow
from pg_scheduler.inspect.texts import counted
from pg_scheduler.inspect.timeline import is_retry_next, last_attempt
from pg_scheduler.jobs import metadata
from pg_scheduler.jobs.limits import limit_of
from pg_scheduler.jobs.model import Job, JobPriority
from pg_scheduler.jobs.pause import Pause
from pg_scheduler.jobs.sequences import sequence_of
from pg_scheduler.jobs.shares import share_of
from pg_scheduler.queue.dependencies import AFTER

MAX_ERROR_LENGTH: Final = 300
MAX_ARGUMENTS_LENGTH: Final = 120
MAX_TAGS: Final = 20


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a list."""

    job_id: str
    name: str
    status: JobStatus
    state: str
    """Its status; for a pending job, what it waits for."""
    arguments: str | None
    """A part of its arguments, in one line; None if the request may not see them."""
    due: datetime
    priority: JobPriority
    attempt: int
    max_attempts: int
    """The number of the last attempt that it can have."""
    retries: str
    """How many retries it has used, or how many workers died."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    ran_s: float | None
    """The length of its last attempt in seconds."""
    worker: str | None
    worker_name: str | None
    """The name that people gave it, else its id."""
    schedule: str | None
    paused_task: str | None
    """The name of its task if the job waits because the task is paused, else None."""
    paused_by: str | None
    """Who paused its task, if the job waits because of that, else None."""
    blocked_on: str | None
    blockers: Sequence[BlockerRow]
    """The first jobs that it waits for; one more than a page shows, if there are more."""
    error: str | None
    tags: Sequence[str]
    progress: float | None
    """The share of its work that is done, from 0 to 1; None if it is unknown."""
    note: str | None
    """The note of its progress; None if the request may not see it."""
    actions: Sequence[str]
    """The actions that its state allows: ``cancel``, ``retry``, ``delete``, ``move``."""

    @property
    def cause(self) -> str | None:
        """The error; None for none. For a quarantined job, it lacks the name of the state and the remedy."""
        if self.error is None or self.state != "quarantined":
            return self.error
        # The list shows the state anyway. The remedy begins with the second sentence.
        return self.error.removeprefix(QUARANTINED).strip().partition(". ")[0]

    @property
    def when(self) -> datetime:
        """When it ended, started or is due."""
        return self.finished_at or self.started_at or self.due

    @property
    def limit(self) -> str | None:
        """The name of the limit that it waits for; None for none."""
        return limit_of(self.blocked_on)[0] or None

    @property
    def share(self) -> str | None:
        """The name of the share in which it waits for the turn of its tenant; None for none."""
        return share_of(self.blocked_on)[0] or None

    @property
    def sequence(self) -> str | None:
        """The name of the sequence in which it waits for its place; None for none."""
        return sequence_of(self.blocked_on)[0] or None

    def left_s(self, now: datetime) -> float | None:
        """Return about how many seconds are left at its present rate; None if that is unknown."""
        return seconds_left(self.started_at, self.progress, now)


SORTS: Final[Mapping[str, Callable[[JobRow], Any]]] = {
    "job": lambda row: row.job_id,
    "name": lambda row: row.name,
    "status": lambda row: row.state,
    "due": lambda row: row.due,
    "attempt": lambda row: row.attempt,
    "created": lambda row: row.created_at,
    "ended": lambda row: row.finished_at,
    "when": lambda row: row.when,
    "ran": lambda row: row.ran_s,
    "worker": lambda row: row.worker,
    "schedule": lambda row: row.schedule,
    "priority": lambda row: row.priority.db_value,
    "tags": lambda row: row.tags or None,
    "progress": lambda row: row.progress,
    "error": lambda row: row.error,
}
"""The values by which the jobs of a page are sorted, by the parameter ``sort``; ``-`` before it reverses."""


def sorted_rows(rows: Sequence[JobRow], sort: str) -> Sequence[JobRow]:
    """Return rows sorted by a column, those without a value last."""
    if not sort:
        return rows
    key = SORTS[sort.removeprefix("-")]
    rows_with_value = [row for row in rows if key(row) is not None]
    rows_without_value = [row for row in rows if key(row) is None]
    rows_with_value.sort(key=key, reverse=sort.startswith("-"))
    return [*rows_with_value, *rows_without_value]


def tags_of(job: Job, request: PageRequest) -> list[str]:
    """Return the tags of a job that the request may see."""
    if not request.access.sees_arguments or request.settings.redaction.is_hidden("tags"):
        return []
    return metadata.tags_of(job.metadata)[:MAX_TAGS]


def share_done(job: Job) -> float | None:
    """Return the share of a job's work that is done, from 0 to 1; None if it is unknown."""
    if job.progress is None or not job.progress.total or job.progress.total <= 0:
        return None
    return min(max(job.progress.done / job.progress.total, 0.0), 1.0)


def seconds_left(started_at: datetime | None, share: float | None, now: datetime) -> float | None:
    """Return about how many seconds a running job takes until its end, at its present rate.

    ``share`` is the share of its work that is done. The result is None if that is unknown or 0, or if all of
    the work is done.
    """
    if started_at is None or not share or share >= 1:
        return None
    ran_s = max((now - started_at).total_seconds(), 0.0)
    # At the same rate, the whole job takes ran_s / share seconds, of which this part is left.
    return ran_s * (1 - share) / share


async def rows_of(jobs: Sequence[Job], request: PageRequest) -> list[JobRow]:
    """Return jobs as lists show them, with the names of their workers and what they wait for."""
    # These jobs wait for other jobs, the blockers, which are read to show them.
    waiting_ids = [job.job_id for job in jobs if job.blocked_on == AFTER]
    blockers: Mapping[str, Sequence[BlockerRow]] = {}
    # A job may wait for jobs of any name, so only a request that sees all names sees them.
    if waiting_ids and request.access.visible_names is None:
        blockers = await read_blockers(request.inspector, waiting_ids)
    workers = await request.worker_names() if any(job.worker_id for job in jobs) else {}
    pending = [job.job_name for job in jobs if job.status is JobStatus.PENDING]
    pauses = await pauses_of(pending, request) if pending else {}
    return [
        row_of(job, request, blockers.get(job.job_id, ()), workers, pauses.get(job.job_name)) for job in jobs
    ]


def row_of(
    job: Job,
    request: PageRequest,
    blockers: Sequence[BlockerRow] = (),
    workers: Mapping[str, str] | None = None,
    pause: Pause | None = None,
    *,
    with_arguments: bool = True,
) -> JobRow:
    """Return a job as lists show it, without what the request may not see.

    ``blockers`` are the jobs that it waits for, ``workers`` the names of workers by their ids, and ``pause``
    is the pause of its task.
    """
    job = request.visible_job(job)
    waiting_for = pause if job.status is JobStatus.PENDING else None
    return copy_fields(
        JobRow,
        job,
        name=job.job_name,
        state=state_of(job, request.now),
        arguments=_arguments(job, request) if with_arguments else None,
        due=job.execution_time,
        max_attempts=last_attempt(job),
        retries=_retries(job),
        ran_s=_ran_s(job, request.now),
        worker=job.worker_id,
        worker_name=(workers or {}).get(job.worker_id or "", job.worker_id),
        schedule=job.schedule_id,
        paused_task=None if waiting_for is None else waiting_for.name,
        paused_by=None if waiting_for is None else waiting_for.actor,
        blocked_on=job.blocked_on,
        blockers=blockers,
        error=None if job.error_message is None else short(job.error_message, MAX_ERROR_LENGTH),
        tags=[short(tag) for tag in tags_of(job, request)],
        progress=share_done(job),
        note=None if job.progress is None else job.progress.note,
        actions=_actions(job),
    )


def _actions(job: Job) -> Sequence[str]:
    """Return the actions that have an effect on a job in its state."""
    actions: list[str] = [action for action, statuses in ALLOWED.items() if job.status in statuses]
    # An attempt of a suspended job that was moved would come to the same step, and wait again.
    if job.suspended_by is not None:
        actions = [action for action in actions if action != "move"]
    return actions


def _retries(job: Job) -> str:
    """Return how many retries a job has used, or how many workers died while they ran it."""
    if job.crash_count:
        return f"{job.crash_count:,} {'crash' if job.crash_count == 1 else 'crashes'}"
    if not job.max_retries:
        return "no retries"
    if is_retry_next(job):
        return f"retry {job.retry_count:,} of {job.max_retries:,} is next"
    return f"{job.retry_count:,} of {job.max_retries:,} retries used"


def _ran_s(job: Job, now: datetime) -> float | None:
    """Return for how many seconds the last attempt has run; None if the job has not started."""
    if job.started_at is None:
        return None
    return max(((job.finished_at or now) - job.started_at).total_seconds(), 0.0)


def _arguments(job: Job, request: PageRequest) -> str | None:
    """Return a part of the arguments in one line; None if the request may not see them."""
    if not request.access.sees_arguments:
        return None
    if job.no_args_reason is not None:
        return short(job.no_args_reason)
    if request.settings.format_arguments is None:
        return arguments_line(job.args, job.kwargs, request.settings.redaction.is_hidden)
    return short(str(request.settings.format_arguments(job)))


def arguments_line(args: Sequence[Any], kwargs: Mapping[str, Any], is_hidden: Callable[[str], bool]) -> str:
    """Return arguments in one line of bounded length. Of an object or a list, it has the length only.

    Args:
        args: The positional arguments.
        kwargs: The keyword arguments.
        is_hidden: Returns whether the value of a key is hidden. The key of a positional argument is its
            number as a text.
    """

    def parts() -> Iterator[str]:
        """Yield each argument as a short text, keyword arguments with their names."""
        for place, argument in enumerate(args):
            yield "hidden" if is_hidden(str(place)) else _brief(argument, is_quoted=True)
        for key, argument in kwargs.items():
            value = "hidden" if is_hidden(key) else _brief(argument, is_quoted=not _is_word(argument))
            yield f"{short(key, MAX_ARGUMENTS_LENGTH)}={value}"

    line = ""
    # A job may have many arguments, so no part is made after the line is long enough.
    for part in parts():
        line += f", {part}" if line else part
        if len(line) > MAX_ARGUMENTS_LENGTH:
            break
    return short(line, MAX_ARGUMENTS_LENGTH) or "no arguments"


def _is_word(value: Any) -> bool:
    """Return whether a value is a text that needs no quotes in a line of arguments."""
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9._:/@+-]+", value) is not None


def _brief(value: Any, *, is_quoted: bool) -> str:
    """Return a value in a few characters; of an object or a list, the number of its members."""
    if isinstance(value, str):
        text = short(value, MAX_ARGUMENTS_LENGTH)
        return json.dumps(text, ensure_ascii=False) if is_quoted else text
    if isinstance(value, Mapping):
        return f"{{{counted(len(value), 'key')}}}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{counted(len(value), 'item')}]" if value else "[]"
    return short(json.dumps(plain(value), ensure_ascii=False), MAX_ARGUMENTS_LENGTH)
