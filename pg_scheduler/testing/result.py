"""The result of running jobs in a test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrainResult:
    """How many attempts of jobs ended in which way."""

    completed: int = 0
    """Attempts that completed their job."""
    failed: int = 0
    """Attempts that failed, and whose job is not retried."""
    retried: int = 0
    """Attempts that failed, and whose job is pending again."""
    snoozed: int = 0
    """Attempts that raised ``Snooze``."""
    cancelled: int = 0
    """Attempts that were skipped because another one has the advisory lock."""
    expired: int = 0
    """Jobs past their misfire grace time, which did not run."""
    unregistered: tuple[str, ...] = ()
    """The names of pending jobs that no function is registered for; other workers may have some."""
