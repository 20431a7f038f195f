"""The author of a change, for the audit.

The changes of services, such as the rescue of jobs, are recorded for people only. If the server refuses such
a record, or if another transaction has locked its table, the service makes the change without it. A change
that a person makes is never made without its record, because both are in one transaction.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeVar

from pg_scheduler.database.faults import RECORD_REFUSALS, may_be_of_record
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events.log import logger, record_fields

MAX_RELEASE_LENGTH: Final = 200

T = TypeVar("T")


class Author(NamedTuple):
    """The author of a change.

    Attributes:
        actor: The person or the Scheduler.
        via: The way: ``api``, ``code``, ``cli``, ``dashboard``, ``mcp`` or ``inspector``.
        release: The release of the application.
    """

    actor: str
    via: str = "api"
    release: str | None = None

    def values(self, via: str | None = None, **details: Any) -> tuple[str, str, str]:
        """Return the parameters of a statement that writes a record: actor, way and details as JSON."""
        origin = {"host": platform.node()}
        if self.release is not None:
            origin["release"] = self.release
        return self.actor, via or self.via, json.dumps({**origin, **details})


def release_of(metadata: Mapping[str, Any] | None) -> str | None:
    """Return the release of the application, from the metadata of a Scheduler; None if these name none."""
    release = (metadata or {}).get("release")
    if not isinstance(release, str) or not release:
        return None
    return release[:MAX_RELEASE_LENGTH]


_acting: ContextVar[Author | None] = ContextVar("pg_scheduler_author", default=None)
_records: ContextVar[bool] = ContextVar("pg_scheduler_records", default=True)


@contextmanager
def acting_as(author: Author) -> Iterator[None]:
    """Make this author responsible for the changes that are made within the block."""
    token = _acting.set(author)
    try:
        yield
    finally:
        _acting.reset(token)


def current_author() -> Author | None:
    """Return the author of the caller's context; None for the Scheduler itself."""
    return _acting.get()


def writes_records() -> bool:
    """Return whether the caller's statements are to write records for people, such as those of the audit."""
    return _records.get()


async def with_record(
    subject: str, write: Callable[[], Awaitable[T]], *, note_unrecorded: Callable[[T], None] | None = None
) -> T:
    """Run what a service writes with a record, and without it if the server refuses or delays the record.

    Args:
        subject: What the record is, for the log.
        write: Writes all in one transaction; it may run twice.
        note_unrecorded: Called with what ``write`` has returned, if that was written without the record.
    """
    try:
        return await write()
    except (DatabaseUnavailableError, *RECORD_REFUSALS) as refusal:
        if not may_be_of_record(refusal):
            raise
        with without_records():
            result = await write()  # raises the error again if the record is not its cause
        report_refused(subject, refusal)
        if note_unrecorded is not None:
            note_unrecorded(result)
        return result


@contextmanager
def without_records() -> Iterator[None]:
    """Let the statements of the block write no records for people, such as those of the audit."""
    token = _records.set(False)
    try:
        yield
    finally:
        _records.reset(token)


@contextmanager
def logging_refusal_of(subject: str) -> Iterator[None]:
    """If the server refuses what the block writes, log that instead of raising the error.

    Only for what people read, without which jobs run on.
    """
    try:
        yield
    except RECORD_REFUSALS as refusal:
        report_refused(subject, refusal)


def report_refused(subject: str, refusal: Exception) -> None:
    """Log that the server refused to store what only people read, which ``subject`` names."""
    logger.warning(
        "the server refused %s (%s: %s); jobs run on without it; check the triggers, constraints, locks and "
        "privileges of the table",
        subject,
        type(refusal).__name__,
        refusal,
        extra=record_fields(),
    )
