"""The kept result of a job: its return value, or its error."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pg_scheduler.base.foreign import (
    MAX_MESSAGE_LENGTH,
    class_name,
    guarded,
    is_a,
    traceback_lines,
    traceback_of,
)
from pg_scheduler.base.sqltext import storable
from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.codec import PayloadCodec, decode_value, encoding_of, is_encoded
from pg_scheduler.jobs.history import to_ascii
from pg_scheduler.jobs.payload import MAX_JSON_BYTES, encode_value, object_from, size_beyond, value_from
from pg_scheduler.jobs.retry import naming_leaf_of
from pg_scheduler.jobs.validation import MAX_KEEP_S

MAX_TRACEBACK_LENGTH: Final = 16_000
"""Characters of a traceback that are kept: the last ones, which name the place of the error."""


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The result of a job that keeps its result, as stored when the job ends.

    Attributes:
        seconds: Seconds for which it is kept after the end.
        value: The value as JSON; None if there is none.
        no_value_reason: Why there is no value; None if there is one, or if the job did not complete. An
            encoded value has a reason too: how it is encoded, for readers who cannot decode it.
        error: The class, message and traceback of the error as JSON; None if the job completed.
    """

    seconds: float
    value: str | None = None
    no_value_reason: str | None = None
    error: str | None = None

    @property
    def characters(self) -> int:
        """The length of the value, the reason and the error."""
        return sum(len(text) for text in (self.value, self.no_value_reason, self.error) if text is not None)

    def in_ascii(self) -> KeptResult:
        """Return the result for a database whose encoding lacks one of its characters.

        The error and the reason are escaped. A value is left out, with a reason.
        """
        if self.error is not None:
            texts = json.loads(self.error)
            # There may be no traceback.
            escaped = {key: None if text is None else to_ascii(text) for key, text in texts.items()}
            return replace(self, error=json.dumps(escaped))
        if self.value is not None:
            return replace(
                self,
                value=None,
                no_value_reason="the encoding of the database lacks a character of the value",
            )
        if self.no_value_reason is not None:
            return replace(self, no_value_reason=to_ascii(self.no_value_reason))
        return self


@dataclass(frozen=True, slots=True)
class NoValue:
    """Stands for a returned value that could not leave its process.

    Attributes:
        reason: Why not.
    """

    reason: str


def keep_seconds(options: str | None) -> float | None:
    """Return the seconds for which the result of a job is kept, from its options; None if it is not kept."""
    if options is None:
        return None
    return keep_seconds_of(object_from(options))


def keep_seconds_of(options: Mapping[str, Any]) -> float | None:
    """Return the seconds for which the result of a job is kept; None if it is not kept."""
    seconds = options.get("keep_result")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return None
    # The comparison is negated, because any comparison with NaN is false.
    if not seconds > 0:
        return None
    return float(min(seconds, MAX_KEEP_S))


def kept_value(
    seconds: float,
    value: object,
    limit: int | None,
    *,
    codec: PayloadCodec | None = None,
    job_name: str = "",
) -> KeptResult:
    """Return what is stored for a returned value; a reason instead of a value that cannot be stored.

    Args:
        seconds: Seconds for which it is kept.
        value: The value that the function returned.
        limit: The maximum size in bytes of its JSON, after the codec; None for no limit.
        codec: Encodes it; None for none.
        job_name: The name of the job, for the codec.
    """
    if is_a(value, NoValue):
        return KeptResult(seconds, no_value_reason=value.reason)
    try:
        text, encoding = encoded_value(encode_value(value), codec, job_name)
        check_value_size(text, limit)
    except PayloadError as error:
        return KeptResult(seconds, no_value_reason=storable(str(error)))
    except BaseException as mistake:  # noqa: BLE001 - user code; sys.exit() and the like leave the value out only
        remedy = "return None, bool, int, float, str, list or dict"
        return KeptResult(
            seconds, no_value_reason=storable(f"reading the value raised {class_name(mistake)}; {remedy}")
        )
    # How a codec has encoded the value is stored as the reason, which is shown where it cannot be decoded.
    return KeptResult(seconds, value=text, no_value_reason=encoding)


def encoded_value(text: str, codec: PayloadCodec | None, job_name: str) -> tuple[str, str | None]:
    """Return the JSON of a value as it is stored, and a description of its encoding for people.

    Without a codec that has a key, the JSON is stored as it is, and the description is None.

    Raises:
        PayloadError: The codec failed.
    """
    if codec is None or codec.key_id is None:
        return text, None
    encoded = codec.encode(text, job_name)
    return json.dumps({**encoded, "job_name": job_name}), encoding_of(encoded)


def check_value_size(text: str, limit: int | None, verb: str = "return") -> None:
    """Raise PayloadError if the JSON of a value is longer than a limit in bytes of UTF-8.

    ``verb`` is what to do with an id instead of the value, for the remedy in the error.
    """
    if (size := size_beyond(limit, text)) is None:
        return
    problem = f"the value has {size} bytes of JSON, more than"
    if limit is None or size > MAX_JSON_BYTES:
        raise PayloadError(f"{problem} the {MAX_JSON_BYTES} that PostgreSQL stores; {verb} an id or a path")
    raise PayloadError(
        f"{problem} max_result_bytes = {limit}; "
        f"store it elsewhere and {verb} an id or a path, or increase max_result_bytes="
    )


def read_value(text: str | None, reason: str | None, codec: PayloadCodec | None) -> tuple[Any, str | None]:
    """Return the decoded value of a row and None. If there is no value, return None and the reason for that.

    Args:
        text: The value as stored; None for no value.
        reason: The reason as stored; None for none. If there is a value too, the value is encoded.
        codec: Decodes the value; None for none.
    """
    try:
        value = value_from(text)
        # An object in the form of an encoded value is one only if the row describes its encoding.
        if reason is not None and is_encoded(value):
            return decode_value(value, codec, str(value.get("job_name")), value_from), None
    except ValueError as error:  # a PayloadError is one
        return None, str(error)
    return value, reason


def kept_error(seconds: float, message: str, exception: BaseException | None) -> KeptResult:
    """Return what is stored for an error.

    Args:
        seconds: Seconds for which it is kept.
        message: The text that the job's row stores.
        exception: The exception, if there is one.
    """
    kind, trace = "", None
    if exception is not None:
        kind = class_name(naming_leaf_of(exception))
        # The message of the row begins with the class, which is stored apart from the message here.
        message = message.removeprefix(kind).removeprefix(": ")
        trace = storable(_traceback_text(exception))[-MAX_TRACEBACK_LENGTH:] or None
    error = {"type": kind, "message": storable(message)[:MAX_MESSAGE_LENGTH], "traceback": trace}
    return KeptResult(seconds, error=json.dumps(error))


def _traceback_text(exception: BaseException) -> str:
    """Return the traceback of an exception without its last line, which would name the exception itself.

    The class and the message of the exception are stored separately.
    """
    # An exception from another process has the traceback of that process as a text.
    remote = guarded(lambda: getattr(exception, "remote_traceback", None), lambda _: None)
    if is_a(remote, str):
        return str.__str__(remote)
    # The traceback of a group has those of the exceptions in it, with their names.
    if is_a(exception, BaseExceptionGroup):
        return "".join(traceback_lines(exception))
    # A stand-in is formatted, because str() of the exception may raise.
    lines = traceback.format_exception(type(exception), _Unprinted(), traceback_of(exception))
    return "".join(lines[:-1])


class _Unprinted(Exception):
    """Stands for the exception whose traceback is formatted, because str() of that exception may raise."""
