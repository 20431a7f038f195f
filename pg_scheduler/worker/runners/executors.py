"""The executors of a Scheduler: those that it was given, and the default ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Self

from pg_scheduler.base.foreign import class_name, current_task, ends_task
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.call import JobExecutor
from pg_scheduler.jobs.executors import ASYNC, PROCESS, THREAD
from pg_scheduler.jobs.validation import check_kind
from pg_scheduler.worker.runners.process import ProcessExecutor
from pg_scheduler.worker.runners.thread import ThreadExecutor

STOP_MARGIN_S: Final = 0.5
"""Seconds after the grace for an executor that ends by force what has not ended."""


def check_executors(executors: Mapping[str, JobExecutor] | None) -> dict[str, JobExecutor]:
    """Return the executors by name, with the default ones for threads and processes unless they are replaced.

    Raises:
        TypeError: They are not a mapping.
        ConfigurationError: A name is not a str or is reserved, or an executor is no JobExecutor.
    """
    executors = {} if executors is None else check_kind("executors", executors, Mapping)  # type: ignore[type-abstract]
    for name, executor in executors.items():
        if not isinstance(name, str) or not name:  # type: ignore[redundant-expr] # calls are not checked
            raise ConfigurationError(f"executors must have names, str that are not empty, not {name!r}")
        if name == ASYNC:
            raise ConfigurationError("executors cannot replace 'async', the event loop; use another name")
        if not isinstance(executor, JobExecutor):
            raise ConfigurationError(
                f"executors[{name!r}] must be a JobExecutor, not {executor!r}; "
                "derive its class from pg_scheduler.JobExecutor"
            )
    return {THREAD: ThreadExecutor(), PROCESS: ProcessExecutor(), **executors}


def fault_of_chunks(name: str, executor: JobExecutor) -> ConfigurationError | None:
    """Return why an executor cannot call the functions of tasks with ``chunk=``; None if it can."""
    if isinstance(executor, ThreadExecutor):
        return None
    if isinstance(executor, ProcessExecutor):
        return ConfigurationError(
            f"the executor {name!r} runs jobs in processes, but the function of a task with chunk= gives "
            "each job its outcome; name an executor for threads, or omit executor="
        )
    return ConfigurationError(
        f"the executor {name!r} is a {class_name(executor)}, which gets one job with each call, but the "
        "function of a task with chunk= is called for many; name a ThreadExecutor, or omit executor="
    )


class Place:
    """A place in an executor, as a block; it waits for the place at its begin.

    ``room`` has as many places as the executor may run jobs at once; None for as many as there are slots.
    """

    def __init__(self, room: asyncio.Semaphore | None) -> None:
        self._room = room

    async def __aenter__(self) -> Self:
        if self._room is not None:
            await self._room.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let another job have the place, also before the end of the block."""
        if self._room is not None:
            self._room.release()
            self._room = None


class LazyExecutor:
    """An executor of a worker, started by its first job."""

    def __init__(self, name: str, executor: JobExecutor) -> None:
        self._name = name
        self.executor = executor
        limit = executor.capacity
        self._room = None if limit is None else asyncio.Semaphore(limit)
        self._is_started = False
        self._starting = asyncio.Lock()

    def place(self) -> Place:
        """Return a place for one job, as a block."""
        return Place(self._room)

    async def start(self) -> None:
        """Start the executor, unless it was started."""
        async with self._starting:
            if not self._is_started:
                await self.executor.start()
                self._is_started = True

    async def stop(self, grace: float) -> None:
        """Stop the executor if it was started, within ``grace`` seconds."""
        if not self._is_started:
            return
        self._is_started = False
        try:
            async with asyncio.timeout(grace + STOP_MARGIN_S):
                await self.executor.stop(grace)
        except BaseException as error:  # user code
            if ends_task(error, current_task()):
                raise
            logger.exception("executor %r could not be stopped", self._name, extra=record_fields())
