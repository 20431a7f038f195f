"""The database connections of the tasks of a worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.events import JobCancelled
from pg_scheduler.migrate import migrate
from tests.conftest import FAST
from tests.support.django import project, require_tasks, working
from tests.support.inside import worker_of
from tests.support.patience import PATIENCE

require_tasks()

from django.db import connection, connections  # noqa: E402 - only where Django is
from django.test import override_settings  # noqa: E402

JOBS = 400

SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = '' AND pid <> ALL ($1)
"""


async def value_of(scheduler: Any, result: Any) -> Any:
    return (await scheduler.get_job_result(result.id)).unwrap()


@pytest.mark.slow
async def test_no_session_is_left_after_400_tasks(shop: Any, pool: asyncpg.Pool) -> None:
    await pool.execute("CREATE TABLE shop_order (id bigint PRIMARY KEY, number int)")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        own = cursor.fetchone()[0]
    others = [
        own,
        *(row[0] for row in await pool.fetch("SELECT pid FROM pg_stat_activity WHERE pid <> $1", own)),
    ]
    async with working() as (scheduler, _):
        results = [(shop.session, shop.session_async)[number % 2].enqueue() for number in range(JOBS)]
        values = [await value_of(scheduler, result) for result in results]
        assert len({session for _, session in values[::2]}) == JOBS / 2
        assert values[1::2] == [0] * (JOBS // 2)
        async with asyncio.timeout(PATIENCE):
            while await pool.fetchval(SESSIONS, others):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until the server has ended them


async def test_sessions_persist_in_their_thread_with_conn_max_age(shop: Any) -> None:
    connections.settings["default"]["CONN_MAX_AGE"] = None
    async with working() as (scheduler, _):
        values = [await value_of(scheduler, shop.session.enqueue()) for _ in range(5)]
    assert len({tuple(value) for value in values}) == 1


async def test_queries_of_earlier_tasks_are_forgotten_in_debug_mode(shop: Any) -> None:
    with override_settings(DEBUG=True):
        async with working() as (scheduler, _):
            counts = [await value_of(scheduler, shop.count_queries.enqueue()) for _ in range(3)]
    assert counts == [1, 1, 1]


async def test_async_tasks_do_not_wait_for_the_orm_of_one_another(shop: Any, pool: asyncpg.Pool) -> None:
    await pool.execute("CREATE TABLE shop_order (id bigint PRIMARY KEY, number int)")
    async with working() as (scheduler, _):
        results = [shop.meet.enqueue(8) for _ in range(8)]
        assert [await value_of(scheduler, result) for result in results] == [8] * 8


async def test_connection_is_closed_after_a_second_cancellation(shop: Any) -> None:
    shop.gate.clear()
    rescue = threading.Timer(PATIENCE / 2, shop.gate.set)  # or a blocked event loop would wait forever
    rescue.start()
    try:
        async with working() as (scheduler, recorder):
            waiting = shop.wait_in_thread.using(timeout=0.05).enqueue()
            attempts = worker_of(scheduler).node.in_flight.attempts
            while not (waiting.id in attempts and attempts[waiting.id].has_timed_out):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until the first cancellation
            attempt = attempts[waiting.id]
            await scheduler.cancel_job(waiting.id)
            while attempt.revocation is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until the second one
            await value_of(scheduler, shop.add.enqueue(1))
            assert not shop.gate.is_set()
            assert waiting.id in attempts  # no other attempt starts while its thread runs
            shop.gate.set()
            await recorder.until(JobCancelled)
            assert shop.sessions.pop().closed
    finally:
        rescue.cancel()
        shop.gate.set()


@pytest.fixture
def private_server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings=FAST) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("max_age", [0, None])
async def test_tasks_run_after_a_restart_of_the_database(
    private_server: EmbeddedPostgres, max_age: int | None
) -> None:
    dsn = private_server.dsn("postgres")

    owner = await asyncpg.connect(dsn)
    await migrate(owner)
    await owner.execute("CREATE TABLE shop_order (id bigint PRIMARY KEY, number int)")
    await owner.close()
    with project(dsn) as shop:
        connections.settings["default"] |= {"CONN_MAX_AGE": max_age, "CONN_HEALTH_CHECKS": True}
        tasks = (shop.session, shop.session_async)
        async with working() as (scheduler, _):
            for task in tasks:
                await value_of(scheduler, task.enqueue())
            await asyncio.to_thread(private_server.restart)
            connection.close()
            for task in tasks * 2:
                await value_of(scheduler, task.enqueue())
