"""The planner enqueues each fire time exactly once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Job, JobStatus, PeriodicJobConfig, Unique, periodic
from pg_scheduler.base.messages import due_message
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus, PeriodicJobBroken, PeriodicJobPlanned
from pg_scheduler.jobs.codec import check_codec
from pg_scheduler.jobs.payload import encode
from pg_scheduler.schedules.job_builder import JobBuilders
from pg_scheduler.schedules.planner import FAST_POLL_INTERVAL_S, SLOW_POLL_INTERVAL_S, Planner
from pg_scheduler.schedules.row import ScheduleRow
from pg_scheduler.schedules.statements import Switched
from pg_scheduler.triggers import Trigger, trigger_kind
from tests.support import inside
from tests.support.codecs import KeyedCodec
from tests.support.inside import Connections, Meter, Store, TaskOptions, periodic_catalogue
from tests.support.parts import Parts
from tests.support.store import new_schedule
from tests.support.worker import LEASE, Recorder, new_worker

POLL_INTERVAL_S = inside.internal_setting("poll_interval_of_planner_s")

NOON = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
KEY = "the key"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture
def parts(clocked: Store, bus: EventBus) -> Parts:
    return Parts(clocked, bus)


@trigger_kind("tests.faulty")
@dataclass(frozen=True)
class Faulty(Trigger):
    """Raises an error with a character that no row can store."""

    is_repaired: bool = False

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
        if not self.is_repaired:
            raise OSError("no network\x00")
        return instant + MINUTE


async def work() -> None: ...


async def other_work() -> None: ...


async def jobs(store: Store) -> list[Job]:
    found = await store.jobs.list_jobs(
        after=None,
        statuses=None,
        names=None,
        worker_id=None,
        due_from=None,
        due_before=None,
        limit=1000,
    )
    return sorted(found, key=lambda job: job.execution_time)


async def windows(store: Store) -> list[datetime]:
    return [job.execution_time for job in await jobs(store)]


async def rows(store: Store) -> dict[str, ScheduleRow]:
    return (await store.schedules.declared([]))[0]


async def row(store: Store, key: str = KEY) -> ScheduleRow:
    return (await rows(store))[key]


async def test_planner_fires_a_new_schedule_one_interval_after_its_first_write(
    parts: Parts, clock: FakeClock
) -> None:
    periodic(every=10 * MINUTE, dedup_key=KEY)(work)
    planner = parts.planner()
    assert await planner.run_once() == POLL_INTERVAL_S
    assert await jobs(parts.store) == []
    assert (await row(parts.store)).next_fire_at == NOON + 10 * MINUTE
    clock.advance(10 * MINUTE - timedelta(seconds=5))
    assert await planner.run_once() == 5
    clock.advance(timedelta(seconds=5))
    await planner.run_once()
    (job,) = await jobs(parts.store)
    assert job.job_id == f"periodic:{KEY}:2026-03-10T12:10:00+00:00"
    assert (job.job_name, job.execution_time) == (f"{__name__}.work", NOON + 10 * MINUTE)
    assert planner.jobs_planned == 1
    after = await row(parts.store)
    assert (after.last_fire_at, after.next_fire_at) == (NOON + 10 * MINUTE, NOON + 20 * MINUTE)


@pytest.mark.parametrize("unique", [None, "key"])
async def test_planner_notifies_workers_with_the_commit_of_the_jobs(
    parts: Parts, clock: FakeClock, dsn: str, unique: str | None
) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()
    other = await asyncpg.connect(dsn)
    await other.add_listener(await parts.store.locks.channel(), lambda *call: heard.put_nowait(call[3]))
    for key, function in (("a", work), ("b", other_work)):
        periodic(every=MINUTE, dedup_key=key)(function)
    parts.tasks.register(work, options=TaskOptions(unique=unique))
    await parts.notifier().prepare()
    planner = parts.planner()
    await planner.run_once()
    clock.advance(MINUTE)
    await planner.run_once()
    assert planner.jobs_planned == 2
    assert parts.outbox.flush_in is None, "nothing is left to send"
    await parts.store.locks.notify(["end"])
    assert await heard.get() == due_message("mine", NOON + MINUTE)
    assert await heard.get() == "end"
    await other.close()


async def test_planner_leaves_queued_notifications_when_the_jobs_exist(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    await parts.notifier().prepare()
    periodic(every=MINUTE, dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.run_once()
    clock.advance(MINUTE)
    await planner.run_once()
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = $1, last_fire_at = NULL", NOON + MINUTE)
    parts.outbox.add_due(NOON)
    await planner.run_once()
    assert planner.jobs_planned == 1
    assert parts.outbox.flush_in is not None


async def test_planner_publishes_a_planned_job_after_the_commit(
    parts: Parts, clock: FakeClock, bus: EventBus, seen: Recorder, dsn: str
) -> None:
    other = await asyncpg.connect(dsn)
    looks: list[asyncio.Future[object]] = []
    bus.subscribe(
        lambda event: looks.append(
            asyncio.ensure_future(other.fetchval("SELECT count(*) FROM scheduled_jobs"))
        ),
        PeriodicJobPlanned,
    )
    periodic(every=MINUTE, dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.run_once()
    clock.advance(MINUTE)
    await planner.run_once()
    (event,) = seen.of(PeriodicJobPlanned)
    assert (event.dedup_key, event.next_fire_at) == (KEY, NOON + 2 * MINUTE)
    assert await looks[0] == 1
    await other.close()


async def test_planner_enqueues_jobs_with_all_settings_of_their_schedule(
    parts: Parts, clock: FakeClock
) -> None:
    from pg_scheduler import JobPriority

    periodic(
        every=MINUTE,
        dedup_key=KEY,
        priority=JobPriority.HIGH,
        max_retries=3,
        use_advisory_lock=True,
        job_name="planner.mine",
    )(work)
    parts.tasks.register(work, name="planner.mine", options=TaskOptions(timeout=60, misfire_grace_time=None))
    planner = parts.planner()
    await planner.run_once()
    clock.advance(MINUTE)
    await planner.run_once()
    (job,) = await jobs(parts.store)
    assert (job.job_name, job.priority, job.max_retries) == ("planner.mine", JobPriority.HIGH, 3)
    assert (job.timeout, job.misfire_grace_time) == (MINUTE, None)
    await parts.store.workers.register(new_worker(), LEASE)
    (held,) = (await parts.store.claims.exchange("me", ["planner.mine"], 10)).jobs
    assert held.lock_key is not None
    assert held.function == "planner.mine"


async def test_planner_enqueues_only_the_latest_of_missed_fire_times(parts: Parts, clock: FakeClock) -> None:
    periodic(every=10 * MINUTE, dedup_key=KEY)(work)
    planner = parts.planner(grace=60)
    await planner.run_once()
    clock.advance(timedelta(hours=5, minutes=3))  # everything was down
    await planner.run_once()
    assert await windows(parts.store) == [NOON + timedelta(hours=5)]
    assert (await row(parts.store)).next_fire_at == NOON + timedelta(hours=5, minutes=10)
    # Late by three minutes with a grace time of one, and it runs: no node was up in time.
    await parts.store.workers.register(new_worker(), LEASE)
    claimed = await parts.store.claims.exchange("me", [f"{__name__}.work"], 10)
    assert (len(claimed.jobs), len(claimed.expired)) == (1, 0)
    clock.advance(7 * MINUTE)
    await planner.run_once()
    assert (await windows(parts.store))[1:] == [NOON + timedelta(hours=5, minutes=10)]


@pytest.mark.parametrize("unique", [None, "nightly"])
async def test_job_that_was_planned_by_a_wrong_clock_counts_as_one_of_that_time(
    parts: Parts, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, unique: str | None
) -> None:
    """The clock may be set back within the pass. What corrects due times knows the job by its creation."""
    periodic(every=10 * MINUTE, dedup_key=KEY)(work)
    parts.tasks.register(work, options=TaskOptions(unique=unique))
    planner = parts.planner()
    await planner.run_once()
    years = timedelta(days=3650)
    clock.advance(years)
    lock_due = parts.store.schedules.lock_due

    async def lock_due_before_the_clock_is_right(*args: Any, **kwargs: Any) -> Any:
        locked = await lock_due(*args, **kwargs)
        clock.advance(-years)
        return locked

    monkeypatch.setattr(parts.store.schedules, "lock_due", lock_due_before_the_clock_is_right)
    await planner.run_once()
    (job,) = await jobs(parts.store)
    assert (job.execution_time, job.created_at) == (NOON + years, NOON + years)


async def test_planner_counts_the_misfire_grace_time_from_the_enqueue(parts: Parts, clock: FakeClock) -> None:
    periodic(every=10 * MINUTE, dedup_key=KEY)(work)
    planner = parts.planner(grace=60)
    await planner.run_once()
    clock.advance(13 * MINUTE)
    await planner.run_once()
    clock.advance(timedelta(seconds=59))
    await parts.expirer().run_once()
    assert [job.status for job in await jobs(parts.store)] == [JobStatus.PENDING]
    clock.advance(timedelta(seconds=2))
    await parts.expirer().run_once()
    assert [job.status for job in await jobs(parts.store)] == [JobStatus.EXPIRED]


async def test_planner_continues_after_a_job_that_failed_expired_or_was_cancelled(
    parts: Parts, clock: FakeClock
) -> None:
    periodic(every=MINUTE, dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.run_once()
    for status in (JobStatus.FAILED, JobStatus.EXPIRED, JobStatus.CANCELLED):
        clock.advance(MINUTE)
        await planner.run_once()
        await parts.store.jobs.set_status((await jobs(parts.store))[-1].job_id, status, 60)
    clock.advance(MINUTE)
    await planner.run_once()
    assert await windows(parts.store) == [NOON + n * MINUTE for n in range(1, 5)]


async def test_planners_enqueue_each_fire_time_once_when_they_race(
    dsn: str, clock: FakeClock, bus: EventBus, seen: Recorder
) -> None:
    pools = [await asyncpg.create_pool(dsn, min_size=2, max_size=2) for _ in range(3)]
    for number in range(20):
        periodic(every=MINUTE, dedup_key=f"{number}")(work)
    parts = [Parts(Store(Connections(pool), clock=clock), bus) for pool in pools]
    planners = [part.planner() for part in parts]
    await asyncio.gather(*(planner.run_once() for planner in planners))
    for _ in range(5):
        clock.advance(MINUTE)
        await asyncio.gather(*(planner.run_once() for planner in planners))
        await planners[0].run_once()
    store = parts[0].store
    assert len(await jobs(store)) == 100
    assert all(each.next_fire_at == NOON + 6 * MINUTE for each in (await rows(store)).values())
    for pool in pools:
        await pool.close()


async def test_planner_enqueues_no_fire_time_twice_when_next_fire_at_is_moved_back(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    periodic(every=MINUTE, dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.run_once()
    clock.advance(MINUTE)
    await planner.run_once()
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = $1", NOON + MINUTE)
    await planner.run_once()
    assert await windows(parts.store) == [NOON + MINUTE]


async def test_planner_computes_the_next_fire_time_of_a_resumed_schedule(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool
) -> None:
    periodic(cron="30 * * * *", dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.run_once()
    await pool.execute("UPDATE scheduler_schedules SET resume_from = $1, next_fire_at = $1", NOON)
    await planner.run_once()
    assert (await row(parts.store)).next_fire_at == NOON + 30 * MINUTE
    assert await jobs(parts.store) == []


async def test_planner_skips_a_due_row_that_another_planner_has_locked(
    parts: Parts, clock: FakeClock, dsn: str
) -> None:
    periodic(every=MINUTE, dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.run_once()
    clock.advance(MINUTE)
    other = await asyncpg.connect(dsn)
    async with other.transaction():
        await other.execute("SELECT FROM scheduler_schedules FOR UPDATE")
        await planner.run_once()
        assert await jobs(parts.store) == []
        assert await planner.run_once() > 0  # no reason to ask without a break
    await other.close()
    await planner.run_once()
    assert await windows(parts.store) == [NOON + MINUTE]


# -- switching -----------------------------------------------------------------------------------------


async def test_planner_does_not_fire_a_disabled_schedule_until_it_is_enabled(
    parts: Parts, clock: FakeClock
) -> None:
    periodic(every=MINUTE, dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.run_once()
    assert planner.declared.enable(KEY, False)
    assert not planner.declared.configs()[KEY].enabled
    clock.advance(5 * MINUTE)
    assert await planner.run_once() == POLL_INTERVAL_S
    assert parts.calls == ["switches_written"]
    assert await jobs(parts.store) == []
    assert planner.declared.enable(KEY, True)
    clock.advance(timedelta(seconds=30))
    await planner.run_once()
    assert await jobs(parts.store) == []  # what it missed while it was off is not made up for
    clock.advance(timedelta(seconds=30))
    await planner.run_once()
    assert await windows(parts.store) == [NOON + 6 * MINUTE]
    assert not planner.declared.enable("another key", True)


async def test_planner_keeps_a_disabled_schedule_disabled_on_other_nodes_and_after_a_restart(
    parts: Parts, clock: FakeClock
) -> None:
    periodic(every=MINUTE, dedup_key=KEY)(work)
    planner, other = parts.planner(), parts.planner()
    await other.run_once()
    planner.declared.enable(KEY, False)
    await planner.run_once()
    await other.run_once()
    assert not other.declared.configs()[KEY].enabled
    restarted = parts.planner()
    await restarted.prepare()
    clock.advance(MINUTE)
    await restarted.run_once()
    assert await jobs(parts.store) == []


async def test_planner_writes_a_schedule_disabled_during_the_last_pass_when_it_stops(parts: Parts) -> None:
    periodic(every=MINUTE, dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.start()
    planner.declared.enable(KEY, False)  # nothing wakes the loop before it is stopped
    await planner.stop()
    assert not (await row(parts.store)).enabled


async def test_planner_writes_a_schedule_disabled_when_the_code_disables_it(
    parts: Parts, clock: FakeClock
) -> None:
    periodic(every=MINUTE, dedup_key=KEY, enabled=False)(work)
    planner = parts.planner()
    await planner.run_once()
    clock.advance(MINUTE)
    await planner.run_once()
    assert await jobs(parts.store) == []
    planner.declared.enable(KEY, True)
    await planner.run_once()
    clock.advance(MINUTE)
    await planner.run_once()
    assert len(await jobs(parts.store)) == 1


async def test_planner_writes_a_schedule_disabled_before_its_row_existed(
    parts: Parts, clock: FakeClock
) -> None:
    periodic(every=MINUTE, dedup_key=KEY)(work)
    planner = parts.planner()
    planner.declared.enable(KEY, False)
    await planner.declared.write_switches()  # as enable_periodic_job() does before start()
    await planner.run_once()
    clock.advance(MINUTE)
    await planner.run_once()
    assert await jobs(parts.store) == []
    assert not planner.declared.configs()[KEY].enabled


async def test_planner_writes_a_schedule_switched_while_another_switch_was_written(
    parts: Parts, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    periodic(every=MINUTE, dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.run_once()
    real = parts.store.schedules.pause

    async def meanwhile(dedup_key: str, note: str | None, *, on: asyncpg.Connection) -> Switched | None:
        planner.declared.enable(dedup_key, True)
        return await real(dedup_key, note, on=on)

    monkeypatch.setattr(parts.store.schedules, "pause", meanwhile)
    planner.declared.enable(KEY, False)
    await planner.declared.write_switches()
    assert planner.declared.configs()[KEY].enabled
    await planner.declared.write_switches()
    assert (await row(parts.store)).enabled


async def test_planner_polls_more_often_when_no_notifications_arrive(parts: Parts) -> None:
    parts.signals.notifications_up.clear()
    planner = parts.planner()
    assert await planner.run_once() == SLOW_POLL_INTERVAL_S  # there is nothing that could be switched
    periodic(every=MINUTE)(work)
    assert await planner.run_once() == FAST_POLL_INTERVAL_S
    parts.signals.notifications_up()
    assert await planner.run_once() == MINUTE.total_seconds()


async def test_planner_finds_a_function_registered_after_the_start_without_reading_schedules_before(
    parts: Parts, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await parts.store.schedules.insert(new_schedule("stored", task="late.work", next_fire_at=NOON), ["every"])
    planner = parts.planner()
    with monkeypatch.context() as patch:
        patch.setattr(parts.store.statements, "fetch", None)
        assert await planner.run_once() == SLOW_POLL_INTERVAL_S
    parts.tasks.register(work, name="late.work")
    await planner.run_once()
    assert await windows(parts.store) == [NOON]


# -- cron and edits ------------------------------------------------------------------------------------


async def test_planner_fires_a_cron_schedule_with_seconds_at_each_second(
    parts: Parts, clock: FakeClock
) -> None:
    periodic(cron="* * * * * */20", dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.run_once()
    for _ in range(6):
        clock.advance(timedelta(seconds=20))
        await planner.run_once()
    expected = [NOON + timedelta(seconds=20 * n) for n in range(1, 7)]
    assert await windows(parts.store) == expected
    assert len({job.job_id for job in await jobs(parts.store)}) == 6


async def test_planner_fires_a_cron_schedule_in_its_time_zone(parts: Parts, clock: FakeClock) -> None:
    periodic(cron="0 9 * * *", timezone="Asia/Kolkata", dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.run_once()
    assert (await row(parts.store)).next_fire_at == datetime(2026, 3, 11, 3, 30, tzinfo=UTC)


@pytest.mark.parametrize("key", [KEY, None], ids=["given", "derived"])
async def test_planner_fires_no_time_twice_when_a_schedule_is_edited(
    parts: Parts, clock: FakeClock, key: str | None
) -> None:
    periodic(cron="*/10 * * * *", dedup_key=key)(work)
    planner = parts.planner()
    await planner.run_once()
    clock.advance(10 * MINUTE)
    await planner.run_once()
    periodic_catalogue.clear()
    periodic(cron="*/5 * * * *", dedup_key=key)(work)  # 12:10 is a fire time of this one too
    restarted = parts.planner()
    await restarted.prepare()
    await restarted.run_once()
    assert await windows(parts.store) == [NOON + 10 * MINUTE]
    assert len(await rows(parts.store)) == 1
    clock.advance(5 * MINUTE)
    await restarted.run_once()
    assert await windows(parts.store) == [NOON + 10 * MINUTE, NOON + 15 * MINUTE]


async def test_edited_schedule_fires_no_time_twice_when_the_clock_is_set_back(
    parts: Parts, clock: FakeClock
) -> None:
    periodic(cron="*/10 * * * *", dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.run_once()
    clock.advance(10 * MINUTE)
    await planner.run_once()
    clock.advance(-5 * MINUTE)
    periodic_catalogue.clear()
    periodic(cron="*/2 * * * *", dedup_key=KEY)(work)
    await planner.prepare()
    await planner.run_once()
    assert (await row(parts.store)).next_fire_at == NOON + 6 * MINUTE
    clock.advance(5 * MINUTE)
    await planner.run_once()
    assert (await windows(parts.store)).count(NOON + 10 * MINUTE) == 1, "no time twice"


async def test_planner_writes_a_schedule_that_was_added_after_the_start(parts: Parts) -> None:
    planner = parts.planner()
    await planner.run_once()
    assert await rows(parts.store) == {}
    periodic(every=MINUTE, dedup_key=KEY)(work)
    await planner.run_once()
    assert set(await rows(parts.store)) == {KEY}


async def test_planner_ignores_schedules_of_other_applications(parts: Parts, clock: FakeClock) -> None:
    periodic(every=MINUTE, dedup_key="theirs")(other_work)
    await parts.planner().run_once()
    periodic_catalogue.clear()
    periodic(every=MINUTE, dedup_key="ours")(work)
    clock.advance(5 * MINUTE)
    planner = parts.planner()
    await planner.run_once()
    assert await jobs(parts.store) == []
    assert set(await rows(parts.store)) == {"theirs", "ours"}
    assert set(planner.declared.configs()) == {"ours"}


async def test_status_describes_the_row_of_a_declared_schedule(parts: Parts, clock: FakeClock) -> None:
    periodic(cron="*/10 * * * *", timezone="Europe/Berlin", dedup_key=KEY)(work)
    planner = parts.planner()
    status = planner.declared.status(KEY)
    assert status is not None
    assert (status["cron"], status["timezone"]) == ("*/10 * * * *", "Europe/Berlin")
    assert (status["next_fire_at"], status["last_fire_at"]) == (None, None)
    await planner.run_once()
    clock.advance(10 * MINUTE)
    await planner.run_once()
    status = planner.declared.status(KEY)
    assert status is not None
    assert (status["next_fire_at"], status["last_fire_at"]) == (NOON + 20 * MINUTE, NOON + 10 * MINUTE)
    assert planner.declared.status("another") is None


async def test_configs_of_declared_schedules_match_the_code(parts: Parts) -> None:
    periodic(every=MINUTE)(work)
    (config,) = parts.planner().declared.configs().values()
    assert config == PeriodicJobConfig(work, interval=MINUTE)


@pytest.mark.parametrize(
    "broken", [{"timezone": "no zone at all!"}, {"expression": "bogus"}, {"kind": "of.another.node"}]
)
async def test_planner_enqueues_the_other_schedules_when_one_row_is_invalid(
    parts: Parts, clock: FakeClock, seen: Recorder, pool: asyncpg.Pool, broken: dict[str, str]
) -> None:
    """Changed by hand, or written by a node that knows more than this one."""
    periodic(cron="* * * * *", dedup_key="bad")(work)
    periodic(every=MINUTE, dedup_key="good")(other_work)
    planner = parts.planner()
    await planner.run_once()
    await pool.execute(
        "UPDATE scheduler_schedules SET trigger = trigger || $1::text::jsonb WHERE schedule_id = 'bad'",
        json.dumps(broken),
    )
    clock.advance(MINUTE)
    assert await planner.run_once() == MINUTE.total_seconds()
    assert [event.dedup_key for event in seen.of(PeriodicJobBroken)] == ["bad"]
    assert await windows(parts.store) == [NOON + MINUTE]
    clock.advance(MINUTE)
    await planner.run_once()
    assert len(seen.of(PeriodicJobBroken)) == 1, "once is enough"
    bad = await row(parts.store, "bad")
    assert (bad.paused_at, bad.is_broken, bad.last_fire_at) == (NOON + MINUTE, True, None)
    await planner.prepare()  # a start writes the schedule of the code
    await planner.run_once()
    assert await row(parts.store, "bad") == replace(
        bad,
        trigger=(await row(parts.store, "bad")).trigger,
        searched_from=NOON + 2 * MINUTE,
        paused_at=None,
        note=None,
        is_broken=False,
        next_fire_at=NOON + 3 * MINUTE,
        updated_at=NOON + 2 * MINUTE,
        version=2,
    )


async def test_planner_pauses_a_declared_schedule_whose_trigger_raises_until_its_declaration_changes(
    parts: Parts, clock: FakeClock, seen: Recorder
) -> None:
    periodic(trigger=Faulty(), dedup_key=KEY)(work)
    planner = parts.planner()
    await planner.run_once()
    broken = await row(parts.store)
    assert (broken.is_broken, broken.note, broken.paused_at) == (True, "OSError: no network\\x00", NOON)
    assert [event.dedup_key for event in seen.of(PeriodicJobBroken)] == [KEY]
    periodic_catalogue.clear()
    periodic(trigger=Faulty(is_repaired=True), dedup_key=KEY)(work)
    planner.declared.forget_sync()
    await planner.run_once()
    repaired = await row(parts.store)
    assert (repaired.is_broken, repaired.note, repaired.paused_at) == (False, None, None)
    assert repaired.next_fire_at == NOON + MINUTE


async def test_planner_counts_the_fire_times_that_it_enqueued(parts: Parts, clock: FakeClock) -> None:
    parts.meter = Meter(lambda: clock.now)
    parts.tasks.register(work, name="app.work")
    for key in ("a", "b"):
        row = new_schedule(key, task="app.work", anchor=NOON, next_fire_at=NOON)
        assert await parts.store.schedules.insert(row, ["every"])
    planner = parts.planner()
    await planner.run_once()
    clock.advance(timedelta(hours=1))
    await planner.run_once()
    assert parts.meter.snapshot().counters == {
        ("fire_times_planned", "a"): 2,
        ("fire_times_planned", "b"): 2,
    }


async def test_schedule_waits_for_a_node_that_can_compute_the_unique_key_of_its_jobs(parts: Parts) -> None:
    async def greet(name: str) -> None: ...

    parts.tasks.register(greet, name="app.greet", options=TaskOptions(unique=Unique()))
    codec = check_codec(KeyedCodec("k1"))
    assert codec is not None
    task_data = codec.encode_arguments(encode(("ada",), None), "app.greet")
    schedule = new_schedule(task="app.greet", task_data=task_data, anchor=NOON, next_fire_at=NOON)
    assert await parts.store.schedules.insert(schedule, ["every"])
    await parts.planner().run_once()
    assert await jobs(parts.store) == []
    kept = await parts.store.schedules.get("key")
    assert kept is not None
    assert (kept.paused_at, kept.next_fire_at) == (None, NOON)
    parts.job_builders = JobBuilders(parts.tasks, misfire_grace_time=300, codec=codec)
    await Planner(parts, parts.store.schedules, parts.declared, parts.job_builders).run_once()
    (job,) = await jobs(parts.store)
    assert job.unique_key is not None
