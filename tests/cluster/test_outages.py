"""One Scheduler while its database fails; one test for each fault.

Each fault is real, on a private server, and takes real time. Some jobs run when the fault starts and end
during it, some become due during it, and one is scheduled afterwards. ``Workload.assert_recovered()``
contains the assertions.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg
import pytest

from pg_scheduler import JobSpec, Scheduler
from pg_scheduler.database import refused_rows
from pg_scheduler.embedded import EmbeddedPostgres, StopMode
from pg_scheduler.errors import (
    ConnectionRejectedError,
    DatabaseUnavailableError,
    PoolClosedError,
    SchemaForbiddenError,
    SchemaMissingError,
)
from pg_scheduler.events import (
    JobCompleted,
    JobFailed,
    ListenerConnected,
    ListenerLost,
    OutcomeRefused,
    ServiceRetrying,
)
from pg_scheduler.queue import consequences
from pg_scheduler.schedules import planner
from pg_scheduler.worker import completer, refused_claims
from tests.cluster.outages import (
    TIMEOUT_S,
    Workload,
    drop_connection,
    fetch_value,
    fill_disk,
    primary_and_standby,
    small_disk,
    start_workload,
    writable_dsn,
)
from tests.conftest import FAST
from tests.support.inside import store_of
from tests.support.store import use_options
from tests.support.stories import NIGHTLY
from tests.support.worker import holds, now
from tools.chaos.proxy import Proxy

pytestmark = pytest.mark.timeout(240)

TEST_CONNECTION: Final = {"application_name": "test"}
"""The server settings of a connection that `TERMINATE` spares."""

TERMINATE: Final = """
    SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'test'
"""
FAIL_WRITES: Final = """
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE 'SQLSTATE %', TG_ARGV[0] USING ERRCODE = TG_ARGV[0]; END $$;
    CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON scheduled_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION fail('{}')
"""


# -- server outages ------------------------------------------------------------------------------------


async def restart(server: EmbeddedPostgres, how: StopMode | None) -> None:
    await asyncio.to_thread(server.kill if how is None else lambda: server.stop(how))
    await asyncio.to_thread(server.start)


@pytest.mark.parametrize("how", ["fast", "immediate", None], ids=["fast", "immediate", "killed"])
async def test_scheduler_recovers_from_a_restart(
    private_server: EmbeddedPostgres, private_dsn: str, how: StopMode | None
) -> None:
    async with start_workload(private_dsn) as workload:
        await workload.schedule_jobs()
        restarting = asyncio.create_task(restart(private_server, how))
        await workload.wait_for_retries()
        workload.finish_held_jobs()
        await restarting
        await workload.assert_recovered()


@NIGHTLY
async def test_scheduler_recovers_from_an_outage_of_30_seconds(
    private_server: EmbeddedPostgres, private_dsn: str
) -> None:
    async with start_workload(private_dsn) as workload:
        await workload.schedule_jobs(due=5)
        await asyncio.to_thread(private_server.stop, "fast")
        began = time.monotonic()
        await workload.wait_for_retries("claimer")
        workload.finish_held_jobs()
        with pytest.raises(DatabaseUnavailableError):
            await workload.scheduler.schedule(workload.note, execution_time=now())
        await workload.wait_for_retries("completer")
        await asyncio.sleep(began + 30 - time.monotonic())
        waits = [event.next_in for event in workload.recorder.of(ServiceRetrying, service="claimer")]
        assert 2 < max(waits) <= 10
        await asyncio.to_thread(private_server.start)
        await workload.assert_recovered()


async def test_listener_reconnects_each_time_all_backends_are_terminated(private_dsn: str) -> None:
    async with start_workload(private_dsn) as workload:
        await workload.schedule_jobs()
        for count in range(1, 6):
            await fetch_value(private_dsn, TERMINATE)
            await workload.recorder.until(ListenerLost, count)
            await workload.recorder.until(ListenerConnected, count)
        await workload.assert_recovered()


async def test_scheduler_loses_only_its_lease_when_the_server_is_frozen(
    private_server: EmbeddedPostgres, private_dsn: str
) -> None:
    async with start_workload(private_dsn, lease=2) as workload:
        await workload.schedule_jobs()
        await asyncio.to_thread(private_server.freeze)
        await asyncio.sleep(3)
        await asyncio.to_thread(private_server.thaw)
        await workload.assert_recovered(lost=True)


# -- half-open connections -----------------------------------------------------------------------------


@pytest.fixture
async def proxied_dsn(private_dsn: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy to the database, and the DSN through it."""
    proxy = Proxy(private_dsn)
    yield proxy, await proxy.start()
    proxy.close()


async def test_scheduler_recovers_when_the_claim_connection_is_half_open(
    proxied_dsn: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than the lease, which heartbeats renew on another connection, also for unwritten results."""
    use_options(monkeypatch, hot_timeout_s=3.5)
    proxy, dsn = proxied_dsn
    async with start_workload(dsn, lease=2) as workload:
        await workload.schedule_jobs()
        drop_connection(proxy, store_of(workload.scheduler).connections.dedicated_connection.connection)
        workload.finish_held_jobs()
        await workload.wait_for_retries()  # of the claimer, or of the completer if no job is due
        await workload.assert_recovered()


async def test_listener_reconnects_when_its_connection_is_half_open(
    proxied_dsn: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_options(monkeypatch, answer_timeout_s=1)
    proxy, dsn = proxied_dsn
    async with start_workload(dsn) as workload:
        await workload.schedule_jobs()
        drop_connection(proxy, store_of(workload.scheduler).shared.connection)
        await workload.scheduler.send_heartbeat(workload.held[0])  # as every twenty seconds
        await workload.recorder.until(ListenerLost)
        await workload.recorder.until(ListenerConnected)
        await workload.assert_recovered()


async def test_scheduler_recovers_when_all_connections_are_half_open(
    proxied_dsn: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_options(monkeypatch, hot_timeout_s=1, call_timeout_s=1, answer_timeout_s=1)
    proxy, dsn = proxied_dsn
    async with start_workload(dsn) as workload:
        await workload.schedule_jobs()
        proxy.drop()
        proxy.heal()
        workload.finish_held_jobs()
        with suppress(DatabaseUnavailableError):  # unless it finds a new connection
            await workload.scheduler.send_heartbeat(workload.held[0])
        await workload.wait_for_retries()
        await workload.assert_recovered()


# -- rejected writes -----------------------------------------------------------------------------------


@NIGHTLY
async def test_scheduler_recovers_from_a_read_only_server(private_dsn: str) -> None:
    """SQLSTATE 25006, as of an old primary after a failover."""
    parts = urlsplit(private_dsn)
    elsewhere = parts._replace(path="/postgres").geturl()
    read_only = f'ALTER DATABASE "{parts.path[1:]}" {{}} default_transaction_read_only'
    async with start_workload(private_dsn) as workload:
        await workload.schedule_jobs()
        await fetch_value(elsewhere, read_only.format("SET") + " = on")
        await fetch_value(private_dsn, TERMINATE)
        workload.finish_held_jobs()
        await workload.wait_for_retries("claimer", "completer", "heartbeat")
        with pytest.raises(DatabaseUnavailableError, match="ReadOnlySQLTransactionError"):
            await workload.scheduler.schedule(workload.note, execution_time=now())
        await fetch_value(elsewhere, read_only.format("RESET"))
        await fetch_value(private_dsn, TERMINATE)
        await workload.assert_recovered()


@pytest.mark.parametrize("state", ["53100", "53200", "40001", "57014"])
async def test_scheduler_recovers_when_a_trigger_refused_every_write(
    private_dsn: str, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """The trigger raises the SQLSTATE of a full disk, lack of memory, a conflict or a cancellation."""
    for module in (completer, consequences, refused_rows, planner, refused_claims):
        monkeypatch.setattr(module, "REFUSED_PAUSE_S", 0.2)
    connection = await asyncpg.connect(private_dsn)
    async with start_workload(private_dsn) as workload:
        await workload.schedule_jobs()
        await connection.execute(FAIL_WRITES.format(state))
        workload.finish_held_jobs()
        await workload.recorder.until(OutcomeRefused)
        with pytest.raises(asyncpg.PostgresError) as caught:
            await workload.scheduler.schedule(workload.note, execution_time=now())
        assert caught.value.sqlstate == state
        await connection.execute("DROP FUNCTION fail CASCADE")
        await workload.assert_recovered()
    await connection.close()


async def schedule_until_it_raises(workload: Workload) -> None:
    while True:
        await workload.scheduler.schedule(workload.note, execution_time=now() + timedelta(hours=1))


async def test_scheduler_recovers_from_a_full_disk(
    private_server: EmbeddedPostgres, private_dsn: str
) -> None:
    """A real ENOSPC, from a file system of a few megabytes that contains the table of jobs."""
    with small_disk(private_server, megabytes=16) as disk:
        if disk is None:
            pytest.skip("mounting a small file system requires privileges")
        await fetch_value(private_dsn, f"CREATE TABLESPACE small LOCATION '{disk}/data'")
        snapshot = await asyncpg.connect(private_dsn)
        try:
            async with start_workload(private_dsn) as workload:
                await workload.scheduler.db_pool.execute(
                    "ALTER TABLE scheduled_jobs SET (fillfactor = 100);"
                    "ALTER TABLE scheduled_jobs SET TABLESPACE small"
                )
                # An old snapshot keeps every dead row, so that no row can reuse its place.
                async with snapshot.transaction(isolation="repeatable_read"):
                    await snapshot.execute("SELECT FROM scheduled_jobs")
                    await workload.schedule_jobs(due=1)
                    ballast = fill_disk(disk)
                    with pytest.raises(DatabaseUnavailableError) as caught:
                        await schedule_until_it_raises(workload)
                    assert isinstance(caught.value.__cause__, asyncpg.DiskFullError)
                    workload.finish_held_jobs()
                    (fault, *_) = await workload.wait_for_retries("completer", "claimer")
                    assert isinstance(fault.error.__cause__, asyncpg.DiskFullError)
                    ballast.unlink()
                    await workload.assert_recovered()
        finally:
            await snapshot.close()
            await fetch_value(private_dsn, "ALTER TABLE scheduled_jobs SET TABLESPACE pg_default")
            await fetch_value(private_dsn, "DROP TABLESPACE small")


# -- max_connections -----------------------------------------------------------------------------------


@asynccontextmanager
async def exhaust_connections(private_dsn: str) -> AsyncIterator[None]:
    """Take every connection of the server, and each that becomes free, during the block."""
    taken: list[Any] = []
    full = asyncio.Event()

    async def take() -> None:
        while True:
            try:
                taken.append(await asyncpg.connect(private_dsn, server_settings=TEST_CONNECTION))
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


async def test_start_raises_when_max_connections_is_reached(private_dsn: str) -> None:
    async with asyncpg.create_pool(private_dsn, min_size=0, max_size=5) as pool:
        scheduler = Scheduler(pool)
        async with exhaust_connections(private_dsn):
            with pytest.raises(DatabaseUnavailableError, match="TooManyConnectionsError"):
                await scheduler.start()
        await scheduler.start()
        await scheduler.shutdown()


async def test_scheduler_recovers_when_all_its_connections_are_taken(private_dsn: str) -> None:
    killer = await asyncpg.connect(private_dsn, server_settings=TEST_CONNECTION)
    async with start_workload(private_dsn) as workload:
        await workload.schedule_jobs()
        async with exhaust_connections(private_dsn):
            while len(workload.recorder.of(ServiceRetrying, service="claimer")) < 3:
                await killer.execute(TERMINATE)
            workload.finish_held_jobs()
        await workload.assert_recovered()
    await killer.close()


# -- failover ------------------------------------------------------------------------------------------


async def assert_start_raises_on_a_standby(dsn: str) -> None:
    """The cause is an InternalClientError of asyncpg, which is transient here."""
    writable = f"{dsn}&target_session_attrs=read-write"
    async with asyncpg.create_pool(writable, min_size=0, max_size=5) as pool:
        with pytest.raises(DatabaseUnavailableError) as caught:
            await Scheduler(pool).start()
    assert isinstance(caught.value.__cause__, asyncpg.InternalClientError)


@pytest.mark.usefixtures("private_server")  # skips the test if there is no private server
async def test_failover_to_a_standby_loses_no_job(scratch: Path | None) -> None:
    """The standby confirms each commit (``synchronous_standby_names``)."""
    with primary_and_standby(FAST, scratch) as (primary, standby):
        await fetch_value(primary.dsn(), "ALTER SYSTEM SET synchronous_standby_names = '*'")
        await fetch_value(primary.dsn(), "SELECT pg_reload_conf()")
        await assert_start_raises_on_a_standby(standby.dsn())
        async with start_workload(writable_dsn(primary.dsn(), standby.dsn())) as workload:
            await workload.schedule_jobs(count=20)
            confirmed = await workload.scheduler.schedule_bulk(
                [JobSpec(workload.note, now()) for _ in range(500)]
            )
            killing = asyncio.create_task(asyncio.to_thread(primary.kill))
            while not killing.done():
                with suppress(DatabaseUnavailableError):
                    confirmed.append(await workload.scheduler.schedule(workload.note, execution_time=now()))
            await workload.wait_for_retries("claimer", "listener")
            workload.finish_held_jobs()
            assert await fetch_value(standby.dsn(), "SELECT pg_promote()")
            await workload.assert_recovered()
            for job_id in confirmed:
                await workload.recorder.until(JobCompleted, job_id=job_id)


# -- rejected connections ------------------------------------------------------------------------------


async def reject_role(owner: asyncpg.Connection, name: str) -> None:
    await owner.execute("ALTER ROLE worker NOLOGIN")


async def restore_role(owner: asyncpg.Connection, name: str) -> None:
    await owner.execute("ALTER ROLE worker LOGIN")


async def revoke_connect(owner: asyncpg.Connection, name: str) -> None:
    await owner.execute(f'REVOKE CONNECT ON DATABASE "{name}" FROM PUBLIC')


async def grant_connect(owner: asyncpg.Connection, name: str) -> None:
    await owner.execute(f'GRANT CONNECT ON DATABASE "{name}" TO PUBLIC')


async def close_database(owner: asyncpg.Connection, name: str) -> None:
    await owner.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')


async def open_database(owner: asyncpg.Connection, name: str) -> None:
    await owner.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


async def rename_database(owner: asyncpg.Connection, name: str) -> None:
    await close_database(owner, name)
    await owner.fetchval(TERMINATE_WORKER)
    await owner.execute(f'ALTER DATABASE "{name}" RENAME TO "{name}_moved"')


async def restore_database(owner: asyncpg.Connection, name: str) -> None:
    await owner.execute(f'ALTER DATABASE "{name}_moved" RENAME TO "{name}"')
    await open_database(owner, name)


def edit_file(name: str, edit: Callable[[str], str]) -> None:
    file = Path(name)
    file.write_text(edit(file.read_text(encoding="utf-8")), encoding="utf-8")


async def require_password(owner: asyncpg.Connection, name: str) -> None:
    """The role has no password, so every one is wrong."""
    file = await owner.fetchval("SHOW hba_file")
    await asyncio.to_thread(edit_file, file, lambda text: f"local all worker scram-sha-256\n{text}")
    await owner.execute("SELECT pg_reload_conf()")


async def require_no_password(owner: asyncpg.Connection, name: str) -> None:
    file = await owner.fetchval("SHOW hba_file")
    await asyncio.to_thread(edit_file, file, lambda text: text.partition("\n")[2])
    await owner.execute("SELECT pg_reload_conf()")


TERMINATE_WORKER: Final = """
    SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE usename = 'worker'
"""
REJECTIONS: Final = {
    "28000": (reject_role, restore_role),
    "28P01": (require_password, require_no_password),
    "42501": (revoke_connect, grant_connect),
    "55000": (close_database, open_database),
    "3D000": (rename_database, restore_database),
}


def rejection_records(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return the records of rejected connections, and check that each outage has at most one."""
    records = [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if "connection rejected" in record.getMessage() and record.levelname != "DEBUG"
    ]
    # Connections are terminated one by one, and one that still works ends an outage.
    outages = 1 + sum("available again" in record.getMessage() for record in caplog.records)
    assert 1 <= len(records) <= outages
    return records


@pytest.mark.parametrize("state", REJECTIONS)
async def test_scheduler_recovers_when_the_server_rejected_its_connections(
    private_server: EmbeddedPostgres, private_dsn: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    reject, restore = REJECTIONS[state]
    name = urlsplit(private_dsn).path.removeprefix("/")
    owner = await asyncpg.connect(private_server.dsn())
    await owner.execute("CREATE ROLE worker LOGIN")
    worker_dsn = private_dsn.replace("postgres@", "worker@")
    await fetch_value(private_dsn, "GRANT CREATE ON SCHEMA public TO worker")
    try:
        async with start_workload(worker_dsn, pool_settings={"password": "wrong"}) as workload:
            await workload.schedule_jobs()
            await reject(owner, name)
            try:
                await owner.fetchval(TERMINATE_WORKER)
                await workload.recorder.until(ServiceRetrying, count=4, service="claimer")
                workload.finish_held_jobs()
                with pytest.raises(ConnectionRejectedError, match=state) as caught:
                    await workload.schedule_until_rejected()
                assert isinstance(caught.value.__cause__, asyncpg.PostgresError)
                assert caught.value.__cause__.sqlstate == state
                async with asyncpg.create_pool(worker_dsn, min_size=0, password="wrong") as pool:
                    with pytest.raises(ConnectionRejectedError, match=state):
                        await Scheduler(pool).start()
                assert not workload.stopped.done()
            finally:
                await restore(owner, name)
            await workload.assert_recovered()
        for level, message in rejection_records(caplog):
            assert level == "ERROR"
            assert "the server rejected a connection (" in message
            assert "check the role, its password and CONNECT privilege" in message
    finally:
        await fetch_value(private_dsn, "DROP OWNED BY worker CASCADE")
        await owner.execute("DROP ROLE worker")
        await owner.close()


HAS_RESET: Final = "reset" in inspect.signature(asyncpg.create_pool).parameters
NEEDS_RESET: Final = pytest.mark.skipif(not HAS_RESET, reason="asyncpg 0.29 has no reset=")


class SecretStore:
    """The callables of a pool, which raise while the store is unavailable."""

    def __init__(self, callable_name: str) -> None:
        self.is_down = False
        self.settings = {callable_name: getattr(self, callable_name)}

    def check(self) -> None:
        if self.is_down:
            raise KeyError("the secret")

    def password(self) -> str:
        self.check()
        return "secret"

    async def connect(self, *args: Any, **kwargs: Any) -> asyncpg.Connection:
        self.check()
        return await asyncpg.connect(*args, **kwargs)

    async def init(self, _: object) -> None:
        self.check()

    async def setup(self, _: object) -> None:
        self.check()

    async def reset(self, _: object) -> None:
        self.check()


POOL_CALLABLES: Final = {"password", "connect", "init", "setup"} & {
    "password",
    *inspect.signature(asyncpg.create_pool).parameters,
}
"""asyncpg 0.29 has no ``connect`` and no ``reset``."""


@pytest.mark.parametrize("name", sorted(POOL_CALLABLES))
async def test_scheduler_recovers_when_a_callable_of_the_pool_raised(
    private_dsn: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = SecretStore(name)
    async with start_workload(private_dsn, pool_settings=store.settings) as workload:
        await workload.schedule_jobs()
        store.is_down = True
        await fetch_value(private_dsn, TERMINATE)
        await workload.wait_for_retries("claimer")
        workload.finish_held_jobs()
        with pytest.raises(ConnectionRejectedError, match="a callable of the pool raised KeyError"):
            await workload.schedule_until_rejected()
        with pytest.raises(ConnectionRejectedError):
            await Scheduler(workload.scheduler.db_pool).start()
        store.is_down = False
        await workload.assert_recovered()
    assert {level for level, _ in rejection_records(caplog)} == {"ERROR"}
    assert "the secret" not in " ".join(message for _, message in rejection_records(caplog))


@NEEDS_RESET
async def test_result_is_written_when_the_reset_of_the_pool_raised(private_dsn: str) -> None:
    store = SecretStore("reset")

    async def fail() -> None:
        raise ValueError("out of range")

    async with start_workload(private_dsn, pool_settings=store.settings) as workload:
        await workload.schedule_jobs()
        store.is_down = True
        job_ids: list[str] = []
        # A result is written on the dedicated connection, which no pool resets, while all others are in use.
        while not workload.recorder.of(ServiceRetrying, service="completer"):
            job_ids.append(await workload.scheduler.schedule(fail, execution_time=now()))
            await asyncio.sleep(0.1)
        store.is_down = False
        for job_id in job_ids:
            await workload.recorder.until(JobFailed, job_id=job_id)
        await workload.assert_recovered()


async def test_wait_raises_the_rejection_after_a_shutdown_during_it(private_dsn: str) -> None:
    store = SecretStore("password")
    async with start_workload(private_dsn, pool_settings=store.settings, stops=True) as workload:
        store.is_down = True
        await fetch_value(private_dsn, TERMINATE)
        await workload.wait_for_retries("claimer")
        assert not workload.stopped.done()
        await asyncio.wait_for(workload.scheduler.shutdown(), TIMEOUT_S)
        with pytest.raises(ConnectionRejectedError, match="KeyError"):
            await workload.stopped
        store.is_down = False
        await workload.scheduler.db_pool.close()


# -- permanent errors ----------------------------------------------------------------------------------


def error_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname in {"CRITICAL", "ERROR"}]


async def assert_stopped(workload: Workload, error: type[BaseException]) -> None:
    """Assert that the Scheduler stops with this error."""
    with pytest.raises(error):
        await asyncio.wait_for(workload.scheduler.wait(), TIMEOUT_S)
    with pytest.raises(error):
        await workload.stopped
    await asyncio.sleep(0)  # the callbacks of the shutdown task run after its waiters
    assert not holds(workload.scheduler.is_running)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("DROP TABLE scheduled_jobs CASCADE", SchemaMissingError),
        ("DROP TABLE scheduler_workers CASCADE", SchemaMissingError),
        ("DROP SCHEMA public CASCADE", SchemaMissingError),
        ("ALTER TABLE scheduled_jobs DROP COLUMN attempt CASCADE", SchemaMissingError),
        ("REVOKE UPDATE ON scheduled_jobs FROM worker", SchemaForbiddenError),
        ("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM worker", SchemaForbiddenError),
    ],
)
async def test_scheduler_stops_with_one_record_on_a_permanent_error(
    private_dsn: str, statement: str, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncpg.create_pool(private_dsn, min_size=1, max_size=1) as owner:
        await Scheduler(owner).initialize_db()
        await owner.execute("CREATE ROLE worker LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO worker")
        try:
            async with start_workload(private_dsn.replace("postgres@", "worker@"), stops=True) as workload:
                await workload.schedule_jobs(due=0)
                await owner.execute(statement)
                workload.finish_held_jobs()
                await assert_stopped(workload, error)
        finally:
            await owner.execute("DROP OWNED BY worker; DROP ROLE worker")
    (line,) = error_messages(caplog)
    assert "failed, the Scheduler shuts down: Schema" in line


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("how", ["closed", "terminated"])
async def test_scheduler_stops_when_the_pool_is_closed(
    private_dsn: str, how: str, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The application forgot to shut the Scheduler down first; close() waits for its connections."""
    async with start_workload(private_dsn, size=size, stops=True) as workload:
        await workload.schedule_jobs(due=0)
        pool = workload.scheduler.db_pool
        if how == "closed":
            await asyncio.wait_for(pool.close(), TIMEOUT_S)
        else:
            pool.terminate()
        await assert_stopped(workload, PoolClosedError)
    reason, *unwritten = error_messages(caplog)
    assert "await scheduler.shutdown() before pool.close()" in reason
    assert unwritten == ["pg_scheduler shutdown failed"], (
        "the record with the jobs whose results could not be written"
    )
