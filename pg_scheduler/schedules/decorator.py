"""The decorator ``@periodic``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta, tzinfo
from typing import TypeVar

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.model import JobFunction, JobPriority
from pg_scheduler.schedules.catalogue import periodic_catalogue
from pg_scheduler.schedules.model import PeriodicJobConfig, _check_text
from pg_scheduler.schedules.timing import trigger_for

__all__ = ["periodic"]

F = TypeVar("F", bound=JobFunction)


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
