"""The jobs and schedules that the importers of other schedulers return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from pg_scheduler.jobs.model import UNSET, JobPriority, Unset
from pg_scheduler.schedules.policies import CatchUp, Overlap
from pg_scheduler.triggers import Trigger


class StoreUnreadableError(Exception):
    """The store of another scheduler cannot be read."""


class NotImportedError(ValueError):
    """A job or schedule that has no equivalent here; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A job or schedule that can be imported.

    The fields are arguments of ``schedule()`` and of ``schedules.add()``.
    """

    task: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any]
    metadata: dict[str, Any] | None
    misfire_grace_time: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob(Found):
    """A job at one time."""

    due: datetime
    priority: JobPriority | Unset = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSchedule(Found):
    """A job with a trigger."""

    trigger: Trigger
    start: datetime | None
    end: datetime | None
    max_runs: int | None = None
    jitter: float = 0
    paused: bool
    overlap: Overlap
    catch_up: CatchUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A job or schedule of another scheduler.

    Attributes:
        source_id: The id in the other scheduler.
        task: The name of its function in this library; None if the name cannot be read.
        found: The job or the schedule that it becomes; None if it is left out.
        reason: Why it is left out; None if it is imported.
    """

    source_id: str
    task: str | None
    found: Found | None = None
    reason: str | None = None


def converted(source_id: str, task: str | None, convert: Callable[[], Found]) -> Source:
    """Return a `Source` with what ``convert`` returns, or with the message of the error that it raises."""
    try:
        return Source(source_id=source_id, task=task, found=convert())
    except (TypeError, ValueError, OverflowError) as error:
        return Source(source_id=source_id, task=task, reason=str(error))


def upcoming(start: datetime, interval: timedelta, now: datetime) -> datetime:
    """Return the first run after now, if runs follow one another by the interval from the start on.

    A schedule that started in the past would run at once.
    """
    return start if start > now else start + ((now - start) // interval + 1) * interval
