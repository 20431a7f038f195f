"""Events between processes, also after the LISTEN connection was severed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import asyncpg

from pg_scheduler import Scheduler
from pg_scheduler.events import EventsMissed, JobCompleted, ListenerLost, PassFinished, WorkerStarted
from tests.cluster.fleet import TIMEOUT_S, Fleet
from tests.support.inside import worker_of
from tests.support.worker import listening_pid


async def test_subscriber_receives_events_of_other_processes_and_what_it_missed(
    fleet: Fleet, pool: asyncpg.Pool
) -> None:
    async with Scheduler(pool) as watcher, asyncio.timeout(3 * TIMEOUT_S):
        events = watcher.events(WorkerStarted, JobCompleted, cluster=True)
        passes = watcher.events(PassFinished)
        while not worker_of(watcher).relay._announced:
            await anext(passes)
        nodes = [await fleet.start() for _ in range(2)]
        started: set[str] = set()
        while len(started) < 2:
            event = await anext(events)
            if isinstance(event, WorkerStarted) and event.worker_id != watcher.worker_id:
                started.add(event.worker_id)
        assert started == {node.worker_id for node in nodes}
        ids = {
            await watcher.schedule_job("cluster.note", datetime.now(UTC), {"args": [], "kwargs": {}})
            for _ in range(20)
        }
        completed = [await anext(events) for _ in range(20)]
        assert {event.job_id for event in completed if isinstance(event, JobCompleted)} == ids

        lost = watcher.events(ListenerLost)
        await pool.execute("SELECT pg_terminate_backend($1)", listening_pid(watcher))
        await anext(lost)
        assert isinstance(await anext(events), EventsMissed)
        last = await watcher.schedule_job("cluster.note", datetime.now(UTC), {"args": [], "kwargs": {}})
        event = await anext(events)
        assert isinstance(event, JobCompleted)
        assert event.job_id == last
