"""Schedules that several nodes share."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta

import asyncpg

from pg_scheduler import JobStatus, Scheduler
from tests.cluster.fleet import TICK, TOCK, Fleet

SECOND = timedelta(seconds=1)


async def test_three_nodes_run_every_window_once(fleet: Fleet, client: Scheduler) -> None:
    nodes = [await fleet.start("--tick", "1", "--tock") for _ in range(3)]
    # Real time: four windows of each take some four seconds.
    await fleet.hears(lambda: all(len(fleet.seen(event)) >= 4 for event in ("ticked", "tocked")))
    for key in (
        TICK,
        TOCK,
    ):  # a window that is planned right before the last node's end would be left to nobody
        nodes[0].say(f"disable {key}")
        for node in nodes:
            await fleet.sees("switched", node=node, key=key, enabled=False)
    await fleet.hears(lambda: len(fleet.seen("PeriodicJobPlanned")) <= len(fleet.seen("JobCompleted")))
    for node in nodes:
        await node.stop()

    for event in ("ticked", "tocked"):
        windows = sorted(datetime.fromisoformat(seen.about["due"]) for seen in fleet.seen(event))
        assert windows == [windows[0] + number * SECOND for number in range(len(windows))]
    planned = Counter(seen.job_id for seen in fleet.seen("PeriodicJobPlanned"))
    completed = Counter(seen.job_id for seen in fleet.seen("JobCompleted"))
    assert planned == completed
    assert set(completed.values()) == {1}
    rows = await client.list_jobs()
    assert {row.job_id for row in rows} == set(completed)
    assert all(row.status is JobStatus.COMPLETED and row.attempt == 1 for row in rows)
    assert {key for key in (TICK, TOCK) if any(key in row.job_id for row in rows)} == {TICK, TOCK}


async def test_a_switch_counts_on_every_node_within_a_second_and_is_remembered(
    fleet: Fleet, pool: asyncpg.Pool, client: Scheduler
) -> None:
    async def ticks_since(moment: datetime) -> int:
        return len(await client.list_jobs(job_name="periodic_tick", due_from=moment))

    async def two_more(event: str) -> None:
        await fleet.sees(event, count=len(fleet.seen(event)) + 2)

    schedules = ("--tick", "0.5", "--tock")
    one, two = await fleet.start(*schedules), await fleet.start(*schedules)
    await fleet.sees("ticked")
    asked = time.monotonic()
    one.say(f"disable {TICK}")
    await fleet.sees("switched", node=two, key=TICK, enabled=False)
    assert time.monotonic() - asked < 1
    off: datetime = await pool.fetchval("SELECT now()")
    await one.stop()
    await two.stop()

    three, four = await fleet.start(*schedules), await fleet.start(*schedules)
    for node in (three, four):
        assert [seen.about["enabled"] for seen in fleet.seen("switched", node=node, key=TICK)] == [False]
    await two_more("tocked")  # real time: a second at least, in which two windows would have been
    assert await ticks_since(off) == 0

    asked = time.monotonic()
    three.say(f"enable {TICK}")
    await fleet.sees("switched", node=four, key=TICK, enabled=True)
    assert time.monotonic() - asked < 1
    await two_more("ticked")
    await three.stop()
    await four.stop()
