"""What a started Scheduler consists of: builds the parts, and connects their wake-ups.

Built anew at every start, so that settings changed in between count.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime

from pg_scheduler.config import SchedulerConfig, VacuumTrigger
from pg_scheduler.domain.context import current
from pg_scheduler.domain.job import Claim, Worker
from pg_scheduler.domain.retry import RetryPolicy
from pg_scheduler.domain.tasks import TaskRegistry
from pg_scheduler.events import EventBus, KeeperLost, ServiceFaulted
from pg_scheduler.services.announcer import Announcer
from pg_scheduler.services.base import Service
from pg_scheduler.services.claimer import Claimer
from pg_scheduler.services.completer import Completer
from pg_scheduler.services.executor import Executor
from pg_scheduler.services.expirer import Expirer
from pg_scheduler.services.heartbeat import Heartbeat
from pg_scheduler.services.keeper import TOO_SMALL, Keeper
from pg_scheduler.services.listener import Listener
from pg_scheduler.services.lookout import Lookout
from pg_scheduler.services.periodic_jobs import PeriodicJobs
from pg_scheduler.services.planner import Planner
from pg_scheduler.services.rescuer import Rescuer
from pg_scheduler.services.supervisor import Part, Supervisor
from pg_scheduler.services.vacuum import Vacuum
from pg_scheduler.store.apart import Apart
from pg_scheduler.store.notifications import CHECK, DUE, PERIODIC
from pg_scheduler.store.store import Store
from pg_scheduler.version import __version__

__all__ = ["Engine"]


class Engine:
    """The parts of one worker, from start to stop.

    Args:
        on_fault: Called when a part ends with a fault that trying again cannot mend.
    """

    def __init__(  # noqa: PLR0917 - each is another thing, wired once
        self,
        store: Store,
        events: EventBus,
        tasks: TaskRegistry,
        periodic: PeriodicJobs,
        announcer: Announcer,
        config: SchedulerConfig,
        policy: RetryPolicy,
        worker_id: str,
        *,
        on_fault: Callable[[ServiceFaulted], None],
    ) -> None:
        self._worker_id = worker_id
        self._store = store
        self._events = events
        self._announcer = announcer
        lease = config.lease_seconds
        now = datetime.now(UTC)  # the table's instants are the database's; these are never read
        worker = Worker(
            worker_id,
            platform.node(),
            os.getpid(),
            __version__,
            config.max_concurrent_jobs,
            0,
            now,
            now,
            now,
            True,
        )
        self.completer = Completer(
            store,
            events,
            worker_id,
            flush_timeout=config.shutdown_timeout,
            on_written=self._written,
            keep=not (config.vacuum_enabled and config.vacuum.completed.trigger is VacuumTrigger.IMMEDIATE),
        )
        self.executor = Executor(
            store,
            events,
            tasks,
            self.completer,
            policy,
            slots=config.max_concurrent_jobs,
            shutdown_timeout=config.shutdown_timeout,
            on_free=self._slot_freed,
            on_lost=self._lost,
            on_fault=on_fault,
        )
        apart = Apart(store, store.connections, worker_id)
        self.heartbeat = Heartbeat(
            store,
            events,
            self.executor,
            worker,
            lease=lease,
            hears=lambda: self.listener.hears,
            liveness_key=lambda: apart.key,
        )
        keeper = Keeper(
            apart,
            events,
            self.executor,
            self.heartbeat,
            lease=lease,
            limit=config.max_loop_block,
            on_connected=self._retry_all,
            on_fault=on_fault,
        )
        self.listener = Listener(
            store, events, worker_id, on_message=self._received, on_connected=self._catch_up
        )
        self.rescuer = Rescuer(
            store,
            events,
            worker_id,
            heartbeat_threshold=config.heartbeat_threshold,
            max_crashes=config.max_crashes,
            is_trusted=lambda: self.heartbeat.is_trusted,
            ask=announcer.ask,
            on_rescued=self.wake_claimer,
        )
        expirer = Expirer(store, events)
        lookout = Lookout(
            store,
            events,
            lease=lease,
            heartbeat_threshold=config.heartbeat_threshold,
            on_lapsed=self.rescuer.wake,
            on_expired=expirer.wake,
        )
        self.planner = Planner(
            store,
            events,
            periodic,
            hears=lambda: self.listener.hears,
            on_planned=announcer.due_soon,
            on_switched=announcer.periodic_soon,
        )
        self.claimer = Claimer(
            store,
            events,
            self.executor,
            self.completer,
            tasks,
            worker_id,
            batch=config.batch_claim_limit,
            polling=config.polling,
            on_claimed=self._claimed,
            on_silence=self.rescuer.listen,
            on_refused=self.heartbeat.doubt,
            trusted_until=lambda: self.heartbeat.trusted_until,
        )
        vacuum = Vacuum(store, events, config.vacuum, worker_id, take_deleted=self.completer.take_deleted)
        # In the order of their start. Stopped backwards, claims end first and heartbeats last.
        parts: list[Part] = [
            self.heartbeat,
            *([keeper] if store.connections.can_connect_apart else []),
            *([vacuum] if config.vacuum_enabled else []),
            self.completer,
            self.executor,
            announcer,
            self.listener,
            self.rescuer,
            expirer,
            lookout,
            self.planner,
            self.claimer,
        ]
        self._services = [part for part in parts if isinstance(part, Service)]
        for service in self._services:
            service.on_fault = on_fault
        self._supervisor = Supervisor(parts)

    async def start(self) -> None:
        """Start every part; returns when jobs are really being claimed."""
        try:
            await self._supervisor.start()
        except BaseException:  # nothing runs that could use it
            await self._store.connections.release_held()
            raise
        if not self._store.connections.can_connect_apart:
            self._events.publish(KeeperLost(TOO_SMALL))

    async def stop(self) -> None:
        """Stop every part, with every result written, and tell other workers of what was handed back."""
        try:
            await self._supervisor.stop()
            await self._announcer.drain()
        finally:
            await self._store.connections.release_held()

    def runs_the_caller(self) -> bool:
        """Whether this call comes from a job that runs here."""
        job = current.get(None)
        return job is not None and self.executor.held().get(job[0].job_id) == job[0].attempt

    def wake_claimer(self) -> None:
        """Something is due."""
        self.claimer.look_at_all()

    async def execute(self, claim: Claim) -> None:
        """Run one claimed job now, slots or no slots."""
        await self.executor.submit(claim)

    async def execute_when_free(self, claim: Claim) -> None:
        """Run one claimed job as soon as there is a slot."""
        await (await self.executor.submit_when_free(claim))

    def _written(self, handed_back: bool) -> None:
        if handed_back:
            self._announcer.due_soon()
        self.claimer.look_at_all()

    def _slot_freed(self) -> None:
        self.claimer.wake()

    def _claimed(self) -> None:
        if not self.listener.hears:  # from now on it has to look whether a job was cancelled
            self.heartbeat.wake()

    def _received(self, message: str) -> None:
        kind, _, about = message.partition(" ")
        if kind == DUE and about != self._announcer.mark:
            self.claimer.look_at_all()
        elif kind == CHECK and about == self._worker_id:
            self.heartbeat.wake()
        elif kind == PERIODIC:
            self.planner.wake()

    def _lost(self) -> None:
        self.claimer.look_for_unheard()  # if the lease was over, and nobody has taken them meanwhile

    def _retry_all(self) -> None:
        for service in self._services:
            service.retry()

    def _catch_up(self) -> None:
        self._retry_all()
        self.claimer.look_at_all()
        self.heartbeat.wake()
        self.planner.wake()
