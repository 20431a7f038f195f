"""Durable steps, as a job sees them: what it stores while it runs, so that later attempts continue there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Suspension:
    """Why an attempt ends before its function: the job waits, and needs no worker until then."""

    kind: str
    """The kind of the step that waits."""
    name: str
    """Its name."""
    until: datetime
    """When the job is due at the latest."""


class Steps(ABC):
    """The durable steps of a running job, as ``current_job().steps``.

    A step has a name that is unique in its job. Once it is stored, later attempts of the job skip it and get
    its stored value. Code outside of steps runs again in each attempt.
    """

    @property
    @abstractmethod
    def version(self) -> int:
        """The ``version=`` that the task had when the job stored its first step; before it, that of now.

        Example:
            >>> from pg_scheduler import current_job, job
            >>> async def check_stock(order: int) -> None: ...
            >>> @job(version=2)
            ... async def ship(order: int) -> None:
            ...     steps = current_job().steps
            ...     if steps.version >= 2:  # jobs of the former version continue without this step
            ...         await steps.run("check", check_stock, order)
        """

    @abstractmethod
    async def run(
        self, name: str, func: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call a function and store its value; return the stored value if an earlier attempt has done so.

        The function is called at least once until its value is stored, and never afterwards. A function that
        raises an exception stores nothing. If the database is unavailable, the value is kept in memory and
        written as soon as possible.

        Args:
            name: The name of the step, of 1 to 200 bytes; in a loop, for example ``f"page-{number}"``.
            func: A coroutine function.
            args: Its positional arguments, which are not stored.
            kwargs: Its keyword arguments, which are not stored.

        Returns:
            The value as JSON carries it, also the first time. With a return annotation, pydantic converts it
            to JSON and back.

        Raises:
            TypeError: ``func`` is not a coroutine function, or ``name`` is not a str.
            ValueError: ``name`` is empty or too long.
            DuplicateStepError: This attempt has used the name before, or another kind of step has.
            JobLostError: The attempt does not hold its job any more. Nothing was stored.
            PayloadError: JSON cannot represent the value, or it does not fit the annotation, is longer than
                ``max_result_bytes``, or exceeds the 1,000 steps or 64 MiB of one job.
            Abort: The stored value does not fit the annotation any more, so the job fails.
            DatabaseUnavailableError: The database was unavailable until the lease was about to expire.

        Example:
            >>> from pg_scheduler import current_job
            >>> async def fetch_quote(order: int) -> float:
            ...     return 9.5 * order
            >>> async def place(order: int) -> None:
            ...     quote = await current_job().steps.run("quote", fetch_quote, order)
        """

    @abstractmethod
    async def sleep(
        self, name: str, delay: float | timedelta | None = None, *, until: datetime | None = None
    ) -> None:
        """Continue later, in another attempt. Meanwhile the job is pending, and uses no worker and no memory.

        The attempt ends as at a shutdown, as soon as its other steps are stored: ``finally`` blocks run, and
        what they raise has no effect. It uses no retry. A sleep that is over returns at once.

        Args:
            name: The name of the step, as in ``run()``.
            delay: Seconds or a timedelta, at most 100 years. It begins when the first attempt comes here.
            until: Instead of ``delay``, the end of the sleep, timezone-aware. Both are measured by the clock
                of the database.

        Raises:
            TypeError: Not exactly one of ``delay`` and ``until`` is given, or a value has the wrong type.
            ValueError: A value is out of range, or ``until`` has no time zone.
            DuplicateStepError: As in ``run()``.
            JobLostError: As in ``run()``.
            PayloadError: The job has 1,000 steps.
            RuntimeError: The call comes from the function of a step.
            DatabaseUnavailableError: As in ``run()``.

        Example:
            >>> from datetime import timedelta
            >>> from pg_scheduler import current_job
            >>> async def remind(user: int) -> None:
            ...     await current_job().steps.sleep("trial", timedelta(days=14))
        """
