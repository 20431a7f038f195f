"""Nodes of two releases on one schema."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import JobSpec, Scheduler, SchemaMissingError
from pg_scheduler.database.migrations.apply import apply
from pg_scheduler.migrate import migrate
from tests.cluster.fleet import Fleet
from tests.migrations.next_release import OF_NEXT_RELEASE
from tests.support.zones import write_zones

NO_ARGUMENTS: dict[str, object] = {"args": [], "kwargs": {}}


async def test_this_version_migrates_the_tables_of_0_2_or_raises_with_the_remedy(
    client: Scheduler, pool: asyncpg.Pool
) -> None:
    async with pool.acquire() as connection:
        await migrate(connection, target=0)
    remedy = r'column "\w+" .*does not exist.* call scheduler.initialize_db\(\)'
    with pytest.raises(SchemaMissingError, match=remedy):
        await client.schedule_job("x", datetime.now(UTC), NO_ARGUMENTS, job_id="x")
    with pytest.raises(SchemaMissingError, match=remedy):
        await client.cancel_job("x")
    async with client:
        await client.schedule_job("x", datetime.now(UTC), NO_ARGUMENTS, job_id="x")
        assert await client.cancel_job("x")


async def test_this_version_runs_on_the_expanded_schema_of_the_next(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    async with pool.acquire() as connection:
        await apply(connection, OF_NEXT_RELEASE)
    node = await fleet.start("--tick", "0.5")
    node.send("enqueue cluster.stumble stumble 0 5")
    await fleet.wait_for("JobCompleted", node=node, job_id="stumble-4")
    await fleet.wait_for("ticked", count=2)
    node.send("vacuum")
    await fleet.wait_for("done", line="vacuum")
    assert await client.schedule_bulk([JobSpec(do_nothing, datetime.now(UTC)) for _ in range(200)])
    assert (await client.workers())[0].worker_id == node.worker_id
    await node.stop()
    assert fleet.records("ServiceFaulted") == []


async def test_first_node_with_newer_time_zone_data_moves_the_next_fire_time_for_all(
    fleet: Fleet, client: Scheduler, tmp_path: Path
) -> None:
    """The others run on. Two more nodes have older data, which move nothing."""
    hours = {"2000a": 1, "2098b": 2, "2099a": 3}
    folders = {each: write_zones(tmp_path / each, each, hours[each]) for each in hours}
    for version, hour in (("2000a", 8), ("2098b", 7), ("2099a", 6), ("2098b", 6), ("2000a", 6)):
        variables = {"PYTHONTZPATH": str(folders[version])}
        await fleet.start("--jobs", "tests.cluster.zoned", variables=variables)
        row = await client.schedules.get("zoned")
        assert row
        assert row.next_fire_at == datetime(2090, 1, 2, hour, tzinfo=UTC), version
    assert fleet.records("ServiceFaulted") == []


async def do_nothing() -> None: ...
