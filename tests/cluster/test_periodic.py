"""Schedules on several nodes."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import asyncpg

from pg_scheduler import JobStatus, Scheduler
from tests.cluster.fleet import TICK, TOCK, Fleet

SECOND = timedelta(seconds=1)


async def test_three_nodes_run_every_fire_time_once(fleet: Fleet, client: Scheduler) -> None:
    nodes = [await fleet.start("--tick", "1", "--tock", "--catch-up") for _ in range(3)]
    # Real time: four fire times of each schedule take some four seconds.
    await fleet.wait_until(lambda: all(len(fleet.records(event)) >= 4 for event in ("ticked", "tocked")))
    # Disabled first, because no node would run a fire time that is planned right before the last one stops.
    for key in (TICK, TOCK):
        nodes[0].send(f"disable {key}")
        for node in nodes:
            await fleet.wait_for("switched", node=node, key=key, enabled=False)
    await fleet.wait_until(
        lambda: len(fleet.records("PeriodicJobPlanned")) <= len(fleet.records("JobCompleted"))
    )
    for node in nodes:
        await node.stop()

    for event in ("ticked", "tocked"):
        fire_times = sorted(datetime.fromisoformat(record.details["due"]) for record in fleet.records(event))
        assert fire_times == [fire_times[0] + number * SECOND for number in range(len(fire_times))]
    planned = Counter(record.job_id for record in fleet.records("PeriodicJobPlanned"))
    completed = Counter(record.job_id for record in fleet.records("JobCompleted"))
    assert planned == completed
    assert set(completed.values()) == {1}
    rows = await client.list_jobs()
    assert {row.job_id for row in rows} == set(completed)
    assert all(row.status is JobStatus.COMPLETED and row.attempt == 1 for row in rows)
    assert {key for key in (TICK, TOCK) if any(key in row.job_id for row in rows)} == {TICK, TOCK}


async def test_disabling_a_schedule_reaches_every_node_and_persists(
    fleet: Fleet, pool: asyncpg.Pool, client: Scheduler
) -> None:
    async def ticks_since(moment: datetime) -> int:
        return len(await client.list_jobs(job_name="periodic_tick", due_from=moment))

    async def wait_for_two_more(event: str) -> None:
        await fleet.wait_for(event, count=len(fleet.records(event)) + 2)

    schedules = ("--tick", "0.5", "--tock")
    one, two = await fleet.start(*schedules), await fleet.start(*schedules)
    await fleet.wait_for("ticked")
    one.send(f"disable {TICK}")
    await fleet.wait_for("switched", node=two, key=TICK, enabled=False)
    off: datetime = await pool.fetchval("SELECT now()")
    await one.stop()
    await two.stop()

    three, four = await fleet.start(*schedules), await fleet.start(*schedules)
    for node in (three, four):
        assert [record.details["enabled"] for record in fleet.records("switched", node=node, key=TICK)] == [
            False
        ]
    await wait_for_two_more(
        "tocked"
    )  # real time: at least a second, in which two fire times would have passed
    assert await ticks_since(off) == 0

    three.send(f"enable {TICK}")
    await fleet.wait_for("switched", node=four, key=TICK, enabled=True)
    await wait_for_two_more("ticked")
    await three.stop()
    await four.stop()
