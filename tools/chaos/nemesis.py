"""The faults: a plan made from a seed, applied to workers, their network, the server and the rows.

Three plans run concurrently, one for the workers and their network, one for the server, and one for
transactions of the application that hold rows, so that faults of all kinds coincide. The seed determines
kind, target, time and duration of the faults, but not the state they meet.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import asyncpg

from pg_scheduler.embedded import EmbeddedPostgres
from tools.chaos.broken import BROKEN_CONNECTION
from tools.chaos.clock import Clock
from tools.chaos.fleet import Fleet, Seat
from tools.chaos.proxy import Proxy

SERVER: Final = "server"
DROPPED: Final = "connections dropped"
SERVER_CLOCK: Final = "server clock stepped"
SERVER_CLOCK_YEARS: Final = "server clock stepped by years"
SERVER_CLOCKS: Final = (SERVER_CLOCK, SERVER_CLOCK_YEARS)
WORKER_CLOCK: Final = "worker clock stepped"
JOBS_LOCKED: Final = "rows of jobs locked"
SCHEDULES_LOCKED: Final = "rows of schedules locked"
WORKERS_LOCKED: Final = "rows of workers locked"
WORKER_STOPPED: Final = "worker stopped"
MACHINE_STALLED: Final = "machine stalled"
"""Not injected: the machine did not run a worker; see ``stalls.py``."""

MIN_STEP_S: Final = 60.0
MAX_STEP_S: Final = 120.0
MAX_WORKER_STEP_S: Final = 900.0
YEAR_S: Final = 365.25 * 86_400
MAX_YEARS: Final = 10
FORWARD_SHARE: Final = {"server": 0.3, "worker": 0.5, "years": 0.6}
"""How often a clock is first set forward. What was computed while the server's clock was minutes ahead waits
until the clock has caught up, so most of its steps by minutes go back first.
"""


WORKER_FAULTS: Final = {
    # kind: weight, minimum and maximum duration in leases
    "worker killed": (3, 0.1, 0.4),
    "worker deployed": (2, 0.1, 0.4),
    f"{WORKER_STOPPED}, shorter than its lease": (2, 0.2, 0.7),
    f"{WORKER_STOPPED}, longer than its lease": (2, 1.2, 1.8),
    "event loop blocked": (2, 0.3, 1.5),
    "pool used up": (1, 0.4, 1.0),
    "connections closed": (1, 0.0, 0.0),
    "connections reset": (1, 0.0, 0.0),
    "connections stalled": (2, 0.2, 1.5),
    DROPPED: (1, 0.2, 1.5),
    "connections refused": (2, 0.2, 1.5),
    "network slow": (1, 0.5, 1.0),
    WORKER_CLOCK: (1, 0.5, 8.0),
}
SERVER_FAULTS: Final = {
    "server restarted, fast": (1, 0.0, 0.2),
    "server restarted, immediate": (1, 0.0, 0.2),
    "server killed": (1, 0.1, 0.8),
    "server frozen": (1, 0.1, 1.3),
    "backends terminated": (3, 0.0, 0.0),
    "max_connections reached": (1, 0.3, 0.8),
    SERVER_CLOCK: (1, 0.5, 2.0),
    SERVER_CLOCK_YEARS: (1, 0.4, 1.6),
}
ROW_FAULTS: Final = {
    # kind: weight, minimum and maximum duration in seconds
    JOBS_LOCKED: (3, 20.0, 30.0),
    SCHEDULES_LOCKED: (1, 20.0, 30.0),
    WORKERS_LOCKED: (1, 20.0, 30.0),
}
ENQUEUER_FAULTS: Final = [kind for kind in WORKER_FAULTS if kind.startswith(("connections", "network"))]
LOCK_ROWS: Final = {
    JOBS_LOCKED: "SELECT job_id FROM scheduled_jobs WHERE finished_at IS NULL ORDER BY random() LIMIT 20"
    " FOR UPDATE SKIP LOCKED",
    SCHEDULES_LOCKED: "SELECT schedule_id FROM scheduler_schedules ORDER BY random() LIMIT 2"
    " FOR UPDATE SKIP LOCKED",
    WORKERS_LOCKED: "SELECT worker_id FROM scheduler_workers ORDER BY random() LIMIT 1"
    " FOR UPDATE SKIP LOCKED",
}
"""The rows that a transaction of the application holds."""

RESTART_SLEEPS: Final = """
    UPDATE scheduler_steps SET until = now()
    WHERE kind = 'sleep' AND ended_at IS NULL AND until > now() + interval '1 day'
"""
WAKE: Final = """
    UPDATE scheduled_jobs AS job SET execution_time = now()
    WHERE status = 'pending' AND execution_time > now() + interval '1 day' AND EXISTS (
        SELECT FROM scheduler_steps AS step
        WHERE step.job_id = job.job_id AND kind = 'sleep' AND ended_at IS NULL
    )
"""
"""What a person does after the server's clock was years ahead: a sleep keeps the end that it got then.

No sleep of the load lasts for a day.
"""

WORKERS: Final = "workers"
ROWS: Final = "rows"
FAULTS: Final = {WORKERS: WORKER_FAULTS, SERVER: SERVER_FAULTS, ROWS: ROW_FAULTS}
GAPS: Final = {WORKERS: (0.2, 2.0), SERVER: (2.0, 9.0), ROWS: (3.0, 15.0)}
"""Seconds between two faults of a worker, of the server, and of transactions that hold rows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned fault: the seconds since the previous one, the seat and the duration."""

    gap: float
    kind: str
    seat: int
    seconds: float
    chance: float

    @property
    def step(self) -> float:
        """Seconds by which a clock is moved; 0 for other faults."""
        match self.kind:
            case "server clock stepped":
                forward, least, most = FORWARD_SHARE["server"], MIN_STEP_S, MAX_STEP_S
            case "server clock stepped by years":
                forward, least, most = FORWARD_SHARE["years"], YEAR_S, MAX_YEARS * YEAR_S
            case "worker clock stepped":
                forward, least, most = FORWARD_SHARE["worker"], MIN_STEP_S, MAX_WORKER_STEP_S
            case _:
                return 0
        if self.chance < forward:
            return least + (most - least) * self.chance / forward
        return -least - (most - least) * (self.chance - forward) / (1 - forward)


@dataclass(slots=True)
class Fault:
    """An applied fault, by the monotonic clock.

    ``step`` are the seconds by which it moved a clock. ``rows`` are the ids of the rows that it held.
    """

    kind: str
    target: str
    began: float
    ended: float
    step: float = 0.0
    rows: frozenset[str] = frozenset()


def plan(seed: int, *, seats: int, lease: float, of: str) -> Iterator[Plan]:
    """Yield faults without end; the last seat is the enqueuers', who only have a network to lose."""
    dice = random.Random(f"nemesis {seed} {of}")
    faults = FAULTS[of]
    unit = 1.0 if of == ROWS else lease
    while True:
        gap = dice.uniform(*GAPS[of])
        kind = dice.choices(list(faults), [often for often, _, _ in faults.values()])[0]
        seat = dice.randrange(seats if kind in ENQUEUER_FAULTS else seats - 1)
        _, least, most = faults[kind]
        yield Plan(gap, kind, seat, dice.uniform(least, most) * unit, dice.random())


class Nemesis:
    """Applies the plans.

    Args:
        dsn: The DSN of the database, not through a proxy.
        enqueuers: The proxy of the enqueuers.
        clock: The server's clock; None if clocks cannot be moved.
    """

    def __init__(
        self, server: EmbeddedPostgres, dsn: str, fleet: Fleet, enqueuers: Proxy, clock: Clock | None
    ) -> None:
        self._server = server
        self._clock = clock
        self._dsn = dsn
        self._fleet = fleet
        self._seats: Sequence[Seat] = [*fleet.seats, Seat("enqueuers", enqueuers)]
        self._thread = ThreadPoolExecutor(1)  # calls that wait for the server occupy the event loop's threads
        self.faults: list[Fault] = []

    async def apply(self, seed: int, lease: float, seconds: float, log: Callable[[str], None]) -> None:
        """Apply the plans for a time; every fault has ended at the return."""
        end = time.monotonic() + seconds
        await asyncio.gather(
            *(
                self._follow(plan(seed, seats=len(self._seats), lease=lease, of=which), end, log)
                for which in FAULTS
            )
        )

    async def _follow(self, plans: Iterator[Plan], end: float, log: Callable[[str], None]) -> None:
        for one in plans:
            if time.monotonic() + one.gap + one.seconds > end:
                return
            await asyncio.sleep(one.gap)
            if one.step and self._clock is None:
                continue
            seat = self._seats[one.seat]
            target = seat.name if one.kind in WORKER_FAULTS else SERVER
            fault = Fault(one.kind, target, time.monotonic(), float("inf"), one.step)
            self.faults.append(fault)
            by = f" by {one.step:+,.0f} s" if one.step else ""
            log(f"{fault.kind}{by} ({fault.target}, {one.seconds:.1f} s)")
            if one.kind in ROW_FAULTS:
                await self._lock_rows(fault, one.seconds)
                # A suspension that waited for a row has the end that its sleep got in the wrong years.
                await self.restart_sleeps()
            else:
                await (self._hit_server(one) if target == SERVER else self._hit(seat, one))
            fault.ended = time.monotonic()

    def catch_up(self) -> None:
        """Set the server's clock forward permanently.

        A retry whose delay was added to a clock that was set back later becomes due when the clock reaches
        that time.
        """
        if self._clock is not None:
            now = time.monotonic()
            self.faults.append(Fault(SERVER_CLOCK, SERVER, now, float("inf"), MAX_STEP_S))
            self._clock.set(MAX_STEP_S)

    async def _hit(self, seat: Seat, one: Plan) -> None:
        proxy = seat.proxy
        match one.kind:
            case "worker clock stepped":
                assert seat.clock is not None
                await self._move(seat.clock, one)
            case "worker killed":
                await self._fleet.kill(seat)
                await asyncio.sleep(one.seconds)
                await self._fleet.fill(seat)
            case "worker deployed":
                await self._fleet.shut_down(seat)
                await asyncio.sleep(one.seconds)
                await self._fleet.fill(seat)
            case "event loop blocked":
                seat.send(f"block {one.seconds}")
                await asyncio.sleep(one.seconds)
            case "pool used up":
                seat.send(f"hold {one.seconds}")
                await asyncio.sleep(2 * one.seconds)
            case "connections closed":
                proxy.sever()
            case "connections reset":
                proxy.reset()
            case "network slow":
                proxy.delay = 0.05 + 0.2 * one.chance
                await self._heal(proxy, one.seconds)
            case "connections stalled":
                proxy.stall()
                await self._heal(proxy, one.seconds)
            case "connections dropped":
                proxy.drop()
                await self._heal(proxy, one.seconds)
            case "connections refused":
                proxy.refuse()
                await self._heal(proxy, one.seconds)
            case _:
                seat.signal(signal.SIGSTOP)
                await asyncio.sleep(one.seconds)
                seat.signal(signal.SIGCONT)

    @staticmethod
    async def _move(clock: Clock, one: Plan) -> None:
        clock.set(one.step)
        await asyncio.sleep(one.seconds)
        clock.set(0)

    @staticmethod
    async def _heal(proxy: Proxy, after: float) -> None:
        await asyncio.sleep(after)
        proxy.heal()

    async def _hit_server(self, one: Plan) -> None:
        match one.kind:
            case "server clock stepped" | "server clock stepped by years":
                assert self._clock is not None
                await self._move(self._clock, one)
                if one.kind == SERVER_CLOCK_YEARS:
                    await self.restart_sleeps()
            case "server frozen":
                await self._in_thread(self._server.freeze)
                await asyncio.sleep(one.seconds)
                await self._in_thread(self._server.thaw)
            case "backends terminated":
                with suppress(*BROKEN_CONNECTION):
                    await self._terminate(one.chance)
            case "max_connections reached":
                await self._exhaust_connections(one.seconds)
            case _:
                if one.kind == "server killed":
                    await self._in_thread(self._server.kill)
                else:
                    mode = "fast" if one.kind.endswith("fast") else "immediate"
                    await self._in_thread(lambda: self._server.stop(mode))  # type: ignore[arg-type]
                await asyncio.sleep(one.seconds)
                await self._in_thread(self._server.start)

    async def _lock_rows(self, fault: Fault, seconds: float) -> None:
        """Hold some rows in an open transaction, unless the server is down or ends the session."""
        with suppress(*BROKEN_CONNECTION):
            connection = await asyncpg.connect(self._dsn, timeout=2)
            try:
                async with connection.transaction():
                    rows = await connection.fetch(LOCK_ROWS[fault.kind], timeout=10)
                    fault.rows = frozenset(row[0] for row in rows)
                    await asyncio.sleep(seconds)
            finally:
                with suppress(*BROKEN_CONNECTION):
                    await connection.close(timeout=2)

    async def restart_sleeps(self) -> None:
        """End the sleeps that began while the server's clock was years ahead."""
        while True:
            with suppress(*BROKEN_CONNECTION):
                connection = await asyncpg.connect(self._dsn, timeout=2)
                try:
                    await connection.execute(RESTART_SLEEPS, timeout=60)
                    await connection.execute(WAKE, timeout=60)
                    return
                finally:
                    connection.terminate()
            await asyncio.sleep(0.2)

    async def _in_thread(self, call: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _terminate(self, share: float) -> None:
        connection = await asyncpg.connect(self._dsn, timeout=2)
        try:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() <= $1",
                share,
            )
        finally:
            await connection.close(timeout=2)

    async def _exhaust_connections(self, seconds: float) -> None:
        """Open every connection that the server permits."""
        crowd: list[Awaitable[None]] = []
        with suppress(*BROKEN_CONNECTION):
            while True:
                connection = await asyncpg.connect(self._dsn, timeout=2)
                crowd.append(connection.close(timeout=2))
        await asyncio.sleep(seconds)
        await asyncio.gather(*crowd, return_exceptions=True)
