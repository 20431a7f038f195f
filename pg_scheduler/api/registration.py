"""Register functions with one Scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar, overload

from pg_scheduler.api.base import SchedulerMethods
from pg_scheduler.api.tasks import Tasks
from pg_scheduler.jobs.limits import Limit, check_limits
from pg_scheduler.jobs.model import JobFunction, JobPriority
from pg_scheduler.jobs.naming import check_aliases
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.task import TaskOptions
from pg_scheduler.jobs.unique import Unique
from pg_scheduler.jobs.unset import UNSET, Unset

F = TypeVar("F", bound=JobFunction)


class RegistrationMethods(SchedulerMethods):
    """The members of `Scheduler` for functions."""

    @cached_property
    def tasks(self) -> Tasks:
        """The registered functions and the paused names; see `Tasks`."""
        return Tasks(self._parts)

    @overload
    def register(
        self,
        func: F,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        timeout: float | timedelta | Unset | None = UNSET,
        misfire_grace_time: int | Unset | None = UNSET,
        max_retries: int | Unset = UNSET,
        retry: RetryPolicy | None = None,
        priority: JobPriority | Unset = UNSET,
        executor: str | Unset = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        typed: bool | Unset = UNSET,
        metadata: Mapping[str, Any] | None = None,
        limits: Iterable[Limit] = (),
        unique: Unique | str | Unset | None = UNSET,
        on_failure: str | None = None,
    ) -> F: ...
    @overload
    def register(
        self,
        func: None = None,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        timeout: float | timedelta | Unset | None = UNSET,
        misfire_grace_time: int | Unset | None = UNSET,
        max_retries: int | Unset = UNSET,
        retry: RetryPolicy | None = None,
        priority: JobPriority | Unset = UNSET,
        executor: str | Unset = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        typed: bool | Unset = UNSET,
        metadata: Mapping[str, Any] | None = None,
        limits: Iterable[Limit] = (),
        unique: Unique | str | Unset | None = UNSET,
        on_failure: str | None = None,
    ) -> Callable[[F], F]: ...
    def register(
        self,
        func: F | None = None,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        timeout: float | timedelta | Unset | None = UNSET,
        misfire_grace_time: int | Unset | None = UNSET,
        max_retries: int | Unset = UNSET,
        retry: RetryPolicy | None = None,
        priority: JobPriority | Unset = UNSET,
        executor: str | Unset = UNSET,
        keep_result: timedelta | Unset | None = UNSET,
        typed: bool | Unset = UNSET,
        metadata: Mapping[str, Any] | None = None,
        limits: Iterable[Limit] = (),
        unique: Unique | str | Unset | None = UNSET,
        on_failure: str | None = None,
    ) -> Any:
        """Register a function with this Scheduler, also while it runs; usable as a decorator.

        Registering a function again adds names and changes the options that are given.

        Args:
            func: The function; omitted when used as a decorator with arguments.
            name: The name of its jobs; ``module.qualname`` when None.
            aliases: Former names whose pending jobs run too.
            timeout: Default time limit of one attempt, as in ``@job()``.
            misfire_grace_time: Default misfire grace time, as in ``@job()``.
            max_retries: Default number of retries, as in ``@job()``.
            retry: The delays before its retries, as in ``@job()``.
            priority: Default priority, as in ``@job()``.
            executor: Where its jobs run, as in ``@job()``.
            keep_result: How long results are kept, as in ``@job()``.
            typed: Whether pydantic validates its arguments, as in ``@job()``.
            metadata: Metadata of its jobs, as in ``@job()``.
            limits: How many attempts may run or start, as in ``@job()``.
            unique: Which of its jobs exclude one another, as in ``@job()``.
            on_failure: The task to enqueue when a job has failed finally, as in ``@job()``.

        Returns:
            The unchanged function, or a decorator that returns it.

        Raises:
            TypeError: ``func`` is not a function, or the executor cannot run it.
            ConfigurationError: An option is out of range; a ValueError.
            NameConflictError: Another function has one of the names; a ValueError.

        Example::

            @scheduler.register(name="mail.send", aliases=["send_mail"], max_retries=5)
            async def send(to: str) -> None: ...
        """
        former_names = check_aliases(aliases)
        options = TaskOptions(
            timeout=timeout,
            misfire_grace_time=misfire_grace_time,
            max_retries=max_retries,
            retry=retry,
            priority=priority,
            executor=executor,
            keep_result=keep_result,
            typed=typed,
            metadata=metadata,
            limits=check_limits(limits),
            unique=unique,
            on_failure=on_failure,
        )

        def add(function: F) -> F:
            self._parts.tasks.register(function, name=name, aliases=former_names, options=options)
            if self._parts.runtime:
                self._parts.runtime.node.signals.due()
            return function

        return add if func is None else add(func)
