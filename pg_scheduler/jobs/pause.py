"""The public value of a task, and a pause as read from its row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pg_scheduler.base.public import public
from pg_scheduler.jobs.limits import Limit
from pg_scheduler.jobs.model import JobPriority
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.unique import Unique


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause as read from its row.

    Attributes:
        ends_in: Seconds until it ends, 0 or less if it has ended; None if it lasts until it is resumed.
        suspends_expiry: Whether the jobs do not expire during the pause.
        names: The names of the task that the row has, if expiry is suspended.
        aliases: Other names of the task that workers report, if expiry is suspended.
        exact_names: The name of the task, its aliases and the default name of its function, from the row.
    """

    name: str
    paused_at: datetime
    paused_until: datetime | None
    note: str | None
    actor: str
    ends_in: float | None
    suspends_expiry: bool = False
    names: Sequence[str] = ()
    aliases: Sequence[str] = ()
    exact_names: Sequence[str] = ()

    @property
    def stopped_names(self) -> set[str]:
        """The names whose jobs no worker starts, whatever name the worker itself has for the task."""
        return {self.name, *self.exact_names}

    @property
    def all_names(self) -> set[str]:
        """Every name of the task that is known from the database."""
        return {self.name, *self.names, *self.aliases}

    @property
    def has_ended(self) -> bool:
        """Whether the end of the pause has come, by the time at which its row was read."""
        return self.ends_in is not None and self.ends_in <= 0

    @property
    def is_over(self) -> bool:
        """Whether the pause holds no jobs any more.

        A pause that suspends expiry holds its jobs beyond its end, as long as its row exists: a service first
        gives each job its whole misfire grace time anew, and then deletes the row.
        """
        return self.has_ended and not self.suspends_expiry


def linked_names(names: Iterable[str], pauses: Collection[Pause]) -> set[str]:
    """Return the given names of a task, and the further names under which pauses stop the same task.

    Two pauses concern the same task if one has the name under which the other is stored. It does not suffice
    that both have some name: it could be the default name of two functions of several services.
    """
    given_names = set(names)
    linked = set(given_names)
    # A pause that stops one of the given names concerns the task.
    for pause in pauses:
        if not given_names.isdisjoint(pause.stopped_names):
            linked |= pause.stopped_names
    # So does a pause that is stored under one of the names found so far. Its names may lead to more pauses,
    # so this is repeated until no name is added.
    former_size = 0
    while former_size < len(linked):
        former_size = len(linked)
        for pause in pauses:
            if pause.name in linked:
                linked |= pause.stopped_names
    return linked


@public
@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A registered function, or a paused name that is not registered in this process."""

    name: str
    """The name of its jobs."""
    aliases: tuple[str, ...]
    """Other names whose jobs it runs."""
    is_registered: bool
    """Whether this Scheduler can run its jobs."""
    timeout: timedelta | None
    """Default time limit of one attempt; None for no limit."""
    misfire_grace_time: int | None
    """Default misfire grace time in seconds; None for no limit."""
    max_retries: int
    """Default number of retries."""
    priority: JobPriority
    """Default priority."""
    limits: tuple[Limit, ...] = ()
    """How many attempts may run or start; empty for no limit."""
    retry: RetryPolicy | None = field(default=None, kw_only=True)
    """The delays before its retries; None for those of the Scheduler."""
    executor: str | None = field(default=None, kw_only=True)
    """The name of its executor; None if it is not registered here."""
    typed: bool = field(default=False, kw_only=True)
    """Whether its annotations validate the arguments."""
    keep_result: timedelta | None = field(default=None, kw_only=True)
    """Default time for which results are kept; None if they are not kept."""
    deadline: timedelta | None = field(default=None, kw_only=True)
    """Default time from the due time of a job within which it must have ended; None for no deadline."""
    metadata: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """Merged into the metadata of its jobs."""
    unique: Unique | str | None = field(default=None, kw_only=True)
    """Which of its jobs exclude one another; None for none."""
    on_failure: str | None = field(default=None, kw_only=True)
    """The task that is enqueued when a job has failed finally; None for none."""
    on_cancel: str | None = field(default=None, kw_only=True)
    """The task that is enqueued when a job that has begun is cancelled; None for none."""
    chunk: int | None = field(default=None, kw_only=True)
    """How many jobs one call of the function may get; None for a call for each job."""
    chunk_wait: timedelta | None = field(default=None, kw_only=True)
    """How long the first job of a chunk waits for others; None for a call for each job."""
    paused_at: datetime | None = None
    """When the task was paused; None if it is not paused."""
    paused_until: datetime | None = None
    """When the pause ends by itself; None if it lasts until the task is resumed, or if it is not paused."""
    note: str | None = None
    """Why it was paused."""
    actor: str | None = None
    """The Scheduler that paused it: its identity, else its worker id."""
    suspends_expiry: bool = field(default=False, kw_only=True)
    """Whether its jobs do not expire during the pause."""

    @property
    def is_paused(self) -> bool:
        """Whether its jobs wait."""
        return self.paused_at is not None
