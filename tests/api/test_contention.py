"""A model of what holds jobs back: limits, shares and unique keys under random operations on two workers.

Each story enqueues, ends, fails, snoozes and cancels jobs, and replaces workers, in an order that hypothesis
chooses. The model knows which attempts run, since each waits for its end by the story. At any time no limit
is exceeded and no unique key is taken twice. In the end every job has ended: nothing waits forever.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, Final

import asyncpg
import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from pg_scheduler import JobConflictError, Limit, RetryPolicy, Scheduler, Share, Snooze, Unique, current_job
from tests.support.patience import PATIENCE
from tests.support.stories import LONG

AT_ONCE: Final = RetryPolicy(base=timedelta(milliseconds=1), maximum=timedelta(milliseconds=1), jitter=0)
SLOTS: Final = 4
ACCOUNTS: Final = ("a", "b")

OF_ACCOUNT: Final = Limit("accounts", max_running=1, key=lambda account: account)
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "two at once": {"limits": [Limit(max_running=2)]},
    "one of an account": {"limits": [OF_ACCOUNT]},
    "of both": {"limits": [OF_ACCOUNT, Limit("all of both", max_running=2)]},
    "in turns": {"share": Share(key=lambda account: account), "limits": [Limit(max_running=3)]},
    "unique": {"unique": Unique(), "limits": [Limit(max_running=1)]},
}
"""Tasks by their names, with what holds their jobs back."""

PREFIX: Final = "contention."

ENDS: Final = ("completes", "fails", "snoozes")


def keys_of(task: str, account: str) -> dict[str, int]:
    """Return the limits of an attempt, and how many may run within each."""
    return {
        (f"{limit.name or task}:{account}" if limit.key else limit.name or task): limit.max_running or 0
        for limit in OPTIONS[task].get("limits", ())
    }


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a state of the tables or of a worker, which no event announces."""
    async with asyncio.timeout(PATIENCE):
        while not await is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class World:
    """Two workers, the attempts that run, and what has been seen."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool
        self.workers: list[Scheduler] = []
        self.ends: dict[str, asyncio.Future[str]] = {}
        """The attempts that run, by job id, and how they are to end."""
        self.within: Counter[str] = Counter()
        self.faults: list[str] = []
        self.is_over = False
        self.unfinished: dict[str, tuple[str, str]] = {}
        """The jobs that have not ended, with their tasks and accounts."""

    async def run(self, account: str) -> None:
        """Run a job until the story ends it."""
        job = current_job()
        keys = keys_of(job.job_name.removeprefix(PREFIX), account)
        if job.job_id in self.ends:
            self.faults.append(f"{job.job_name} runs twice")
        self.within.update(keys.keys())
        self.faults += [
            f"{self.within[key]} run within {key}" for key, most in keys.items() if self.within[key] > most
        ]
        end = self.ends[job.job_id] = asyncio.get_running_loop().create_future()
        if self.is_over:
            end.set_result("completes")
        try:
            match await end:
                case "fails":
                    raise ValueError
                case "snoozes":
                    raise Snooze(0.0)
        finally:
            self.within.subtract(keys.keys())
            del self.ends[job.job_id]

    def function_of(self, task: str) -> Callable[[str], Coroutine[Any, Any, None]]:
        """Return the function of a task. One of the same qualified name would be the same function."""

        async def run(account: str) -> None:
            await self.run(account)

        run.__qualname__ = f"contention.{task}"
        return run

    async def start_worker(self) -> None:
        """Start a worker in the place of one that has stopped."""
        scheduler = Scheduler(
            self.pool, max_concurrent_jobs=SLOTS, shutdown_timeout=0, retry_policy=AT_ONCE, statistics=False
        )
        for name, options in OPTIONS.items():
            scheduler.register(self.function_of(name), name=PREFIX + name, max_retries=1, **options)
        await scheduler.start()
        self.workers.append(scheduler)

    async def enqueue(self, task: str, account: str) -> None:
        """Enqueue a job, which is refused exactly if an unfinished one has its unique key."""
        is_taken = task == "unique" and (task, account) in self.unfinished.values()
        try:
            job_id = await self.workers[0].enqueue(PREFIX + task, args=(account,))
        except JobConflictError:
            assert is_taken
        else:
            assert not is_taken
            self.unfinished[job_id] = task, account

    async def end(self, turn: int, how: str) -> None:
        """Let an attempt end, and wait for that to be written."""
        if not self.ends:
            return
        job_id = sorted(self.ends)[turn % len(self.ends)]
        attempt = await self.attempt_of(job_id)
        self.ends[job_id].set_result(how)

        async def is_written() -> bool:
            return await self.attempt_of(job_id) != attempt

        await until(is_written)
        await self.read_ends()

    async def attempt_of(self, job_id: str) -> tuple[Any, ...] | None:
        row = await self.pool.fetchrow(
            "SELECT attempt, status = 'running' FROM scheduled_jobs WHERE job_id = $1", job_id
        )
        return None if row is None else tuple(row)

    async def read_ends(self) -> None:
        rows = await self.pool.fetch("SELECT job_id FROM scheduled_jobs WHERE finished_at IS NULL")
        left = {row["job_id"] for row in rows}
        self.unfinished = {job_id: task for job_id, task in self.unfinished.items() if job_id in left}

    async def cancel(self, turn: int) -> None:
        """Cancel a job, whatever it waits for."""
        if self.unfinished:
            job_id = sorted(self.unfinished)[turn % len(self.unfinished)]
            await self.workers[-1].cancel_job(job_id)

            async def has_ended() -> bool:
                return job_id not in self.ends

            await until(has_ended)
            await self.read_ends()

    async def replace_worker(self) -> None:
        """Stop the older worker, which releases its jobs, and start another one."""
        await self.workers.pop(0).shutdown()
        await self.start_worker()

    async def finish(self) -> None:
        """Let everything end, and compare."""
        self.is_over = True
        for end in [*self.ends.values()]:
            if not end.done():
                end.set_result("completes")

        async def have_ended() -> bool:
            await self.read_ends()
            return not self.unfinished

        await until(have_ended)
        assert self.faults == []
        self.is_over = False


class Story(RuleBasedStateMachine):
    """Random operations on one world."""

    runner: asyncio.Runner
    world: World

    def work(self, work: Coroutine[Any, Any, None]) -> None:
        self.runner.run(work)

    @rule(task=st.sampled_from(sorted(OPTIONS)), account=st.sampled_from(ACCOUNTS), count=st.integers(1, 4))
    def enqueue(self, task: str, account: str, count: int) -> None:
        for _ in range(count):
            self.work(self.world.enqueue(task, account))

    @rule(turn=st.integers(0, 11), how=st.sampled_from(ENDS))
    def end(self, turn: int, how: str) -> None:
        self.work(self.world.end(turn, how))

    @rule(turn=st.integers(0, 11))
    def cancel(self, turn: int) -> None:
        self.work(self.world.cancel(turn))

    @rule()
    def wait_a_moment(self) -> None:
        self.work(asyncio.sleep(0.02))  # real time is the subject: the workers do what they can meanwhile

    @rule()
    def replace_worker(self) -> None:
        self.work(self.world.replace_worker())

    def teardown(self) -> None:
        self.work(self.world.finish())


@pytest.mark.timeout(7200 if LONG else 600)
def test_random_stories_exceed_no_limit_and_leave_no_job_behind(dsn: str) -> None:
    settings = hypothesis.settings(
        max_examples=300 if LONG else 8,
        stateful_step_count=60 if LONG else 25,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        pool = runner.run(open_pool(dsn))

        class Contention(Story):
            pass

        Contention.runner, Contention.world = runner, World(pool)
        try:
            for _ in range(2):
                runner.run(Contention.world.start_worker())
            run_state_machine_as_test(Contention, settings=settings)
        finally:
            for scheduler in Contention.world.workers:
                runner.run(scheduler.shutdown())
            runner.run(pool.close())


async def open_pool(dsn: str) -> asyncpg.Pool:
    return await asyncpg.create_pool(dsn, min_size=2, max_size=12)
