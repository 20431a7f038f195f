"""The test kit runs jobs by a virtual clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from unittest.mock import ANY

import asyncpg
import pytest

from pg_scheduler import (
    JobSpec,
    JobStatus,
    Limit,
    NotRunningError,
    RetryPolicy,
    Share,
    VacuumConfig,
    VacuumPolicy,
    VacuumTrigger,
    current_job,
    job,
    periodic,
)
from pg_scheduler.events import JobBlocked
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Cron, Every
from tests.support import inside
from tests.support.inside import worker_of

Pool = asyncpg.Pool

START = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


class Log(list[Any]):
    """What the job ``note`` was called with."""

    async def note(self, *args: Any) -> None:
        self.append(args[0] if len(args) == 1 else args)


def at_start(pool: Pool, **settings: Any) -> TestScheduler:
    return TestScheduler(pool, now=START, **settings)


async def fail() -> None:
    raise ValueError("no")


async def test_run_until_runs_each_job_at_its_due_time(pool: Pool) -> None:
    seen: list[tuple[datetime, datetime]] = []

    async def look() -> None:
        seen.append((t.now, current_job().execution_time))

    async with at_start(pool) as t:
        for days in (3, 1, 40):
            await t.scheduler.enqueue(look, delay=days * DAY)
        assert await t.run_until(30 * DAY) == 2
        assert seen == [(START + DAY, START + DAY), (START + 3 * DAY, START + 3 * DAY)]
        assert t.now == START + 30 * DAY
        assert t.ran(look) == 2
        assert await t.run_until(START + 40 * DAY) == 1, "the last instant counts"


async def test_jobs_run_one_at_a_time_by_priority_time_and_id(pool: Pool) -> None:
    from pg_scheduler import JobPriority

    log = Log()
    inside = 0

    async def step(name: str) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0)
        log.append(name)
        inside -= 1

    async with at_start(pool) as t:
        for name in ("b", "a"):
            await t.scheduler.enqueue(step, args=(name,), job_id=name)
        await t.scheduler.enqueue(step, args=("late",), delay=HOUR)
        await t.scheduler.enqueue(step, args=("first",), priority=JobPriority.HIGH)
        await t.run_until(HOUR)
    assert log == ["first", "a", "b", "late"]


async def test_concurrency_lets_jobs_wait_for_each_other(pool: Pool) -> None:
    meeting = asyncio.Barrier(2)

    async def meet() -> None:
        await meeting.wait()

    async with at_start(pool, concurrency=2) as t:
        for _ in range(2):
            await t.scheduler.enqueue(meet)
        assert await t.drain() == 2


async def test_job_can_wait_for_a_job_that_it_enqueues_in_another_slot(pool: Pool) -> None:
    done = asyncio.Event()

    async def inner() -> None:
        done.set()

    async def outer() -> None:
        await current_job().scheduler.enqueue(inner)
        await done.wait()

    async with at_start(pool, concurrency=2) as t:
        await t.scheduler.enqueue(outer)
        assert await t.drain() == 2


async def test_drain_runs_what_jobs_make_due_and_leaves_the_clock(pool: Pool) -> None:
    async def again(left: int) -> None:
        if left:
            await current_job().scheduler.enqueue(again, args=(left - 1,))
        else:
            await current_job().scheduler.enqueue(again, args=(0,), delay=1)

    async with at_start(pool) as t:
        await t.scheduler.enqueue(again, args=(3,))
        assert await t.drain() == 4
        assert t.now == START
        assert len(t.jobs(again, status="pending")) == 1


async def test_run_one_returns_the_job_after_its_attempt(pool: Pool) -> None:
    log = Log()
    async with at_start(pool) as t:
        assert await t.run_one() is None
        for number in range(2):
            await t.scheduler.enqueue(log.note, args=(number,))
        await t.scheduler.enqueue(fail)
        first = await t.run_one()
        assert first is not None
        assert (first.status, log) == (JobStatus.COMPLETED, [0])
        second = await t.run_one()
        assert second is not None
        assert (second.status, log) == (JobStatus.COMPLETED, [0, 1])
        failed = await t.run_one()
        assert failed is not None
        assert failed.status is JobStatus.FAILED
        assert failed.error_message == "ValueError: no"
        assert await t.run_one() is None


async def test_retries_follow_their_delays_without_jitter(pool: Pool) -> None:
    times: list[datetime] = []

    async def flaky() -> None:
        times.append(t.now)
        raise ValueError("no")

    async with at_start(pool, misfire_grace_time=None) as t:
        await t.scheduler.enqueue(flaky, max_retries=3)
        assert await t.run_until(HOUR) == 4
        waits = [later - earlier for earlier, later in pairwise(times)]
        assert waits == [timedelta(minutes=1), timedelta(minutes=2), timedelta(minutes=4)]
        assert [each.status for each in t.jobs(flaky)] == [JobStatus.FAILED]
        assert t.ran(flaky) == 4, "failed attempts count"


async def test_own_retry_policy_of_a_task_has_no_jitter(pool: Pool) -> None:
    async with at_start(pool, misfire_grace_time=None) as t:
        t.scheduler.register(fail, retry=RetryPolicy(base=HOUR, factor=1, maximum=DAY, jitter=0.9))
        await t.scheduler.enqueue(fail, max_retries=3)
        for hour in (1, 2, 3):
            await t.drain()
            t.assert_scheduled(fail, at=START + hour * HOUR)
            await t.run_until(START + hour * HOUR)
        assert t.ran(fail) == 4


async def test_own_retry_policy_is_used(pool: Pool) -> None:
    policy = RetryPolicy(base=timedelta(days=2), maximum=timedelta(days=2), jitter=0)
    async with at_start(pool, retry_policy=policy) as t:
        await t.scheduler.enqueue(fail, max_retries=1)
        await t.run_until(DAY)
        t.assert_scheduled(fail, at=START + 2 * DAY)
        await t.run_until(DAY)
        assert t.ran(fail) == 2


@pytest.mark.slow
async def test_daily_schedule_fires_through_the_nights_of_the_clock_changes(pool: Pool) -> None:
    fired: list[datetime] = []

    @periodic(cron="30 2 * * *", timezone="Europe/Berlin", dedup_key="nightly")
    async def nightly() -> None:
        fired.append(current_job().execution_time)

    async with TestScheduler(pool, now=datetime(2030, 3, 29, 12, tzinfo=UTC)) as t:
        await t.run_until(timedelta(days=4))
        assert fired[:3] == [
            datetime(2030, 3, 30, 1, 30, tzinfo=UTC),
            datetime(2030, 3, 31, 1, 0, tzinfo=UTC),  # 02:30 does not exist: at the end of the gap
            datetime(2030, 4, 1, 0, 30, tzinfo=UTC),
        ]
        fired.clear()
        await t.run_until(datetime(2030, 10, 26, 12, tzinfo=UTC))
        fired.clear()
        await t.run_until(timedelta(days=2))
        assert fired == [
            datetime(2030, 10, 27, 0, 30, tzinfo=UTC),  # the first of the two
            datetime(2030, 10, 28, 1, 30, tzinfo=UTC),
        ]


async def test_daily_schedule_with_a_job_of_forty_seconds_runs_once_a_day(pool: Pool) -> None:
    started: list[datetime] = []

    async def nightly() -> None:
        started.append(t.now)
        await t.block(40)

    async with at_start(pool) as t:
        t.scheduler.register(nightly, name="nightly")
        await t.scheduler.schedules.add("nightly", Cron("0 3 * * *"), schedule_id="nightly")
        await t.run_until(10 * DAY)
        assert started == [START + n * DAY + 3 * HOUR for n in range(10)]


async def test_one_job_runs_for_fire_times_missed_while_the_clock_advanced(pool: Pool) -> None:
    fired: list[datetime] = []

    @periodic(every=HOUR, dedup_key="hourly")
    async def hourly() -> None:
        fired.append(t.now)

    async with at_start(pool) as t:
        await t.run_until(2 * HOUR)
        assert len(fired) == 2
        t.advance(10.5 * HOUR)
        await t.drain()
        assert fired[2:] == [START + 12.5 * HOUR]
        await t.run_until(timedelta(minutes=30))
        assert fired[3:] == [START + 13 * HOUR]
        assert len(t.jobs(hourly)) == 4


async def test_all_due_schedules_fire_when_they_take_several_passes_of_the_planner(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, planned_rows=1)
    log = Log()
    async with at_start(pool) as t:
        t.scheduler.register(log.note, name="note")
        for name in "abc":
            await t.scheduler.schedules.add("note", Every(hours=1), schedule_id=name, args=(name,))
        await t.run_until(HOUR)
    assert sorted(log) == ["a", "b", "c"]


async def test_worker_without_planning_leaves_schedules_to_other_nodes(pool: Pool) -> None:
    log = Log()
    async with at_start(pool, role="worker") as t:
        t.scheduler.register(log.note, name="note")
        await t.scheduler.schedules.add("note", Every(hours=1), schedule_id="hourly", args=("fired",))
        await t.scheduler.enqueue("note", args=("enqueued",))
        await t.run_until(2 * HOUR)
    assert log == ["enqueued"]


async def test_tasks_with_limits_run_beside_others(pool: Pool) -> None:
    log = Log()

    async def limited(name: str) -> None:
        log.append(name)

    async with at_start(pool, concurrency=3) as t:
        t.scheduler.register(limited, limits=[Limit(max_running=1)])
        for name in "abc":
            await t.scheduler.enqueue(limited, args=(name,))
        await t.scheduler.enqueue(log.note, args=("free",))
        assert await t.drain() == 4
        assert sorted(log) == ["a", "b", "c", "free"]
        assert t.ran(limited) == 3


async def test_tenants_of_a_share_take_turns_by_the_virtual_clock(pool: Pool) -> None:
    log = Log()
    async with at_start(pool) as t:
        t.scheduler.register(log.note, share=Share(key=lambda tenant: tenant))
        for tenant in ("a", "a", "a", "b"):
            await t.scheduler.enqueue(log.note, args=(tenant,))
        await t.scheduler.enqueue(log.note, args=("later",), delay=HOUR)
        assert await t.drain() == 4
        assert log == ["a", "b", "a", "a"]
        assert await t.run_until(2 * HOUR) == 1
        assert log[-1] == "later"


async def test_jobs_of_a_sequence_run_in_their_order_by_the_virtual_clock(pool: Pool) -> None:
    log = Log()
    async with at_start(pool) as t:
        t.scheduler.register(log.note, sequence=lambda name: name[0])
        for name in ("a1", "a2", "b1", "a3"):
            await t.scheduler.enqueue(log.note, args=(name,))
        await t.scheduler.enqueue(log.note, args=("a4",), delay=HOUR)
        assert await t.drain() == 4
        assert [name for name in log if name[0] == "a"] == ["a1", "a2", "a3"]
        assert await t.run_until(2 * HOUR) == 1
        assert log[-1] == "a4"


async def test_job_runs_in_place_of_one_that_ended_while_it_was_blocked(pool: Pool) -> None:
    """The claim that the limit refuses takes along the result of the attempt that ends meanwhile."""
    log = Log()

    async def limited(name: str) -> None:
        log.append(name)
        while len(log) < 2 and not blocked.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)

    async with at_start(pool, concurrency=3) as t:
        blocked = asyncio.Event()
        t.scheduler.subscribe(lambda _: blocked.set(), JobBlocked)
        t.scheduler.register(limited, limits=[Limit(max_running=1)])
        for name in "ab":
            await t.scheduler.enqueue(limited, args=(name,), job_id=name)
        assert await t.drain() == 2
    assert log == ["a", "b"]


async def test_run_one_runs_the_next_job_that_its_limits_admit(pool: Pool) -> None:
    log = Log()
    async with at_start(pool, misfire_grace_time=None) as t:
        t.scheduler.register(log.note, limits=[Limit(max_starts=1, per=HOUR, key=lambda name: name[0])])
        for n, name in enumerate(("a1", "a2", "b1")):
            await t.scheduler.schedule(log.note, execution_time=START - DAY + n * HOUR, args=(name,))
        for expected in ("a1", "b1"):
            done = await t.run_one()
            assert done is not None
            assert done.args == (expected,)
        assert await t.run_one() is None
        assert log == ["a1", "b1"]


@pytest.mark.parametrize(
    ("limit", "hours"),
    [
        (Limit(max_starts=2, per=2 * HOUR), [0, 0, 2, 2, 4]),
        (Limit(max_starts=2, per=2 * HOUR, spread=True), [0, 1, 2, 3, 4]),
    ],
)
async def test_rates_follow_the_virtual_clock(pool: Pool, limit: Limit, hours: list[int]) -> None:
    starts: list[datetime] = []

    async def limited() -> None:
        starts.append(t.now)

    async with at_start(pool, misfire_grace_time=None) as t:
        t.scheduler.register(limited, limits=[limit])
        for _ in range(5):
            await t.scheduler.enqueue(limited)
        assert await t.run_until(DAY) == 5
    assert starts == [START + n * HOUR for n in hours]


async def test_limit_has_room_again_when_a_cancelled_attempt_counts_no_more(pool: Pool) -> None:
    starts: list[timedelta] = []

    async def limited() -> None:
        starts.append(t.now - START)
        if len(starts) == 1:
            await t.scheduler.cancel_job(current_job().job_id)
            await asyncio.Event().wait()

    async with at_start(pool) as t:
        t.scheduler.register(limited, limits=[Limit(max_running=1)])
        for _ in range(2):
            await t.scheduler.enqueue(limited)
        await t.run_until(HOUR)
    assert starts == [timedelta(0), timedelta(seconds=2)]


async def test_crashed_worker_leaves_the_room_of_its_attempts_to_the_next(pool: Pool) -> None:
    starts: list[timedelta] = []

    async def limited() -> None:
        starts.append(t.now - START)
        if len(starts) == 1:
            t.crash()

    async with at_start(pool, misfire_grace_time=None) as t:
        t.scheduler.register(limited, limits=[Limit(max_running=1)])
        for _ in range(3):
            await t.scheduler.enqueue(limited)
        await t.run_until(HOUR)
        assert len(starts) == 4
        assert {job.status for job in t.jobs()} == {JobStatus.COMPLETED}


async def test_results_are_written_when_they_take_several_batches(pool: Pool) -> None:
    together = asyncio.Barrier(3)

    async def meet() -> None:
        await together.wait()

    async with at_start(pool, concurrency=3) as t:
        assert t._scheduler is not None
        results: Any = worker_of(t._scheduler).node.result_buffer
        results.batch_size = 1
        for _ in range(3):
            await t.scheduler.enqueue(meet)
        await t.drain()
        assert [row.status for row in t.jobs(meet)] == [JobStatus.COMPLETED] * 3
        assert results.unwritten() == {}


async def test_job_waits_for_the_result_of_another_job(pool: Pool) -> None:
    values: list[int] = []

    async def answer() -> int:
        return 42

    async def ask() -> None:
        values.append(await current_job().scheduler.run_job(answer, wait_timeout=30))

    async with at_start(pool, concurrency=2) as t:
        await t.scheduler.enqueue(ask)
        assert await t.drain() == 2
    assert values == [42]


async def test_schedules_added_at_run_time_fire_until_they_are_paused(pool: Pool) -> None:
    @job(name="kit.tick")
    async def tick() -> None: ...

    async with at_start(pool) as t:
        schedule = await t.scheduler.schedules.add(tick, Every(hours=1))
        await t.run_until(3 * HOUR)
        assert t.ran(tick) == len(t.jobs(tick)) == 3
        await t.scheduler.schedules.pause(schedule.schedule_id)
        await t.run_until(3 * HOUR)
        assert t.ran(tick) == 3


async def test_jobs_of_a_paused_task_run_when_its_pause_ends(pool: Pool) -> None:
    runs: list[tuple[str, timedelta]] = []

    @job(name="kit.paused")
    async def paused() -> None:
        runs.append(("paused", t.now - START))

    async def other() -> None:
        runs.append(("other", t.now - START))

    async with at_start(pool, misfire_grace_time=None) as t:
        await t.scheduler.tasks.pause("kit.paused", until=START + HOUR)
        await t.scheduler.enqueue(paused)
        await t.run_until(2 * HOUR)
        await t.scheduler.tasks.pause("kit.paused", until=START + 3 * HOUR)
        await t.scheduler.enqueue(paused, delay=timedelta(minutes=1))
        await t.scheduler.enqueue(other, delay=HOUR)
        await t.run_until(HOUR)
    assert runs[0] == ("paused", HOUR)
    assert set(runs[1:]) == {("other", 3 * HOUR), ("paused", 3 * HOUR)}, "both at the same instant"


async def test_pause_that_suspends_expiry_ends_at_its_time(pool: Pool) -> None:
    runs: list[timedelta] = []

    @job(name="kit.suspended")
    async def suspended() -> None:
        runs.append(t.now - START)

    async with at_start(pool, misfire_grace_time=30) as t:
        await t.scheduler.tasks.pause("kit.suspended", until=START + HOUR, suspend_expiry=True)
        await t.scheduler.enqueue(suspended)
        await t.run_until(2 * HOUR)
        assert not [task for task in await t.scheduler.tasks.list() if task.is_paused]
    assert runs == [HOUR]


@pytest.mark.parametrize("suspend_expiry", [False, True])
async def test_pause_that_ends_a_moment_after_the_clock_stands_still_ends_at_its_time(
    pool: Pool, suspend_expiry: bool
) -> None:
    """The moment is shorter than the gap between two passes over the jobs of a pause."""
    async with at_start(pool) as t:
        for name, moment in (("kit.first", timedelta()), ("kit.second", timedelta(microseconds=1))):
            end = START + HOUR + moment
            await t.scheduler.tasks.pause(name, until=end, suspend_expiry=suspend_expiry)
        await t.run_until(2 * HOUR)
        assert not [task for task in await t.scheduler.tasks.list() if task.is_paused]


async def test_all_late_jobs_expire_at_their_time(pool: Pool) -> None:
    @job(name="kit.late")
    async def late() -> None: ...

    async with at_start(pool) as t:
        await t.scheduler.tasks.pause("kit.late")
        await t.scheduler.schedule_bulk([JobSpec(late, START, misfire_grace_time=60) for _ in range(1200)])
        await t.run_until(timedelta(minutes=2))
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'expired'") == 1200


async def test_jobs_under_an_alias_are_jobs_of_the_function(pool: Pool) -> None:
    @job(name="kit.new_name", aliases=["kit.old_name"])
    async def renamed(user: int) -> None: ...

    async with at_start(pool) as t:
        await t.scheduler.enqueue("kit.old_name", args=(7,))
        t.assert_scheduled(renamed, args=(7,))
        with pytest.raises(AssertionError, match=r"kit\.old_name"):
            t.assert_not_scheduled(renamed)
        assert t.jobs(renamed) == t.jobs("kit.old_name")
        assert t.jobs("kit.new_name") == []
        await t.drain()
        assert t.ran(renamed) == t.ran("kit.old_name") == 1


async def test_jobs_expire_after_a_jump_of_the_clock_and_unregistered_ones_on_the_way(pool: Pool) -> None:
    log = Log()
    async with at_start(pool) as t:
        await t.scheduler.enqueue(log.note, args=(1,), misfire_grace_time=60)
        await t.scheduler.enqueue("somewhere.else", delay=HOUR, misfire_grace_time=60)
        t.advance(61)
        assert await t.drain() == 0
        (late,) = t.jobs(log.note)
        assert late.status is JobStatus.EXPIRED
        await t.run_until(2 * HOUR)
        (unknown,) = t.jobs("somewhere.else")
        assert unknown.status is JobStatus.EXPIRED
        assert unknown.finished_at == START + HOUR + timedelta(seconds=60, microseconds=1)
    assert log == []


async def test_vacuum_deletes_finished_jobs_by_the_clock(pool: Pool) -> None:
    log = Log()
    kept = VacuumPolicy(trigger=VacuumTrigger.TIME_BASED, days=2)
    async with at_start(pool, vacuum_config=VacuumConfig(completed=kept)) as t:
        await t.scheduler.enqueue(log.note, args=(1,))
        await t.run_until(DAY)
        assert len(t.jobs()) == 1
        await t.run_until(2 * DAY)
        assert t.jobs() == []
        assert t.ran(log.note) == 1
    async with at_start(pool, vacuum_enabled=False) as t:
        await t.scheduler.enqueue(log.note, args=(1,))
        await t.run_until(400 * DAY)
        assert len(t.jobs()) == 1


async def test_vacuum_runs_when_its_interval_has_passed(pool: Pool) -> None:
    log = Log()
    config = VacuumConfig(completed=VacuumPolicy.keep_last(0), interval_minutes=10)
    async with at_start(pool, vacuum_config=config) as t:
        await t.scheduler.enqueue(log.note, args=(1,))
        await t.run_until(timedelta(minutes=9))
        assert len(t.jobs()) == 1
        await t.run_until(timedelta(minutes=1))
        assert t.jobs() == []


async def test_assertions_name_the_pending_jobs_when_they_fail(pool: Pool) -> None:
    log = Log()
    async with at_start(pool) as t:
        await t.scheduler.enqueue(log.note, args=("ada", [1]), kwargs={}, delay=DAY, job_id="hello")
        found = t.assert_scheduled(log.note, args=("ada", (1,)), kwargs={}, after=DAY)
        assert found.job_id == "hello"
        t.assert_scheduled(log.note, at=START + DAY)
        t.assert_not_scheduled(log.note, after=DAY - timedelta(microseconds=1))
        t.assert_not_scheduled(log.note, args=("grace",))
        t.assert_not_scheduled(log.note, kwargs={"a": 1})
        t.assert_not_scheduled(fail)
        with pytest.raises(AssertionError, match=r"(?s)note.*pending are:\n .*id hello.* due at 2030-01-02"):
            t.assert_scheduled(log.note, args=("grace",))
        with pytest.raises(AssertionError, match="pending are: none"):
            t.assert_scheduled(fail)
        with pytest.raises(AssertionError, match=r"(?s)are pending at 2030-01-01.*id hello"):
            t.assert_not_scheduled(log.note)
        with pytest.raises(TypeError, match="exclude each other"):
            t.assert_scheduled(log.note, after=1, at=START)
        wrong: list[tuple[dict[str, Any], str]] = [
            (
                {"args": "ada"},
                r"args must be a tuple or a list, not str; pass one argument as args=\(value,\)",
            ),
            ({"args": 5}, "args must be a tuple or a list, not int"),
            ({"kwargs": ["ada"]}, "kwargs must be a dict, not list; pass kwargs="),
        ]
        for arguments, message in wrong:
            with pytest.raises(TypeError, match=message):
                t.assert_not_scheduled(log.note, **arguments)
        await t.run_until(DAY)
        t.assert_not_scheduled(log.note)


async def test_assertions_accept_some_keyword_arguments_and_matchers(pool: Pool) -> None:
    log = Log()
    async with at_start(pool) as t:
        await t.scheduler.enqueue("mail.send", args=("ada", 1.5), kwargs={"to": {"id": 7}, "cc": [1, 2]})
        t.assert_scheduled("mail.send", kwargs={"cc": (1, 2)})
        t.assert_scheduled("mail.send", args=(ANY, pytest.approx(1.5)), kwargs={"to": {"id": ANY}})
        t.assert_not_scheduled("mail.send", args=(ANY,))
        t.assert_not_scheduled("mail.send", kwargs={"to": {"id": 8}})
        t.assert_not_scheduled("mail.send", kwargs={"bcc": ANY})
        t.assert_not_scheduled(log.note)


async def test_uncommitted_jobs_are_not_scheduled_for_the_assertions(pool: Pool) -> None:
    async with at_start(pool) as t:
        async with t.pool.acquire() as connection, connection.transaction():
            await t.scheduler.enqueue(fail, connection=connection)
            t.assert_not_scheduled(fail)
        t.assert_scheduled(fail)


async def test_jobs_reads_all_pages(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    inside.replace(monkeypatch, expected_jobs_page=2)
    async with at_start(pool) as t:
        for hours in (3, 1, 2, 5, 4):
            await t.scheduler.enqueue(fail, delay=hours * HOUR)
        jobs = t.jobs()
        assert [each.execution_time - START for each in jobs] == [hours * HOUR for hours in range(1, 6)]


async def test_job_in_a_thread_runs(pool: Pool) -> None:
    log: list[str] = []

    @job(name="kit.plain")
    def plain() -> None:
        log.append(current_job().job_name)

    async with at_start(pool) as t:
        await t.scheduler.enqueue(plain)
        assert await t.drain() == 1
        assert log == ["kit.plain"]
        assert t.ran(plain) == t.ran("kit.plain") == 1


async def test_dsn_makes_a_pool_that_ends_with_the_block(dsn: str) -> None:
    async with TestScheduler(dsn) as t:
        pool = t.pool
        assert abs(t.now - datetime.now(UTC)) < HOUR
        await t.scheduler.enqueue(fail)
        assert await t.drain() == 1
    assert pool.is_closing()


async def test_ended_kit_runs_and_reads_no_jobs(pool: Pool) -> None:
    async with at_start(pool) as t:
        await t.scheduler.enqueue(fail)
        await t.drain()
    for read in (t.jobs, lambda: t.assert_scheduled(fail), lambda: t.assert_not_scheduled(fail)):
        with pytest.raises(NotRunningError, match="has ended"):
            read()
    for run in (t.drain, t.run_one, lambda: t.run_until(HOUR), lambda: t.block(1)):
        with pytest.raises(NotRunningError, match="has ended"):
            await run()
    assert not t.scheduler.is_running
    assert t.ran(fail) == 1


async def test_start_and_shutdown_by_the_code_under_test_work(pool: Pool) -> None:
    async with at_start(pool) as t:
        worker_id = t.scheduler.worker_id
        async with t.scheduler:
            assert t.scheduler.is_running
        assert await t.scheduler.workers() == []
        await t.scheduler.enqueue(fail)
        assert await t.drain() == 1
        assert [each.worker_id for each in await t.scheduler.workers()] == [worker_id]
    assert not t.scheduler.is_running


async def test_invalid_arguments_are_rejected_with_the_remedy(pool: Pool) -> None:
    with pytest.raises(TypeError, match="sets clock itself; pass now="):
        TestScheduler(pool, clock=None)
    with pytest.raises(ValueError, match="now"):
        TestScheduler(pool, now=datetime(2030, 1, 1))  # noqa: DTZ001 - the subject
    with pytest.raises(ValueError, match="concurrency"):
        TestScheduler(pool, concurrency=0)
    with pytest.raises(TypeError, match=r"Pool or a DSN, not int; pass the result of asyncpg\.create_pool"):
        TestScheduler(5)  # type: ignore[arg-type]
    kit = at_start(pool)
    with pytest.raises(NotRunningError, match="async with TestScheduler"):
        kit.ran(fail)
    async with kit as t:
        with pytest.raises(ValueError, match=r"until=2029.* has passed"):
            await t.run_until(START - DAY)
        for far in (timedelta.min, timedelta.max):
            with pytest.raises(ValueError, match=r"until=.* is out of range; pass a datetime"):
                await t.run_until(far)
        with pytest.raises(ValueError, match="by must be between 0"):
            t.advance(-DAY)


async def test_job_that_runs_jobs_fails(pool: Pool) -> None:
    async def reenter() -> None:
        await t.drain()

    async with at_start(pool) as t:
        await t.scheduler.enqueue(reenter)
        found = await t.run_one()
        assert found is not None
        assert "cannot run jobs" in (found.error_message or "")


async def test_second_start_is_rejected_and_leaves_the_first_one(pool: Pool) -> None:
    async with at_start(pool) as t:
        with pytest.raises(RuntimeError, match="TestScheduler has already started"):
            await t.__aenter__()
        await t.scheduler.enqueue(fail)
        t.assert_scheduled(fail)


async def test_start_that_fails_closes_the_pool(dsn: str) -> None:
    kit = TestScheduler(dsn, lease="long")
    with pytest.raises(TypeError, match="lease"):
        await kit.__aenter__()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        sessions = await pool.fetchval(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        assert sessions == 1, "this one"


def test_class_is_not_collected_by_pytest() -> None:
    assert TestScheduler.__test__ is False


async def test_job_completes_in_its_transaction_and_the_crash_of_its_worker_repeats_nothing(
    pool: asyncpg.Pool,
) -> None:
    await pool.execute("CREATE TABLE effects (attempt integer)")

    async with TestScheduler(pool) as t:

        async def work() -> str:
            async with current_job().completing() as connection:
                await connection.execute("INSERT INTO effects VALUES ($1)", current_job().attempt)
                current_job().set_result("kept")
                if current_job().attempt == 1:
                    t.crash()
                    await asyncio.Event().wait()
            return "ignored"

        job_id = await t.scheduler.enqueue(work, keep_result=timedelta(days=1))
        await t.run_until(timedelta(hours=1))
        result = await t.scheduler.get_job_result(job_id, wait=False)
        assert result is not None
        assert (result.unwrap(), result.attempts) == ("kept", 2)
    assert [row["attempt"] for row in await pool.fetch("SELECT attempt FROM effects")] == [2]
