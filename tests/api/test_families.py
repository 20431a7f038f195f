"""A job is cancelled, and retried, with the children of its steps: all of them or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    Abort,
    Child,
    ConflictResolution,
    JobCancelledError,
    JobConflictError,
    JobFailedError,
    JobStatus,
    Sleep,
    Unique,
    call,
    current_job,
    job,
)
from pg_scheduler.events import JobCancelled
from pg_scheduler.inspect import Inspector
from pg_scheduler.testing import TestScheduler
from tests.api.conftest import Make
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support.worker import Recorder

Pool = asyncpg.Pool

START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
async def t(pool: Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as scheduler:
        yield scheduler


class Plan:
    """The outcomes of the leaves of a tree, which a test changes, and how often each leaf has run."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.runs: list[str] = []

    async def leaf(self, name: str) -> str:
        self.runs.append(name)
        if name in self.failing:
            raise Abort(f"{name} fails")
        return name

    async def patient(self, name: str) -> str:
        await current_job().steps.wait("signal")
        return name

    async def branch(self, name: str, leaves: list[str]) -> list[str]:
        calls = [call(self.leaf, f"{name}.{leaf}") for leaf in leaves]
        return await current_job().steps.gather("leaves", calls)

    async def waiting_branch(self, name: str) -> Any:
        return await current_job().steps.child("leaf", call(self.patient, name))

    async def tree(self) -> list[list[str]]:
        steps = current_job().steps
        await steps.run("before", self.leaf, "before")
        branches = [call(self.branch, name, ["x", "y"]) for name in ("a", "b")]
        values = await steps.gather("branches", branches)
        await steps.run("after", self.leaf, "after")
        return values

    async def waiting_tree(self) -> Any:
        return await current_job().steps.gather(
            "branches", [call(self.waiting_branch, name) for name in ("a", "b")]
        )


@pytest.fixture
def plan() -> Plan:
    return Plan()


async def enqueue(t: TestScheduler, func: Callable[..., Any], **options: Any) -> str:
    return await t.scheduler.enqueue(func, job_id="job", keep_result=HOUR, **options)


async def statuses(t: TestScheduler) -> dict[str, str]:
    return {item.job_id: item.status.value for item in await t.scheduler.list_jobs()}


WAITING = {"job", "job:branches:0", "job:branches:1", "job:branches:0:leaf", "job:branches:1:leaf"}


async def test_job_is_cancelled_with_all_generations_of_its_children(t: TestScheduler, plan: Plan) -> None:
    await enqueue(t, plan.waiting_tree)
    await t.drain()
    seen = Recorder(t.scheduler)
    assert await t.scheduler.cancel_job("job", children=True) == 5
    assert await statuses(t) == dict.fromkeys(WAITING, "cancelled")
    for job_id in WAITING:
        await seen.until(JobCancelled, job_id=job_id)
    assert await t.scheduler.cancel_job("job", children=True) == 0
    assert await t.drain() == 0, "the end of a child continues no cancelled job"


async def test_job_without_children_is_cancelled_alone(t: TestScheduler, plan: Plan) -> None:
    await enqueue(t, plan.leaf, args=("a",))
    await t.scheduler.enqueue(plan.leaf, args=("b",), job_id="job:other")
    assert await t.scheduler.cancel_job("job", children=True) == 1
    assert await statuses(t) == {"job": "cancelled", "job:other": "pending"}
    assert await t.scheduler.cancel_job("unknown", children=True) == 0


async def test_children_go_on_without_the_option(t: TestScheduler, plan: Plan) -> None:
    await enqueue(t, plan.waiting_tree)
    await t.drain()
    assert await t.scheduler.cancel_job("job") is True
    assert (await statuses(t))["job:branches:0:leaf"] == "pending"
    assert await t.scheduler.cancel_job("job", children=True) == 4, "those of a job that has ended too"


async def test_children_of_one_branch_are_cancelled_alone_and_their_parent_gets_that(
    t: TestScheduler, plan: Plan
) -> None:
    await enqueue(t, plan.waiting_tree)
    await t.drain()
    assert await t.scheduler.cancel_job("job:branches:0", children=True) == 2
    await t.scheduler.signal("job:branches:1:leaf", "signal")
    await t.drain()
    result = await t.scheduler.get_job_result("job", wait=False)
    assert result
    assert result.status is JobStatus.FAILED
    assert "job:branches:0" in str(result.error)


async def test_detached_child_goes_on_with_its_children(t: TestScheduler, plan: Plan) -> None:
    async def tree() -> None:
        steps = current_job().steps
        await steps.first(
            "first",
            Child("single", call(plan.waiting_branch, "s"), {"detached": True}),
            Child("bound", call(plan.waiting_branch, "b")),
            Sleep("limit", HOUR),
        )

    async def group() -> None:
        await current_job().steps.gather("all", [call(plan.patient, "a")], detached=True)

    await enqueue(t, tree)
    await t.scheduler.enqueue(group, job_id="group")
    await t.drain()
    assert await t.scheduler.cancel_job("job", children=True) == 3
    assert await t.scheduler.cancel_job("group", children=True) == 1
    remaining = {job_id for job_id, status in (await statuses(t)).items() if status == "pending"}
    assert remaining == {"job:single", "job:single:leaf", "group:all:0"}
    await t.scheduler.signal("job:single:leaf", "signal")
    await t.drain()
    assert (await statuses(t))["job:single"] == "completed"


async def test_detached_child_is_found_again_by_its_step(t: TestScheduler, plan: Plan) -> None:
    async def tree() -> Any:
        return await current_job().steps.child("leaf", call(plan.patient, "a"), detached=True)

    await enqueue(t, tree)
    await t.drain()
    await t.scheduler.signal("job:leaf", "signal")
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == "a"


async def test_detached_must_be_a_bool(t: TestScheduler, plan: Plan) -> None:
    async def tree() -> None:
        with pytest.raises(TypeError, match="detached"):
            await current_job().steps.child("leaf", call(plan.leaf, "a"), detached="yes")
        with pytest.raises(TypeError, match="detached"):
            await current_job().steps.gather("all", [call(plan.leaf, "a")], detached=1)  # type: ignore[arg-type]

    await enqueue(t, tree)
    await t.drain()
    assert await statuses(t) == {"job": "completed"}


async def test_job_that_only_stands_for_a_child_is_not_cancelled(t: TestScheduler, plan: Plan) -> None:
    @job(name=f"{__name__}.shared", unique=Unique(args=()))
    async def shared() -> None:
        await current_job().steps.wait("signal")

    async def tree() -> None:
        await current_job().steps.child("leaf", call(shared))

    await t.scheduler.enqueue(shared, job_id="mine")
    await enqueue(t, tree)
    await t.drain()
    assert await t.scheduler.cancel_job("job", children=True) == 1
    assert await statuses(t) == {"job": "cancelled", "mine": "pending"}


async def test_jobs_of_a_search_are_cancelled_with_their_children(t: TestScheduler, plan: Plan) -> None:
    for tenant in (1, 2):
        await t.scheduler.enqueue(plan.waiting_branch, args=(str(tenant),), job_id=f"t{tenant}",
            metadata={"tenant": tenant})  # fmt: skip
    await t.drain()
    assert await t.scheduler.cancel_jobs(metadata={"tenant": 1}, children=True) == 2
    assert await statuses(t) == {
        "t1": "cancelled", "t1:leaf": "cancelled", "t2": "pending", "t2:leaf": "pending"
    }  # fmt: skip
    # A child that matches the search too is counted once.
    assert await t.scheduler.cancel_jobs(status="pending", children=True) == 2


async def test_family_is_changed_if_the_transaction_of_the_caller_commits(
    t: TestScheduler, plan: Plan, pool: Pool
) -> None:
    await enqueue(t, plan.waiting_tree)
    await t.drain()
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert await t.scheduler.cancel_job("job", children=True, connection=connection) == 5
        await transaction.rollback()
        assert set((await statuses(t)).values()) == {"pending"}
        async with connection.transaction():
            assert await t.scheduler.cancel_jobs(
                job_name=(await t.scheduler.get_job("job")).job_name,  # type: ignore[union-attr]
                children=True,
                connection=connection,
            ) == 5  # fmt: skip
        assert set((await statuses(t)).values()) == {"cancelled"}
        async with connection.transaction():
            assert await t.scheduler.retry_job("job", children=True, connection=connection) == 5
        assert set((await statuses(t)).values()) == {"pending"}


async def test_transaction_with_another_isolation_level_is_refused(
    t: TestScheduler, plan: Plan, pool: Pool
) -> None:
    await enqueue(t, plan.leaf, args=("a",))
    async with pool.acquire() as connection:
        for change in (
            t.scheduler.cancel_job("job", children=True, connection=connection),
            t.scheduler.cancel_jobs(status="pending", children=True, connection=connection),
            t.scheduler.retry_job("job", children=True, connection=connection),
        ):
            async with connection.transaction(isolation="repeatable_read"):
                with pytest.raises(ValueError, match="READ COMMITTED"):
                    await change
    assert await statuses(t) == {"job": "pending"}


async def test_arguments_are_checked(t: TestScheduler) -> None:
    with pytest.raises(TypeError, match="children"):
        await t.scheduler.cancel_job("job", children="yes")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="children"):
        await t.scheduler.cancel_jobs(status="pending", children=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="children"):
        await t.scheduler.retry_job("job", children=None)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="omit from_step='a'"):
        await t.scheduler.retry_job("job", from_step="a", children=True)  # type: ignore[call-overload]


# -- retry ---------------------------------------------------------------------------------------------


async def test_retry_repeats_what_has_failed_and_nothing_else(t: TestScheduler, plan: Plan) -> None:
    plan.failing = {"a.y", "b.x"}
    await enqueue(t, plan.tree)
    await t.drain()
    assert (await statuses(t))["job"] == "failed"
    plan.failing.clear()
    plan.runs.clear()
    # The job, both branches, and one leaf of each branch.
    assert await t.scheduler.retry_job("job", children=True) == 5
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == [["a.x", "a.y"], ["b.x", "b.y"]]
    assert sorted(plan.runs) == ["a.y", "after", "b.x"]


async def test_retry_that_fails_again_can_be_repeated(t: TestScheduler, plan: Plan) -> None:
    plan.failing = {"a.y"}
    await enqueue(t, plan.tree)
    await t.drain()
    for _ in range(2):
        assert await t.scheduler.retry_job("job", children=True) == 3
        await t.drain()
        assert (await statuses(t))["job"] == "failed"
    plan.failing.clear()
    assert await t.scheduler.retry_job("job", children=True) == 3
    await t.drain()
    assert (await statuses(t))["job"] == "completed"


async def test_steps_after_a_retried_child_are_repeated(t: TestScheduler, plan: Plan) -> None:
    async def total() -> int:
        steps = current_job().steps
        values = []
        for name in ("one", "two"):
            try:
                values.append(await steps.child(name, call(plan.leaf, name)))
            except JobFailedError:
                values.append("none")
        stored = await steps.run("stored", plan.leaf, "+".join(values))
        if "none" in stored:
            raise Abort(stored)
        return len(values)

    plan.failing = {"one"}
    await enqueue(t, total)
    await t.drain()
    plan.failing.clear()
    assert await t.scheduler.retry_job("job", children=True) == 2
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == 2
    assert plan.runs == ["one", "two", "none+two", "one", "one+two"], "the completed child ran once"


async def test_first_step_with_a_retried_child_is_repeated(t: TestScheduler, plan: Plan) -> None:
    async def tolerant() -> list[str]:
        values = []
        for name in ("one", "two"):
            try:
                values.append(await current_job().steps.child(name, call(plan.leaf, name)))
            except JobFailedError:
                values.append("none")
        return values

    plan.failing = {"one", "two"}
    await enqueue(t, tolerant)
    await t.drain()
    plan.failing.clear()
    assert await t.scheduler.retry_job("job", children=True) == 3
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == ["one", "two"]


async def test_job_that_waits_for_others_waits_for_the_retried_child_too(
    t: TestScheduler, plan: Plan
) -> None:
    async def tree() -> list[str]:
        return await current_job().steps.gather(
            "leaves", [call(plan.leaf, "a"), call(plan.patient, "b"), call(plan.leaf, "c")]
        )

    plan.failing = {"a"}
    await enqueue(t, tree)
    await t.drain()
    plan.failing.clear()
    assert await t.scheduler.retry_job("job", children=True) == 1, "the job itself has not finished"
    await t.drain()
    await t.scheduler.signal("job:leaves:1", "signal")
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == ["a", "b", "c"]


async def test_cancelled_tree_continues_where_it_was(t: TestScheduler, plan: Plan) -> None:
    await enqueue(t, plan.waiting_tree)
    await t.drain()
    await t.scheduler.signal("job:branches:0:leaf", "signal")
    await t.drain()
    assert await t.scheduler.cancel_job("job", children=True) == 3
    assert await t.scheduler.retry_job("job", children=True) == 3
    await t.drain()
    assert (await statuses(t))["job"] == "pending"
    await t.scheduler.signal("job:branches:1:leaf", "signal")
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == ["a", "b"]


async def test_retry_of_a_child_lets_its_waiting_parent_wait_again(t: TestScheduler, plan: Plan) -> None:
    async def other_tree() -> list[Any]:
        return await current_job().steps.gather(
            "branches", [call(plan.branch, "a", ["x", "y"]), call(plan.patient, "b")]
        )

    plan.failing = {"a.y"}
    await enqueue(t, other_tree)
    await t.drain()
    plan.failing.clear()
    assert await t.scheduler.retry_job("job:branches:0", children=True) == 2
    await t.scheduler.signal("job:branches:1", "signal")
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == [["a.x", "a.y"], "b"]


async def test_completed_job_repeats_a_child_whose_failure_it_has_handled(
    t: TestScheduler, plan: Plan
) -> None:
    async def tolerant() -> str:
        try:
            return await current_job().steps.child("leaf", call(plan.leaf, "a"))
        except JobFailedError:
            return "none"

    plan.failing = {"a"}
    await enqueue(t, tolerant)
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == "none"
    plan.failing.clear()
    assert await t.scheduler.retry_job("job", children=True) == 2
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == "a"


async def test_failed_child_of_a_step_that_has_ended_is_left_while_its_job_is_unfinished(
    t: TestScheduler, plan: Plan
) -> None:
    async def tolerant() -> None:
        steps = current_job().steps
        with pytest.raises(JobFailedError):
            await steps.child("leaf", call(plan.leaf, "a"))
        await steps.wait("signal")

    plan.failing = {"a"}
    await enqueue(t, tolerant)
    await t.drain()
    assert await t.scheduler.retry_job("job", children=True) == 0
    assert (await statuses(t))["job:leaf"] == "failed"


async def test_unique_key_of_a_child_that_another_job_has_keeps_the_whole_family(
    t: TestScheduler, plan: Plan
) -> None:
    @job(name=f"{__name__}.failing", unique=Unique(args=()))
    async def failing() -> None:
        raise Abort("no")

    async def tree() -> None:
        await current_job().steps.child("leaf", call(failing))

    await enqueue(t, tree)
    await t.drain()
    await t.scheduler.enqueue(failing, job_id="other", delay=HOUR)
    with pytest.raises(JobConflictError, match="other"):
        await t.scheduler.retry_job("job", children=True)
    assert await statuses(t) == {"job": "failed", "job:leaf": "failed", "other": "pending"}


async def test_children_of_a_step_that_is_to_be_repeated_are_cancelled_with_their_job(
    t: TestScheduler, plan: Plan
) -> None:
    await enqueue(t, plan.waiting_tree)
    await t.drain()
    await t.scheduler.cancel_job("job", children=True)
    for _ in range(2):
        assert await t.scheduler.retry_job("job", children=True) == 5
        assert await t.scheduler.cancel_job("job", children=True) == 5, "no step is stored again"
    assert await statuses(t) == dict.fromkeys(WAITING, "cancelled")
    assert await t.scheduler.retry_job("job", children=True) == 5
    await t.drain()
    await t.scheduler.cancel_job("job")
    await t.scheduler.retry_job("job", from_step="branches")
    assert await t.scheduler.cancel_job("job", children=True) == 5
    assert await t.scheduler.retry_job("job", children=True) == 5
    await t.drain()
    for name in ("a", "b"):
        await t.scheduler.signal(f"job:branches:{'ab'.index(name)}:leaf", "signal")
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == ["a", "b"]


async def test_former_children_of_a_step_are_no_step(t: TestScheduler, plan: Plan, pool: Pool) -> None:
    await enqueue(t, plan.waiting_tree)
    await t.drain()
    await t.scheduler.cancel_job("job", children=True)
    await t.scheduler.retry_job("job", children=True)
    row = await pool.fetchrow(
        "SELECT kind, value FROM scheduler_steps WHERE name = chr(1) || 'former:branches'"
    )
    assert row
    assert row["kind"] == "result", "nodes of earlier checkouts load it as little as this one"
    inspector = Inspector(pool)
    assert not any("branches" in step.name for step in (await inspector.steps("job")).items)


async def test_children_that_a_repeated_step_has_no_more_are_cancelled_but_not_retried(
    t: TestScheduler, plan: Plan
) -> None:
    names = ["a", "b"]

    async def shrinking() -> list[str]:
        return await current_job().steps.gather("leaves", [call(plan.patient, name) for name in names])

    await enqueue(t, shrinking)
    await t.drain()
    await t.scheduler.cancel_job("job")
    names.remove("b")
    # The second deletion of the step knows one child, and the first one both.
    for _ in range(2):
        await t.scheduler.retry_job("job", from_step="leaves")
        await t.drain()
        await t.scheduler.cancel_job("job")
    await t.scheduler.retry_job("job", from_step="leaves")
    await t.drain()
    assert await t.scheduler.cancel_job("job", children=True) == 3
    assert await t.scheduler.retry_job("job", children=True) == 2
    assert (await statuses(t))["job:leaves:1"] == "cancelled"


async def test_later_step_is_repeated_although_an_earlier_one_has_former_children(
    t: TestScheduler, plan: Plan
) -> None:
    skips_first = False

    async def two() -> str:
        if not skips_first:
            await current_job().steps.child("one", call(plan.patient, "one"))
        return await current_job().steps.child("two", call(plan.leaf, "two"))

    plan.failing = {"two"}
    await enqueue(t, two)
    await t.drain()
    await t.scheduler.cancel_job("job", children=True)
    await t.scheduler.retry_job("job", from_step="one")
    skips_first = True
    await t.drain()
    assert (await statuses(t))["job"] == "failed"
    plan.failing.clear()
    assert await t.scheduler.retry_job("job", children=True) == 3
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == "two"


async def test_child_whose_row_was_deleted_is_started_anew(t: TestScheduler, plan: Plan, pool: Pool) -> None:
    plan.failing = {"a.y"}
    await enqueue(t, plan.branch, args=("a", ["x", "y"]))
    await t.drain()
    # The vacuum deletes the rows of children that ended long before their job.
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id <> 'job'")
    plan.failing.clear()
    plan.runs.clear()
    assert await t.scheduler.retry_job("job", children=True) == 1
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == ["a.x", "a.y"]
    assert plan.runs == ["a.y"]


async def test_steps_before_a_deleted_child_that_has_failed_are_kept(
    t: TestScheduler, plan: Plan, pool: Pool
) -> None:
    async def three() -> list[str]:
        steps = current_job().steps
        one = await steps.child("one", call(plan.leaf, "one"))
        await steps.run("two", plan.leaf, "two")
        return [one, await steps.child("three", call(plan.leaf, "three"))]

    plan.failing = {"three"}
    await enqueue(t, three)
    await t.drain()
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id <> 'job'")
    plan.failing.clear()
    plan.runs.clear()
    assert await t.scheduler.retry_job("job", children=True) == 1
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == ["one", "three"]
    assert plan.runs == ["three"], "a completed child whose row was deleted is no reason to repeat its step"


@pytest.mark.parametrize("is_completed", [True, False])
@pytest.mark.parametrize("by_status", [True, False])
async def test_child_that_was_retried_alone_counts_as_it_is_now(
    t: TestScheduler, plan: Plan, *, is_completed: bool, by_status: bool
) -> None:
    plan.failing = {"a.y"}
    await enqueue(t, plan.tree)
    await t.drain()
    assert (await statuses(t))["job:branches:0"] == "failed"
    plan.failing.clear()
    plan.runs.clear()
    if by_status:
        await t.scheduler.update_job_status("job:branches:0:leaves:1", "pending")
    else:
        await t.scheduler.retry_job("job:branches:0:leaves:1")
    if is_completed:
        await t.drain()
        assert plan.runs == ["a.y"]
    # The job and its branch, of which the leaf is a child.
    assert await t.scheduler.retry_job("job", children=True) == 2
    await t.drain()
    assert (await t.scheduler.get_job_result("job")).unwrap() == [["a.x", "a.y"], ["b.x", "b.y"]]
    assert plan.runs == ["a.y", "after"], "the child runs once"


async def test_job_with_the_id_of_a_child_that_has_failed_is_no_reason_to_repeat_its_step(
    t: TestScheduler, plan: Plan
) -> None:
    plan.failing = {"a.y", "after"}
    await enqueue(t, plan.branch, args=("a", ["x", "y"]))
    await t.drain()
    await t.scheduler.enqueue(
        plan.leaf, args=("x",), job_id="job:leaves:1", conflict_resolution=ConflictResolution.REPLACE
    )
    await t.drain()
    plan.runs.clear()
    assert await t.scheduler.retry_job("job", children=True) == 1
    await t.drain()
    job = await t.scheduler.get_job("job")
    assert job is not None
    assert "a.y fails" in str(job.error_message), "the error of its child, and no conflict"
    assert plan.runs == []


# -- with a worker -------------------------------------------------------------------------------------


async def test_running_child_is_stopped_and_nothing_is_retried_until_it_has_ended(make: Make) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()
    ends: list[str] = []

    @job(name=f"{__name__}.stubborn")
    async def stubborn() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await may_end.wait()
            ends.append("stopped")
            raise

    @job(name=f"{__name__}.parent")
    async def parent() -> None:
        await current_job().steps.child("leaf", call(stubborn))

    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue(parent, job_id="job")
    await began.wait()
    assert await scheduler.cancel_job("job", children=True) == 2
    assert await scheduler.retry_job("job", children=True) == 0, "the attempt of the child still runs"
    found = await scheduler.get_job("job")
    assert found
    assert found.status is JobStatus.CANCELLED, "nothing is changed"
    may_end.set()
    await seen.until(JobCancelled, job_id="job:leaf")
    assert ends == ["stopped"]


async def test_child_that_is_being_inserted_is_cancelled_with_its_parent(make: Make, pool: Pool) -> None:
    """The attempt holds the row of the parent while it inserts the child, which the first search misses."""
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def leaf() -> None: ...

    @job(name=f"{__name__}.inserting")
    async def inserting() -> None:
        try:
            await current_job().steps.child("leaf", call(leaf), delay=HOUR)
        finally:
            if not outcome.done():
                outcome.set_result("ended")

    scheduler = make()
    await scheduler.start()
    # The edge of the child is written last in the transaction, which this trigger holds there.
    await pool.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock(44); RETURN NEW; END $$"
    )
    await pool.execute(
        "CREATE TRIGGER hold BEFORE INSERT ON scheduler_after FOR EACH ROW EXECUTE FUNCTION hold()"
    )
    async with pool.acquire() as gate:
        await gate.execute("SELECT pg_advisory_lock(44)")
        await scheduler.enqueue(inserting, job_id="job")
        await until_a_lock_is_awaited(pool)
        cancelling = asyncio.ensure_future(scheduler.cancel_job("job", children=True))
        await until_a_lock_is_awaited(pool, 2)
        await gate.execute("SELECT pg_advisory_unlock(44)")
        assert await cancelling == 2
    await outcome
    rows = await pool.fetch("SELECT job_id, status FROM scheduled_jobs ORDER BY job_id")
    assert [tuple(row) for row in rows] == [("job", "cancelled"), ("job:leaf", "cancelled")]


async def test_error_of_a_cancelled_child_is_the_result_of_its_step(t: TestScheduler, plan: Plan) -> None:
    async def tree() -> None:
        with pytest.raises(JobCancelledError):
            await current_job().steps.child("leaf", call(plan.patient, "a"))

    await enqueue(t, tree)
    await t.drain()
    assert await t.scheduler.cancel_job("job:leaf", children=True) == 1
    await t.drain()
    assert (await statuses(t))["job"] == "completed"
