"""The jobs that are linked with a job, in both directions."""

from __future__ import annotations

import asyncio

import asyncpg

from pg_scheduler import Job, JobStatus, Scheduler
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.dependencies import Dependencies, read_dependencies
from pg_scheduler.inspect.store.inspections import LinkedJob
from tests.support.patience import PATIENCE
from tests.support.world import World


async def work() -> None: ...


async def broken() -> None:
    raise ValueError("no")


async def found(pool: asyncpg.Pool, job_id: str, *names: str) -> Dependencies:
    inspector = Inspector(pool)
    job: Job | None = await inspector.get_job(job_id)
    assert job is not None
    return await read_dependencies(inspector, job, lambda name: not names or name in names)


async def test_dependencies_are_found_in_both_directions(pool: asyncpg.Pool, world: World) -> None:
    scheduler = Scheduler(pool)
    scheduler.register(work, name="work")
    scheduler.register(broken, name="secret")
    await scheduler.enqueue(work, job_id="a")
    await scheduler.enqueue(broken, job_id="b")
    await scheduler.enqueue(work, job_id="join", after=["a", "b"])
    await scheduler.enqueue(broken, job_id="last", after=["join"])
    await world.edge("gone", "join")
    pending = JobStatus.PENDING
    assert await found(pool, "join") == Dependencies(
        (LinkedJob("a", "work", pending), LinkedJob("b", "secret", pending), LinkedJob("gone", None, None)),
        (LinkedJob("last", "secret", pending),),
    )
    assert await found(pool, "join", "work") == Dependencies(
        (LinkedJob("a", "work", pending),), (), has_more_parents=True, has_more_children=True
    )
    assert (await found(pool, "a")).children == (LinkedJob("join", "work", pending),)


async def test_dependencies_of_a_job_with_many_are_the_first_of_them(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    scheduler.register(work, name="work")
    await scheduler.enqueue(work, job_id="first")
    for number in range(25):
        await scheduler.enqueue(work, job_id=f"child-{number:02}", after=["first"])
    links = await found(pool, "first")
    assert (len(links.children), links.has_more_children, links.has_more_parents) == (20, True, False)


async def test_job_that_was_cancelled_by_its_parent_is_linked_with_it(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    scheduler.register(work, name="work")
    scheduler.register(broken, name="broken")
    first = 'it\'s \\ "broken"\n{!r}'
    await scheduler.enqueue(broken, job_id=first)
    await scheduler.enqueue(work, job_id="child", after=[first])
    async with scheduler, asyncio.timeout(PATIENCE):
        await scheduler.get_job_result("child")
    assert (await found(pool, "child")).parents == (LinkedJob(first, "broken", JobStatus.FAILED),)
    assert (await found(pool, "child", "work")).parents == ()
    await pool.execute("""UPDATE scheduled_jobs SET errors = '[{"attempt": 0, "outcome": "parent"}]'""")
    assert await found(pool, "child") == Dependencies()
