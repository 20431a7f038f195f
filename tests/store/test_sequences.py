"""The heads of sequences, against a real server: which job becomes the head, in every order of statements."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

import asyncpg
import pytest

from pg_scheduler import JobStatus
from pg_scheduler.admission.sequences import HandedOver, Moved
from pg_scheduler.clock import FakeClock
from pg_scheduler.database.faults import is_refusal
from pg_scheduler.jobs.outcome import REVOKED
from tests.store.protocol import Op, interleave
from tests.store.test_child_waits import Waits
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support.inside import COMPLETE, RELEASE, Claim, ExtendedJob, Extras, Outcome, Store
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, new_job, row, worker
from tests.support.stories import LONG

KEY = "zsequence:s:a"
OTHER = "zsequence:s:b"
NAMES = [NAME]


def queued(
    job_id: str, due: datetime = NOW, key: str = KEY, on_failure: str = "stop", **changes: object
) -> ExtendedJob:
    """Return a job that waits for its place in a sequence."""
    row = new_job(job_id, **({"execution_time": due} | changes))
    return ExtendedJob(row, Extras().in_sequence({"key": key, "on_failure": on_failure}))


async def insert(store: Store, *jobs: ExtendedJob) -> None:
    await store.inserts.insert_extended(jobs)


async def move(store: Store, keys: Collection[str] = (KEY,)) -> Moved:
    """Make a pass of a sequencer over some sequences."""
    idle = await store.sequences.find_idle(list(keys))
    return await store.sequences.move([key for key, due_in in idle.items() if due_in <= 0])


async def heads(pool: Pool) -> list[str]:
    """Return the jobs that may start or run, of all sequences."""
    rows = await pool.fetch(
        "SELECT job_id FROM scheduled_jobs WHERE finished_at IS NULL AND blocked_on IS NULL ORDER BY job_id"
    )
    return [record["job_id"] for record in rows]


async def sequences(pool: Pool) -> dict[str, tuple[str, bool]]:
    """Return the head of each sequence, and whether the sequence has stopped there."""
    rows = await pool.fetch("SELECT * FROM scheduler_sequences ORDER BY key")
    return {record["key"]: (record["job_id"], record["stopped_at"] is not None) for record in rows}


async def claim(store: Store, count: int = 1, worker_id: str = "w1") -> list[Claim]:
    await store.workers.register(worker(worker_id), LEASE)
    claims = (await store.claims.exchange(worker_id, NAMES, count)).jobs
    assert len(claims) == count
    return claims


async def hand_over(store: Store, *claims: Claim, room: int = 1, **changes: object) -> HandedOver:
    options: dict[str, object] = {"keep": True, "names": NAMES, "room": room, "isolated_from": 2}
    return await store.sequences.hand_over("w1", claims, **(options | changes))  # type: ignore[arg-type]


async def test_first_due_job_of_each_sequence_becomes_its_head(store: Store, pool: Pool) -> None:
    await insert(
        store,
        queued("a2", NOW + SECOND),
        queued("a1", priority=8),
        queued("a0", NOW - SECOND, priority=8),
        queued("b1", key=OTHER),
        queued("b0", key=OTHER),
        queued("c0", NOW + SECOND, key="zsequence:s:c"),
    )
    assert await store.sequences.waiting("zsequence:", 9) == [KEY, OTHER, "zsequence:s:c"]
    assert await store.sequences.find_idle([KEY, "zsequence:s:c"]) == {KEY: -1, "zsequence:s:c": 1}
    moved = await store.sequences.move([KEY, OTHER, "zsequence:s:c"])
    assert (moved.jobs, moved.due, moved.undecided, moved.refused) == (2, NOW, set(), {})
    assert await heads(pool) == ["a0", "b0"]
    assert await sequences(pool) == {KEY: ("a0", False), OTHER: ("b0", False)}
    assert await move(store, [KEY, OTHER, "zsequence:s:c"]) == Moved(0, None, set(), {})
    assert (await row(pool, "a0"))["execution_time"] == NOW, "a claim would overlook an old time"


async def test_moved_job_has_its_whole_grace_time(store: Store, pool: Pool, clock: FakeClock) -> None:
    await insert(store, queued("a0", misfire_grace_time=10))
    clock.advance(3600 * SECOND)
    await move(store)
    assert (await row(pool, "a0"))["expires_at"] == NOW + 3610 * SECOND


async def test_hand_over_completes_the_head_and_claims_the_next_job(store: Store, pool: Pool) -> None:
    await insert(store, queued("a0"), queued("a1"), queued("a2"))
    await move(store)
    (head,) = await claim(store)
    result = await hand_over(store, head)
    assert (result.ended, [each.job_id for each in result.claims]) == (["a0"], ["a1"])
    assert (result.moved, result.due, result.idle) == (0, None, [])
    ended, head_row = await row(pool, "a0"), await row(pool, "a1")
    assert (ended["status"], ended["on_end"], ended["finished_at"]) == ("completed", None, NOW)
    assert (head_row["status"], head_row["worker_id"], head_row["attempt"]) == ("running", "w1", 1)
    assert head_row["lease_until"] == NOW + LEASE * SECOND
    # Without room, or if another worker has to run it, the next job is left to any claim.
    result = await hand_over(store, result.claims[0], names=[])
    assert (result.claims, result.moved, result.due) == ([], 1, NOW)
    (last,) = await claim(store)
    assert last.job_id == "a2"
    result = await hand_over(store, last, keep=False)
    assert (result.ended, result.claims, result.moved, result.idle) == (["a2"], [], 0, [KEY])
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE job_id = 'a2'") == 0
    assert await sequences(pool) == {}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE scheduled_jobs SET worker_id = 'w2'",
        "UPDATE scheduled_jobs SET attempt = 2",
        "UPDATE scheduled_jobs SET status = 'pending', worker_id = NULL",
        'UPDATE scheduled_jobs SET on_end = on_end || \'{"on_failure": "x"}\'',
        "UPDATE scheduled_jobs SET options = options || '{\"steps\": 1}'",
        "UPDATE scheduler_sequences SET job_id = 'a1'",
        "UPDATE scheduler_sequences SET stopped_at = now()",
        "DELETE FROM scheduler_sequences",
    ],
)
async def test_hand_over_refuses_what_is_not_the_head_or_not_held(
    store: Store, pool: Pool, change: str
) -> None:
    await insert(store, queued("a0"), queued("a1"))
    await move(store)
    (head,) = await claim(store)
    await pool.execute(
        f"{change}{' WHERE job_id = $1' if 'scheduled_jobs' in change else ''}",
        *(["a0"] if "scheduled_jobs" in change else []),
    )
    result = await hand_over(store, head)
    assert (result.ended, result.claims, result.moved) == ([], [], 0)
    assert (await row(pool, "a1"))["blocked_on"] == KEY


@pytest.mark.parametrize("keep", [True, False])
async def test_hand_over_writes_nothing_if_a_trigger_suppresses_the_completion(
    store: Store, pool: Pool, keep: bool
) -> None:
    await insert(store, queued("a0"), queued("a1"))
    await move(store)
    (head,) = await claim(store)
    await pool.execute(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER keep BEFORE UPDATE ON scheduled_jobs FOR EACH ROW"
        " WHEN (NEW.status = 'completed') EXECUTE FUNCTION keep();"
        "CREATE TRIGGER keep_row BEFORE DELETE ON scheduled_jobs FOR EACH ROW EXECUTE FUNCTION keep()"
    )
    with pytest.raises(asyncpg.InvalidTextRepresentationError, match="suppressed a completion") as caught:
        await hand_over(store, head, keep=keep)
    assert is_refusal(caught.value), "the completer writes the completion in another way"
    assert await heads(pool) == ["a0"]
    assert await sequences(pool) == {KEY: ("a0", False)}


async def test_locked_first_job_is_not_passed_over(store: Store, pool: Pool) -> None:
    await insert(store, queued("a0"), queued("a1"), queued("a2"))
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = 'a0' FOR UPDATE")
        moved = await move(store)
        assert (moved.jobs, moved.undecided) == (0, {KEY})
    assert (await move(store)).jobs == 1
    (head,) = await claim(store)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = 'a1' FOR UPDATE")
        result = await hand_over(store, head)
        assert (result.ended, result.claims, result.moved, result.idle) == (["a0"], [], 0, [KEY])
        assert (await move(store)).undecided == {KEY}
    assert (await move(store)).jobs == 1
    assert await heads(pool) == ["a1"]


async def test_locked_sequence_is_left_to_its_holder(store: Store, pool: Pool) -> None:
    await insert(store, queued("a0"), queued("a1"))
    await move(store)
    (head,) = await claim(store)
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'completed', finished_at = now(), on_end = NULL"
        " WHERE job_id = 'a0'"
    )
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduler_sequences FOR UPDATE")
        assert await move(store) == Moved(0, None, {KEY}, {})
    assert (await move(store)).jobs == 1
    assert head.job_id == "a0"


@pytest.mark.parametrize(
    "outcome", [Outcome.fail("why"), RELEASE, COMPLETE], ids=["fails", "is released", "completes"]
)
async def test_end_of_a_head_decides_about_the_sequence(store: Store, pool: Pool, outcome: Outcome) -> None:
    await insert(
        store,
        queued("a0"),
        queued("a1"),
        queued("b0", key=OTHER, on_failure="skip"),
        queued("b1", key=OTHER, on_failure="skip"),
    )
    await move(store, [KEY, OTHER])
    claims = await claim(store, 2)
    await store.results.settle("w1", [(each, outcome) for each in claims])
    if outcome is RELEASE:
        assert await heads(pool) == ["a0", "b0"]
    elif outcome is COMPLETE:
        assert await heads(pool) == ["a1", "b1"]
    else:
        assert await heads(pool) == ["b1"]
        assert await sequences(pool) == {KEY: ("a0", True), OTHER: ("b1", False)}
        assert await move(store) == Moved(0, None, set(), {})


async def test_cancelled_head_keeps_its_place_until_its_attempt_has_ended(store: Store, pool: Pool) -> None:
    await insert(store, queued("a0"), queued("a1"))
    await move(store)
    (head,) = await claim(store)
    assert (await store.jobs.cancel("a0")).changed
    assert await heads(pool) == []
    assert await move(store) == Moved(0, None, set(), {})
    assert await heads(pool) == [], "the attempt may run on"
    assert (await hand_over(store, head)).ended == []
    await store.results.settle("w1", [(head, COMPLETE)])
    assert await heads(pool) == ["a1"]


async def test_failure_of_a_head_is_recorded_although_a_pass_holds_its_sequence(
    store: Store, pool: Pool
) -> None:
    await insert(store, queued("a0"), queued("a1"))
    await move(store)
    (head,) = await claim(store)
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT FROM scheduler_sequences FOR NO KEY UPDATE")
        failing = asyncio.create_task(store.results.settle("w1", [(head, Outcome.fail("why"))]))
        await until_a_lock_is_awaited(pool)
        await transaction.commit()
    assert await failing == {"a0"}
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'a0'")
    assert await sequences(pool) == {KEY: ("a0", True)}, "the vacuum may delete the failed job at once"


async def stopped(store: Store) -> None:
    """Stop a sequence at its first job."""
    await insert(store, queued("a0"), queued("a1"))
    await move(store)
    (head,) = await claim(store)
    await store.results.settle("w1", [(head, Outcome.fail("why"))])


async def test_stopped_sequence_continues_with_its_job_when_that_is_retried(store: Store, pool: Pool) -> None:
    await stopped(store)
    await store.jobs.retry("a0")
    assert (await row(pool, "a0"))["blocked_on"] == KEY
    assert (await move(store)).jobs == 1
    assert await heads(pool) == ["a0"]
    assert await sequences(pool) == {KEY: ("a0", False)}


async def test_stopped_sequence_continues_behind_its_job_when_it_is_resumed(store: Store, pool: Pool) -> None:
    await stopped(store)
    assert await store.sequences.resume(OTHER) is None
    assert await store.sequences.resume(KEY) == "a0"
    assert await store.sequences.resume(KEY) is None
    assert (await move(store)).jobs == 1
    assert await heads(pool) == ["a1"]


async def test_stopped_sequence_outlives_the_row_of_its_job(store: Store, pool: Pool) -> None:
    await stopped(store)
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'a0'")
    assert await move(store) == Moved(0, None, set(), {})
    assert await store.sequences.find_past(9) == []
    await store.sequences.resume(KEY)
    assert (await move(store)).jobs == 1


async def test_failure_that_an_earlier_release_has_written_stops_the_sequence(
    store: Store, pool: Pool
) -> None:
    """It has cleared the consequences without applying them."""
    await insert(store, queued("a0"))
    await move(store)
    await pool.execute("UPDATE scheduled_jobs SET status = 'failed', finished_at = now(), on_end = NULL")
    assert await store.sequences.find_past(9) == [KEY]
    await store.sequences.move([KEY])
    assert await sequences(pool) == {KEY: ("a0", True)}
    await insert(store, queued("a1"))
    assert (await move(store)).jobs == 0


async def test_job_moves_to_the_front(store: Store, pool: Pool) -> None:
    await insert(store, queued("a0"), queued("a1"), queued("a2", NOW + SECOND))
    await move(store)
    assert await store.sequences.move_to_front("a2") == NOW - SECOND / 1_000_000
    assert await store.sequences.move_to_front("a0") is None, "it is the head"
    (head,) = await claim(store)
    result = await hand_over(store, head)
    assert [each.job_id for each in result.claims] == ["a2"]


async def test_refused_move_concerns_one_sequence(store: Store, pool: Pool) -> None:
    await insert(store, queued("a0"), queued("a1"), queued("b0", key=OTHER))
    await pool.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = '23514'; END$$;"
        "CREATE TRIGGER refuse BEFORE UPDATE ON scheduled_jobs FOR EACH ROW"
        " WHEN (NEW.job_id = 'a0') EXECUTE FUNCTION refuse()"
    )
    moved = await store.sequences.move([KEY, OTHER])
    assert (moved.jobs, moved.undecided, [*moved.refused]) == (1, set(), [KEY])
    assert await heads(pool) == ["b0"]
    assert await sequences(pool) == {OTHER: ("b0", False)}


async def test_rows_of_gone_heads_are_found(store: Store, pool: Pool) -> None:
    await insert(store, queued("a0"))
    await move(store)
    assert await store.sequences.find_past(9) == []
    await pool.execute("DELETE FROM scheduled_jobs")
    assert await store.sequences.find_past(9) == [KEY]
    await store.sequences.move([KEY])
    assert await sequences(pool) == {}


async def test_other_services_leave_sequences_alone(store: Store) -> None:
    """Earlier releases read these ranges of the index: no collation sorts a sequence into one of them."""
    await insert(store, queued("a0"))
    assert await store.limits.blocked_keys("after", 9) == []
    assert await store.shares.tenants("share:", 9) == []


# -- all orders of statements ----------------------------------------------------------------------------


@dataclass
class HandOver(Op):
    """The worker of the head completes it, and examines the sequence if it saw no next job."""

    claim: Claim
    open_keys: set[str] = field(default_factory=set)

    async def run(self, store: Store) -> HandedOver:
        result = await hand_over(store, self.claim)
        if not result.ended:
            assert await store.results.settle("w1", [(self.claim, COMPLETE)])
        elif result.idle:
            self.open_keys |= {*(await move(store, result.idle)).undecided}
        return result


@dataclass
class Settle(Op):
    """The head ends with another outcome, and a sequencer follows the announcement of that."""

    claim: Claim
    outcome: Outcome
    open_keys: set[str] = field(default_factory=set)

    async def run(self, store: Store) -> bool:
        assert await store.results.settle("w1", [(self.claim, self.outcome)])
        self.open_keys |= {*(await move(store)).undecided}
        return True


@dataclass
class Add(Op):
    """A caller adds a job, and a sequencer follows the announcement."""

    job_id: str
    open_keys: set[str] = field(default_factory=set)

    async def run(self, store: Store) -> bool:
        await insert(store, queued(self.job_id, on_failure="skip"))
        self.open_keys |= {*(await move(store)).undecided}
        return True


@dataclass
class Pass(Op):
    """A sequencer makes a pass, after the same one of another worker or before."""

    open_keys: set[str] = field(default_factory=set)

    async def run(self, store: Store) -> bool:
        self.open_keys |= {*(await store.sequences.move([KEY])).undecided}
        return True


SWITCHES = {"a completion": math.inf, "a failure": math.inf if LONG else 2}
"""The bound for the end with most statements, whose orders take many minutes; none if `LONG`."""

KEPT = ("scheduled_jobs", "scheduler_workers", "scheduler_sequences")


@asynccontextmanager
async def ordered_world(
    dsn: str, pool: asyncpg.Pool, store: Store, *, waiting: Sequence[str]
) -> AsyncIterator[tuple[Waits, Claim, Callable[[], Awaitable[None]]]]:
    """Yield a world in which the head of a sequence runs, and a function that restores it."""
    async with Waits.on(dsn, 2) as world:
        assert isinstance(world, Waits)
        await insert(store, *(queued(job_id, on_failure="skip") for job_id in ("a0", *waiting)))
        await move(store)
        (head,) = await claim(store)
        await pool.execute(f"UPDATE scheduled_jobs SET created_at = '{NOW}'")
        for table in KEPT:
            await pool.execute(f"CREATE TABLE kept_{table} AS TABLE {table}")

        async def restore() -> None:
            for table in KEPT:
                await pool.execute(f"DELETE FROM {table}; INSERT INTO {table} TABLE kept_{table}")

        async def check(ops: Sequence[Op]) -> None:
            open_keys = set().union(*(getattr(op, "open_keys", ()) for op in ops))
            if open_keys:
                await move(store, open_keys)
            # The later jobs wait behind the first one that is left, which alone may start.
            rows = await pool.fetch(
                "SELECT job_id, blocked_on FROM scheduled_jobs WHERE finished_at IS NULL ORDER BY job_id"
            )
            assert [record["blocked_on"] for record in rows] == [None, *[KEY] * (len(rows) - 1)][: len(rows)]
            first = {KEY: (rows[0]["job_id"], False)} if rows else {}
            assert await sequences(pool) == first

        world.check = check
        yield world, head, restore


ENDS: dict[str, Callable[[Claim], Op]] = {
    "a completion": HandOver,
    "a failure": lambda head: Settle(head, Outcome.fail("why")),
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("waiting", [(), ("a1", "a2")], ids=["alone", "before others"])
async def test_no_order_of_the_end_of_a_head_and_a_new_job_forgets_or_doubles_a_head(
    end: str, waiting: Sequence[str], dsn: str, pool: asyncpg.Pool, store: Store
) -> None:
    async with ordered_world(dsn, pool, store, waiting=waiting) as (world, head, restore):
        plays = lambda: [ENDS[end](head), Add("a9")]  # noqa: E731
        assert await interleave(world, restore, plays, switches=SWITCHES[end]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
async def test_no_order_of_the_end_of_a_head_and_a_pass_forgets_or_doubles_a_head(
    end: str, dsn: str, pool: asyncpg.Pool, store: Store
) -> None:
    async with ordered_world(dsn, pool, store, waiting=("a1", "a2")) as (world, head, restore):
        plays = lambda: [ENDS[end](head), Pass()]  # noqa: E731
        assert await interleave(world, restore, plays, switches=SWITCHES[end]) > 10


@pytest.mark.slow
async def test_no_order_of_two_passes_over_a_new_sequence_gives_it_two_heads(
    dsn: str, pool: asyncpg.Pool, store: Store
) -> None:
    async with ordered_world(dsn, pool, store, waiting=("a1", "a2")) as (world, _, restore):
        await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'a0'; DELETE FROM scheduler_sequences")
        for table in KEPT:
            await pool.execute(f"DELETE FROM kept_{table}; INSERT INTO kept_{table} TABLE {table}")
        assert await interleave(world, restore, lambda: [Pass(), Pass()]) > 5


async def running_head(store: Store, count: int = 3) -> Claim:
    """Return the claim of the head of a sequence with some jobs, which runs."""
    await insert(store, *(queued(f"a{number}") for number in range(count)))
    await move(store)
    (head,) = await claim(store)
    return head


async def lost_by(store: Store, worker_id: str, head: Claim) -> list[str]:
    """Return the jobs that a heartbeat of a worker finds lost."""
    return list((await store.workers.renew(worker_id, {head.job_id: head.attempt}, 30.0)).lost)


@pytest.mark.parametrize("ended", ["cancelled", "failed"])
@pytest.mark.parametrize("reported", ["by its worker", "by a rescuer"])
async def test_replacement_of_an_ended_head_waits_for_the_end_of_its_attempt(
    store: Store, pool: Pool, ended: str, reported: str
) -> None:
    head = await running_head(store)
    await store.jobs.set_status("a0", JobStatus(ended), 30)
    await store.inserts.replace_extended([queued("a0", NOW + SECOND)])
    assert await move(store) == Moved(0, None, set(), {})
    assert await heads(pool) == ["a0"], "the attempt runs on, so no other job may start"
    assert await lost_by(store, "w1", head) == ["a0"], "the worker has to stop the attempt"
    assert await store.jobs.read_revoked(["a0"]) == {"a0": (JobStatus.RUNNING, True)}
    if reported == "by its worker":
        await store.results.settle("w1", [(head, REVOKED)])
    else:
        await pool.execute("DELETE FROM scheduler_workers")
        await pool.execute("UPDATE scheduled_jobs SET lease_until = $1 WHERE job_id = 'a0'", NOW - SECOND)
        await store.workers.rescue(LEASE)
    assert await heads(pool) == []
    assert (await move(store)).jobs == 1
    assert await heads(pool) == ["a1"], "the new definition is due later than this one"
    replaced = await row(pool, "a0")
    assert (replaced["status"], replaced["blocked_on"]) == ("pending", KEY)
    assert (replaced["execution_time"], replaced["on_end"]) == (NOW + SECOND, '{"sequence": true}')


async def test_replacement_of_an_ended_head_is_dropped_by_a_cancellation(store: Store, pool: Pool) -> None:
    head = await running_head(store)
    await store.jobs.cancel("a0")
    await store.inserts.replace_extended([queued("a0")])
    assert (await store.jobs.cancel("a0")).changed
    assert await heads(pool) == []
    assert await move(store) == Moved(0, None, set(), {})
    await store.results.settle("w1", [(head, REVOKED)])
    assert await heads(pool) == ["a1"]
    assert (await row(pool, "a0"))["status"] == "cancelled"


@pytest.mark.parametrize("outcome", [REVOKED, COMPLETE, Outcome.fail("why"), RELEASE])
async def test_running_head_that_is_set_to_pending_stays_first_and_waits_for_its_attempt(
    store: Store, pool: Pool, outcome: Outcome
) -> None:
    head = await running_head(store)
    for _ in range(2):
        change = await store.jobs.set_status("a0", JobStatus.PENDING, 30)
        assert (change.changed, change.worker_id) == (True, "w1")
        assert await store.claims.exchange("w2", NAMES, 2) is not None
        assert (await row(pool, "a0"))["attempt"] == 1
        assert await lost_by(store, "w1", head) == ["a0"]
        assert await store.jobs.read_revoked(["a0"]) == {"a0": (JobStatus.RUNNING, True)}
    assert (await hand_over(store, head)).ended == []
    await store.results.settle("w1", [(head, outcome)])
    assert await move(store) == Moved(0, None, set(), {})
    assert await heads(pool) == ["a0"]
    job = await row(pool, "a0")
    assert (job["status"], job["worker_id"], job["on_end"]) == ("pending", None, '{"sequence": true}')
    (again,) = await claim(store)
    assert (again.job_id, again.attempt) == ("a0", 2)
    assert (await hand_over(store, again)).ended == ["a0"]


async def test_cancelled_head_that_is_set_to_pending_waits_for_its_attempt(store: Store, pool: Pool) -> None:
    head = await running_head(store)
    await store.jobs.cancel("a0")
    await store.jobs.set_status("a0", JobStatus.PENDING, 30)
    assert (await row(pool, "a0"))["status"] == "running"
    assert await store.jobs.read_revoked(["a0"]) == {"a0": (JobStatus.RUNNING, True)}
    await store.results.settle("w1", [(head, REVOKED)])
    await move(store)
    assert await heads(pool) == ["a0"]
    assert (await row(pool, "a0"))["status"] == "pending"


async def test_pending_head_that_is_set_to_pending_stays_first(store: Store, pool: Pool) -> None:
    """The job that waits behind it has a smaller id, and would precede it if both waited."""
    await insert(store, queued("b0", NOW - SECOND), queued("a1"))
    await move(store)
    await store.jobs.set_status("b0", JobStatus.PENDING, 30)
    await move(store)
    assert await heads(pool) == ["b0"]


async def test_running_head_of_a_worker_without_a_row_is_pending_at_once(store: Store, pool: Pool) -> None:
    await running_head(store)
    await pool.execute("DELETE FROM scheduler_workers")
    await store.jobs.set_status("a0", JobStatus.PENDING, 30)
    assert (await row(pool, "a0"))["status"] == "pending"
    assert await heads(pool) == ["a0"]


@pytest.mark.parametrize("job_id", ["a0", "a1"])
async def test_reserved_job_has_its_place_again_after_the_reservation(
    store: Store, pool: Pool, clock: FakeClock, job_id: str
) -> None:
    await insert(store, queued("a0"), queued("a1"))
    await move(store)
    await store.jobs.set_status(job_id, JobStatus.RUNNING, 30)
    clock.advance(60 * SECOND)
    await store.workers.rescue(LEASE)
    assert (await row(pool, job_id))["status"] == "pending"
    assert (await row(pool, job_id))["on_end"] == '{"sequence": true}'
    await move(store)
    assert await heads(pool) == ["a0"]


async def test_job_that_was_reserved_and_completed_has_its_consequences_at_once(
    store: Store, pool: Pool
) -> None:
    await insert(store, queued("a0"), queued("a1"))
    await move(store)
    await store.jobs.set_status("a1", JobStatus.RUNNING, 30)
    await store.jobs.set_status("a1", JobStatus.COMPLETED, 30)
    assert (await row(pool, "a1"))["on_end"] is None


@pytest.mark.parametrize("restart", ["retry", "retry_family", "set_status"])
async def test_expired_head_is_first_although_its_end_is_not_applied(
    store: Store, pool: Pool, restart: str
) -> None:
    """A claim expires a late job, and the consequences follow a moment later."""
    await insert(store, queued("b0", NOW - SECOND), queued("a1"))
    await move(store)
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'expired', finished_at = now() WHERE job_id = 'b0'"
    )
    if restart == "set_status":
        await store.jobs.set_status("b0", JobStatus.PENDING, 30)
    else:
        await getattr(store.jobs, restart)("b0")
    await move(store)
    assert await heads(pool) == ["b0"]
    await store.consequences.apply_lost(9)
    assert await sequences(pool) == {KEY: ("b0", False)}


async def test_new_definition_of_the_failed_job_ends_the_stop(store: Store, pool: Pool) -> None:
    await stopped(store)
    await store.inserts.replace_extended([queued("a0", NOW + SECOND)])
    assert (await move(store)).jobs == 1
    assert await heads(pool) == ["a1"]


async def test_new_definition_of_the_failed_job_ends_the_stop_before_it_is_due(
    store: Store, pool: Pool
) -> None:
    await insert(store, queued("a0"))
    await move(store)
    (head,) = await claim(store)
    await store.results.settle("w1", [(head, Outcome.fail("why"))])
    await store.inserts.replace_extended([queued("a0", NOW + SECOND)])
    await move(store)
    assert await sequences(pool) == {}


async def test_head_that_has_never_started_gives_its_place_up_when_it_is_moved_to_the_future(
    store: Store, pool: Pool
) -> None:
    await insert(store, queued("a0"), queued("a1"), queued("b0", key=OTHER), queued("b1", key=OTHER))
    await move(store, [KEY, OTHER])
    claims = {each.job_id: each for each in await claim(store, 2)}
    await store.results.settle("w1", [(claims["b0"], Outcome.retry(SECOND, "why"))])
    await store.results.settle("w1", [(claims["a0"], RELEASE)])
    await pool.execute("UPDATE scheduled_jobs SET errors = NULL WHERE job_id = 'a0'")
    await store.jobs.move(["a0", "b0"], to=NOW + 60 * SECOND)
    await move(store, [KEY, OTHER])
    assert await heads(pool) == ["a1", "b0"], "an attempt that failed keeps its place"
    assert await sequences(pool) == {KEY: ("a1", False), OTHER: ("b0", False)}


async def test_waiting_job_that_is_due_keeps_its_place_when_it_is_made_due_now(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await insert(store, *(queued(f"a{number}", NOW + number * SECOND) for number in range(3)))
    await move(store)
    clock.advance(30 * SECOND)
    await store.jobs.move(["a1"], to=NOW + 30 * SECOND)
    assert (await row(pool, "a1"))["execution_time"] == NOW + SECOND
    await store.jobs.move(["a1"], to=NOW + 31 * SECOND)
    assert (await row(pool, "a1"))["execution_time"] == NOW + 31 * SECOND, "a person may move it back"


CHANGES: dict[str, Callable[[Store, str, str], Awaitable[object]]] = {
    "cancel": lambda store, job_id, key: store.jobs.cancel(job_id),
    "cancel_family": lambda store, job_id, key: store.jobs.cancel_family(job_id, "why"),
    "fail": lambda store, job_id, key: store.jobs.set_status(job_id, JobStatus.FAILED, 30),
    "expire": lambda store, job_id, key: store.jobs.set_status(job_id, JobStatus.EXPIRED, 30),
    "complete": lambda store, job_id, key: store.jobs.set_status(job_id, JobStatus.COMPLETED, 30),
    "set to pending": lambda store, job_id, key: store.jobs.set_status(job_id, JobStatus.PENDING, 30),
    "replace": lambda store, job_id, key: store.inserts.replace_extended([queued(job_id, key=key)]),
    "replace later": lambda store, job_id, key: store.inserts.replace_extended(
        [queued(job_id, NOW + SECOND, key=key)]
    ),
    "replace by a plain job": lambda store, job_id, key: store.inserts.replace([new_job(job_id)]),
    "retry": lambda store, job_id, key: store.jobs.retry(job_id),
    "retry_family": lambda store, job_id, key: store.jobs.retry_family(job_id),
    "move": lambda store, job_id, key: store.jobs.move([job_id], to=NOW + SECOND),
    "delete": lambda store, job_id, key: store.jobs.delete([job_id]),
    "resume": lambda store, job_id, key: store.sequences.resume(key),
    "skip": lambda store, job_id, key: store.sequences.skip_failed(key, job_id),
}
"""What people do to the head of a sequence, except that they reserve it, which runs it elsewhere."""


async def test_no_two_changes_of_a_running_head_start_a_job_before_its_attempt_has_ended(
    store: Store, pool: Pool
) -> None:
    """Each pair of changes, in a sequence of its own: none may start a job, or forget the sequence."""
    pairs = [(first, second) for first in CHANGES for second in CHANGES]
    keys = {f"zsequence:s:{number:03}": pair for number, pair in enumerate(pairs)}
    await insert(store, *(queued(f"{key}:{number}", key=key) for key in keys for number in range(2)))
    await move(store, keys)
    claims = await claim(store, len(keys))
    for key, pair in keys.items():
        for change in pair:
            await CHANGES[change](store, f"{key}:0", key)
    await move(store, keys)
    startable = await pool.fetch(
        "SELECT job_id FROM scheduled_jobs WHERE finished_at IS NULL AND blocked_on IS NULL"
        " AND (status, worker_id, attempt) IS DISTINCT FROM ('running', 'w1', 1)"
    )
    assert [keys[record["job_id"][:-2]] for record in startable] == []
    await store.results.settle("w1", [(each, REVOKED) for each in claims])
    await store.consequences.apply_lost(len(keys))
    await move(store, keys)
    rows = await pool.fetch(
        "SELECT key, stopped_at IS NOT NULL AS has_stopped, (SELECT count(*) FROM scheduled_jobs"
        " WHERE finished_at IS NULL AND blocked_on IS NULL AND options #>> '{sequence,key}' = key) AS heads"
        " FROM scheduler_sequences ORDER BY key"
    )
    assert {keys[record["key"]] for record in rows} == set(pairs), "each sequence has a head"
    wrong = [keys[record["key"]] for record in rows if record["heads"] + record["has_stopped"] != 1]
    assert wrong == []
