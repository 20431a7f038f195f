"""Claims that do not begin at the start of the index, and the search for jobs in front of their position."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError
from pg_scheduler.events import EventBus
from pg_scheduler.worker import claimer as claimer_module
from pg_scheduler.worker import cursor as module
from pg_scheduler.worker.claimer import COUNT_INTERVAL_S
from pg_scheduler.worker.claims import FROM_THE_START
from pg_scheduler.worker.cursor import MANY_ENTRIES, MAX_AGE_S, PAUSE_RATIO, HeadScanner
from tests.support.inside import NEVER, Claimer, Outcome, PlainJob, Store
from tests.support.parts import Parts
from tests.support.worker import LEASE, Gate, insert_unreadable, new_job, new_worker, now, statuses

CROWD = 200
HOUR = timedelta(hours=1)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the scanner, which the test sets."""
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
    """Parts of a registered worker that knows ``test.job``, and keeps its position behind 100 entries."""
    parts.tasks.register(gate.job, name="test.job")
    await parts.store.workers.register(new_worker(), LEASE)
    return parts


async def crowd(dsn: str, *, name: str = "nobody.knows", running: bool = False, count: int = CROWD) -> None:
    """Insert due rows, one per millisecond from an hour ago."""
    async with connected(dsn) as connection:
        await connection.execute(
            "INSERT INTO scheduled_jobs"
            " (job_id, job_name, priority, execution_time, status, worker_id, attempt)"
            " SELECT $1::text || n, $1, 5, now() - interval '1 hour' + n * interval '1 ms', $2,"
            " CASE WHEN $2 = 'running' THEN 'dead' END, 1 FROM generate_series(1, $3) AS n",
            name,
            "running" if running else "pending",
            count,
        )


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


class Bench:
    """A claimer that begins behind a crowd, and the scanner that searches in front of it."""

    def __init__(self, parts: Parts, *, slots: int = 100, **polling: Any) -> None:
        self.executor = parts.executor(slots=slots)
        self.claimer = parts.claimer(self.executor, batch=50, **polling)
        self.claimer.cursor.many_entries = 100
        self.scanner = parts.head_scanner(self.claimer)

    async def settle(self) -> None:
        """Run passes until none is due at once."""
        await settle(self.claimer, self.scanner)


async def settle(claimer: Claimer, scanner: HeadScanner) -> None:
    for _ in range(40):
        delays = [await scanner.run_once(), await claimer.run_once()]
        if min(delays) > 0:
            return
    pytest.fail("the passes do not end")


async def behind_crowd(parts: Parts, dsn: str, *, slots: int = 100, **options: Any) -> Bench:
    """Return a bench whose claims begin behind a crowd."""
    await crowd(dsn, **options)
    bench = Bench(parts, slots=slots)
    await bench.settle()
    assert bench.claimer.cursor.is_kept
    return bench


async def insert_silently(dsn: str, job_id: str, age: timedelta, priority: int = 5) -> None:
    """Insert a job by plain SQL, which announces nothing."""
    async with connected(dsn) as connection:
        await connection.execute(
            "INSERT INTO scheduled_jobs (job_id, job_name, priority, execution_time, status, task_data)"
            " VALUES ($1, 'test.job', $2, now() - $3::interval, 'pending', '{\"args\":[],\"kwargs\":{}}')",
            job_id,
            priority,
            age,
        )


async def test_scanner_sends_no_statement_while_claims_begin_at_the_start(
    known: Parts, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crowd(dsn, count=20)
    bench = Bench(known)
    await bench.claimer.run_once()
    assert bench.claimer.cursor.since() is FROM_THE_START
    monkeypatch.delattr(known.store.claims.__class__, "find_claimable")
    known.signals.due()
    assert await bench.scanner.run_once() == NEVER


@pytest.mark.parametrize("running", [False, True])
async def test_claimer_begins_behind_many_unclaimable_rows(
    known: Parts, dsn: str, seconds: list[float], running: bool
) -> None:
    bench = await behind_crowd(known, dsn, running=running)
    since = bench.claimer.cursor.since()
    assert all(position and now() - HOUR / 2 < position < now() for position in since)
    due = now()
    await known.store.inserts.insert(
        [new_job("a", execution_time=due), new_job("b", priority=1, execution_time=due)]
    )
    await bench.claimer.run_once()
    assert known.in_flight.held() == {"a": 1, "b": 1}


async def test_claimer_begins_at_the_start_again_when_the_crowd_is_gone(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    bench = await behind_crowd(known, dsn)
    async with connected(dsn) as connection:
        await connection.execute("DELETE FROM scheduled_jobs")
        await connection.execute("VACUUM scheduled_jobs")
    seconds[0] += MAX_AGE_S
    await bench.settle()
    assert bench.claimer.cursor.since() is FROM_THE_START


@pytest.mark.parametrize("priority", [1, 3, 5, 8])
async def test_claimer_claims_a_job_next_that_is_announced_with_an_earlier_time(
    known: Parts, dsn: str, seconds: list[float], priority: int
) -> None:
    """As one of a transaction that was long, or of a process whose clock is behind."""
    bench = await behind_crowd(known, dsn)
    due = now() - 2 * HOUR
    await known.store.inserts.insert([new_job("late", execution_time=due, priority=priority)])
    await bench.claimer.run_once()
    assert known.in_flight.held() == {}
    known.signals.due(due)
    await bench.claimer.run_once()
    assert known.in_flight.held() == {"late": 1}


async def test_claimer_counts_index_entries_once_a_second_and_when_it_begins_at_the_start_again(
    known: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look up the index costs 4 us a claim."""
    moment, counted = [1000.0], []
    monkeypatch.setattr(claimer_module, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    known.lease.renewed(moment[0])
    exchange = known.store.claims.exchange

    async def noted(*args: Any, counts: bool, **values: Any) -> Any:
        counted.append(counts)
        return await exchange(*args, counts=counts, **values)

    monkeypatch.setattr(known.store.claims, "exchange", noted)
    claimer = known.claimer(known.executor())
    for _ in range(2):
        await claimer.run_once()
    moment[0] += COUNT_INTERVAL_S
    await claimer.run_once()
    claimer.rescan()
    await claimer.run_once()
    assert counted == [True, False, True, True]


async def test_claimer_begins_at_its_position_also_when_it_expects_a_job(
    known: Parts, dsn: str, seconds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cheaper statement claims from the start of the index."""
    bench = await behind_crowd(known, dsn)
    monkeypatch.delattr(known.store.claims.__class__, "claim")
    due = now()
    await known.store.inserts.insert([new_job("a", execution_time=due)])
    known.signals.due(due)
    await bench.claimer.run_once()
    assert known.in_flight.held() == {"a": 1}


async def test_claimer_claims_a_job_that_is_announced_during_a_claim(
    known: Parts, dsn: str, seconds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await behind_crowd(known, dsn)
    exchange, due = known.store.claims.exchange, now() - 2 * HOUR

    async def and_meanwhile(*args: Any, **values: Any) -> Any:
        answer = await exchange(*args, **values)
        await known.store.inserts.insert([new_job("late", execution_time=due)])
        known.signals.due(due)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(known.store.claims, "exchange", and_meanwhile)
        await bench.claimer.run_once()
    await bench.claimer.run_once()
    assert known.in_flight.held() == {"late": 1}


async def test_scanner_finds_a_job_whose_announcement_has_no_time_at_once(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    """As those of an older release during an upgrade."""
    bench = await behind_crowd(known, dsn)
    for job_id, age in (("front", 2 * HOUR), ("amid", HOUR - timedelta(milliseconds=5))):
        await insert_silently(dsn, job_id, age)
        known.signals.due()
        await bench.settle()
        assert job_id in known.in_flight.held()


async def test_scanner_finds_a_job_without_an_announcement_within_the_maximum_age(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    bench = await behind_crowd(known, dsn)
    await insert_silently(dsn, "front", 2 * HOUR)
    assert await bench.scanner.run_once() <= MAX_AGE_S
    seconds[0] += MAX_AGE_S / 2
    await bench.settle()
    assert known.in_flight.held() == {}
    seconds[0] += MAX_AGE_S / 2
    await bench.settle()
    assert known.in_flight.held() == {"front": 1}


async def test_scanner_finds_a_job_within_the_polling_interval_if_that_is_shorter(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    await crowd(dsn)
    bench = Bench(known, max_interval=0.5)
    await bench.settle()
    await insert_silently(dsn, "front", 2 * HOUR)
    seconds[0] += 0.5
    await bench.settle()
    assert known.in_flight.held() == {"front": 1}


@pytest.mark.parametrize("is_notified", [True, False])
async def test_claimer_claims_a_job_without_a_search_that_was_committed_a_little_late(
    known: Parts, dsn: str, seconds: list[float], monkeypatch: pytest.MonkeyPatch, is_notified: bool
) -> None:
    """Nothing announces the jobs of other processes without notifications, so the margin is larger then."""
    if not is_notified:
        known.signals.notifications_up.clear()
    claimed_at: list[datetime] = []
    exchange = known.store.claims.exchange

    async def noted(*args: Any, **values: Any) -> Any:
        answer = await exchange(*args, **values)
        assert answer.at
        claimed_at.append(answer.at)
        return answer

    monkeypatch.setattr(known.store.claims, "exchange", noted)
    bench = await behind_crowd(known, dsn)
    due = claimed_at[-1] - timedelta(seconds=0.2 if is_notified else 0.9)
    await known.store.inserts.insert([new_job("late", execution_time=due)])
    await bench.claimer.run_once()
    assert known.in_flight.held() == {"late": 1}


async def test_claimer_finds_jobs_after_the_clock_of_the_database_was_set_back(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    """Jobs of that clock lie in front of the position, which follows the clock with the next claim."""
    bench = await behind_crowd(known, dsn)
    bench.claimer.cursor.pass_until(now() + HOUR, is_notified=True)  # as the last claim before that
    await bench.claimer.run_once()
    await insert_silently(dsn, "now", timedelta(0))
    await bench.claimer.run_once()
    assert known.in_flight.held() == {"now": 1}


async def test_scanner_pauses_for_four_times_the_duration_of_a_search(
    known: Parts, dsn: str, seconds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await behind_crowd(known, dsn)
    find = known.store.claims.find_claimable

    async def slow(*args: Any, **values: Any) -> Any:
        seconds[0] += 3.0
        return await find(*args, **values)

    monkeypatch.setattr(known.store.claims, "find_claimable", slow)
    known.signals.due()
    assert await bench.scanner.run_once() == PAUSE_RATIO * 3.0
    known.signals.due()
    assert await bench.scanner.run_once() == PAUSE_RATIO * 3.0
    seconds[0] += PAUSE_RATIO * 3.0 - 1
    assert await bench.scanner.run_once() == 1.0


async def test_scanner_pauses_after_a_search_that_failed(
    known: Parts, dsn: str, seconds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await behind_crowd(known, dsn)

    async def fail(*_: Any, **__: Any) -> Any:
        seconds[0] += 30.0
        raise DatabaseUnavailableError("no answer in time")

    monkeypatch.setattr(known.store.claims, "find_claimable", fail)
    seconds[0] += MAX_AGE_S
    with pytest.raises(DatabaseUnavailableError):
        await bench.scanner.run_once()
    assert await bench.scanner.run_once() == PAUSE_RATIO * 30.0
    assert await bench.claimer.run_once() > 0


async def test_scanner_leaves_a_locked_job_and_finds_it_when_it_is_free(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    """A transaction that locks a job also keeps dead rows."""
    bench = await behind_crowd(known, dsn)
    await insert_silently(dsn, "front", 2 * HOUR)
    async with connected(dsn) as other, other.transaction():
        await other.execute("SELECT FROM scheduled_jobs WHERE job_id = 'front' FOR UPDATE")
        seconds[0] += MAX_AGE_S
        await bench.settle()
        assert known.in_flight.held() == {}
        assert bench.claimer.cursor.since()[2] is not None
    seconds[0] += MAX_AGE_S
    await bench.settle()
    assert known.in_flight.held() == {"front": 1}


@pytest.mark.parametrize("seconds_late", [0.0, 0.5, 3.0])
async def test_claimer_stays_in_front_of_a_job_that_was_locked_until_it_is_late(
    known: Parts, dsn: str, seconds: list[float], seconds_late: float
) -> None:
    """A bulk action locks jobs for a moment. No search follows here."""
    bench = await behind_crowd(known, dsn)
    due = now() - timedelta(seconds=seconds_late)
    await known.store.inserts.insert([new_job("locked", execution_time=due)])
    async with connected(dsn) as other, other.transaction():
        await other.execute("SELECT FROM scheduled_jobs WHERE job_id = 'locked' FOR UPDATE")
        known.signals.due(due)
        assert 0 < await bench.claimer.run_once() < 1
    await bench.claimer.run_once()
    assert ("locked" in known.in_flight.held()) is (seconds_late < MAX_AGE_S)


async def test_claimer_claims_a_retry_at_once_that_keeps_its_due_time(
    known: Parts, dsn: str, seconds: list[float]
) -> None:
    due = now() - 2 * HOUR
    await known.store.inserts.insert([new_job("again", execution_time=due, max_retries=1)])
    (held,) = (await known.store.claims.exchange("me", ["test.job"], 1)).jobs
    bench = await behind_crowd(known, dsn)
    known.result_buffer.put(held, Outcome.retry(timedelta(0), "no"))
    await known.completer().run_once()
    await bench.claimer.run_once()
    assert known.in_flight.held() == {"again": 2}


async def test_claimer_claims_the_next_crashed_job_when_the_result_of_the_last_one_is_written(
    known: Parts, dsn: str, gate: Gate, seconds: list[float]
) -> None:
    """The claims meanwhile left it, and their position is behind it. No search follows here."""
    bench = await behind_crowd(known, dsn)
    for job_id in "ab":
        await insert_silently(dsn, job_id, 2 * HOUR)
    async with connected(dsn) as connection:
        await connection.execute("UPDATE scheduled_jobs SET crash_count = 2 WHERE job_id IN ('a', 'b')")
    known.signals.due(now() - 3 * HOUR)
    await bench.claimer.run_once()
    await bench.claimer.run_once()
    assert known.in_flight.held() == {"a": 1}
    gate.open.set()
    await known.ended(bench.executor)
    known.result_buffer.claims_follow = True  # a claim writes the result
    await bench.claimer.run_once()
    gate.open.clear()
    await bench.claimer.run_once()
    assert known.in_flight.held() == {"b": 1}


async def test_claimer_finds_jobs_of_a_name_that_is_registered_later(
    known: Parts, dsn: str, gate: Gate, seconds: list[float]
) -> None:
    bench = await behind_crowd(known, dsn, slots=10)
    known.tasks.register(gate.job, aliases=["nobody.knows"])
    await bench.claimer.run_once()
    assert set(known.in_flight.held()) == {f"nobody.knows{n}" for n in range(1, 11)}


async def test_claimers_of_different_names_have_positions_of_their_own(
    store: Store, bus: EventBus, dsn: str, gate: Gate, seconds: list[float]
) -> None:
    """Each of two workers claims its own jobs, among and after those of the other one."""
    await crowd(dsn, name="blue")
    await store.inserts.insert([new_job("r", "red")])
    held, is_kept = {}, {}
    for name in ("red", "blue"):
        parts = Parts(store, bus, name)
        parts.tasks.register(gate.job, name=name)
        await store.workers.register(new_worker(name), LEASE)
        bench = Bench(parts, slots=3)
        await bench.settle()
        held[name], is_kept[name] = set(parts.in_flight.held()), bench.claimer.cursor.is_kept
    assert held == {"red": {"r"}, "blue": {"blue1", "blue2", "blue3"}}
    assert is_kept == {"red": True, "blue": False}


@pytest.mark.parametrize("seed", range(6))
async def test_claimer_forgets_no_job_under_random_changes_of_the_queue(
    known: Parts, dsn: str, gate: Gate, seconds: list[float], seed: int
) -> None:
    """Announced jobs are claimed without delay, all others within the maximum age."""
    dice = random.Random(seed)
    bench = await behind_crowd(known, dsn, slots=1_000, running=bool(seed % 2))
    due: set[str] = set()
    names = [f"test.name{n}" for n in range(3)]
    hidden: dict[str, set[str]] = {name: set() for name in names}

    def job(job_id: str, name: str) -> PlainJob:
        age = HOUR * dice.choice((0.0, 0.5, 0.9999, 1.0, 2.0))
        return new_job(job_id, name=name, execution_time=now() - age, priority=dice.choice((1, 3, 5, 8)))

    for n in range(30):
        new = job(str(n), "test.job")
        action = dice.choice(("announced", "timed", "silent", "unknown", "register", "passes", "time"))
        match action:
            case "announced" | "timed" | "silent":
                await known.store.inserts.insert([new])
                due.add(str(n))
            case "unknown":
                name = dice.choice(names)
                await known.store.inserts.insert([job(str(n), name)])
                hidden[name].add(str(n))
            case "register":
                known.tasks.register(gate.job, aliases=[dice.choice(names)])
            case "passes":
                for _ in range(dice.randrange(4)):
                    await bench.claimer.run_once()
            case _:
                seconds[0] += dice.random()
        if action in {"announced", "timed"}:
            known.signals.due(new.execution_time if action == "timed" else None)
            await bench.settle()
            assert str(n) in known.in_flight.held()
    seconds[0] += MAX_AGE_S
    await bench.settle()
    due |= set().union(*(ids for name, ids in hidden.items() if known.tasks.resolve(name)))
    assert set(known.in_flight.held()) == due


@pytest.mark.slow
async def test_claimer_quarantines_an_unreadable_row_in_front_of_its_position(
    known: Parts, gate: Gate, dsn: str, seconds: list[float]
) -> None:
    bench = await behind_crowd(known, dsn)
    await insert_unreadable(dsn)
    seconds[0] += MAX_AGE_S
    await bench.scanner.run_once()
    await bench.claimer.run_once()  # fails, and finds the row
    assert await statuses(known.store, "unreadable") == ["failed"]


def test_many_entries_are_read_in_milliseconds() -> None:
    assert MANY_ENTRIES <= 2000
