"""The options of jobs that calls, tasks and schedules give, each declared once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from pg_scheduler.jobs.model import DEFAULT_TIMEOUT, UNSET, JobPriority
from pg_scheduler.jobs.validation import (
    check_count,
    check_grace,
    check_keep_result,
    check_kind,
    check_timeout,
)


class JobOption(NamedTuple):
    """An option of jobs.

    Attributes:
        check: Returns a given value in the unit of the rows, or raises a TypeError or ValueError.
        default: The value if neither a call, a schedule nor a task gives one; UNSET for the Scheduler's.
        is_column: Whether it is a column of its row; otherwise it is a key of ``options`` unless it is None.
    """

    check: Callable[[Any], Any]
    default: Any
    is_column: bool = False


JOB_OPTIONS: Final[Mapping[str, JobOption]] = {
    "priority": JobOption(
        partial(check_kind, "priority", kind=JobPriority), JobPriority.NORMAL, is_column=True
    ),
    "max_retries": JobOption(partial(check_count, "max_retries"), 0, is_column=True),
    "misfire_grace_time": JobOption(check_grace, UNSET, is_column=True),
    "timeout": JobOption(check_timeout, DEFAULT_TIMEOUT.total_seconds(), is_column=True),
    "keep_result": JobOption(check_keep_result, None),
}
"""The options by their names, which tasks and rows of schedules have too. The columns are in their order."""


def as_stored(value: Any) -> Any:
    """Return a checked value as rows store it."""
    return value.db_value if isinstance(value, JobPriority) else value
