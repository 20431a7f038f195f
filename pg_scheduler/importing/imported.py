"""The jobs and schedules that the importers of other schedulers return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pg_scheduler.jobs.model import UNSET, JobPriority, Unset
from pg_scheduler.schedules.policies import CatchUp, Overlap
from pg_scheduler.triggers import Trigger


class StoreUnreadableError(Exception):
    """The store of another scheduler cannot be read now, since its database is unavailable."""


class StoreInvalidError(Exception):
    """What the user has passed leads to no store of another scheduler; the message has the remedy."""


def check_sqlite_file(name: str) -> None:
    """Raise StoreInvalidError if a database of SQLite is a file that does not exist.

    SQLite would make an empty file. The name may also be a URL, or that of a database in memory.
    """
    if not name or name == ":memory:" or name.startswith("file:"):
        return
    if not Path(name).exists():
        raise StoreInvalidError(f"the file {name!r} does not exist; pass the path of the database")


class NotImportedError(ValueError):
    """A job or schedule that has no equivalent here; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A job or schedule that can be imported.

    The fields are arguments of ``schedule()`` and of ``schedules.add()``.
    """

    task: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any]
    metadata: dict[str, Any] | None
    misfire_grace_time: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefinition(Definition):
    """A job that is due once."""

    due: datetime
    priority: JobPriority | Unset = UNSET
    deadline: datetime | Unset = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDefinition(Definition):
    """A schedule, whose trigger decides when it fires."""

    trigger: Trigger
    start: datetime | None
    end: datetime | None
    max_runs: int | None = None
    jitter: float = 0
    paused: bool
    overlap: Overlap
    catch_up: CatchUp

    def __post_init__(self) -> None:
        """Raise NotImportedError if the schedule ends before it would fire."""
        if self.start is not None and self.end is not None and self.end < self.start:
            raise NotImportedError(
                f"it ends at {self.end.isoformat()}, before its next run at {self.start.isoformat()}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A job or schedule of another scheduler.

    Attributes:
        source_id: The id in the other scheduler.
        task: The name of its function in this library; None if the name cannot be read.
        definition: The job or the schedule that it becomes; None if it is left out.
        reason: Why it is left out; None if it is imported.
    """

    source_id: str
    task: str | None
    definition: Definition | None = None
    reason: str | None = None


def converted(source_id: str, task: str | None, convert: Callable[[], Definition]) -> Source:
    """Return a `Source` with what ``convert`` returns, or with the message of the error that it raises."""
    try:
        return Source(source_id=source_id, task=task, definition=convert())
    # NotImportedError is a ValueError. Values that a trigger or a date rejects raise the others too.
    except (TypeError, ValueError, OverflowError) as error:
        return Source(source_id=source_id, task=task, reason=str(error))


def upcoming(start: datetime, interval: timedelta, now: datetime) -> datetime:
    """Return the first of the times ``start``, ``start + interval``, ... that is after now.

    It becomes the start of a schedule, which would run at once if its start had passed.
    """
    if start > now:
        return start
    passed_intervals = (now - start) // interval
    return start + (passed_intervals + 1) * interval
