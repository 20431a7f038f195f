"""The index entries that claims read while jobs arrive and another session keeps every dead row."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import ConflictResolution
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus
from pg_scheduler.queue.enqueuer import Enqueuer
from pg_scheduler.queue.prepare import JobPreparer, new_job_id
from tests.support.inside import Connections, GeneratedIdJob, Store
from tests.support.parts import Parts
from tests.support.store import Connection
from tests.support.worker import LEASE, PATIENCE, Gate, new_job, new_worker

JOBS = 20
"""Jobs of a round."""

EARLY_ROUNDS = 10
"""The rounds after which claims do not begin at the start of the index any more."""

ROUNDS = 60
STEP = timedelta(seconds=0.3)
"""The time from one round to the next: more than the margin of the cursor."""

MOST_ENTRIES = 4 * JOBS
"""A claim reads its jobs and those of the round before, and once more for the time of the next job."""

STALENESS_S = 1
"""More than the half second for which PostgreSQL 14 may show old statistics."""

READ = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'scheduled_jobs_claim'"
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


class Load:
    """Rounds of jobs that are inserted, claimed and completed, on connections of their own."""

    def __init__(self, dsn: str, clock: FakeClock, *, keep: bool) -> None:
        self._dsn = dsn
        self._clock = clock
        self._keep = keep
        self.completed = 0

    async def run(self, rounds: int) -> int:
        """Run rounds, close the connections and return the number of claims."""
        pool = await asyncpg.create_pool(self._dsn, min_size=1, max_size=5)
        connections = Connections(pool)
        parts = Parts(Store(connections, clock=self._clock), EventBus())
        parts.use_result_buffer(keeps_completed=self._keep)
        gate = Gate()
        gate.open.set()
        parts.tasks.register(gate.job, name="test.job")
        await parts.store.workers.register(new_worker(), LEASE)
        executor = parts.executor(slots=2 * JOBS)
        claimer, outbox = parts.claimer(executor, batch=2 * JOBS), parts.use_outbox()
        claimer.cursor.many_entries = EARLY_ROUNDS * JOBS // 2
        parts.head_scanner(claimer)
        await parts.notifier().prepare()
        enqueuer = Enqueuer(
            parts.store,
            parts.events,
            outbox,
            JobPreparer(parts.tasks, misfire_grace_time=None, max_payload_bytes=None),
        )
        claims = 0
        for _ in range(rounds):
            self._clock.advance(STEP)
            due = self._clock.now
            jobs = [GeneratedIdJob(*new_job(new_job_id(), execution_time=due)) for _ in range(JOBS)]
            await asyncio.gather(*(enqueuer.insert(job, ConflictResolution.IGNORE, None) for job in jobs))
            claims += 1
            while await claimer.run_once() <= 0:
                claims += 1
            await parts.ended(executor)
            await parts.completer().run_once()
        self.completed = len(gate.calls)
        await connections.release_held()
        await asyncio.wait_for(pool.close(), PATIENCE)
        return claims


async def entries_read(connection: Connection, sessions: int) -> int:
    """Return the entries read by sessions that have ended, which have reported their statistics then.

    Before PostgreSQL 15, a process of its own collects the statistics, and a session may read them as they
    were half a second ago. So they are read until they have not changed for longer.
    """
    async with asyncio.timeout(PATIENCE):
        while await connection.fetchval(SESSIONS) > sessions:
            pass
        read: int = await connection.fetchval(READ)
        while connection.get_server_version().major < 15:
            former_read = read
            await asyncio.sleep(STALENESS_S)
            read = await connection.fetchval(READ)
            if read == former_read:
                break
    return read


@pytest.mark.parametrize("keep", [True, False])
async def test_claims_read_few_entries_while_jobs_arrive_under_a_held_snapshot(
    dsn: str, clock: FakeClock, keep: bool
) -> None:
    clock.advance(-timedelta(hours=1))  # the jobs are due by the clock of the process too
    load = Load(dsn, clock, keep=keep)
    async with (
        asyncpg.create_pool(dsn, min_size=2, max_size=2) as own,
        own.acquire() as watcher,
        own.acquire() as holder,
        holder.transaction(isolation="repeatable_read"),
    ):
        sessions = await watcher.fetchval(SESSIONS)
        await holder.fetchval("SELECT count(*) FROM scheduled_jobs")
        await load.run(EARLY_ROUNDS)
        before = await entries_read(watcher, sessions)
        claims = await load.run(ROUNDS)
        read = await entries_read(watcher, sessions) - before
    assert load.completed == ROUNDS * JOBS
    # The first claim of the second worker begins at the start of the index.
    assert read <= claims * MOST_ENTRIES + 2 * EARLY_ROUNDS * JOBS
