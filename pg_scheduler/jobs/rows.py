"""Rows on the hot path: a job to insert, and a claimed job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Self, TypeAlias

from pg_scheduler.jobs.deadlines import DEADLINE, check_order, deadline_after, deadline_of, deadline_text
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE, SEQUENCE

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The time from which time spans are counted. Also, until a delayed job is inserted, its due time is this
time plus the delay; the statement then adds the delay to the time of the database."""


class PlainJob(NamedTuple):
    """A validated job without extras, ready to be inserted.

    It is a tuple, since a bulk call creates many. Fields that differ between jobs precede those that many
    jobs share.
    """

    job_id: str
    task_data: str
    execution_time: datetime
    """When it is due. For a delayed job it is ``EPOCH`` plus the delay until the statement inserts it."""
    job_name: str
    priority: int
    max_retries: int
    misfire_grace_time: int | None
    timeout_seconds: float | None
    function: str | None = None
    """The name under which its function is registered; None if that is the job's name."""
    lock_key: int | None = None

    @property
    def unique_key(self) -> None:
        """A plain job is not unique."""
        return

    @property
    def debouncing(self) -> None:
        """No further call postpones a plain job."""
        return

    @property
    def characters(self) -> int:
        """The length of the values whose size the caller decides."""
        return len(self.task_data)

    def with_id(self, job_id: str) -> PlainJob:
        """Return the job with another id, as a ``PlainJob`` and no subclass: a job with that id may exist."""
        return PlainJob(job_id, *self[1:])

    def due_at(self, execution_time: datetime) -> Self:
        """Return the job with another due time."""
        return self._replace(execution_time=execution_time)

    def with_task_data(self, task_data: str) -> Self:
        """Return the job with other arguments and metadata."""
        return self._replace(task_data=task_data)


class GeneratedIdJob(PlainJob):
    """A plain job with a generated id. No other job can have the id, so the job may be inserted by COPY.

    It has neither a function nor a lock, which only jobs of schedules have.
    """

    __slots__ = ()


class Extras(NamedTuple):
    """The columns of a job that are NULL in a plain one."""

    options: str | None = None
    """JSON that the worker reads with the claim."""
    unique_key: str | None = None
    """The key of which at most one job is unfinished."""
    blocked_on: str | None = None
    """What besides its time delays the job: ``after``, ``limit:<name>:<key>``, ``share:<name>:<key>`` or
    ``zsequence:<name>:<key>``."""
    on_end: str | None = None
    """JSON that lists the consequences of the job's end."""

    def waiting_for_others(self, **options: object) -> Extras:
        """Return the columns of a job that waits for other jobs first, with further options.

        A share, which was in ``blocked_on``, is kept in the options until the other jobs have ended.
        """
        extra_options = options
        if self.blocked_on is not None:
            extra_options = {**options, "share": self.blocked_on}
        return self.with_options(**extra_options)._replace(blocked_on="after")

    def with_options(self, **options: object) -> Extras:
        """Return the columns with further options."""
        if not options:
            return self
        return self._replace(options=json.dumps({**json.loads(self.options or "{}"), **options}))

    def in_sequence(self, place: Mapping[str, Any]) -> Extras:
        """Return the columns of a job that waits for its place in a sequence, which its end passes on."""
        consequences = json.dumps({**json.loads(self.on_end or "{}"), SEQUENCE: True})
        return self.with_options(**{SEQUENCE: place})._replace(blocked_on=place["key"], on_end=consequences)


NO_EXTRAS: Final = Extras()


class Span(NamedTuple):
    """The origin of the id of a job that exists once in a time span."""

    text: str
    """How the id begins."""
    per: timedelta
    """The time span."""

    def id_at(self, execution_time: datetime) -> str:
        """Return the id of the job of the span that contains a time."""
        # The spans are numbered from 1970 on, and have negative numbers before.
        number = (execution_time - EPOCH) // self.per
        try:
            begin = (EPOCH + number * self.per).isoformat()
        except OverflowError:  # the span begins before the first day of the calendar
            begin = str(number)
        return f"{self.text}:{begin}"


class Debouncing(NamedTuple):
    """How further calls postpone a job that waits."""

    delay: timedelta
    """From a call to the due time."""
    max_wait: timedelta | None
    """From the first call of a series to the latest due time; None for no limit."""

    def mark_at(self, called_at: datetime) -> dict[str, float]:
        """Return what the options of a job store if this call begins the series: an instant and seconds."""
        mark = {"since": called_at.timestamp()}
        return mark if self.max_wait is None else {**mark, "max_wait": self.max_wait.total_seconds()}


@dataclass(frozen=True, slots=True)
class ExtendedJob:
    """A job with values that plain jobs lack. Statements of their own insert it."""

    row: PlainJob
    extras: Extras
    after: tuple[str, ...] = ()
    """Ids of jobs that must end before; each once."""
    after_outcome: str = "completed"
    """``completed`` or ``ended``."""
    passes_results: bool = field(default=False, kw_only=True)
    """Whether the results of the jobs in ``after`` are copied to it; its options have the mark of jobs with
    steps then."""
    span: Span | None = None
    """Derives the id from the due time; None if the time does not matter."""
    debouncing: Debouncing | None = field(default=None, kw_only=True)
    """How further calls postpone it; None if they do not. The due time is its delay after the call then."""
    deadline_s: float | None = field(default=None, kw_only=True)
    """Seconds from the due time after which the job must have ended; None if an instant was given, or none.
    The options have the instant that follows."""
    given_deadline: datetime | None = field(default=None, kw_only=True)
    """The instant that the caller gave as the deadline, which must be after the due time; None for none."""

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self.row.job_id

    @property
    def job_name(self) -> str:
        """The name of the job everywhere except in the column ``job_name``: the name of its function."""
        return self.row.function or self.row.job_name

    @property
    def execution_time(self) -> datetime:
        """When the job is due."""
        return self.row.execution_time

    @property
    def task_data(self) -> str:
        """The arguments and the metadata."""
        return self.row.task_data

    @property
    def characters(self) -> int:
        """The length of the values whose size is not fixed: the arguments, the metadata and the extras."""
        return len(self.row.task_data) + sum(len(text) for text in self.extras if text is not None)

    @property
    def unique_key(self) -> str | None:
        """The key of which at most one job is unfinished; None for a job that is not unique."""
        return self.extras.unique_key

    @property
    def schedule_id(self) -> str | None:
        """The schedule of the job; None without one."""
        schedule_id: str | None = json.loads(self.extras.options or "{}").get("schedule_id")
        return schedule_id

    @property
    def deadline(self) -> datetime | None:
        """When the job must have ended; None without a deadline."""
        return deadline_of(self.extras.options)

    @property
    def keeps_result(self) -> bool:
        """Whether the result of the job is kept after its end."""
        return "keep_result" in json.loads(self.extras.options or "{}")

    def with_id(self, job_id: str) -> ExtendedJob:
        """Return the job with another id."""
        return replace(self, row=self.row._replace(job_id=job_id), span=None)

    def due_at(self, execution_time: datetime) -> ExtendedJob:
        """Return the job with another due time, and with what follows from it.

        That is the id of a job of a time span, the deadline, and the begin of the series of a debounced job.
        A delayed job passes here when its due time is known, so this is where that is compared with a
        deadline that the caller gave.

        Raises:
            ValueError: The deadline that the caller gave is not after the due time.
        """
        if self.given_deadline is not None:
            check_order(self.given_deadline, execution_time)
        row, extras = self.row.due_at(execution_time), self.extras
        if self.span is not None:
            row = row._replace(job_id=self.span.id_at(execution_time))
        if self.debouncing is not None:
            mark = self.debouncing.mark_at(execution_time - self.debouncing.delay)
            extras = extras.with_options(debounce=mark)
        if self.deadline_s is not None:
            deadline = deadline_after(execution_time, self.deadline_s)
            extras = extras.with_options(**{DEADLINE: deadline_text(deadline)})
        return replace(self, row=row, extras=extras)

    def postponed_to(self, execution_time: datetime) -> ExtendedJob:
        """Return the debounced job with the due time that its row got."""
        return replace(self, row=self.row.due_at(execution_time))

    def with_task_data(self, task_data: str) -> ExtendedJob:
        """Return the job with other arguments and metadata."""
        return replace(self, row=self.row.with_task_data(task_data))

    def with_parents(self, rows: Mapping[str, str]) -> ExtendedJob:
        """Return the job with the ids of the rows for which it waits, in place of the ids in the call.

        ``rows`` maps an id in the call to the id of its row, where the two differ.
        """
        if rows.keys().isdisjoint(self.after):
            return self
        # Two ids in the call may stand for one row.
        return replace(self, after=tuple(dict.fromkeys(rows.get(parent, parent) for parent in self.after)))

    def queued_after(self, parents: tuple[str, ...]) -> ExtendedJob:
        """Return the job, blocked until others have ended.

        A job in a sequence is returned as it is: its sequence has the others before it, since they are due
        earlier.
        """
        if self.extras.blocked_on is not None and self.extras.blocked_on.startswith(BLOCKED_BY_SEQUENCE):
            return self
        return replace(self, extras=self.extras.waiting_for_others(), after=parents, after_outcome="ended")


AnyJob: TypeAlias = PlainJob | ExtendedJob
"""A validated job, plain or extended."""


def with_options(job: AnyJob, **options: object) -> ExtendedJob:
    """Return a job with further options."""
    if isinstance(job, PlainJob):
        return ExtendedJob(job, NO_EXTRAS.with_options(**options))
    return replace(job, extras=job.extras.with_options(**options))


class Claim(NamedTuple):
    """A job claimed by this worker. Its fencing token is the attempt with the id of the worker.

    It is a tuple in the order of the claim statement's columns, since one is created for every attempt.
    """

    job_id: str
    job_name: str
    function: str
    """The name under which its function is registered."""
    attempt: int
    execution_time: datetime
    task_data: str
    priority: int
    retry_count: int
    max_retries: int
    timeout_seconds: float | None
    lock_key: int | None
    options: str | None = None
