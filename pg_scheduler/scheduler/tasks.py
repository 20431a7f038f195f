"""The tasks of a Scheduler: its registered functions, and the paused names."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, TypeVar, overload

from pg_scheduler.events import TaskPaused, TaskResumed
from pg_scheduler.jobs.limits import Limit, check_limits
from pg_scheduler.jobs.model import DEFAULT_TIMEOUT, UNSET, JobFunction, JobPriority, Unset
from pg_scheduler.jobs.naming import check_aliases, check_name
from pg_scheduler.jobs.pause import Pause, TaskInfo
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.shares import Share
from pg_scheduler.jobs.task import Task, TaskOptions
from pg_scheduler.jobs.unique import Unique
from pg_scheduler.jobs.validation import MAX_ID_BYTES, check_execution_time, check_text
from pg_scheduler.scheduler.parts import Parts, SchedulerMethods

F = TypeVar("F", bound=JobFunction)

OF_PAUSE: Final = ("paused_at", "paused_until", "note", "actor")
"""The fields of a pause that a ``TaskInfo`` has too."""


class Tasks:
    """The tasks of a Scheduler, as ``scheduler.tasks``. The Scheduler need not be started.

    A pause is stored in the database. It applies to all nodes within a second, and to those that start later.
    The jobs of a paused task wait, and expire by their misfire grace time. Running ones continue.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def pause(self, name: str, *, until: datetime | None = None, note: str | None = None) -> bool:
        """Stop starting the jobs of a task, under all of its names, on all nodes within a second.

        Args:
            name: The name of the task, or an alias. It need not be registered in this process.
            until: When the pause ends by itself, timezone-aware, by the clock of the database; None if it
                lasts until ``resume()``.
            note: Why, for people.

        Returns:
            False if nothing changed: it was paused until the same time with the same note.

        Raises:
            TypeError: A value has the wrong type.
            ValueError: ``name`` is empty or has more than 2,000 bytes, or ``until`` is naive or has passed.

        Example::

            await scheduler.tasks.pause("mail.send", note="the mail server is down")
        """
        task = self._parts.tasks.resolve(_check_name(name))
        name = name if task is None else task.name
        if note is not None:
            check_text("note", note)
        if until is not None:
            until = check_execution_time(until, name="until")
            now = await self._parts.store.jobs.clock()
            if until <= now:
                raise ValueError(f"until {until.isoformat()} has passed; it must be after {now.isoformat()}")
        actor = self._parts.actor
        changed = await self._parts.store.pauses.pause(name, until, note, actor)
        if changed:
            await self._parts.announce_tasks()
            self._parts.events.publish(TaskPaused(name, paused_until=until, note=note, actor=actor))
        return changed

    async def resume(self, name: str) -> bool:
        """Start the jobs of a paused task again, on all nodes within a second.

        Args:
            name: The name of the task, or an alias.

        Returns:
            False if it was not paused.

        Raises:
            TypeError: ``name`` is not a str.
            ValueError: ``name`` is empty or has more than 2,000 bytes.
        """
        task = self._parts.tasks.resolve(_check_name(name))
        names = {name} if task is None else {name, *self._parts.tasks.names_of(task)}
        changed = await self._parts.store.pauses.resume(names)
        if changed:
            await self._parts.announce_tasks()
            self._parts.events.publish(
                TaskResumed(name if task is None else task.name, actor=self._parts.actor)
            )
        return changed

    async def list(self) -> builtins.list[TaskInfo]:
        """Return the registered tasks and the paused names, in the order of the names."""
        pauses = [pause for pause in await self._parts.store.pauses.paused() if not pause.is_over]
        tasks = {task.identity: task for task in self._parts.tasks.tasks()}
        paused = {task.identity: each for each in pauses if (task := self._parts.tasks.resolve(each.name))}
        found = [self._info(task.name, task, paused.get(identity)) for identity, task in tasks.items()]
        found += [
            self._info(each.name, None, each) for each in pauses if not self._parts.tasks.resolve(each.name)
        ]
        return sorted(found, key=lambda info: info.name)

    def _info(self, name: str, task: Task | None, pause: Pause | None) -> TaskInfo:
        about: dict[str, Any] = {} if pause is None else {each: getattr(pause, each) for each in OF_PAUSE}
        if task is None:
            return TaskInfo(
                name,
                (),
                False,
                DEFAULT_TIMEOUT,
                self._parts.config.misfire_grace_time,
                0,
                JobPriority.NORMAL,
                **about,
            )
        grace, keep = task.misfire_grace_time, task.keep_result
        return TaskInfo(
            name,
            tuple(sorted(self._parts.tasks.names_of(task) - {name})),
            True,
            None if task.timeout is None else timedelta(seconds=task.timeout),
            self._parts.config.misfire_grace_time if isinstance(grace, Unset) else grace,
            task.max_retries,
            task.priority,
            task.limits,
            retry=task.retry,
            executor=task.executor,
            typed=task.typed is not None,
            keep_result=None if keep is None else timedelta(seconds=keep),
            metadata=deepcopy(dict(task.metadata)),
            unique=task.unique,
            on_failure=task.on_failure,
            **about,
        )


class TaskMethods(SchedulerMethods):
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
        share: Share | None = None,
        unique: Unique | str | Unset | None = UNSET,
        on_failure: str | None = None,
        version: int | Unset = UNSET,
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
        share: Share | None = None,
        unique: Unique | str | Unset | None = UNSET,
        on_failure: str | None = None,
        version: int | Unset = UNSET,
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
        share: Share | None = None,
        unique: Unique | str | Unset | None = UNSET,
        on_failure: str | None = None,
        version: int | Unset = UNSET,
    ) -> Any:
        """Register a function with this Scheduler, also while it runs; usable as a decorator.

        Registering a function again adds names and changes the options that are given.

        Args:
            func: The function; omitted when used as a decorator with arguments.
            name: The name of its jobs; ``module.qualname`` when None.
            aliases: Former names whose pending jobs run too.
            timeout: Default time limit of one attempt in seconds or as a timedelta, as in ``@job()``.
            misfire_grace_time: Default misfire grace time in seconds, as in ``@job()``.
            max_retries: Default number of retries, as in ``@job()``.
            retry: The delays before its retries, as in ``@job()``.
            priority: Default priority, as in ``@job()``.
            executor: Where its jobs run, as in ``@job()``.
            keep_result: How long results are kept, as in ``@job()``.
            typed: Whether pydantic validates its arguments, as in ``@job()``.
            metadata: Metadata of its jobs, as in ``@job()``.
            limits: How many attempts may run or start, as in ``@job()``.
            share: Whose tenants take turns, as in ``@job()``.
            unique: Which of its jobs exclude one another, as in ``@job()``.
            on_failure: The task to enqueue when a job has failed finally, as in ``@job()``.
            version: The version of the code, for durable steps, as in ``@job()``.

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
            share=share,
            unique=unique,
            on_failure=on_failure,
            version=version,
        )

        def add(function: F) -> F:
            self._parts.tasks.register(function, name=name, aliases=former_names, options=options)
            if self._parts.runtime is not None:  # jobs and fire times of this name may be due
                self._parts.runtime.node.signals.due()
                self._parts.runtime.node.signals.schedules_changed()
            return function

        return add if func is None else add(func)


def _check_name(name: str) -> str:
    return check_text("the name of a task", check_name(name), max_bytes=MAX_ID_BYTES)
