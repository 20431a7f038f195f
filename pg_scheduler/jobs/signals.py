"""Encode signals, the values for which jobs wait."""

from __future__ import annotations

from typing import Any

from pydantic_core import to_jsonable_python

from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.step_values import step_text


def signal_text(
    name: str, value: object, limit: int | None, codec: PayloadCodec | None, job_name: str
) -> str:
    """Return the value of a signal as it is stored: JSON, encoded if there is a codec with a key.

    Args:
        name: The name of the signal.
        value: What pydantic serializes to JSON.
        limit: The maximum size of the result in bytes; None for no limit.
        codec: Encodes it; None for none.
        job_name: The name of the job, for the codec.

    Raises:
        PayloadError: The value cannot be serialized, the codec failed, or it is too large.
    """
    try:
        plain: Any = to_jsonable_python(value, by_alias=True)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"step {name!r}: pydantic cannot serialize the value: {error}") from error
    return step_text(name, plain, limit, codec, job_name, verb="send")
