"""The health that a Scheduler reports while its database or its event loop fails."""

from __future__ import annotations

import asyncio
import http.client
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any, Protocol

import asyncpg
import pytest

from pg_scheduler import PollingConfig, PoolClosedError, Scheduler
from pg_scheduler.base import health as module
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.events import ServiceFaulted, WorkerStarted
from pg_scheduler.telemetry.probes import serve_health
from tests.support.inside import Health, worker_of
from tests.support.worker import PATIENCE, Gate, Recorder

FAST = PollingConfig(max_interval=0.3, idle_start_interval=0.1, semaphore_full_interval=0.3)


class Start(Protocol):
    """Start a Scheduler that is shut down at the end of the test."""

    async def __call__(self, dsn: str, /, *, size: int = 5, **settings: Any) -> Scheduler: ...


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def build(dsn: str, /, *, size: int = 5, **settings: Any) -> Scheduler:
            pool = await asyncpg.create_pool(dsn, min_size=1, max_size=size)
            stack.callback(pool.terminate)
            defaults: dict[str, Any] = {"polling_config": FAST, "shutdown_timeout": 0.2}
            scheduler = Scheduler(pool, **(defaults | settings))
            await scheduler.start()
            stack.push_async_callback(stop, scheduler)
            return scheduler

        yield build


async def stop(scheduler: Scheduler) -> None:
    with suppress(PoolClosedError):
        await asyncio.wait_for(scheduler.shutdown(), PATIENCE)


def failed(health: Health) -> set[str]:
    return {each.name for each in health.checks if not each.is_ok}


def text_of(health: Health, name: str) -> str:
    return next(each.text for each in health.checks if each.name == name)


async def until(scheduler: Scheduler, condition: Callable[[Health], bool]) -> list[Health]:
    """Ask from another thread, until an answer meets the condition; return all answers."""

    def ask() -> list[Health]:
        found: list[Health] = []
        end = time.monotonic() + PATIENCE
        while not found or not condition(found[-1]):
            assert time.monotonic() < end, found[-1]
            time.sleep(0.02)  # as a probe does
            found.append(scheduler.health())
        return found

    return await asyncio.to_thread(ask)


async def test_frozen_server_fails_readiness_and_never_liveness(
    private_server: EmbeddedPostgres, private_dsn: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ALLOWANCE_S", 0.5)  # the outage takes longer than what the claimer may
    scheduler = await start(private_dsn, lease=timedelta(seconds=3))
    await until(scheduler, lambda health: health.ready)
    await asyncio.to_thread(private_server.freeze)
    down = await until(scheduler, lambda health: {"database", "lease"} <= failed(health))
    assert not down[-1].ready
    assert "database" in failed(scheduler.health())
    await asyncio.to_thread(private_server.thaw)
    up = await until(scheduler, lambda health: health.ready)
    assert all(each.live for each in down + up)


async def test_hanging_claimer_fails_liveness_while_the_database_is_available(
    dsn: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ALLOWANCE_S", 0.5)
    scheduler = await start(dsn, lease=timedelta(seconds=1.5))
    claimer = worker_of(scheduler).claimer
    async with claimer._claiming:  # its next pass waits for that, without end
        found = await until(scheduler, lambda health: not health.live)
    assert failed(found[-1]) == {"claims"}
    await until(scheduler, lambda health: health.live)


async def test_next_due_time_is_the_one_that_the_last_claim_found(dsn: str, start: Start) -> None:
    scheduler = await start(dsn)
    assert scheduler.health().next_due_s is None
    scheduler.register(Gate().job, name="health.later")
    await scheduler.enqueue("health.later", delay=3600)
    (*_, found) = await until(scheduler, lambda health: health.next_due_s is not None)
    assert found.next_due_s is not None
    assert 3600 - PATIENCE < found.next_due_s <= 3600


@pytest.mark.parametrize("size", [5, 2], ids=["keeper", "no keeper"])
async def test_blocked_loop_fails_readiness_then_liveness_and_the_job_is_named(
    dsn: str, start: Start, size: int
) -> None:
    scheduler = await start(dsn, size=size, max_loop_block=2.0)
    found: list[Health] = []
    is_found = threading.Event()

    def ask() -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not is_found.is_set():
            time.sleep(0.05)
            found.append(scheduler.health())
            if not found[-1].live:
                is_found.set()

    @scheduler.register(name="test.block")
    async def block() -> None:
        is_found.wait(PATIENCE)  # blocks the event loop

    thread = threading.Thread(target=ask)
    thread.start()
    job_id = await scheduler.enqueue(block)
    await asyncio.to_thread(thread.join)
    blocked = next(each for each in found if "claiming" in failed(each))
    assert (blocked.live, blocked.ready) == (True, False)
    assert f"by job test.block (id {job_id})" in text_of(blocked, "event_loop")
    assert not found[-1].live
    assert f"by job test.block (id {job_id})" in text_of(found[-1], "event_loop")
    await until(scheduler, lambda health: health.ready)


async def test_closed_pool_fails_liveness(dsn: str, start: Start) -> None:
    scheduler = await start(dsn)
    seen = Recorder(scheduler)
    await scheduler.db_pool.close()
    await seen.until(ServiceFaulted)
    health = scheduler.health()
    assert (health.live, health.ready) == (False, False)
    assert text_of(health, "scheduler") == "stopped by PoolClosedError; the log has its traceback"
    with pytest.raises(PoolClosedError):
        await scheduler.wait()
    assert (scheduler.health().state, scheduler.health().live) == ("stopped", False)


async def test_shutdown_fails_readiness_and_not_liveness(dsn: str, start: Start) -> None:
    scheduler = await start(dsn, shutdown_timeout=PATIENCE)
    gate = Gate()
    scheduler.register(gate.job, name="test.wait")
    await scheduler.enqueue(gate.job)
    await gate.wait_begun()
    assert scheduler.health().slots_busy == 1
    stopping = asyncio.create_task(scheduler.shutdown())
    draining = await until(scheduler, lambda health: health.state == "draining")
    assert (draining[-1].live, draining[-1].ready) == (True, False)
    assert "draining" in failed(draining[-1])
    gate.open.set()
    await stopping
    health = scheduler.health()
    assert (health.state, health.live, health.ready, health.started) == ("stopped", True, False, False)


async def test_health_before_the_start_and_while_all_slots_are_taken(dsn: str, start: Start) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        health = Scheduler(pool).health()
        assert (health.state, health.live, health.ready, health.started) == ("stopped", True, False, False)
    scheduler = await start(dsn, max_concurrent_jobs=1)
    gate = Gate()
    scheduler.register(gate.job, name="test.wait")
    await scheduler.enqueue(gate.job)
    await gate.wait_begun()
    health = scheduler.health()
    assert (health.live, health.ready, health.slots_busy, health.slots) == (True, True, 1, 1)
    gate.open.set()


async def test_start_is_not_complete_before_the_first_claim(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1) as pool:
        scheduler = Scheduler(pool)
        found: list[Health] = []
        scheduler.subscribe(lambda _event: found.append(scheduler.health()), WorkerStarted)
        async with scheduler:
            found.append(scheduler.health())
    assert [(each.state, each.started, each.ready) for each in found] == [
        ("starting", False, False),
        ("running", True, True),
    ]


async def test_observer_is_ready_without_claims(dsn: str, start: Start) -> None:
    scheduler = await start(dsn, role="observer")
    health = (await until(scheduler, lambda health: health.ready))[-1]
    assert text_of(health, "claiming") == "this role runs no jobs"


def fetch(port: int, target: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", target)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


async def test_server_names_the_job_that_blocks_the_event_loop(dsn: str, start: Start) -> None:
    scheduler = await start(dsn, max_loop_block=1.5)
    answers: list[tuple[int, str]] = []

    @scheduler.register(name="test.block")
    async def block(port: int) -> None:
        end = time.monotonic() + PATIENCE
        while (not answers or answers[-1][0] == 200) and time.monotonic() < end:
            time.sleep(0.05)  # noqa: ASYNC251 - blocks the event loop
            answers.append(fetch(port, "/livez"))
        answers.append(fetch(port, "/readyz"))

    with serve_health(scheduler, port=0) as server:
        job_id = await scheduler.enqueue(block, args=(server.port,))
        await until(scheduler, lambda health: len(answers) > 1 and health.ready)
        async with asyncio.timeout(PATIENCE):  # the first heartbeat after the block may still be under way
            while (await asyncio.to_thread(fetch, server.port, "/readyz"))[0] != 200:
                pass
    assert answers[0] == (200, "ok\n")
    assert [status for status, _ in answers[-2:]] == [503, 503]
    for _, text in answers[-2:]:
        assert f"by job test.block (id {job_id})" in text


async def test_server_answers_while_the_database_is_frozen(
    private_server: EmbeddedPostgres, private_dsn: str, start: Start
) -> None:
    scheduler = await start(private_dsn, lease=timedelta(seconds=2))
    with serve_health(scheduler, port=0) as server:
        await until(scheduler, lambda health: health.ready)
        await asyncio.to_thread(private_server.freeze)
        await until(scheduler, lambda health: "database" in failed(health))
        status, text = await asyncio.to_thread(fetch, server.port, "/readyz")
        assert (status, "[-]database failed" in text) == (503, True)
        assert await asyncio.to_thread(fetch, server.port, "/livez") == (200, "ok\n")
        assert await asyncio.to_thread(fetch, server.port, "/startupz") == (200, "ok\n")
        await asyncio.to_thread(private_server.thaw)
        await until(scheduler, lambda health: health.ready)
