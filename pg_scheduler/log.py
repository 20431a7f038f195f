"""Events as log lines: the one place that decides what is written and how loud.

Logger ``pg_scheduler``. Arguments of jobs are never logged.
"""

from __future__ import annotations

import logging
from typing import Final

from pg_scheduler import events

__all__ = ["log_event"]

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
    events.JobsRescued: logging.WARNING,
    events.JobCancelled: logging.INFO,
    events.JobsVacuumed: logging.INFO,
    events.PeriodicJobPlanned: logging.DEBUG,
    events.ListenerLost: logging.WARNING,
    events.ServiceRetrying: logging.WARNING,
    events.ServiceFaulted: logging.CRITICAL,
}


def log_event(event: events.Event) -> None:
    """Write one line for one event; faults come with their traceback."""
    level = _LEVELS.get(type(event), logging.DEBUG)
    if logger.isEnabledFor(level):
        error = getattr(event, "error", None)
        logger.log(level, "%r", event, exc_info=error if isinstance(error, BaseException) else None)
