"""Encode signals, the values for which jobs wait."""

from __future__ import annotations

from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.step_values import step_text
from pg_scheduler.jobs.values import encode_by_class


def signal_text(
    name: str, value: object, limit: int | None, codec: PayloadCodec | None, job_name: str
) -> str:
    """Return the value of a signal as it is stored: JSON, encoded if there is a codec with a key.

    Args:
        name: The name of the signal.
        value: What pydantic serializes to JSON, by the classes of its objects.
        limit: The maximum size of the returned text in bytes; None for no limit.
        codec: Encodes it; None for none.
        job_name: The name of the job, for the codec.

    Raises:
        PayloadError: The value cannot be serialized, would not arrive equal, or is too large; or the codec
            failed.
    """
    try:
        plain = encode_by_class(value, "the value")
    except PayloadError as error:
        raise PayloadError(f"step {name!r}: {error}") from error
    return step_text(name, plain, limit, codec, job_name, verb="send")
