"""Check and encode signals, the values that jobs wait for."""

from __future__ import annotations

from pydantic_core import to_jsonable_python

from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.payload import encode_value
from pg_scheduler.jobs.result import encoded_value
from pg_scheduler.jobs.step_values import MAX_NAME_BYTES
from pg_scheduler.jobs.validation import check_text


def check_signal_name(name: object) -> str:
    """Return the name of a signal if the table can store it."""
    if name == "":
        raise ValueError("name must not be empty; pass that of the wait")
    return check_text("name", name, max_bytes=MAX_NAME_BYTES)


def encode_signal(value: object, limit: int | None, codec: PayloadCodec | None, job_name: str) -> str:
    """Return the value of a signal as JSON, encoded by the codec if there is one.

    Args:
        value: What pydantic serializes to JSON.
        limit: The maximum size in bytes; None for no limit.
        codec: Encodes it; None for none.
        job_name: The name of the job, for the codec.

    Raises:
        PayloadError: The value cannot be serialized or is too large, or the codec failed.
    """
    try:
        plain = to_jsonable_python(value, by_alias=True)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the value cannot be serialized by pydantic: {error}") from error
    text, _ = encoded_value(encode_value(plain), codec, job_name)
    if limit is not None and len(text) > limit:
        raise PayloadError(
            f"the value has {len(text)} bytes of JSON, more than max_result_bytes = {limit}; store it "
            "elsewhere and send an id or a path, or increase max_result_bytes="
        )
    return text
