"""What a started Scheduler consists of: builds the parts, and connects their wake-ups.

Built anew at every start, so that settings changed in between count.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from pg_scheduler.enqueue.outbox import Outbox
from pg_scheduler.enqueue.schedule_book import ScheduleBook
from pg_scheduler.events import EventBus, KeeperLost, ServiceFaulted
from pg_scheduler.jobs.context import current
from pg_scheduler.jobs.model import JobStatus, Worker
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.settings import SchedulerConfig, VacuumTrigger
from pg_scheduler.store.connections.lease import LeaseConnection
from pg_scheduler.store.connections.listen import CHECK, DUE, PERIODIC
from pg_scheduler.store.store import Store
from pg_scheduler.version import __version__
from pg_scheduler.worker.in_flight import InFlight
from pg_scheduler.worker.lease.heartbeat import Heartbeat
from pg_scheduler.worker.lease.keeper import TOO_SMALL, LeaseKeeper
from pg_scheduler.worker.lease.lease import Lease
from pg_scheduler.worker.lease.watchdog import LoopWatchdog
from pg_scheduler.worker.listener import Listener
from pg_scheduler.worker.maintenance.deadline_scanner import DeadlineScanner
from pg_scheduler.worker.maintenance.expirer import Expirer
from pg_scheduler.worker.maintenance.planner import Planner
from pg_scheduler.worker.maintenance.rescuer import Rescuer
from pg_scheduler.worker.maintenance.vacuum import Vacuum
from pg_scheduler.worker.notifier import Notifier
from pg_scheduler.worker.pipeline.claimer import Claimer
from pg_scheduler.worker.pipeline.completer import Completer
from pg_scheduler.worker.pipeline.executor import Executor
from pg_scheduler.worker.pipeline.result_buffer import ResultBuffer
from pg_scheduler.worker.service import Service
from pg_scheduler.worker.supervisor import Part, Supervisor

__all__ = ["Runtime"]


class Runtime:
    """The parts of one worker, from start to stop.

    Args:
        on_fault: Called when a part ends with a fault that trying again cannot mend.
    """

    def __init__(  # noqa: PLR0917 - each is another thing, wired once
        self,
        store: Store,
        events: EventBus,
        tasks: TaskRegistry,
        periodic: ScheduleBook,
        outbox: Outbox,
        config: SchedulerConfig,
        policy: RetryPolicy,
        worker_id: str,
        *,
        on_fault: Callable[[ServiceFaulted], None],
    ) -> None:
        self._worker_id = worker_id
        self._store = store
        self._events = events
        self._outbox = outbox
        self.notifier = Notifier(events, outbox, on_due=self.wake_claimer)
        lease = Lease(config.lease_seconds)
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
        deleted: Counter[JobStatus] = Counter()
        deletes_completed = (
            config.vacuum_enabled and config.vacuum.completed.trigger is VacuumTrigger.IMMEDIATE
        )
        results = ResultBuffer(
            events,
            keeps_completed=not deletes_completed,
            deleted=deleted,
            on_waiting=lambda: self.completer.wake(),  # noqa: PLW0108 - it is made below
        )
        self.in_flight = InFlight(results)
        self.completer = Completer(
            store,
            events,
            worker_id,
            results,
            flush_timeout=config.shutdown_timeout,
            on_written=self._written,
        )
        self.executor = Executor(
            store,
            events,
            tasks,
            results,
            self.completer,
            self.in_flight,
            policy,
            slots=config.max_concurrent_jobs,
            shutdown_timeout=config.shutdown_timeout,
            on_free=self._slot_freed,
            on_lost=self._lost,
            on_fault=on_fault,
        )
        lease_connection = LeaseConnection(store.workers, store.connections, worker_id)
        self.heartbeat = Heartbeat(
            store,
            events,
            self.in_flight,
            worker,
            lease,
            hears=lambda: self.listener.hears,
        )
        keeper = LeaseKeeper(
            lease_connection,
            events,
            self.in_flight,
            lease,
            LoopWatchdog(events, self.in_flight),
            limit_s=config.max_loop_block,
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
            lease,
            heartbeat_threshold=config.heartbeat_threshold,
            max_crashes=config.max_crashes,
            ask=outbox.request_heartbeats,
            on_rescued=self.wake_claimer,
        )
        expirer = Expirer(store, events)
        scanner = DeadlineScanner(
            store,
            events,
            lease=lease.seconds,
            heartbeat_threshold=config.heartbeat_threshold,
            on_lapsed=self.rescuer.wake,
            on_expired=expirer.wake,
        )
        self.planner = Planner(
            store,
            events,
            periodic,
            hears=lambda: self.listener.hears,
            on_planned=outbox.add_due,
            on_switched=outbox.add_schedules,
        )
        self.claimer = Claimer(
            store,
            events,
            self.executor,
            results,
            self.in_flight,
            lease,
            tasks,
            worker_id,
            batch=config.batch_claim_limit,
            polling=config.polling,
            on_claimed=self._claimed,
            on_silence=self.rescuer.listen,
            on_refused=self.heartbeat.suspect,
        )
        vacuum = Vacuum(store, events, config.vacuum, worker_id, deleted=deleted)
        # In the order of their start. Stopped backwards, claims end first and heartbeats last.
        parts: list[Part] = [
            self.heartbeat,
            *([keeper] if store.connections.can_open_lease_connection else []),
            *([vacuum] if config.vacuum_enabled else []),
            self.completer,
            self.executor,
            self.notifier,
            self.listener,
            self.rescuer,
            expirer,
            scanner,
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
        if not self._store.connections.can_open_lease_connection:
            self._events.publish(KeeperLost(TOO_SMALL))

    async def stop(self) -> None:
        """Stop every part, with every result written, and tell other workers of what was handed back."""
        try:
            await self._supervisor.stop()
            await self._outbox.flush()
        finally:
            await self._store.connections.release_held()

    def runs_the_caller(self) -> bool:
        """Whether this call comes from a job that runs here."""
        job = current.get(None)
        return job is not None and self.in_flight.holds(job[0].job_id, job[0].attempt)

    def wake_claimer(self) -> None:
        """Something is due."""
        self.claimer.rescan()

    async def execute(self, claim: Claim) -> None:
        """Run one claimed job now, slots or no slots."""
        await self.executor.submit(claim)

    async def execute_when_free(self, claim: Claim) -> None:
        """Run one claimed job as soon as there is a slot."""
        await (await self.executor.submit_when_free(claim))

    def _written(self, handed_back: bool) -> None:
        if handed_back:
            self._outbox.add_due()
        self.claimer.rescan()

    def _slot_freed(self) -> None:
        self.claimer.wake()

    def _claimed(self) -> None:
        if not self.listener.hears:  # from now on it has to look whether a job was cancelled
            self.heartbeat.wake()

    def _received(self, message: str) -> None:
        kind, _, about = message.partition(" ")
        if kind == DUE and about != self._outbox.mark:
            self.claimer.rescan()
        elif kind == CHECK and about == self._worker_id:
            self.heartbeat.wake()
        elif kind == PERIODIC:
            self.planner.wake()

    def _lost(self) -> None:
        self.claimer.reconcile_claims()  # if the lease was over, and nobody has taken them meanwhile

    def _retry_all(self) -> None:
        for service in self._services:
            service.retry()

    def _catch_up(self) -> None:
        self._retry_all()
        self.claimer.rescan()
        self.heartbeat.wake()
        self.planner.wake()
