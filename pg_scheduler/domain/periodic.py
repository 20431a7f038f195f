"""``@periodic`` and what it knows about a function."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta, tzinfo
from typing import Final, TypeVar

from pg_scheduler.domain.job import JobFunction, JobPriority, check_count, check_kind
from pg_scheduler.domain.schedule import parse_timezone, trigger_for
from pg_scheduler.domain.tasks import catalogue, check_function, module_name, qualified_name
from pg_scheduler.domain.triggers import Trigger
from pg_scheduler.errors import ConfigurationError

__all__ = ["PeriodicJobConfig", "advisory_lock_key", "periodic", "periodic_catalogue"]

F = TypeVar("F", bound=JobFunction)


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


class PeriodicCatalogue:
    """All periodic functions of the process, by dedup key; every Scheduler reads it."""

    def __init__(self) -> None:
        self._configs: dict[str, PeriodicJobConfig] = {}
        self.version = 0

    def add(self, config: PeriodicJobConfig) -> None:
        """Make a config known; the same function may come again, another one may not take its key.

        Raises:
            ValueError: Another function has the key.
        """
        known = self._configs.get(config.dedup_key)
        if known and known.function != config.function:
            raise ValueError(
                f"dedup_key {config.dedup_key!r} is {known.function}'s and cannot be {config.function}'s too"
            )
        # Periodic functions share a default name when their modules differ: it is a loose one. A name that
        # was given is exact, and refused if it is another function's.
        catalogue.register(
            config.func,
            aliases=[config.job_name] if config.named else [],
            loose=[] if config.named else [config.job_name],
        )
        self._configs[config.dedup_key] = config
        self.version += 1

    def configs(self) -> dict[str, PeriodicJobConfig]:
        """A copy, by dedup key."""
        return dict(self._configs)

    def clear(self) -> None:
        """Forget everything. For tests."""
        self._configs.clear()
        self.version += 1


periodic_catalogue: Final = PeriodicCatalogue()


def periodic(  # noqa: PLR0917 - the signature is the contract with users of 0.2.x
    every: timedelta | None = None,
    cron: str | None = None,
    timezone: tzinfo | str | None = None,
    use_advisory_lock: bool = False,
    priority: JobPriority = JobPriority.NORMAL,
    max_retries: int = 0,
    job_name: str | None = None,
    dedup_key: str | None = None,
    enabled: bool = True,
) -> Callable[[F], F]:
    """Run a coroutine function again and again, once per window across all nodes.

    Args:
        every: The time between two windows. The rhythm is anchored in the database: restarts do not
            move it, and it does not drift.
        cron: Five fields (minute, hour, day of month, month, day of week), or six with seconds last.
        timezone: The zone of ``cron``, an IANA name or a ZoneInfo; UTC when None. Clock changes are
            treated as Debian's cron treats them.
        use_advisory_lock: Hold a PostgreSQL advisory lock on one connection through the whole run; a run
            that finds it taken is skipped.
        priority: The priority of its jobs.
        max_retries: Tries after the first one, for each window.
        job_name: The name of its jobs; ``periodic_<function name>`` when None.
        dedup_key: The identity of the schedule; derived from module, function and schedule when None.
        enabled: False to begin switched off. What ``enable_periodic_job()`` and
            ``disable_periodic_job()`` say later is remembered in the database.

    Returns:
        A decorator that gives the function back as it is.

    Raises:
        TypeError: The function is no async function.
        ValueError: Anything else that is wrong, with the value.

    Example:
        >>> from datetime import timedelta
        >>> from pg_scheduler import periodic
        >>> @periodic(every=timedelta(minutes=15))
        ... async def sweep_uploads() -> None: ...
        >>> @periodic(cron="0 3 * * SUN", timezone="America/New_York", max_retries=3)
        ... async def weekly_report() -> None: ...
    """
    for name, value, most in (("job_name", job_name, 1000), ("dedup_key", dedup_key, 200)):
        if value is not None:
            _check_text(name, value, most=most)
    # Mistakes of the schedule are reported where it is written down, before a function is at hand.
    try:
        trigger_for(every, cron, timezone)
    except TypeError as error:
        raise ConfigurationError(str(error)) from error

    def decorate(func: F) -> F:
        periodic_catalogue.add(
            PeriodicJobConfig(
                func=func,
                interval=every,
                cron=cron,
                timezone=timezone,
                use_advisory_lock=use_advisory_lock,
                priority=priority,
                max_retries=max_retries,
                job_name=job_name or "",
                dedup_key=dedup_key or "",
                enabled=enabled,
            )
        )
        return func

    return decorate


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
