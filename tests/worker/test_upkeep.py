"""The rescuer, the expirer and the deadline scanner, pass by pass."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection
from datetime import datetime, timedelta

import asyncpg
import pytest

from pg_scheduler import Connection, JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import EventBus, JobDeadlineExceeded, JobExpired, JobFailed, JobsReclaimed
from pg_scheduler.jobs.deadlines import DEADLINE, deadline_text
from pg_scheduler.worker import rescuer as rescuer_module
from pg_scheduler.worker.overdue import DeadlineScanner
from pg_scheduler.worker.rescuer import Rescuer
from pg_scheduler.worker.worker_rows import RescueResult
from tests.support.inside import (
    COMPLETE,
    NEVER,
    RELEASE,
    Connections,
    ExtendedJob,
    Extras,
    Store,
    quarantine_error,
)
from tests.support.parts import Parts, sent_statements
from tests.support.worker import LEASE, Recorder, claim, new_job, new_worker, statuses

ANSWER_S = Rescuer.answer_timeout_s


@pytest.fixture
def server_start_grace_s() -> float:
    return 0.0


@pytest.fixture
def parts(
    connections: Connections,
    clock: FakeClock,
    bus: EventBus,
    server_start_grace_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> Parts:
    parts = Parts(Store(connections, clock=clock, server_start_grace_s=server_start_grace_s), bus)
    monkeypatch.setattr(DeadlineScanner, "horizon_jitter", 0.0)
    monkeypatch.setattr(DeadlineScanner, "spread_s", 0.0)
    return parts


async def rescue(parts: Parts, **options: int | None) -> None:
    """Make two passes: suspect workers are asked for a heartbeat first, and get no time to answer here."""
    rescuer = parts.rescuer(**options)
    rescuer.answer_timeout_s = 0.0
    for _ in range(2):
        rescuer.scan_jobs()
        await rescuer.run_once()


# -- rescuer -------------------------------------------------------------------------------------------


async def test_rescuer_reclaims_the_jobs_of_a_dead_worker(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    due = clock.now - timedelta(hours=1)
    announced: list[datetime | None] = []
    parts.signals.due.connect(announced.append)
    dead = await claim(
        parts.store,
        new_job("a", execution_time=clock.now),
        new_job("b", execution_time=due),
        worker_id="dead",
    )
    await claim(parts.store, new_job("c"), worker_id="alive", lease=600)
    assert await parts.rescuer().run_once() != ANSWER_S
    assert seen.events == []
    clock.advance(timedelta(seconds=61))
    await rescue(parts)
    assert seen.events == [JobsReclaimed(("a", "b"), ("dead",))]
    assert parts.calls == ["asked dead", "worker_gone", "due"]
    assert announced == [due]
    assert await statuses(parts.store, *"abc") == ["pending", "pending", "running"]
    assert [worker.worker_id for worker in await parts.store.workers.list_workers()] == ["alive"]
    job = await parts.store.jobs.get_job("a")
    assert job is not None
    assert (job.attempt, job.retry_count, job.worker_id) == (1, 0, None)
    assert await parts.store.results.settle("dead", [(dead[0], COMPLETE)]) == set()  # too late


async def test_rescuer_makes_another_pass_at_once_after_a_full_batch(parts: Parts, clock: FakeClock) -> None:
    await claim(parts.store, *map(new_job, "abc"), worker_id="dead")
    clock.advance(timedelta(seconds=61))
    rescuer = parts.rescuer()
    rescuer.answer_timeout_s, rescuer.batch_size = 0.0, 2
    await rescuer.run_once()  # the request for a heartbeat
    assert await rescuer.run_once() == 0
    assert sorted(await statuses(parts.store, *"abc")) == ["pending", "pending", "running"]
    assert await rescuer.run_once() > 0
    assert await statuses(parts.store, *"abc") == ["pending"] * 3


async def test_rescuer_publishes_a_dead_worker_without_jobs(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    await parts.store.workers.register(new_worker("dead"), 60)
    clock.advance(timedelta(seconds=61))
    await rescue(parts)
    assert seen.events == [JobsReclaimed((), ("dead",))]
    assert parts.calls == ["asked dead", "worker_gone"]


async def test_rescuer_reclaims_a_row_of_its_worker_when_the_claim_was_not_answered(
    parts: Parts, clock: FakeClock
) -> None:
    await claim(parts.store, *map(new_job, "abc"), worker_id="me", lease=60)
    (unwritten,) = [job for job in [await parts.store.claims.held_claim("b", "me")] if job]
    parts.result_buffer.put(unwritten, COMPLETE)
    clock.advance(timedelta(seconds=61))
    await parts.store.workers.renew("me", {}, 600)
    await rescue(parts)
    assert await statuses(parts.store, "a") == ["running"], "the answer may be on its way still"
    await parts.store.workers.renew("me", {}, 600)
    await rescue(Parts(parts.store, EventBus(), "another"))
    assert await statuses(parts.store, *"abc") == ["running"] * 3, "only the worker knows its jobs"
    await rescue(parts)
    assert await statuses(parts.store, *"abc") == ["pending", "running", "pending"]


async def test_rescuer_reclaims_a_row_without_a_lease_after_the_heartbeat_threshold(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await parts.store.inserts.insert([new_job("a")])
    await pool.execute(
        "UPDATE scheduled_jobs "
        "SET status = 'running', worker_id = 'legacy', attempt = 1, last_heartbeat = $1",
        clock.now,
    )
    rescuer = parts.rescuer()
    clock.advance(timedelta(seconds=119))
    await rescuer.run_once()
    assert await statuses(parts.store, "a") == ["running"]
    clock.advance(timedelta(seconds=2))
    rescuer.scan_jobs()
    await rescuer.run_once()
    assert await statuses(parts.store, "a") == ["pending"]


async def test_rescuer_reclaims_a_job_that_was_manually_set_to_running_after_one_lease(
    parts: Parts, clock: FakeClock
) -> None:
    await parts.store.inserts.insert([new_job("a")])
    await parts.store.jobs.set_status("a", JobStatus.RUNNING, 60)
    rescuer = parts.rescuer()
    await rescuer.run_once()
    assert await statuses(parts.store, "a") == ["running"]
    clock.advance(timedelta(seconds=61))
    rescuer.scan_jobs()
    await rescuer.run_once()
    assert await statuses(parts.store, "a") == ["pending"]


async def test_rescuer_applies_the_replacement_of_a_dead_workers_job(parts: Parts, clock: FakeClock) -> None:
    await claim(parts.store, new_job("a"), worker_id="dead")
    await parts.store.inserts.replace([new_job("a", "test.other", task_data='{"args":[2],"kwargs":{}}')])
    clock.advance(timedelta(seconds=61))
    await rescue(parts)
    job = await parts.store.jobs.get_job("a")
    assert job is not None
    assert (job.status, job.job_name, job.args, job.replacement) == ("pending", "test.other", (2,), False)


async def test_rescuer_reclaims_nothing_when_its_own_lease_is_not_trusted(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    await claim(parts.store, new_job("a"), worker_id="me")
    clock.advance(timedelta(seconds=61))
    parts.lease.revoke()
    assert 0 < await parts.rescuer().run_once() < NEVER
    assert seen.events == []
    assert await statuses(parts.store, "a") == ["running"]


async def test_rescuer_skips_rows_that_another_rescuer_has_locked(
    parts: Parts, clock: FakeClock, seen: Recorder, dsn: str
) -> None:
    await claim(parts.store, new_job("a"), worker_id="dead")
    clock.advance(timedelta(seconds=61))
    other = await asyncpg.connect(dsn)
    async with other.transaction():  # another rescuer is at it
        await other.execute("SELECT FROM scheduler_workers FOR UPDATE")
        await other.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        await rescue(parts)
        assert seen.of(JobsReclaimed) == []
    await other.close()
    await rescue(parts)
    assert len(seen.of(JobsReclaimed)) == 1


# -- free locks ----------------------------------------------------------------------------------------


class Locks:
    """Liveness locks of workers, which are held until they are dropped."""

    def __init__(self, parts: Parts, connection: Connection) -> None:
        self.parts = parts
        self.connection = connection

    async def register(self, worker_id: str, key: int, extension_s: float | None = None) -> None:
        await self.connection.execute(f"SELECT pg_advisory_lock({key})")
        await self.parts.store.workers.register(new_worker(worker_id), LEASE, key, extension_s)

    async def drop(self, *keys: int) -> None:
        for key in keys:
            await self.connection.execute(f"SELECT pg_advisory_unlock({key})")


@pytest.fixture
async def locks(parts: Parts, dsn: str) -> AsyncIterator[Locks]:
    connection = await asyncpg.connect(dsn)
    yield Locks(parts, connection)
    await connection.close()


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(rescuer_module, "time", fake)
    return fake


class FakeTime:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


async def test_rescuer_requests_one_heartbeat_before_it_declares_a_worker_dead(
    parts: Parts, locks: Locks, time: FakeTime, seen: Recorder
) -> None:
    await locks.register("dead", 1)
    await parts.store.inserts.insert([new_job("a")])
    assert (await parts.store.claims.exchange("dead", ["test.job"], 1)).jobs
    rescuer = parts.rescuer()
    rescuer.scan_locks()
    assert await rescuer.run_once() != ANSWER_S
    await locks.drop(1)
    assert await rescuer.run_once() != ANSWER_S, "no signal told it to scan the locks"
    rescuer.scan_locks()
    assert await rescuer.run_once() == ANSWER_S
    time.now += 0.9 * ANSWER_S
    rescuer.scan_locks()
    assert await rescuer.run_once() == ANSWER_S
    assert (parts.calls, seen.events) == (["asked dead"], [])
    time.now += 0.1 * ANSWER_S
    assert await rescuer.run_once() != ANSWER_S
    assert parts.calls == ["asked dead", "worker_gone", "due"]
    assert seen.events == [JobsReclaimed(("a",), ("dead",))]
    assert await statuses(parts.store, "a") == ["pending"]


@pytest.mark.parametrize("sign", ["a heartbeat", "a new lock", "no lock any more"])
async def test_rescuer_does_not_declare_a_worker_dead_that_responded(
    locks: Locks, time: FakeTime, clock: FakeClock, seen: Recorder, sign: str
) -> None:
    parts = locks.parts
    await locks.register("back", 1)
    rescuer = parts.rescuer()
    await locks.drop(1)
    rescuer.scan_locks()
    await rescuer.run_once()
    clock.advance(timedelta(seconds=1))
    if sign == "a heartbeat":
        await parts.store.workers.renew("back", {}, LEASE, liveness_key=1)
    elif sign == "a new lock":
        await locks.register("back", 2)
    else:
        await parts.store.workers.renew("back", {}, LEASE)
    time.now += ANSWER_S
    again = sign == "a heartbeat"  # its lock is still free: another heartbeat is requested
    assert (await rescuer.run_once() == ANSWER_S) is again
    assert parts.calls == ["asked back"] * (1 + again)
    assert seen.events == []


async def test_rescue_does_not_declare_a_worker_dead_whose_lock_is_held_again(
    parts: Parts, locks: Locks
) -> None:
    await locks.register("back", 1)
    assert await parts.store.workers.rescue(120, suspects=["back"]) == RescueResult([], [])
    await locks.drop(1)
    assert await parts.store.workers.rescue(120, suspects=["other"]) == RescueResult([], [])
    assert await parts.store.workers.rescue(120, suspects=["back"]) == RescueResult(["back"], [])


@pytest.mark.parametrize("ends", ["extension", "lock", "column"])
async def test_rescuer_reclaims_no_job_while_a_held_lock_extends_the_lease(
    locks: Locks, clock: FakeClock, time: FakeTime, seen: Recorder, ends: str
) -> None:
    parts = locks.parts
    await locks.register("busy", 1, extension_s=540)
    rescuer = parts.rescuer()
    clock.advance(timedelta(seconds=LEASE + 539))
    for _ in range(2):
        rescuer.scan_jobs()
        assert await rescuer.run_once() == ANSWER_S
        time.now += ANSWER_S
        assert await rescuer.run_once() != ANSWER_S
        assert (await parts.store.workers.rescue(120)).dead_workers == []
    assert parts.calls == ["asked busy"] * 2, "the clock may have been set forward"
    if ends == "extension":
        clock.advance(timedelta(seconds=2))
    elif ends == "lock":
        await locks.drop(1)
    else:  # as a worker of an earlier release leaves it
        await locks.connection.execute("UPDATE scheduler_workers SET lease_extension = NULL")
    rescuer.scan_jobs()
    await rescuer.run_once()
    time.now += ANSWER_S
    await rescuer.run_once()
    assert seen.events == [JobsReclaimed((), ("busy",))]


async def test_rescuers_do_not_take_one_another_for_the_worker(
    parts: Parts, locks: Locks, clock: FakeClock, dsn: str
) -> None:
    await locks.register("dead", 1, extension_s=540)
    await locks.drop(1)
    clock.advance(timedelta(seconds=LEASE + 1))
    other = await asyncpg.connect(dsn)
    await other.execute("BEGIN; SELECT pg_advisory_xact_lock_shared(1)")
    assert (await parts.store.workers.rescue(120, suspects=["dead"])).dead_workers == ["dead"]
    await other.close()


async def test_rescuer_gives_each_suspect_worker_its_own_deadline(
    parts: Parts, locks: Locks, time: FakeTime, seen: Recorder
) -> None:
    for key, worker_id in enumerate(("me", "one", "two", "three"), 1):
        await locks.register(worker_id, key)
    await parts.store.workers.register(new_worker("without a lock"), LEASE)
    rescuer = parts.rescuer()
    await locks.drop(1, 2, 3)
    rescuer.scan_locks()
    await rescuer.run_once()
    assert parts.calls == ["asked one", "asked two"], "it requests no heartbeat of its own"
    await locks.drop(4)
    time.now += ANSWER_S
    assert await rescuer.run_once() == ANSWER_S
    assert seen.events == [JobsReclaimed((), ("one", "two"))]
    assert parts.calls[2:] == ["asked three", "worker_gone"]
    time.now += ANSWER_S
    assert await rescuer.run_once() != ANSWER_S
    assert seen.of(JobsReclaimed)[1:] == [JobsReclaimed((), ("three",))]


async def test_rescuer_counts_the_response_time_from_the_end_of_the_request(
    parts: Parts, clock: FakeClock, time: FakeTime, seen: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await parts.store.workers.register(new_worker("slow"), LEASE)
    clock.advance(timedelta(seconds=LEASE + 1))
    rescuer = parts.rescuer()
    ask = parts.outbox.request_heartbeats

    async def fail(_worker_ids: Collection[str]) -> None:
        raise DatabaseUnavailableError

    async def ask_for_long(worker_ids: Collection[str]) -> None:
        await ask(worker_ids)
        time.now += 10 * ANSWER_S

    monkeypatch.setattr(parts.outbox, "request_heartbeats", fail)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailableError):
            await rescuer.run_once()
        time.now += ANSWER_S
    monkeypatch.setattr(parts.outbox, "request_heartbeats", ask_for_long)
    assert await rescuer.run_once() == ANSWER_S
    time.now += 0.9 * ANSWER_S
    assert await rescuer.run_once() == ANSWER_S
    assert (parts.calls, seen.events) == (["asked slow"], [])
    time.now += 0.1 * ANSWER_S
    assert await rescuer.run_once() != ANSWER_S
    assert seen.events == [JobsReclaimed((), ("slow",))]


@pytest.mark.parametrize("server_start_grace_s", [1e6])
async def test_rescuer_suspects_no_worker_when_the_server_has_just_started(
    parts: Parts, locks: Locks
) -> None:
    await locks.register("dead", 1)
    await locks.drop(1)
    rescuer = parts.rescuer()
    rescuer.scan_locks()
    assert await rescuer.run_once() != ANSWER_S
    assert parts.calls == []


async def test_rescuer_looks_at_the_locks_when_no_claim_does(
    parts: Parts, locks: Locks, time: FakeTime, seen: Recorder
) -> None:
    """As while every claim gets as many jobs as it asks for, or all slots are taken."""
    await locks.register("dead", 1)
    await locks.drop(1)
    rescuer = parts.rescuer()
    parts.lock_looks.last_at = time.now
    look_s = 2 * parts.config.polling.max_interval
    await rescuer.run_once()
    statements = sent_statements(parts)
    assert await rescuer.run_once() == look_s
    time.now += look_s / 2
    assert await rescuer.run_once() == look_s / 2
    assert statements == [], "a claim has looked, or may look in time"
    time.now += look_s / 2
    assert await rescuer.run_once() == ANSWER_S
    assert parts.calls == ["asked dead"]
    time.now += ANSWER_S
    assert await rescuer.run_once() != ANSWER_S
    assert seen.events == [JobsReclaimed((), ("dead",))]


@pytest.mark.parametrize(("limit", "looks"), [(2, False), (3, True)])
async def test_claim_looks_at_the_locks_unless_it_gets_all_that_it_asks_for(
    parts: Parts, limit: int, looks: bool
) -> None:
    await parts.store.workers.register(new_worker("me"), LEASE)
    await parts.store.inserts.insert([new_job("a"), new_job("b")])
    parts.tasks.register(test_claim_looks_at_the_locks_unless_it_gets_all_that_it_asks_for, name="test.job")
    await parts.claimer(batch=limit).run_once()
    assert (parts.lock_looks.last_at > 0) is looks


async def test_claimer_signals_a_free_liveness_lock(parts: Parts, locks: Locks) -> None:
    await locks.register("me", 1)
    await locks.register("dead", 2)
    parts.tasks.register(test_claimer_signals_a_free_liveness_lock, name="test.job")
    claimer = parts.claimer()
    await claimer.run_once()
    await locks.drop(1)
    await claimer.run_once()
    assert parts.calls == []
    await locks.drop(2)
    await claimer.run_once()
    assert parts.calls == ["worker_silent"]


# -- crashes -------------------------------------------------------------------------------------------


async def die(parts: Parts, clock: FakeClock) -> None:
    """Claim what is due, as a worker that dies then."""
    await parts.store.workers.register(new_worker("dying"), LEASE)
    assert (await parts.store.claims.exchange("dying", ["test.job"], 10)).jobs
    clock.advance(timedelta(seconds=LEASE + 1))
    await rescue(parts)


async def test_rescuer_quarantines_a_job_when_too_many_workers_died(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    await parts.store.inserts.insert([new_job("a", max_retries=9)])
    for _ in range(3):
        assert await statuses(parts.store, "a") == ["pending"]
        await die(parts, clock)
    error = quarantine_error(3)
    assert seen.of(JobFailed) == [JobFailed("a", "test.job", 3, error)]
    assert seen.events[-2:] == [JobsReclaimed((), ("dying",)), *seen.of(JobFailed)]
    assert parts.calls == ["asked dying", "worker_gone", "due"] * 2 + ["asked dying", "worker_gone"]
    row = await parts.store.jobs.get_job("a")
    assert row is not None
    assert (row.status, row.error_message, row.retry_count) == ("failed", error, 0)
    assert row.finished_at == clock.now


async def test_rescuer_resets_crashes_when_it_applies_a_replacement(
    parts: Parts, clock: FakeClock, seen: Recorder, pool: asyncpg.Pool
) -> None:
    await parts.store.inserts.insert([new_job("a")])
    await die(parts, clock)
    await die(parts, clock)
    await claim(parts.store, worker_id="dying") or await parts.store.claims.exchange("dying", ["test.job"], 1)
    await parts.store.inserts.replace([new_job("a")])
    clock.advance(timedelta(seconds=LEASE + 1))
    await rescue(parts)
    assert seen.of(JobFailed) == []
    assert seen.of(JobsReclaimed)[-1] == JobsReclaimed(("a",), ("dying",))
    assert await statuses(parts.store, "a") == ["pending"]
    assert await crashes(pool) == 0


async def crashes(pool: asyncpg.Pool) -> int:
    count: int = await pool.fetchval("SELECT crash_count FROM scheduled_jobs")
    return count


async def test_rescuer_quarantines_no_job_without_a_crash_limit(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await parts.store.inserts.insert([new_job("a")])
    for count in range(1, 6):
        await parts.store.workers.register(new_worker("dying"), LEASE)
        await parts.store.claims.exchange("dying", ["test.job"], 1)
        clock.advance(timedelta(seconds=LEASE + 1))
        await rescue(parts, max_crashes=None)
        assert await crashes(pool) == count
    assert await statuses(parts.store, "a") == ["pending"]


@pytest.mark.parametrize("whose", ["this worker's", "one of 0.2", "nobody's"])
async def test_rescuer_counts_no_crash_when_no_worker_died(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool, whose: str
) -> None:
    await parts.store.inserts.insert([new_job("a")])
    if whose == "this worker's":  # the answer was lost
        await claim(parts.store, worker_id="me")
        await parts.store.claims.exchange("me", ["test.job"], 1)
    elif whose == "nobody's":
        await parts.store.jobs.set_status("a", JobStatus.RUNNING, LEASE)
    else:
        await pool.execute("UPDATE scheduled_jobs SET status = 'running', worker_id = 'x', attempt = 1")
    clock.advance(timedelta(seconds=LEASE + 1))
    if whose == "this worker's":
        await parts.store.workers.renew("me", {}, LEASE)
        await parts.store.workers.renew("me", {}, LEASE)
    await rescue(parts, max_crashes=1)
    assert await statuses(parts.store, "a") == ["pending"]
    assert await crashes(pool) == 0


async def test_releasing_a_job_does_not_increment_its_crash_count(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await parts.store.inserts.insert([new_job("a")])
    await die(parts, clock)
    (held,) = await claim(
        parts.store, new_job("b", execution_time=clock.now + timedelta(days=1)), new_job("a")
    )
    assert await parts.store.results.settle("me", [(held, RELEASE)]) == {"a"}
    assert await pool.fetchval("SELECT crash_count FROM scheduled_jobs WHERE job_id = 'a'") == 1


@pytest.mark.parametrize("way", ["retry", "replace"])
async def test_retry_and_replace_reset_crashes(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool, way: str
) -> None:
    await parts.store.inserts.insert([new_job("a")])
    for _ in range(3):
        await die(parts, clock)
    if way == "retry":
        assert await parts.store.jobs.retry("a")
    else:
        await parts.store.inserts.replace([new_job("a")])
    assert await statuses(parts.store, "a") == ["pending"]
    assert await crashes(pool) == 0


# -- expirer -------------------------------------------------------------------------------------------


async def test_expirer_expires_only_pending_jobs_past_their_misfire_grace_time(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    for job_id, grace in (("ten", 10), ("zero", 0), ("ever", None)):
        job = new_job(job_id, "nobody.knows", execution_time=clock.now, misfire_grace_time=grace)
        await parts.store.inserts.insert([job])
    await claim(parts.store, new_job("running", misfire_grace_time=10, execution_time=clock.now))
    expirer = parts.expirer()
    clock.advance(timedelta(seconds=10))
    assert await expirer.run_once() == NEVER
    assert [event.job_id for event in seen.of(JobExpired)] == ["zero"]
    clock.advance(timedelta(seconds=0.001))
    await expirer.run_once()
    assert [event.job_id for event in seen.of(JobExpired)] == ["zero", "ten"]
    assert seen.of(JobExpired)[1] == JobExpired("ten", "nobody.knows", 0)
    assert await statuses(parts.store, "ever", "running") == ["pending", "running"]
    row = await parts.store.jobs.get_job("ten")
    assert row is not None
    assert row.finished_at == clock.now


async def test_expirer_runs_another_pass_at_once_after_a_full_batch(parts: Parts, clock: FakeClock) -> None:
    await parts.store.inserts.insert([new_job(str(n), misfire_grace_time=0) for n in range(3)])
    clock.advance(timedelta(seconds=5))
    expirer = parts.expirer()
    expirer.batch_size = 2
    assert [await expirer.run_once(), await expirer.run_once()] == [0, NEVER]
    assert (await parts.store.jobs.count_jobs(None)).expired == 3


# -- scanner -------------------------------------------------------------------------------------------


async def test_scanner_scans_at_its_interval_when_no_deadline_is_near(parts: Parts, clock: FakeClock) -> None:
    assert await parts.scanner().run_once() == DeadlineScanner.interval_s
    await claim(parts.store, new_job("a", execution_time=clock.now), worker_id="alive")
    later = clock.now + timedelta(minutes=1)
    await parts.store.inserts.insert(
        [new_job("later", execution_time=later, misfire_grace_time=0), new_job("ever")]
    )
    assert await parts.scanner().run_once() == DeadlineScanner.interval_s
    assert await parts.scanner(lease=20).run_once() == 10
    assert parts.calls == []


async def test_scanner_signals_an_expired_lease(parts: Parts, clock: FakeClock) -> None:
    await parts.store.workers.register(new_worker("me"), 600)
    await claim(parts.store, new_job("a"), worker_id="dead")
    scanner = parts.scanner()
    clock.advance(timedelta(seconds=40))
    assert await scanner.run_once() == pytest.approx(20)
    clock.advance(timedelta(seconds=20.5))
    assert await scanner.run_once() == DeadlineScanner.retry_interval_s
    assert parts.calls == ["lease_expired"]
    await rescue(parts)
    assert await statuses(parts.store, "a") == ["pending"]
    assert await scanner.run_once() == DeadlineScanner.interval_s
    assert parts.calls == ["lease_expired", "asked dead", "worker_gone", "due"]


async def test_scanner_scans_at_the_next_deadline_of_a_job(
    parts: Parts, clock: FakeClock, bus: EventBus
) -> None:
    options = json.dumps({DEADLINE: deadline_text(clock.now + timedelta(seconds=7))})
    job = new_job("job", execution_time=clock.now + timedelta(hours=1))
    await parts.store.inserts.insert_extended([ExtendedJob(job, Extras(options=options))])
    scanner, events = parts.scanner(), Recorder(bus)
    assert await scanner.run_once() == pytest.approx(7)
    clock.advance(timedelta(seconds=7, microseconds=1))
    assert await scanner.run_once() == DeadlineScanner.retry_interval_s
    assert [event.job_id for event in events.of(JobDeadlineExceeded)] == ["job"]
    assert await statuses(parts.store, "job") == ["failed"]
    assert await scanner.run_once() == DeadlineScanner.interval_s


async def test_scanner_finds_running_rows_that_no_worker_renews(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await claim(parts.store, new_job("a"), worker_id="me", lease=60)
    await parts.store.inserts.insert([new_job("legacy", priority=1), new_job("by hand", priority=8)])
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'running', worker_id = 'old', attempt = 1, last_heartbeat = $1"
        " WHERE job_id = 'legacy'",
        clock.now - timedelta(seconds=100),
    )
    await parts.store.jobs.set_status("by hand", JobStatus.RUNNING, 10)
    scanner, rescuer = parts.scanner(), parts.rescuer()
    assert await scanner.run_once() == pytest.approx(10)
    clock.advance(timedelta(seconds=11))
    assert await scanner.run_once() == DeadlineScanner.retry_interval_s
    await rescuer.reclaim_now()
    assert await scanner.run_once() == pytest.approx(9)
    clock.advance(timedelta(seconds=10))
    rescuer.scan_jobs()
    await rescuer.run_once()
    assert await statuses(parts.store, "legacy", "by hand", "a") == ["pending", "pending", "running"]
    clock.advance(timedelta(seconds=38))
    await parts.store.workers.renew("me", {}, 600)
    clock.advance(timedelta(seconds=2))
    # It does not know that it holds "a", because the answer was lost.
    await parts.store.workers.renew("me", {}, 600)
    parts.calls.clear()
    await scanner.run_once()
    assert parts.calls == ["lease_expired"]


async def test_scanner_signals_a_job_past_its_misfire_grace_time(parts: Parts, clock: FakeClock) -> None:
    soon = clock.now + timedelta(seconds=5)
    await parts.store.inserts.insert([new_job("a", execution_time=soon, misfire_grace_time=10)])
    scanner, expirer = parts.scanner(), parts.expirer()
    assert await scanner.run_once() == pytest.approx(15)  # it is not even due yet
    clock.advance(timedelta(seconds=15.1))
    assert await scanner.run_once() == DeadlineScanner.retry_interval_s
    assert parts.calls == ["grace_expired"]
    await expirer.run_once()
    assert await statuses(parts.store, "a") == ["expired"]
    assert await scanner.run_once() == DeadlineScanner.interval_s


async def test_scanner_frees_jobs_that_wait_for_others_when_the_edges_are_truncated(
    parts: Parts, pool: asyncpg.Pool
) -> None:
    await parts.store.inserts.insert([new_job("a"), new_job("b")])
    await pool.execute(
        """UPDATE scheduled_jobs SET blocked_on = 'after' WHERE job_id = 'b';
           INSERT INTO scheduler_after (parent_id, child_id) VALUES ('a', 'b')"""
    )
    scanner = parts.scanner()
    await scanner.run_once()
    waiting = "SELECT blocked_on FROM scheduled_jobs WHERE job_id = 'b'"
    assert await pool.fetchval(waiting) == "after"
    await pool.execute("TRUNCATE scheduler_after")
    await scanner.run_once()
    assert await pool.fetchval(waiting) is None


async def test_scanner_handles_rows_without_a_lease_and_infinite_deadlines(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await parts.store.inserts.insert([new_job("a"), new_job("b")])
    await pool.execute("UPDATE scheduled_jobs SET expires_at = 'infinity'")
    assert await parts.scanner().run_once() == DeadlineScanner.interval_s
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'running', worker_id = 'x', attempt = 1 WHERE job_id = 'b'"
    )
    scanner = parts.scanner()
    assert await scanner.run_once() == DeadlineScanner.first_retry_s
    assert await scanner.run_once() == DeadlineScanner.retry_interval_s
    await rescue(parts)
    assert await statuses(parts.store, "b") == ["pending"]
