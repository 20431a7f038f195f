"""Events as log lines: the one place that decides what is written and how loud.

Logger ``pg_scheduler``. Arguments of jobs are never logged.
"""

from __future__ import annotations

import logging
from typing import Final

from pg_scheduler import events
from pg_scheduler.errors import SchedulerError

__all__ = ["EventLog"]

logger = logging.getLogger("pg_scheduler")

_LEVELS: Final[dict[type[events.Event], int]] = {
    events.WorkerStarted: logging.INFO,
    events.WorkerStopped: logging.INFO,
    events.JobFailed: logging.ERROR,
    events.JobRetried: logging.WARNING,
    events.JobReleased: logging.WARNING,
    events.JobExpired: logging.WARNING,
    events.JobLost: logging.WARNING,
    events.LeaseLost: logging.ERROR,
    events.KeeperConnected: logging.DEBUG,
    events.KeeperLost: logging.WARNING,
    events.LoopBlocked: logging.WARNING,
    events.JobsRescued: logging.WARNING,
    events.JobCancelled: logging.INFO,
    events.JobsVacuumed: logging.INFO,
    events.PeriodicJobBroken: logging.ERROR,
    events.PeriodicJobPlanned: logging.DEBUG,
    events.ListenerLost: logging.WARNING,
    events.ServiceRetrying: logging.WARNING,
    events.ServiceFaulted: logging.CRITICAL,
}


class EventLog:
    """Writes one line for each event whose level is switched on; what failed comes with its traceback.

    Of an outage, each service gives the traceback once. That the pool was closed, or a table is gone, ends
    all services: the first to meet it says so. A mistake is told each time, since the next may be another.
    """

    def __init__(self) -> None:
        self._retrying: set[str] = set()
        self._ends: set[type[SchedulerError]] = set()

    def wants(self, kind: type[events.Event]) -> bool:
        """Whether its level is switched on, or it ends an outage."""
        return logger.isEnabledFor(_LEVELS.get(kind, logging.DEBUG)) or kind is events.PassFinished

    def __call__(self, event: events.Event) -> None:
        """Write the line."""
        level = _LEVELS.get(type(event), logging.DEBUG)
        error = getattr(event, "exception", None) or getattr(event, "error", None)
        if isinstance(event, events.PassFinished):
            self._retrying.discard(event.service)
        elif isinstance(event, events.ServiceRetrying):
            if event.service in self._retrying:
                error = None
            self._retrying.add(event.service)
        elif isinstance(event, events.ServiceFaulted) and isinstance(event.error, SchedulerError):
            if type(event.error) in self._ends:
                level = logging.DEBUG
            self._ends.add(type(event.error))
        elif isinstance(event, events.WorkerStarted | events.WorkerStopped):
            self._ends.clear()
        if logger.isEnabledFor(level):
            logger.log(level, "%r", event, exc_info=error if isinstance(error, BaseException) else None)
