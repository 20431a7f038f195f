"""What the tests of the moving parts share: a record of events, a gate for jobs, a wire that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit

import asyncpg

from pg_scheduler import Scheduler
from pg_scheduler.events import Event, Subscriber
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.outcome import COMPLETE, Outcome
from pg_scheduler.jobs.rows import Claim, ExtendedJob, Extras, PlainJob
from pg_scheduler.scheduler.store import Store
from tests.support import patience

E = TypeVar("E", bound=Event)

PATIENCE = patience.PATIENCE
PROMPT = patience.PROMPT
LEASE = 60.0
SCHEDULED = '{"schedule_id": "a schedule"}'
"""The options of a job of a schedule: only such a job runs under an advisory lock."""


class Source(Protocol):
    """A bus or a Scheduler."""

    def subscribe(self, subscriber: Subscriber, *kinds: type[Event]) -> Callable[[], None]: ...


class Recorder:
    """Every event there was, and a way to wait for more."""

    def __init__(self, source: Source) -> None:
        self.source: Any = source
        self.events: list[Event] = []
        self._changed = asyncio.Event()
        source.subscribe(self._record)

    def _record(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    def of(self, kind: type[E], **fields: object) -> list[E]:
        """The events of a class whose fields have these values."""
        return [
            event
            for event in self.events
            if isinstance(event, kind) and all(getattr(event, key) == value for key, value in fields.items())
        ]

    async def until(self, kind: type[E], count: int = 1, **fields: object) -> list[E]:
        """Wait for so many of them."""
        async with asyncio.timeout(PATIENCE):
            while len(found := self.of(kind, **fields)) < count:
                self._changed.clear()
                await self._changed.wait()
        return found


class Gate:
    """A job that says when it has begun and waits until it may end."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.open = asyncio.Event()
        self.calls: list[Any] = []
        self.cancelled = 0
        self.most = 0
        self._inside = 0

    async def job(self, *args: Any) -> None:
        self.calls.append(args)
        self._inside += 1
        self.most = max(self.most, self._inside)
        self.began.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self._inside -= 1

    async def wait_begun(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.began.wait()
        self.began.clear()


def now() -> datetime:
    return datetime.now(UTC)


def new_job(job_id: str, name: str = "test.job", **values: Any) -> PlainJob:
    """A job that is due, with defaults for all that a test does not care about."""
    defaults: dict[str, Any] = {
        "execution_time": now() - timedelta(seconds=1),
        "task_data": '{"args":[],"kwargs":{}}',
        "priority": 5,
        "max_retries": 0,
        "misfire_grace_time": None,
        "timeout_seconds": None,
    }
    return PlainJob(job_id=job_id, job_name=name, **(defaults | values))


def new_worker(worker_id: str = "me") -> Worker:
    start = now()
    return Worker(worker_id, "host", 1, "0", 10, 0, start, start, start, True)


async def claim(
    store: Store, *jobs: PlainJob, worker_id: str = "me", lease: float = LEASE, limit: int = 1000
) -> list[Claim]:
    """Insert jobs and claim them for a worker that is registered for it."""
    await store.workers.register(new_worker(worker_id), lease)
    await store.inserts.insert([job for job in jobs if job.lock_key is None])
    of_schedules = [ExtendedJob(job, Extras(SCHEDULED)) for job in jobs if job.lock_key is not None]
    await store.inserts.insert_extended(of_schedules)
    return (await store.claims.exchange(worker_id, sorted({job.job_name for job in jobs}), limit)).jobs


def holds(value: object) -> bool:
    """Whether it is true now: mypy takes a property that was asserted once for a constant."""
    return bool(value)


async def insert_unreadable(dsn: str) -> None:
    """Insert the due job ``unreadable``, whose arguments have more than 1 GB of text."""
    connection = await asyncpg.connect(dsn)
    await insert_unreadable_on(connection)
    await connection.close()


async def insert_unreadable_on(connection: asyncpg.Connection | asyncpg.Pool) -> None:
    await connection.execute("ALTER TABLE scheduled_jobs DROP CONSTRAINT scheduled_jobs_payload")
    await connection.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, task_data) SELECT 'unreadable',"
        " 'test.job', now() - interval '2 s', ('{\"args\": [' || repeat('1e131071,', 8300) || '0]}')::jsonb"
    )


async def statuses(store: Store, *job_ids: str) -> list[str]:
    found = await store.jobs.statuses_of(job_ids)
    return [found[job_id].value for job_id in job_ids]


def completed(claims: Sequence[Claim]) -> list[tuple[Claim, Outcome]]:
    return [(each, COMPLETE) for each in claims]


@asynccontextmanager
async def locked(dsn: str, table: str, mode: str = "ACCESS EXCLUSIVE") -> AsyncIterator[None]:
    """Somebody else's transaction holds the table through the block."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {table} IN {mode} MODE")
            yield
    finally:
        await connection.close()


async def kill_backends(dsn: str, like: str = "%") -> int:
    """Terminate the other sessions of a database whose last statement is like that, as a failover would."""
    connection = await asyncpg.connect(dsn)
    try:
        killed = await connection.fetch(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND query ILIKE $1",
            like,
        )
        return len(killed)
    finally:
        await connection.close()


def listening_pid(scheduler: Scheduler) -> int:
    """The process id of the session that listens."""
    connection = scheduler._parts.store.shared._connection
    assert connection is not None
    pid: int = connection.get_server_pid()
    return pid


class Wire:
    """A proxy between a client and the server that can be cut, freeze, or lose notifications."""

    def __init__(self, dsn: str) -> None:
        self._target = urlsplit(dsn)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._port = 0
        self.accepted = 0
        self.loses_notifications = False

    @property
    def dsn(self) -> str:
        """The address of the server through this wire."""
        user = self._target.netloc.rpartition("@")[0] or "postgres"
        return f"postgresql://{user}@127.0.0.1:{self._port}{self._target.path}?sslmode=disable"

    async def heal(self) -> None:
        """Take connections, at the same address as before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def freeze_old_connections(self) -> None:
        """Let the connections there are hang half-open; new ones work."""
        self._flows.clear()
        self._flows = asyncio.Event()
        self._flows.set()

    async def close(self) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        query = parse_qs(self._target.query)
        if self._target.hostname is None:
            socket = Path(query["host"][0]) / f".s.PGSQL.{query['port'][0]}"
            there = await asyncio.open_unix_connection(str(socket))
        else:
            there = await asyncio.open_connection(self._target.hostname, self._target.port or 5432)
        self._writers |= {writer, there[1]}
        flows = self._flows
        for job in (self._pump(reader, there[1], flows), self._pump_back(there[0], writer, flows)):
            task = asyncio.create_task(job)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, flows: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await flows.wait()
                sink.write(data)
                await sink.drain()
        sink.close()

    async def _pump_back(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, flows: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await source.readexactly(5)
                body = await source.readexactly(int.from_bytes(head[1:]) - 4)
                await flows.wait()
                if head[:1] != b"A" or not self.loses_notifications:
                    sink.write(head + body)
                    await sink.drain()
        sink.close()


@asynccontextmanager
async def wire_to(dsn: str) -> AsyncIterator[Wire]:
    wire = Wire(dsn)
    await wire.heal()
    try:
        yield wire
    finally:
        await wire.close()
