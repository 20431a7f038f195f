"""The parts that the methods of `Scheduler` share."""

from __future__ import annotations

from pg_scheduler.enqueue.declared_schedules import DeclaredSchedules
from pg_scheduler.enqueue.enqueuer import Enqueuer
from pg_scheduler.enqueue.headers import SendingEnqueuer
from pg_scheduler.enqueue.outbox import Outbox
from pg_scheduler.enqueue.prepare import JobPreparer
from pg_scheduler.enqueue.result_waiters import ResultWaiters
from pg_scheduler.enqueue.schedule_jobs import ScheduleJobs
from pg_scheduler.errors import NotRunningError
from pg_scheduler.events import EventBus
from pg_scheduler.jobs.middleware import Middleware
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.settings import SchedulerConfig
from pg_scheduler.store.author import Author, release_of
from pg_scheduler.store.store import Store
from pg_scheduler.worker.lifecycle import Lifecycle
from pg_scheduler.worker.runtime import Runtime


class SchedulerParts:
    """Declares the attributes that the constructor of `Scheduler` sets."""

    _config: SchedulerConfig
    _store: Store
    _events: EventBus
    _cluster_events: EventBus
    _tasks: TaskRegistry
    _outbox: Outbox
    _preparer: JobPreparer
    _enqueuer: Enqueuer | SendingEnqueuer
    _middleware: tuple[Middleware, ...]
    _periodic: DeclaredSchedules
    _schedule_jobs: ScheduleJobs
    _life: Lifecycle
    _waiters: ResultWaiters

    @property
    def _runtime(self) -> Runtime | None:
        return self._life.runtime

    @property
    def _actor(self) -> str:
        """Who makes the change that is called for, for people."""
        return self._store.statements.author.actor

    def _get_author(self) -> Author:
        actor = self._config.identity or self._life.worker_id
        return Author(actor, release=release_of(self._config.metadata))

    def _running(self) -> Runtime:
        self._store.connections.check_loop()
        if self._runtime is None:
            raise NotRunningError("the Scheduler is not running: call await scheduler.start() first")
        return self._runtime
