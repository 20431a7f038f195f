"""Durable steps on a node that is wrongly declared dead."""

from __future__ import annotations

import asyncpg

from pg_scheduler import Scheduler
from tests.cluster.fleet import Fleet, overtake

OPTIONS = ("--lease", "2", "--jobs", "tests.cluster.durable")


async def test_node_that_stood_still_in_a_step_while_another_one_finished_stores_nothing(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    await overtake(fleet, client, "durable.freeze", OPTIONS)
    rows = await pool.fetch("SELECT name, value::text AS value, attempt FROM scheduler_steps")
    assert [tuple(row) for row in rows] == [("stop", "2", 2)]
