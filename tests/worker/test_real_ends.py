"""The next job of a schedule starts when the thread of the last one has ended, or its process has died."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import Overlap, Scheduler, ThreadExecutor
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus, JobCancelled, JobFailed, ThreadAbandoned
from pg_scheduler.triggers import Every
from tests.support.inside import AttemptRunner, ExtendedJob, Extras, Store, TaskOptions
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, Recorder, holds, new_job, new_worker

KEY = "the id"
MINUTE = timedelta(minutes=1)


class Bench:
    """A schedule whose jobs run in threads that ignore their flags, on a worker whose passes run by hand."""

    def __init__(self, pool: asyncpg.Pool, parts: Parts, clock: FakeClock) -> None:
        self.parts = parts
        self.clock = clock
        self.schedules = Scheduler(pool, clock=clock).schedules
        self.began = threading.Semaphore(0)
        self.open = threading.Event()
        self.inside = 0
        self.most = 0
        parts.tasks.register(self.job, name="tests.work", options=TaskOptions(executor="thread"))
        self.planner = parts.planner()
        self.heartbeat = parts.heartbeat()
        self.completer = parts.completer()
        self.executor = parts.executor(
            self.completer, stop_grace=0.0, shutdown_timeout=0.0, executors={"thread": ThreadExecutor()}
        )

    def job(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.began.release()
        assert self.open.wait(PATIENCE)
        self.inside -= 1

    async def plan(self) -> None:
        self.clock.advance(MINUTE)
        while await self.planner.run_once() == 0:
            pass

    async def start_due(self) -> int:
        """Claim and start what is due; wait until it runs."""
        await self.heartbeat.run_once()
        await self.heartbeat.run_once()  # the first one after the lease expired is late
        claims = (await self.parts.store.claims.exchange("me", ["tests.work"], 10)).jobs
        for each in claims:
            self.executor.submit(each)
            await asyncio.to_thread(self.began.acquire, timeout=PATIENCE)
        return len(claims)

    async def end(self) -> None:
        """Let the threads return, and write the results."""
        tasks = [each.task for each in self.executor.in_flight.attempts.values() if each.task]
        self.open.set()
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
        await self.completer.run_once()
        self.open.clear()


@pytest.fixture
async def bench(clocked: Store, bus: EventBus, pool: asyncpg.Pool, clock: FakeClock) -> Bench:
    bench = Bench(pool, Parts(clocked, bus), clock)
    await bench.heartbeat.prepare()
    return bench


async def test_job_that_replaces_another_one_starts_when_its_thread_has_ended(
    bench: Bench, seen: Recorder
) -> None:
    await bench.schedules.add("tests.work", Every(MINUTE), schedule_id=KEY, overlap=Overlap.CANCEL)
    await bench.plan()
    assert await bench.start_due() == 1
    await bench.plan()
    assert await bench.start_due() == 0, "cancelled, and its thread runs on"
    await seen.until(ThreadAbandoned)
    await bench.parts.scanner().run_once()
    assert await bench.start_due() == 0
    await bench.end()
    assert len(seen.of(JobCancelled)) == 1
    assert (await bench.start_due(), bench.most) == (1, 1)
    await bench.end()


async def test_queued_job_starts_when_the_thread_that_timed_out_has_ended(
    bench: Bench, seen: Recorder
) -> None:
    await bench.schedules.add(
        "tests.work", Every(MINUTE), schedule_id=KEY, overlap=Overlap.QUEUE_ONE, timeout=timedelta(hours=1)
    )
    await bench.plan()
    assert await bench.start_due() == 1
    ((job_id, attempt),) = bench.executor.in_flight.attempts.items()
    AttemptRunner.time_out(attempt)
    await seen.until(ThreadAbandoned)
    await bench.plan()
    assert await bench.start_due() == 0
    await bench.parts.scanner().run_once()
    assert await bench.start_due() == 0
    await bench.end()
    assert [event.job_id for event in seen.of(JobFailed)] == [job_id]
    assert (await bench.start_due(), bench.most) == (1, 1)
    await bench.end()


async def test_job_that_replaces_another_one_starts_when_the_process_of_its_thread_has_died(
    bench: Bench, bus: EventBus, pool: asyncpg.Pool
) -> None:
    await bench.schedules.add("tests.work", Every(MINUTE), schedule_id=KEY, overlap=Overlap.CANCEL)
    await bench.plan()
    assert await bench.start_due() == 1
    await bench.plan()
    assert await bench.start_due() == 0
    other = Parts(bench.parts.store, bus, "other")
    await other.scanner().run_once()
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE blocked_on = 'after'") == 1
    await bench.parts.store.workers.deregister("me")  # as the rescuer does when the liveness lock is free
    await other.scanner().run_once()
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE blocked_on = 'after'") == 0
    await bench.end()


async def test_rescuer_wakes_the_scan_for_attempts_of_the_workers_that_it_deletes(bench: Bench) -> None:
    await bench.parts.store.workers.register(new_worker("dead"), 1.0)
    bench.clock.advance(MINUTE)
    await bench.heartbeat.run_once()
    rescuer = bench.parts.rescuer()
    rescuer.answer_timeout_s = 0.0
    rescuer.scan_locks()  # the registration found no other worker, so no scan is due
    await rescuer.run_once()
    await rescuer.run_once()
    assert "worker_gone" in bench.parts.calls


async def test_thread_of_a_cancelled_job_that_outlives_the_shutdown_delays_the_next_one(bench: Bench) -> None:
    await bench.schedules.add("tests.work", Every(MINUTE), schedule_id=KEY, overlap=Overlap.CANCEL)
    await bench.plan()
    assert await bench.start_due() == 1
    await bench.plan()
    await bench.heartbeat.run_once()
    await bench.executor.stop()
    await bench.heartbeat.drain()
    assert holds(bench.executor.in_flight.has_left)
    assert len(await bench.parts.store.workers.list_workers()) == 1, "so no scan takes the attempt for ended"
    bench.open.set()


async def test_end_of_an_attempt_is_written_only_if_something_waits_for_it(bench: Bench) -> None:
    options = Extras(options=json.dumps({"schedule_id": KEY}))
    plain, awaited = new_job("plain", "tests.work"), new_job("awaited", "tests.work")
    await bench.parts.store.inserts.insert([plain])
    await bench.parts.store.inserts.insert_extended([ExtendedJob(awaited, options)])
    assert await bench.start_due() == 2
    tasks = [each.task for each in bench.executor.in_flight.attempts.values() if each.task]
    await bench.parts.store.jobs.cancel("plain")
    await bench.parts.store.jobs.cancel("awaited")
    await bench.heartbeat.run_once()
    bench.open.set()
    await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    assert bench.parts.result_buffer.unwritten() == {"awaited": 1}
    await bench.completer.run_once()
    assert not bench.parts.result_buffer.has_results
