"""The actions of people include the children of jobs, by the Inspector and on the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Abort, Unique, call, current_job, job
from pg_scheduler.inspect import Inspector, Progress
from pg_scheduler.testing import TestScheduler

START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAME = "family.order"

failing: set[str] = set()


@job(name="family.leaf")
async def leaf(name: str) -> str:
    await current_job().steps.wait("signal")
    if name in failing:
        raise Abort("no")
    return name


@job(name="hidden.leaf", unique=Unique(args=("name",)))
async def hidden(name: str) -> str:
    if name in failing:
        raise Abort("no")
    return name


@job(name=NAME)
async def order(name: str) -> Any:
    return await current_job().steps.gather("leaves", [call(leaf, name), call(hidden, name), call(leaf, "x")])


@pytest.fixture
async def t(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    failing.clear()
    async with TestScheduler(pool, now=START) as scheduler:
        yield scheduler


async def run(steps: AsyncIterator[Progress]) -> Progress:
    return [step async for step in steps][-1]


async def place(t: TestScheduler, *names: str) -> Inspector:
    for name in names:
        await t.scheduler.enqueue(order, args=(name,), job_id=name)
    await t.drain()
    return Inspector(t.scheduler)


async def statuses(t: TestScheduler) -> dict[str, str]:
    return {item.job_id: item.status.value for item in await t.scheduler.list_jobs()}


async def test_jobs_of_a_search_are_cancelled_and_retried_with_their_children(t: TestScheduler) -> None:
    inspector = await place(t, "a", "b")
    done = await run(inspector.cancel_jobs(where=f"status:pending name:{NAME}", children=True))
    assert (done.done, done.children, done.refused) == (2, 4, 0)
    assert done.summary.startswith("2 done with 4 child jobs, 0 refused, 0 skipped; ")
    assert await statuses(t) == {
        **dict.fromkeys(["a", "a:leaves:0", "a:leaves:2", "b", "b:leaves:0", "b:leaves:2"], "cancelled"),
        **dict.fromkeys(["a:leaves:1", "b:leaves:1"], "completed"),
    }
    done = await run(inspector.retry_jobs(where=f"status:cancelled name:{NAME}", children=True))
    assert (done.done, done.children) == (2, 4)
    assert (await statuses(t))["b:leaves:2"] == "pending"


async def test_family_stays_as_it_is_if_a_trigger_refuses_one_of_its_jobs(
    t: TestScheduler, pool: asyncpg.Pool
) -> None:
    inspector = await place(t, "a", "b", "c")
    before = await statuses(t)
    await pool.execute("""
        CREATE FUNCTION protect() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''protected''; END';
        CREATE TRIGGER protect BEFORE UPDATE ON scheduled_jobs FOR EACH ROW
            WHEN (OLD.job_id = 'b:leaves:2') EXECUTE FUNCTION protect()
    """)
    done = await run(inspector.cancel_jobs(ids=["a", "b", "c"], children=True))
    assert (done.done, done.children, done.refused) == (2, 4, 1)
    refusals = {change.job_id: type(change.refusal) for change in done.changes}
    assert refusals == {"a": type(None), "b": asyncpg.RaiseError, "c": type(None)}
    after = await statuses(t)
    assert {after[job_id] for job_id in before if job_id[0] != "b"} == {"cancelled", "completed"}
    assert all(after[job_id] == before[job_id] for job_id in before if job_id[0] == "b")


async def test_record_names_the_job_of_the_family(t: TestScheduler) -> None:
    inspector = await place(t, "a")
    await run(inspector.cancel_jobs(ids=["a"], children=True))
    (record,) = (await inspector.audit(action="cancel_jobs")).items
    assert record.subject == "a"
    assert (record.details["count"], record.details["children"]) == (3, True)
    assert set(record.details["jobs"]) == {"a", "a:leaves:0", "a:leaves:2"}


async def test_finished_job_counts_if_a_child_of_it_was_cancelled(t: TestScheduler) -> None:
    inspector = await place(t, "a")
    await t.scheduler.cancel_job("a")
    done = await run(inspector.cancel_jobs(ids=["a", "unknown"], children=True))
    assert (done.done, done.children, done.skipped) == (1, 2, 1)
    done = await run(inspector.cancel_jobs(ids=["a"], children=True))
    assert (done.done, done.refused) == (0, 1)


async def test_children_that_the_caller_may_not_change_stay(t: TestScheduler) -> None:
    failing.update(["a"])
    inspector = await place(t, "a")
    done = await run(inspector.cancel_jobs(ids=["a"], names=[NAME], children=True))
    assert (done.done, done.children) == (1, 0)
    done = await run(inspector.cancel_jobs(ids=["a"], names=["hidden.*"], children=True))
    assert (done.done, done.skipped) == (0, 1)
    done = await run(inspector.retry_jobs(ids=["a"], names=["family.*"], children=True))
    assert (done.done, done.children) == (1, 0)
    assert (await statuses(t))["a:leaves:1"] == "failed"


async def test_family_that_cannot_be_retried_does_not_keep_the_others(t: TestScheduler) -> None:
    failing.update(["a", "b"])
    inspector = await place(t, "a", "b")
    for name in ("a", "b"):
        await t.scheduler.cancel_job(name, children=True)
    # Another job has the unique key of a child of the first one.
    await t.scheduler.enqueue(hidden, args=("a",), job_id="other", delay=HOUR)
    done = await run(inspector.retry_jobs(ids=["a", "b"], children=True))
    assert (done.done, done.refused, done.children) == (1, 1, 3)
    found = await statuses(t)
    assert {found[job_id] for job_id in found if job_id.startswith("a")} == {"cancelled", "failed"}
    assert {found[job_id] for job_id in found if job_id.startswith("b")} == {"pending"}


async def test_arguments_of_the_inspector_are_checked(t: TestScheduler) -> None:
    inspector = Inspector(t.scheduler)
    with pytest.raises(ValueError, match="omit from_step='a'"):
        inspector.retry_jobs(ids=["a"], from_step="a", children=True)
    with pytest.raises(TypeError, match="children"):
        inspector.cancel_jobs(ids=["a"], children="yes")  # type: ignore[arg-type]
