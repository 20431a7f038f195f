"""list_jobs() with a metadata filter examines a bounded range of the table, and finds every match."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pg_scheduler import Job, JobStatus, Page
from tests.support import inside
from tests.support.inside import Store, load_queries
from tests.support.store import NOW, SECOND, Pool, new_job, running

MAX_EXAMINED_ROWS = inside.internal_setting("examined_rows")

NO_FILTERS: dict[str, Any] = {
    "after": None,
    "statuses": None,
    "names": None,
    "worker_id": None,
    "due_from": None,
    "due_before": None,
    "limit": 100,
}
ROWS = 45_000
FIND = load_queries("public")["find_jobs"].text


def data(**metadata: Any) -> str:
    return json.dumps({"args": [], "kwargs": {}, "metadata": metadata})


async def find(store: Store, metadata: str, **filters: Any) -> Page[Job]:
    return await store.jobs.list_jobs(**{**NO_FILTERS, **filters}, metadata=metadata)


async def fill(pool: Pool) -> None:
    """Insert rows of which every 15,000th belongs to tenant 7."""
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, task_data)"
        " SELECT lpad(n::text, 6, '0'), 'name', $1, jsonb_build_object('metadata',"
        " jsonb_build_object('tenant', CASE WHEN n % 15000 = 0 THEN 7 ELSE 8 END))"
        " FROM generate_series(1, $2::integer) AS n",
        NOW,
        ROWS,
    )


async def test_metadata_filter_selects_rows_that_contain_it(store: Store) -> None:
    await store.inserts.insert(
        [
            new_job("a", task_data=data(tenant=7, tags=["x", "y"], deep={"a": 1, "b": 2})),
            new_job("b", task_data=data(tenant=8)),
            new_job("c"),
            new_job("d", task_data='{"metadata": [{"tenant": 7}]}'),
            new_job("e", task_data=data(tenant="7")),
        ]
    )
    for wanted in ({"tenant": 7}, {"tags": ["y"]}, {"deep": {"b": 2}}, {"tenant": 7, "tags": []}):
        assert [job.job_id for job in await find(store, json.dumps(wanted))] == ["a"]
    assert await find(store, '{"tenant": 9}') == []
    (job,) = await find(store, '{"tenant": 8}')
    assert job == await store.jobs.get_job("b")
    assert job.metadata == {"tenant": 8}


async def test_metadata_filter_combines_with_the_other_filters(store: Store) -> None:
    await running(store, new_job("a", task_data=data(tenant=7)))
    await store.inserts.insert(
        [
            new_job("b", task_data=data(tenant=7), job_name="other"),
            new_job("c", task_data=data(tenant=7), execution_time=NOW + SECOND),
        ]
    )
    for filters, expected in (
        ({}, "abc"),
        ({"statuses": [JobStatus.RUNNING]}, "a"),
        ({"statuses": []}, ""),
        ({"worker_id": "w1"}, "a"),
        ({"names": ["other"]}, "b"),
        ({"due_from": NOW + SECOND}, "c"),
        ({"due_before": NOW + SECOND}, "ab"),
        ({"after": "a"}, "bc"),
        ({"limit": 1, "after": "a"}, "b"),
    ):
        page = await find(store, '{"tenant": 7}', **filters)
        assert "".join(job.job_id for job in page) == expected
        assert (page.next is not None) is ("limit" in filters)


async def test_following_next_finds_every_match_when_pages_are_empty(store: Store, pool: Pool) -> None:
    await fill(pool)
    pages = [await find(store, '{"tenant": 7}')]
    while pages[-1].next is not None:
        pages.append(await find(store, '{"tenant": 7}', after=pages[-1].next))
    assert [[job.job_id for job in page] for page in pages] == [["015000"], ["030000"], ["045000"]]
    assert [page.next for page in pages] == ["020000", "040000", None]
    nothing = await find(store, '{"tenant": 9}')
    assert (nothing, nothing.next) == ([], "020000")


@pytest.mark.slow
async def test_following_next_finds_every_match_when_pages_are_full(store: Store, pool: Pool) -> None:
    await fill(pool)
    found, after = 0, None
    while True:
        page = await find(store, '{"tenant": 8}', after=after, limit=10_000)
        found, after = found + len(page), page.next
        if after is None:
            break
    assert found == ROWS - 3


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("case", [("NULL", 7, 20_000), ("'029999'", 7, 15_001), ("'000001'", 8, 11)])
async def test_metadata_filter_examines_a_bounded_number_of_rows(
    pool: Pool, mode: str, case: tuple[str, int, int]
) -> None:
    after, tenant, examined = case
    await fill(pool)
    await pool.execute("ANALYZE scheduled_jobs")
    async with pool.acquire() as connection:
        await connection.execute(f"SET plan_cache_mode = {mode}")
        await connection.execute(
            "PREPARE find (text, bigint, bigint, text[], text[], text, timestamptz, timestamptz, text) AS "
            + FIND
        )
        metadata = json.dumps({"tenant": tenant})
        values = f"{after}, 11, {MAX_EXAMINED_ROWS}, NULL, NULL, NULL, NULL, NULL, '{metadata}'"
        text = await connection.fetchval(
            f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE find ({values})"
        )
    scans = [node for node in nodes(json.loads(text)[0]["Plan"]) if "Relation Name" in node]
    read = [node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans]
    assert len(read) == 1
    assert examined <= read[0] <= examined + (after != "NULL")  # and the row before
    assert not [node for node in nodes(json.loads(text)[0]["Plan"]) if node["Node Type"] == "Sort"]


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(each for child in plan.get("Plans", ()) for each in nodes(child))]
