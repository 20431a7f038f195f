"""A periodic function and its schedule, as the code declares them."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta, tzinfo

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.model import JobFunction, JobPriority
from pg_scheduler.jobs.naming import check_function, module_name, qualified_name
from pg_scheduler.jobs.validation import check_count, check_kind
from pg_scheduler.schedules.timing import parse_timezone, trigger_for
from pg_scheduler.triggers.base import Trigger

__all__ = ["PeriodicJobConfig", "advisory_lock_key"]


@dataclass(frozen=True)
class PeriodicJobConfig:
    """A periodic function and its schedule, checked and with every default filled in.

    ``timezone`` is None for an interval. ``derived_key`` tells a dedup key that was made here from one
    that was given; ``named`` the same for the job name.
    """

    func: JobFunction
    interval: timedelta | None = None
    cron: str | None = None
    timezone: tzinfo | str | None = None
    use_advisory_lock: bool = False
    priority: JobPriority = JobPriority.NORMAL
    max_retries: int = 0
    job_name: str = ""
    dedup_key: str = ""
    enabled: bool = True
    trigger: Trigger = field(init=False, repr=False, compare=False)
    derived_key: bool = field(init=False, repr=False, compare=False)
    named: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_function(self.func, what="@periodic decorates async functions only: it")
        try:
            check_kind("priority", self.priority, JobPriority)
            check_count("max_retries", self.max_retries)
            for flag in ("use_advisory_lock", "enabled"):
                check_kind(flag, getattr(self, flag), bool)
            trigger = trigger_for(self.interval, self.cron, self.timezone)
        except TypeError as error:  # a ValueError is promised for every mistake but the function's
            raise ConfigurationError(str(error)) from error
        self._set(
            trigger=trigger,
            timezone=parse_timezone(self.timezone) if self.cron is not None else None,
            derived_key=not self.dedup_key,
            named=bool(self.job_name),
        )
        self._set(
            job_name=_check_text("job_name", self.job_name or f"periodic_{self.func.__name__}"),
            dedup_key=_check_text("dedup_key", self.dedup_key or self._derive_key(), most=200),
        )

    @property
    def function(self) -> str:
        """The name under which the function is registered."""
        return qualified_name(self.func)

    @property
    def schedule(self) -> tuple[timedelta | None, str | None, str | None]:
        """What the database keeps of the schedule: interval, cron expression, zone name."""
        return self.interval, self.cron, None if self.timezone is None else str(self.timezone)

    def _derive_key(self) -> str:
        # The same text that pg-scheduler 0.2.x hashes, so that keys written down somewhere stay true.
        if self.interval:
            when = f"interval:{self.interval.total_seconds()}"
        else:
            when = f"cron:{self.cron}:tz:{self.timezone}"
        text = f"{module_name(self.func)}.{self.func.__qualname__}:{when}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def advisory_lock_key(dedup_key: str) -> int:
    """The key of a schedule's advisory lock: a signed 64-bit number, as PostgreSQL wants it."""
    return int.from_bytes(hashlib.sha256(dedup_key.encode()).digest()[:8], signed=True)


def _check_text(name: str, value: object, *, most: int = 1000) -> str:
    if isinstance(value, str) and 0 < len(value) <= most and "\x00" not in value:
        with suppress(UnicodeEncodeError):
            value.encode()
            return value
    raise ValueError(
        f"{name} must be a text of 1 to {most} characters without NUL and lone surrogates, not {value!r}"
    )
