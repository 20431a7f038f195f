"""No order of the statements of receivers, senders and broadcasts loses, doubles or moves a message.

A message is a signal of its own, so the orders are those of ``test_signals``: all statements and commits,
with messages in transactions of their own and of callers, which commit or abort.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from pg_scheduler.jobs.step_values import message_name
from pg_scheduler.steps.signals import Audience
from tests.store.protocol import Op, interleave
from tests.store.test_feature_plans import nodes
from tests.store.test_signals import (
    ABORTED,
    DEADLINE,
    LOOKS_AGAIN,
    MARK,
    RESUME,
    TIMEOUT_S,
    Signal,
    Wait,
    waits,
)
from tests.support.inside import Claim, Store, load_query
from tests.support.store import NAME, NOW

MAILBOX = "orders"
FIRST = message_name(MAILBOX, 1)
SUSPEND = f"""
    UPDATE scheduled_jobs SET status = 'pending', execution_time = '{DEADLINE}';
    INSERT INTO scheduler_steps (job_id, name, kind, attempt, until, started_at)
    VALUES ('job', '{FIRST}', 'signal', 1, '{DEADLINE}', now())
"""
MESSAGES = """
    SELECT job.status, job.execution_time, step.name, step.value, step.ended_at, step.until, step.timeouts
    FROM scheduled_jobs AS job
    JOIN scheduler_steps AS step ON step.job_id = job.job_id AND step.kind = 'signal'
    ORDER BY step.name
"""


@dataclass
class Message(Signal):
    """A message to the mailbox, in a transaction of its own, or in one of a caller."""

    async def send(self, store: Store, session: Any) -> bool:
        return (await store.signals.send_message("job", MAILBOX, f"{self.value}", session)).is_stored


@dataclass
class Broadcast(Signal):
    """A broadcast to all jobs that wait for the mailbox; whether it has reached the job."""

    async def send(self, store: Store, session: Any) -> bool:
        audience = Audience(names=[NAME])
        reached = await store.signals.broadcast(MAILBOX, audience, lambda _: f"{self.value}", session)
        return reached.jobs == 1


@dataclass
class TimeOut(Op):
    """The end of a wait as ``receive()`` ends it: the value, or None if it has timed out."""

    claim: Claim

    async def run(self, store: Store) -> str | None:
        await store.steps.end("w1", self.claim, FIRST)
        (step,) = [step for step in await store.steps.load("job") if step.name == FIRST]
        assert step.has_ended
        return None if step.timeouts else step.value


@dataclass
class ReceiveAgain(Op):
    """The next call of ``receive()`` after one that has timed out: the value, or None if it waits."""

    claim: Claim

    async def run(self, store: Store) -> str | None:
        await store.steps.repeat_wait("w1", self.claim, FIRST, 1, delay_s=2 * TIMEOUT_S, until=None)
        (step,) = [step for step in await store.steps.load("job") if step.name == FIRST]
        assert len(step.timeouts) == 1
        return step.value


def sent_by(kind: type[Signal]) -> dict[str, Callable[[], Signal]]:
    """Return the ways to send something: alone, and in transactions of callers."""
    return {
        "one": kind,
        "one of a caller": lambda: kind(1, "read_committed"),
        "one of a caller that aborts": lambda: kind(1, "read_committed", True),
        "one at repeatable read": lambda: kind(1, "repeatable_read"),
        "one at repeatable read that aborts": lambda: kind(1, "repeatable_read", True),
    }


MESSAGES_SENT = sent_by(Message)
BROADCASTS_SENT = sent_by(Broadcast)


@pytest.mark.slow
@pytest.mark.parametrize("is_marked", [False, True], ids=["unmarked", "marked"])
@pytest.mark.parametrize("message", MESSAGES_SENT.values(), ids=MESSAGES_SENT)
async def test_no_order_of_a_receiver_and_a_sender_loses_the_message(
    message: Callable[[], Signal], is_marked: bool, dsn: str, pool: asyncpg.Pool
) -> None:
    async def check(ops: Sequence[Op]) -> None:
        receiver, sender = ops
        (row,) = await pool.fetch(MESSAGES)
        assert row["name"] == FIRST
        if receiver.answer is not None:
            assert (row["status"], receiver.answer, sender.answer) == ("running", "1", True)
        elif sender.answer is ABORTED:
            assert (row["status"], row["value"], row["ended_at"]) == ("pending", None, None)
            assert row["execution_time"] in {LOOKS_AGAIN, DEADLINE}
        else:
            assert (row["status"], row["value"], sender.answer) == ("pending", "1", True)
            assert row["execution_time"] <= LOOKS_AGAIN

    async with waits(dsn, pool, *([MARK] if is_marked else [])) as (world, claim, begin):
        world.check = check
        assert await interleave(world, begin, lambda: [Wait(claim, FIRST), message()]) > 30


STATES = {
    "runs": [],
    "is marked": [MARK],
    "waits": [MARK, SUSPEND],
    "is at its deadline": [MARK, SUSPEND, RESUME],
}
"""How a job is prepared that receives two messages."""


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@pytest.mark.parametrize("message", MESSAGES_SENT.values(), ids=MESSAGES_SENT)
async def test_two_messages_are_stored_in_the_order_of_their_commits_without_a_gap(
    message: Callable[[], Signal], state: Sequence[str], dsn: str, pool: asyncpg.Pool
) -> None:
    async def check(ops: Sequence[Op]) -> None:
        rows = [row for row in await pool.fetch(MESSAGES) if row["value"] is not None]
        stored = sorted(str(op.value) for op in ops if op.answer is True)  # type: ignore[attr-defined]
        assert sorted(row["value"] for row in rows) == stored
        assert [row["name"] for row in rows] == [message_name(MAILBOX, n + 1) for n in range(len(rows))]
        assert {op.answer for op in ops} <= {True, ABORTED}
        if rows and SUSPEND in state:
            assert (rows[0]["status"] == "running") == (RESUME in state)
            assert rows[0]["execution_time"] <= NOW

    async with waits(dsn, pool, *state) as (world, _, begin):
        world.check = check
        assert await interleave(world, begin, lambda: [Message(2), message()]) >= 4


@pytest.mark.parametrize("message", MESSAGES_SENT.values(), ids=MESSAGES_SENT)
async def test_message_at_the_deadline_ends_the_wait_or_is_kept_after_its_timeout(
    message: Callable[[], Signal], dsn: str, pool: asyncpg.Pool
) -> None:
    """The next attempt finds a timeout in the row if and only if this one had it."""

    async def check(ops: Sequence[Op]) -> None:
        ending, sender = ops
        (row,) = await pool.fetch(MESSAGES)
        assert row["ended_at"] is not None
        assert sender.answer in {True, ABORTED}
        assert row["value"] == ("1" if sender.answer else None)
        has_timed_out = ending.answer is None
        if row["value"] is not None:
            assert row["timeouts"] == ([DEADLINE] if has_timed_out else None)
        else:
            assert has_timed_out

    async with waits(dsn, pool, MARK, SUSPEND, RESUME) as (world, claim, begin):
        world.check = check
        resumed = claim._replace(attempt=2)
        assert await interleave(world, begin, lambda: [TimeOut(resumed), message()]) >= 4


@pytest.mark.parametrize("message", MESSAGES_SENT.values(), ids=MESSAGES_SENT)
async def test_message_between_a_timeout_and_the_next_wait_is_stored_in_every_order(
    message: Callable[[], Signal], dsn: str, pool: asyncpg.Pool
) -> None:
    async def check(ops: Sequence[Op]) -> None:
        receiver, sender = ops
        (row,) = await pool.fetch(MESSAGES)
        assert row["timeouts"] == [DEADLINE]
        assert row["value"] == ("1" if sender.answer else None)
        assert (row["ended_at"] is not None) == (sender.answer is True)
        assert receiver.answer in {None, row["value"]}

    ended = f"UPDATE scheduler_steps SET ended_at = now() WHERE name = '{FIRST}'"
    async with waits(dsn, pool, MARK, SUSPEND, RESUME, ended) as (world, claim, begin):
        world.check = check
        resumed = claim._replace(attempt=2)
        assert await interleave(world, begin, lambda: [ReceiveAgain(resumed), message()]) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("broadcast", BROADCASTS_SENT.values(), ids=BROADCASTS_SENT)
async def test_broadcast_reaches_a_job_that_waits_before_it_and_wakes_it(
    broadcast: Callable[[], Signal], dsn: str, pool: asyncpg.Pool
) -> None:
    async def check(ops: Sequence[Op]) -> None:
        receiver, sender = ops
        (row,) = await pool.fetch(MESSAGES)
        if receiver.answer is not None:
            assert (row["status"], receiver.answer, sender.answer) == ("running", "1", True)
        elif sender.answer is True:
            assert (row["status"], row["value"]) == ("pending", "1")
            assert row["execution_time"] <= LOOKS_AGAIN
        else:
            assert (row["status"], row["value"], row["ended_at"]) == ("pending", None, None)
            assert row["execution_time"] in {LOOKS_AGAIN, DEADLINE}

    async with waits(dsn, pool, MARK) as (world, claim, begin):
        world.check = check
        assert await interleave(world, begin, lambda: [Wait(claim, FIRST), broadcast()]) >= 10


@pytest.mark.parametrize("other", [Message, Broadcast])
@pytest.mark.parametrize("state", [STATES["waits"], STATES["is at its deadline"]], ids=["waits", "deadline"])
@pytest.mark.parametrize("broadcast", BROADCASTS_SENT.values(), ids=BROADCASTS_SENT)
async def test_wait_gets_the_value_of_one_broadcast_or_message_in_every_order(
    broadcast: Callable[[], Signal],
    state: Sequence[str],
    other: type[Signal],
    dsn: str,
    pool: asyncpg.Pool,
) -> None:
    async def check(ops: Sequence[Op]) -> None:
        rows = await pool.fetch(MESSAGES)
        stored = sorted(str(op.value) for op in ops if op.answer is True)  # type: ignore[attr-defined]
        assert sorted(row["value"] for row in rows if row["value"] is not None) == stored
        assert [row["name"] for row in rows] == [message_name(MAILBOX, n + 1) for n in range(len(rows))]
        if stored:
            assert rows[0]["value"] is not None
            assert rows[0]["execution_time"] <= NOW

    async with waits(dsn, pool, *state) as (world, _, begin):
        world.check = check
        assert await interleave(world, begin, lambda: [other(2), broadcast()]) >= 4


@pytest.mark.parametrize("is_analyzed", [False, True])
async def test_broadcast_reads_the_open_steps_once_at_most(store: Store, is_analyzed: bool) -> None:
    """It looks for 2,001 names. A plan may be for an empty table, or for few names with many waits each."""
    types = "text, bigint, text, text[], text, text[], integer"
    values = "'orders', 500, NULL, NULL, NULL, NULL, 2000"
    async with store.connections.transaction() as connection:
        await connection.execute(f"PREPARE find ({types}) AS {load_query('public', 'find_waiting').text}")
        for _ in range(6):  # from the sixth on PostgreSQL may keep one plan for all values
            await connection.execute(f"EXECUTE find ({values})")
        await connection.execute(f"""
            INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, attempt, options)
            SELECT 'job-' || n, 'work', '{DEADLINE}', 'pending', 1, '{{"steps": 1}}'
            FROM generate_series(1, 30000) AS n;
            INSERT INTO scheduler_steps (job_id, name, kind, attempt, until, started_at)
            SELECT 'job-' || n,
                CASE WHEN n % 300 > 0 THEN 'other' WHEN n % 600 > 0 THEN 'orders' ELSE '{FIRST}' END,
                'signal', 1, '{DEADLINE}', now()
            FROM generate_series(1, 30000) AS n
        """)
        if is_analyzed:
            await connection.execute("ANALYZE scheduled_jobs, scheduler_steps")
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE find ({values})")
    scans = [node for node in nodes(json.loads(text)[0]["Plan"]) if "Relation Name" in node]
    assert {node.get("Index Name") for node in scans} >= {"scheduler_steps_open", "scheduled_jobs_pkey"}
    rows = [node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans]
    read = sum(count * node["Actual Loops"] for count, node in zip(rows, scans, strict=True))
    assert read <= 30_000 + 2_001 + 2 * 100


@pytest.mark.parametrize("broadcast", BROADCASTS_SENT.values(), ids=BROADCASTS_SENT)
async def test_broadcast_at_the_deadline_ends_the_wait_or_does_not_reach_it(
    broadcast: Callable[[], Signal], dsn: str, pool: asyncpg.Pool
) -> None:
    async def check(ops: Sequence[Op]) -> None:
        ending, sender = ops
        (row,) = await pool.fetch(MESSAGES)
        assert row["ended_at"] is not None
        assert row["timeouts"] is None
        assert ending.answer == row["value"]
        assert (row["value"] is not None) == (sender.answer is True)

    async with waits(dsn, pool, MARK, SUSPEND, RESUME) as (world, claim, begin):
        world.check = check
        resumed = claim._replace(attempt=2)
        assert await interleave(world, begin, lambda: [TimeOut(resumed), broadcast()]) >= 4
