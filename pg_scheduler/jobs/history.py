"""The history of a job's attempts: entries to write, entries read from a row, and the log lines in them.

An attempt that does not simply complete appends an entry to the ``errors`` column, in the statement that ends
it. The entry is a JSON object with the outcome, the error and its traceback; the statement adds the attempt,
its worker and its times, which the row has. Ten entries are kept.

Reading accepts whatever is in the column: an entry without an attempt or an outcome is omitted, and a value
of the wrong type reads as None.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from pg_scheduler.base.foreign import (
    class_path,
    guarded,
    has_traceback,
    leaves_of,
    message_of,
    traceback_lines,
)
from pg_scheduler.base.public import public
from pg_scheduler.base.sqltext import storable
from pg_scheduler.base.text.times import read_timestamp
from pg_scheduler.jobs.metadata import MAX_TRACE_BYTES, trace_from
from pg_scheduler.jobs.payload import value_from
from pg_scheduler.jobs.retry import naming_leaf_of

PARENT: Final = "parent"
"""The outcome of a job that was cancelled because of another job."""

MAX_TRACEBACK_BYTES: Final = 4000
"""Bytes at the end of a traceback that are kept."""

MAX_FRAMES: Final = 50
"""Innermost frames of a traceback that are formatted. More would not fit into the bytes that are kept."""

MAX_CHUNK_LENGTH: Final = 1000
"""Characters of one frame or message in a traceback. The entry has the whole message besides."""

MAX_LINES_LENGTH: Final = 3000
"""Characters at the end of a message of several lines, which may be the traceback of another process."""

STEP_ATTRIBUTE: Final = "_pg_scheduler_step"
"""The attribute by which an exception names the step whose function raised it."""


@public
@dataclass(frozen=True, slots=True)
class AttemptError:
    """An attempt that did not simply complete, as read from the row of its job."""

    attempt: int
    """The number of the attempt, as in ``current_job().attempt``."""
    started_at: datetime | None
    """When the attempt started; None if its job was not started."""
    ended_at: datetime | None
    """When its end was written."""
    worker_id: str | None
    """The worker that ran it."""
    outcome: str
    """How it ended: ``error``, ``timeout``, ``crashed`` (its worker died), ``released`` (at a shutdown),
    ``cancelled``, ``lost`` (the lease expired, or the status was set by hand), ``skipped`` (another attempt
    holds the advisory lock), ``refused`` (a trigger or a constraint of the table rejected what the attempt
    was to write; the message has its error), ``snoozed`` or ``parent`` (not started: a job that it waited
    for did not complete; the message names that job)."""
    error_type: str | None
    """The path of the exception's class, such as ``shop.errors.OutOfStock``; that of Python's own classes is
    their name. None without an exception."""
    message: str | None
    """The message of the exception, or the reason, at most 10,000 characters; None for neither."""
    traceback: str | None
    """The last 4 kB of the traceback; None without one."""
    log: tuple[str, ...] = ()
    """The last lines that it logged, oldest first, where a `JobLogHandler` keeps them."""
    trace: Mapping[str, str] | None = None
    """The headers that middleware gave it, such as ``traceparent``; None for none."""
    step: str | None = None
    """The durable step whose function raised the exception; None if it came from other code."""


# -- write ---------------------------------------------------------------------------------------------


def history_entry(
    outcome: str,
    *,
    error_type: str | None = None,
    message: str | None = None,
    traceback: str | None = None,
    log: Sequence[str] = (),
    trace: Mapping[str, str] | None = None,
    step: str | None = None,
) -> str:
    """Return the JSON text of an entry in the history of a job; see ``AttemptError`` for its values."""
    # Middleware of the application has set the trace, so reading it may raise any exception.
    entry = {
        "outcome": outcome,
        "error_type": error_type,
        "message": message,
        "traceback": traceback,
        "log": [storable(line) for line in log] or None,
        "trace": guarded(lambda: _storable_trace(trace), lambda _: None),
        "step": step,
    }
    values = {name: value for name, value in entry.items() if value is not None}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def _storable_trace(trace: object) -> dict[str, str] | None:
    """Return the headers of middleware that are texts; None if there are none, or more than 8 KiB of JSON."""
    if not isinstance(trace, Mapping):
        return None
    headers = {
        storable(name): storable(value)
        for name, value in trace.items()
        if isinstance(name, str) and isinstance(value, str)
    }
    return headers if headers and len(json.dumps(headers)) <= MAX_TRACE_BYTES else None


def note_step(error: BaseException, step: str) -> None:
    """Note at an exception that the function of a step raised it."""
    # A class of the application may have no such dictionary, or one that raises.
    guarded(lambda: error.__dict__.update({STEP_ATTRIBUTE: step}), lambda _: None)


def step_of(error: BaseException) -> str | None:
    """Return the step whose function raised an exception, or a part of an exception group."""
    for part in (error, *leaves_of(error)):
        # A class of the application may have no dictionary of attributes, or one that raises.
        step = guarded(partial(_noted_step, part), lambda _: None)
        if step is not None:
            return storable(step)
    return None


def _noted_step(error: BaseException) -> str | None:
    """Return the step that ``note_step()`` has noted at an exception; None if there is none."""
    step = error.__dict__.get(STEP_ATTRIBUTE)
    return step if isinstance(step, str) else None


def exception_entry(
    outcome: str,
    error: BaseException,
    log: Sequence[str] = (),
    trace: Mapping[str, str] | None = None,
    step: str | None = None,
) -> str:
    """Return the entry of an attempt that an exception ended, with the lines that it logged and its trace.

    For an exception group, the class and the message are those of its strongest exception. The traceback has
    all of its exceptions.
    """
    leaf = naming_leaf_of(error)
    return history_entry(
        outcome,
        error_type=storable(class_path(leaf)),
        message=storable(message_of(leaf) + count_others(error)),
        traceback=_traceback_of(error),
        log=log,
        trace=trace,
        step=step,
    )


def count_others(error: BaseException) -> str:
    """Return how many exceptions a group has besides the one that a message names, such as `` (and 2 more)``.

    The text is a suffix of the message. It is empty for a single exception.
    """
    other_count = len(leaves_of(error)) - 1
    return f" (and {other_count} more)" if other_count > 0 else ""


def entry_in_ascii(entry: str) -> str:
    """Return an entry with escapes in place of all characters beyond ASCII.

    It is for a database whose encoding lacks one of these characters.
    """
    values = json.loads(entry)
    log = [to_ascii(line) for line in values.pop("log", ())]
    trace = {to_ascii(name): to_ascii(value) for name, value in values.pop("trace", {}).items()}
    values = {name: to_ascii(value) for name, value in values.items()}
    if log:
        values["log"] = log
    if trace:
        values["trace"] = trace
    if "traceback" in values:
        # The escaped text is longer, so it has to be cut again.
        values["traceback"] = _end_of(values["traceback"])
    return json.dumps(values, separators=(",", ":"))


def to_ascii(text: str) -> str:
    """Return a text that every encoding can hold."""
    return text.encode("ascii", "backslashreplace").decode()


def _traceback_of(error: BaseException) -> str | None:
    """Return the end of the traceback of an exception, as an entry has it; None if it has no traceback."""
    if not has_traceback(error):
        return None
    lines = traceback_lines(error, limit=-MAX_FRAMES)
    return _end_of(storable("".join(map(_shortened, lines))))


def _shortened(chunk: str) -> str:
    """Return a part of a traceback, shortened: the beginning of a single line, the end of several lines."""
    # Each part ends with a line feed.
    if "\n" in chunk[:-1]:
        return chunk[-MAX_LINES_LENGTH:]
    return chunk if len(chunk) <= MAX_CHUNK_LENGTH else chunk[:MAX_CHUNK_LENGTH] + " ...\n"


def _end_of(text: str) -> str:
    """Return the last 4 kB of a text in UTF-8."""
    # The cut may divide a character, whose remaining bytes are left out.
    return text.encode()[-MAX_TRACEBACK_BYTES:].decode(errors="ignore")


# -- read ----------------------------------------------------------------------------------------------


def errors_from(column: str | None) -> tuple[AttemptError, ...]:
    """Return the valid entries of an ``errors`` column, oldest first."""
    try:
        entries = value_from(column)
    except ValueError:
        return ()
    if not isinstance(entries, list):
        return ()
    return tuple(_error_from(entry) for entry in entries if _is_valid(entry))


def instant_from(value: object) -> datetime | None:
    """Return the instant that a JSON value represents, in UTC; None if it represents none."""
    if not isinstance(value, str):
        return None
    try:
        return read_timestamp(value)
    except ValueError:
        return None


def _is_valid(entry: Any) -> bool:
    """Return whether an entry is an object with the number of an attempt and its outcome."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("attempt"), int)
        and not isinstance(entry["attempt"], bool)
        and isinstance(entry.get("outcome"), str)
    )


def _error_from(entry: dict[str, Any]) -> AttemptError:
    """Return a valid entry as an object; each other value of the wrong type becomes None."""

    def text(name: str) -> str | None:
        value = entry.get(name)
        return value if isinstance(value, str) else None

    return AttemptError(
        attempt=entry["attempt"],
        started_at=instant_from(entry.get("started_at")),
        ended_at=instant_from(entry.get("ended_at")),
        worker_id=text("worker_id"),
        outcome=entry["outcome"],
        error_type=text("error_type"),
        message=text("message"),
        traceback=text("traceback"),
        log=_log_from(entry.get("log")),
        trace=trace_from(entry),
        step=text("step"),
    )


def _log_from(value: object) -> tuple[str, ...]:
    """Return the lines in the log of an entry; none if it has no list of texts."""
    if not isinstance(value, list):
        return ()
    return tuple(line for line in value if isinstance(line, str))


# -- log lines -----------------------------------------------------------------------------------------

MAX_LINES: Final = 64
MAX_LINE_LENGTH: Final = 1000
MAX_LOG_LENGTH: Final = 8000
"""Characters of all lines together; the oldest ones are dropped."""


class KeptLog:
    """The lines of the attempt that runs in the current context, and of what it starts.

    A ``JobLogHandler`` adds them.

    Attributes:
        is_used: Whether anything adds lines, so that attempts have to remember them.
    """

    def __init__(self) -> None:
        self.is_used = False
        self._lines: ContextVar[deque[str]] = ContextVar("pg_scheduler_kept_log")

    @property
    def has_attempt(self) -> bool:
        """Whether an attempt runs in this context."""
        return self._lines.get(None) is not None

    def begin(self) -> deque[str]:
        """Begin to keep the lines of an attempt in this context; return the deque that will have them."""
        lines: deque[str] = deque(maxlen=MAX_LINES)
        self._lines.set(lines)
        return lines

    def add(self, line: str) -> None:
        """Keep a line, if an attempt runs in this context; any thread may call it."""
        lines = self._lines.get(None)
        # A subclass of str may override any method.
        line = str.__str__(line)
        if lines is None:
            return
        if len(line) > MAX_LINE_LENGTH:
            line = line[:MAX_LINE_LENGTH] + " ..."
        lines.append(line)


kept_log: Final = KeptLog()


def kept_lines(lines: deque[str]) -> list[str]:
    """Return the lines to store, oldest first: the newest ones that fit into ``MAX_LOG_LENGTH``."""
    stored_lines: list[str] = []
    length = 0
    for line in reversed(list(lines)):
        length += len(line)
        if length > MAX_LOG_LENGTH:
            break
        stored_lines.append(line)
    return stored_lines[::-1]
