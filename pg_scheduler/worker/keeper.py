"""Keep the lease while no heartbeat does, in a thread with its own event loop and connection.

The keepers of the workers on one pool share that thread; see ``worker/keeper_thread.py``.

A job that blocks the event loop stops the heartbeats too, and without them another worker would run every
job of this worker a second time. While the watchdog finds the loop blocked, the keeper renews the lease in
its place. A loop that stays blocked for too long is taken for hung: the keeper releases the lease.

Heartbeats also fail while the loop runs but its connections do not, for example if the pool cannot open one.
The keeper renews whenever a heartbeat is overdue, for whatever reason: the jobs run, so no other worker may
run them too.

The same connection holds the worker's liveness lock, an advisory lock of the session under a key that each
heartbeat writes into the worker's row. The server releases it when the process ends, however that ends, so
other workers need not wait for the lease. Behind a pooler sessions are shared, and there is no lock.

Threads of jobs cannot be stopped, and coroutines may ignore their cancellation, so jobs may outlive the
shutdown. As long as they run, the keeper lingers: it renews the lease and holds the lock, so that no other
worker gets these jobs, not even after the end of the event loop. The end of the process ends it too.

A job that holds the GIL stops this thread too. The lock then keeps the jobs: other workers see that it is
held, and wait for ``max_loop_block`` seconds after the last renewal.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from pg_scheduler.base.blocking import call_in_loop
from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.database.faults import REFUSALS, is_lock_timeout, is_timeout
from pg_scheduler.errors import ConfigurationError, DatabaseUnavailableError
from pg_scheduler.events import KeeperConnected, KeeperLost, ServiceFaulted
from pg_scheduler.events.log import log_in_thread, logger, record_fields
from pg_scheduler.worker.lease_connection import LeaseConnection
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.reporter import Reporter
from pg_scheduler.worker.watchdog import LoopWatchdog

TOO_SMALL: Final = (
    "the pool is too small for a connection outside of it. The jobs of a killed worker wait for its lease, "
    "and a job that blocks the event loop for longer than the lease may run twice. "
    "Give it max_size of 4 or more, or pass keeper_dsn="
)
NO_LOCK: Final = (
    "a pooler answers the lease keeper, so there is no liveness lock: the jobs of a killed worker wait for "
    "its lease. Pass keeper_dsn= or direct_dsn=, the address of the server itself"
)


OVERDUE_INTERVALS: Final = 1.5
"""Intervals between two renewals after which a heartbeat is overdue. The keeper then renews before the worker
stops trusting its lease, and it leaves the lease to heartbeats that are in time."""


class LeaseKeeper:
    """Renew the lease while no heartbeat does. Create it in the event loop of the heartbeat."""

    poll_interval_s = 0.25
    """Seconds between two checks of the event loop."""
    reconnect_delay_s = 0.5
    """Seconds until it reconnects after a fault: less than a suspect worker gets to answer."""
    refused_delay_s = 10.0
    """Seconds until it reconnects after the server, or the pool's way to connect, refused."""

    def __init__(
        self, node: Node, connection: LeaseConnection, watchdog: LoopWatchdog, reporter: Reporter
    ) -> None:
        self._connection = connection
        self._events = node.events
        self._in_flight = node.in_flight
        self._lease = node.lease
        self._watchdog = watchdog
        self._reporter = reporter
        self._limit_s = node.config.max_loop_block
        self._signals = node.signals
        self._loop = watchdog.loop
        # The thread that keeps the lease; None if none does.
        self._thread: threading.Thread | None = None
        # The task that runs in the thread's own event loop.
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = self._is_lingering = False
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._connect_at = 0.0
        self._requested_at = 0.0
        self._has_reported_loss = False
        self._has_reported_no_lock = False

    async def start(self) -> None:
        """Start the thread; return when it has tried to take the liveness lock. A no-op if it runs."""
        if self._thread is None:
            self._is_stopping = False
            self._ready, self._ended = asyncio.Event(), asyncio.Event()
            self._watchdog.start()
            # The thread gets the two events as arguments, because another start may have replaced them when
            # it sets the last one.
            self._thread = self._connection.thread.run(partial(self._run, self._ready, self._ended))
        await self._ready.wait()

    async def stop(self) -> None:
        """Interrupt the current operation, release the lock and end the thread. A no-op if it has ended.

        While jobs run on, the thread lingers instead.
        """
        if self._thread is None:
            return
        # A thread that lingers ends by itself when the code of the last attempt has ended.
        if self._in_flight.has_left and not self._is_stopping:
            self._is_lingering = True
            self._thread = None
            return
        # An earlier call that was cancelled may have set this flag. Then this call only waits for the end.
        if not self._is_stopping:
            # The flag is set before the task is read. If there is no task yet, the thread will see the flag.
            self._is_stopping = True
            if self._task is not None:
                with suppress(RuntimeError):  # it has ended by itself
                    self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        await self._ended.wait()
        self._thread = self._task = None

    # -- in the thread ---------------------------------------------------------------------------------

    async def _run(self, ready: asyncio.Event, ended: asyncio.Event) -> None:
        """Keep the lease, and set both events at the end, whatever ends it.

        The events are those of the worker's event loop, in which start() waits for ``ready``, and stop() for
        ``ended``.
        """
        try:
            # stop() cancels the task to end it.
            with suppress(asyncio.CancelledError):
                await self._keep(ready)
        except Exception as error:  # noqa: BLE001 - a bug: nothing else would report it from this thread
            self._call_in_loop(self._events.publish, ServiceFaulted("keeper", error))
        finally:
            self._call_in_loop(ready.set)
            self._call_in_loop(ended.set)

    async def _keep(self, ready: asyncio.Event) -> None:
        """Poll until the keeper is stopped. If the event loop ends before, or attempts run on, linger.

        To linger is to keep the lease as long as code of attempts runs in this process.
        """
        self._task = asyncio.current_task()
        try:
            # The watchdog cannot ping an event loop that is closed.
            while not self._is_stopping and self._watchdog.ping():
                await self._poll()
                # The first poll has connected and taken the lock, or has failed. start() waits for that.
                if not ready.is_set():
                    self._call_in_loop(ready.set)
                await asyncio.sleep(self.poll_interval_s)
                if self._is_lingering:
                    break
            if not self._is_stopping:
                await self._linger()
        finally:
            await self._disconnect()

    async def _linger(self) -> None:
        """After the shutdown, keep the lease while the code of attempts that were left still runs."""
        while self._in_flight.has_left:
            try:
                if not self._connection.is_open:
                    if time.monotonic() >= self._connect_at:
                        await self._connect()
                elif self._is_renewal_due(intervals=1):
                    await self._renew()
            except (DatabaseUnavailableError, *REFUSALS) as error:
                await self._lose_connection(error)
            await asyncio.sleep(self.poll_interval_s)

    async def _poll(self) -> None:
        """Connect if there is no connection, else renew the lease if the event loop does not.

        A loop that is blocked for too long loses the lease instead. While the loop is blocked, this thread
        renews the lease at each interval; else only when a heartbeat is overdue.
        """
        self._watchdog.check()
        try:
            if self._watchdog.is_blocked_for(self._limit_s):
                await self._release_lease()
            elif not self._connection.is_open:
                if time.monotonic() >= self._connect_at:
                    await self._connect()
            elif self._watchdog.is_blocked:
                if self._is_renewal_due(intervals=1):
                    await self._renew()
            elif self._is_renewal_due(intervals=OVERDUE_INTERVALS):
                await self._renew_for_loop()
        except (DatabaseUnavailableError, *REFUSALS) as error:
            await self._lose_connection(error)
        # The thread reads source files for a report. A disk that hangs must not delay other keepers.
        if self._watchdog.has_report:
            await run_in_thread(self._watchdog.report)

    def _is_renewal_due(self, *, intervals: float) -> bool:
        """Return whether the last renewal, or the last request of this thread for one, is so long ago.

        ``intervals`` is a number of renewal intervals of the lease. There is none before the registration.
        """
        if not self._lease.was_renewed:
            return False
        renewed_at = max(self._lease.renewed_at, self._requested_at)
        return time.monotonic() > renewed_at + intervals * self._lease.renewal_interval

    async def _renew_for_loop(self) -> None:
        """Renew the lease in place of an overdue heartbeat; keep the connection if the answer takes too long.

        The server may be just as slow for the heartbeat. Without the connection there would be no liveness
        lock, and other workers would take the jobs although this process lives. If the connection is broken,
        TCP keepalives end it.
        """
        try:
            await self._renew()
        except DatabaseUnavailableError as fault:
            if not is_timeout(fault) or not self._connection.is_open:
                raise

    async def _connect(self) -> None:
        """Open the connection, take the liveness lock, and write its key into the row of the worker.

        Behind a pooler there is no lock, and the connection only renews the lease.
        """
        try:
            await self._connection.open()
        except Exception as error:  # noqa: BLE001 - a pool's way to connect may be the user's code
            await self._lose_connection(error)
            return
        self._lease.lock_taken(self._connection.key, proves_life=self._connection.is_direct)
        # At a start, the worker has no row yet. The heartbeat, which starts next, writes the key into it.
        if self._lease.was_renewed:
            await self._renew()
        self._has_reported_loss = False
        if self._connection.key is None and not self._has_reported_no_lock:
            self._has_reported_no_lock = True
            self._call_in_loop(
                partial(logger.warning, NO_LOCK, extra=record_fields(worker_id=self._connection.worker_id))
            )
        # After an outage, the keeper is the first part of the worker that notices that the database is up.
        self._call_in_loop(self._signals.database_up)
        self._call_in_loop(self._events.publish, KeeperConnected(has_lock=self._connection.key is not None))

    async def _renew(self) -> None:
        """Renew the lease with the attempts and results that the worker has now."""
        # The lease counts from the request, because the server may have renewed it at any time after that.
        self._requested_at = requested_at = time.monotonic()
        # The running attempts are read first. So an attempt that ends in between is in both, not in neither.
        held = self._in_flight.held()
        unwritten = self._in_flight.unwritten()
        lease = self._lease
        report = self._reporter.report_blocked()
        try:
            answer = await self._connection.renew(held, unwritten, lease.seconds, lease.extension_s, report)
        except DatabaseUnavailableError as fault:
            # A transaction of the application holds the row of the worker. The connection, which has the
            # liveness lock, is not at fault.
            if is_lock_timeout(fault):
                return
            raise
        # Without a row, nothing was renewed. The next heartbeat registers the worker again.
        if answer.alive:
            self._lease.renewed(requested_at)

    async def _release_lease(self) -> None:
        """Give up the lease and the liveness lock, so that other workers get the jobs at once."""
        # Without a connection, the lease was released before, or cannot be released from here.
        if self._connection.is_open:
            message = "event loop blocked for more than %.1f s, lease released"
            log_in_thread(
                logging.CRITICAL,
                message,
                self._limit_s,
                extra=record_fields(worker_id=self._connection.worker_id),
            )
            self._lease.revoke()
            try:
                # A lease of 0 seconds has expired at once.
                await self._connection.renew(held={}, ended={}, lease_s=0, extension_s=None)
            finally:
                await self._disconnect()

    async def _lose_connection(self, error: Exception) -> None:
        """Close the connection after an error, and let a later poll connect again.

        The loss is published once, until a connection is open again.
        """
        await self._disconnect()
        # The connection failed or the server did not answer; it was no refusal of the server or of the pool.
        is_transient = isinstance(error, DatabaseUnavailableError)
        delay = self.reconnect_delay_s if is_transient else self.refused_delay_s
        self._connect_at = time.monotonic() + delay
        if not self._has_reported_loss:
            self._has_reported_loss = True
            # Any other exception is one of user code, whose text may quote a password.
            has_safe_text = is_transient or isinstance(error, (ConfigurationError, *REFUSALS))
            reason = str(error) if has_safe_text else type(error).__name__
            self._call_in_loop(self._events.publish, KeeperLost(reason))

    async def _disconnect(self) -> None:
        """Close the connection, with which the server frees the liveness lock."""
        self._lease.lock_lost()
        await self._connection.close()

    def _call_in_loop(self, call: Callable[..., object], *args: object) -> None:
        """Call something soon in the event loop of the worker, unless that is closed."""
        call_in_loop(self._loop, call, *args)
