"""Claims that begin after the rows that their worker cannot claim, and the jobs in front of that position."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError
from pg_scheduler.events import EventBus
from pg_scheduler.jobs.outcome import RetryOutcome
from pg_scheduler.jobs.rows import NewJob
from pg_scheduler.store.store import Store
from pg_scheduler.store.types import FROM_THE_START
from pg_scheduler.worker.pipeline import head as module
from pg_scheduler.worker.pipeline.claimer import Claimer
from pg_scheduler.worker.pipeline.cursor import MAX_AGE_S
from pg_scheduler.worker.pipeline.head import CHECK_INTERVAL_S, PAUSE_RATIO
from tests.support.parts import Parts
from tests.support.worker import LEASE, Gate, insert_unreadable, new_job, new_worker, now, statuses

CROWD = 5_000
PASSES = 40
"""More than enough for a walk over the crowd with claims between its steps."""
HOUR = timedelta(hours=1)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the head, which the test sets."""
    moment = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    return moment


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
async def known(parts: Parts, gate: Gate) -> Parts:
    """Parts of a registered worker that knows ``test.job``."""
    parts.tasks.register(gate.job, name="test.job")
    await parts.store.workers.register(new_worker(), LEASE)
    return parts


async def crowd(dsn: str, *, name: str = "nobody.knows", running: bool = False, count: int = CROWD) -> None:
    """Insert due rows, one per millisecond from an hour ago."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, priority, execution_time, status, worker_id, attempt)"
        " SELECT $1::text || n, $1, 5, now() - interval '1 hour' + n * interval '1 ms', $2,"
        " CASE WHEN $2 = 'running' THEN 'dead' END, 1 FROM generate_series(1, $3) AS n",
        name,
        "running" if running else "pending",
        count,
    )
    await connection.close()


async def settle(claimer: Claimer) -> None:
    """Run passes until none is due at once."""
    for _ in range(PASSES):
        if await claimer.run_once() > 0:
            return
    pytest.fail("the walk does not end")


async def skipping(parts: Parts, dsn: str, slots: int = 100, **options: Any) -> Claimer:
    """Return a claimer that skips a crowd."""
    await crowd(dsn, **options)
    claimer = parts.claimer(parts.executor(slots=slots), batch=50)
    await settle(claimer)
    assert claimer._cursor.since() is not FROM_THE_START
    return claimer


async def insert_silently(dsn: str, job_id: str, age: timedelta, priority: int = 5) -> None:
    """Insert a job by plain SQL, which announces nothing."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, priority, execution_time, status, task_data)"
        " VALUES ($1, 'test.job', $2, now() - $3::interval, 'pending', '{\"args\":[],\"kwargs\":{}}')",
        job_id,
        priority,
        age,
    )
    await connection.close()


@pytest.mark.parametrize("running", [False, True])
async def test_claimer_skips_a_crowd_of_unclaimable_rows(
    known: Parts, dsn: str, seconds: list[float], running: bool
) -> None:
    claimer = await skipping(known, dsn, running=running)
    position = claimer._cursor.since()[2]
    assert position
    assert position > now() - HOUR + timedelta(milliseconds=CROWD - 1, seconds=-1)
    await known.store.jobs.insert([new_job("a"), new_job("b", priority=1, execution_time=now() - 2 * HOUR)])
    await claimer.run_once()  # another priority has a position of its own
    assert known.in_flight.held() == {"a": 1, "b": 1}


async def test_claimer_begins_at_the_start_when_few_rows_are_unclaimable(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    await crowd(dsn, count=1_000)
    claimer = known.claimer()
    await settle(claimer)
    assert claimer._cursor.since() is FROM_THE_START


async def test_claimer_begins_at_the_start_again_when_the_crowd_is_gone(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    claimer = await skipping(known, dsn)
    connection = await asyncpg.connect(dsn)
    await connection.execute("DELETE FROM scheduled_jobs")
    await connection.close()
    seconds[0] += MAX_AGE_S
    await settle(claimer)
    assert claimer._cursor.since() is FROM_THE_START


async def test_claimer_skips_rows_that_arrive_after_the_crowd(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    claimer = await skipping(known, dsn)
    assert (before := claimer._cursor.since()[2])
    await insert_crowd_now(dsn)
    seconds[0] += CHECK_INTERVAL_S
    await settle(claimer)
    assert (after := claimer._cursor.since()[2])
    assert after > before + HOUR / 2


async def insert_crowd_now(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, priority, execution_time, status)"
        " SELECT 'new' || n, 'nobody.knows', 5, now() - interval '1 minute', 'pending'"
        f" FROM generate_series(1, {CROWD}) AS n"
    )
    await connection.close()


async def test_claimer_finds_an_announced_job_in_front_of_the_crowd(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    claimer = await skipping(known, dsn)
    await insert_silently(dsn, "front", 2 * HOUR)
    await settle(claimer)
    assert known.in_flight.held() == {}
    claimer.rescan()
    await settle(claimer)
    assert known.in_flight.held() == {"front": 1}
    await insert_silently(dsn, "amid", HOUR - timedelta(seconds=2))
    claimer.rescan()
    await settle(claimer)
    assert known.in_flight.held() == {"front": 1, "amid": 1}


async def test_claimer_finds_a_job_without_a_notification_within_the_maximum_age(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    claimer = await skipping(known, dsn)
    await insert_silently(dsn, "front", 2 * HOUR)
    assert await claimer.run_once() <= MAX_AGE_S, "it sleeps no longer than until the next walk"
    seconds[0] += MAX_AGE_S / 2
    await settle(claimer)
    assert known.in_flight.held() == {}
    seconds[0] += MAX_AGE_S / 2
    await settle(claimer)
    assert known.in_flight.held() == {"front": 1}


async def test_claimer_finds_a_retry_and_a_released_job_in_front_of_the_crowd(
    known: Parts, dsn: str, gate: Gate, seconds: list[float]
) -> None:
    await known.store.jobs.insert([new_job("again", execution_time=now() - 2 * HOUR, max_retries=1)])
    (held,) = (await known.store.claims.exchange("me", ["test.job"], 1)).jobs
    claimer = await skipping(known, dsn)
    await known.store.results.settle("me", [(held, RetryOutcome(timedelta(0), "no"))])
    await insert_silently(dsn, "released", 2 * HOUR)
    claimer.rescan()
    await settle(claimer)
    assert known.in_flight.held() == {"again": 2, "released": 1}


async def test_claimer_finds_jobs_of_a_name_that_is_registered_later(
    known: Parts, dsn: str, gate: Gate, seconds: list[float]
) -> None:
    claimer = await skipping(known, dsn, slots=10)
    known.tasks.register(gate.job, aliases=["nobody.knows"])
    await claimer.run_once()
    assert set(known.in_flight.held()) == {f"nobody.knows{n}" for n in range(1, 11)}


async def test_claimer_walks_again_when_a_job_is_announced_behind_the_step_of_a_walk(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    """The walk in progress ends first. Otherwise constant notifications would let none reach its end."""
    claimer = await skipping(known, dsn)
    head = claimer._head
    claimer.rescan()
    assert await head.walk()
    await insert_silently(dsn, "front", 2 * HOUR)
    claimer.rescan()
    steps = 1
    while head._walk is not None:
        assert await head.walk()
        steps += 1
    assert steps == CROWD // 2000 + 1
    assert head.walk_in == 0
    await settle(claimer)
    assert known.in_flight.held() == {"front": 1}


async def test_head_pauses_between_walks(
    known: Parts, dsn: str, seconds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    claimer = await skipping(known, dsn)
    head, skip_head = claimer._head, known.store.claims.skip_head

    async def slow(*args: Any) -> Any:
        seconds[0] += 1.0
        return await skip_head(*args)

    monkeypatch.setattr(known.store.claims, "skip_head", slow)
    head.request_walk()
    while await head.walk():
        head.request_walk()
    steps = CROWD // 2000 + 1
    assert head.walk_in == steps * PAUSE_RATIO
    seconds[0] += steps * PAUSE_RATIO
    assert await head.walk()


async def test_claimer_keeps_its_position_and_walks_on_when_a_step_fails(
    known: Parts, dsn: str, seconds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    claimer = await skipping(known, dsn)
    skip_head = known.store.claims.skip_head

    async def fail(*_: Any) -> Any:
        raise DatabaseUnavailableError("no")

    monkeypatch.setattr(known.store.claims, "skip_head", fail)
    await insert_silently(dsn, "front", 2 * HOUR)
    await known.store.jobs.insert([new_job(str(n)) for n in range(50)])  # a full claim
    claimer.rescan()
    with pytest.raises(DatabaseUnavailableError):
        await claimer.run_once()
    assert not known.results.claims_follow, "results do not wait for the claim"
    assert len(known.in_flight.held()) == 50
    monkeypatch.setattr(known.store.claims, "skip_head", skip_head)
    await settle(claimer)
    assert "front" in known.in_flight.held()


async def test_claimers_of_different_names_have_positions_of_their_own(
    store: Store, bus: EventBus, dsn: str, gate: Gate, seconds: list[float]
) -> None:
    """Each of two workers claims its own jobs, among and after those of the other one."""
    await crowd(dsn, name="blue")
    await store.jobs.insert([new_job("r", "red")])
    held, positions = {}, {}
    for name in ("red", "blue"):
        parts = Parts(store, bus)
        parts.worker_id = name
        parts.tasks.register(gate.job, name=name)
        await store.workers.register(new_worker(name), LEASE)
        claimer = parts.claimer(parts.executor(slots=3), batch=50)
        await settle(claimer)
        held[name], positions[name] = set(parts.in_flight.held()), claimer._head.since
    assert held == {"red": {"r"}, "blue": {"blue1", "blue2", "blue3"}}
    assert positions["red"][2] is not None
    assert positions["blue"] is FROM_THE_START


@pytest.mark.parametrize("seed", range(6))
async def test_claimer_forgets_no_job_under_random_changes_of_the_queue(
    known: Parts, dsn: str, gate: Gate, seconds: list[float], seed: int
) -> None:
    """Announced jobs are claimed without delay, all others within the maximum age."""
    dice = random.Random(seed)
    claimer = await skipping(known, dsn, slots=1_000, running=bool(seed % 2))
    due: set[str] = set()
    names = [f"test.name{n}" for n in range(3)]
    hidden: dict[str, set[str]] = {name: set() for name in names}

    def job(job_id: str, name: str) -> NewJob:
        age = HOUR * dice.choice((0.0, 0.5, 0.9999, 1.0, 2.0))
        return new_job(job_id, name=name, execution_time=now() - age, priority=dice.choice((1, 3, 5, 8)))

    for n in range(30):
        action = dice.choice(("announced", "silent", "unknown", "register", "passes", "time"))
        match action:
            case "announced" | "silent":
                await known.store.jobs.insert([job(str(n), "test.job")])
                due.add(str(n))
            case "unknown":
                name = dice.choice(names)
                await known.store.jobs.insert([job(str(n), name)])
                hidden[name].add(str(n))
            case "register":
                known.tasks.register(gate.job, aliases=[dice.choice(names)])
            case "passes":
                for _ in range(dice.randrange(4)):
                    await claimer.run_once()
            case _:
                seconds[0] += dice.random()
        if action == "announced":
            claimer.rescan()
            await settle(claimer)
            assert str(n) in known.in_flight.held()
    seconds[0] += MAX_AGE_S
    await settle(claimer)
    due |= set().union(*(ids for name, ids in hidden.items() if known.tasks.resolve(name)))
    assert set(known.in_flight.held()) == due


async def test_claimer_quarantines_an_unreadable_row_behind_jobs_in_front_of_the_crowd(
    known: Parts, gate: Gate, dsn: str, seconds: list[float]
) -> None:
    claimer = await skipping(known, dsn, slots=3)
    for n in range(5):  # more than one claim takes
        await insert_silently(dsn, f"front {n}", 2 * HOUR)
    await insert_unreadable(dsn)
    await claimer.run_once()  # fails: it begins behind the crowd
    await claimer.run_once()
    assert known.in_flight.held() == {"front 0": 1, "front 1": 1, "front 2": 1}
    gate.open.set()
    await known.ended(claimer._executor)
    await claimer.run_once()  # fails, and finds the row
    assert await statuses(known.store, "unreadable") == ["failed"]
    gate.open.clear()
    await claimer.run_once()
    assert known.in_flight.held() == {"front 3": 1, "front 4": 1}
