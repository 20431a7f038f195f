"""Schedules as the code declares them and as the database stores them."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Final

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.model import JobFunction, JobPriority
from pg_scheduler.jobs.naming import check_function, module_name, qualified_name, required_parameters
from pg_scheduler.jobs.registry import catalogue
from pg_scheduler.jobs.validation import check_count, check_kind
from pg_scheduler.triggers.cron import Cron
from pg_scheduler.triggers.interval import Every
from pg_scheduler.triggers.zones import parse_timezone

__all__ = [
    "MAX_DEDUP_KEY_LENGTH",
    "MAX_JOB_NAME_LENGTH",
    "PeriodicJobConfig",
    "PeriodicRow",
    "advisory_lock_key",
    "check_label",
    "trigger_for",
]

MAX_JOB_NAME_LENGTH: Final = 1000
MAX_DEDUP_KEY_LENGTH: Final = 200


@dataclass(frozen=True)
class PeriodicJobConfig:
    """A periodic function and its schedule, validated and with every default filled in.

    Attributes:
        func: The coroutine function.
        interval: The time between two fire times; None with ``cron``.
        cron: The cron expression; None with ``interval``.
        timezone: The time zone of the cron expression; None for an interval.
        use_advisory_lock: Whether an attempt is skipped while another one runs on any node.
        priority: The priority of its jobs.
        max_retries: The number of retries after a failed first attempt.
        job_name: The name of its jobs.
        dedup_key: The key of the schedule, the same on every node.
        enabled: Whether the schedule fires.
        trigger: Computes the fire times.
        derived_key: Whether the dedup key was derived from the function and the schedule.
        named: Whether the job name was given.
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
    trigger: Every | Cron = field(init=False, repr=False, compare=False)
    derived_key: bool = field(init=False, repr=False, compare=False)
    named: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not catalogue.declares(self.func):
            check_function(self.func, decorator="@periodic")
        if required := required_parameters(self.func):
            raise ConfigurationError(
                f"@periodic calls {self.function} without arguments, but it requires {', '.join(required)}; "
                "give them defaults, or decorate a function without parameters"
            )
        try:
            check_kind("priority", self.priority, JobPriority)
            check_count("max_retries", self.max_retries)
            for flag in ("use_advisory_lock", "enabled"):
                check_kind(flag, getattr(self, flag), bool)
            trigger = trigger_for(self.interval, self.cron, self.timezone)
        except TypeError as error:  # every error but the function's is a ValueError
            raise ConfigurationError(str(error)) from error
        self._set(
            trigger=trigger,
            timezone=parse_timezone(self.timezone) if self.cron is not None else None,
            derived_key=not self.dedup_key,
            named=bool(self.job_name),
        )
        self._set(
            job_name=check_label(
                "job_name", self.job_name or f"periodic_{self.func.__name__}", MAX_JOB_NAME_LENGTH
            ),
            dedup_key=check_label("dedup_key", self.dedup_key or self._derive_key(), MAX_DEDUP_KEY_LENGTH),
        )

    @property
    def function(self) -> str:
        """The name under which the function is registered."""
        return qualified_name(self.func)

    @property
    def schedule(self) -> tuple[timedelta | None, str | None, str | None]:
        """The interval, the cron expression and the name of the time zone, as the database stores them."""
        return self.interval, self.cron, None if self.timezone is None else str(self.timezone)

    def _derive_key(self) -> str:
        # pg-scheduler 0.2.x hashes the same text, so its keys stay valid.
        if self.interval:
            when = f"interval:{self.interval.total_seconds()}"
        else:
            when = f"cron:{self.cron}:tz:{self.timezone}"
        text = f"{module_name(self.func)}.{self.func.__qualname__}:{when}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class PeriodicRow:
    """A schedule as read from its row in ``scheduler_periodic_jobs``."""

    dedup_key: str
    derived_key: bool
    job_name: str
    function: str
    every: timedelta | None
    cron: str | None
    timezone: str | None
    use_advisory_lock: bool
    priority: int
    max_retries: int
    enabled: bool
    enabled_in_code: bool
    anchor: datetime
    last_fire_at: datetime | None
    next_fire_at: datetime | None

    @property
    def schedule(self) -> tuple[timedelta | None, str | None, str | None]:
        """The interval, the cron expression and the name of the time zone."""
        return self.every, self.cron, self.timezone

    def trigger(self) -> Every | Cron:
        """Return the trigger of the schedule.

        Raises:
            ValueError: The row is invalid.
        """
        return trigger_for(self.every, self.cron, self.timezone)


def advisory_lock_key(dedup_key: str) -> int:
    """Return the key of a schedule's advisory lock, a signed 64-bit integer."""
    return int.from_bytes(hashlib.sha256(dedup_key.encode()).digest()[:8], signed=True)


def check_label(name: str, value: object, max_length: int) -> str:
    """Return the value if it is a non-empty text that PostgreSQL can store.

    Raises:
        ValueError: It is not.
    """
    if isinstance(value, str) and 0 < len(value) <= max_length and "\x00" not in value:
        with suppress(UnicodeEncodeError):
            value.encode()
            return value
    raise ValueError(
        f"{name} must be a str of 1 to {max_length} characters without NUL or lone surrogates, not {value!r}"
    )


def trigger_for(every: timedelta | None, cron: str | None, timezone: tzinfo | str | None) -> Every | Cron:
    """Return the trigger of a schedule.

    Raises:
        ValueError: Neither or both of ``every`` and ``cron`` are given, the interval is not positive, the
            cron expression or the time zone is invalid, or a time zone is given without ``cron``.
        TypeError: A parameter has the wrong type.
    """
    if every is None and cron is None:
        raise ValueError("Either every= or cron= must be given; both are None")
    if every is not None and cron is not None:
        raise ValueError(f"Either every= or cron= must be given, not both: every={every!r} and cron={cron!r}")
    if cron is not None:
        return Cron(cron, parse_timezone(timezone))
    if timezone is not None:
        raise ValueError(f"timezone={timezone!r} requires cron=; an interval is the same in every time zone")
    if not isinstance(every, timedelta):
        raise TypeError(f"every must be a timedelta, not {type(every).__name__}: {every!r}")
    return Every(every)
