"""The decorator ``@periodic`` registers a schedule."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from typing import Any, TypeVar

from pg_scheduler.base.public import public
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.model import UNSET, JobPriority, Unset, stand_in_of
from pg_scheduler.schedules.declared import (
    MAX_DEDUP_KEY_LENGTH,
    MAX_JOB_NAME_LENGTH,
    PeriodicJobConfig,
    check_label,
    periodic_catalogue,
    trigger_for,
)
from pg_scheduler.schedules.policies import LATEST, CatchUp, Overlap
from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.cron import warn_of_seconds

F = TypeVar("F")  # a function or a task of Django


def periodic(  # noqa: PLR0917 - the signature is the contract with users of 0.2.x
    every: timedelta | None = None,
    cron: str | None = None,
    timezone: tzinfo | str | None = None,
    use_advisory_lock: bool = False,
    priority: JobPriority | Unset = UNSET,
    max_retries: int | Unset = UNSET,
    job_name: str | None = None,
    dedup_key: str | None = None,
    enabled: bool = True,
    *,
    trigger: Trigger | None = None,
    overlap: Overlap = Overlap.ALLOW,
    catch_up: CatchUp = LATEST,
    jitter: float | timedelta = 0,
    start: datetime | None = None,
    end: datetime | None = None,
    pause_after_failures: int | None = None,
) -> Callable[[F], F]:
    """Run a function periodically: each fire time is enqueued exactly once across all nodes.

    Plain functions run in threads, as those with `@job()`. It may be above the ``@task`` of Django, too.

    Args:
        every: The interval between two fire times. It is anchored in the database, so restarts and late runs
            do not shift it.
        cron: Five fields (minute, hour, day of month, month, day of week), or six with the seconds last.
        timezone: The time zone of ``cron``, an IANA name or a ZoneInfo; UTC when None. Clock changes follow
            the rules of Debian's cron.
        use_advisory_lock: Hold a PostgreSQL advisory lock during each attempt. An attempt that finds the lock
            taken is skipped.
        priority: The priority of the jobs. Default: that of ``@job``, else NORMAL.
        max_retries: Retries of each job after a failed first attempt. Default: that of ``@job``, else 0.
        job_name: The name of the task, and so of its jobs, unless ``@job`` gives one. ``module.qualname`` if
            None; their rows then have ``periodic_<function name>`` as ``job_name``, as in 0.2.
        dedup_key: The identity of the schedule; derived from module, function and schedule when None.
        enabled: Whether the schedule is enabled until ``enable_periodic_job()`` or
            ``disable_periodic_job()`` changes it in the database.
        trigger: Any trigger, instead of ``every`` and ``cron``.
        overlap: The behaviour at a fire time while the last job is unfinished; see Overlap.
        catch_up: The jobs for missed fire times; see CatchUp.
        jitter: Each job is due up to this much later than its fire time; seconds or a timedelta.
        start: No fire time precedes this timezone-aware time; intervals are counted from it.
        end: No fire time follows this timezone-aware time. A time after the year 9000 counts as None.
        pause_after_failures: The number of final failures in a row that pauses the schedule; None for never.

    Returns:
        A decorator that returns the unchanged function.

    Raises:
        TypeError: The decorated object is not a function.
        ValueError: The function requires arguments, another function has the ``dedup_key``, the function
            itself has it with other options, or a parameter is invalid; the message contains its value.
        NameConflictError: Another function has the ``job_name``; or the same function with other captured
            values, or the same method of another object, has a schedule under another ``dedup_key``. Their
            jobs would have the same name. A ValueError.

    Example:
        >>> from datetime import timedelta
        >>> from pg_scheduler import periodic
        >>> @periodic(every=timedelta(minutes=15))
        ... async def sweep_uploads() -> None: ...
        >>> @periodic(cron="0 3 * * SUN", timezone="America/New_York", max_retries=3)
        ... async def weekly_report() -> None: ...
    """
    if job_name is not None:
        check_label("job_name", job_name, MAX_JOB_NAME_LENGTH)
    if dedup_key is not None:
        check_label("dedup_key", dedup_key, MAX_DEDUP_KEY_LENGTH)
    # Without parentheses, the decorator gets the function as its first argument.
    if callable(_function_of(every)):
        raise ConfigurationError(
            f"@periodic has no schedule for {every!r}; write @periodic(every=timedelta(minutes=15)) or "
            '@periodic(cron="0 3 * * *")'
        )
    # The trigger is checked here, so that the traceback ends at the line of the decorator.
    try:
        warn_of_seconds(trigger_for(every, cron, timezone, trigger))
    except TypeError as error:
        raise ConfigurationError(str(error)) from error

    # The other options of a job have no parameter here, so they are always those of the task.
    options = {"priority": priority, "max_retries": max_retries}
    own_options: dict[str, Any] = {name: value for name, value in options.items() if value is not UNSET}

    def decorate(func: F) -> F:
        """Register the schedule of a function, and return the function."""
        periodic_catalogue.add(
            PeriodicJobConfig(
                func=_function_of(func),
                interval=every,
                cron=cron,
                timezone=timezone,
                use_advisory_lock=use_advisory_lock,
                **own_options,
                options_of_task=frozenset(options.keys() - own_options.keys()),
                job_name=job_name or "",
                dedup_key=dedup_key or "",
                enabled=enabled,
                trigger=trigger,  # type: ignore[arg-type] # None until the config computes it
                overlap=overlap,
                catch_up=catch_up,
                jitter=jitter,
                start=start,
                end=end,
                pause_after_failures=pause_after_failures,
            )
        )
        return func

    return decorate


public(periodic)


def _function_of(target: Any) -> Any:
    """Return the function of a task of Django; return anything else unchanged."""
    stand_in = stand_in_of(target)
    if stand_in is not None:
        return stand_in.func
    # A task of another backend of Django cannot be called, but has its function as an attribute.
    return target if callable(target) else getattr(target, "func", target)
