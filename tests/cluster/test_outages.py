"""One Scheduler, and what may befall its database, one fault after the other.

Each fault is made for real, on a server of these tests' own, and takes real time. Some jobs run when it comes
and end while it lasts, some are due then, more come afterwards: ``Outage.survived()`` says what is promised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg
import pytest

from pg_scheduler import JobSpec, Scheduler
from pg_scheduler.embedded import EmbeddedPostgres, StopMode
from pg_scheduler.errors import (
    DatabaseUnavailableError,
    PoolClosedError,
    SchemaForbiddenError,
    SchemaMissingError,
)
from pg_scheduler.events import JobCompleted, ListenerConnected, ListenerLost, ServiceRetrying
from tests.cluster.outages import (
    PATIENCE,
    Outage,
    afar,
    either,
    fill,
    outage,
    primary_and_standby,
    tiny_disk,
    vanish,
)
from tests.conftest import FAST
from tests.support.worker import holds, now
from tools.chaos.proxy import Proxy

pytestmark = pytest.mark.timeout(90)

BESIDES: Final = {"application_name": "besides"}
"""A connection of the test, not of the Scheduler."""

TERMINATE: Final = """
    SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'besides'
"""
REFUSE: Final = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE 'it is %', TG_ARGV[0] USING ERRCODE = TG_ARGV[0]; END $$;
    CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON scheduled_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('{}')
"""


# -- a server that is away -----------------------------------------------------------------------------


async def stop_and_start(server: EmbeddedPostgres, how: StopMode | None) -> None:
    await asyncio.to_thread(server.kill if how is None else lambda: server.stop(how))
    await asyncio.to_thread(server.start)


@pytest.mark.parametrize("how", ["fast", "immediate", None], ids=["fast", "immediate", "killed"])
async def test_a_restart(victim: EmbeddedPostgres, address: str, how: StopMode | None) -> None:
    async with outage(address) as one:
        await one.before()
        restart = asyncio.create_task(stop_and_start(victim, how))
        await one.trouble()
        one.let_end()
        await restart
        await one.survived()


async def test_half_a_minute_without_a_server(victim: EmbeddedPostgres, address: str) -> None:
    async with outage(address) as one:
        await one.before(due=5)
        await asyncio.to_thread(victim.stop, "fast")
        left = time.monotonic()
        await one.trouble("claimer")
        one.let_end()
        with pytest.raises(DatabaseUnavailableError):
            await one.scheduler.schedule(one.note, execution_time=now())
        await one.trouble("completer")
        await asyncio.sleep(left + 30 - time.monotonic())
        waits = [event.next_in for event in one.seen.of(ServiceRetrying, service="claimer")]
        assert 2 < max(waits) <= 10
        await asyncio.to_thread(victim.start)
        await one.survived()


async def test_all_its_backends_are_terminated_again_and_again(address: str) -> None:
    async with outage(address) as one:
        await one.before()
        for times in range(1, 6):
            await afar(address, TERMINATE)
            await one.seen.until(ListenerLost, times)
            await one.seen.until(ListenerConnected, times)
        await one.survived()


async def test_a_frozen_server_costs_the_lease_and_no_more(victim: EmbeddedPostgres, address: str) -> None:
    async with outage(address, lease=2) as one:
        await one.before()
        await asyncio.to_thread(victim.freeze)
        await asyncio.sleep(3)
        await asyncio.to_thread(victim.thaw)
        await one.survived(lost=True)


# -- connections that lead nowhere ---------------------------------------------------------------------


@pytest.fixture
async def through(address: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy to the database, and the DSN that leads through it."""
    proxy = Proxy(address)
    yield proxy, await proxy.start()
    proxy.close()


async def test_the_connection_of_the_hot_path_is_half_open(
    through: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than a lease, which heartbeats keep on another connection, that of finished jobs too."""
    monkeypatch.setattr("pg_scheduler.store.store.HOT_TIMEOUT", 3.5)
    proxy, dsn = through
    async with outage(dsn, lease=2) as one:
        await one.before()
        vanish(proxy, one.scheduler._store.connections._steady)
        one.let_end()
        await one.trouble("claimer")
        await one.survived()


async def test_the_connection_that_listens_is_half_open(
    through: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pg_scheduler.store.connections.shared.ANSWER_TIMEOUT", 1)
    proxy, dsn = through
    async with outage(dsn) as one:
        await one.before()
        vanish(proxy, one.scheduler._store.shared._connection)
        await one.scheduler.send_heartbeat(one.held[0])  # as it is made every twenty seconds
        await one.seen.until(ListenerLost)
        await one.seen.until(ListenerConnected)
        await one.survived()


async def test_all_connections_are_half_open(
    through: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("HOT_TIMEOUT", "CALL_TIMEOUT", "ANSWER_TIMEOUT"):
        for module in ("connections.pool", "store", "connections.shared"):
            monkeypatch.setattr(f"pg_scheduler.store.{module}.{bound}", 1, raising=False)
    proxy, dsn = through
    async with outage(dsn) as one:
        await one.before()
        proxy.drop()
        proxy.heal()
        one.let_end()
        await one.scheduler.send_heartbeat(one.held[0])
        await one.trouble("claimer")
        await one.survived()


# -- a server that does not write ----------------------------------------------------------------------


async def test_a_server_that_only_reads(address: str) -> None:
    """As the old primary does after a failover: 25006."""
    parts = urlsplit(address)
    elsewhere = parts._replace(path="/postgres").geturl()
    read_only = f'ALTER DATABASE "{parts.path[1:]}" {{}} default_transaction_read_only'
    async with outage(address) as one:
        await one.before()
        await afar(elsewhere, read_only.format("SET") + " = on")
        await afar(address, TERMINATE)
        one.let_end()
        await one.trouble("claimer", "completer", "heartbeat")
        with pytest.raises(DatabaseUnavailableError, match="ReadOnlySQLTransactionError"):
            await one.scheduler.schedule(one.note, execution_time=now())
        await afar(elsewhere, read_only.format("RESET"))
        await afar(address, TERMINATE)
        await one.survived()


@pytest.mark.parametrize("state", ["53100", "53200", "40001", "57014"])
async def test_every_write_fails_for_a_while(address: str, state: str) -> None:
    """Said by a trigger, with the state of a full disk, of no memory, of a conflict and of a cancellation."""
    besides = await asyncpg.connect(address)
    async with outage(address) as one:
        await one.before()
        await besides.execute(REFUSE.format(state))
        one.let_end()
        await one.trouble("completer", "claimer")
        with pytest.raises(DatabaseUnavailableError) as caught:
            await one.scheduler.schedule(one.note, execution_time=now())
        assert isinstance(caught.value.__cause__, asyncpg.PostgresError)
        assert caught.value.__cause__.sqlstate == state
        await besides.execute("DROP FUNCTION refuse CASCADE")
        await one.survived()
    await besides.close()


async def schedule_for_ever(one: Outage) -> None:
    while True:
        await one.scheduler.schedule(one.note, execution_time=now() + timedelta(hours=1))


async def test_a_full_disk(victim: EmbeddedPostgres, address: str) -> None:
    """ENOSPC for real, from a file system of a few megabytes that holds the table of jobs."""
    with tiny_disk(victim, megabytes=16) as disk:
        if disk is None:
            pytest.skip("it takes the right to mount a small file system")
        await afar(address, f"CREATE TABLESPACE tiny LOCATION '{disk}/data'")
        historian = await asyncpg.connect(address)
        try:
            async with outage(address) as one:
                await one.scheduler.db_pool.execute(
                    "ALTER TABLE scheduled_jobs SET (fillfactor = 100);"
                    "ALTER TABLE scheduled_jobs SET TABLESPACE tiny"
                )
                # Somebody's snapshot keeps every dead row, so that nothing can be written in its place.
                async with historian.transaction(isolation="repeatable_read"):
                    await historian.execute("SELECT FROM scheduled_jobs")
                    await one.before(due=1)
                    ballast = fill(disk)
                    with pytest.raises(DatabaseUnavailableError) as caught:
                        await schedule_for_ever(one)
                    assert isinstance(caught.value.__cause__, asyncpg.DiskFullError)
                    one.let_end()
                    (fault, *_) = await one.trouble("completer", "claimer")
                    assert isinstance(fault.error.__cause__, asyncpg.DiskFullError)
                    ballast.unlink()
                    await one.survived()
        finally:
            await historian.close()
            await afar(address, "ALTER TABLE scheduled_jobs SET TABLESPACE pg_default")
            await afar(address, "DROP TABLESPACE tiny")


# -- no connection left --------------------------------------------------------------------------------


@asynccontextmanager
async def crowd(address: str) -> AsyncIterator[None]:
    """Take every connection there is, and each that becomes free, through the block."""
    taken: list[Any] = []
    full = asyncio.Event()

    async def take() -> None:
        while True:
            try:
                taken.append(await asyncpg.connect(address, server_settings=BESIDES))
            except asyncpg.TooManyConnectionsError:
                full.set()
                await asyncio.sleep(0.001)

    taking = asyncio.create_task(take())
    try:
        await full.wait()
        yield
    finally:
        taking.cancel()
        await asyncio.wait([taking])
        for connection in taken:
            await connection.close()


async def test_no_connection_is_left_at_the_start(address: str) -> None:
    async with asyncpg.create_pool(address, min_size=0, max_size=5) as pool:
        scheduler = Scheduler(pool)
        async with crowd(address):
            with pytest.raises(DatabaseUnavailableError, match="TooManyConnectionsError"):
                await scheduler.start()
        await scheduler.start()
        await scheduler.shutdown()


async def test_no_connection_is_left_in_the_middle(address: str) -> None:
    killer = await asyncpg.connect(address, server_settings=BESIDES)
    async with outage(address) as one:
        await one.before()
        async with crowd(address):
            while len(one.seen.of(ServiceRetrying, service="claimer")) < 3:
                await killer.execute(TERMINATE)
            one.let_end()
        await one.survived()
    await killer.close()


# -- another server ------------------------------------------------------------------------------------


async def no_start_where_nothing_can_be_written(dsn: str) -> None:
    """asyncpg's own error for it is an InternalClientError, and it passes."""
    writable = f"{dsn}&target_session_attrs=read-write"
    async with asyncpg.create_pool(writable, min_size=0, max_size=5) as pool:
        with pytest.raises(DatabaseUnavailableError) as caught:
            await Scheduler(pool).start()
    assert isinstance(caught.value.__cause__, asyncpg.InternalClientError)


@pytest.mark.usefixtures("victim")  # or else skip
async def test_a_failover_to_a_standby_loses_no_job(scratch: Path | None) -> None:
    """What was committed is on the standby, by ``synchronous_standby_names``."""
    with primary_and_standby(FAST, scratch) as (primary, standby):
        await afar(primary.dsn(), "ALTER SYSTEM SET synchronous_standby_names = '*'")
        await afar(primary.dsn(), "SELECT pg_reload_conf()")
        await no_start_where_nothing_can_be_written(standby.dsn())
        async with outage(either(primary.dsn(), standby.dsn())) as one:
            await one.before(count=20)
            sure = await one.scheduler.schedule_bulk([JobSpec(one.note, now()) for _ in range(500)])
            killing = asyncio.create_task(asyncio.to_thread(primary.kill))
            while not killing.done():
                with suppress(DatabaseUnavailableError):
                    sure.append(await one.scheduler.schedule(one.note, execution_time=now()))
            await one.trouble("claimer", "listener")
            one.let_end()
            assert await afar(standby.dsn(), "SELECT pg_promote()")
            await one.survived()
            for job_id in sure:
                await one.seen.until(JobCompleted, job_id=job_id)


# -- what does not pass --------------------------------------------------------------------------------


def loud(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname in {"CRITICAL", "ERROR"}]


async def gives_up(one: Outage, error: type[BaseException]) -> None:
    """The Scheduler ends, and says why."""
    with pytest.raises(error):
        await asyncio.wait_for(one.scheduler.wait(), PATIENCE)
    with pytest.raises(error):
        await one.end
    await asyncio.sleep(0)  # what the end of the shutdown is told to, comes after who waits for it
    assert not holds(one.scheduler.is_running)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("DROP TABLE scheduled_jobs CASCADE", SchemaMissingError),
        ("DROP TABLE scheduler_workers CASCADE", SchemaMissingError),
        ("DROP SCHEMA public CASCADE", SchemaMissingError),
        ("ALTER TABLE scheduled_jobs DROP COLUMN attempt CASCADE", SchemaMissingError),
        ("REVOKE UPDATE ON scheduled_jobs FROM clerk", SchemaForbiddenError),
        ("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM clerk", SchemaForbiddenError),
    ],
)
async def test_a_fault_that_does_not_pass_is_told_once(
    address: str, what: str, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncpg.create_pool(address, min_size=1, max_size=1) as owner:
        await Scheduler(owner).initialize_db()
        await owner.execute("CREATE ROLE clerk LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO clerk")
        try:
            async with outage(address.replace("postgres@", "clerk@"), ends=True) as one:
                await one.before(due=0)
                await owner.execute(what)
                one.let_end()
                await gives_up(one, error)
        finally:
            await owner.execute("DROP OWNED BY clerk; DROP ROLE clerk")
    (line,) = loud(caplog)
    assert "failed, the Scheduler shuts down: Schema" in line


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("how", ["closed", "terminated"])
async def test_the_pool_is_taken_away(
    address: str, how: str, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake of the application: its Scheduler comes first. close() waits for what the Scheduler holds."""
    async with outage(address, size=size, ends=True) as one:
        await one.before(due=0)
        pool = one.scheduler.db_pool
        if how == "closed":
            await asyncio.wait_for(pool.close(), PATIENCE)
        else:
            pool.terminate()
        await gives_up(one, PoolClosedError)
    why, *unwritten = loud(caplog)
    assert "await scheduler.shutdown() before pool.close()" in why
    assert unwritten == ["pg_scheduler shutdown failed"], "with the jobs whose results could not be written"
