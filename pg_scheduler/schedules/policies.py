"""The policies of a schedule: overlapping jobs and missed fire times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal

from pg_scheduler.base.public import public
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.call_errors import call_error
from pg_scheduler.jobs.validation import check_count

MAX_SPAN: Final = timedelta(days=3660)
"""The longest jitter, and the longest age of a missed fire time. Intervals have the same limit."""

Selection = Literal["latest", "earliest", "all", "none"]


@public
class Overlap(StrEnum):
    """The behaviour at a fire time while the schedule's last job is unfinished; retries are part of a job."""

    ALLOW = "allow"
    """Enqueue the job; jobs may overlap."""
    SKIP = "skip"
    """Drop the fire time and count it in ``skipped``."""
    QUEUE_ONE = "queue_one"
    """Enqueue the job, blocked until the last one has ended. Drop and count the fire time if a job already
    waits for its first start."""
    QUEUE_ALL = "queue_all"
    """Enqueue the job, blocked until the last one has ended: all run in order."""
    CANCEL = "cancel"
    """Cancel the unfinished job and enqueue the new one, blocked until the old attempt has ended."""


@public
@dataclass(frozen=True, slots=True)
class CatchUp:
    """The jobs for missed fire times. Use `latest()`, `earliest()`, `all()` or `none()`.

    A fire time is missed if a later one is due in the same pass of the planner, or if it is found after its
    misfire grace time. ``missed`` of the schedule counts those without a job.

    Args:
        selection: ``"latest"``, ``"earliest"``, ``"all"`` or ``"none"``.
        limit: The number of jobs at most, with ``"all"`` only.
        within: Older fire times are dropped; None for no limit.

    Raises:
        ConfigurationError: A value is invalid; a ValueError.

    Example:
        >>> from datetime import timedelta
        >>> from pg_scheduler import CatchUp
        >>> CatchUp.all(limit=24, within=timedelta(days=1))
        CatchUp.all(limit=24, within=datetime.timedelta(days=1))
    """

    selection: Selection
    limit: int | None = None
    within: timedelta | None = None

    def __post_init__(self) -> None:
        # A caller without a type checker may pass anything.
        selection: object = self.selection
        if selection not in {"latest", "earliest", "all", "none"}:
            raise ConfigurationError(
                f"selection must be 'latest', 'earliest', 'all' or 'none', not {selection!r}"
            )
        if (self.limit is not None) != (selection == "all"):
            raise ConfigurationError(f"limit belongs to CatchUp.all(), not {self.limit!r} to {selection!r}")
        if self.limit is not None:
            check_count("limit", self.limit, least=1, most=10_000)
        check_span("within", self.within)

    @classmethod
    def latest(cls, within: timedelta | None = None) -> CatchUp:
        """Return the policy of one job for all due fire times, with the latest of them."""
        return cls("latest", within=within)

    @classmethod
    def earliest(cls, within: timedelta | None = None) -> CatchUp:
        """Return the policy of one job for all due fire times, with the earliest of them."""
        return cls("earliest", within=within)

    @classmethod
    def all(cls, limit: int = 100, within: timedelta | None = None) -> CatchUp:
        """Return the policy of a job for each of the newest ``limit`` fire times, in order."""
        return cls("all", limit, within)

    @classmethod
    def none(cls) -> CatchUp:
        """Return the policy of no job for missed fire times.

        The newest fire time still gets its job if it is found within its misfire grace time.
        """
        return cls("none")

    def __repr__(self) -> str:
        """Return the call of the class method that makes the policy, such as ``CatchUp.all(limit=24)``."""
        values = {"limit": self.limit, "within": self.within}
        arguments = ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
        return f"CatchUp.{self.selection}({arguments})"


def check_span(name: str, value: object) -> None:
    """Raise ConfigurationError unless the value is None or a timedelta from 0 to ten years."""
    if value is None:
        return
    if not isinstance(value, timedelta):
        raise ConfigurationError(f"{name} must be a timedelta or None, not {value!r}")
    if not timedelta(0) <= value <= MAX_SPAN:
        raise ConfigurationError(f"{name} must be between 0 and {MAX_SPAN.days} days, not {value!r}")


def check_policies(overlap: Overlap, catch_up: CatchUp) -> None:
    """Raise ConfigurationError if the policies contradict each other."""
    if catch_up.selection == "all" and overlap not in {Overlap.ALLOW, Overlap.QUEUE_ALL}:
        raise call_error(
            ConfigurationError,
            f"CatchUp.all() requires Overlap.ALLOW or Overlap.QUEUE_ALL, not {overlap!r}, "
            "which would drop jobs",
            "policies",
            "pass another overlap= or CatchUp.latest()",
        )


LATEST: Final = CatchUp.latest()
"""The default."""
