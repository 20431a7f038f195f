"""The statements about what jobs publish, in the orders in which sessions can execute them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest

from pg_scheduler.errors import JobLostError
from pg_scheduler.streams import statements
from pg_scheduler.streams.statements import VALUE, NewItem, Page, Wanted
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support.inside import Claim, Store
from tests.support.store import new_job, running

Pool = asyncpg.Pool
ALL = 2**31 - 1


async def append(
    store: Store, claim: Claim, *numbers: int, name: str = "items", connection: Any = None, worker: str = "w1"
) -> None:
    items = [NewItem(name, number, f"{number * 10}") for number in numbers]
    await store.streams.append(worker, claim, "first", items, connection=connection)


async def read(store: Store, after: int = VALUE, name: str = "items") -> Page:
    (page,) = await store.streams.read([Wanted("job", name, after, ALL)])
    return page


async def stored(pool: Pool) -> list[tuple[str, int, int]]:
    rows = await pool.fetch("SELECT name, number, value FROM scheduler_streams ORDER BY name, number")
    return [(row["name"], row["number"], json.loads(row["value"])) for row in rows]


@pytest.fixture
async def claim(store: Store) -> Claim:
    (claim,) = await running(store, new_job("job"))
    return claim


async def test_first_item_gives_the_job_its_definition(store: Store, pool: Pool, claim: Claim) -> None:
    await pool.execute("""UPDATE scheduled_jobs SET options = '{"keep_result": 60}'""")
    await append(store, claim, 1)
    await store.streams.append("w1", claim, "another", [NewItem("items", 2, "20")])
    options = json.loads(await pool.fetchval("SELECT options FROM scheduled_jobs"))
    assert options == {"keep_result": 60, "streams": "first"}
    assert (await read(store)).items == [(1, "10"), (2, "20")]
    assert await store.streams.sizes("job") == [("items", 2, 4)]


@pytest.mark.parametrize(
    ("holder", "change"),
    [
        (("other", 1), ""),
        (("w1", 2), ""),
        (("w1", 1), "status = 'completed', finished_at = now()"),
        (("w1", 1), "worker_id = 'other'"),
        (("w1", 1), "attempt = 2"),
    ],
)
async def test_item_is_refused_for_an_attempt_that_the_worker_does_not_hold(
    holder: tuple[str, int], change: str, store: Store, pool: Pool, claim: Claim
) -> None:
    worker, attempt = holder
    await append(store, claim, 1)
    if change:
        await pool.execute(f"UPDATE scheduled_jobs SET {change}")
    with pytest.raises(JobLostError):
        await append(store, claim._replace(attempt=attempt), 2, worker=worker)
    assert await stored(pool) == [("items", 1, 10)]


async def test_item_waits_for_the_transaction_that_reclaims_its_job_and_is_refused(
    store: Store, pool: Pool, claim: Claim
) -> None:
    """The job has its definition already: otherwise that change would wait in place of the fence."""
    await append(store, claim, 1)
    async with pool.acquire() as connection:
        async with connection.transaction():
            await connection.execute("UPDATE scheduled_jobs SET worker_id = 'other', attempt = 2")
            late = asyncio.create_task(append(store, claim, 2))
            await until_a_lock_is_awaited(pool)
        with pytest.raises(JobLostError):
            await late
    assert await stored(pool) == [("items", 1, 10)]


@pytest.mark.parametrize(
    "change", ["attempt = 2, worker_id = 'w2'", "status = 'completed', finished_at = now()"]
)
async def test_change_of_the_job_waits_for_an_item_that_is_being_stored(
    store: Store, pool: Pool, claim: Claim, change: str
) -> None:
    """So the next attempt counts the item, and whoever sees the end of the job sees the item."""
    await append(store, claim, 1)
    async with pool.acquire() as connection:
        async with connection.transaction():
            await append(store, claim, 2, connection=connection)
            changing = asyncio.create_task(pool.execute(f"UPDATE scheduled_jobs SET {change}"))
            await until_a_lock_is_awaited(pool)
            assert (await read(store)).items == [(1, "10")]
            assert not (await read(store)).has_ended
        await changing
    page = await read(store)
    assert page.items == [(1, "10"), (2, "20")]
    assert page.has_ended is ("completed" in change)
    assert [size.last for size in await store.streams.sizes("job")] == [2]


async def test_item_stays_and_a_value_is_replaced(store: Store, pool: Pool, claim: Claim) -> None:
    await append(store, claim, VALUE, 1)
    await store.streams.append("w1", claim, "first", [NewItem("items", 0, "7"), NewItem("items", 1, "7")])
    assert await stored(pool) == [("items", 0, 7), ("items", 1, 10)]


async def test_one_statement_reads_for_several_readers(
    store: Store, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "PAGE_SIZE", 2)
    await append(store, claim, VALUE, 1, 2, 3)
    await append(store, claim, 1, name="dots")
    wanted = [
        Wanted("job", "items", 0, ALL),
        Wanted("job", "items", 2, ALL),
        Wanted("none", "items", 0, ALL),
        Wanted("job", "items", VALUE - 1, VALUE),
        Wanted("job", "dots", 1, ALL),
        Wanted("job", "dots", 0, ALL),
    ]
    assert await store.streams.read(wanted) == [
        Page(has_row=True, has_ended=False, definition="first", items=[(1, "10"), (2, "20")]),
        Page(has_row=True, has_ended=False, definition="first", items=[(3, "30")]),
        Page(has_row=False, has_ended=False, definition=None, items=[]),
        Page(has_row=True, has_ended=False, definition="first", items=[(0, "0")]),
        Page(has_row=True, has_ended=False, definition="first", items=[]),
        Page(has_row=True, has_ended=False, definition="first", items=[(1, "10")]),
    ]


async def test_rows_of_another_definition_are_neither_read_nor_counted(
    store: Store, pool: Pool, claim: Claim
) -> None:
    await append(store, claim, 1, 2)
    await pool.execute("""UPDATE scheduled_jobs SET options = NULL""")
    assert (await read(store)).items == []
    assert await store.streams.sizes("job") == []
    await store.streams.append("w1", claim, "second", [NewItem("items", 1, "70")])
    assert (await read(store)).items == [(1, "70")]


async def test_vacuum_deletes_rows_without_their_definition_in_batches(
    store: Store, pool: Pool, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "VACUUMED_JOBS", 2)
    monkeypatch.setattr(statements, "VACUUMED_ROWS", 3)
    await append(store, claim, VALUE, 1)
    await pool.execute(
        "INSERT INTO scheduler_streams (job_id, definition, name, number, value) "
        "SELECT job_id, 'former', 'items', number, '1' "
        "FROM unnest(ARRAY ['a', 'b', 'job', 'z']) AS job_id, generate_series(1, 2) AS number"
    )
    assert await store.streams.vacuum("") == ("b", True)
    assert await store.streams.vacuum("") == ("job", True)
    assert await store.streams.vacuum("") == ("z", False)
    assert await store.streams.vacuum("z") == (None, False)
    assert await stored(pool) == [("items", 0, 0), ("items", 1, 10)]
