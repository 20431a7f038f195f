"""Jobs with options, a unique key, a reason to wait and consequences are inserted and replaced."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pg_scheduler import JobStatus
from tests.support.inside import COMPLETE, ExtendedJob, Extras, JobWriter, PlainJob, Store
from tests.support.store import NAME, NOW, SECOND, Pool, column, new_job, row, running

EXTRAS = Extras('{"keep_result": 60}', "key", "limit:app.work:1", '{"on_failure": "app.page"}')
COLUMNS = ("options", "unique_key", "blocked_on", "on_end")
PLAIN = dict.fromkeys(COLUMNS)


def extended(job_id: str = "job", extras: Extras = EXTRAS, **changes: Any) -> ExtendedJob:
    return ExtendedJob(new_job(job_id, **changes), extras)


async def extras_of(pool: Pool, job_id: str = "job") -> dict[str, Any]:
    found = await row(pool, job_id)
    return {
        name: json.loads(found[name]) if name in {"options", "on_end"} and found[name] else found[name]
        for name in COLUMNS
    }


WRITTEN = {
    "options": {"keep_result": 60},
    "unique_key": "key",
    "blocked_on": "limit:app.work:1",
    "on_end": {"on_failure": "app.page"},
}


async def test_insert_extended_writes_every_column(store: Store, pool: Pool) -> None:
    job = extended(misfire_grace_time=5)
    plain = extended("plain", Extras())
    assert await store.inserts.insert_extended([job, plain]) == {"job", "plain"}
    found = await row(pool)
    assert {name: found[name] for name in PlainJob._fields if name != "task_data"} == {
        name: value for name, value in job.row._asdict().items() if name != "task_data"
    }
    assert found["expires_at"] == NOW + 5 * SECOND
    assert await extras_of(pool) == WRITTEN
    assert await extras_of(pool, "plain") == PLAIN


async def test_insert_extended_leaves_out_taken_ids_and_unique_keys(store: Store, pool: Pool) -> None:
    assert await store.inserts.insert_extended([extended("a")]) == {"a"}
    assert await store.inserts.insert_extended(
        [extended("a", Extras()), extended("b"), extended("c", EXTRAS._replace(unique_key="other"))]
    ) == {"c"}
    assert sorted(await column(pool, "job_id")) == ["a", "c"]


def test_extended_job_keeps_its_extras_when_its_time_changes() -> None:
    moved = extended().due_at(NOW + SECOND)
    assert (moved.execution_time, moved.extras) == (NOW + SECOND, EXTRAS)


async def test_replace_extended_gives_a_pending_job_the_new_extras(store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job()])
    await store.inserts.replace_extended([extended(), extended("new", Extras("{}"))])
    assert await extras_of(pool) == WRITTEN
    assert await extras_of(pool, "new") == PLAIN | {"options": {}}


async def test_plain_replacement_clears_the_extras_of_a_pending_job(store: Store, pool: Pool) -> None:
    await store.inserts.insert_extended([extended()])
    await store.inserts.replace([new_job()])
    assert await extras_of(pool) == PLAIN


async def test_replacement_keeps_the_consequences_that_belong_to_the_row(store: Store, pool: Pool) -> None:
    await store.inserts.insert_extended([extended(extras=Extras(on_end='{"child": true, "schedule": true}'))])
    await store.inserts.replace_extended([extended(extras=Extras(on_end='{"on_failure": "app.page"}'))])
    assert (await extras_of(pool))["on_end"] == {"child": True, "on_failure": "app.page"}
    await store.inserts.replace([new_job()])
    assert (await extras_of(pool))["on_end"] == {"child": True}


async def test_replacement_of_a_running_job_takes_effect_with_its_extras_at_the_end(
    store: Store, pool: Pool
) -> None:
    (claim,) = await running(store, new_job())
    await pool.execute("""UPDATE scheduled_jobs SET on_end = '{"child": true, "schedule": true}'""")
    await store.inserts.replace_extended([extended(priority=1)])
    found = await extras_of(pool)
    assert (found["options"], found["unique_key"], found["blocked_on"]) == (None, "key", None)
    assert found["on_end"].keys() == {"child", "schedule", "replacement"}
    assert await store.results.settle("w1", [(claim, COMPLETE)]) == {"job"}
    assert await extras_of(pool) == WRITTEN | {"on_end": {"child": True, "on_failure": "app.page"}}
    assert (await row(pool))["status"] == JobStatus.PENDING


@pytest.mark.parametrize("on_end", ["5", '["replacement"]', '"child"', "null"])
async def test_replacement_of_a_job_with_consequences_written_by_hand_takes_effect(
    store: Store, pool: Pool, on_end: str
) -> None:
    (claim,) = await running(store, new_job())
    await pool.execute("UPDATE scheduled_jobs SET on_end = $1", on_end)
    await store.inserts.replace([new_job(priority=1)])
    await store.results.settle("w1", [(claim, COMPLETE)])
    assert await extras_of(pool) == PLAIN
    await pool.execute("UPDATE scheduled_jobs SET on_end = $1", on_end)
    await store.inserts.replace([new_job()])
    assert (await extras_of(pool))["on_end"] is None


async def test_waiting_definition_with_extras_written_by_hand_takes_effect(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    await store.inserts.replace([new_job(priority=1)])
    await pool.execute(
        """UPDATE scheduled_jobs SET on_end = jsonb_set(jsonb_set(on_end, '{replacement,on_end}', '5'),
        '{replacement,options}', '[1]')"""
    )
    await store.results.settle("w1", [(claim, COMPLETE)])
    assert await extras_of(pool) == PLAIN


async def test_claim_returns_the_options_and_leaves_blocked_jobs(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job("first"))
    await store.inserts.insert_extended([extended(), extended("free", Extras('{"a": 1}'))])
    (claim,) = (await store.claims.exchange("w1", [NAME], 5)).jobs
    assert (claim.job_id, claim.options) == ("free", '{"a": 1}')


async def test_conflict_with_a_job_that_was_deleted_meanwhile_has_passed(store: Store) -> None:
    writer, job = JobWriter(store), new_job("a")
    assert await writer.insert([job], None) == {"a"}
    assert await writer.insert([job], None) == set()
    found = await writer.conflict([job], None)
    assert found is not None
    assert (found.job_id, found.status) == ("a", "pending")
    assert len(await store.jobs.delete(["a"])) == 1
    assert await writer.conflict([job], None) is None
