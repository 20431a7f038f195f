"""Events as log lines: the one place that decides what is written and how loud.

Logger ``pg_scheduler``. Arguments of jobs are never logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import fields, replace
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
    events.JobsReclaimed: logging.WARNING,
    events.JobCancelled: logging.INFO,
    events.JobsVacuumed: logging.INFO,
    events.PeriodicJobBroken: logging.ERROR,
    events.PeriodicJobPlanned: logging.DEBUG,
    events.ListenerLost: logging.WARNING,
    events.ServiceRetrying: logging.WARNING,
    events.ServiceFaulted: logging.CRITICAL,
}


REMINDER: Final = 10.0
"""Seconds of an outage after which one more of its retries is told."""


class EventLog:
    """Writes one line for each event whose level is switched on; what failed comes with its traceback.

    Of an outage, the first service to meet it gives the traceback, each other one a line, and then one retry
    is told now and again; the last service that goes on tells the end. That the pool was closed, or a table
    is gone, ends all services: the first to meet it says so. A mistake is told each time, since the next may
    be another.

    Args:
        monotonic: Tells the time, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._retrying: set[str] = set()
        self._away_since = self._told_at = 0.0
        self._ends: set[type[SchedulerError]] = set()

    def wants(self, kind: type[events.Event]) -> bool:
        """Whether its level is switched on, or it ends an outage."""
        return logger.isEnabledFor(_LEVELS.get(kind, logging.DEBUG)) or kind is events.PassFinished

    def __call__(self, event: events.Event) -> None:
        """Write the line."""
        level = _LEVELS.get(type(event), logging.DEBUG)
        error = getattr(event, "exception", None) or getattr(event, "error", None)
        if isinstance(event, events.PassFinished):
            self._passed(event.service)
        elif isinstance(event, events.ServiceRetrying):
            if self._retrying:
                error = None
            if not self._is_news(event.service):
                level = logging.DEBUG
        elif isinstance(event, events.ServiceFaulted) and isinstance(event.error, SchedulerError):
            if type(event.error) in self._ends:
                level = logging.DEBUG
            self._ends.add(type(event.error))
        elif isinstance(event, events.WorkerStarted | events.WorkerStopped):
            self._ends.clear()
            if isinstance(event, events.WorkerStopped):
                self._retrying.clear()
        if logger.isEnabledFor(level):
            exc_info = error if isinstance(error, BaseException) else None
            logger.log(level, "%r", _rounded(event), exc_info=exc_info)

    def _is_news(self, service: str) -> bool:
        now = self._monotonic()
        if not self._retrying:
            self._away_since = now
        elif service in self._retrying and now < self._told_at + REMINDER:
            return False
        self._retrying.add(service)
        self._told_at = now
        return True

    def _passed(self, service: str) -> None:
        if service not in self._retrying:
            return
        self._retrying.remove(service)
        if not self._retrying:
            seconds = self._monotonic() - self._away_since
            logger.warning(
                "the database answers again: every service goes on, %.1f s after the first fault", seconds
            )


def _rounded(event: events.Event) -> events.Event:
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    floats = {name: round(value, 3) for name, value in values.items() if isinstance(value, float)}
    return replace(event, **floats) if floats else event
