"""Findings about jobs, made for real and resolved by their remedies."""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.clock import FakeClock
from pg_scheduler.inspect import FindingCode, Inspector, Severity
from pg_scheduler.inspect.doctor.jobs import judge_failures
from pg_scheduler.inspect.store.doctor import FailingRow
from tests.inspect.doctor.conftest import Make
from tests.inspect.doctor.support import beat, examine, find, subjects, until
from tests.support import inside
from tests.support.inside import (
    BOUNDS,
    OUTCOMES,
    Connections,
    ExitCode,
    Histogram,
    JobFigures,
    Store,
    quarantine_error,
    run_command,
    store_of,
)
from tests.support.worker import Gate
from tests.support.world import HOUR, NOW, World


async def work() -> None: ...


async def test_late_jobs_are_found_until_a_slot_is_free(pool: asyncpg.Pool, make: Make) -> None:
    scheduler = await make(max_concurrent_jobs=1)
    gate = Gate()
    scheduler.register(gate.job, name="doctor.late")
    await scheduler.enqueue("doctor.late")
    await gate.wait_begun()
    await scheduler.enqueue("doctor.late", job_id="second")
    await beat(scheduler)
    finding = await find(pool, FindingCode.LATE, late_s=0)
    assert (finding.subject, finding.severity) == ("doctor.late", Severity.WARNING)
    assert finding.evidence.startswith("1 due job of 'doctor.late' not started, the oldest for ")
    assert await subjects(pool, FindingCode.LATE) == [], "it is not late yet"
    gate.open.set()
    await until(pool, FindingCode.LATE, [], late_s=0)


async def test_late_jobs_with_free_slots_are_to_be_explained(pool: asyncpg.Pool, world: World) -> None:
    await world.worker(names=["doctor.free"])
    due = datetime.now(UTC) - timedelta(minutes=5)
    scheduler = Scheduler(pool)
    await scheduler.schedule_job("doctor.free", due, {}, misfire_grace_time=None)
    finding = await find(pool, FindingCode.LATE)
    assert finding.evidence.endswith("the oldest for 5 min; 1 of 2 slots free")
    assert finding.remedy is not None
    assert "pg-scheduler jobs explain" in finding.remedy
    await pool.execute("UPDATE scheduler_workers SET running_jobs = 2")
    finding = await find(pool, FindingCode.LATE)
    assert finding.remedy is not None
    assert finding.remedy.startswith("add workers")
    await scheduler.tasks.pause("doctor.free")
    assert await subjects(pool, FindingCode.LATE) == []


async def test_late_job_names_what_runs_and_what_was_due_before(pool: asyncpg.Pool, world: World) -> None:
    await world.worker(names=["doctor.first", "doctor.second"], running_jobs=2)
    scheduler, due = Scheduler(pool), datetime.now(UTC) - timedelta(minutes=9)
    for job_id, name in (("a", "doctor.first"), ("b", "doctor.first"), ("c", "doctor.second")):
        await scheduler.schedule_job(name, due, {}, job_id=job_id, misfire_grace_time=None)
        due += timedelta(minutes=2)
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'running', worker_id = 'w1', attempt = 1 WHERE job_id = 'a'"
    )
    _, finding = (await examine(pool, FindingCode.LATE)).findings
    assert finding.evidence == (
        "1 due job of 'doctor.second' not started, the oldest for 5 min; 0 of 2 slots free; "
        "running: 1 of 'doctor.first'; due before: 1 of 'doctor.first'"
    )
    await scheduler.cancel_job("b")
    (finding,) = (await examine(pool, FindingCode.LATE)).findings
    assert finding.evidence.endswith("running: 1 of 'doctor.first'")


async def test_numbers_of_due_jobs_are_marked_if_counting_stopped(
    pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, backlog_rows=4)
    await world.worker(names=["doctor.first", "doctor.second"])
    scheduler, due = Scheduler(pool), datetime.now(UTC) - timedelta(minutes=9)
    for name in ("first", "second", "unknown", "unknown", "unknown"):
        await scheduler.schedule_job(f"doctor.{name}", due, {}, misfire_grace_time=None)
        due += timedelta(minutes=1)
    unknown, first, second = (await examine(pool, FindingCode.LATE, FindingCode.NAME_UNKNOWN)).findings
    assert unknown.evidence.startswith("2+ due jobs of 'doctor.unknown' not started")
    assert first.evidence.startswith("1+ due jobs of 'doctor.first' not started")
    assert second.evidence.endswith("; due before: 1+ of 'doctor.first'")
    await pool.execute("UPDATE scheduler_workers SET wanted = 'drain', state = 'draining'")
    finding = await find(pool, FindingCode.WORKER_DRAINING)
    assert finding.evidence.startswith("2+ due jobs of ")


async def test_unknown_name_is_found_until_a_worker_declares_it_as_an_alias(
    pool: asyncpg.Pool, make: Make
) -> None:
    scheduler = await make()
    scheduler.register(work, name="doctor.send_mail")
    await scheduler.schedule_job("doctor.sendmail", datetime.now(UTC), {}, misfire_grace_time=None)
    await scheduler.shutdown()
    assert await subjects(pool, FindingCode.NAME_UNKNOWN) == [], "no worker at all is WORKER-NONE"
    await scheduler.start()
    finding = await find(pool, FindingCode.NAME_UNKNOWN)
    assert (finding.subject, finding.severity) == ("doctor.sendmail", Severity.ERROR)
    assert finding.remedy is not None
    assert finding.remedy == (
        "import the module of the function in a worker; or is 'doctor.send_mail' its new name? then "
        "@job(name='doctor.send_mail', aliases=['doctor.sendmail'])"
    )
    scheduler.register(work, name="doctor.send_mail", aliases=["doctor.sendmail"])
    await beat(scheduler)
    await until(pool, FindingCode.NAME_UNKNOWN, [])


async def test_remedy_of_an_unknown_name_suggests_neither_an_alias_nor_a_name_that_is_little_alike(
    pool: asyncpg.Pool,
    world: World,
) -> None:
    names = ["transcode", "media.transcode", "shop.fraud.score"]
    settings = json.dumps({"aliases": {"shop.fraud.score": "media.transcode"}})
    await world.worker(names=names, settings=settings)
    await world.job("1", "fraud.score")
    finding = await find(pool, FindingCode.NAME_UNKNOWN)
    assert finding.remedy == "import the module of the function in a worker"


async def test_quarantined_jobs_are_found_until_they_are_retried(pool: asyncpg.Pool, dsn: str) -> None:
    scheduler = Scheduler(pool)
    for job_id, name in (("a", "doctor.crash"), ("b", "doctor.crash"), ("c", "doctor.victim")):
        await scheduler.schedule_job(name, datetime.now(UTC), {}, job_id=job_id)
    await pool.execute(
        "UPDATE scheduled_jobs "
        "SET status = 'failed', finished_at = now(), crash_count = 3, error_message = $1",
        quarantine_error(3),
    )
    crashed, victim = (await examine(pool, FindingCode.QUARANTINE)).findings
    assert (crashed.subject, victim.subject) == ("doctor.crash", "doctor.victim")
    assert crashed.evidence.endswith(": b, a; c ran on the same worker")
    assert victim.evidence.endswith(": c; a, b ran on the same worker")
    assert (crashed.remedy or "").endswith("pg-scheduler jobs retry b a")
    for finding in (crashed, victim):
        words = shlex.split((finding.remedy or "").partition("then pg-scheduler ")[2])
        assert await asyncio.to_thread(run_command, [*words, "--yes", "--dsn", dsn]) == ExitCode.DONE
    assert await subjects(pool, FindingCode.QUARANTINE) == []


async def test_quarantine_is_not_searched_without_its_index(pool: asyncpg.Pool) -> None:
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    diagnosis = await examine(pool, FindingCode.QUARANTINE)
    assert (diagnosis.made, len(diagnosis.not_made)) == ((), 1)
    assert "scheduled_jobs_unsuccessful" in diagnosis.not_made[0].reason


def figures(**outcomes: int) -> JobFigures:
    ended = tuple(outcomes.get(outcome, 0) for outcome in OUTCOMES)
    return JobFigures(started=sum(ended), ended=ended)


async def test_failing_name_is_found_until_its_attempts_complete(pool: asyncpg.Pool, make: Make) -> None:
    scheduler = await make()
    statistics = store_of(scheduler).statistics
    assert await statistics.add(scheduler.worker_id, 1, {"doctor.fails": figures(completed=2, failed=8)})
    finding = await find(pool, FindingCode.FAILING)
    assert finding.subject == "doctor.fails"
    assert finding.evidence == (
        "8 of 10 attempts of 'doctor.fails' failed in the last 15 minutes; none ended in up to a week before"
    )
    assert finding.remedy == "pg-scheduler jobs errors --since 15m"
    assert await subjects(pool, FindingCode.FAILING, failures=9) == []
    assert await statistics.add(scheduler.worker_id, 2, {"doctor.fails": figures(completed=90)})
    assert await subjects(pool, FindingCode.FAILING) == []


@pytest.mark.parametrize("outcome", ["retried", "lost"])
async def test_task_whose_attempts_all_fail_is_found_although_its_jobs_are_retried(
    pool: asyncpg.Pool, world: World, outcome: str
) -> None:
    await world.worker()
    counts = {"completed": 500, outcome: 500, "snoozed": 4000}
    assert await Store(Connections(pool)).statistics.add("w1", 1, {"doctor.bank": figures(**counts)})
    finding = await find(pool, FindingCode.FAILING)
    assert finding.evidence.startswith("500 of 1,000 attempts of 'doctor.bank' failed in the last 15 minutes")
    assert finding.remedy == (
        "pg-scheduler jobs list name:doctor.bank, then with the id that it prints: pg-scheduler jobs show ID"
    )


async def test_expired_jobs_are_found_although_none_of_their_attempts_failed(
    pool: asyncpg.Pool, world: World
) -> None:
    await world.worker()
    assert await Store(Connections(pool)).statistics.add("w1", 1, {"doctor.late": figures(expired=3)})
    finding = await find(pool, FindingCode.JOBS_EXPIRED)
    assert finding.evidence == "3 jobs of 'doctor.late' expired in the last 15 minutes"
    assert await subjects(pool, FindingCode.JOBS_EXPIRED, expired=4) == []
    assert await subjects(pool, FindingCode.FAILING) == []
    status = await Inspector(pool).status()
    assert {area.area: area.severity for area in status.areas}["results"] == Severity.WARNING


async def test_causes_of_expired_jobs_are_counted(pool: asyncpg.Pool, world: World) -> None:
    await world.worker()
    assert await Store(Connections(pool)).statistics.add("w1", 1, {"doctor.late": figures(expired=7)})
    ended: dict[str, Any] = {
        "name": "doctor.late",
        "status": "expired",
        "error_message": "it is a text for people",
        "ended": NOW,
    }
    for number, key in enumerate(("42", "43", "")):
        waited = {"for": f"limit:bank:{key}", "until": "12:00"}
        await world.job(f"limited:{number}", **ended, options={"expiry": "waited", "waited": waited})
    await world.jobs(2, **ended, options={"expiry": "no_worker"})
    await world.job("later release", **ended, options={"expiry": "strike"})
    await world.job("old", **{**ended, "ended": -HOUR}, options={"expiry": "paused"})
    await world.job("other", **{**ended, "name": "doctor.other"}, options={"expiry": "paused"})
    finding = await find(pool, FindingCode.JOBS_EXPIRED)
    assert finding.evidence == (
        "7 jobs of 'doctor.late' expired in the last 15 minutes: "
        "3 waited for the limit 'bank', 2 had no worker with this task"
    )
    assert finding.own_evidence == "7 jobs of 'doctor.late' expired in the last 15 minutes"
    assert finding.objects == (("limit", "bank"), ("task", "doctor.late"))


async def test_failures_are_compared_with_those_of_the_week_before(pool: asyncpg.Pool, world: World) -> None:
    await world.worker()

    async def count(batch: int, ago: timedelta, **outcomes: int) -> None:
        store = Store(Connections(pool), clock=FakeClock(datetime.now(UTC) - ago))
        assert await store.statistics.add("w1", batch, {"doctor.week": figures(**outcomes)})

    await count(1, timedelta(days=9), failed=900)
    await count(2, timedelta(days=2), completed=90, failed=10)
    await count(3, timedelta(0), completed=6, failed=5)
    assert await Store(Connections(pool)).statistics.fold(60, 600, 1, 99) == 2
    finding = await find(pool, FindingCode.FAILING)
    assert finding.evidence == (
        "5 of 11 attempts of 'doctor.week' failed in the last 15 minutes; 10.0 % of 100 did in the 2 d before"
    )
    await count(4, timedelta(hours=1), failed=30)
    assert await subjects(pool, FindingCode.FAILING) == [], "it fails as often all week"


async def test_workers_that_count_nothing_are_named_until_statistics_are_on(
    pool: asyncpg.Pool, make: Make
) -> None:
    codes = (FindingCode.FAILING, FindingCode.JOBS_EXPIRED, FindingCode.STUCK)
    silent = await make(statistics=False)
    diagnosis = await examine(pool, *codes)
    assert [each.code for each in diagnosis.not_made] == list(codes)
    reason = f"statistics are off (statistics=False): {silent.worker_id} on "
    assert all(each.reason.startswith(reason) for each in diagnosis.not_made)
    await silent.shutdown()
    await make()
    assert (await examine(pool, *codes)).not_made == ()


def test_name_that_always_failed_as_often_is_no_finding() -> None:
    assert list(judge_failures([FailingRow("x", 5, 11, 5, 500, 1000, 9.0)], 5, 0.1)) == []
    assert len(list(judge_failures([FailingRow("x", 5, 11, 5, 100, 1000, 9.0)], 5, 0.1))) == 1


async def test_lasting_outage_remains_a_finding_of_doctor_and_status(
    pool: asyncpg.Pool, world: World
) -> None:
    await world.worker()
    earlier = Store(Connections(pool), clock=FakeClock(datetime.now(UTC) - timedelta(hours=1)))
    assert await earlier.statistics.add("w1", 1, {"doctor.outage": figures(completed=5, failed=900)})
    statistics = Store(Connections(pool)).statistics
    assert await statistics.add("w1", 2, {"doctor.outage": figures(completed=4, failed=4)})
    assert await subjects(pool, FindingCode.FAILING) == [], "fewer than the minimum"
    assert await statistics.add("w1", 3, {"doctor.outage": figures(completed=4, failed=4)})
    assert await subjects(pool, FindingCode.FAILING) == ["doctor.outage"]
    status = await Inspector(pool).status()
    assert {area.area: area.severity for area in status.areas}["results"] == Severity.WARNING


async def test_job_that_runs_unusually_long_is_found_until_it_ends(pool: asyncpg.Pool, make: Make) -> None:
    scheduler = await make()
    gate = Gate()
    scheduler.register(gate.job, name="doctor.stuck")
    buckets = tuple(100 if bound == 0.0001 else 0 for bound in (*BOUNDS, None))
    fast = JobFigures(started=100, durations=Histogram(buckets, 0.005))
    assert await store_of(scheduler).statistics.add(scheduler.worker_id, 1, {"doctor.stuck": fast})
    await scheduler.enqueue("doctor.stuck", job_id="long")
    await gate.wait_begun()
    await until(pool, FindingCode.STUCK, ["long"], stuck_s=0.01)
    assert await subjects(pool, FindingCode.STUCK) == []
    finding = await find(pool, FindingCode.STUCK, stuck_s=0.01)
    assert finding.remedy == "pg-scheduler jobs explain long; give such jobs a timeout="
    gate.open.set()
    await until(pool, FindingCode.STUCK, [], stuck_s=0.01)


async def test_job_beyond_its_lease_is_found_until_it_is_reclaimed(pool: asyncpg.Pool, make: Make) -> None:
    await Scheduler(pool).schedule_job("doctor.nobody", datetime.now(UTC), {}, job_id="lost")
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'running', worker_id = 'gone', attempt = 1, started_at = now(), "
        "lease_until = now() - interval '5 minutes', last_heartbeat = now() - interval '6 minutes'"
    )
    finding = await find(pool, FindingCode.STUCK)
    assert finding.evidence == "the lease of 'lost' ('doctor.nobody') on worker gone expired 5 min ago"
    await (await make()).recover_orphaned_jobs()
    await until(pool, FindingCode.STUCK, [])


async def test_large_arguments_are_found_until_the_job_is_gone(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    later = datetime.now(UTC) + timedelta(days=1)
    data = {"args": [secrets.token_hex(100_000)]}
    await scheduler.schedule_job("doctor.large", later, data, job_id="large")
    await scheduler.schedule_job("doctor.small", later, {"args": ["x" * 1000]})
    finding = await find(pool, FindingCode.PAYLOAD)
    assert (finding.subject, finding.severity) == ("doctor.large", Severity.WARNING)
    assert finding.evidence.endswith("kB of arguments, such as 'large'")
    assert await subjects(pool, FindingCode.PAYLOAD, payload_bytes=10**7) == []
    await scheduler.cancel_job("large")
    assert await subjects(pool, FindingCode.PAYLOAD) == []
