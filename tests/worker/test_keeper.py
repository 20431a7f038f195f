"""The lease keeper, with a real connection and an event loop that is really blocked."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.events import (
    EventBus,
    KeeperConnected,
    KeeperLost,
    ListenerConnected,
    LoopBlocked,
    PassFinished,
    ServiceFaulted,
    ServiceRetrying,
)
from pg_scheduler.events.log import EventLog
from pg_scheduler.worker.heartbeat import Heartbeat
from pg_scheduler.worker.in_flight import Attempt
from pg_scheduler.worker.keeper import LeaseKeeper
from pg_scheduler.worker.lease_connection import LeaseConnection
from pg_scheduler.worker.reporter import Reporter
from pg_scheduler.worker.service import BackoffOptions, Service
from pg_scheduler.worker.watchdog import LoopWatchdog
from tests.support.inside import Connections, Store
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, Recorder, locked, wire_to
from tools.chaos.proxy import Proxy

pytestmark = pytest.mark.usefixtures("debugged_loop")

LEASE = 1.0
MAX_LOOP_BLOCK = 60.0
TERMINATE_HOLDER = (
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    " AND pid <> pg_backend_pid() AND (classid::bigint << 32 | objid::bigint) = $1"
)
RELEASED = "SELECT lease_until < now() AND pg_try_advisory_xact_lock_shared($1) FROM scheduler_workers"


class Kept:
    """Runs a heartbeat and its keeper."""

    def __init__(
        self,
        parts: Parts,
        *,
        limit_s: float = MAX_LOOP_BLOCK,
        dsn: str | None = None,
        blocked_after_s: float = 1.0,
        poll_interval_s: float = LeaseKeeper.poll_interval_s,
        reconnect_delay_s: float = LeaseKeeper.reconnect_delay_s,
    ) -> None:
        self.parts = parts
        connections = Connections(parts.store.connections._pool, keeper_dsn=dsn)
        self.lease_connection = LeaseConnection(parts.store.workers, connections, parts.worker_id, LEASE)
        self.executor = parts.executor()
        self.heartbeat: Heartbeat = parts.heartbeat(lease=LEASE, max_loop_block=MAX_LOOP_BLOCK)
        self.lease = parts.lease
        parts.configure(max_loop_block=limit_s)
        watchdog = LoopWatchdog(parts.events, parts.in_flight)
        watchdog.blocked_after_s = blocked_after_s
        reporter = Reporter(parts, watchdog)
        self.heartbeat._reporter = reporter
        self.keeper = LeaseKeeper(parts, self.lease_connection, watchdog, reporter)
        self.keeper.poll_interval_s = poll_interval_s
        self.keeper.reconnect_delay_s = reconnect_delay_s

    async def __aenter__(self) -> Kept:
        await self.heartbeat.prepare()
        await self.keeper.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.keeper.stop()
        await self.heartbeat.drain()


async def key_of(pool: asyncpg.Pool) -> int | None:
    key: int | None = await pool.fetchval("SELECT liveness_key FROM scheduler_workers")
    return key


async def is_lock_free(pool: asyncpg.Pool, key: int) -> bool:
    answer: bool = await pool.fetchval("SELECT pg_try_advisory_xact_lock_shared($1)", key)
    return answer


def block_until_renewed(kept: Kept, seconds: float) -> None:
    """Block the event loop until the lease was renewed so many seconds after its last renewal, or later."""
    end, enough = time.monotonic() + PATIENCE, kept.lease.renewed_at + seconds
    while kept.lease.renewed_at < enough:
        time.sleep(0.01)
        assert time.monotonic() < end


async def wait_until_released(dsn: str, key: int) -> None:
    """Wait until the lease of the worker has expired, and its liveness lock is free."""
    connection = await asyncpg.connect(dsn)
    async with asyncio.timeout(PATIENCE):
        while not await connection.fetchval(RELEASED, key):  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.01)
    await connection.close()


async def test_keeper_holds_a_lock_under_the_key_in_the_worker_row(parts: Parts, pool: asyncpg.Pool) -> None:
    async with Kept(parts) as keeper:
        key = await key_of(pool)
        assert key is not None
        assert key == keeper.lease_connection.key
        assert not await is_lock_free(pool, key)
        await keeper.keeper.start()  # twice is a no-op
        assert await key_of(pool) == key
    assert await is_lock_free(pool, key)
    await keeper.keeper.stop()


@pytest.mark.parametrize("is_direct", [True, False])
async def test_keeper_writes_the_extension_of_the_lease_unless_a_proxy_lies_in_between(
    parts: Parts, pool: asyncpg.Pool, proxied: tuple[Proxy, str], is_direct: bool
) -> None:
    async with Kept(parts, dsn=None if is_direct else proxied[1]) as keeper:
        for _ in range(2):
            extension_s = await pool.fetchval("SELECT lease_extension FROM scheduler_workers")
            assert extension_s == (MAX_LOOP_BLOCK - LEASE if is_direct else None)
            await pool.execute("UPDATE scheduler_workers SET lease_extension = 1")
            await keeper.heartbeat.run_once()


async def test_keeper_reconnects_under_another_key_when_its_connection_breaks(
    parts: Parts, pool: asyncpg.Pool, seen: Recorder
) -> None:
    async with Kept(parts) as keeper:
        key = keeper.lease_connection.key
        await pool.execute(TERMINATE_HOLDER, key)
        await seen.until(KeeperConnected, 2, has_lock=True)
        assert keeper.lease_connection.key != key
        assert await key_of(pool) == keeper.lease_connection.key


async def test_keeper_reconnects_and_renews_when_threads_of_jobs_outlive_the_shutdown(
    parts: Parts, pool: asyncpg.Pool, seen: Recorder
) -> None:
    """Real time: a lease of one second."""
    async with Kept(parts, poll_interval_s=0.02, reconnect_delay_s=0.01) as keeper:
        left_attempts = keeper.executor.in_flight._left_attempts
        claim = SimpleNamespace(job_id="a", attempt=1)
        left_attempts["a"] = cast(Attempt, SimpleNamespace(runs_on=True, claim=claim, end=None))
        ended, renewals = keeper.keeper._ended, keeper.lease.renewals
        await keeper.keeper.stop()
        await pool.execute(TERMINATE_HOLDER, keeper.lease_connection.key)
        await seen.until(KeeperConnected, 2, has_lock=True)
        async with asyncio.timeout(PATIENCE):
            while keeper.lease.renewals < renewals + 2:  # noqa: ASYNC110 - nothing reports it
                await asyncio.sleep(0.01)
        key = await key_of(pool)
        assert key is not None
        assert not await is_lock_free(pool, key)
        left_attempts.clear()
        await asyncio.wait_for(ended.wait(), PATIENCE)
        assert await is_lock_free(pool, key)


@pytest.mark.slow
async def test_keeper_renews_the_lease_of_a_blocked_loop_and_reports_the_stack(
    parts: Parts, pool: asyncpg.Pool, seen: Recorder
) -> None:
    """Real time: a lease of one second, and a loop that is blocked for almost two at least."""
    async with Kept(parts, blocked_after_s=0.2, poll_interval_s=0.05) as keeper:
        block_until_renewed(keeper, 2)
        assert keeper.lease.is_trusted
        assert await pool.fetchval("SELECT lease_until > now() FROM scheduler_workers")
        (blocked,) = await seen.until(LoopBlocked)
        assert (blocked.job_id, blocked.job_name) == (None, None)
        assert 1 < blocked.seconds < PATIENCE
        assert "test_keeper_renews_the_lease" in blocked.stack
        assert "test_keeper_renews" not in repr(blocked), "a stack is no word for a log line"
        health = json.loads(await pool.fetchval("SELECT health FROM scheduler_workers"))
        assert 0.2 < health["loop_blocked_s"] <= blocked.seconds + 0.05  # it is rounded
        assert (health["blocking_job_id"], "pool" in health) == (None, True)
        await keeper.heartbeat.run_once()
        health = json.loads(await pool.fetchval("SELECT health FROM scheduler_workers"))
        assert "loop_blocked_s" not in health
        assert health["last_blocked"]["seconds"] == round(blocked.seconds, 1)


async def test_keeper_renews_the_lease_when_no_heartbeat_does_although_the_loop_runs(
    parts: Parts, pool: asyncpg.Pool
) -> None:
    """Real time: half a lease of one second. Nothing but the keeper renews it."""
    async with Kept(parts, poll_interval_s=0.02) as keeper:
        renewals = keeper.lease.renewals
        async with asyncio.timeout(PATIENCE):
            while keeper.lease.renewals < renewals + 2:  # noqa: ASYNC110 - nothing reports it
                await asyncio.sleep(0.01)
        assert keeper.lease.is_trusted
        assert await pool.fetchval("SELECT lease_until > now() FROM scheduler_workers")


async def test_keeper_keeps_its_lock_when_the_server_does_not_answer_a_renewal_in_time(
    parts: Parts, pool: asyncpg.Pool, dsn: str, seen: Recorder
) -> None:
    """Real time: a lease of one second, and answers within a tenth."""
    async with Kept(parts, poll_interval_s=0.02) as keeper:
        keeper.lease_connection._options = replace(keeper.lease_connection._options, lease_timeout_s=0.1)
        key, requests = keeper.lease_connection.key, {keeper.keeper._requested_at}
        async with locked(dsn, "scheduler_workers"), asyncio.timeout(PATIENCE):
            while len(requests) < 3:  # the second request follows the end of the first one
                await asyncio.sleep(0.01)
                requests.add(keeper.keeper._requested_at)
            renewals = keeper.lease.renewals
        async with asyncio.timeout(PATIENCE):
            while keeper.lease.renewals == renewals:  # noqa: ASYNC110 - nothing reports it
                await asyncio.sleep(0.01)
        assert await key_of(pool) == key
        assert seen.of(KeeperLost) == []


async def test_keeper_releases_the_lease_when_the_loop_is_blocked_for_too_long(
    parts: Parts, dsn: str, seen: Recorder
) -> None:
    async with Kept(parts, limit_s=0.3, blocked_after_s=0.1, poll_interval_s=0.05) as keeper:
        key = keeper.lease_connection.key
        assert key is not None
        with ThreadPoolExecutor() as other:
            other.submit(asyncio.run, wait_until_released(dsn, key)).result()  # the loop is blocked meanwhile
        await seen.until(KeeperConnected, 2)  # it answers again, and is a worker again


async def test_heartbeat_writes_the_liveness_key(parts: Parts, pool: asyncpg.Pool) -> None:
    """The next heartbeat corrects a row that was written with an old key."""
    async with Kept(parts) as keeper:
        await pool.execute("UPDATE scheduler_workers SET liveness_key = 1")
        await keeper.heartbeat.run_once()
        assert await key_of(pool) == keeper.lease_connection.key


@pytest.mark.slow
async def test_keeper_renews_the_lease_when_a_log_handler_blocks_the_loop(
    parts: Parts, pool: asyncpg.Pool, seen: Recorder
) -> None:
    """A handler that writes to a full pipe, say, holds the lock that every log call needs."""
    handler = logging.StreamHandler()
    logger = logging.getLogger("pg_scheduler")
    logger.addHandler(handler)
    try:
        async with Kept(parts, blocked_after_s=0.2, poll_interval_s=0.05) as keeper:
            handler.acquire()
            try:
                block_until_renewed(keeper, 1.5)
            finally:
                handler.release()
            await seen.until(LoopBlocked)
    finally:
        logger.removeHandler(handler)


async def test_keeper_reports_an_unreachable_server_once_and_reconnects(
    parts: Parts, pool: asyncpg.Pool, seen: Recorder, dsn: str
) -> None:
    async with wire_to(dsn) as wire:
        address = wire.dsn
        wire.cut()
        async with Kept(parts, dsn=address, poll_interval_s=0.01, reconnect_delay_s=0.01) as keeper:
            assert await keeper.heartbeat.run_once() > 0
            assert await key_of(pool) is None
            await wire.heal()
            await seen.until(KeeperConnected, has_lock=True)
            assert await key_of(pool) == keeper.lease_connection.key
            assert len(seen.of(KeeperLost)) == 1
    assert not parts.faults


@pytest.mark.slow
async def test_keeper_stops_when_the_server_does_not_answer(
    parts: Parts, pool: asyncpg.Pool, dsn: str, seen: Recorder
) -> None:
    async with wire_to(dsn) as wire, Kept(parts, dsn=wire.dsn) as keeper:
        await seen.until(KeeperConnected)
        wire.freeze_old_connections()
        async with asyncio.timeout(PATIENCE / 4):
            await keeper.keeper.stop()


async def test_worker_runs_without_a_keeper_when_the_server_refuses(
    parts: Parts, seen: Recorder, dsn: str
) -> None:
    elsewhere = re.sub("/test_[0-9a-f]+", "/no_such_database", dsn)
    async with Kept(parts, dsn=elsewhere) as keeper:
        (lost,) = await seen.until(KeeperLost)
        assert lost.reason == 'database "no_such_database" does not exist'
        assert keeper.lease_connection.key is None
        assert await keeper.heartbeat.run_once() > 0
    assert not parts.faults


async def test_keeper_does_not_log_a_malformed_dsn(
    parts: Parts, seen: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    seen.source._sink = EventLog()
    async with Kept(parts, dsn="postgresql://me:secret/word@host/db"):
        await seen.until(KeeperLost)
    assert not parts.faults
    assert "lease keeper not connected: keeper_dsn is invalid (ValueError)" in caplog.text
    assert "secret" not in caplog.text


async def test_keeper_connects_without_a_lock_behind_a_pooler(
    parts: Parts,
    pool: asyncpg.Pool,
    seen: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """PgBouncer answers with a process id of its own making, and sessions are shared there."""
    monkeypatch.setattr(asyncpg.Connection, "get_server_pid", lambda _self: -1)
    async with Kept(parts) as keeper:
        await seen.until(KeeperConnected, has_lock=False)
        assert keeper.lease_connection.key is None
        assert await key_of(pool) is None
        assert keeper.lease_connection.is_open
        assert keeper.keeper._task
        session = keeper.lease_connection._session
        assert session is not None
        keeper.keeper._task.get_loop().call_soon_threadsafe(session.connection.terminate)
        await seen.until(KeeperConnected, 2, has_lock=False)
    assert caplog.text.count("there is no liveness lock") == 1  # reported once


async def test_keeper_publishes_a_service_fault_when_its_own_code_raises(
    parts: Parts, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: LoopWatchdog) -> bool:
        raise KeyError("a mistake")

    monkeypatch.setattr(LoopWatchdog, "ping", broken)
    async with Kept(parts):
        (fault,) = await seen.until(ServiceFaulted)
    assert fault.service == "keeper"
    assert parts.faults == [fault]


async def test_keeper_leaves_no_thread_when_starts_are_cancelled(parts: Parts) -> None:
    kept = Kept(parts)
    await kept.heartbeat.prepare()
    for _ in range(20):
        start = asyncio.create_task(kept.keeper.start())
        await asyncio.sleep(0)
        start.cancel()
        await asyncio.wait([start])
        await kept.keeper.stop()
    await asyncio.gather(*(kept.keeper.start() for _ in range(3)))
    await asyncio.gather(*(kept.keeper.stop() for _ in range(3)))
    for thread in threading.enumerate():
        if thread.name == "pg_scheduler keeper":
            thread.join(PATIENCE)
            assert not thread.is_alive()
    await kept.heartbeat.drain()


def test_keeper_ends_when_the_event_loop_is_closed_without_a_shutdown(dsn: str) -> None:
    threads: list[Any] = []

    async def forget() -> None:
        pool = await asyncpg.create_pool(dsn, min_size=1, max_size=4)
        parts = Parts(Store(Connections(pool)), EventBus())
        kept = Kept(parts)
        await kept.heartbeat.prepare()
        await kept.keeper.start()
        threads.append(kept.keeper._thread)
        await pool.close()

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(forget())
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()


async def test_keepers_of_two_schedulers_hold_a_lock_each(dsn: str) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=5) as one,
        asyncpg.create_pool(dsn, min_size=1, max_size=5) as two,
        Scheduler(one),
        Scheduler(two),
    ):
        keys = await one.fetch("SELECT liveness_key FROM scheduler_workers")
        assert len({key[0] for key in keys}) == 2
        assert not any([await is_lock_free(one, key[0]) for key in keys])


@pytest.mark.slow
async def test_services_retry_at_once_when_the_keeper_reconnects(
    proxied: tuple[Proxy, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, dsn = proxied
    async with asyncpg.create_pool(dsn, min_size=0, max_size=4) as pool:
        scheduler = Scheduler(pool)
        monkeypatch.setattr(Service, "backoff", BackoffOptions(first_s=3600.0))
        seen = Recorder(scheduler)
        async with scheduler:
            passes = len(seen.of(PassFinished, service="claimer"))
            proxy.refuse()
            for name in ("claimer", "listener"):
                await seen.until(ServiceRetrying, service=name)
            proxy.heal()
            await seen.until(KeeperConnected, 2)
            await seen.until(PassFinished, passes + 1, service="claimer")
            await seen.until(ListenerConnected, 2)


@pytest.mark.skipif(not hasattr(asyncpg.Pool, "_connect"), reason="from asyncpg 0.30 on")
async def test_keeper_connects_with_the_connect_function_of_the_pool(dsn: str) -> None:
    asked = []

    async def connect(*args: object, **settings: object) -> asyncpg.Connection:
        asked.append(settings)
        return await asyncpg.connect(dsn)

    async with asyncpg.create_pool(dsn, min_size=1, max_size=4, command_timeout=7) as pool:
        cast("Any", pool)._connect = connect
        connection = await Connections(pool).connect()
        (settings,) = asked
        assert settings.items() >= {"command_timeout": 7, "connection_class": asyncpg.Connection}.items()
        await connection.close()


@pytest.mark.parametrize("hook", ["init", "setup"])
async def test_worker_runs_without_a_keeper_when_a_hook_of_the_pool_works_in_one_loop_only(
    dsn: str, hook: str
) -> None:
    """It uses a client of the main loop, say."""
    loop = asyncio.get_running_loop()

    async def bound(_connection: object) -> None:
        if asyncio.get_running_loop() is not loop:
            raise RuntimeError("attached to a different loop")

    hooks: Any = {hook: bound}
    async with asyncpg.create_pool(dsn, min_size=1, max_size=4, **hooks) as pool:
        scheduler = Scheduler(pool)
        seen = Recorder(scheduler)
        async with scheduler:
            await seen.until(KeeperLost, reason="RuntimeError")
            assert await scheduler.workers()
        assert not seen.of(ServiceFaulted)


@pytest.mark.parametrize(("size", "expected"), [(1, False), (3, False), (4, True)])
async def test_keeper_does_not_start_with_a_small_pool_and_no_dsn(
    dsn: str, size: int, expected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=size) as pool:
        assert Connections(pool).can_open_lease_connection is expected
        assert Connections(pool, keeper_dsn=dsn).can_open_lease_connection
        assert Connections(pool, dsn).can_open_lease_connection
        scheduler = Scheduler(pool)
        seen = Recorder(scheduler)
        async with scheduler:
            assert (await key_of(pool) is not None) is expected
        records = [record for record in caplog.records if vars(record).get("event_type") == "KeeperLost"]
        assert [record.levelname for record in records] == ([] if expected else ["WARNING"])
        assert len(seen.of(KeeperLost)) == len(records)
