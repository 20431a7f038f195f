"""Findings about schedules, made for real and resolved by their remedies."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from pg_scheduler import Scheduler, periodic
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import PassFinished
from pg_scheduler.inspect import FindingCode, Severity, Thresholds
from pg_scheduler.inspect.doctor.examination import examine as examine_store
from pg_scheduler.inspect.doctor.schedules import judge_clock_changes, judge_overdue
from pg_scheduler.inspect.store.doctor import OverdueRow, ZonedRow
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.store.workers import InspectedWorker
from pg_scheduler.jobs.worker_report import ReportedHealth
from pg_scheduler.triggers import Cron, Every, Trigger
from tests.inspect.doctor.conftest import Make
from tests.inspect.doctor.support import beat, find, subjects, until
from tests.support.cases import each_case
from tests.support.inside import Connections, Store, worker_of
from tests.support.worker import Recorder

SPRING = datetime(2027, 3, 25, tzinfo=UTC)
AUTUMN = datetime(2027, 10, 28, tzinfo=UTC)


async def work() -> None: ...


async def test_overdue_schedule_is_found_until_a_worker_has_its_task(pool: asyncpg.Pool, make: Make) -> None:
    await Scheduler(pool).schedules.add("doctor.overdue", Every(hours=1), schedule_id="hourly")
    assert await subjects(pool, FindingCode.SCHED_OVERDUE) == []
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = now() - interval '5 minutes'")
    finding = await find(pool, FindingCode.SCHED_OVERDUE)
    assert (finding.subject, finding.severity) == ("hourly", Severity.ERROR)
    assert finding.evidence.endswith("should have fired 5 min ago; no node is alive")
    scheduler = await make()
    finding = await find(pool, FindingCode.SCHED_OVERDUE)
    assert finding.evidence.endswith("no live worker claims its task 'doctor.overdue'")
    await scheduler.shutdown()
    await make(tasks={"doctor.overdue": work})
    await until(pool, FindingCode.SCHED_OVERDUE, [])


async def test_paused_schedule_is_not_overdue(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    await scheduler.schedules.add("doctor.paused", Every(hours=1), schedule_id="paused")
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = now() - interval '5 minutes'")
    assert await subjects(pool, FindingCode.SCHED_OVERDUE) == ["paused"]
    await scheduler.schedules.pause("paused")
    assert await subjects(pool, FindingCode.SCHED_OVERDUE) == []
    await scheduler.schedules.pause("paused", until=datetime.now(UTC) + timedelta(hours=1))
    assert await subjects(pool, FindingCode.SCHED_OVERDUE) == []
    await pool.execute("UPDATE scheduler_schedules SET paused_until = now() - interval '2 minutes'")
    finding = await find(pool, FindingCode.SCHED_OVERDUE)
    assert finding.evidence.endswith("should have fired 2 min ago; no node is alive"), "its pause is to end"


def test_overdue_schedule_of_a_known_task_names_the_kinds_of_its_trigger() -> None:
    worker = InspectedWorker(
        "w1", "host", 1, 0, True, True, False, frozenset({"x"}), {}, ReportedHealth(), datetime.now(UTC), None
    )
    (finding,) = judge_overdue([OverdueRow("a", "x", ["holiday"], 90.0)], [worker])
    assert "a node needs its task and the trigger kinds holiday" in finding.evidence


async def test_schedule_of_an_unknown_task_is_found_until_a_worker_registers_it(
    pool: asyncpg.Pool, make: Make
) -> None:
    scheduler = await make()
    scheduler.register(work, name="doctor.reporting")
    await beat(scheduler)
    await scheduler.schedules.add("doctor.reports", Every(hours=1), schedule_id="own")
    finding = await find(pool, FindingCode.SCHED_UNKNOWN)
    assert (
        finding.evidence
        == "the task 'doctor.reports' of 1 schedule (own) is claimed by none of 1 live worker"
    )
    assert (finding.subject, finding.severity) == ("doctor.reports", Severity.ERROR)
    assert finding.remedy is not None
    assert finding.remedy == (
        "import its module in a worker, or pg-scheduler schedules pause own; or is 'doctor.reporting' its "
        "new name? then @job(name='doctor.reporting', aliases=['doctor.reports'])"
    )
    scheduler.register(work, name="doctor.reports")
    await beat(scheduler)
    assert await subjects(pool, FindingCode.SCHED_UNKNOWN) == []


async def test_declared_schedule_without_a_row_is_found_until_it_is_declared_again(
    pool: asyncpg.Pool, make: Make
) -> None:
    periodic(every=timedelta(hours=1), dedup_key="declared")(work)
    scheduler = await make()
    await pool.execute("UPDATE scheduler_workers SET started_at = now() - interval '1 minute'")
    assert await subjects(pool, FindingCode.SCHED_LOST) == []
    await pool.execute("DELETE FROM scheduler_schedules")
    finding = await find(pool, FindingCode.SCHED_LOST)
    assert (finding.subject, finding.severity) == ("declared", Severity.ERROR)
    assert finding.evidence.endswith("declares the schedule 'declared', which has no row")
    await scheduler.shutdown()
    await make()
    await pool.execute("UPDATE scheduler_workers SET started_at = now() - interval '1 minute'")
    assert await subjects(pool, FindingCode.SCHED_LOST) == []


async def test_schedule_that_another_release_moved_to_its_key_is_not_lost(
    pool: asyncpg.Pool, make: Make
) -> None:
    periodic(every=timedelta(hours=1))(work)
    await make()
    await pool.execute("UPDATE scheduler_workers SET started_at = now() - interval '1 minute'")
    await pool.execute(
        "UPDATE scheduler_schedules SET schedule_id = 'key of the newer release', task = 'its name'"
    )
    assert await subjects(pool, FindingCode.SCHED_LOST) == []
    await pool.execute("UPDATE scheduler_schedules SET retired_at = now()")
    assert len(await subjects(pool, FindingCode.SCHED_LOST)) == 1, "a schedule of an earlier deployment"


async def test_schedule_is_lost_although_another_service_has_one_of_its_function(
    pool: asyncpg.Pool, make: Make
) -> None:
    periodic(every=timedelta(hours=1), job_name="mail.cleanup")(work)
    await make()
    await pool.execute("UPDATE scheduler_workers SET started_at = now() - interval '1 minute'")
    await pool.execute(
        """UPDATE scheduler_schedules SET schedule_id = 'billing', task = 'billing.cleanup',
        names = array_replace(names, 'mail.cleanup', 'billing.cleanup'), module = module || '1'"""
    )
    assert len(await subjects(pool, FindingCode.SCHED_LOST)) == 1


@pytest.mark.parametrize(
    "lose",
    [
        "TRUNCATE scheduled_jobs, scheduler_schedules, scheduler_workers",
        "DELETE FROM scheduler_schedules; DELETE FROM scheduler_workers",
    ],
)
async def test_worker_that_lost_its_row_declares_its_schedules_again(
    pool: asyncpg.Pool, make: Make, lose: str
) -> None:
    periodic(every=timedelta(hours=1), dedup_key="declared")(work)
    scheduler = await make()
    seen = Recorder(scheduler)
    await pool.execute(lose)
    await beat(scheduler)
    passes = len(seen.of(PassFinished, service="planner"))
    while await pool.fetchval("SELECT count(*) FROM scheduler_schedules") == 0:
        passes += 1
        await seen.until(PassFinished, passes, service="planner")
    rows = await pool.fetch("SELECT schedule_id, owner FROM scheduler_schedules")
    assert [tuple(row) for row in rows] == [("declared", "code")]


async def test_broken_schedule_is_found_until_it_has_a_valid_trigger(pool: asyncpg.Pool, make: Make) -> None:
    scheduler = Scheduler(pool)
    await scheduler.schedules.add("doctor.broken", Every(hours=1), schedule_id="broken")
    await pool.execute(
        """UPDATE scheduler_schedules
           SET trigger = '{"kind": "every", "every": "nonsense"}', next_fire_at = now() - interval '1 s'"""
    )
    await make(tasks={"doctor.broken": work})
    await until(pool, FindingCode.SCHED_BROKEN, ["broken"])
    finding = await find(pool, FindingCode.SCHED_BROKEN)
    assert "the planner paused the schedule 'broken': " in finding.evidence
    await scheduler.schedules.update("broken", trigger=Every(hours=2))
    await scheduler.schedules.resume("broken")
    assert await subjects(pool, FindingCode.SCHED_BROKEN) == []


async def test_schedule_that_fired_ahead_of_the_clock_is_found_until_a_planner_has_computed_it_again(
    pool: asyncpg.Pool, make: Make
) -> None:
    scheduler = Scheduler(pool)
    start = datetime.now(UTC) + timedelta(days=700)
    await scheduler.schedules.add("doctor.ahead", Every(hours=1), schedule_id="later", start=start)
    await scheduler.schedules.add("doctor.ahead", Every(hours=1), schedule_id="ahead")
    assert await subjects(pool, FindingCode.SCHED_AHEAD) == []
    await pool.execute(
        """UPDATE scheduler_schedules SET last_fire_at = now() + interval '10 years',
               next_fire_at = now() + interval '10 years 1 hour'
           WHERE schedule_id = 'ahead'"""
    )
    assert await subjects(pool, FindingCode.SCHED_AHEAD) == ["ahead"]
    await make(tasks={"doctor.ahead": work})
    await until(pool, FindingCode.SCHED_AHEAD, [])
    schedule = await scheduler.schedules.get("ahead")
    assert schedule is not None
    assert schedule.next_fire_at is not None
    assert schedule.next_fire_at <= datetime.now(UTC) + timedelta(hours=1)


async def test_schedules_that_fire_in_the_same_second_are_found_until_they_differ(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    for number in range(4):
        await scheduler.schedules.add("doctor.herd", Cron("0 3 * * *"), schedule_id=f"s{number}")
    assert await subjects(pool, FindingCode.SCHED_HERD, herd=4) == []
    finding = await find(pool, FindingCode.SCHED_HERD, herd=3)
    assert finding.severity is Severity.INFO
    assert finding.evidence.startswith("4 schedules fire at ")
    assert finding.evidence.endswith(": s0, s1, s2, s3")
    await scheduler.schedules.update("s3", trigger=Cron("1 3 * * *"))
    assert await subjects(pool, FindingCode.SCHED_HERD, herd=3) == []


async def test_skipped_fire_time_is_found_until_the_schedule_has_another_one(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    store = InspectionStore(Store(Connections(pool), clock=FakeClock(SPRING)))
    await scheduler.schedules.add("doctor.dst", Cron("30 2 * * *", "Europe/Berlin"), schedule_id="nightly")
    (finding,) = (await examine_store(store, ["SCHED-DST"], Thresholds())).findings
    assert (finding.subject, finding.severity) == ("nightly", Severity.INFO)
    assert finding.evidence.endswith(
        "02:30 does not exist on 2027-03-28 in Europe/Berlin; it fires at 2027-03-28 03:00"
    )
    assert finding.remedy is not None
    assert finding.remedy.startswith("pg-scheduler schedules preview nightly")
    await scheduler.schedules.update("nightly", trigger=Cron("30 3 * * *", "Europe/Berlin"))
    assert (await examine_store(store, ["SCHED-DST"], Thresholds())).findings == ()


async def test_retired_schedules_are_in_no_findings_of_fire_times(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    for schedule_id in ("a", "b"):
        trigger = Cron("30 2 * * *", "Europe/Berlin")
        await scheduler.schedules.add("doctor.retired", trigger, schedule_id=schedule_id)
    await pool.execute("UPDATE scheduler_schedules SET updated_at = '2028-01-01'")
    store = InspectionStore(Store(Connections(pool), clock=FakeClock(SPRING)))
    codes = ["SCHED-DST", "SCHED-HERD", "SCHED-AHEAD"]
    findings = (await examine_store(store, codes, Thresholds(herd=1))).findings
    assert {finding.code.value for finding in findings} == {*codes}
    await pool.execute("UPDATE scheduler_schedules SET retired_at = now()")
    assert (await examine_store(store, codes, Thresholds(herd=1))).findings == ()


@each_case(
    ("trigger", "now", "effects"),
    [
        (Cron("30 2 * * *", "Europe/Berlin"), AUTUMN, ["02:30 occurs twice on 2027-10-31"]),
        (Cron("30 1 * * *", "America/New_York"), datetime(2027, 11, 4, tzinfo=UTC), ["01:30 occurs twice"]),
        (Cron("30 2 * * *", "Europe/Berlin"), SPRING - timedelta(days=10), []),
        (Cron("0 3 * * *", "Europe/Berlin"), SPRING, []),
        (Cron("30 2 * * 3", "Europe/Berlin"), SPRING, []),
        (Cron("30 2 * * *", "Asia/Kolkata"), SPRING, []),
        (Cron("30 2 * * *"), SPRING, []),
        (Cron("0 * * * *", "Europe/Berlin"), SPRING, ["02:00 does not exist"]),
        (Cron("* * * * *", "Europe/Berlin"), SPRING, []),
    ],
)
def test_clock_change_moves_only_fire_times_in_the_hour_of_the_change(
    trigger: Trigger, now: datetime, effects: list[str]
) -> None:
    found = list(judge_clock_changes(ZonedRow("a", json.dumps(trigger.to_json()), now), now))
    assert len(found) == len(effects)
    assert all(effect in each.evidence for effect, each in zip(effects, found, strict=True))


@pytest.mark.parametrize(
    "text", ["[", '{"kind": "cron", "timezone": "Mars/Base"}', '{"timezone": "Europe/Berlin"}']
)
def test_invalid_triggers_are_left_to_the_planner(text: str) -> None:
    assert list(judge_clock_changes(ZonedRow("a", text, SPRING), SPRING)) == []


async def test_node_that_does_not_know_the_zone_of_a_schedule_is_named(
    pool: asyncpg.Pool, make: Make
) -> None:
    scheduler = await make(tasks={"doctor.zoned": work})
    await scheduler.schedules.add("doctor.zoned", Cron("0 * * * *", "Europe/Berlin"), schedule_id="zoned")
    assert await subjects(pool, FindingCode.SCHED_ZONE) == []
    await pool.execute(
        "UPDATE scheduler_schedules SET next_fire_at = now() - interval '5 minutes', "
        "trigger = jsonb_set(trigger, '{timezone}', '\"US/Lost\"')"
    )
    await worker_of(scheduler).planner.run_once()
    await beat(scheduler)
    finding = await find(pool, FindingCode.SCHED_ZONE)
    assert (finding.subject, finding.severity) == ("zoned", Severity.ERROR)
    assert "'US/Lost'" in finding.evidence
    assert scheduler.worker_id in finding.evidence
    assert finding.evidence.endswith("no live worker plans it")
    overdue = await find(pool, FindingCode.SCHED_OVERDUE)
    assert "without its time zone 'US/Lost'" in overdue.evidence
    await make()
    finding = await find(pool, FindingCode.SCHED_ZONE)
    assert (finding.severity, finding.evidence.endswith("other nodes plan it")) == (Severity.WARNING, True)
