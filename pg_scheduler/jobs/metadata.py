"""The metadata of a job: a JSON object for people and filters, the third key of ``task_data``.

A job without metadata has no such key, so its ``task_data`` has the arguments only. The top-level keys of the
task, the schedule and the job are merged, and those of the job win. The key ``trace`` is reserved for trace
context.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.call_errors import call_error
from pg_scheduler.jobs.payload import encode_object, object_from, to_json

NO_METADATA: Final[Mapping[str, Any]] = {}

TRACE: Final = "trace"
"""The reserved key. Its value is an object of strings, such as the headers of W3C Trace Context."""

MAX_TRACE_BYTES: Final = 8192
"""The maximum size of the value of ``trace`` as JSON."""

TRACE_ID: Final = slice(3, 35)
"""The position of the trace id in a ``traceparent`` header of W3C Trace Context."""


def check_metadata(metadata: object, *, allows_trace: bool = False) -> dict[str, Any]:
    """Return a copy of the metadata, with the values that will be read from its JSON.

    Args:
        metadata: The metadata.
        allows_trace: Whether it may have trace context.

    Raises:
        PayloadError: JSON cannot represent a value, or ``trace`` is not allowed or invalid.
    """
    checked: dict[str, Any] = json.loads(encode_object("metadata", metadata))
    if TRACE in checked:
        if not allows_trace:
            raise call_error(
                PayloadError,
                "metadata['trace'] is reserved for the headers of middleware",
                "key of metadata",
                "choose another key, or pass trace context from another program to schedule_job()",
            )
        if trace_from(checked) is None:
            raise PayloadError(
                f"metadata['trace'] must be a dict of strings of at most {MAX_TRACE_BYTES} bytes as JSON; "
                "pass headers such as {'traceparent': '00-...'}"
            )
    return checked


def trace_from(metadata: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the trace context in metadata; None if it is missing, malformed or longer than 8 KiB of JSON."""
    trace = metadata.get(TRACE)
    if not isinstance(trace, dict) or not all(isinstance(value, str) for value in trace.values()):
        return None
    try:
        is_short = len(encode_object(TRACE, trace)) <= MAX_TRACE_BYTES
    except PayloadError:  # a header is no text that JSON can carry
        return None
    return trace if is_short else None


def trace_id_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the id of the trace in which a job was created; None if its metadata has none."""
    trace = metadata.get(TRACE)
    parent = trace.get("traceparent") if isinstance(trace, dict) else None
    # The header consists of four parts: ``00-<trace id>-<span id>-<flags>``.
    return parent[TRACE_ID] if isinstance(parent, str) and parent.count("-") >= 3 else None


def tags_of(metadata: Mapping[str, Any]) -> list[str]:
    """Return the tags of a job: the texts of the list ``tags`` of its metadata."""
    tags = metadata.get("tags")
    return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []


def with_trace(task_data: str, trace: Mapping[str, str]) -> str:
    """Return the text of ``task_data`` with trace context; if its metadata has some already, that stays.

    The text must have the form in which ``encode()`` and ``with_metadata()`` return it.

    Raises:
        PayloadError: PostgreSQL cannot store a value, or the trace context is too large.
    """
    text = encode_object(f"metadata[{TRACE!r}]", trace)
    if len(text) > MAX_TRACE_BYTES:
        raise PayloadError(
            f"the headers of middleware have {len(text)} bytes of JSON, more than {MAX_TRACE_BYTES}; "
            f"let headers() return less than {', '.join(trace)}"
        )
    # Without metadata, the key is inserted before the brace at the end of the object.
    if '"metadata":' not in task_data:
        return f'{task_data[:-1]},"metadata":{{"{TRACE}":{text}}}}}'
    # An argument may have that name too, so only the parsed object shows whether there is metadata.
    data = json.loads(task_data)
    metadata = data.pop("metadata", {})
    arguments = encode_object("task_data", data)
    # Trace context in the metadata of the job replaces this one.
    metadata_text = encode_object("metadata", {TRACE: trace, **metadata})
    return f'{arguments[:-1]},"metadata":{metadata_text}}}'


def with_metadata(
    task_data: str,
    inherited: Mapping[str, Any],
    metadata: Mapping[str, Any] | None,
    *,
    allows_trace: bool = False,
) -> str:
    """Return the text of ``task_data`` with metadata.

    Args:
        task_data: The arguments, as ``encode()`` returns them.
        inherited: The metadata of the task, which was checked.
        metadata: The metadata of the job, whose keys replace those of the task; None for none.
        allows_trace: Whether the metadata of the job may have trace context.

    Raises:
        PayloadError: JSON cannot represent a value, or ``trace`` is not allowed or invalid.
    """
    merged = inherited
    if metadata is not None:
        merged = {**inherited, **check_metadata(metadata, allows_trace=allows_trace)}
    if not merged:
        return task_data
    # The key is inserted before the brace at the end of the object.
    return f'{task_data[:-1]},"metadata":{to_json(merged)}}}'


def metadata_of(task_data: str) -> dict[str, Any]:
    """Return the metadata in a ``task_data`` column; empty if it has none, or if that is not an object."""
    metadata = object_from(task_data).get("metadata")
    return metadata if isinstance(metadata, dict) else {}
