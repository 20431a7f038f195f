"""Values and streams of a running job: what its code calls, their bounds, and their form as JSON.

A value belongs to a name, and a later value replaces it. A stream has items, numbered from 1 on, which stay
as they are. ``streams/attempt.py`` writes both, and ``streams/readers.py`` reads them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final

from pg_scheduler.base.public import public
from pg_scheduler.errors import ConfigurationError, PayloadError
from pg_scheduler.jobs.codec import PayloadCodec, decode_value, is_encoded
from pg_scheduler.jobs.payload import encode_value, object_from, value_from
from pg_scheduler.jobs.result import encoded_value
from pg_scheduler.jobs.step_values import ENCODED_KEYS
from pg_scheduler.jobs.validation import check_count

STREAMS: Final = "streams"
"""The key in the ``options`` of a job whose value distinguishes what this definition of the job has published
from what an earlier job with its id has published."""

MAX_NAMES: Final = 100
"""Names of streams and of published values that one job may have."""
MAX_ITEMS: Final = 100_000
"""Items that the streams of one job may have together."""
MAX_ITEM_BYTES: Final = 64 * 2**10
"""Bytes of JSON that an item or a published value may have."""
MAX_BYTES: Final = 64 * 2**20
"""Bytes of JSON that the items of all streams of one job may have together."""


@public
@dataclass(frozen=True, slots=True)
class StreamItem:
    """One item of a stream."""

    number: int
    """Its position in the stream: 1 for the first item. Pass it as ``after=`` to continue behind it."""
    value: Any
    """What the job has appended, as JSON carries it."""


@public
class JobStream(ABC):
    """A stream of the running job, as ``current_job().stream(name)``.

    Items are collected for up to 50 ms, and written with one statement. So ``append()`` usually returns
    before its item is committed. All items are committed before a step that follows them is stored, and
    before the job ends. After a crash, those of the last 50 ms may be missing.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the stream."""

    @abstractmethod
    async def append(self, value: Any, *, number: int | None = None) -> int:
        """Append an item, and return its number.

        Another attempt of the job continues the stream behind the last item that was committed. So code that
        an attempt repeats appends once more, unless it passes ``number=``.

        Args:
            value: A value that pydantic serializes to JSON, at most 64 KiB long.
            number: The position that the item is to have. If the stream has an item at this position, of this
                attempt or an earlier one, the call does nothing. None for the next position.

        Raises:
            PayloadError: JSON cannot represent the value, it is too long, or the streams of the job have
                100,000 items, 64 MiB or 100 names.
            ValueError: ``number`` would leave a gap.
            JobLostError: The attempt does not hold its job any more.
            DatabaseUnavailableError: The worker lost its lease while the database was unavailable.

        Example:
            >>> from pg_scheduler import current_job
            >>> async def count_to(last: int) -> None:
            ...     stream = current_job().stream("numbers")
            ...     for number in range(1, last + 1):
            ...         await stream.append({"n": number}, number=number)
        """

    @abstractmethod
    async def count(self) -> int:
        """Return how many items the stream has, with those of earlier attempts of the job.

        Raises:
            JobLostError: The attempt has ended.
            DatabaseUnavailableError: As in ``append()``.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Write what is collected, and return when it is committed.

        Raises:
            JobLostError: The attempt does not hold its job any more. Nothing was written.
            DatabaseUnavailableError: As in ``append()``.
        """


class Streams(ABC):
    """The values and streams of the running job."""

    @abstractmethod
    async def publish(self, name: str, value: Any) -> None:
        """Publish a value under a name. See ``CurrentJob.publish()``."""

    @abstractmethod
    def stream(self, name: str) -> JobStream:
        """Return a stream of the job. See ``CurrentJob.stream()``."""


def definition_of(options: str | None) -> str | None:
    """Return the key of what a job has published, from its options; None if it has published nothing."""
    if options is None or STREAMS not in options:
        return None
    # The text may be elsewhere in the options, so only the parsed object shows whether there is a key.
    definition = object_from(options).get(STREAMS)
    return definition if isinstance(definition, str) else None


def check_number(number: object) -> int:
    """Return a number of an item: 1 or more."""
    return check_count("number", number, least=1)


def published_text(name: str, value: object, codec: PayloadCodec | None, job_name: str) -> str:
    """Return a value or an item as it is stored: JSON, encoded if there is a codec with a key.

    Raises:
        PayloadError: JSON cannot represent the value, the codec failed, or it is too large.
    """
    if isinstance(value, dict) and value.keys() == ENCODED_KEYS:
        raise PayloadError(
            f"{name!r}: the value has exactly the keys of an encoded one, {sorted(ENCODED_KEYS)}; "
            "add another key"
        )
    try:
        text, _ = encoded_value(encode_value(value, "publish"), codec, job_name)
    except PayloadError as error:
        raise PayloadError(f"{name!r}: {error}") from error
    if (size := len(text.encode())) > MAX_ITEM_BYTES:
        raise PayloadError(
            f"{name!r}: the value has {size} bytes of JSON, more than {MAX_ITEM_BYTES}; divide it, or "
            "publish an id or a path"
        )
    return text


def published_value(job_id: str, name: str, text: str, codec: PayloadCodec | None) -> Any:
    """Return a value or an item from what is stored.

    Raises:
        PayloadError: The codec of this process cannot read it.
        ConfigurationError: It is encoded, and this process has no codec.
    """
    try:
        value = value_from(text)
        # Any other object is a value of the job: step_text() refuses one with exactly these keys.
        if is_encoded(value) and value.keys() == ENCODED_KEYS:
            return decode_value(value, codec, value["job_name"], value_from)
    except ConfigurationError:
        raise
    except ValueError as error:  # a PayloadError is one
        raise PayloadError(
            f"what job {job_id!r} has published as {name!r} cannot be read: {error}"
        ) from error
    return value
