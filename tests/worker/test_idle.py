"""The statements of an idle worker: each pass of each service, with pools of any size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from time import monotonic

import asyncpg
import pytest

from pg_scheduler import Scheduler, Share, periodic
from pg_scheduler.database.options import (
    BEGIN,
    HOT_TRANSACTION_SETTINGS,
    SHARED_LOCK_TIMEOUT_MS,
    TRANSACTION_SETTINGS,
    ConnectionOptions,
)
from pg_scheduler.database.queries import names_by_text
from pg_scheduler.events import EventBus
from pg_scheduler.statistics.service import StatisticsWriter
from tests.support.inside import NEVER, Connections, ExtendedJob, Extras, Meter, Store, TaskOptions
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, holds, new_job

NAMES = names_by_text("public")
NAMES |= {
    f"{BEGIN}; {TRANSACTION_SETTINGS}; SET LOCAL lock_timeout = {SHARED_LOCK_TIMEOUT_MS}": "begin",
    f"{BEGIN}; {HOT_TRANSACTION_SETTINGS}": "begin",
    "COMMIT": "commit",
}


class Log(list[str]):
    """The statements of a pool's connections, by name."""

    async def listen(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        connection.add_query_logger(self._note)

    def _note(self, record: asyncpg.connection.LoggedQuery) -> None:
        reset = "pg_advisory_unlock_all" in record.query
        self.append("reset" if reset else NAMES.get(record.query, record.query))

    async def take(self) -> list[str]:
        await asyncio.sleep(0)  # asyncpg tells its loggers in the loop's next round
        taken = list(self)
        self.clear()
        return taken


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def parts(dsn: str, bus: EventBus, log: Log, size: int) -> AsyncIterator[Parts]:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=size, init=log.listen)
    options = ConnectionOptions(sticky_idle_s=PATIENCE)  # under load, 0.1 s may elapse between two passes
    parts = Parts(Store(Connections(pool, options=options)), bus)
    if size < 3:
        parts.signals.notifications_up.clear()
    yield parts
    await parts.store.connections.release_held()
    await asyncio.wait_for(pool.close(), PATIENCE)


def bare(statement: str) -> list[str]:
    return [statement]


def in_a_transaction(statement: str) -> list[str]:
    return ["begin", statement, "commit", "reset"]


async def idle_job() -> None: ...


@pytest.mark.parametrize("size", [1, 2, 3, 5])
async def test_idle_services_use_at_most_one_transaction_per_pass(parts: Parts, log: Log, size: int) -> None:
    listener, heartbeat = parts.listener(), parts.heartbeat()
    scanner, planner, claimer = parts.scanner(), parts.planner(), parts.claimer()
    await heartbeat.prepare()
    await heartbeat.run_once()  # which reads the workers that registered at the same time
    await listener.run_once()
    await scanner.run_once()
    await claimer.run_once()  # whose connections are there now, with their settings
    await parts.store.retention.begin_pass("policies", "w1", after_s=9, within_s=0)
    await log.take()
    assert holds(listener.is_receiving) == (size >= 3)
    expected = bare if size >= 3 else in_a_transaction
    await heartbeat.run_once()
    assert await log.take() == expected("renew_lease")
    await scanner.run_once()
    assert await log.take() == expected("scan_deadlines")
    await listener.run_once()
    await planner.run_once()
    assert await log.take() == [], "the answers show that the connection lives, and there is nothing to plan"
    await claimer.run_once()
    assert await log.take() == (bare if size >= 4 else in_a_transaction)("exchange_jobs")
    await parts.store.retention.begin_pass("policies", "w1", after_s=9, within_s=0)
    assert await log.take() == (["vacuum_pass_due"] if size >= 3 else ["vacuum_pass_due", "reset"])
    meter = Meter()
    statistics = StatisticsWriter(parts, meter, parts.store.statistics)
    await statistics.run_once()
    assert await log.take() == [], "nothing was counted"
    meter.record_end("job", "completed")
    await statistics.run_once()
    assert await log.take() == (bare if size >= 3 else in_a_transaction)("add_statistics")
    periodic(every=timedelta(hours=1), dedup_key="key")(idle_job)
    await planner.run_once()
    await log.take()
    await planner.run_once()
    assert await log.take() == (
        ["next_fire", "read_schedules"] if size >= 3 else ["next_fire", "reset", "read_schedules", "reset"]
    )
    await listener.drain()


@pytest.mark.parametrize("size", [5])
async def test_feeder_makes_no_statement_without_shares(parts: Parts, log: Log) -> None:
    feeder = parts.feeder()
    parts.tasks.register(idle_job, name="plain")
    assert await feeder.run_once() == NEVER
    feeder.announce()
    assert await feeder.run_once() == NEVER
    assert await log.take() == []


@pytest.mark.parametrize("size", [5])
async def test_feeder_of_an_idle_task_with_a_share_probes_the_index_only(parts: Parts, log: Log) -> None:
    feeder, listener = parts.feeder(), parts.listener()
    feeder.gap_s = feeder.rest = 0.0
    parts.tasks.register(idle_job, name="shared", options=TaskOptions(share=Share(key=lambda tenant: tenant)))
    await listener.run_once()
    await feeder.run_once()
    await log.take()
    assert 0 < await feeder.run_once() <= feeder.scan_interval_s
    assert await log.take() == ["blocked_keys"]
    await listener.drain()


@pytest.mark.parametrize("size", [5])
async def test_feeder_looks_for_jobs_of_forgotten_shares_only_when_there_are_some(
    parts: Parts, log: Log
) -> None:
    feeder, scanner = parts.feeder(), parts.scanner()
    await scanner.run_once()
    assert "tenants_waiting" not in parts.calls
    jobs = [ExtendedJob(new_job("job", "plain"), Extras(blocked_on="share:gone:a"))]
    await parts.store.inserts.insert_extended(jobs)
    parts.tasks.register(idle_job, name="plain")
    await scanner.run_once()
    assert "tenants_waiting" in parts.calls
    await log.take()
    feeder.request_scan()
    assert await feeder.run_once() == NEVER
    assert "unblock_forgotten" in await log.take()
    await scanner.run_once()
    assert parts.calls.count("tenants_waiting") == 1


@pytest.mark.parametrize("size", [1])
async def test_rescuer_sends_nothing_while_polls_look_at_the_locks(parts: Parts, log: Log) -> None:
    rescuer = parts.rescuer()
    assert 0 < await rescuer.run_once() <= 2 * parts.config.polling.max_interval
    assert await parts.expirer().run_once() == NEVER
    await log.take()
    parts.lock_looks.last_at = monotonic()  # as the poll of an idle worker does
    assert 0 < await rescuer.run_once() <= 2 * parts.config.polling.max_interval
    assert await log.take() == []


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
async def test_scheduler_runs_on_a_pool_of_any_size_and_releases_every_connection(
    dsn: str, size: int
) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=size) as pool:
        for _ in range(2):
            async with Scheduler(pool) as scheduler:
                await scheduler.send_heartbeat("any")
                assert [worker.is_alive for worker in await scheduler.workers()] == [True]
            assert pool.get_idle_size() == pool.get_size()
            assert await pool.fetchval("SELECT count(*) FROM pg_settings WHERE source = 'session'") == 0


async def test_start_opens_no_connection_that_an_idle_worker_does_not_need(dsn: str) -> None:
    """The pool keeps a connection for five minutes, even if only the start has used it."""
    async with asyncpg.create_pool(dsn, min_size=1) as pool, Scheduler(pool):
        assert pool.get_size() == 2, "one for LISTEN and one for claims"


async def test_ten_idle_workers_hold_thirty_connections(dsn: str, pool: asyncpg.Pool) -> None:
    """In its pool, each holds one for LISTEN and one for claims; the lease keeper has the third one."""
    sessions = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    """
    async with AsyncExitStack() as stack:
        for _ in range(10):
            # Two statements of a worker may coincide while others start. The pool soon closes what it opened.
            worker_pool = await stack.enter_async_context(
                asyncpg.create_pool(dsn, min_size=1, max_inactive_connection_lifetime=0.1)
            )
            await stack.enter_async_context(Scheduler(worker_pool))
        async with asyncio.timeout(PATIENCE):
            while await pool.fetchval(sessions) != 30:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.05)
