"""Schedules as the code declares them and as the database stores them."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Final

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.model import JobFunction, JobPriority
from pg_scheduler.jobs.naming import check_function, module_name, qualified_name, required_parameters
from pg_scheduler.jobs.registry import catalogue
from pg_scheduler.jobs.validation import check_count, check_execution_time, check_kind, check_text
from pg_scheduler.schedules.definition import check_trigger, to_seconds
from pg_scheduler.schedules.policies import LATEST, CatchUp, Overlap, check_policies
from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.cron import Cron
from pg_scheduler.triggers.interval import Every
from pg_scheduler.triggers.zones import parse_timezone

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
        overlap: The behaviour at a fire time while the last job is unfinished.
        catch_up: The jobs for missed fire times.
        jitter: Each job is due up to this much later than its fire time; seconds or a timedelta.
        start: No fire time precedes it; None for no bound.
        end: No fire time follows it; None for no bound.
        pause_after_failures: The number of final failures in a row that pauses the schedule; None for never.
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
    trigger: Trigger = field(default=None, repr=False, kw_only=True)  # type: ignore[assignment] # set below
    overlap: Overlap = field(default=Overlap.ALLOW, repr=False, kw_only=True)
    catch_up: CatchUp = field(default=LATEST, repr=False, kw_only=True)
    jitter: float | timedelta = field(default=0, repr=False, kw_only=True)
    start: datetime | None = field(default=None, repr=False, kw_only=True)
    end: datetime | None = field(default=None, repr=False, kw_only=True)
    pause_after_failures: int | None = field(default=None, repr=False, kw_only=True)
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
            trigger = trigger_for(self.interval, self.cron, self.timezone, self.trigger)
            self._check_policies()
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
    def jitter_seconds(self) -> float:
        """The jitter in seconds."""
        return to_seconds("jitter", self.jitter)

    def _check_policies(self) -> None:
        check_policies(
            check_kind("overlap", self.overlap, Overlap), check_kind("catch_up", self.catch_up, CatchUp)
        )
        to_seconds("jitter", self.jitter)
        for name in ("start", "end"):
            if (value := getattr(self, name)) is not None:
                self._set(**{name: check_execution_time(value, name=name)})
        if self.start is not None and self.end is not None and self.end < self.start:
            raise ConfigurationError(f"end {self.end} is before start {self.start}; pass a later end=")
        if self.pause_after_failures is not None:
            check_count("pause_after_failures", self.pause_after_failures, least=1)

    def _derive_key(self) -> str:
        # pg-scheduler 0.2.x hashes the same text, so its keys stay valid.
        if self.interval:
            when = f"interval:{self.interval.total_seconds()}"
        elif self.cron is not None:
            when = f"cron:{self.cron}:tz:{self.timezone}"
        else:
            when = f"trigger:{json.dumps(self.trigger.to_json(), sort_keys=True)}"
        text = f"{module_name(self.func)}.{self.func.__qualname__}:{when}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def advisory_lock_key(dedup_key: str) -> int:
    """Return the key of a schedule's advisory lock, a signed 64-bit integer."""
    return int.from_bytes(hashlib.sha256(dedup_key.encode()).digest()[:8], signed=True)


def check_label(name: str, value: object, max_length: int) -> str:
    """Return the value if it is a non-empty text that PostgreSQL can store.

    Raises:
        ValueError: It is not.
    """
    if isinstance(value, str) and 0 < len(value) <= max_length:
        with suppress(ValueError):
            return check_text(name, value)
    raise ValueError(
        f"{name} must be a str of 1 to {max_length} characters without NUL or lone surrogates, not {value!r}"
    )


def trigger_for(
    every: timedelta | None,
    cron: str | None,
    timezone: tzinfo | str | None,
    trigger: Trigger | None = None,
) -> Trigger:
    """Return the trigger of a schedule.

    Raises:
        ValueError: None or several of ``every``, ``cron`` and ``trigger`` are given, the interval is not
            positive, the cron expression or the time zone is invalid, a time zone is given without ``cron``,
            or the class of the trigger has no kind.
        TypeError: A parameter has the wrong type.
    """
    if every is None and cron is None:
        if trigger is None:
            raise ValueError("Either every= or cron= must be given; both are None, as is trigger=")
        if timezone is not None:
            raise ValueError(f"timezone={timezone!r} requires cron=; pass the time zone to the trigger")
        check_trigger(trigger).to_json()
        return trigger
    if every is not None and cron is not None:
        raise ValueError(f"Either every= or cron= must be given, not both: every={every!r} and cron={cron!r}")
    found: Trigger
    if cron is not None:
        found = Cron(cron, parse_timezone(timezone))
    elif timezone is not None:
        raise ValueError(f"timezone={timezone!r} requires cron=; an interval is the same in every time zone")
    elif not isinstance(every, timedelta):
        raise TypeError(f"every must be a timedelta, not {type(every).__name__}: {every!r}")
    else:
        found = Every(every)
    if trigger is not None and trigger != found:
        raise ValueError(f"Either trigger= or every= or cron= must be given, not '{trigger}' and '{found}'")
    return found
