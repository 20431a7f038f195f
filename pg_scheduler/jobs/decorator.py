"""The decorator ``@job``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TypeVar

from pg_scheduler.jobs.model import UNSET, JobFunction, Unset
from pg_scheduler.jobs.naming import _check_aliases
from pg_scheduler.jobs.registry import catalogue

__all__ = ["job"]

F = TypeVar("F", bound=JobFunction)


def job(
    name: str | None = None,
    aliases: Iterable[str] = (),
    *,
    timeout: float | timedelta | Unset | None = UNSET,
    misfire_grace_time: int | Unset | None = UNSET,
) -> Callable[[F], F]:
    """Make a coroutine function known to every Scheduler of the process, wherever it was scheduled.

    Args:
        name: The name its jobs get in the table; ``module.qualname`` when None. With a name of your
            own, moving the function to another module changes nothing for the jobs that wait.
        aliases: Names it had before, whose waiting jobs shall still run.
        timeout: Seconds (or a timedelta) one try of its jobs may take unless ``schedule()`` says
            otherwise; None for ever; an hour when left out.
        misfire_grace_time: Seconds of grace for its jobs unless ``schedule()`` says otherwise; None for
            ever; the scheduler's when left out.

    Returns:
        A decorator that gives the function back as it is.

    Raises:
        TypeError: The function is no coroutine function.
        NameConflictError: Another function has that name; a ValueError.

    Example:
        >>> from pg_scheduler import job
        >>> @job(name="mail.welcome", aliases=["send_welcome"])
        ... async def send_welcome_mail(to: str) -> None: ...
    """
    if callable(name):
        raise TypeError("@job is called: write @job() above the function, not @job")
    old_names = _check_aliases(aliases)

    def decorate(func: F) -> F:
        catalogue.register(
            func, name=name, aliases=old_names, timeout=timeout, misfire_grace_time=misfire_grace_time
        )
        return func

    return decorate
