"""The tools of the rows: a new database for each measurement, drivers in it, and the outcome."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from benchmarks.contestants import DURABLE_PEERS, OURS, PEERS, Contestant
from benchmarks.drivers import Driver, DriverError
from benchmarks.environments import MissingPeerError, command
from benchmarks.machine import processor_seconds
from benchmarks.peers.protocol import Mode, Order
from benchmarks.results import Outcome
from pg_scheduler.embedded import EmbeddedPostgres, Server

TIMEOUT_S: Final = 600.0


@dataclass
class Load:
    """The work of the server during a measurement."""

    transactions: int
    wal_bytes: int
    cpu_seconds: float
    seconds: float


class Database:
    """The database of one measurement."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.name = name
        self.dsn = bench.server.dsn(name)
        self._bench = bench

    async def run(
        self, contestant: Contestant, op: Any, *, timeout: float = TIMEOUT_S, **order: Any
    ) -> dict[str, Any]:
        """Run a driver from start to end and return its result."""
        async with self.driver(contestant, op, timeout=timeout, **order) as driver:
            await driver.ready()
            await driver.go()
            return await driver.result()

    def driver(self, contestant: Contestant, op: Any, *, timeout: float = TIMEOUT_S, **order: Any) -> Driver:
        """Return a driver for this database, to be used as a context manager."""
        return Driver(contestant, Order(op=op, dsn=self.dsn, **order), timeout=timeout)

    @asynccontextmanager
    async def worker(self, contestant: Contestant, **order: Any) -> AsyncIterator[Driver]:
        """Run a worker."""
        async with self.driver(contestant, "work", **order) as driver:
            await driver.ready()
            await driver.go()
            await driver.started()
            yield driver

    async def fill(self, contestant: Contestant, n: int, **order: Any) -> dict[str, Any]:
        """Insert n jobs through the contestant's own bulk call."""
        return await self.run(contestant, "many", n=n, **order)

    async def settle(self) -> None:
        """Vacuum, analyse and write a checkpoint, as the server would within minutes after an insert."""
        async with self.connect() as connection:
            await connection.execute("VACUUM (ANALYZE)")
            await connection.execute("CHECKPOINT")

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[asyncpg.Connection]:
        """Connect for the harness."""
        connection = await asyncpg.connect(self.dsn)
        try:
            yield connection
        finally:
            await connection.close()

    async def check_finished(self, contestant: Contestant, left: int = 0) -> None:
        """Check that ``left`` jobs are unfinished.

        Raises:
            DriverError: The number differs.
        """
        async with self.connect() as connection:
            found = await connection.fetchval(contestant.unfinished)
        if found != left:
            raise DriverError(f"{found} jobs are unfinished in the database instead of {left}")

    async def counters(self) -> Load:
        """Return the server's counters."""
        return await self._bench.counters(self.name)


class Bench:
    """One run of the benchmarks.

    Args:
        quick: Whether to use small numbers and only the peers that a goal names.
        chosen: Names of the peers to measure; None for all.
        rounds: The repetitions of each measurement.
        soak_minutes: The duration of the row soak, and of each variant of the row inflow.
        before: This library at another commit, which takes its turn after ours; None for none.
        variants: The variants of the row inflow; None for all.
    """

    def __init__(
        self,
        server: Server,
        *,
        quick: bool,
        chosen: Sequence[str] | None,
        rounds: int,
        soak_minutes: float,
        before: Contestant | None = None,
        variants: Sequence[str] | None = None,
    ) -> None:
        self.server = server
        self.quick = quick
        self.rounds = rounds
        self.soak_minutes = soak_minutes
        self.variants = variants
        self.skipped: dict[str, str] = {}
        self.failed: list[str] = []
        self._chosen = chosen
        self._ours = [OURS] if before is None else [OURS, before]
        self._numbers = itertools.count(1)
        self._templates: set[str] = set()
        self._admin: asyncpg.Connection | None = None
        self.outcome = Outcome("", "", ())

    async def open(self) -> asyncpg.Connection:
        """Connect and return the connection of the harness."""
        self._admin = await asyncpg.connect(self.server.dsn("postgres"))
        return self._admin

    async def close(self) -> None:
        """Close the connection."""
        if self._admin is not None:
            await self._admin.close()

    def scale(self, full: int, quick: int) -> int:
        """Return the full or the quick number."""
        return quick if self.quick else full

    def peers(self, *, named: Iterable[str] = (), others: bool = True) -> list[Contestant]:
        """Return the peers of a row: those that a goal names, and the others unless the run is quick."""
        wanted = set(named)
        if others and not self.quick:
            wanted |= {peer.name for peer in PEERS}
        return self._installed([peer for peer in PEERS if peer.name in wanted])

    def durable_peers(self) -> list[Contestant]:
        """Return the peers of a row about durable steps."""
        return self._installed(DURABLE_PEERS)

    def _installed(self, peers: Iterable[Contestant]) -> list[Contestant]:
        """Return those that are chosen, and can be installed."""
        result = []
        for peer in peers:
            if peer.name in self.skipped:
                continue
            if self._chosen is not None and peer.name not in self._chosen:
                continue
            try:
                command(peer)
            except MissingPeerError as error:
                self.skipped[peer.name] = str(error)
                continue
            result.append(peer)
        return result

    def contestants(
        self, *, named: Iterable[str] = (), bare: Contestant | None = None, others: bool = True
    ) -> list[Contestant]:
        """Return this library, a bare loop if given, and the peers in the order of a round."""
        return [*self._ours, *([bare] if bare else []), *self.peers(named=named, others=others)]

    async def alternate(
        self,
        contestants: Sequence[Contestant],
        measure: Callable[[Contestant, Database], Awaitable[None]],
        *,
        rounds: int | None = None,
    ) -> None:
        """Measure all contestants in turn (A B A B), each time in a new database."""
        failed: set[str] = set()
        for number in range(rounds or self.rounds):
            for contestant in contestants:
                if contestant.name in failed:
                    continue
                self.progress(f"round {number + 1}: {contestant.name}")
                try:
                    async with self.database(contestant) as database:
                        await measure(contestant, database)
                except DriverError as error:
                    failed.add(contestant.name)
                    if contestant is OURS:
                        self.failed.append(self.outcome.name)
                    self.outcome.note(f"{contestant.name}: {error}")
                    self.progress(f"{contestant.name}: {error}")

    @asynccontextmanager
    async def database(self, contestant: Contestant) -> AsyncIterator[Database]:
        """Create a database with the contestant's empty tables, and drop it at the end."""
        template = await self._template(contestant)
        name = f"bench_{next(self._numbers)}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield Database(self, name)
        finally:
            await self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def progress(self, text: str) -> None:
        """Print a line of progress."""
        print(f"  {time.strftime('%H:%M:%S')} {self.outcome.name:<12} {text}", file=sys.stderr, flush=True)

    async def drained(
        self,
        contestant: Contestant,
        database: Database,
        n: int,
        mode: Mode,
        *,
        workers: int = 1,
        left: int = 0,
        **order: Any,
    ) -> tuple[list[dict[str, Any]], Load]:
        """Let workers run the n jobs in the database; return their results and the work of the server.

        Raises:
            DriverError: Not n jobs ran, or not ``left`` jobs are unfinished in the database.
        """
        before = await database.counters()
        quiet = 1.0 if workers > 1 else 0.0
        drivers = [
            database.driver(contestant, "work", n=n, mode=mode, quiet=quiet, **order) for _ in range(workers)
        ]
        try:
            for driver in drivers:
                await driver.__aenter__()
            await asyncio.gather(*(driver.ready() for driver in drivers))
            for driver in drivers:
                await driver.go()
            results = await asyncio.gather(*(driver.result() for driver in drivers))
        finally:
            for driver in drivers:
                await driver.__aexit__(None, None, None)
        after = await database.counters()
        count = sum(result["count"] for result in results)
        if count != n:
            raise DriverError(f"{count} of {n} jobs ran")
        await database.check_finished(contestant, left)
        load = Load(
            after.transactions - before.transactions,
            after.wal_bytes - before.wal_bytes,
            after.cpu_seconds - before.cpu_seconds,
            after.seconds - before.seconds,
        )
        return list(results), load

    async def counters(self, database: str) -> Load:
        """Return the counters of a database; WAL and processor time are those of the whole server."""
        assert self._admin is not None
        await self._admin.execute("SELECT pg_stat_clear_snapshot()")
        row = await self._admin.fetchrow(
            """
            SELECT xact_commit + xact_rollback AS transactions,
                pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint AS wal
            FROM pg_stat_database WHERE datname = $1
            """,
            database,
        )
        assert row is not None
        pid = self.server.pid if isinstance(self.server, EmbeddedPostgres) else None
        return Load(row["transactions"], row["wal"], processor_seconds(pid), time.monotonic())

    async def _template(self, contestant: Contestant) -> str:
        name = "template_" + "".join(
            letter if letter.isalnum() else "_" for letter in contestant.name.lower()
        )
        if name not in self._templates:
            await self._execute(f"CREATE DATABASE {name}")
            try:
                await Database(self, name).run(contestant, "install")
            except DriverError as error:
                await self._execute(f"DROP DATABASE {name} WITH (FORCE)")
                self.skipped[contestant.name] = str(error)
                raise
            self._templates.add(name)
        return name

    async def _execute(self, statement: str) -> None:
        assert self._admin is not None
        await self._admin.execute(statement)
