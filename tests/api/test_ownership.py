"""Children, steps, signals and alerts belong to one definition of one job, in random stories.

The ids of the jobs, and those that follow from the names of their steps, collide. Each definition of a job
has a number, which its arguments, steps, children and signals carry: so whatever reaches another definition
shows.
With PG_SCHEDULER_PROTOCOL=long there are more and longer stories.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import asyncpg
import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from pg_scheduler import Abort, ConflictResolution, JobConflictError, JobNotFoundError, call, current_job
from pg_scheduler.testing import TestScheduler
from tests.support.inside import clock_of
from tests.support.stories import LONG

START = datetime(2030, 1, 1, tzinfo=UTC)
JOBS = st.sampled_from(["a", "a:b", "a:b:0", "a:failed"])
NAMES = st.sampled_from(["b", "b:0", "0", "failed", "note"])
REPLACE, RAISE = ConflictResolution.REPLACE, ConflictResolution.RAISE


class Run:
    """The jobs, what the callers did, and what was wrong."""

    def __init__(self, t: TestScheduler) -> None:
        self.t = t
        for func in (self.leaf, self.alert):
            t.scheduler.register(func, name=f"ownership.{func.__name__}", keep_result=timedelta(days=1))
        t.scheduler.register(self.parent, name="ownership.parent", on_failure="ownership.alert")
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self.numbers = itertools.count(1)
        self.current: dict[str, int] = {}
        """The number of the definition that a caller gave a job last; none after its row was deleted."""
        self.sent: dict[tuple[int, str], int] = {}
        """The values of the signals that signal() has accepted, by definition and name."""
        self.replaced_within: set[int] = set()
        self.failed: set[int] = set()
        self.alerts: Counter[int] = Counter()
        self.suppressed_alerts: set[int] = set()
        """The definitions whose waiting alert a caller cancelled, replaced or deleted as a job of its own."""
        self.repeated_alerts: Counter[int] = Counter()
        """How often a caller retried the ended alert of a definition as a job of its own."""
        self.faults: list[str] = []

    def check(self, what: str, value: object, expected: object) -> None:
        if value != expected:
            self.faults.append(f"{what}: {value!r}, not {expected!r}")

    # -- the jobs ------------------------------------------------------------------------------------------

    async def leaf(self, number: int) -> int:
        return number

    async def alert(self, job_id: str, job_name: str, error: str, attempts: int) -> None:
        if error.startswith("Abort: "):
            self.alerts[int(error.removeprefix("Abort: "))] += 1

    async def parent(self, number: int, name: str, gathers: bool, *acts: bool) -> int:
        replaces, fails = acts
        job_id, steps = current_job().job_id, current_job().steps
        self.check("a step", await steps.run("note", self.leaf, number), number)
        if replaces and number not in self.replaced_within:
            self.replaced_within.add(number)
            await self.enqueue(job_id, REPLACE, name, False, False, fails)
            await self.signal(job_id, "go")
        child = call(self.leaf, number)
        if name != "note":
            try:
                value = (await steps.gather(name, [child]))[0] if gathers else await steps.child(name, child)
            except JobConflictError:
                value = number
            self.check(f"the child {name!r} of {job_id!r}", value, number)
        value = await steps.wait("go", timeout=60)
        self.check(f"the signal of {job_id!r}", value, self.sent.get((number, "go")))
        if fails:
            # A job that was replaced within its attempt continues with its new definition: it has not failed.
            if self.current.get(job_id) == number:
                self.failed.add(number)
            raise Abort(str(number))
        return number

    # -- their callers -------------------------------------------------------------------------------------

    async def enqueue(self, job_id: str, resolution: ConflictResolution, *about: object) -> None:
        """Enqueue a parent with these arguments after its number; a leaf without any."""
        if resolution is REPLACE:
            await self.suppress_alert(job_id)
        number = next(self.numbers)
        func, args = "parent" if about else "leaf", (number, *about)
        try:
            await self.t.scheduler.enqueue(
                f"ownership.{func}", args=args, job_id=job_id, conflict_resolution=resolution
            )
        except JobConflictError:
            return
        self.current[job_id] = number

    async def signal(self, job_id: str, name: str) -> None:
        number = self.current.get(job_id)
        if number is None:
            return
        try:
            if await self.t.scheduler.signal(job_id, name, number):
                self.check("a second value", self.sent.setdefault((number, name), number), number)
        except JobNotFoundError:
            self.faults.append(f"job {job_id!r} is gone")

    async def suppress_alert(self, job_id: str) -> None:
        """Note whose alert ends with the job that a caller is about to cancel, to replace or to delete."""
        number = await self.number_of_alert(job_id, "pending")
        if number is not None:
            self.suppressed_alerts.add(number)

    async def retry(self, job_id: str, name: str | None) -> None:
        number = await self.number_of_alert(job_id, "completed")
        if await self.t.scheduler.retry_job(job_id, from_step=name) and number is not None:
            self.repeated_alerts[number] += 1

    async def number_of_alert(self, job_id: str, status: str) -> int | None:
        """Return the definition whose alert this job is, if it has this status."""
        error = await self.t.scheduler.db_pool.fetchval(
            "SELECT task_data #>> '{kwargs, error}' FROM scheduled_jobs "
            "WHERE job_id = $1 AND job_name = 'ownership.alert' AND status = $2",
            job_id,
            status,
        )
        if error is None or not error.startswith("Abort: "):
            return None
        return int(error.removeprefix("Abort: "))

    async def wrong_rows(self, pool: asyncpg.Pool) -> list[Any]:
        """Return the jobs of callers that something else has replaced."""
        rows = await pool.fetch(
            "SELECT job_id, (coalesce(on_end #> '{replacement, task_data}', task_data) #>> '{args, 0}')::int "
            "AS number FROM scheduled_jobs WHERE job_name <> 'ownership.alert'"
        )
        numbers = {row["job_id"]: row["number"] for row in rows}
        return [
            (job_id, numbers.get(job_id), number)
            for job_id, number in self.current.items()
            if numbers.get(job_id) != number
        ]

    async def lost_signals(self, pool: asyncpg.Pool) -> list[Any]:
        """Return the definitions that wait for the signal "go" although it has come."""
        rows = await pool.fetch(
            "SELECT job_id FROM scheduler_steps WHERE kind = 'signal' AND name = 'go' AND ended_at IS NULL"
        )
        waiting = {self.current.get(row["job_id"]) for row in rows}
        return [number for number, name in self.sent if name == "go" and number in waiting]


class Story(RuleBasedStateMachine):
    """Callers act on jobs whose ids collide, between and within attempts."""

    runner: ClassVar[asyncio.Runner]
    run: ClassVar[Run]
    pool: ClassVar[asyncpg.Pool]

    def __init__(self) -> None:
        super().__init__()
        self.run.begin()
        self.do(
            self.pool.execute("TRUNCATE scheduled_jobs, scheduler_steps, scheduler_after, scheduler_results")
        )

    def do(self, action: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(action)

    @rule(job_id=JOBS, resolution=st.sampled_from([RAISE, REPLACE]))
    def enqueue_leaf(self, job_id: str, resolution: ConflictResolution) -> None:
        self.do(self.run.enqueue(job_id, resolution))

    @rule(
        job_id=JOBS,
        about=st.tuples(NAMES, st.booleans(), st.booleans(), st.booleans()),
        resolution=st.sampled_from([RAISE, REPLACE]),
    )
    def enqueue_parent(
        self, job_id: str, about: tuple[str, bool, bool, bool], resolution: ConflictResolution
    ) -> None:
        self.do(self.run.enqueue(job_id, resolution, *about))

    @rule(job_id=JOBS, name=st.sampled_from(["go", "b", "note", "failed"]))
    def signal(self, job_id: str, name: str) -> None:
        self.do(self.run.signal(job_id, name))

    @rule(job_id=JOBS)
    def cancel(self, job_id: str) -> None:
        self.do(self.run.suppress_alert(job_id))
        self.do(self.run.t.scheduler.cancel_job(job_id))

    @rule(job_id=JOBS, name=st.none() | NAMES)
    def retry(self, job_id: str, name: str | None) -> None:
        with suppress(ValueError):  # the job has not stored that step
            self.do(self.run.retry(job_id, name))

    @rule(job_id=JOBS)
    def delete(self, job_id: str) -> None:
        self.run.current.pop(job_id, None)
        self.do(self.run.suppress_alert(job_id))
        self.do(self.pool.execute("DELETE FROM scheduled_jobs WHERE job_id = $1", job_id))

    @rule(seconds=st.sampled_from([-3600, -1, 1, 30]))
    def step_clock(self, seconds: int) -> None:
        clock_of(self.run.t).now += timedelta(seconds=seconds)

    @rule()
    def run_one(self) -> None:
        self.do(self.run.t.run_one())

    @rule(seconds=st.sampled_from([0, 0, 61]))
    def run_all(self, seconds: int) -> None:
        self.do(self.run.t.run_until(timedelta(seconds=seconds)))

    @invariant()
    def everything_belongs_to_its_definition(self) -> None:
        assert not self.run.faults
        assert not self.do(self.run.wrong_rows(self.pool))

    def teardown(self) -> None:
        self.do(self.run.t.run_until(timedelta(0)))
        assert not self.run.faults
        assert not self.do(self.run.lost_signals(self.pool))
        self.do(self.run.t.run_until(timedelta(hours=2)))
        assert not self.run.faults
        for number in self.run.failed:
            expected = 1 + self.run.repeated_alerts[number]
            if number in self.run.suppressed_alerts:
                assert self.run.alerts[number] <= expected
            else:
                assert self.run.alerts[number] == expected


@pytest.mark.slow
@pytest.mark.timeout(7200 if LONG else 900)
def test_random_stories_over_colliding_ids_mix_no_definitions(dsn: str) -> None:
    settings = hypothesis.settings(
        max_examples=1000 if LONG else 25,
        stateful_step_count=60 if LONG else 25,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:

        class Ownership(Story):
            pass

        Ownership.runner = runner
        Ownership.pool = pool = runner.run(open_pool(dsn))
        context = TestScheduler(pool, now=START)
        try:
            Ownership.run = Run(runner.run(context.__aenter__()))
            run_state_machine_as_test(Ownership, settings=settings)
        finally:
            runner.run(context.__aexit__(None, None, None))
            runner.run(pool.close())


async def open_pool(dsn: str) -> asyncpg.Pool:
    return await asyncpg.create_pool(dsn, min_size=1)
