"""What the rows measure with: a fresh database for each measurement, drivers in it, a place for results."""

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

from benchmarks.contestants import BARE, OURS, PEERS, Contestant
from benchmarks.drivers import Broken, Driver
from benchmarks.environments import Missing, command
from benchmarks.machine import processor_seconds
from benchmarks.peers.protocol import Mode, Order
from benchmarks.results import Outcome
from pg_scheduler.embedded import EmbeddedPostgres, Server

__all__ = ["Bench", "Database", "Load"]

MANY: Final = 600.0


@dataclass
class Load:
    """What the server did between two moments."""

    transactions: int
    wal_bytes: int
    cpu_seconds: float
    seconds: float


class Database:
    """A database of one measurement."""

    def __init__(self, bench: Bench, name: str) -> None:
        self.name = name
        self.dsn = bench.server.dsn(name)
        self._bench = bench

    async def run(
        self, contestant: Contestant, op: Any, *, timeout: float = MANY, **order: Any
    ) -> dict[str, Any]:
        """Run a driver from start to end; its result."""
        async with self.driver(contestant, op, timeout=timeout, **order) as driver:
            await driver.ready()
            await driver.go()
            return await driver.result()

    def driver(self, contestant: Contestant, op: Any, *, timeout: float = MANY, **order: Any) -> Driver:
        """A driver for this database, to be entered."""
        return Driver(contestant, Order(op=op, dsn=self.dsn, **order), timeout=timeout)

    @asynccontextmanager
    async def worker(self, contestant: Contestant, **order: Any) -> AsyncIterator[Driver]:
        """A worker that runs."""
        async with self.driver(contestant, "work", **order) as driver:
            await driver.ready()
            await driver.go()
            await driver.started()
            yield driver

    async def fill(self, contestant: Contestant, n: int, **order: Any) -> dict[str, Any]:
        """Insert n jobs through the contestant's own bulk call."""
        return await self.run(contestant, "many", n=n, **order)

    async def settle(self) -> None:
        """As it would look some minutes later, whoever filled the tables: vacuumed, analysed, on disk."""
        async with self.connect() as connection:
            await connection.execute("VACUUM (ANALYZE)")
            await connection.execute("CHECKPOINT")

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection for the harness."""
        connection = await asyncpg.connect(self.dsn)
        try:
            yield connection
        finally:
            await connection.close()

    async def check_finished(self, contestant: Contestant, left: int = 0) -> None:
        """So many jobs, and no more, may be unfinished.

        Raises:
            Broken: It is another number.
        """
        async with self.connect() as connection:
            found = await connection.fetchval(contestant.unfinished)
        if found != left:
            raise Broken(f"{found} jobs are unfinished in the database, not {left}")

    async def counters(self) -> Load:
        """Where the server's counters stand."""
        return await self._bench.counters(self.name)


class Bench:
    """One run of the benchmarks.

    Args:
        quick: Small numbers, and only the peers that a goal names.
        chosen: Names of the peers wanted; None for all.
        rounds: How often each measurement is repeated.
        soak_minutes: How long the soak takes.
        before: This library at another commit, which takes its turn after ours; None for none.
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
    ) -> None:
        self.server = server
        self.quick = quick
        self.rounds = rounds
        self.soak_minutes = soak_minutes
        self.skipped: dict[str, str] = {}
        self.broken: list[str] = []
        self._chosen = chosen
        self._ours = [OURS] if before is None else [OURS, before]
        self._numbers = itertools.count(1)
        self._templates: set[str] = set()
        self._admin: asyncpg.Connection | None = None
        self.outcome = Outcome("", "", ())

    async def open(self) -> asyncpg.Connection:
        """Connect; the connection is the harness's own."""
        self._admin = await asyncpg.connect(self.server.dsn("postgres"))
        return self._admin

    async def close(self) -> None:
        """End the connection."""
        if self._admin is not None:
            await self._admin.close()

    def scale(self, full: int, quick: int) -> int:
        """A number that depends on how much time there is."""
        return quick if self.quick else full

    def peers(self, *, named: Iterable[str] = (), others: bool = True) -> list[Contestant]:
        """The peers of a row: those a goal names, and when there is time the others."""
        wanted = set(named)
        if others and not self.quick:
            wanted |= {peer.name for peer in PEERS}
        result = []
        for peer in PEERS:
            if peer.name not in wanted or peer.name in self.skipped:
                continue
            if self._chosen is not None and peer.name not in self._chosen:
                continue
            try:
                command(peer)
            except Missing as why:
                self.skipped[peer.name] = str(why)
                continue
            result.append(peer)
        return result

    def contestants(
        self, *, named: Iterable[str] = (), bare: bool = False, others: bool = True
    ) -> list[Contestant]:
        """Ourselves and the peers, in the order of a round."""
        return [*self._ours, *([BARE] if bare else []), *self.peers(named=named, others=others)]

    async def alternate(
        self,
        contestants: Sequence[Contestant],
        measure: Callable[[Contestant, Database], Awaitable[None]],
        *,
        rounds: int | None = None,
    ) -> None:
        """A B A B: every contestant in turn, again and again, each time in a fresh database."""
        broken: set[str] = set()
        for number in range(rounds or self.rounds):
            for contestant in contestants:
                if contestant.name in broken:
                    continue
                self.progress(f"round {number + 1}: {contestant.name}")
                try:
                    async with self.database(contestant) as database:
                        await measure(contestant, database)
                except Broken as why:
                    broken.add(contestant.name)
                    if contestant is OURS:
                        self.broken.append(self.outcome.name)
                    self.outcome.note(f"{contestant.name}: {why}")
                    self.progress(f"{contestant.name}: {why}")

    @asynccontextmanager
    async def database(self, contestant: Contestant) -> AsyncIterator[Database]:
        """A fresh database with the contestant's empty tables, dropped at the end."""
        template = await self._template(contestant)
        name = f"bench_{next(self._numbers)}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield Database(self, name)
        finally:
            await self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def progress(self, text: str) -> None:
        """Tell what is going on."""
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
        """Let workers run the n jobs that are there; what they tell, and what the server did meanwhile.

        Raises:
            Broken: More or fewer jobs ran, or other than ``left`` jobs have not ended in the database.
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
            raise Broken(f"{count} of {n} jobs ran")
        await database.check_finished(contestant, left)
        load = Load(
            after.transactions - before.transactions,
            after.wal_bytes - before.wal_bytes,
            after.cpu_seconds - before.cpu_seconds,
            after.seconds - before.seconds,
        )
        return list(results), load

    async def counters(self, database: str) -> Load:
        """Where the server's counters stand for a database. WAL and processor time are the whole server's."""
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
            except Broken as why:
                await self._execute(f"DROP DATABASE {name} WITH (FORCE)")
                self.skipped[contestant.name] = str(why)
                raise
            self._templates.add(name)
        return name

    async def _execute(self, statement: str) -> None:
        assert self._admin is not None
        await self._admin.execute(statement)
