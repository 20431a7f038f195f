"""The tasks of a Scheduler: its registered functions, and the paused names."""

from __future__ import annotations

import builtins
from collections.abc import Collection
from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any, Final

from pg_scheduler.admission.pauses import Renewal
from pg_scheduler.events import TaskPaused, TaskResumed
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.model import DEFAULT_TIMEOUT, JobPriority, Unset
from pg_scheduler.jobs.naming import check_name
from pg_scheduler.jobs.pause import Pause, TaskInfo, linked_names
from pg_scheduler.jobs.task import Task
from pg_scheduler.jobs.validation import MAX_ID_BYTES, check_execution_time, check_text, duration_from
from pg_scheduler.scheduler.parts import Parts

OF_PAUSE: Final = ("paused_at", "paused_until", "note", "actor", "suspends_expiry")
"""The fields of a pause that a ``TaskInfo`` has too."""


class Tasks:
    """The tasks of a Scheduler, as ``scheduler.tasks``. The Scheduler need not be started.

    A pause is stored in the database. It applies to all nodes within a second, and to nodes that start later.
    The jobs of a paused task wait. They expire when their misfire grace time has passed, unless the task was
    paused with ``suspend_expiry=True``. Jobs that run continue.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def pause(
        self,
        name: str,
        *,
        until: datetime | None = None,
        note: str | None = None,
        suspend_expiry: bool = False,
    ) -> bool:
        """Stop starting the jobs of a task, under all of its names, on all nodes within a second.

        The name, the aliases and the default name ``module.qualname`` stop on every node, also on one whose
        code has the task under one of these names, as during a deployment and after a rollback. The bare name
        of the function stops where the task is registered.

        Args:
            name: The name of the task, or an alias. It need not be registered in this process.
            until: When the pause ends by itself, timezone-aware, by the clock of the database; None if it
                lasts until ``resume()``.
            note: The reason, for people.
            suspend_expiry: Whether the jobs of the task do not expire during the pause; by default they do.
                When the pause ends, each job that is due gets its whole misfire grace time again, from that
                moment. Workers of an earlier version expire the jobs nevertheless.

        Returns:
            True if the task is paused now. False if nothing changed, because the task was paused already with
            the same ``until``, ``note`` and ``suspend_expiry``.

        Raises:
            TypeError: A value has the wrong type.
            ValueError: ``name`` is empty or has more than 2,000 bytes, or ``until`` is naive or has passed.

        Example::

            await scheduler.tasks.pause("mail.send", note="the mail server is down", suspend_expiry=True)
        """
        return await pause_task(self._parts, name, until=until, note=note, suspend_expiry=suspend_expiry)

    async def resume(self, name: str) -> bool:
        """Start the jobs of a paused task again, on all nodes within a second.

        If the pause has suspended expiry, the jobs that are due first get their whole misfire grace time
        again. The call waits for that, and up to five seconds for jobs that other sessions have locked or
        whose change a trigger of yours refuses; these keep their former time. If the call is cut, by a
        cancellation or because the database is unavailable, the workers do the rest.

        Args:
            name: The name of the task, or an alias. It need not be registered in this process: the pause has
                the aliases.

        Returns:
            True if this call has resumed the task, or has done the rest of a call that was cut. False if the
            task was not paused.

        Raises:
            TypeError: ``name`` is not a str.
            ValueError: ``name`` is empty or has more than 2,000 bytes.
        """
        return await resume_task(self._parts, name)

    async def list(self) -> builtins.list[TaskInfo]:
        """Return the registered tasks and the paused names, in the order of the names."""
        pauses = [pause for pause in await self._parts.store.pauses.paused() if not pause.is_over]
        tasks = {task.identity: task for task in self._parts.tasks.tasks()}
        stopped_by = self._parts.tasks.stopped_by
        # By the identity of a task, which is the name under which its function is registered.
        pauses_by_task: dict[str, Pause] = {}
        for pause in pauses:
            for task in stopped_by([], pause.exact_names):
                pauses_by_task[task.identity] = pause
        # Several pauses may stop one task. The one that is shown is that whose name resolves to the task, not
        # one that merely has the task among its exact names. So it is set last.
        for pause in pauses:
            for task in stopped_by([pause.name], []):
                pauses_by_task[task.identity] = pause
        infos = [
            self._info(task.name, task, pauses_by_task.get(identity)) for identity, task in tasks.items()
        ]
        # Pauses of names under which no task is registered here.
        infos += [
            self._info(pause.name, None, pause)
            for pause in pauses
            if not stopped_by([pause.name], pause.exact_names)
        ]
        return sorted(infos, key=lambda info: info.name)

    def _info(self, name: str, task: Task | None, pause: Pause | None) -> TaskInfo:
        """Return a task for people; a paused name without a registered task has the default options."""
        pause_fields: dict[str, Any] = {}
        if pause is not None:
            pause_fields = {field: getattr(pause, field) for field in OF_PAUSE}
        if task is None:
            return TaskInfo(
                name,
                aliases=(),
                is_registered=False,
                timeout=DEFAULT_TIMEOUT,
                misfire_grace_time=self._parts.config.misfire_grace_time,
                max_retries=0,
                priority=JobPriority.NORMAL,
                **pause_fields,
            )
        grace, keep_s = task.misfire_grace_time, task.keep_result
        # A task without a grace time of its own has that of the Scheduler.
        if isinstance(grace, Unset):
            grace = self._parts.config.misfire_grace_time
        return TaskInfo(
            name,
            aliases=tuple(sorted(self._parts.tasks.names_of(task) - {name})),
            is_registered=True,
            timeout=None if task.timeout is None else duration_from(task.timeout),
            misfire_grace_time=grace,
            max_retries=task.max_retries,
            priority=task.priority,
            limits=task.limits,
            retry=task.retry,
            executor=task.executor,
            typed=task.typed is not None,
            keep_result=None if keep_s is None else timedelta(seconds=keep_s),
            deadline=None if task.deadline is None else timedelta(seconds=task.deadline),
            metadata=deepcopy(dict(task.metadata)),
            unique=task.unique,
            on_failure=task.on_failure,
            on_cancel=task.on_cancel,
            chunk=None if task.chunk is None else task.chunk.size,
            chunk_wait=None if task.chunk is None else timedelta(seconds=task.chunk.wait_s),
            **pause_fields,
        )


async def pause_task(
    parts: Parts,
    name: str,
    *,
    until: datetime | None = None,
    note: str | None = None,
    suspend_expiry: bool = False,
    seen_pauses: Collection[Pause] | None = None,
) -> bool:
    """Pause a task. See ``Tasks.pause()``.

    With ``seen_pauses``, which a person has seen, the pause that is stored under the name is compared while
    its row is locked. If it is none of them, nothing changes, and False is returned.
    """
    task = parts.tasks.resolve(_check_name(name))
    # Of a task that is not registered here, only the given name is known.
    names: set[str] = set()
    if task is not None:
        names = parts.tasks.names_of(task)
        name = task.name
    if note is not None:
        check_text("note", note)
    if until is not None:
        until = check_execution_time(until, name="until")
        now = await parts.store.statements.read_clock()
        if until <= now:
            raise ValueError(f"until {until.isoformat()} has passed; it must be after {now.isoformat()}")
    if not isinstance(suspend_expiry, bool):
        raise TypeError(
            f"suspend_expiry must be a bool, not {type(suspend_expiry).__name__}: {suspend_expiry!r}"
        )
    actor = parts.actor
    changed = await parts.store.pauses.pause(
        name,
        until,
        note,
        actor,
        suspends_expiry=suspend_expiry,
        exact_names=names,
        seen_pauses=seen_pauses,
    )
    if changed:
        parts.announce_tasks()
        parts.events.publish(TaskPaused(name, paused_until=until, note=note, actor=actor))
    return changed


async def resume_task(parts: Parts, name: str, *, seen_pauses: Collection[Pause] | None = None) -> bool:
    """Resume a task. See ``Tasks.resume()``.

    With ``seen_pauses``, which a person has seen, only those of them are ended that are unchanged. They are
    compared while their rows are locked.
    """
    task = parts.tasks.resolve(_check_name(name))
    names = {name} if task is None else {name, *parts.tasks.names_of(task)}
    # The names without the default name of its function, which may be that of another task in another
    # service. That task stays paused.
    declared_names = {name} if task is None else parts.tasks.declared_names_of(task)
    changed = await parts.store.pauses.resume(names, declared_names, seen_pauses=seen_pauses)
    parts.announce_tasks()
    renewals = await _renew(parts, names, declared_names)
    # An earlier call that was cut may have ended the pause, and left the renewal to this one.
    changed = changed or any(renewal.is_ended_here for renewal in renewals)
    # If another process has ended one of the pauses, it publishes the event.
    if changed and all(renewal.is_ended_here for renewal in renewals):
        parts.announce_tasks()
        parts.events.publish(TaskResumed(name if task is None else task.name, actor=parts.actor))
    return changed


async def _renew(parts: Parts, names: Collection[str], declared_names: Collection[str]) -> list[Renewal]:
    """Give jobs their misfire grace time again after pauses that suspended expiry, and end these pauses.

    These are the pauses of a task with any of these names. Returns what was done about each.
    """
    pauses = await parts.store.pauses.paused()
    all_names = linked_names(declared_names, pauses).union(names)
    ended_pauses = [
        pause for pause in pauses if pause.name in all_names and pause.has_ended and pause.suspends_expiry
    ]
    renewals = [Renewal(parts.store.pauses, pause, pause.all_names.union(names)) for pause in ended_pauses]
    for renewal in renewals:
        await renewal.run()
    return renewals


async def find_unregistered(parts: Parts) -> list[str]:
    """Return the names of pending jobs that are not registered here, and log a warning for each."""
    unregistered = sorted(
        name for name in await parts.store.jobs.waiting_names() if not parts.tasks.resolve(name)
    )
    for name in unregistered:
        # If several functions have a bare name, it leads to none of them.
        namesakes = sorted(task.name for task in parts.tasks.bearers(name).values())
        remedy = "start a worker that registers it"
        if namesakes:
            remedy = f"pass it to one of {', '.join(namesakes)} by aliases="
        logger.warning(
            "pending jobs reference the unregistered function %r; %s",
            name,
            remedy,
            extra=record_fields(job_name=name, worker_id=parts.life.worker_id),
        )
    return unregistered


def _check_name(name: str) -> str:
    """Return the name of a task; raise an error if it is empty, too long, or no str."""
    return check_text("the name of a task", check_name(name), max_bytes=MAX_ID_BYTES)
