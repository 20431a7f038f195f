"""The parts that all methods of a `Scheduler` share, with its facets and the modules of this room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.base.settings import SchedulerConfig
from pg_scheduler.database.author import Author, release_of
from pg_scheduler.errors import NotRunningError
from pg_scheduler.events import EventBus
from pg_scheduler.jobs.call import JobExecutor
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.middleware import Middleware, check_middleware
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.queue.enqueuer import Enqueuer
from pg_scheduler.queue.headers import Sender, SendingEnqueuer
from pg_scheduler.queue.outbox import Outbox
from pg_scheduler.queue.prepare import JobPreparer
from pg_scheduler.queue.result_waiters import ResultWaiters
from pg_scheduler.scheduler.lifecycle import Lifecycle
from pg_scheduler.scheduler.store import Store

if TYPE_CHECKING:
    from pg_scheduler.base.meter import Meter
    from pg_scheduler.scheduler.runtime import Runtime
    from pg_scheduler.schedules import declarations, job_builder
    from pg_scheduler.schedules import declared as declared_schedules
    from pg_scheduler.schedules.declarations import DeclaredSchedules
    from pg_scheduler.schedules.job_builder import JobBuilders
    from pg_scheduler.streams import readers
    from pg_scheduler.streams.readers import StreamReaders
    from pg_scheduler.worker.runners import executors as runner_executors
else:
    declarations = LazyModule("pg_scheduler.schedules.declarations")
    declared_schedules = LazyModule("pg_scheduler.schedules.declared")
    job_builder = LazyModule("pg_scheduler.schedules.job_builder")
    readers = LazyModule("pg_scheduler.streams.readers")
    runner_executors = LazyModule("pg_scheduler.worker.runners.executors")


@dataclass(eq=False, kw_only=True)
class Parts:
    """The parts of a Scheduler, which exist from its construction or their first use on.

    The parts of its worker are in ``runtime``, and exist only while it runs.
    """

    config: SchedulerConfig
    store: Store
    events: EventBus
    cluster_events: EventBus
    tasks: TaskRegistry
    outbox: Outbox
    preparer: JobPreparer
    enqueuer: Enqueuer | SendingEnqueuer
    """A `SendingEnqueuer`, which calls middleware, only if some has ``headers()`` or ``sending()``."""
    waiters: ResultWaiters
    codec: PayloadCodec | None
    retry_policy: RetryPolicy
    custom_executors: Mapping[str, JobExecutor] | None
    """Those of ``Scheduler(executors=)``, with the default ones; None if it has none."""
    meter: Meter | None
    life: Lifecycle
    middleware: tuple[Middleware, ...] = ()
    starts_draining: bool = False
    """Whether the worker starts without claiming jobs, until it is resumed."""

    @cached_property
    def declared(self) -> DeclaredSchedules:
        """The schedules of ``@periodic`` in this process."""
        catalogue = declared_schedules.periodic_catalogue
        return declarations.DeclaredSchedules(self.store, self.store.schedules, catalogue)

    @cached_property
    def job_builders(self) -> JobBuilders:
        """What makes the jobs of schedules."""
        grace = self.config.misfire_grace_time
        builders = job_builder.JobBuilders(self.tasks, misfire_grace_time=grace, codec=self.codec)
        if isinstance(self.enqueuer, SendingEnqueuer):
            builders.sender = self.enqueuer.sender
        return builders

    @cached_property
    def stream_readers(self) -> StreamReaders:
        """What waits for the values and streams that jobs publish."""
        return readers.StreamReaders(self.store.streams, self.cluster_events, self.codec)

    @cached_property
    def executors(self) -> Mapping[str, JobExecutor]:
        """Where jobs run, by name."""
        if self.custom_executors is not None:
            return self.custom_executors
        return runner_executors.check_executors(None)

    @property
    def runtime(self) -> Runtime | None:
        """The parts of the worker; None while it is stopped."""
        return self.life.runtime

    @property
    def actor(self) -> str:
        """The name of the caller, as the audit records it for changes."""
        return self.store.statements.author.actor

    def get_author(self) -> Author:
        """Return the author of changes for which the caller names none."""
        actor = self.config.identity or self.life.worker_id
        return Author(actor, release=release_of(self.config.metadata))

    def running(self) -> Runtime:
        """Return the parts of the worker, for a call that needs a running Scheduler.

        Raises:
            NotRunningError: The worker is stopped.
        """
        if self.runtime is None:
            raise NotRunningError("the Scheduler is not running: call await scheduler.start() first")
        self.store.connections.check_loop()
        return self.runtime

    def use_middleware(self, middleware: Sequence[Middleware]) -> None:
        """Use this middleware, the outermost first.

        It wraps calls that enqueue jobs at once, and attempts from the next start on.
        """
        self.middleware = check_middleware(middleware)
        sender = Sender(self.middleware, self.store.statements.codec)
        if sender.is_used:
            # An earlier call may have wrapped the enqueuer already.
            inner = self.enqueuer
            if isinstance(inner, SendingEnqueuer):
                inner = inner.enqueuer
            self.enqueuer = SendingEnqueuer(inner, sender)
            if "job_builders" in vars(self):
                self.job_builders.sender = sender

    def announce_tasks(self) -> None:
        """Make this node read at once which tasks are paused.

        The statement that has paused or resumed a task notifies all nodes, but a notification takes longer.
        """
        if self.runtime is not None:
            self.runtime.node.signals.tasks_changed()

    async def announce_schedules(self) -> None:
        """Make the planners of this node and of the others read the schedules, because one has changed."""
        if self.runtime is not None:
            self.runtime.node.signals.schedules_changed()
        await self.outbox.notify_schedules()

    def announce_schedules_later(self) -> None:
        """Do what ``announce_schedules()`` does, but notify the other nodes later, in the background.

        For a caller that is cancelled, and while the database is unavailable.
        """
        if self.runtime is not None:
            self.runtime.node.signals.schedules_changed()
        self.outbox.add_schedules()


class PartsOwner(Protocol):
    """The `Scheduler`, as ``parts_of()`` sees it."""

    _parts: Parts


def parts_of(scheduler: PartsOwner) -> Parts:
    """Return the parts of a Scheduler, for the other rooms of this package."""
    return scheduler._parts  # noqa: SLF001 - this is the only place that reads them from outside
