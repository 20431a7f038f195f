"""The metadata of a job: a JSON object for people and filters, the third key of ``task_data``.

A job without metadata has no such key, so its ``task_data`` is the same as ever. The top-level keys of the
task, the schedule and the job are merged, the job's last. The key ``trace`` is reserved for trace context.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.payload import encode_object

__all__ = ["NO_METADATA", "check_metadata", "metadata_of", "with_metadata"]

NO_METADATA: Final[Mapping[str, Any]] = {}

TRACE: Final = "trace"
"""The reserved key. Its value is an object of strings, such as the headers of W3C Trace Context."""


def check_metadata(metadata: object) -> dict[str, Any]:
    """Return a copy of the metadata as it will be read.

    Raises:
        PayloadError: JSON cannot represent a value, or ``trace`` is not an object of strings.
    """
    checked: dict[str, Any] = json.loads(encode_object("metadata", metadata))
    if TRACE in checked:
        trace = checked[TRACE]
        if not isinstance(trace, dict) or not all(isinstance(value, str) for value in trace.values()):
            raise PayloadError(
                "metadata['trace'] is reserved for trace context; pass a dict of strings, or another key"
            )
    return checked


def with_metadata(task_data: str, inherited: Mapping[str, Any], metadata: Mapping[str, Any] | None) -> str:
    """Return the text of ``task_data`` with metadata.

    Args:
        task_data: The arguments, as ``encode()`` returns them.
        inherited: The metadata of the task, which was checked.
        metadata: The metadata of the job, whose keys replace those of the task; None for none.

    Raises:
        PayloadError: JSON cannot represent a value, or ``trace`` is not an object of strings.
    """
    merged = inherited if metadata is None else {**inherited, **check_metadata(metadata)}
    return f'{task_data[:-1]},"metadata":{encode_object("metadata", merged)}}}' if merged else task_data


def metadata_of(task_data: str) -> dict[str, Any]:
    """Return the metadata in a column; empty if there is none, or something else."""
    try:
        data = json.loads(task_data)
    except (ValueError, RecursionError):  # an int of 5,000 digits, or deep nesting
        return {}
    metadata = data.get("metadata") if isinstance(data, dict) else None
    return metadata if isinstance(metadata, dict) else {}
