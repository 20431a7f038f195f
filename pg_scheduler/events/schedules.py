"""Events of schedules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pg_scheduler.events.types import Event


@dataclass(frozen=True, slots=True)
class ScheduleEvent(Event):
    """The base class of the events of one schedule."""

    schedule_id: str
    """The id of the schedule; of a periodic function, its dedup key."""


@dataclass(frozen=True, slots=True)
class ScheduleAdded(ScheduleEvent):
    """This process added a schedule."""


@dataclass(frozen=True, slots=True)
class ScheduleUpdated(ScheduleEvent):
    """This process changed the definition of a schedule."""


@dataclass(frozen=True, slots=True)
class ScheduleRemoved(ScheduleEvent):
    """This process deleted a schedule."""


@dataclass(frozen=True, slots=True)
class SchedulePaused(ScheduleEvent):
    """A schedule was paused, by a call of this process or after too many failures."""

    note: str | None
    """The note of the call, or the error."""


@dataclass(frozen=True, slots=True)
class ScheduleResumed(ScheduleEvent):
    """This process resumed a schedule."""


@dataclass(frozen=True, slots=True)
class ScheduleFired(ScheduleEvent):
    """This node enqueued the job of a fire time."""

    job_id: str
    """The job that was enqueued."""
    next_fire_at: datetime | None
    """The next fire time of the schedule; None if there is none, or until the job has ended."""


@dataclass(frozen=True, slots=True)
class PeriodicJobPlanned(ScheduleFired):
    """This node enqueued the job of a fire time of a periodic function."""

    @property
    def dedup_key(self) -> str:
        """The key of the schedule."""
        return self.schedule_id


@dataclass(frozen=True, slots=True)
class ScheduleSkipped(ScheduleEvent):
    """Fire times were dropped: the last job is unfinished, or another job has the unique key."""

    fire_times: int
    """The number of fire times."""
    last_job_id: str
    """The unfinished job."""


@dataclass(frozen=True, slots=True)
class ScheduleMissed(ScheduleEvent):
    """Fire times were missed and get no job."""

    fire_times: int
    """The number of fire times."""
    is_exact: bool
    """Whether there were no more than that."""


@dataclass(frozen=True, slots=True)
class ScheduleFinished(ScheduleEvent):
    """The last fire time of a schedule was planned."""


@dataclass(frozen=True, slots=True)
class ScheduleBroken(ScheduleEvent):
    """A schedule could not be planned and is paused: its trigger raised, or its row is invalid."""

    error: BaseException
    """What is invalid."""


@dataclass(frozen=True, slots=True)
class PeriodicJobBroken(ScheduleBroken):
    """The schedule of a periodic function could not be planned and is paused."""

    @property
    def dedup_key(self) -> str:
        """The key of the schedule."""
        return self.schedule_id
