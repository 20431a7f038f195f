"""The options of ``worker``, as the rest of its code reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pg_scheduler.cli.errors import CommandError, ExitCode

__all__ = ["WorkerOptions", "read_duration", "read_names"]

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What one process does.

    Attributes:
        slots: Jobs that run at the same time; None for the setting of the Scheduler.
        batch: Jobs claimed by one statement at most; None likewise.
        names: Patterns of the names that it claims; empty for all.
        drain: Whether to end once no job is due.
        max_jobs: Attempts after which it ends; None for no limit.
        max_rss_mb: Megabytes of memory at which it ends; None for no limit.
        max_age_s: Seconds after which it ends, varied by up to 10 %; None for no limit.
        health_host: The address of the probes.
        health_port: Their port; None for none.
        log_format: ``text`` or ``json``; None leaves the configuration of the application.
    """

    slots: int | None = None
    batch: int | None = None
    names: tuple[str, ...] = ()
    drain: bool = False
    max_jobs: int | None = None
    max_rss_mb: int | None = None
    max_age_s: float | None = None
    health_host: str = "127.0.0.1"
    health_port: int | None = None
    log_format: str | None = None

    @property
    def recycles(self) -> bool:
        """Whether the process ends after some work."""
        return any(each is not None for each in (self.max_jobs, self.max_rss_mb, self.max_age_s))


def read_names(text: str | None) -> tuple[str, ...]:
    """Return the patterns of a list that commas separate."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def read_duration(name: str, text: str) -> float:
    """Return the seconds of a duration such as 90s, 15m, 12h or 2d.

    Raises:
        CommandError: It is none, or 0.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])", text.strip())
    if found is None or not float(found[1]):
        raise CommandError(
            ExitCode.USAGE, f"{name} must be a duration such as 90s, 15m, 12h or 2d, not {text!r}"
        )
    return float(found[1]) * _UNITS[found[2]]
