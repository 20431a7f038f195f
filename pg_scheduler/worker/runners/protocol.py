"""Messages between a worker and its child processes: JSON with a length before it, and no pickle."""

from __future__ import annotations

import json
import logging
import struct
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, cast

from pg_scheduler.base.foreign import (
    class_name,
    exc_info_of,
    guarded,
    is_a,
    leaves_of,
    message_of,
    traceback_lines,
)
from pg_scheduler.base.sqltext import storable
from pg_scheduler.jobs.result import NoValue, keep_seconds, kept_value
from pg_scheduler.jobs.retry import Retry, Snooze, delay_of, reason_of
from pg_scheduler.jobs.rows import Claim

HEADER: Final = struct.Struct("!I")
"""The length of a message in bytes."""

MAX_TRACEBACK_LENGTH: Final = 100_000

MAX_LEAVES: Final = 1000
"""Exceptions of a group that are sent."""

MAX_LEAF_TRACEBACK_LENGTH: Final = 2000

MAX_VALUE_BYTES: Final = 2**28
"""Bytes of a value as JSON that a process returns. No column holds a larger one."""

REWRITTEN_FIELDS: Final = ("msg", "args", "exc_info", "exc_text", "stack_info")
"""The fields of a log record that do not travel as they are."""

RECORD_FIELDS: Final = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__).difference(
    REWRITTEN_FIELDS
)
"""The other fields that each log record has. Before Python 3.12, ``taskName`` is none of them."""

FORMATTED_FIELDS: Final = ("message", "asctime")
"""What a formatter adds to a log record."""


class RemoteError(Exception):
    """An exception of a function in another process.

    Its class is also derived from the class that was raised there, if that class is loaded here.
    """

    text = ""
    remote_traceback: str | None = None

    def __str__(self) -> str:
        return self.text


class RemoteTraceback(Exception):
    """The traceback in the other process, as the text of an exception that is shown as a cause."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def pack(message: dict[str, Any]) -> bytes:
    """Return a message as the bytes to send: the length of its JSON, and the JSON."""
    text = json.dumps(message).encode()
    return HEADER.pack(len(text)) + text


def claim_to(claim: Claim) -> dict[str, Any]:
    """Return a claim as values of JSON."""
    return {**claim._asdict(), "execution_time": claim.execution_time.isoformat()}


def claim_from(values: dict[str, Any]) -> Claim:
    """Return the claim from which ``claim_to()`` has made these values."""
    return Claim(**values)._replace(execution_time=datetime.fromisoformat(values["execution_time"]))


def error_to(error: BaseException, *, length: int = MAX_TRACEBACK_LENGTH) -> dict[str, Any]:
    """Return an exception as values of JSON, with the last ``length`` characters of its traceback."""
    if is_a(error, BaseExceptionGroup):
        leaves = leaves_of(error)[:MAX_LEAVES]
        # The traceback of the group contains those of its leaves, so short ones are enough for the leaves.
        values = [error_to(leaf, length=MAX_LEAF_TRACEBACK_LENGTH) for leaf in leaves]
        return {**_values_of(error, length), "leaves": values}
    if is_a(error, Snooze):
        return {"snooze": delay_of(error).total_seconds()}
    if is_a(error, Retry):
        return {**_values_of(reason_of(error), length), "retry": delay_of(error).total_seconds()}
    return _values_of(error, length)


def error_from(values: dict[str, Any]) -> BaseException:
    """Return an exception with the same name and text as the one in the other process.

    It is derived from the first base class of the original that is loaded here. A group of exceptions,
    however deep, becomes one group of its leaves.
    """
    if "leaves" in values:
        group: Any = BaseExceptionGroup(values["text"], [error_from(leaf) for leaf in values["leaves"]])
        group.remote_traceback = values["traceback"]
        group.__cause__ = RemoteTraceback(values["traceback"])
        return cast("BaseException", group)
    if "snooze" in values:
        return Snooze(values["snooze"])
    error = _new_error(values)
    # The exception of a class that is derived from Retry is a Retry itself.
    if "retry" in values and not is_a(error, Retry):
        retry = Retry(values["retry"])
        retry.__cause__ = error
        return retry
    return error


def value_to(options: str | None, value: object) -> dict[str, Any]:
    """Return what a function returned as values of JSON; an empty dict if the job does not keep its result.

    ``options`` are those of the job.
    """
    seconds = keep_seconds(options)
    if seconds is None:
        return {}
    result = kept_value(seconds, value, MAX_VALUE_BYTES)
    return {"value": result.value, "no_value_reason": result.no_value_reason}


def value_from(values: dict[str, Any]) -> Any:
    """Return the value from which ``value_to()`` has made these values; None if the job does not keep it.

    It is a ``NoValue`` with the reason if JSON could not represent the value.
    """
    if (reason := values.get("no_value_reason")) is not None:
        return NoValue(reason)
    return None if values.get("value") is None else json.loads(values["value"])


def _values_of(error: BaseException, length: int) -> dict[str, Any]:
    """Return an exception as values of JSON, with the last ``length`` characters of its traceback."""
    return {
        "name": class_name(error),
        "text": storable(message_of(error)),
        # Classes of the application may raise when they are read. Then the exception has no known classes.
        "classes": guarded(lambda: _classes_of(error), lambda _: []),
        "traceback": "".join(traceback_lines(error))[-length:],
    }


def _classes_of(error: BaseException) -> list[list[str]]:
    """Return the module and the name of the class of an error and of each of its base classes, in order."""
    return [[cls.__module__, cls.__qualname__] for cls in type(error).__mro__]


def _new_error(values: dict[str, Any]) -> RemoteError:
    """Return an exception that is derived from the first class of the original that allows it, if any."""
    for module, path in values["classes"]:
        # The class may forbid subclasses, and raise anything. Then the next one is tried.
        derive = partial(_derive, values, module, path)
        if (error := guarded(derive, lambda _: None)) is not None:
            return error
    return _fill(RemoteError(), values)


def _derive(values: dict[str, Any], module: str, path: str) -> RemoteError | None:
    """Return an exception that is also one of the class at a path of a module, without its constructor.

    The constructor may need arguments, which are not known here. Return None if the class is not loaded here,
    or makes other objects. This may raise, because a class may forbid subclasses.
    """
    base: Any = sys.modules.get(module)
    for part in path.split("."):
        base = getattr(base, part, None)
    if not (isinstance(base, type) and issubclass(base, BaseException)):
        return None
    # The first class is that of the original.
    module_of_original, _ = values["classes"][0]
    name = values["name"]
    attributes: dict[str, Any] = {"__qualname__": name, "__module__": module_of_original}
    if issubclass(base, Retry):
        attributes["delay"] = timedelta(seconds=values["retry"])
    kind: Any = type(name, (RemoteError, base), attributes)
    # The __new__() of the class may return any object.
    error = kind.__new__(kind)
    return _fill(error, values) if is_a(error, RemoteError) else None


def _fill(error: RemoteError, values: dict[str, Any]) -> RemoteError:
    """Give an exception the text and the traceback of the original, and return it."""
    error.text = values["text"]
    error.remote_traceback = values["traceback"]
    remote = RemoteTraceback(values["traceback"])
    if is_a(error, Retry):
        error.__context__ = remote  # the cause of a Retry is the reason for it
    else:
        error.__cause__ = remote
    return error


def record_to(record: logging.LogRecord) -> dict[str, Any]:
    """Return a log record as values of JSON; its arguments are part of the message.

    Of what the application has added by ``extra=`` or a filter, a value that JSON cannot represent becomes
    the text of its ``repr()``.
    """
    attributes = record.__dict__
    not_added = {*RECORD_FIELDS, *REWRITTEN_FIELDS, *FORMATTED_FIELDS}
    text, error = record.exc_text, record.exc_info[1] if record.exc_info else None
    if record.exc_info and not text:
        text = logging.Formatter().formatException(record.exc_info)
    return {
        "fields": {name: attributes.get(name) for name in RECORD_FIELDS},
        "added": {name: _json_of(value) for name, value in attributes.items() if name not in not_added},
        "msg": record.getMessage(),
        "exc_text": text,
        "error": None if error is None else error_to(error),
        "stack_info": record.stack_info,
    }


def record_from(values: dict[str, Any]) -> logging.LogRecord:
    """Return the log record from which ``record_to()`` has made these values.

    Its exception is made as that of a job, and its ``exc_text`` is the traceback in the other process.
    """
    texts = {name: values[name] for name in ("msg", "exc_text", "stack_info")}
    exc_info = None if values["error"] is None else exc_info_of(error_from(values["error"]))
    return logging.makeLogRecord(
        {**values["added"], **values["fields"], **texts, "args": None, "exc_info": exc_info}
    )


def _json_of(value: object) -> Any:
    """Return a value that JSON can represent; else its ``repr()``, or that it has none."""
    # The value may raise anything. An exception that cancels the job is none of these, so it passes.
    with suppress(Exception):
        return json.loads(json.dumps(value))
    try:
        return str.__str__(repr(value))
    except Exception as mistake:  # noqa: BLE001 - user code
        return f"(repr() of it raised {class_name(mistake)})"
