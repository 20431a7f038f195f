"""The Scheduler of ``manage.py pg_scheduler worker``, as a target of the command ``worker``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from pg_scheduler.base.settings import VacuumConfig, VacuumPolicy
from pg_scheduler.inspect.store.connections import open_pool
from pg_scheduler.integrations.django.address import dsn_of
from pg_scheduler.integrations.django.backend import Backend, all_backends, neighbours_of
from pg_scheduler.integrations.django.compat import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from pg_scheduler.integrations.django.connections import close_connections
from pg_scheduler.integrations.django.extensions import executors_of
from pg_scheduler.integrations.django.runner import declare_queues, declared_tasks, paths_in
from pg_scheduler.integrations.django.task import pattern_of
from pg_scheduler.scheduler import Scheduler

TARGET: Final = f"{__name__}:scheduler"

APPLICATION_NAME: Final = "pg_scheduler worker"
POOL_SIZE: Final = 10
"""The maximum number of connections of the worker itself, besides those of the jobs."""

DAY: Final = timedelta(days=1)


@dataclass(slots=True)
class Selection:
    """What the worker of this process runs.

    Attributes:
        backend: The alias of the backend.
        queues: The queues; empty for those of the backend.
        excluded: Queues that are left to other workers.
    """

    backend: str = DEFAULT_TASK_BACKEND_ALIAS
    queues: Sequence[str] = ()
    excluded: Sequence[str] = ()


selection: Final = Selection()


@asynccontextmanager
async def scheduler() -> AsyncIterator[Scheduler]:
    """Yield the Scheduler of the selected backend, which is not started.

    Raises:
        ConnectionRejectedError: The server rejects the role, its password or the database.
        DatabaseUnavailableError: The server is unavailable.
        ImproperlyConfigured: The middleware, an executor or the codec is invalid.
    """
    backend: Backend = task_backends[selection.backend]
    queues = {*backend.queues, *selection.queues}
    # The name of a job contains its queue, but not its backend. So queues that only other backends have are
    # left to the workers of these backends, which have the right codec and middleware.
    other_queues = {queue for neighbour in neighbours_of(backend) for queue in neighbour.queues} - queues
    # A job of a selected queue may have a task that was declared with another queue.
    declare_queues({*(selection.queues or backend.queues), *other_queues})
    settings = backend.settings
    async with open_pool(
        dsn_of(settings.database, settings.dsn),
        application_name=APPLICATION_NAME,
        max_size=POOL_SIZE,
        runs_worker=True,
    ) as pool:
        yield Scheduler(
            pool,
            schema=settings.schema,
            only=_patterns_of(selection.queues),
            skip=_patterns_of(sorted({*selection.excluded, *other_queues})),
            vacuum_config=_retention(settings.database),
            executors=executors_of(selection.backend, settings),
            middleware=[partial(close_connections, selection.backend), *backend.middleware],
            codec=backend.codec,
            migrations="verify",
        )


def _patterns_of(queues: Sequence[str]) -> list[str]:
    """Return patterns for the names of the jobs in queues.

    A name contains its queue, such as ``shop.tasks.send@mail``, or is only a path, whose queue is that of the
    task.
    """
    return [*(pattern_of(queue) for queue in queues), *paths_in(queues)]


def _retention(database: str) -> VacuumConfig:
    """Return the default retention, with jobs kept at least as long as the results of all tasks."""
    lengths: list[Any] = [
        backend.settings.keep_result for backend in all_backends() if backend.settings.database == database
    ]
    lengths += [getattr(task, "keep_result", None) for task in declared_tasks()]
    # The results of other tasks are not kept, or as long as their backend sets.
    result_lengths = [length for length in lengths if isinstance(length, timedelta)]
    longest = max(result_lengths, default=timedelta(0))
    config = VacuumConfig()
    # Each end of a job has a policy, in days.
    policies: dict[str, Any] = {
        name: VacuumPolicy.after_days(max(getattr(config, name).days, longest / DAY))
        for name in ("completed", "failed", "cancelled", "expired")
    }
    return VacuumConfig(**policies)
