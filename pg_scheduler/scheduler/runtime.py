"""Build the parts of a worker, start them in order, and stop them in reverse order.

The parts are built anew at each start, so settings that were changed since the last start take effect. There
is no leader: every node of a role has the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Protocol

from pg_scheduler.admission.admission import Admission
from pg_scheduler.admission.feeder import Feeder
from pg_scheduler.admission.hand_over import HandOver
from pg_scheduler.admission.pause_watcher import PauseWatcher
from pg_scheduler.admission.sequencer import Sequencer
from pg_scheduler.admission.unblocker import Unblocker
from pg_scheduler.cluster_events.relay import EventRelay
from pg_scheduler.errors import ConnectionRejectedError, PoolClosedError
from pg_scheduler.events import KeeperLost
from pg_scheduler.jobs.context import chunk_scheduler, current
from pg_scheduler.scheduler.store import Store
from pg_scheduler.schedules.declarations import DeclaredSchedules
from pg_scheduler.schedules.job_builder import JobBuilders
from pg_scheduler.schedules.planner import Planner
from pg_scheduler.statistics.errors import ErrorCounter
from pg_scheduler.statistics.service import StatisticsWriter
from pg_scheduler.worker.claimer import Claimer
from pg_scheduler.worker.completer import Completer
from pg_scheduler.worker.cursor import HeadScanner
from pg_scheduler.worker.due_times import DueTimeCorrector
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.heartbeat import Heartbeat
from pg_scheduler.worker.keeper import TOO_SMALL, LeaseKeeper
from pg_scheduler.worker.lease_connection import LeaseConnection
from pg_scheduler.worker.looks import LookWriter
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.notifications import Listener, Notifier
from pg_scheduler.worker.overdue import DeadlineScanner, Expirer
from pg_scheduler.worker.progress_writer import ProgressWriter
from pg_scheduler.worker.reporter import Reporter
from pg_scheduler.worker.rescuer import Rescuer
from pg_scheduler.worker.service import Service
from pg_scheduler.worker.vacuum import Vacuum
from pg_scheduler.worker.watchdog import LoopWatchdog


class Slices(NamedTuple):
    """What parts of a worker outside of the package ``worker``, such as the planner, need besides the `Node`.

    The node has what all parts of a worker share.
    """

    store: Store
    declared: DeclaredSchedules
    job_builders: JobBuilders


class Runtime:
    """The parts of one worker, from start to stop."""

    executor_class: ClassVar[type[Executor]] = Executor
    claimer_class: ClassVar[type[Claimer]] = Claimer

    def __init__(self, node: Node, slices: Slices) -> None:
        self.node = node
        config, store = node.config, slices.store
        # A transaction that ends a job may have to leave some consequences undone. This signal wakes the
        # deadline scanner, which applies them.
        store.consequences.on_left = node.signals.end_overlooked
        progress = ProgressWriter(node)
        self.error_counter = ErrorCounter(node, store.errors)
        self.look_writer = LookWriter(node)
        self.completer = Completer(node, progress)
        self.executor = self.executor_class(node, self.completer, progress)
        self.unblocker = Unblocker(node, store.limits)
        self.feeder = Feeder(node, store.limits, store.shares)
        self.admission = Admission(node, store.limits, self.executor, self.unblocker)
        self.claimer = self.claimer_class(node, self.executor, self.admission)
        self.sequencer = Sequencer(node, store.sequences)
        self.completer.successions = HandOver(
            node, store.sequences, self.executor, self.claimer, self.sequencer
        )
        self.head = HeadScanner(node, self.claimer.cursor, isolated_from=self.claimer.isolated_from)
        self.watchdog = LoopWatchdog(node.events, node.in_flight)
        self.reporter = Reporter(node, self.watchdog)
        self.heartbeat = Heartbeat(node, self.reporter)
        lease_connection = LeaseConnection(
            store.workers, store.connections, node.worker_id, config.lease_seconds
        )
        keeper = LeaseKeeper(node, lease_connection, self.watchdog, self.reporter)
        self.relay = EventRelay(node)
        self.notifier = Notifier(node)
        self.listener = Listener(node, self.relay)
        self.rescuer = Rescuer(node)
        self.expirer = Expirer(node)
        self.scanner = DeadlineScanner(node)
        self.planner = Planner(node, store.schedules, slices.declared, slices.job_builders)
        self.pauses = PauseWatcher(node, store.pauses)
        self.due_times = DueTimeCorrector(node)
        deleted = node.result_buffer.deleted
        vacuum = Vacuum(
            store,
            node.events,
            config.vacuum,
            node.worker_id,
            schedules=store.schedules,
            statistics=store.statistics,
            streams=store.streams,
            deleted=deleted,
        )
        # The parts are in the order of their start. They stop in reverse order: claims end first, heartbeats
        # last.
        self.parts: list[Part] = [
            # It is first, so that no message is missed after the others have read what messages announce.
            self.listener,
            # The heartbeat writes the key of the liveness lock when it registers the worker.
            *([keeper] if store.connections.can_open_lease_connection else []),
            self.heartbeat,
            # The statistics need the worker's row.
            *([] if node.meter is None else [StatisticsWriter(node, node.meter, store.statistics)]),
            self.relay,
            *([vacuum] if config.vacuum_enabled else []),
            # It stops after all that write failures.
            self.error_counter,
            progress,
            self.look_writer,
            self.unblocker,
            self.completer,
            self.executor,
            self.admission,
            self.notifier,
            # The first scan finds what the rescuer and the expirer have to do before the first claim.
            # If it finds nothing, the start waits for none of their statements that read jobs.
            self.scanner,
            self.rescuer,
            # No job expires before the worker knows which pauses suspend that.
            self.pauses,
            # It precedes the planner, which drops a fire time while the last job of the schedule is pending.
            self.expirer,
            *([self.planner] if config.plans else []),
            self.due_times,
            *([self.feeder, self.sequencer, self.head, self.claimer] if config.runs_jobs else []),
        ]
        self.supervisor = Supervisor(self.parts)
        for part in self.parts:
            if isinstance(part, Service):
                # A service whose pass waited for a lock in vain logs the sessions that hold locks.
                part.find_holders = store.locks.find_holders
                part.on_outage = node.signals.connection_lost

    @property
    def rejection(self) -> ConnectionRejectedError | None:
        """The error of the last claim if the server rejected its connection; None otherwise.

        A role that claims no jobs has the error of the last heartbeat instead.
        """
        outage = self.claimer.outage if self.node.config.runs_jobs else self.heartbeat.outage
        return outage if isinstance(outage, ConnectionRejectedError) else None

    async def start(self, announce: Callable[[], None]) -> None:
        """Start every part of the role; return when jobs are being claimed.

        Args:
            announce: Called before the first job is claimed.
        """
        try:
            await self.supervisor.start(announce)
        except BaseException:
            # After any error, no part runs any longer that could use the held connections.
            await self.node.store.connections.release_held()
            raise
        if self.node.config.runs_jobs:
            self.node.routing.warn_of_patterns()
        if not self.node.store.connections.can_open_lease_connection:
            self.node.events.publish(KeeperLost(TOO_SMALL))

    async def stop(self) -> None:
        """Stop every part, write every result, and notify other workers of released jobs."""
        self.reporter.is_stopping = True
        try:
            await self.supervisor.stop()
            await self.node.outbox.flush_or_report()
        finally:
            await self.node.store.connections.release_held()

    def runs_the_caller(self) -> bool:
        """Return whether the caller of this method is the code of a job or a chunk that this worker runs."""
        # The function of a chunk has many jobs. Tasks that it has left behind may outlive its call.
        if chunk_scheduler.get() == self.node.get_scheduler and self.executor.chunks.calls():
            return True
        job = current.get(None)
        return job is not None and self.node.in_flight.holds(job.claim.job_id, job.claim.attempt)


class Part(Protocol):
    """A part that starts and stops."""

    async def start(self) -> None:
        """Start the part; return when it runs."""

    async def stop(self) -> None:
        """Stop the part and everything that it started."""


class Supervisor:
    """The parts of one Scheduler."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    async def start(self, before_last: Callable[[], None] = lambda: None) -> None:
        """Start all parts. If a part fails, stop the parts that were started, and raise its error.

        Args:
            before_last: Called before the last part starts.
        """
        last_index = len(self._parts) - 1
        for index, part in enumerate(self._parts):
            if index == last_index:
                before_last()
            try:
                await part.start()
            except BaseException:
                # After any error, no started part may run on. The part that failed may have started partly.
                await self._stop(self._parts[: index + 1])
                raise

    def retry(self) -> None:
        """End the backoff of every service, since the database is available again."""
        for part in self._parts:
            if isinstance(part, Service):
                part.retry()

    async def stop(self) -> None:
        """Stop all parts, in reverse order.

        Raises:
            DatabaseUnavailableError: The database was unavailable, so results could not be written. Every
                service has stopped nevertheless.
        """
        await self._stop(self._parts)

    @staticmethod
    async def _stop(parts: Sequence[Part]) -> None:
        """Stop these parts, in reverse order; then raise the first error, with notes about the others."""
        faults: list[BaseException] = []
        for part in reversed(parts):
            try:
                await part.stop()
            except BaseException as fault:  # noqa: BLE001 - after any error, the other parts must stop too
                faults.append(fault)
        # Errors about a closed pool are sorted behind the others, which have more facts, such as the lost
        # results.
        faults.sort(key=lambda fault: isinstance(fault, PoolClosedError))
        if faults:
            first_fault, *other_faults = faults
            for other_fault in other_faults:
                first_fault.add_note(f"another part could not stop either: {other_fault!r}")
            raise first_fault
