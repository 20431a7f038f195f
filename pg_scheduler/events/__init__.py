"""Events of a Scheduler, as immutable values, and the types of their subscribers."""

from pg_scheduler.events.bus import EventBus, Sink, Subscriber
from pg_scheduler.events.gaps import EventsDropped
from pg_scheduler.events.queues import EventStream
from pg_scheduler.events.types import (
    Event,
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobExpired,
    JobFailed,
    JobLost,
    JobReleased,
    JobRetried,
    JobScheduled,
    JobsReclaimed,
    JobStarted,
    JobsVacuumed,
    KeeperConnected,
    KeeperLost,
    LeaseLost,
    ListenerConnected,
    ListenerLost,
    LoopBlocked,
    PassFinished,
    PeriodicJobBroken,
    PeriodicJobPlanned,
    ServiceFaulted,
    ServiceRetrying,
    UnregisteredName,
    WorkerStarted,
    WorkerStopped,
)

__all__ = [
    "Event",
    "EventBus",
    "EventStream",
    "EventsDropped",
    "JobCancelled",
    "JobCompleted",
    "JobEvent",
    "JobExpired",
    "JobFailed",
    "JobLost",
    "JobReleased",
    "JobRetried",
    "JobScheduled",
    "JobStarted",
    "JobsReclaimed",
    "JobsVacuumed",
    "KeeperConnected",
    "KeeperLost",
    "LeaseLost",
    "ListenerConnected",
    "ListenerLost",
    "LoopBlocked",
    "PassFinished",
    "PeriodicJobBroken",
    "PeriodicJobPlanned",
    "ServiceFaulted",
    "ServiceRetrying",
    "Sink",
    "Subscriber",
    "UnregisteredName",
    "WorkerStarted",
    "WorkerStopped",
]

for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__
