"""after=: jobs that wait for the end of other jobs, through the public methods."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

import asyncpg
import pytest

from pg_scheduler import (
    ConflictResolution,
    DatabaseUnavailableError,
    JobConflictError,
    JobNotFoundError,
    JobSpec,
    JobStatus,
    Scheduler,
)
from pg_scheduler.events import Event, JobBlocked, JobCancelled
from pg_scheduler.queue.unique_keys import Holder, UniqueKeyRepository
from tests.api.conftest import Make
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support import inside
from tests.support.inside import store_of
from tests.support.worker import PATIENCE, Recorder, now

RAISE, IGNORE, REPLACE = ConflictResolution
LATER = timedelta(hours=1)


class Ran(list[str]):
    """The jobs that ran, in order; ``until()`` waits for one."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def work(self, name: str) -> None:
        self.append(name)
        self.changed.set()
        if name.startswith("bad"):
            raise ValueError(name)

    async def until(self, name: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while name not in self:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
def ran() -> Ran:
    return Ran()


@pytest.fixture
async def scheduler(make: Make, ran: Ran) -> Scheduler:
    scheduler = make()

    async def work(name: str) -> None:
        await ran.work(name)

    scheduler.register(work, name="work")
    await scheduler.start()
    return scheduler


async def blocked(scheduler: Scheduler, *job_ids: str) -> list[str | None]:
    rows = [await scheduler.get_job(job_id) for job_id in job_ids]
    return [None if row is None else row.blocked_on for row in rows]


def subscribe_to_cancellations(scheduler: Scheduler) -> list[str]:
    """Return a list that gets the ids of cancelled jobs."""
    cancelled: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, JobCancelled):
            cancelled.append(event.job_id)

    scheduler.subscribe(note, JobCancelled)
    return cancelled


async def test_job_that_waits_is_reported_when_it_is_scheduled(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    seen = Recorder(scheduler)
    a = await scheduler.enqueue("work", args=["a"], delay=3600)
    b = await scheduler.enqueue("work", args=["b"], after=[a])
    async with pool.acquire() as connection, connection.transaction():
        await scheduler.enqueue("work", args=["c"], after=[a], connection=connection)
    await scheduler.cancel_job(a)
    await scheduler.enqueue("work", args=["d"], after=[a], after_outcome="ended")
    assert seen.of(JobBlocked) == [JobBlocked(b, "work", 0, "after")]


@pytest.mark.parametrize("resolution", ConflictResolution)
async def test_jobs_of_a_bulk_call_that_wait_are_reported(
    scheduler: Scheduler, resolution: ConflictResolution
) -> None:
    seen = Recorder(scheduler)
    parent = await scheduler.enqueue("work", args=["a"], delay=3600)
    ended = await scheduler.enqueue("work", args=["b"], delay=3600)
    await scheduler.cancel_job(ended)

    async def wait() -> None: ...

    parents = {"c": parent, "d": ended}
    specs = [JobSpec(wait, now(), job_id=each, after=(parents[each],)) for each in parents]
    await scheduler.schedule_bulk(specs, conflict_resolution=resolution)
    assert [event.job_id for event in seen.of(JobBlocked)] == ["c"]
    assert "d" in {event.job_id for event in seen.of(JobCancelled)}


async def test_chain_runs_in_order(scheduler: Scheduler, ran: Ran) -> None:
    a = await scheduler.enqueue("work", args=["a"], delay=0.05)
    b = await scheduler.enqueue("work", args=["b"], after=[a])
    await scheduler.schedule_job("work", now(), {"args": ["c"]}, after=[b])
    await ran.until("c")
    assert ran == ["a", "b", "c"]


async def test_callback_of_a_batch_runs_once_after_all_of_them(
    scheduler: Scheduler, ran: Ran, pool: asyncpg.Pool
) -> None:
    async def part(name: str) -> None:
        await ran.work(name)

    async with pool.acquire() as connection, connection.transaction():
        ids = await scheduler.schedule_bulk(
            [JobSpec(part, now(), (f"{n}",)) for n in range(150)], connection=connection
        )
        await scheduler.enqueue("work", args=["callback"], after=ids, connection=connection)
    await ran.until("callback")
    assert len(ran) == 151
    assert ran[-1] == "callback"


async def test_job_whose_parent_fails_is_cancelled_with_an_event(scheduler: Scheduler, ran: Ran) -> None:
    cancelled = subscribe_to_cancellations(scheduler)
    parent = await scheduler.enqueue("work", args=["bad"], delay=0.05)
    child = await scheduler.enqueue("work", args=["never"], after=[parent])
    await scheduler.enqueue("work", args=["always"], after=[parent], after_outcome="ended")
    await ran.until("always")
    assert "never" not in ran
    row = await scheduler.get_job(child)
    assert row
    assert row.status is JobStatus.CANCELLED
    assert row.error_message == "a job after which this job was to run did not complete"
    assert row.errors[-1].message == f"job '{parent}', after which this job was to run, ended as 'failed'"
    assert cancelled == [child]


async def test_end_of_a_long_chain_follows_its_begin_without_a_pause(
    make: Make, ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, consequence_generations=2)
    inside.replace(monkeypatch, interval_of_deadline_scanner_s=600.0)
    scheduler = make(lease=timedelta(hours=1))

    async def work(name: str) -> None:
        await ran.work(name)

    scheduler.register(work, name="work")
    last = await scheduler.enqueue("work", args=["bad"], max_retries=0, delay=0.5)
    for _ in range(8):
        last = await scheduler.enqueue("work", args=["cancelled"], after=[last])
    await scheduler.enqueue("work", args=["last"], after=[last], after_outcome="ended")
    await scheduler.start()
    await ran.until("last")
    assert ran == ["bad", "last"]


async def test_bulk_jobs_may_wait_for_each_other_and_for_existing_ones(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    async def work(name: str) -> None: ...

    def spec(job_id: str, *after: str | None) -> JobSpec:
        return JobSpec(work, now() + LATER, (job_id,), job_id=job_id, after=after)

    for resolution in (IGNORE, REPLACE):
        ids = await scheduler.schedule_bulk(
            [spec("z"), spec("a", "b", "z", None), spec("b", "z"), spec("c")],
            conflict_resolution=resolution,
            batch_size=1,
        )
        assert ids == ["z", "a", "b", "c"]
        assert await blocked(scheduler, *"zabc") == [None, "after", "after", None]
        await pool.execute(
            "DELETE FROM scheduled_jobs WHERE job_id = 'a'" if resolution is IGNORE else "SELECT"
        )
    assert await scheduler.schedule_bulk([spec("a", "z"), spec("d", "z")]) == [None, "d"]
    with pytest.raises(JobConflictError, match="'a' already exists"):
        await scheduler.schedule_bulk([spec("e", "z"), spec("a", "z")], conflict_resolution=RAISE)
    with pytest.raises(JobNotFoundError, match="job 'gone' does not exist"):
        await scheduler.schedule_bulk([spec("f"), spec("g", "gone")])
    with pytest.raises(ValueError, match="would wait for itself"):
        await scheduler.schedule_bulk([spec("h", "i"), spec("i", "h")], conflict_resolution=RAISE)
    with pytest.raises(ValueError, match="would wait for itself"):
        await scheduler.schedule_bulk([spec("z", "a")], conflict_resolution=REPLACE)
    assert [job.job_id for job in await scheduler.list_jobs()] == ["a", "b", "c", "d", "z"]


@pytest.mark.parametrize("parents", [[], ["first"]], ids=["parent is free", "parent waits too"])
async def test_bulk_call_stores_nothing_when_it_raises_on_the_unique_key_of_a_parent(
    scheduler: Scheduler, parents: list[str]
) -> None:
    async def wait() -> None: ...

    holder = await scheduler.enqueue("work", args=["a"], unique="key", delay=600)
    specs = [
        JobSpec(wait, now(), job_id="first"),
        JobSpec(wait, now(), job_id="parent", unique="key", after=parents),
        JobSpec(wait, now(), job_id="child", after=["parent"]),
    ]
    with pytest.raises(JobConflictError, match="key"):
        await scheduler.schedule_bulk(specs, conflict_resolution=RAISE)
    assert [(job.job_id, job.job_name) for job in await scheduler.list_jobs()] == [(holder, "work")]


async def waits_of(pool: asyncpg.Pool) -> list[tuple[str, str]]:
    """Return which job waits for which other one."""
    rows = await pool.fetch("SELECT child_id, parent_id FROM scheduler_after ORDER BY 1, 2")
    return [(row["child_id"], row["parent_id"]) for row in rows]


@pytest.mark.parametrize("within", ["library", "caller"])
async def test_bulk_job_waits_for_the_job_that_holds_the_unique_key_of_its_parent(
    scheduler: Scheduler, ran: Ran, pool: asyncpg.Pool, within: str
) -> None:
    def spec(job_id: str, *after: str, unique: str | None = None) -> JobSpec:
        return JobSpec(ran.work, now(), args=(job_id,), job_id=job_id, after=after, unique=unique)

    await scheduler.enqueue("work", args=["holder"], job_id="holder", unique="key", delay=LATER)
    await scheduler.enqueue("work", args=["taken"], job_id="taken", delay=LATER)
    specs = [
        spec("free"),
        spec("refused", unique="key"),
        spec("refused too", "free", unique="key"),
        spec("taken", unique="another key"),
        spec("child", "refused"),
        spec("grandchild", "refused too", "child", "taken"),
    ]
    async with pool.acquire() as connection, connection.transaction():
        job_ids = await scheduler.schedule_bulk(
            specs, connection=connection if within == "caller" else None, conflict_resolution=IGNORE
        )
    assert job_ids == ["free", None, None, None, "child", "grandchild"]
    assert await waits_of(pool) == [
        ("child", "holder"),
        ("grandchild", "child"),
        ("grandchild", "holder"),
        ("grandchild", "taken"),
    ]
    assert await scheduler.run_job_now("holder")
    assert await scheduler.run_job_now("taken")
    await ran.until("grandchild")
    assert set(ran) == {"free", "holder", "taken", "child", "grandchild"}
    assert ran.index("holder") < ran.index("child")


async def test_bulk_job_waits_for_the_first_job_of_the_call_with_the_unique_key_of_its_parent(
    scheduler: Scheduler, ran: Ran, pool: asyncpg.Pool
) -> None:
    specs = [
        JobSpec(ran.work, now() + LATER, args=("a",), job_id="a", unique="key"),
        JobSpec(ran.work, now(), args=("b",), job_id="b", unique="key"),
        JobSpec(ran.work, now(), args=("c",), job_id="c", after=["b"]),
    ]
    assert await scheduler.schedule_bulk(specs, conflict_resolution=IGNORE) == ["a", None, "c"]
    assert await waits_of(pool) == [("c", "a")]


async def test_bulk_job_that_would_wait_for_itself_by_the_unique_key_of_its_parent_is_refused(
    scheduler: Scheduler, ran: Ran
) -> None:
    specs = [
        JobSpec(ran.work, now() + LATER, args=("a",), job_id="a"),
        JobSpec(ran.work, now(), args=("c",), job_id="c", unique="key", after=["b"]),
        JobSpec(ran.work, now(), args=("b",), job_id="b", unique="key", after=["a"]),
    ]
    with pytest.raises(ValueError, match="job 'c' would wait for itself"):
        await scheduler.schedule_bulk(specs, conflict_resolution=IGNORE)
    assert await scheduler.list_jobs() == []


async def test_bulk_job_after_one_whose_unique_key_becomes_free_meanwhile_waits_for_that_job(
    scheduler: Scheduler, ran: Ran, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scheduler.enqueue("work", args=["holder"], job_id="holder", unique="key", delay=LATER)
    find_conflicts = UniqueKeyRepository.find_conflicts

    async def find_and_cancel(*args: Any, **options: Any) -> list[Holder]:
        rows = await find_conflicts(*args, **options)
        await scheduler.cancel_job("holder")
        return rows

    monkeypatch.setattr(UniqueKeyRepository, "find_conflicts", find_and_cancel)
    specs = [
        JobSpec(ran.work, now() + LATER, args=("parent",), job_id="parent", unique="key"),
        JobSpec(ran.work, now(), args=("child",), job_id="child", after=["parent"]),
    ]
    assert await scheduler.schedule_bulk(specs, conflict_resolution=IGNORE) == ["parent", "child"]
    assert await waits_of(pool) == [("child", "parent")]


async def test_job_waits_if_and_only_if_the_callers_transaction_commits(
    scheduler: Scheduler, ran: Ran, pool: asyncpg.Pool
) -> None:
    await scheduler.enqueue("work", args=["a"], job_id="a", delay=600)
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await scheduler.enqueue("work", args=["b"], job_id="b", after=["a"], connection=connection)
        with pytest.raises(JobNotFoundError):
            await scheduler.enqueue("work", args=["c"], after=["gone"], connection=connection)
        await transaction.rollback()
        assert await pool.fetchval("SELECT on_end FROM scheduled_jobs") is None
        async with connection.transaction():
            await scheduler.enqueue("work", args=["b"], job_id="b", after=["a"], connection=connection)
    assert await blocked(scheduler, "a", "b") == [None, "after"]
    assert await pool.fetchval("SELECT count(*) FROM scheduler_after") == 1


async def test_rescheduled_job_waits_for_its_new_parents(scheduler: Scheduler) -> None:
    for job_id in "ab":
        await scheduler.enqueue("work", args=[job_id], job_id=job_id, delay=600)
    options: dict[str, Any] = {"args": ["c"], "job_id": "c", "conflict_resolution": REPLACE}
    await scheduler.enqueue("work", **options, after=["a"])
    await scheduler.enqueue("work", **options, after=["b"])
    await scheduler.cancel_job("a")
    assert await blocked(scheduler, "c") == ["after"]
    await scheduler.enqueue("work", **options, delay=600)
    assert await blocked(scheduler, "c") == [None]


async def test_cancelled_parent_cancels_jobs_and_a_retry_does_not_revive_them(
    scheduler: Scheduler, ran: Ran
) -> None:
    cancelled = subscribe_to_cancellations(scheduler)
    parent = await scheduler.enqueue("work", args=["parent"], delay=600)
    child = await scheduler.enqueue("work", args=["child"], after=[parent])
    assert await scheduler.cancel_job(parent)
    assert sorted(cancelled) == sorted([parent, child])
    assert await scheduler.retry_job(parent)
    await ran.until("parent")
    row = await scheduler.get_job(child)
    assert row
    assert row.status is JobStatus.CANCELLED
    assert await scheduler.retry_job(child)
    await ran.until("child")


async def test_existing_job_does_not_wait_when_its_id_is_scheduled_again_and_ignored(
    make: Make,
) -> None:
    idle = make()
    await idle.initialize_db()
    parent = await idle.enqueue("elsewhere.work", args=["parent"])
    job_id = await idle.enqueue("elsewhere.work", args=["old"], job_id="id")
    again = await idle.enqueue(
        "elsewhere.work", args=["new"], job_id="id", after=[parent], conflict_resolution=IGNORE
    )
    assert again == job_id
    job = await idle.get_job(job_id)
    assert job is not None
    assert (job.args, job.blocked_on) == (("old",), None)


NOON: Final = now() + timedelta(days=1)


async def elsewhere() -> None: ...


def job(job_id: str, **options: Any) -> JobSpec:
    return JobSpec(elsewhere, NOON, job_id=job_id, **options)


PARENT: Final = job("p", keep_result=LATER)
CHILD: Final = job("c", after=["p"], pass_results=True)
DELETE_PARENT: Final = "DELETE FROM scheduled_jobs WHERE job_id = 'p'"


@pytest.mark.parametrize(
    ("existing", "change", "specs"),
    [
        ([PARENT, CHILD], "SELECT 1", [PARENT, CHILD, job("new")]),
        ([PARENT, CHILD], DELETE_PARENT, [CHILD, job("new")]),
        ([PARENT, CHILD], DELETE_PARENT, [CHILD, job("new", after=["c"])]),
        ([], "SELECT 1", [PARENT, job("p"), CHILD]),
        ([PARENT], "SELECT 1", [job("p"), CHILD]),
        ([job("p")], "SELECT 1", [job("a", unique="k", after=["p"]), job("b", unique="k")]),
        ([job("h", unique="k")], "SELECT 1", [job("a", unique="k", after=["gone"]), job("new")]),
    ],
)
async def test_ignoring_bulk_stores_what_single_calls_store(
    make: Make, pool: asyncpg.Pool, existing: list[JobSpec], change: str, specs: list[JobSpec]
) -> None:
    """Existing jobs stay as they are, whatever became of their parents; of one key, the first counts."""
    idle = make()
    idle.register(elsewhere)
    await idle.initialize_db()

    async def prepare() -> None:
        await pool.execute("TRUNCATE scheduled_jobs, scheduler_after")
        await idle.schedule_bulk(existing)
        await pool.execute(change)

    async def rows() -> list[tuple[object, ...]]:
        jobs = await pool.fetch("SELECT job_id, unique_key, blocked_on FROM scheduled_jobs ORDER BY job_id")
        edges = await pool.fetch("SELECT child_id, parent_id FROM scheduler_after ORDER BY 1, 2")
        return [*map(tuple, jobs), *map(tuple, edges)]

    await prepare()
    before = {str(row[0]) for row in await rows()}
    ids = await idle.schedule_bulk(specs)
    stored = await rows()
    await prepare()
    single_ids = [
        await idle.schedule(
            elsewhere,
            execution_time=NOON,
            job_id=spec.job_id,
            after=spec.after,
            pass_results=spec.pass_results,
            keep_result=spec.keep_result,
            unique=spec.unique,
            conflict_resolution=IGNORE,
        )
        for spec in specs
    ]
    assert stored == await rows()
    seen = set(before)
    for spec, job_id, single_id in zip(specs, ids, single_ids, strict=True):
        is_new = single_id == spec.job_id and single_id not in seen
        assert job_id == (single_id if is_new else None)
        seen.add(single_id)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"after": "a"}, TypeError, r"after must be a list of job ids, not str: 'a'; pass after=\[job_id\]"),
        ({"after": 5}, TypeError, "after must be a list of job ids, not int"),
        ({"after": [5]}, TypeError, "job_id must be a str, not int: 5"),
        ({"after": [""]}, ValueError, "job_id must not be empty"),
        ({"after": ["x"], "job_id": "x"}, ValueError, "after contains 'x', the id of the job itself"),
        (
            {"after_outcome": "failed"},
            ValueError,
            "after_outcome must be 'completed' or 'ended', not 'failed'",
        ),
        ({"after": ["gone"]}, LookupError, "job 'gone' does not exist; schedule it first"),
    ],
)
async def test_invalid_after_is_rejected_and_nothing_is_stored(
    scheduler: Scheduler, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    async def work(name: str) -> None: ...

    for call in (
        lambda: scheduler.enqueue("work", args=["a"], **options),
        lambda: scheduler.enqueue(work, args=["a"], **options),
        lambda: scheduler.schedule(work, execution_time=now(), args=["a"], **options),
        lambda: scheduler.schedule_job("work", now(), {"args": ["a"]}, **options),
        lambda: scheduler.schedule_bulk([JobSpec(work, now(), ("a",), **options)]),
    ):
        with pytest.raises(kind, match=message):
            await call()
    assert (await scheduler.count_jobs()).total == 0


# -- snapshots ---------------------------------------------------------------------------------------------


async def succeed() -> None: ...


Isolation: TypeAlias = Literal["repeatable_read", "serializable"]
SNAPSHOTS: Final[tuple[Isolation, ...]] = ("repeatable_read", "serializable")


@pytest.mark.parametrize("isolation", SNAPSHOTS)
@pytest.mark.parametrize("is_marked", [False, True], ids=["first", "second"])
async def test_job_after_one_that_has_ended_since_the_snapshot_is_refused(
    make: Make, pool: asyncpg.Pool, isolation: Isolation, is_marked: bool
) -> None:
    scheduler = make()
    parent = await scheduler.schedule(succeed, execution_time=now() + LATER)
    if is_marked:
        await scheduler.enqueue(succeed, after=[parent])
    async with pool.acquire() as connection:
        transaction = connection.transaction(isolation=isolation)
        await transaction.start()
        await connection.fetchval("SELECT count(*) FROM scheduled_jobs")
        await scheduler.update_job_status(parent, JobStatus.COMPLETED)
        error: Exception | None = None
        try:
            await scheduler.enqueue(succeed, job_id="late", after=[parent], connection=connection)
        except DatabaseUnavailableError as fault:
            error = fault
            await transaction.rollback()
        else:
            with pytest.raises(asyncpg.SerializationError):
                await transaction.commit()
        assert (error is not None) == is_marked, "the commit refuses another one, which it marks"
    assert await scheduler.get_job("late") is None


@pytest.mark.parametrize("isolation", SNAPSHOTS)
async def test_job_runs_after_one_that_ends_while_the_snapshot_is_open(
    make: Make, pool: asyncpg.Pool, isolation: Isolation
) -> None:
    scheduler = make()
    parent = await scheduler.schedule(succeed, execution_time=now() + LATER)
    await scheduler.enqueue(succeed, after=[parent])
    async with pool.acquire() as connection, connection.transaction(isolation=isolation):
        await scheduler.enqueue(succeed, job_id="child", after=[parent], connection=connection)
        ending = asyncio.create_task(scheduler.update_job_status(parent, JobStatus.COMPLETED))
        await until_a_lock_is_awaited(pool)
        assert not ending.done()
    async with asyncio.timeout(PATIENCE):
        await ending
    blocked_on = "SELECT blocked_on FROM scheduled_jobs WHERE job_id = 'child'"
    assert await pool.fetchval(blocked_on) is None


MANY_DEPENDENTS = """
    SET session_replication_role = replica;
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time, blocked_on)
    SELECT 'child-' || n, 'work', '2090-01-01', 'after' FROM generate_series(1, 40000) AS n;
    INSERT INTO scheduler_after (parent_id, child_id, definition)
    SELECT 'parent', 'child-' || n, '' FROM generate_series(1, 40000) AS n;
    UPDATE scheduled_jobs SET on_end = '{"child": true}' WHERE job_id = 'parent';
    RESET session_replication_role;
"""


@pytest.mark.slow
async def test_job_with_tens_of_thousands_of_dependents_is_cancelled_within_the_time_limit_of_a_call(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    await scheduler.schedule(succeed, execution_time=now() + LATER, job_id="parent")
    await pool.execute(MANY_DEPENDENTS)
    assert await scheduler.cancel_job("parent")
    rows = await pool.fetch(
        "SELECT status, errors #>> '{-1, message}' AS reason, count(*) FROM scheduled_jobs GROUP BY 1, 2"
    )
    reason = "job 'parent', after which this job was to run, ended as 'cancelled'"
    assert {tuple(row) for row in rows} == {("cancelled", None, 1), ("cancelled", reason, 40000)}


@pytest.mark.slow
async def test_locks_of_tens_of_thousands_of_dependents_are_found_within_the_time_limit_of_a_call(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    await scheduler.schedule(succeed, execution_time=now() + LATER, job_id="parent")
    await pool.execute(MANY_DEPENDENTS)
    await pool.fetchval("SELECT scheduler_cancel_job('parent')")
    consequences = store_of(scheduler).consequences
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id <> 'parent' FOR UPDATE")
        assert await consequences.apply_lost(10) == 1
    assert consequences.next_attempt_in() is not None
