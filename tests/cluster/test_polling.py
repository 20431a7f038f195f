"""Due jobs start without any notification: the claimer polls."""

from __future__ import annotations

import asyncpg
import pytest

from pg_scheduler import PollingConfig, Scheduler
from pg_scheduler.events import JobCompleted, JobStarted, ListenerConnected, ListenerLost, PassFinished
from tests.support.worker import Recorder, wire_to

MAX_INTERVAL_S = 0.5
POLLING = PollingConfig(idle_start_interval=MAX_INTERVAL_S, max_interval=MAX_INTERVAL_S)


async def note() -> None:
    """Do nothing."""


def polls(seen: Recorder) -> list[PassFinished]:
    return seen.of(PassFinished, service="claimer")


@pytest.mark.parametrize("delay", ["0", "1 s"])
async def test_due_job_starts_within_the_longest_poll_interval_while_listen_is_cut(
    dsn: str, pool: asyncpg.Pool, delay: str
) -> None:
    async with wire_to(dsn) as wire:
        node = Scheduler(pool, direct_dsn=wire.dsn, keeper_dsn=dsn, polling_config=POLLING)
        node.register(note, name="note")
        seen = Recorder(node)
        async with node:
            await seen.until(ListenerConnected)
            wire.cut()
            await seen.until(ListenerLost)
            await seen.until(PassFinished, len(polls(seen)) + 3, service="claimer")
            before = len(polls(seen))
            await pool.execute(
                "INSERT INTO scheduled_jobs (job_id, job_name, execution_time)"
                " VALUES ('polled', 'note', now() + $1::text::interval)",
                delay,
            )
            await seen.until(JobCompleted, job_id="polled")
            assert len(seen.of(ListenerConnected)) == 1, "no notification could arrive"
            assert {event.next_in <= MAX_INTERVAL_S for event in polls(seen)[before:]} == {True}
            started = seen.events.index(seen.of(JobStarted)[0])
            if delay == "0":  # the pass at the insertion may have read the table before it
                assert (
                    len([event for event in polls(seen)[before:] if seen.events.index(event) < started]) <= 2
                )
