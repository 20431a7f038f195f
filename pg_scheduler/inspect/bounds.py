"""The maximum that a page examines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pg_scheduler.jobs.validation import check_count

MAX_ROWS: Final = 1_000_000
MAX_MILLISECONDS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The maximum that a page of a search, or a call of `error_groups()`, examines.

    A result that reaches a bound states its extent. The next page of a search continues there.

    Raises:
        TypeError: A value is not an int.
        ValueError: A value is out of range.

    Example::

        from pg_scheduler.inspect import Bounds

        page = await Inspector(scheduler, bounds=Bounds(rows=1000)).search_jobs("arg.user:42")
    """

    rows: int = 20_000
    """Jobs that are examined, 1 to 1,000,000."""
    milliseconds: int = 250
    """Milliseconds after which no further statement examines jobs, 1 to 60,000."""

    def __post_init__(self) -> None:
        check_count("rows", self.rows, least=1, most=MAX_ROWS)
        check_count("milliseconds", self.milliseconds, least=1, most=MAX_MILLISECONDS)


DEFAULT_BOUNDS: Final = Bounds()
