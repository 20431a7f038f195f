"""No order of the statements of a wait and of signals loses a signal, or lets two of a name arrive.

A wait stores its row; then its job is suspended, in another transaction. The orders of all statements and
commits are exhausted, with signals in transactions of their own and of callers, which commit or abort.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from pg_scheduler.database.faults import is_conflict
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.jobs.step_values import SIGNAL
from pg_scheduler.jobs.steps import Suspension
from tests.store.protocol import Actor, Op, World, interleave
from tests.support.inside import Claim, Outcome, Store
from tests.support.store import LEASE, NAME, NOW, SECOND, new_job, worker

TIMEOUT_S = 3600.0
DEADLINE = NOW + TIMEOUT_S * SECOND
LOOKS_AGAIN = NOW + SECOND
"""When a job is due that was suspended while a signal was being stored."""

Begin = Callable[[], Awaitable[None]]

ABORTED = None
"""The answer of a signal that did not take effect."""


@dataclass
class Signal(Op):
    """A signal in a transaction of its own, or in one of a caller, of this isolation."""

    value: int = 1
    isolation: str | None = None
    aborts: bool = False
    name: str = "go"

    async def run(self, store: Store) -> bool | None:
        session = _session(store)
        if self.isolation is None:
            return await self.send(store, None)
        transaction = session._connection.transaction(isolation=self.isolation)
        await transaction.start()
        try:
            await session.fetch("SELECT count(*) FROM scheduled_jobs", timeout=30)  # its snapshot may be old
            is_stored = await self.send(store, session)
            await session.wait()
        except BaseException:
            await transaction.rollback()
            raise
        if self.aborts:
            await transaction.rollback()
            return ABORTED
        await transaction.commit()
        return is_stored

    async def send(self, store: Store, session: Any) -> bool:
        return (await store.signals.send("job", self.name, f"{self.value}", session)).is_stored


@dataclass
class Wait(Op):
    """A wait, whose answer is the value that it finds at once, or None if the job is suspended."""

    claim: Claim
    name: str = "go"

    async def run(self, store: Store) -> str | None:
        step = await store.steps.store(
            "w1", self.claim, self.name, SIGNAL, None, version=1, delay_s=TIMEOUT_S
        )
        if not step.has_ended:
            outcome = Outcome.suspend((Suspension(SIGNAL, self.name, DEADLINE),))
            assert await store.results.settle("w1", [(self.claim, outcome)]) == {"job"}
        return step.value


@dataclass
class TimeOut(Op):
    """The end of a wait, whose answer is the value if a signal came before, or None if it has timed out."""

    claim: Claim

    async def run(self, store: Store) -> str | None:
        if await store.steps.end("w1", self.claim, "go"):
            return None
        step = await store.steps.store("w1", self.claim, "go", SIGNAL, None, version=1, delay_s=TIMEOUT_S)
        assert step.has_ended
        return step.value


def _session(store: Store) -> Any:
    return store.connections


class Waits(World):
    """A world without the rules of the protocol, whose end is checked instead."""

    check: Callable[[Sequence[Op]], Awaitable[None]]

    async def step(self, actor: Actor) -> None:
        await super().step(actor)
        await self.look_after()  # one operation may have several transactions

    async def _look(self, actor: Actor) -> None:
        task, op = actor.task, actor.op
        if task is None or op is None or not task.done():
            return
        actor.task = None
        try:
            op.answer = task.result()
        except DatabaseUnavailableError as fault:
            if not is_conflict(fault):
                raise
            op.answer = ABORTED

    async def finish_all(self, known: set[object]) -> None:
        while any(actor.is_busy for actor in self.actors):
            going = [actor for actor in self.actors if actor.can_go]
            if going:
                await self.step(going[0])
            else:
                await self.look_after()
        await self.check([actor.op for actor in self.actors if actor.op is not None])


MARK = """
    UPDATE scheduled_jobs SET options = '{"steps": 1}';
    INSERT INTO scheduler_steps (job_id, name, kind, value, attempt, started_at, ended_at)
    VALUES ('job', 'before', 'step', '1', 1, now(), now())
"""
SUSPEND = f"""
    UPDATE scheduled_jobs SET status = 'pending', execution_time = '{DEADLINE}';
    INSERT INTO scheduler_steps (job_id, name, kind, attempt, until, started_at)
    VALUES ('job', 'go', 'signal', 1, '{DEADLINE}', now())
"""
RESUME = f"UPDATE scheduled_jobs SET status = 'running', attempt = 2, execution_time = '{NOW}'"
ROW = """
    SELECT job.status, job.execution_time, job.options ->> 'steps' AS mark, step.value, step.ended_at
    FROM scheduled_jobs AS job
    LEFT JOIN scheduler_steps AS step ON step.job_id = job.job_id AND step.name = 'go'
"""


def in_transaction(isolation: str, *, aborts: bool = False, value: int = 1) -> Signal:
    return Signal(value, isolation, aborts)


SIGNALS: dict[str, Callable[[], Signal]] = {
    "one": Signal,
    "one of a caller": lambda: in_transaction("read_committed"),
    "one of a caller that aborts": lambda: in_transaction("read_committed", aborts=True),
    "one at repeatable read": lambda: in_transaction("repeatable_read"),
    "one at repeatable read that aborts": lambda: in_transaction("repeatable_read", aborts=True),
}


async def running(world: World) -> Claim:
    """Let worker w1 run the job."""
    store = world.actors[0].store
    await world.do(_Do(lambda: store.inserts.insert([new_job("job", execution_time=NOW)])))
    await world.do(_Do(lambda: store.workers.register(worker("w1"), LEASE)))
    found = _Do(lambda: store.claims.exchange("w1", [NAME], 1))
    claim: Claim = (await world.do(found)).jobs[0]
    return claim


@dataclass
class _Do(Op):
    call: Callable[[], Awaitable[Any]]

    async def run(self, store: Store) -> Any:
        return await self.call()


@asynccontextmanager
async def waits(dsn: str, pool: asyncpg.Pool, *prepare: str) -> AsyncIterator[tuple[Waits, Claim, Begin]]:
    """Yield a world where worker w1 runs the job, its claim, and a function that restores that state."""
    async with Waits.on(dsn, 2) as world:
        assert isinstance(world, Waits)
        claim = await running(world)
        for statement in prepare:
            await pool.execute(statement)
        restore = await world.save()
        await pool.execute("CREATE TABLE kept_steps AS TABLE scheduler_steps")

        async def begin() -> None:
            await restore()
            await pool.execute("DELETE FROM scheduler_steps; INSERT INTO scheduler_steps TABLE kept_steps")

        yield world, claim, begin


@pytest.mark.slow
@pytest.mark.parametrize("is_marked", [False, True], ids=["unmarked", "marked"])
@pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS)
async def test_no_order_of_a_wait_and_a_signal_loses_it(
    signal: Callable[[], Signal], is_marked: bool, dsn: str, pool: asyncpg.Pool
) -> None:
    async def check(ops: Sequence[Op]) -> None:
        wait, sent = ops
        (row,) = await pool.fetch(ROW)
        assert row["mark"] == "1", "the version of the first attempt that stored a step"
        if wait.answer is not None:
            assert (row["status"], wait.answer, sent.answer) == ("running", "1", True)
        elif sent.answer is ABORTED:
            assert (row["status"], row["value"], row["ended_at"]) == ("pending", None, None)
            assert row["execution_time"] in {LOOKS_AGAIN, DEADLINE}
        else:
            assert (row["status"], row["value"], sent.answer) == ("pending", "1", True)
            assert row["ended_at"] is not None
            assert row["execution_time"] <= LOOKS_AGAIN

    async with waits(dsn, pool, *([MARK] if is_marked else [])) as (world, claim, begin):
        world.check = check
        assert await interleave(world, begin, lambda: [Wait(claim), signal()]) > 30


@pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS)
async def test_signal_at_the_deadline_arrives_or_is_refused(
    signal: Callable[[], Signal], dsn: str, pool: asyncpg.Pool
) -> None:
    async def check(ops: Sequence[Op]) -> None:
        ending, sent = ops
        (row,) = await pool.fetch(ROW)
        assert row["ended_at"] is not None
        assert ending.answer == row["value"]
        assert (row["value"] is not None) == (sent.answer is True)

    async with waits(dsn, pool, MARK, SUSPEND, RESUME) as (world, claim, begin):
        world.check = check
        again = claim._replace(attempt=2)
        assert await interleave(world, begin, lambda: [TimeOut(again), signal()]) >= 4


STATES = {
    "runs": [],
    "is marked": [MARK],
    "waits": [MARK, SUSPEND],
    "is at its deadline": [MARK, SUSPEND, RESUME],
}
"""How a job is prepared that receives two signals."""


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS)
async def test_first_of_two_signals_arrives_in_every_order(
    signal: Callable[[], Signal], state: Sequence[str], dsn: str, pool: asyncpg.Pool
) -> None:
    async def check(ops: Sequence[Op]) -> None:
        (row,) = await pool.fetch(ROW)
        stored = [str(op.value) for op in ops if op.answer is True]  # type: ignore[attr-defined]
        assert stored == [row["value"]]
        assert {op.answer for op in ops} <= {True, False, ABORTED}
        if SUSPEND in state:
            assert (row["status"] == "running") == (RESUME in state)
            assert row["execution_time"] <= NOW

    async with waits(dsn, pool, *state) as (world, _, begin):
        world.check = check
        assert await interleave(world, begin, lambda: [Signal(2), signal()]) >= 4


@pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS)
async def test_first_signals_of_two_names_both_arrive(
    signal: Callable[[], Signal], dsn: str, pool: asyncpg.Pool
) -> None:
    """Both find a job that is not marked, and one of them marks it."""

    async def check(ops: Sequence[Op]) -> None:
        stored = {row[0] for row in await pool.fetch("SELECT name FROM scheduler_steps")}
        assert stored == {op.name for op in ops if op.answer is not ABORTED}  # type: ignore[attr-defined]
        assert {op.answer for op in ops} <= {True, ABORTED}

    async with waits(dsn, pool) as (world, _, begin):
        world.check = check
        assert await interleave(world, begin, lambda: [Signal(name="other"), signal()]) >= 4
