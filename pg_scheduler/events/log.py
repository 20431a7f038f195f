"""Write events to the log: one record per event, with a readable message and stable fields.

The logger is ``pg_scheduler``. Each record of the package has the fields of ``record_fields()``, so a
formatter may use them without a default. Job arguments are never logged.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, MutableMapping
from dataclasses import fields
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from pg_scheduler.base.foreign import class_name, exc_info_of, is_a, is_ctrl_c, traceback_lines
from pg_scheduler.base.foreign import message_of as error_message_of
from pg_scheduler.base.sqltext import is_storable, storable
from pg_scheduler.base.text.numbers import counted
from pg_scheduler.errors import (
    ConnectionLostError,
    ConnectionRejectedError,
    DatabaseUnavailableError,
    SchedulerError,
)
from pg_scheduler.events import types
from pg_scheduler.events.types import LEVELS, TEXTS


class _Logger(logging.LoggerAdapter[logging.Logger]):
    """The logger, which prints an error of a handler or a filter to stderr instead of raising it.

    If such an error were raised, it would end the service that logs. An exception that no handler could
    format is left out of its record.
    """

    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[object, MutableMapping[str, Any]]:
        """Keep the fields of ``extra=``, which ``LoggerAdapter`` would replace."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message. The record names the caller as its source."""
        if not self.isEnabledFor(level):
            return
        error = kwargs.get("exc_info")
        # As in ``logging``, True stands for the exception that is handled at the moment.
        if error is True:
            error = sys.exception()
        if error is not None:
            kwargs["exc_info"] = exc_info_of(error)
        try:
            super().log(level, msg, *args, stacklevel=2, **kwargs)
        except BaseException as mistake:  # user code: a handler or filter of the application
            if is_ctrl_c(mistake):
                raise
            # These are the conditions under which ``logging`` prints an error of a handler.
            if logging.raiseExceptions and sys.stderr is not None:
                sys.stderr.write("".join(traceback_lines(mistake)))


def _make_encodable(record: logging.LogRecord) -> bool:
    """Format an exception whose message has a lone surrogate, so that a handler can write it to a file.

    UTF-8 cannot encode such a character. A handler takes the text from the record if it has one. This is a
    filter of the logger, which lets every record pass.
    """
    error = record.exc_info[1] if record.exc_info else None
    # A single frame of each traceback suffices to find a surrogate in the messages.
    if error is not None and not is_storable("".join(traceback_lines(error, limit=1))):
        record.exc_text = storable("".join(traceback_lines(error))).rstrip("\n")
    return True


logger = _Logger(logging.getLogger("pg_scheduler"))
"""The logger of every module of the package."""


def is_logger_disabled() -> bool:
    """Return whether a configuration of logging has disabled the logger of the library."""
    return logging.getLogger("pg_scheduler").disabled


def warn_of_mistake(text: str, **fields: Any) -> None:
    """Log a mistake of the application, or issue a RuntimeWarning if no handler gets the record.

    Args:
        text: What is wrong, with the remedy.
        fields: Those of ``record_fields()``.
    """
    if not is_logger_disabled() and _has_handler():
        logger.warning(text, extra=record_fields(**fields))
    else:
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _has_handler() -> bool:
    """Return whether the application has a handler that gets the records of the library."""
    current: logging.Logger | None = logging.getLogger("pg_scheduler")
    # A record goes to the handlers of its logger and of the parents, up to one that does not propagate.
    while current is not None:
        # A NullHandler drops every record.
        if any(not isinstance(handler, logging.NullHandler) for handler in current.handlers):
            return True
        current = current.parent if current.propagate else None
    return False


def warn_of_disabled_logger() -> None:
    """Issue a RuntimeWarning if the logger is disabled, because a log record about that would not be seen."""
    if is_logger_disabled():
        warnings.warn(
            "the logger 'pg_scheduler' is disabled, so failures, lost leases and outages leave no record; "
            "pass disable_existing_loggers=False to logging.config.dictConfig() or fileConfig()",
            RuntimeWarning,
            stacklevel=3,
        )


logger.logger.addFilter(_make_encodable)

RETRY_REPORT_INTERVAL_S: Final = 10.0
"""Seconds of an outage between two records about the retries of its services."""

REJECTION_REPORT_INTERVAL_S: Final = 60.0
"""Seconds between two such records while connections are rejected. This lasts until a person acts."""

LOCK_NOT_AVAILABLE: Final = "55P03"
"""The SQLSTATE of a statement that has waited for a lock as long as it may."""

MAX_IDS: Final = 10
"""The maximum number of ids that a message lists. Of further ids, it states the number."""

LOG_THREAD: Final = "pg_scheduler log"
"""The name of a thread that logs one message."""


def log_in_thread(
    level: int,
    message: str,
    *args: object,
    extra: dict[str, object],
    error: BaseException | None = None,
) -> None:
    """Log a message in a thread of its own, without waiting for the handlers.

    The report may be about a blocked event loop, and a handler may be what blocks it. The handler holds a
    lock meanwhile, for which a direct call would wait.
    """
    write = partial(logger.log, level, message, *args, extra=extra, exc_info=error)
    threading.Thread(target=write, name=LOG_THREAD, daemon=True).start()


def report_exit(error: BaseException) -> None:
    """Log an error that would have ended the program, and was caught.

    It is a SystemExit or KeyboardInterrupt that a task of the application raised, or the RuntimeError that
    asyncio raises if a job has stopped the event loop.
    """
    if isinstance(error, RuntimeError):
        logger.error(
            "a job or the application called stop() of the event loop; the loop was started again",
            extra=record_fields(),
        )
        return
    logger.error(
        "%s in a task or callback that a job or the application created; it ended that task only",
        class_name(error),
        extra=record_fields(),
        exc_info=error,
    )


def record_fields(
    *,
    event_type: str | None = None,
    job_id: str | None = None,
    job_name: str | None = None,
    attempt: int | None = None,
    worker_id: str | None = None,
) -> dict[str, object]:
    """Return the fields of a log record, for ``extra=``; those that do not apply are None.

    No field has the name ``event``, because structlog stores its message under this name, and ``ExtraAdder``
    would replace the message.
    """
    return {
        "event_type": event_type,
        "job_id": job_id,
        "job_name": job_name,
        "attempt": attempt,
        "worker_id": worker_id,
    }


def event_fields(event: types.Event, worker_id: str | None = None) -> dict[str, object]:
    """Return the fields of the log record of an event; ``worker_id`` counts if the event has none."""
    return record_fields(
        event_type=type(event).__name__,
        job_id=getattr(event, "job_id", None),
        job_name=getattr(event, "job_name", None),
        attempt=getattr(event, "attempt", None),
        worker_id=getattr(event, "worker_id", worker_id),
    )


NO_JOB_RECLAIMED: Final = "dead workers %(dead_workers)s removed, which ran no job"
LOST_RESPONSE: Final = "jobs without an owner reclaimed after a lost response: %(job_ids)s"


def message_of(event: types.Event) -> tuple[str, dict[str, object]]:
    """Return the template of the message of an event, and the values by name that it takes.

    Both are arguments of ``logger.log()``. The template has names such as ``%(job_id)s``.
    """
    template = _template_of(event)
    # A node with an earlier release sends events without the names of their tasks.
    if getattr(event, "task_name", None) == "":
        template = template.replace(" of %(task_name)s", "")
    return template, _values_of(event)


def _template_of(event: types.Event) -> str:
    """Return the template of the message of an event: that of its class, or one for its special values."""
    template = TEXTS[type(event)]
    match event:
        case types.KeeperConnected(has_lock=False):
            template = "lease keeper connected, no liveness lock behind a pooler"
        case types.ThreadAbandoned(has_slot=False):
            template = template.replace(", at\n", ", its slot is free for another job, at\n")
        case types.TaskPaused():
            template += "" if event.paused_until is None else " until %(paused_until)s"
            template += "" if event.note is None else ": %(note)s"
        case types.SchedulePaused(paused_until=datetime()):
            template = "schedule %(schedule_id)s of %(task_name)s paused until %(paused_until)s"
            template += "" if event.note is None else ": %(note)s"
        case types.TaskResumed(actor=None):
            template = "task %(task_name)s resumed, its pause has ended"
        case types.OutcomesDelayed(holders=()):
            template = template.replace(": %(holders)s; end that transaction", "; see pg_locks")
        case types.LoopBlocked(job_id=None):
            culprit = ", not by a job" if event.job_name is None else " by a chunk of jobs %(job_name)s"
            template = f"event loop was blocked for %(seconds)s{culprit}"
        case types.JobsReclaimed(job_ids=()) | types.JobsReclaimed(dead_workers=()):
            # Either there are no jobs, or they belonged to a claim whose response was lost.
            template = NO_JOB_RECLAIMED if event.dead_workers else LOST_RESPONSE
        case types.UnregisteredName():
            template += _unregistered_remedy(event)
        # The end of the calendar stands for no timeout.
        case types.JobSuspended(until=datetime(year=9999)):
            template = template.replace(" until %(until)s", ", without a timeout")
        case types.PassFinished(next_in=math.inf):
            template = "%(service)s: pass took %(seconds)s, next pass when notified"
        case types.ServiceRetrying():
            template = _retrying_template(event)
    return template


def log_subscriber_error(
    subscriber: str, event: types.Event, error: BaseException, worker_id: str | None
) -> None:
    """Log the exception that a subscriber raised on an event that this worker published."""
    template, values = message_of(event)
    logger.error(
        f"event subscriber %(subscriber)s raised an exception on: {template}",  # noqa: G004 - a constant
        {**values, "subscriber": subscriber},
        exc_info=error,
        extra=event_fields(event, worker_id),
    )


class EventLog:
    """Writes one record for each event whose level is enabled.

    An outage produces few records. The first service that finds the database unavailable is logged with the
    traceback, and each other service once without it. After that, one retry is logged in each
    ``RETRY_REPORT_INTERVAL_S``, and the other retries at DEBUG. The first rejection of a connection is logged
    at ERROR, and later ones once in each ``REJECTION_REPORT_INTERVAL_S``. When the last service resumes, this
    is logged with the duration of the outage. An error that stops every service, such as a closed pool, is
    logged once.
    """

    def __init__(
        self,
        worker_id: Callable[[], str | None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker_id = worker_id
        self._monotonic = monotonic
        # The names of the services whose last pass failed. An outage lasts while there are any.
        self._retrying: set[str] = set()
        # When the outage began, and when a retry was last logged, by the monotonic clock.
        self._outage_began = 0.0
        self._reported_at = 0.0
        self._had_rejection = False
        """Whether connections were rejected in this outage."""
        self._was_unavailable = False
        """Whether the database was unavailable in this outage.

        It may have been available all the time: locks and triggers of the application let passes fail too."""
        self._reported_errors: set[type[SchedulerError]] = set()
        """The classes of the permanent errors that were logged since the worker started."""

    def __call__(self, event: types.Event) -> None:
        """Write the record of the event, and note what later records depend on, such as an outage."""
        level = LEVELS[type(event)]
        has_traceback = True
        match event:
            case types.JobEvent():  # the most frequent events come first, because they are in no other case
                pass
            case types.UnregisteredName(busy_workers=busy) if busy:
                # The busy workers may have registered the name, so there may be no problem.
                level = logging.INFO
            case types.PassFinished(service=service) if service in self._retrying:
                self._note_resumed(service)
            case types.ServiceRetrying():
                level, has_traceback = self._note_retrying(event)
            case types.ServiceFaulted(error=SchedulerError() as error):
                # One error may stop every service. It is logged for the first of them.
                if type(error) in self._reported_errors:
                    level = logging.DEBUG
                self._reported_errors.add(type(error))
            case types.WorkerStarted():
                self._reported_errors.clear()
            case types.WorkerStopped():
                self._reported_errors.clear()
                self._retrying.clear()
        if logger.isEnabledFor(level):
            template, values = message_of(event)
            logger.log(
                level,
                template,
                values,
                exc_info=_exception_of(event) if has_traceback else None,
                extra=event_fields(event, self._worker_id()),
            )

    def _note_retrying(self, event: types.ServiceRetrying) -> tuple[int, bool]:
        """Return the level of the record of a retry, and whether it has the traceback."""
        now = self._monotonic()
        is_rejection = isinstance(event.error, ConnectionRejectedError)
        begins_outage = not self._retrying
        if begins_outage:
            self._outage_began, self._had_rejection, self._was_unavailable = now, False, False
        if not is_lock_wait(event.error) and not _is_refused(event):
            self._was_unavailable = True
        # The first failure of an outage, and its first rejection, have a traceback.
        is_news = begins_outage or (is_rejection and not self._had_rejection)
        # The first failure of each service has a record of its own. A rejection of a connection concerns all
        # services, so even the first one of a service is a repetition.
        is_repeated = is_rejection or event.service in self._retrying
        self._retrying.add(event.service)
        interval_s = REJECTION_REPORT_INTERVAL_S if self._had_rejection else RETRY_REPORT_INTERVAL_S
        is_due = now >= self._reported_at + interval_s
        if is_repeated and not is_news and not is_due:
            return logging.DEBUG, False
        # From here on, the record is a report, which delays the next one.
        self._reported_at = now
        if is_rejection:
            self._had_rejection = True
        level = logging.ERROR if is_rejection and is_news else logging.WARNING
        return level, is_news

    def _note_resumed(self, service: str) -> None:
        """Note that a service works again. If it was the last one, log the end of the outage."""
        self._retrying.remove(service)
        if not self._retrying:
            message = "all services resumed after %s, since no lock or trigger of the application stops them"
            if self._was_unavailable:
                message = "database available again after %s; all services resumed"
            logger.warning(
                message,
                _shown(self._monotonic() - self._outage_began),
                extra=record_fields(worker_id=self._worker_id()),
            )


class GapLog(EventLog):
    """A log of the events of all nodes. It writes only the lost events, because each node logs its own."""

    def __call__(self, event: types.Event) -> None:
        """Write the record of the event if it is about lost events."""
        if isinstance(event, types.EventsDropped | types.EventsMissed):
            super().__call__(event)


def _values_of(event: types.Event) -> dict[str, object]:
    """Return the values for the template of an event: its fields as texts for people, and derived texts."""
    # The fields with ``repr=False`` are tracebacks and stacks, which do not fit into a message of one line.
    values = {field.name: _shown(getattr(event, field.name)) for field in fields(event) if field.repr}
    if isinstance(event, types.JobFailed):
        values["hint"] = "" if event.hint is None else f"; {event.hint}"
    elif isinstance(event, types.ThreadAbandoned):
        # The message of this event ends with the stack. _shown() would put it on one line.
        values["stack"] = event.stack
    elif isinstance(event, types.JobProgressed):
        # _shown() would show these numbers as seconds.
        values["done"] = event.done
        values["total"] = event.total
    elif isinstance(event, types.ScheduleSkipped | types.ScheduleMissed):
        values["fire_times"] = counted(event.fire_times, "fire time")
    elif isinstance(event, types.ServiceRetrying):
        values["refusal"] = refusal_of(event.error)
    elif isinstance(event, types.UnregisteredName):
        values["more_names"] = counted(event.more_names, "more such name")
    return values


def log_refusal(
    problem: str,
    error: BaseException,
    *,
    pause_s: float | None = None,
    is_last: bool = False,
    job_id: str | None = None,
    worker_id: str | None = None,
) -> None:
    """Log that a trigger or a constraint of the application refused a row, which is left out for some time.

    Args:
        problem: What is not done.
        error: The error of the server.
        pause_s: The seconds until the next attempt; None if a later pass makes it.
        is_last: Whether no further attempt follows.
        job_id: The job to which the row belongs; None if it belongs to no job.
        worker_id: The worker that leaves the row out; None if it is not known.
    """
    if is_last:
        next_attempt = "no further attempt"
    elif pause_s is None:
        next_attempt = "next attempt in a later pass"
    else:
        next_attempt = f"next attempt in {round(pause_s)} s"
    logger.error(
        "%s, %s: a trigger or a constraint of the application refused a row (%s): %s: %s",
        problem,
        next_attempt,
        refusal_of(error),
        class_name(error),
        error_message_of(error),
        extra=record_fields(job_id=job_id, worker_id=worker_id),
    )


def log_waits(job_id: str, jobs: int, error: BaseException, *, pause_s: float, worker_id: str) -> None:
    """Log that jobs are left out of claims, because a trigger of the application waits for a lock.

    Args:
        job_id: The first of the jobs.
        jobs: The number of the jobs.
        error: The error of the server for the first job.
        pause_s: The seconds until the next attempt.
        worker_id: The worker that leaves the jobs out.
    """
    other_jobs = f" and {counted(jobs - 1, 'other job')}" if jobs > 1 else ""
    logger.warning(
        "job %s%s cannot be claimed, next attempt in %s s: a trigger of the application waits for a lock of "
        "another transaction (%s); end that transaction",
        job_id,
        other_jobs,
        round(pause_s),
        refusal_of(error),
        extra=record_fields(job_id=job_id, worker_id=worker_id),
    )


def log_refused_name(name: str, jobs: int, *, pause_s: float, worker_id: str) -> None:
    """Log that all jobs of a name are left out of claims, because very many of them cannot be claimed.

    Args:
        name: The name.
        jobs: How many of its jobs cannot be claimed, at least.
        pause_s: The seconds until the next attempt.
        worker_id: The worker that leaves the jobs out.
    """
    logger.error(
        "no job of %s is claimed for %s s, because %s of this name cannot be claimed: a trigger or a "
        "constraint of the application refuses that, or waits for a lock; jobs of other names are claimed",
        name,
        round(pause_s),
        counted(jobs, "job"),
        extra=record_fields(job_name=name, worker_id=worker_id),
    )


def _retrying_template(event: types.ServiceRetrying) -> str:
    """Return the message of a pass that failed: by an outage, a lost connection, a lock, or a refused row."""
    if _is_refused(event):
        return (
            "%(service)s: a trigger or a constraint of the application refused a row (%(refusal)s), retry in "
            "%(next_in)s: %(error)s; correct it"
        )
    if is_lock_wait(event.error):
        template = "%(service)s: waits for a lock of another transaction, retry in %(next_in)s: %(error)s; "
        if not event.holders:
            return f"{template}see pg_locks, and end that transaction"
        return f"{template}the strongest locks on the tables are those of %(holders)s; end that transaction"
    template = TEXTS[types.ServiceRetrying]
    # A statement was not answered in time, perhaps because it waited for a lock of one of these sessions.
    if event.holders:
        template += "; the strongest locks on the tables are those of %(holders)s"
    match event.error:
        case ConnectionLostError():
            template = template.replace("database unavailable", "connection lost")
        case ConnectionRejectedError():
            template = template.replace("database unavailable", "connection rejected")
    if math.isinf(event.next_in):
        template = template.replace("retry in %(next_in)s", "no retry")
    return template


def refusal_of(error: BaseException) -> str:
    """Return the SQLSTATE of a refused row, with the name of the constraint or the place in the trigger."""
    server_error = _server_error_of(error)
    # The first line of the context names the innermost function and its line.
    context = getattr(server_error, "context", None) or ""
    innermost_place = context.partition("\n")[0]
    place = getattr(server_error, "constraint_name", None) or innermost_place
    state = getattr(server_error, "sqlstate", None) or "no SQLSTATE"
    return f"{state}, {place}" if place else str(state)


def describe_refusal(error: BaseException, *, has_message: bool = True) -> str:
    """Return what refused the change of a row, and what to do about it, in the words of every front end.

    ``has_message`` is whether the message of the server is included. Code of the application wrote it, so it
    may quote the row.
    """
    # This library has raised it, with a remedy. Its message contains that of the server.
    if isinstance(error, SchedulerError) and has_message:
        return error_message_of(error)
    message = f": {error_message_of(error)}" if has_message else ""
    return (
        f"a trigger or a constraint of the application refused a row ({refusal_of(error)}): "
        f"{class_name(error)}{message}; change the trigger or the constraint, or leave this row out"
    )


def _server_error_of(error: BaseException) -> BaseException | None:
    """Return the error of the server: the error itself or its cause; None if neither is one of the server."""
    for candidate in (error, error.__cause__):
        if getattr(candidate, "sqlstate", None):
            return candidate
    return None


def is_lock_wait(error: BaseException | None) -> bool:
    """Return whether an error was caused by a lock of another transaction that was not released in time."""
    while error is not None:
        if getattr(error, "sqlstate", None) == LOCK_NOT_AVAILABLE:
            return True
        error = error.__cause__
    return False


def _is_refused(event: types.ServiceRetrying) -> bool:
    """Return whether a trigger or a constraint of the application refused a row of the pass."""
    # The errors of an outage may have an error of the server as their cause, too.
    is_outage = isinstance(event.error, DatabaseUnavailableError)
    return not is_outage and _server_error_of(event.error) is not None


def _unregistered_remedy(event: types.UnregisteredName) -> str:
    """Return what to do about jobs whose function is not registered, as the end of a message."""
    if event.busy_workers:
        template = "; it may be registered on workers without a free slot (%(busy_workers)s)"
    elif event.namesakes:
        template = (
            "; several functions here have this name (%(namesakes)s); pass it to one of them by aliases="
        )
    else:
        template = "; start a worker that registers it, or cancel the jobs"
    if event.suggestion is not None:
        template += "; did you mean %(suggestion)s?"
    if event.more_names:
        template += " (%(more_names)s)"
    return template


def _exception_of(event: types.Event) -> BaseException | None:
    """Return the exception that an event carries; None if it carries none."""
    for name in ("exception", "error"):
        error = getattr(event, name, None)
        if is_a(error, BaseException):
            return error
    return None


def _shown(value: Any) -> object:
    """Return the value of a field as text for a message.

    The text is on one line. A number with a decimal point stands for seconds, and gets its unit.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif is_a(value, BaseException):
        value = f"{class_name(value)}: {error_message_of(value)}"
    match value:
        case str() if not value.isprintable():
            value = repr(value)
        case float():
            value = f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"
        case datetime():
            value = value.isoformat(sep=" ", timespec="milliseconds")
        case tuple():
            texts = [str(_shown(element)) for element in value[:MAX_IDS]]
            if len(value) > MAX_IDS:
                texts.append(f"{len(value) - MAX_IDS} more")
            value = ", ".join(texts)
    return value
