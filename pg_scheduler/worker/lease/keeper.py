"""Keeps the lease when the event loop cannot: a thread with an event loop and a connection of its own.

A job that blocks the event loop, with a long computation or a call that waits, stops the heartbeats too,
and without them another worker would run every job of this one a second time. So the keeper watches the
loop. While it does not answer, the keeper beats in its place, and says which job blocks it, with its
stack. A process that stays blocked for too long is wedged: then it gives up its lease on purpose.

The same connection holds the worker's liveness lock, a session's advisory lock under a key that each beat
writes into the worker's row. It ends with the process, however that ends, so others need not wait for the
lease. Behind a pooler a session is not our own, and there is no lock.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import EventBus, KeeperConnected, KeeperLost, LoopBlocked, ServiceFaulted
from pg_scheduler.events.log import event_fields, record_fields
from pg_scheduler.store.connections.lease import LeaseConnection
from pg_scheduler.store.faults import REFUSALS
from pg_scheduler.worker.in_flight import InFlight
from pg_scheduler.worker.lease.heartbeat import BEATS_PER_LEASE, Heartbeat

__all__ = ["TOO_SMALL", "LeaseKeeper"]

TICK: Final = 0.25
"""Seconds between two looks at the event loop."""

BLOCKED: Final = 1.0
"""Seconds without an answer from which on the loop counts as blocked."""

AGAIN: Final = 0.5
"""Seconds until a connection that broke is tried again: less than a silent worker gets to answer."""

REFUSED: Final = 60.0
"""The same for one that the server, or what the pool connects with, refuses."""

TOO_SMALL: Final = (
    "the pool is too small for a connection beside it. The jobs of a killed worker wait for its lease, and a "
    "job that blocks the event loop for longer than the lease may run twice. "
    "Give it max_size of 4 or more, or pass keeper_dsn="
)
NO_LOCK: Final = (
    "a pooler answers the lease keeper, so there is no liveness lock: the jobs of a killed worker wait for "
    "its lease. Pass keeper_dsn= or direct_dsn=, the address of the server itself"
)

logger = logging.getLogger("pg_scheduler")


class _Question:
    """Are you there? Put to the event loop."""

    __slots__ = ("asked", "is_answered", "report")

    def __init__(self) -> None:
        self.asked = time.monotonic()
        self.is_answered = False
        self.report: LoopBlocked | None = None


class LeaseKeeper:
    """Stand in for the heartbeat of a blocked event loop; made in that loop.

    Args:
        apart: The connection.
        lease: Seconds.
        limit: Seconds of a blocked loop after which the lease is given up.
        on_connected: Called when it has its connection; after an outage it is the first to know.
        on_fault: Called when it ends with a fault that trying again cannot mend.
    """

    def __init__(
        self,
        lease_connection: LeaseConnection,
        events: EventBus,
        in_flight: InFlight,
        heartbeat: Heartbeat,
        *,
        lease: float,
        limit: float,
        on_connected: Callable[[], None],
        on_fault: Callable[[ServiceFaulted], None],
    ) -> None:
        self._apart = lease_connection
        self._events = events
        self._in_flight = in_flight
        self._heartbeat = heartbeat
        self._lease = lease
        self._limit = limit
        self._on_connected = on_connected
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self._loops_thread = threading.get_ident()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None  # in the thread
        self._stopping = False
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._question = _Question()
        self._connect_at = 0.0
        self._beat_at = 0.0
        self._is_lost = False
        self._is_lockless = False

    async def start(self) -> None:
        """Begin; returns when the lock is held, or could not be had at once. Twice is a no-op."""
        if self._thread is None:
            self._stopping = False
            self._ready, self._ended = asyncio.Event(), asyncio.Event()
            self._question = _Question()
            self._loop.call_soon(self._answer, self._question)
            # A daemon: it must not keep a process alive whose loop has ended without a shutdown.
            # It gets its events: when it sets the last one, there may be a next thread with others.
            self._thread = threading.Thread(
                target=self._main, args=(self._ready, self._ended), name="pg_scheduler keeper", daemon=True
            )
            self._thread.start()
        await self._ready.wait()

    async def stop(self) -> None:
        """End, whatever is under way, and give the lock back. Twice is a no-op."""
        if self._thread is None:
            return
        if not self._stopping:
            self._stopping = True  # before the look for its task: if there is none yet, it sees this
            if self._task is not None:
                with suppress(RuntimeError):  # it has ended by itself
                    self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        await self._ended.wait()
        self._thread = self._task = None

    # -- in the thread ---------------------------------------------------------------------------------

    def _main(self, ready: asyncio.Event, ended: asyncio.Event) -> None:
        try:
            with suppress(asyncio.CancelledError):
                asyncio.run(self._keep(ready, ended))
        except Exception as error:  # noqa: BLE001 - a mistake of ours: nobody else would hear of it
            self._tell(self._broken, ServiceFaulted("keeper", error))
        finally:
            self._tell(ready.set)
            self._tell(ended.set)

    async def _keep(self, ready: asyncio.Event, ended: asyncio.Event) -> None:
        self._task = asyncio.current_task()
        try:
            while not self._stopping and self._ask():
                await self._look()
                if not ready.is_set():
                    self._tell(ready.set)
                await asyncio.sleep(TICK)
        finally:
            await self._apart.close()
            self._tell(ended.set)  # the rest is the thread's own: it may wait for a name server

    def _ask(self) -> bool:
        """Ask the event loop once more, if it has answered; whether there is anybody to answer."""
        if self._question.is_answered:
            self._question = _Question()
            return self._tell(self._answer, self._question)
        return not self._loop.is_closed()

    async def _look(self) -> None:
        question = self._question
        now = time.monotonic()
        blocked = 0.0 if question.is_answered else now - question.asked
        is_wedged = blocked > self._limit and question.report is not None
        if blocked > BLOCKED and question.report is None:
            question.report = self._culprit()
            report = question.report
            message = "event loop blocked for %.1f s, job %s (id %s):\n%s"
            about = report.job_name, report.job_id, report.stack
            _log(logging.WARNING, message, blocked, *about, extra=event_fields(report) | {"event": None})
        last_beat = max(self._heartbeat.renewed_at, self._beat_at)
        try:
            if is_wedged:
                await self._let_go()
            elif not self._apart.is_open:
                if now >= self._connect_at:
                    await self._connect()
            elif blocked > BLOCKED and now > last_beat + self._lease / BEATS_PER_LEASE:
                await self._beat()
        except (DatabaseUnavailableError, *REFUSALS) as error:
            await self._lose(error)

    async def _connect(self) -> None:
        try:
            await self._apart.open()
        except Exception as error:  # noqa: BLE001 - a pool's way to connect may be the user's code
            await self._lose(error)
            return
        await self._beat()
        self._is_lost = False
        if self._apart.key is None and not self._is_lockless:  # told once
            self._is_lockless = True
            self._tell(partial(logger.warning, NO_LOCK, extra=record_fields()))
        self._tell(self._on_connected)
        self._tell(self._events.publish, KeeperConnected(has_lock=self._apart.key is not None))

    async def _beat(self) -> None:
        self._beat_at = asked = time.monotonic()
        held = self._in_flight.held()  # first: what ends between the two is in both, not in neither
        if (await self._apart.renew(held, self._in_flight.unwritten(), self._lease)).alive:
            self._heartbeat.renewed(asked)

    async def _let_go(self) -> None:
        if self._apart.is_open:
            message = "event loop blocked for more than %.1f s, lease released"
            _log(logging.CRITICAL, message, self._limit, extra=record_fields())
            self._heartbeat.renewed_at = 0.0
            try:
                await self._apart.renew({}, {}, 0)
            finally:
                await self._apart.close()

    async def _lose(self, error: Exception) -> None:
        await self._apart.close()
        passes = isinstance(error, DatabaseUnavailableError)
        self._connect_at = time.monotonic() + (AGAIN if passes else REFUSED)
        if not self._is_lost:  # told once
            self._is_lost = True
            # What is wrong with a DSN is told with parts of it, and it has a password.
            reason = str(error) if passes or isinstance(error, REFUSALS) else type(error).__name__
            self._tell(self._events.publish, KeeperLost(reason))

    def _culprit(self) -> LoopBlocked:
        frame = sys._current_frames().get(self._loops_thread)  # noqa: SLF001 - as faulthandler does
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        task = asyncio.current_task(self._loop)
        claim = self._in_flight.claim_of(task) if task else None
        return LoopBlocked(claim and claim.job_id, claim and claim.job_name, seconds=0.0, stack=stack)

    # -- in the event loop -----------------------------------------------------------------------------

    def _answer(self, question: _Question) -> None:
        question.is_answered = True
        if question.report is not None:
            seconds = time.monotonic() - question.asked
            self._events.publish(replace(question.report, seconds=seconds))

    def _broken(self, fault: ServiceFaulted) -> None:
        self._on_fault(fault)
        self._events.publish(fault)

    # -- between them ----------------------------------------------------------------------------------

    def _tell(self, call: Callable[..., object], *args: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # it is closed
            return False
        return True


def _log(level: int, message: str, *args: object, extra: dict[str, object]) -> None:
    # In yet another thread: what blocks the event loop may be a handler, and then it has the handler's lock.
    write = partial(logger.log, level, message, *args, extra=extra)
    threading.Thread(target=write, daemon=True).start()
