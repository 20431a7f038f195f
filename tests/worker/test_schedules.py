"""Schedules of callers: the facet writes them, and the planner enqueues their jobs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, ClassVar

import asyncpg
import pytest

from pg_scheduler import (
    UNSET,
    CatchUp,
    ConflictResolution,
    Job,
    JobPriority,
    JobStatus,
    Overlap,
    PayloadError,
    Schedule,
    ScheduleConflictError,
    ScheduleNotFoundError,
    ScheduleOwnedByCodeError,
    Scheduler,
    VacuumConfig,
    VacuumPolicy,
    call,
    periodic,
)
from pg_scheduler.admission.limits import AdmissionRequest
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import (
    EventBus,
    JobBlocked,
    JobCancelled,
    ScheduleAdded,
    ScheduleBroken,
    ScheduleFinished,
    ScheduleFired,
    ScheduleMissed,
    SchedulePaused,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleSkipped,
    ScheduleUpdated,
)
from pg_scheduler.jobs.limits import LimitNumbers
from pg_scheduler.jobs.outcome import REVOKED
from pg_scheduler.jobs.step_values import SLEEP
from pg_scheduler.jobs.steps import Suspension
from pg_scheduler.jobs.validation import MAX_DELAY_S
from pg_scheduler.scheduler.schedules import Schedules
from pg_scheduler.schedules import planner
from pg_scheduler.schedules.definition import Definition
from pg_scheduler.schedules.policies import MAX_SPAN
from pg_scheduler.schedules.row import FIRST_FIRE, LAST_FIRE, read_trigger
from pg_scheduler.triggers import (
    At,
    CalendarInterval,
    Cron,
    During,
    Every,
    FixedDelay,
    SearchLimitError,
    Trigger,
    trigger_kind,
)
from pg_scheduler.triggers.search import INSTANT
from pg_scheduler.worker import vacuum
from tests.support import inside
from tests.support.cases import each_case
from tests.support.inside import (
    COMPLETE,
    RELEASE,
    Claim,
    Outcome,
    Store,
    TaskOptions,
    load_fragment,
    store_of,
)
from tests.support.parts import Parts
from tests.support.worker import LEASE, PATIENCE, Recorder, new_worker

NOON = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
KEY = "the id"
REPLACE = ConflictResolution.REPLACE


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


async def work(*args: object, **kwargs: object) -> None: ...


@trigger_kind("tests.raising")
@dataclass(frozen=True)
class Raising(Trigger):
    """Fires once, and raises when it is asked again."""

    until: datetime = NOON + MINUTE

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        if instant >= self.until:
            raise RuntimeError("a bug of the application")
        return self.until


@trigger_kind("tests.labelled")
@dataclass(frozen=True)
class Labelled(Trigger):
    """Fires each minute."""

    label: str = ""
    weight: float = 0.0

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        return instant + MINUTE


@trigger_kind("tests.ending")
@dataclass(frozen=True)
class Ending(Trigger):
    """Raises what would end the process or the task that calls it."""

    name: str
    errors: ClassVar[dict[str, BaseException]] = {
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "cancel": asyncio.CancelledError(),
        "close": GeneratorExit(),
        "stop": StopIteration(),
        "cancelled future": concurrent.futures.CancelledError(),
    }
    unreadable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.unreadable:
            raise self.errors[self.name]

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        if instant > NOON:
            raise self.errors[self.name]
        return NOON + MINUTE


@trigger_kind("tests.hanging")
@dataclass(frozen=True)
class Hanging(Trigger):
    """Computes its first fire time at once, and the next ones when the test permits it."""

    number: int
    calls: ClassVar[list[int]] = []
    has_called: ClassVar[threading.Event] = threading.Event()
    may_return: ClassVar[threading.Event] = threading.Event()

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        if instant > NOON:
            self.calls.append(self.number)
            self.has_called.set()
            self.may_return.wait()
        return instant + MINUTE


@pytest.fixture
def hanging() -> Iterator[type[Hanging]]:
    Hanging.calls.clear()
    Hanging.has_called.clear()
    Hanging.may_return.clear()
    yield Hanging
    end_searches()


def end_searches() -> None:
    Hanging.may_return.set()
    for thread in threading.enumerate():
        if thread.name == "pg_scheduler search":
            thread.join(PATIENCE)


class Bench:
    """A Scheduler that is not started, and a planner that runs by hand on the same tables and clock."""

    def __init__(self, scheduler: Scheduler, parts: Parts, clock: FakeClock) -> None:
        self.scheduler = scheduler
        self.schedules: Schedules = scheduler.schedules
        self.parts = parts
        self.clock = clock
        self.seen = Recorder(scheduler)
        self.planner = parts.planner()
        self.is_registered = False

    async def add(self, trigger: Trigger, **options: Any) -> Schedule:
        options = {"schedule_id": KEY, "overlap": Overlap.ALLOW} | options
        return await self.schedules.add("tests.work", trigger, **options)

    async def get(self) -> Schedule:
        schedule = await self.schedules.get(KEY)
        assert schedule is not None
        return schedule

    async def plan(self, after: timedelta = timedelta(0)) -> None:
        self.clock.advance(after)
        while await self.planner.run_once() == 0:
            pass

    async def jobs(self) -> list[Job]:
        return sorted(
            await self.scheduler.list_jobs(limit=1000), key=lambda job: (job.execution_time, job.job_id)
        )

    async def claim(self) -> list[Claim]:
        if not self.is_registered:
            await self.parts.store.workers.register(new_worker(), LEASE)
            self.is_registered = True
        await self.parts.store.workers.renew("me", {}, LEASE)
        await self.parts.store.workers.renew("me", {}, LEASE)  # the first one after the lease expired is late
        return (await self.parts.store.claims.exchange("me", ["tests.work"], 10)).jobs

    async def settle(self, claim: Claim, outcome: Outcome) -> None:
        assert await self.parts.store.results.settle("me", [(claim, outcome)]) == {claim.job_id}

    async def minutes(self) -> list[float]:
        """The fire times that became jobs, in minutes after noon."""
        return [(job.execution_time - NOON) / MINUTE for job in await self.jobs()]


@pytest.fixture
async def bench(clocked: Store, bus: EventBus, pool: asyncpg.Pool, clock: FakeClock) -> AsyncIterator[Bench]:
    parts = Parts(clocked, bus)
    parts.tasks.register(work, name="tests.work")
    scheduler = Scheduler(pool, clock=clock)
    yield Bench(scheduler, parts, clock)
    await scheduler.shutdown()


# -- adding --------------------------------------------------------------------------------------------


async def test_add_returns_the_schedule_as_it_is_stored(bench: Bench) -> None:
    added = await bench.add(
        Every(HOUR),
        args=(1, "a"),
        kwargs={"b": None},
        end=NOON + timedelta(days=1),
        max_runs=5,
        jitter=1.5,
        overlap=Overlap.QUEUE_ALL,
        catch_up=CatchUp.all(limit=3, within=HOUR),
        pause_after_failures=2,
        priority=JobPriority.HIGH,
        max_retries=3,
        timeout=timedelta(seconds=30),
        misfire_grace_time=None,
        keep_result=MINUTE,
        metadata={"tenant": 7},
    )
    assert added == await bench.get()
    assert (added.owner, added.task, added.args, added.kwargs) == ("api", "tests.work", (1, "a"), {"b": None})
    assert (added.anchor, added.next_fire_at, added.version) == (NOON, NOON + HOUR, 1)
    assert (added.jitter, added.overlap) == (timedelta(seconds=1.5), Overlap.QUEUE_ALL)
    assert added.catch_up == CatchUp.all(limit=3, within=HOUR)
    assert (added.priority, added.max_retries, added.timeout) == (JobPriority.HIGH, 3, timedelta(seconds=30))
    assert (added.misfire_grace_time, added.keep_result) == (None, timedelta(minutes=1))
    assert (added.runs, added.skipped, added.missed, added.failures) == (0, 0, 0, 0)
    assert str(added) == "tests.work: every hour"
    assert added.upcoming(9) == [NOON + n * HOUR for n in range(1, 6)], "at most max_runs"
    assert added.upcoming(2, after=NOON + 23 * HOUR) == [NOON + 24 * HOUR], "not after the end"
    assert bench.seen.of(ScheduleAdded, schedule_id=KEY)


BOUNDS = [
    *(datetime.min.replace(microsecond=1, tzinfo=UTC), FIRST_FIRE - INSTANT, FIRST_FIRE, NOON - HOUR),
    *(NOON + HOUR, LAST_FIRE - HOUR, LAST_FIRE, LAST_FIRE + INSTANT),
    *(datetime(9999, 12, 31, tzinfo=UTC), datetime.max.replace(tzinfo=UTC) - INSTANT),
]
"""Instants up to the first and the last one that PostgreSQL stores for Python."""

EXTREMES: dict[str, list[Any]] = {
    "start": [None, *BOUNDS],
    "end": [None, *BOUNDS],
    "max_runs": [None, 1, 2**31 - 1],
    "jitter": [timedelta(0), INSTANT, MAX_SPAN],
    "overlap": list(Overlap),
    "catch_up": [*map(CatchUp.latest, (INSTANT, MAX_SPAN)), CatchUp.none()],
    "pause_after_failures": [None, 1, 2**31 - 1],
    "priority": list(JobPriority),
    "max_retries": [0, 2**31 - 1],
    "timeout": [None, INSTANT, timedelta(days=999_999_999), timedelta.max, 1e16, 1e23, 10**300, 1e308],
    "misfire_grace_time": [None, 0, 2**31 - 1],
    "keep_result": [None, INSTANT, MAX_SPAN],
    "deadline": [None, INSTANT, timedelta(seconds=MAX_DELAY_S)],
}
"""For each value of a schedule, the least and the largest ones that are accepted, or refused."""


OUT_OF_RANGE = r"(start|end) .* is out of range: schedules fire from 0001-01-03 to 9000-01-01; pass a time"


def refusal_of(name: str, value: Any) -> str | None:
    """The pattern of the error for a value of a new schedule; None if it is accepted."""
    if value is None or name not in {"start", "end"}:
        return None
    if value < FIRST_FIRE or (name == "start" and value > LAST_FIRE):
        return OUT_OF_RANGE
    return "has no fire time between now and end" if name == "end" and value < NOON else None


def read_as(name: str, value: Any) -> Any:
    """The value that a schedule has after it was given this one."""
    if name == "end" and value is not None and value > LAST_FIRE:
        return None  # no schedule fires after it
    if name == "timeout" and isinstance(value, int | float):
        return timedelta.max
    return value


def test_each_value_of_a_schedule_has_extremes() -> None:
    texts = {"task", "trigger", "args", "kwargs", "metadata"}
    assert EXTREMES.keys() == {field.name for field in fields(Definition)} - texts


@each_case(("name", "value"), [(name, value) for name, values in EXTREMES.items() for value in values])
async def test_value_is_refused_or_read_as_stored_and_given_again_it_changes_nothing(
    bench: Bench, name: str, value: Any
) -> None:
    await bench.schedules.remove(KEY)
    refusal = refusal_of(name, value)
    if refusal is not None:
        with pytest.raises(ValueError, match=refusal):
            await bench.add(Every(HOUR), **{name: value})
        # A schedule in code may have ended.
        if refusal == OUT_OF_RANGE:
            with pytest.raises(ValueError, match=refusal):
                periodic(every=HOUR, **{name: value})(work)
        return
    added = await bench.add(Every(HOUR), **{name: value})
    assert added == await bench.get()
    assert getattr(added, name) == read_as(name, value)
    again = await bench.add(Every(HOUR), conflict_resolution=REPLACE, **{name: value})
    assert (again, again.version) == (added, 1)
    updated = await bench.schedules.update(KEY, **{name: value})
    assert getattr(updated, name) == getattr(await bench.get(), name) == read_as(name, value)


@each_case("instant", BOUNDS)
async def test_instant_of_a_trigger_is_refused_or_is_the_next_fire_time(
    bench: Bench, instant: datetime
) -> None:
    if not FIRST_FIRE <= instant <= LAST_FIRE or instant < NOON:
        with pytest.raises(ValueError, match=r"out of range|no fire time"):
            await bench.add(At(instant))
        return
    assert await bench.add(At(instant)) == await bench.get()
    assert (await bench.get()).next_fire_at == instant
    await bench.schedules.remove(KEY)


async def test_schedule_finishes_before_an_instant_at_which_no_schedule_fires(bench: Bench) -> None:
    added = await bench.add(At(NOON + MINUTE, LAST_FIRE + INSTANT))
    assert added.upcoming() == [NOON + MINUTE]
    await bench.plan(MINUTE)
    finished = await bench.get()
    assert (finished.next_fire_at, finished.finished_at) == (None, NOON + MINUTE)
    assert await bench.add(Every(HOUR), start=LAST_FIRE) == await bench.get()
    assert (await bench.get()).upcoming() == [LAST_FIRE]


@each_case("until", BOUNDS)
async def test_pause_until_is_refused_or_read_as_stored(bench: Bench, until: datetime) -> None:
    await bench.add(Every(HOUR))
    if until < NOON:
        with pytest.raises(ValueError, match=r"until .* (is out of range|has passed)"):
            await bench.schedules.pause(KEY, until=until)
    else:
        await bench.schedules.pause(KEY, until=until, resume_from="pause", note="first")
        paused = await bench.get()
        end = None if until > LAST_FIRE else until
        assert (paused.paused_until, paused.keeps_fire_times) == (end, end is not None)
        await bench.schedules.pause(KEY, until=until, resume_from="pause", note="second")
        assert await bench.get() == paused
        assert [event.paused_until for event in bench.seen.of(SchedulePaused)] == [end]
    bench.seen.events.clear()
    await bench.schedules.remove(KEY)


@each_case("instant", BOUNDS)
async def test_resume_from_an_instant_is_refused_or_leaves_a_fire_time(
    bench: Bench, instant: datetime
) -> None:
    await bench.add(Every(HOUR))
    await bench.schedules.pause(KEY)
    if FIRST_FIRE <= instant <= LAST_FIRE:
        assert await bench.schedules.resume(KEY, resume_from=instant)
        expected = max(instant, NOON + HOUR) if instant >= NOON else NOON + HOUR
        assert (await bench.get()).next_fire_at == expected
    else:
        with pytest.raises(ValueError, match=r"resume_from .* is out of range"):
            await bench.schedules.resume(KEY, resume_from=instant)
    await bench.schedules.remove(KEY)


def test_statements_limit_instants_to_the_last_fire_time_of_schedules() -> None:
    assert load_fragment("last_fire_day") == f"'{LAST_FIRE.date()}'"
    assert FIRST_FIRE.date().isoformat() > load_fragment("first_day").strip("'")


async def test_unset_options_are_those_of_the_task_at_each_fire_time(bench: Bench) -> None:
    added = await bench.add(Every(MINUTE), metadata={"tenant": 7})
    assert (added.priority, added.timeout, added.misfire_grace_time) == (UNSET, UNSET, UNSET)
    bench.parts.tasks.register(
        work, name="tests.work", options=TaskOptions(timeout=5, max_retries=2, misfire_grace_time=9)
    )
    await bench.plan(MINUTE)
    (job,) = await bench.jobs()
    assert job.job_id == f"schedule:{KEY}:2026-03-10T12:01:00+00:00"
    assert (job.job_name, job.max_retries, job.timeout, job.misfire_grace_time) == (
        "tests.work",
        2,
        timedelta(seconds=5),
        9,
    )


async def test_job_of_a_schedule_knows_its_schedule_and_fire_time(bench: Bench, pool: asyncpg.Pool) -> None:
    await bench.add(Every(MINUTE), jitter=30, keep_result=MINUTE, metadata={"tenant": 7})
    await bench.plan(MINUTE)
    row = await pool.fetchrow("SELECT options, task_data FROM scheduled_jobs")
    assert row is not None
    fire_time = (NOON + MINUTE).isoformat()
    assert json.loads(row["options"]) == {"schedule_id": KEY, "fire_time": fire_time, "keep_result": 60}
    assert json.loads(row["task_data"])["metadata"] == {"tenant": 7}


@pytest.mark.parametrize("is_late", [False, True])
async def test_deadline_and_grace_time_of_a_job_count_from_its_due_time_or_a_later_enqueueing(
    bench: Bench, is_late: bool
) -> None:
    await bench.add(
        Every(HOUR), jitter=HOUR / 2, deadline=MINUTE, misfire_grace_time=300, catch_up=CatchUp.all()
    )
    await bench.plan(1.75 * HOUR if is_late else HOUR)
    (job,) = await bench.jobs()
    assert job.fire_time == NOON + HOUR < job.execution_time < NOON + 1.5 * HOUR
    begin = bench.clock.now if is_late else job.execution_time
    assert job.deadline == begin + MINUTE
    assert job.expires_at is not None
    assert timedelta(0) <= job.expires_at - begin - 5 * MINUTE < SECOND


@pytest.mark.parametrize(
    ("trigger", "start", "anchor", "first"),
    [
        (Every(HOUR), None, NOON, NOON + HOUR),
        (Every(HOUR), NOON + 7 * MINUTE, NOON + 7 * MINUTE, NOON + 7 * MINUTE),
        (Every(HOUR), NOON - MINUTE, NOON - MINUTE, NOON - MINUTE),
        (CalendarInterval(days=1, at=NOON.time()), None, NOON, NOON + 24 * HOUR),
        (CalendarInterval(days=1), None, NOON, NOON + 36 * HOUR - 24 * HOUR),
        (
            CalendarInterval(days=2, at=NOON.time()),
            NOON - 12 * HOUR,
            NOON,
            NOON,
        ),
        (Cron("30 * * * *"), NOON + HOUR, NOON + HOUR, NOON + HOUR + 30 * MINUTE),
        (FixedDelay(HOUR), None, NOON, NOON + HOUR),
    ],
)
async def test_first_fire_time_follows_the_start(
    bench: Bench, trigger: Trigger, start: datetime | None, anchor: datetime, first: datetime
) -> None:
    added = await bench.add(trigger, start=start)
    if trigger != CalendarInterval(days=1, at=NOON.time()):
        assert (added.anchor, added.next_fire_at) == (anchor, first)
    assert added.next_fire_at is not None
    assert added.next_fire_at > NOON or start is not None


@each_case(
    ("options", "error", "message"),
    [
        ({"trigger": "daily"}, TypeError, "trigger must be a Trigger, such as"),
        ({"trigger": At(NOON - HOUR)}, ValueError, "it has ended"),
        ({"trigger": Labelled(weight=float("nan"))}, PayloadError, r"trigger\['weight'\] is nan"),
        ({"trigger": Labelled("a\x00") | At(NOON)}, PayloadError, "contains a NUL character"),
        ({"start": NOON.replace(tzinfo=None)}, ValueError, "has no time zone"),
        ({"start": NOON, "end": NOON - SECOND}, ValueError, "is before start"),
        ({"end": NOON + MINUTE}, ValueError, "has no fire time between"),
        ({"catch_up": CatchUp.all(), "overlap": Overlap.SKIP}, ValueError, "requires Overlap.ALLOW"),
        ({"max_runs": 0}, ValueError, "max_runs must be between 1"),
        ({"jitter": -1}, ValueError, "jitter must be between 0"),
        ({"jitter": "1"}, TypeError, "jitter must be seconds or a timedelta"),
        ({"overlap": "skip"}, TypeError, "overlap must be a Overlap"),
        ({"catch_up": "latest"}, TypeError, "catch_up must be a CatchUp"),
        ({"schedule_id": ""}, ValueError, "1 to 200 characters"),
        ({"schedule_id": "x" * 201}, ValueError, "1 to 200 characters"),
        ({"args": (object(),)}, PayloadError, r"args\[0\]"),
        ({"metadata": 7}, TypeError, "metadata must be"),
        ({"run_now": 1}, TypeError, "run_now must be a bool"),
        ({"conflict_resolution": "x"}, TypeError, "ConflictResolution"),
    ],
)
async def test_add_rejects_an_invalid_schedule_and_stores_nothing(
    bench: Bench, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    trigger = options.pop("trigger", Every(HOUR))
    with pytest.raises(error, match=message):
        await bench.add(trigger, **options)
    assert await bench.schedules.list() == []


@pytest.mark.parametrize("options", [{}, {"metadata": {"note": "x" * 2**16}}])
async def test_add_raises_a_payload_error_beyond_the_limits_of_the_table(
    bench: Bench, options: dict[str, Any]
) -> None:
    name = "tests.work" if options else "x" * (2**16 + 1)
    with pytest.raises(PayloadError, match="the name of its task 64 KiB; store large data elsewhere"):
        await bench.schedules.add(name, Every(HOUR), schedule_id=KEY, **options)
    assert await bench.schedules.list() == []


async def test_add_rejects_triggers_that_never_coincide(bench: Bench) -> None:
    with pytest.raises(ValueError, match=r"never coincide|too many steps|has not returned"):
        await bench.add(Cron("0 * * * *") & Cron("30 * * * *"))
    assert issubclass(SearchLimitError, ValueError)
    weekends = await bench.add(Every(hours=2) & During(weekdays="sat,sun"))
    assert weekends.next_fire_at == datetime(2026, 3, 14, tzinfo=UTC)


async def test_add_raises_ignores_or_replaces_when_the_id_exists(bench: Bench) -> None:
    first = await bench.add(Every(HOUR), kwargs={"a": 1})
    with pytest.raises(ScheduleConflictError, match="already exists") as caught:
        await bench.add(Every(MINUTE))
    assert (caught.value.schedule_id, caught.value.version) == (KEY, 1)
    ignored = await bench.add(Every(MINUTE), conflict_resolution=ConflictResolution.IGNORE)
    assert ignored == first == await bench.get()
    replaced = await bench.add(Every(MINUTE), conflict_resolution=REPLACE)
    assert (replaced.trigger, replaced.kwargs, replaced.version) == (Every(MINUTE), {}, 2)
    assert replaced == await bench.get()
    assert len(bench.seen.of(ScheduleAdded)) == len(bench.seen.of(ScheduleUpdated)) == 1


async def test_replace_with_an_equal_trigger_keeps_timing_counters_and_pause(bench: Bench) -> None:
    await bench.add(Every(HOUR))
    await bench.plan(HOUR)
    await bench.schedules.pause(KEY, note="holidays")
    before = await bench.get()
    bench.clock.advance(10 * MINUTE)
    assert await bench.add(Every(HOUR), conflict_resolution=REPLACE) == before, "at every start"
    after = await bench.add(Every(HOUR), kwargs={"new": 1}, conflict_resolution=REPLACE)
    same = (
        "anchor",
        "next_fire_at",
        "last_fire_at",
        "last_job_id",
        "runs",
        "paused_at",
        "note",
        "created_at",
    )
    assert {name: getattr(after, name) for name in same} == {name: getattr(before, name) for name in same}
    assert (after.kwargs, after.version) == ({"new": 1}, 2)


async def test_replace_with_another_trigger_fires_at_its_next_time_when_the_clock_steps_back(
    bench: Bench,
) -> None:
    await bench.add(Every(10 * MINUTE))
    await bench.plan(10 * MINUTE)
    bench.clock.advance(-5 * MINUTE)  # the clock steps back
    replaced = await bench.add(Every(2 * MINUTE), conflict_resolution=REPLACE)
    assert replaced.next_fire_at == NOON + 6 * MINUTE


async def test_add_in_a_transaction_follows_the_transaction(bench: Bench, pool: asyncpg.Pool) -> None:
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await bench.add(Every(MINUTE), run_now=True, connection=connection)
        await transaction.rollback()
        assert await bench.schedules.get(KEY) is None
        async with connection.transaction():
            await bench.add(Every(MINUTE), run_now=True, connection=connection)
    assert (await bench.get()).last_job_id == (await bench.jobs())[0].job_id


async def test_run_now_enqueues_a_job_beside_the_fire_times(bench: Bench) -> None:
    added = await bench.add(Every(MINUTE), run_now=True, max_runs=1)
    (job,) = await bench.jobs()
    assert job.job_id.startswith(f"schedule:{KEY}:manual:")
    assert (added.last_job_id, added.runs, added.next_fire_at) == (job.job_id, 0, NOON + MINUTE)


async def test_add_takes_the_arguments_of_a_call_and_no_others(bench: Bench) -> None:
    bench.scheduler.register(work, name="tests.work")
    added = await bench.schedules.add(call(work, 1, a=2), Every(MINUTE), schedule_id=KEY)
    assert (added.task, added.args, added.kwargs) == ("tests.work", (1,), {"a": 2})
    for more in ({"args": (3,)}, {"kwargs": {"b": 4}}):
        with pytest.raises(TypeError, match=r"a call\(\) has its arguments; pass no args= and kwargs="):
            await bench.schedules.add(call(work, 1), Every(MINUTE), **more)
    assert [row.schedule_id for row in await bench.schedules.list()] == [KEY]


async def test_add_raises_when_another_node_adds_and_removes_the_id_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock finds no row, and the insert finds one, each time."""
    schedules = bench.parts.store.schedules
    await bench.add(Every(MINUTE))
    calls: list[list[str]] = []

    async def lock(ids: list[str], **_: object) -> dict[str, object]:
        calls.append(ids)
        return {}

    monkeypatch.setattr(store_of(bench.scheduler).schedules, "lock", lock)
    with pytest.raises(ScheduleConflictError, match="already exists"):
        await bench.add(Every(HOUR), conflict_resolution=REPLACE)
    assert 1 < len(calls) < 10
    assert (await schedules.read([KEY]))[KEY].version == 1


async def test_replace_repairs_a_trigger_that_cannot_be_read(bench: Bench, pool: asyncpg.Pool) -> None:
    await bench.add(Every(MINUTE))
    await pool.execute('UPDATE scheduler_schedules SET trigger = \'{"kind": "lunar"}\'')
    assert (await bench.get()).trigger is None
    repaired = await bench.add(Every(HOUR), conflict_resolution=REPLACE)
    assert (repaired.trigger, repaired.next_fire_at, repaired.version) == (Every(HOUR), NOON + HOUR, 2)


async def test_upcoming_starts_with_the_schedule(bench: Bench) -> None:
    start = NOON + HOUR
    schedule = await bench.add(Every(10 * MINUTE), start=start, max_runs=3)
    expected = [start, start + 10 * MINUTE, start + 20 * MINUTE]
    assert schedule.upcoming() == expected
    assert schedule.upcoming(after=NOON - HOUR) == expected
    assert schedule.upcoming(after=start) == [start + n * 10 * MINUTE for n in (1, 2, 3)]


async def test_arguments_that_cannot_be_read_are_omitted(bench: Bench, pool: asyncpg.Pool) -> None:
    await bench.add(Every(MINUTE), args=(1,), kwargs={"a": 2})
    await pool.execute("UPDATE scheduler_schedules SET task_data = '{\"args\": 7}'")
    schedule = await bench.get()
    assert (schedule.args, schedule.kwargs, schedule.trigger) == ((), {}, Every(MINUTE))


# -- planning ------------------------------------------------------------------------------------------


async def test_planner_fires_until_max_runs_and_finishes(bench: Bench, seen: Recorder) -> None:
    await bench.add(Every(MINUTE), max_runs=2)
    for _ in range(4):
        await bench.plan(MINUTE)
    assert await bench.minutes() == [1, 2]
    schedule = await bench.get()
    assert (schedule.runs, schedule.next_fire_at, schedule.finished_at) == (2, None, NOON + 2 * MINUTE)
    assert schedule.upcoming() == []
    assert len(seen.of(ScheduleFinished)) == 1
    again = await bench.add(Every(MINUTE), max_runs=2)
    assert (again.runs, again.finished_at, again.next_fire_at) == (0, None, NOON + 5 * MINUTE)


async def test_planner_fires_until_the_end(bench: Bench) -> None:
    await bench.add(Every(MINUTE), end=NOON + 2 * MINUTE)
    for _ in range(4):
        await bench.plan(MINUTE)
    assert await bench.minutes() == [1, 2]
    assert (await bench.get()).finished_at == NOON + 2 * MINUTE


@pytest.mark.parametrize(
    ("catch_up", "minutes", "missed"),
    [
        (CatchUp.latest(), [10], 9),
        (CatchUp.earliest(), [1], 9),
        (CatchUp.earliest(within=3 * MINUTE), [8], 9),
        (CatchUp.all(), [*range(1, 11)], 0),
        (CatchUp.all(limit=3), [8, 9, 10], 7),
        (CatchUp.all(within=4 * MINUTE), [7, 8, 9, 10], 6),
        (CatchUp.none(), [10], 9),
    ],
)
async def test_missed_fire_times_are_caught_up_and_counted(
    bench: Bench, seen: Recorder, catch_up: CatchUp, minutes: list[int], missed: int
) -> None:
    await bench.add(Every(MINUTE), catch_up=catch_up)
    await bench.plan(10.5 * MINUTE)
    assert await bench.minutes() == minutes
    schedule = await bench.get()
    assert (schedule.runs, schedule.missed) == (len(minutes), missed)
    assert (schedule.last_fire_at, schedule.next_fire_at) == (NOON + 10 * MINUTE, NOON + 11 * MINUTE)
    assert [event.fire_times for event in seen.of(ScheduleMissed)] == ([missed] if missed else [])


@pytest.mark.parametrize(
    ("catch_up", "minutes"),
    [
        (CatchUp.latest(), [60]),
        (CatchUp.latest(within=MINUTE), []),
        (CatchUp.earliest(within=MINUTE), []),
        (CatchUp.none(), []),
    ],
)
async def test_fire_time_after_its_grace_time_is_missed(
    bench: Bench, catch_up: CatchUp, minutes: list[int]
) -> None:
    await bench.add(Cron("0 * * * *"), catch_up=catch_up, misfire_grace_time=30)
    await bench.plan(62 * MINUTE)
    assert await bench.minutes() == minutes
    assert (await bench.get()).missed == 1 - len(minutes)


async def test_catch_up_of_all_finds_fire_times_that_come_in_clusters(bench: Bench) -> None:
    await bench.add(Cron("*/5 9-17 * * 1-5"), catch_up=CatchUp.all(limit=100))
    await bench.plan(6 * 24 * HOUR)  # from Tuesday to Monday
    newest = Cron("*/5 9-17 * * 1-5").upcoming(1000, after=NOON)
    expected = [fire for fire in newest if fire <= NOON + 6 * 24 * HOUR][-100:]
    assert [job.execution_time for job in await bench.jobs()] == expected
    assert (await bench.get()).paused_at is None


async def test_schedule_of_seconds_resumes_after_a_year_with_one_job(bench: Bench) -> None:
    await bench.add(Every(SECOND))
    await bench.schedules.pause(KEY)
    bench.clock.advance(timedelta(days=365))
    await bench.schedules.resume(KEY, resume_from="pause")
    await bench.plan()
    assert len(await bench.jobs()) == 1
    assert (await bench.get()).missed == 365 * 86_400 - 1


async def test_jitter_of_caught_up_fire_times_spans_the_whole_range(bench: Bench) -> None:
    await bench.add(Every(10 * SECOND), jitter=10, catch_up=CatchUp.all(limit=1000))
    await bench.plan(timedelta(hours=2))
    jobs = await bench.jobs()
    delays = [(job.execution_time - datetime.fromisoformat(job.job_id.split(":", 2)[2])) for job in jobs]
    assert len(delays) == 720
    assert all(timedelta(0) <= delay <= 10 * SECOND for delay in delays)
    for third in (delays[::3], delays[1::3], delays[2::3]):
        assert min(third) < SECOND < 9 * SECOND < max(third)


async def test_trigger_that_raises_pauses_its_own_schedule_only(bench: Bench, seen: Recorder) -> None:
    await bench.add(Every(MINUTE))
    await bench.add(Raising(), schedule_id="raising")
    await bench.add(Every(2 * MINUTE), schedule_id="other")
    await bench.plan(2 * MINUTE)
    broken = await bench.schedules.get("raising")
    assert broken is not None
    assert (broken.paused_at, broken.note) == (NOON + 2 * MINUTE, "RuntimeError: a bug of the application")
    assert [event.schedule_id for event in seen.of(ScheduleBroken)] == ["raising"]
    next_fires = {row.schedule_id: row.next_fire_at for row in await bench.schedules.list(paused=False)}
    assert next_fires == {KEY: NOON + 3 * MINUTE, "other": NOON + 4 * MINUTE}


@pytest.mark.parametrize("name", Ending.errors)
async def test_trigger_that_raises_what_ends_a_process_pauses_its_own_schedule_only(
    bench: Bench, seen: Recorder, name: str
) -> None:
    await bench.add(Every(MINUTE))
    await bench.add(Ending(name), schedule_id="ending")
    await bench.plan(MINUTE)
    assert [event.schedule_id for event in seen.of(ScheduleBroken)] == ["ending"]
    broken = await bench.schedules.get("ending")
    assert broken is not None
    assert broken.note is not None
    assert type(Ending.errors[name]).__name__ in broken.note
    assert await bench.minutes() == [1]


@pytest.mark.parametrize("name", Ending.errors)
async def test_trigger_whose_constructor_raises_pauses_its_own_schedule_only(
    bench: Bench, seen: Recorder, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.add(Every(MINUTE))
    await bench.add(Ending(name), schedule_id="ending")
    read_trigger.cache_clear()
    monkeypatch.setattr(Ending, "unreadable", True)  # as another release may define it
    await bench.plan(MINUTE)
    assert [event.schedule_id for event in seen.of(ScheduleBroken)] == ["ending"]
    assert [each.schedule_id for each in await bench.schedules.list()] == ["ending", KEY]
    assert await bench.minutes() == [1]


async def test_trigger_that_is_slow_delays_no_other_schedule(bench: Bench, hanging: type[Hanging]) -> None:
    await bench.add(hanging(1), schedule_id="slow")
    await bench.add(Every(MINUTE))
    planning = asyncio.create_task(bench.plan(MINUTE))
    assert await asyncio.to_thread(hanging.has_called.wait, PATIENCE)
    assert [job.schedule_id for job in await bench.jobs()] == [KEY]
    hanging.may_return.set()
    await planning
    assert await bench.minutes() == [1, 1]


async def test_trigger_that_hangs_pauses_its_own_schedule_and_is_not_called_again_meanwhile(
    bench: Bench, hanging: type[Hanging], monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.add(hanging(2))
    inside.replace(monkeypatch, fire_time_search_wait_s=0.01)
    await bench.plan(MINUTE)
    paused = await bench.get()
    assert paused.paused_at == NOON + MINUTE
    assert paused.note is not None
    assert "has not returned after 0.1 s" in paused.note
    assert hanging.calls == [2]
    await bench.schedules.resume(KEY)
    await bench.plan()
    refused = await bench.get()
    assert refused.note is not None
    assert "an earlier search" in refused.note
    assert hanging.calls == [2]
    end_searches()
    monkeypatch.undo()
    await bench.schedules.resume(KEY)
    await bench.plan()
    assert (await bench.get()).note is None


@pytest.mark.parametrize(
    ("column", "value", "note"),
    [
        ("options", "[7]", "options must be a JSON object, not [7]"),
        ("options", '{"priority": 2}', "options.priority must be 1, 3, 5 or 8, not 2"),
        ("options", '{"timeout": -1}', "timeout must be more than 0"),
        ("options", '{"misfire_grace_time": -1}', "misfire_grace_time must be between 0"),
        ("metadata", "[]", "metadata must be a JSON object, not []"),
    ],
)
async def test_schedule_with_an_invalid_option_is_paused_with_the_reason(
    bench: Bench, pool: asyncpg.Pool, column: str, value: str, note: str
) -> None:
    await bench.add(Every(MINUTE))
    await bench.add(Every(MINUTE), schedule_id="valid")
    await pool.execute(f"UPDATE scheduler_schedules SET {column} = $1 WHERE schedule_id = $2", value, KEY)
    await bench.plan(MINUTE)
    paused = await bench.get()
    assert paused.paused_at == NOON + MINUTE
    assert paused.note is not None
    assert note in paused.note
    assert [job.job_id.split(":")[1] for job in await bench.jobs()] == ["valid"]


async def test_planner_ends_a_pass_when_triggers_are_slow_and_continues_with_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for schedule_id in "abc":
        await bench.add(Every(MINUTE), schedule_id=schedule_id)
    bench.clock.advance(MINUTE)
    monkeypatch.setattr(planner, "TIME_LIMIT_S", -1)
    planned = []
    for _ in range(3):
        await bench.planner.run_once()
        planned.append(len(await bench.jobs()))
    assert planned == [1, 2, 3]


async def test_planner_decides_in_the_next_pass_when_the_last_job_is_about_to_end(
    bench: Bench, dsn: str
) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.QUEUE_ALL)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    bench.clock.advance(MINUTE)
    settling = await asyncpg.connect(dsn)
    async with settling.transaction():
        await settling.execute("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE", claim.job_id)
        assert await bench.planner.run_once() >= 0
        assert len(await bench.jobs()) == 1
    await settling.close()
    await bench.settle(claim, COMPLETE)
    await bench.plan()
    (job,) = await bench.claim()
    assert job.execution_time == NOON + 2 * MINUTE


async def test_planner_leaves_unknown_tasks_and_kinds_to_other_nodes(
    bench: Bench, pool: asyncpg.Pool
) -> None:
    await bench.schedules.add("unknown.task", Every(MINUTE), schedule_id="task")
    await bench.add(Every(MINUTE))
    await pool.execute(
        "UPDATE scheduler_schedules SET kinds = '{lunar}', trigger = '{\"kind\": \"lunar\"}'"
        " WHERE schedule_id = $1",
        KEY,
    )
    await bench.plan(MINUTE)
    assert await bench.jobs() == []
    (theirs, other) = await bench.schedules.list()
    assert (theirs.paused_at, other.paused_at, theirs.missed) == (None, None, 0)
    assert (await bench.get()).trigger is None
    with pytest.raises(ValueError, match="cannot interpret"):
        (await bench.get()).upcoming()


async def test_planner_plans_more_schedules_than_one_transaction_takes(
    bench: Bench, pool: asyncpg.Pool
) -> None:
    await bench.add(Every(HOUR))
    columns = await pool.fetchval(
        "SELECT string_agg(attname, ', ') FROM pg_attribute WHERE attrelid = 'scheduler_schedules'::regclass "
        "AND attnum > 0 AND attname <> 'schedule_id'"
    )
    await pool.execute(
        f"INSERT INTO scheduler_schedules (schedule_id, {columns}) "
        f"SELECT n::text, {columns} FROM scheduler_schedules, generate_series(1, 1100) AS n"
    )
    await bench.plan(HOUR)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1101
    assert await pool.fetchval("SELECT count(*) FROM scheduler_schedules WHERE runs = 1") == 1101


async def test_planner_rolls_back_jobs_and_schedules_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner dies between its two writes."""
    await bench.add(Every(MINUTE))
    schedules = bench.parts.store.schedules

    async def die(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(schedules, "advance", die)
        with pytest.raises(asyncio.CancelledError):
            await bench.plan(MINUTE)
    assert await bench.jobs() == []
    async with asyncio.timeout(PATIENCE):
        while not await bench.jobs():  # the server may still hold the locks of the closed connection
            await bench.plan()
    assert await bench.minutes() == [1]


async def test_schedule_locked_by_another_node_is_planned_when_the_lock_is_gone(
    bench: Bench, dsn: str
) -> None:
    await bench.add(Every(MINUTE))
    dead = await asyncpg.connect(dsn)
    await dead.execute("BEGIN; SELECT FROM scheduler_schedules FOR UPDATE")
    bench.clock.advance(MINUTE)
    assert 0 < await bench.planner.run_once() < 1
    dead.terminate()
    async with asyncio.timeout(10):
        while not await bench.jobs():
            await bench.planner.run_once()
    assert await bench.minutes() == [1]


async def test_clock_that_steps_back_repeats_no_fire_time(bench: Bench, pool: asyncpg.Pool) -> None:
    await bench.add(Every(MINUTE))
    await bench.plan(2 * MINUTE)
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = $1", NOON + MINUTE)
    await pool.execute("DELETE FROM scheduled_jobs")
    await bench.plan()
    assert await bench.jobs() == []
    assert (await bench.get()).next_fire_at == NOON + 3 * MINUTE


# -- overlap -------------------------------------------------------------------------------------------


async def test_skip_drops_and_counts_fire_times_while_the_last_job_is_unfinished(
    bench: Bench, seen: Recorder
) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.SKIP)
    for _ in range(3):
        await bench.plan(MINUTE)
    assert await bench.minutes() == [1]
    (job,) = await bench.jobs()
    schedule = await bench.get()
    assert (schedule.skipped, schedule.missed) == (2, 0), "a skipped fire time counts once"
    assert [event.last_job_id for event in seen.of(ScheduleSkipped)] == [job.job_id] * 2
    assert not seen.of(ScheduleMissed)
    await bench.parts.store.jobs.set_status(job.job_id, JobStatus.COMPLETED, 60)
    await bench.plan(MINUTE)
    assert await bench.minutes() == [1, 4]


async def test_queue_one_drops_fire_times_while_a_limit_keeps_its_job_from_its_first_start(
    bench: Bench,
) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.QUEUE_ONE)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    full = (("limit:x:", LimitNumbers(0, None, None)),)
    store = bench.parts.store
    assert await store.limits.admit("me", [AdmissionRequest(claim, full)], {"limit:x:": 0.0})
    await bench.plan(MINUTE)
    schedule = await bench.get()
    assert (schedule.runs, schedule.skipped) == (1, 1)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome.suspend((Suspension(SLEEP, "nap", NOON),)),
        RELEASE,
        Outcome.crash("its worker died", max_crashes=None),
        Outcome.snooze(MINUTE / 60),
    ],
    ids=["suspended", "released", "crashed", "snoozed"],
)
async def test_queue_one_enqueues_the_next_job_while_a_limit_delays_one_that_has_begun(
    bench: Bench, outcome: Outcome
) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.QUEUE_ONE)
    await bench.plan(MINUTE)
    (begun,) = await bench.claim()
    await bench.settle(begun, outcome)
    bench.clock.advance(MINUTE / 2)
    (claim,) = await bench.claim()
    full = (("limit:x:", LimitNumbers(0, None, None)),)
    assert await bench.parts.store.limits.admit("me", [AdmissionRequest(claim, full)], {"limit:x:": 0.0})
    await bench.plan(MINUTE)
    schedule = await bench.get()
    assert (schedule.runs, schedule.skipped) == (2, 0)


@pytest.mark.slow
async def test_queue_one_runs_a_job_after_every_fire_time_and_never_two_at_once(
    bench: Bench, seen: Recorder
) -> None:
    """Jobs take one and a half intervals, for an hour."""
    await bench.add(Every(MINUTE), overlap=Overlap.QUEUE_ONE)
    running: Claim | None = None
    ends_at, started = NOON, []
    for step in range(120):
        await bench.plan(MINUTE / 2)
        now = NOON + (step + 1) * MINUTE / 2
        if running is not None and now >= ends_at:
            await bench.settle(running, COMPLETE)
            running = None
        claims = await bench.claim()
        if claims:
            assert running is None, "two jobs of the schedule run at once"
            (running,) = claims
            started.append(now)
            ends_at = now + 1.5 * MINUTE
    schedule = await bench.get()
    assert schedule.runs + schedule.skipped == 60
    assert schedule.skipped > 0
    assert len(seen.of(ScheduleSkipped)) == schedule.skipped
    for number in range(1, 59):
        fire = NOON + number * MINUTE
        assert any(fire <= start <= fire + 2.5 * MINUTE for start in started), fire


async def test_queue_all_runs_the_newest_missed_fire_times_one_by_one(bench: Bench, seen: Recorder) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.QUEUE_ALL, catch_up=CatchUp.all(limit=100))
    await bench.plan(timedelta(days=30))
    schedule = await bench.get()
    assert (schedule.runs, schedule.missed) == (100, 30 * 24 * 60 - 100)
    order = []
    for _ in range(100):
        (claim,) = await bench.claim()
        order.append(claim.execution_time)
        await bench.settle(claim, COMPLETE)
    newest = NOON + timedelta(days=30)
    assert order == [newest - n * MINUTE for n in reversed(range(100))]
    assert [event.fire_times for event in seen.of(ScheduleMissed)] == [30 * 24 * 60 - 100]


async def test_queued_job_waits_for_the_retries_of_the_last_one(bench: Bench) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.QUEUE_ALL, max_retries=1)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    await bench.plan(MINUTE)
    await bench.settle(claim, Outcome.retry(timedelta(seconds=10), "why"))
    assert await bench.claim() == []
    bench.clock.advance(10 * SECOND)
    (claim,) = await bench.claim()
    assert (claim.execution_time, claim.attempt) == (NOON + 2 * MINUTE + 10 * SECOND, 2)
    await bench.settle(claim, Outcome.fail("why"))
    (claim,) = await bench.claim()
    assert claim.execution_time == NOON + 2 * MINUTE


async def test_grace_time_of_a_queued_job_starts_when_it_is_unblocked(bench: Bench) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.QUEUE_ALL, misfire_grace_time=30)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    await bench.plan(MINUTE)
    bench.clock.advance(HOUR)
    await bench.parts.expirer().run_once()
    await bench.settle(claim, COMPLETE)
    (claim,) = await bench.claim()
    assert claim.execution_time == NOON + 2 * MINUTE


async def test_cancel_replaces_the_unfinished_job(bench: Bench, seen: Recorder) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.CANCEL)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    await bench.plan(MINUTE)
    first, second = await bench.jobs()
    assert (first.job_id, first.status) == (claim.job_id, JobStatus.CANCELLED)
    assert await bench.claim() == [], "the attempt has not ended"
    await bench.plan(MINUTE)
    assert [job.status for job in await bench.jobs()][1] is JobStatus.CANCELLED, "also one that waits"
    assert [event.job_id for event in seen.of(JobCancelled)] == [second.job_id]
    assert await bench.claim() == []
    await bench.parts.store.results.settle("me", [(claim, REVOKED)])
    (claim,) = await bench.claim()
    assert claim.execution_time == NOON + 3 * MINUTE


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE_ONE, Overlap.QUEUE_ALL, Overlap.CANCEL])
async def test_job_of_a_schedule_that_a_caller_cancels_is_unfinished_until_its_attempt_has_ended(
    bench: Bench, overlap: Overlap
) -> None:
    await bench.add(Every(MINUTE), overlap=overlap)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    await bench.scheduler.cancel_job(claim.job_id)
    await bench.plan(MINUTE)
    await bench.schedules.trigger(KEY)
    assert await bench.claim() == []
    await bench.parts.store.results.settle("me", [(claim, REVOKED)])
    assert len(await bench.claim()) == 1
    assert (await bench.get()).skipped == (overlap is Overlap.SKIP)


async def test_jobs_that_wait_for_the_last_one_are_reported(bench: Bench, seen: Recorder) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.QUEUE_ALL, run_now=True)
    await bench.claim()
    await bench.plan(MINUTE)
    first = await bench.schedules.trigger(KEY)
    filled = await bench.schedules.backfill(KEY, NOON, NOON + SECOND)
    waiting = [event.job_id for event in (*seen.of(JobBlocked), *bench.seen.of(JobBlocked))]
    assert waiting == [f"schedule:{KEY}:{(NOON + MINUTE).isoformat()}", first, *filled]
    assert {event.blocked_on for event in seen.of(JobBlocked)} == {"after"}
    await bench.add(Every(2 * MINUTE), overlap=Overlap.QUEUE_ALL, run_now=True, conflict_resolution=REPLACE)
    assert len(bench.seen.of(JobBlocked)) == 3


async def test_fixed_delay_counts_from_the_end_of_a_cancelled_attempt(bench: Bench) -> None:
    await bench.add(FixedDelay(MINUTE))
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    await bench.scheduler.cancel_job(claim.job_id)
    await bench.plan(5 * MINUTE)
    assert (await bench.get()).next_fire_at is None
    await bench.parts.store.results.settle("me", [(claim, REVOKED)])
    await bench.plan()
    assert (await bench.get()).next_fire_at == bench.clock.now + MINUTE


@pytest.mark.parametrize("deletes", [True, False])
async def test_fixed_delay_counts_from_the_next_check_when_the_last_job_was_deleted_by_hand(
    bench: Bench, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, deletes: bool
) -> None:
    await bench.add(FixedDelay(MINUTE))
    await bench.plan(MINUTE)
    if deletes:
        await pool.execute("DELETE FROM scheduled_jobs")
    bench.planner.check_fire_times()
    await bench.plan(5 * MINUTE)
    schedule = await bench.get()
    assert schedule.next_fire_at == (bench.clock.now + MINUTE if deletes else None)
    assert ("which does not exist any more" in caplog.text) == deletes
    await bench.plan(MINUTE)
    assert (await bench.get()).runs == 1 + deletes


async def test_jobs_of_trigger_and_backfill_wait_for_the_last_job(bench: Bench) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.SKIP)
    await bench.plan(MINUTE)
    (running,) = await bench.claim()
    triggered = await bench.schedules.trigger(KEY)
    (filled,) = await bench.schedules.backfill(KEY, NOON, NOON + SECOND)
    assert await bench.claim() == []
    await bench.settle(running, COMPLETE)
    (claim,) = await bench.claim()
    assert claim.job_id == triggered
    await bench.plan(MINUTE)
    assert (await bench.get()).skipped == 1
    await bench.settle(claim, COMPLETE)
    (claim,) = await bench.claim()
    assert claim.job_id == filled


async def test_triggered_job_does_not_wait_when_the_last_job_has_ended(bench: Bench) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.SKIP)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    await bench.settle(claim, COMPLETE)
    triggered = await bench.schedules.trigger(KEY)
    assert [claim.job_id for claim in await bench.claim()] == [triggered]


# -- the ends of jobs ----------------------------------------------------------------------------------


async def test_fixed_delay_counts_from_the_end_of_the_last_job(bench: Bench) -> None:
    await bench.add(FixedDelay(10 * MINUTE))
    await bench.plan(10 * MINUTE)
    (claim,) = await bench.claim()
    assert (await bench.get()).next_fire_at is None
    await bench.plan(HOUR)
    await bench.settle(claim, Outcome.fail("why"))
    assert (await bench.get()).next_fire_at == NOON + 80 * MINUTE
    await bench.plan()
    assert (await bench.get()).next_fire_at == NOON + 80 * MINUTE
    await bench.plan(10 * MINUTE)
    assert await bench.minutes() == [10, 80]


@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.QUEUE_ONE, Overlap.SKIP])
@pytest.mark.parametrize("runs_now", [False, True])
async def test_fixed_delay_counts_from_the_end_of_a_job_that_a_call_enqueued(
    bench: Bench, overlap: Overlap, runs_now: bool
) -> None:
    added = await bench.add(
        FixedDelay(10 * MINUTE) & During(weekdays="TUE"), overlap=overlap, run_now=runs_now
    )
    assert added == await bench.get()
    if not runs_now:
        assert added.next_fire_at == NOON + 10 * MINUTE
        bench.clock.advance(MINUTE)
        await bench.schedules.trigger(KEY)
    assert ((await bench.get()).next_fire_at, (await bench.get()).finished_at) == (None, None)
    await bench.plan(HOUR)
    (claim,) = await bench.claim()
    assert ":manual:" in claim.job_id
    await bench.settle(claim, COMPLETE)
    await bench.plan()
    expected = bench.clock.now + 10 * MINUTE
    assert (await bench.get()).next_fire_at == expected
    await bench.plan(10 * MINUTE)
    assert [job.fire_time for job in await bench.jobs()] == [None, expected]
    assert ((await bench.get()).runs, (await bench.get()).next_fire_at) == (1, None)


async def test_fixed_delay_counts_from_the_end_of_the_job_that_was_triggered_beside_its_last_one(
    bench: Bench,
) -> None:
    await bench.add(FixedDelay(10 * MINUTE), overlap=Overlap.QUEUE_ONE)
    await bench.plan(10 * MINUTE)
    (last,) = await bench.claim()
    await bench.schedules.trigger(KEY)
    await bench.plan(MINUTE)
    await bench.settle(last, COMPLETE)
    await bench.plan()
    assert (await bench.get()).next_fire_at is None
    (triggered,) = await bench.claim()
    bench.clock.advance(HOUR)
    await bench.scheduler.cancel_job(triggered.job_id)
    await bench.plan(MINUTE)
    assert (await bench.get()).next_fire_at is None, "its attempt has not ended"
    await bench.parts.store.results.settle("me", [(triggered, REVOKED)])
    await bench.plan()
    assert (await bench.get()).next_fire_at == NOON + 82 * MINUTE


@pytest.mark.parametrize("ends_in_order", [False, True])
async def test_fixed_delay_counts_from_the_end_that_comes_last_where_jobs_may_overlap(
    bench: Bench, ends_in_order: bool
) -> None:
    await bench.add(FixedDelay(10 * MINUTE), overlap=Overlap.ALLOW)
    await bench.plan(10 * MINUTE)
    await bench.schedules.trigger(KEY)
    claims = sorted(await bench.claim(), key=lambda claim: ":manual:" in claim.job_id)
    assert len(claims) == 2
    first, second = claims if ends_in_order else reversed(claims)
    bench.clock.advance(MINUTE)
    await bench.settle(first, COMPLETE)
    await bench.plan()
    # The end of the job that was enqueued last begins the delay, and the other end begins it again.
    assert (await bench.get()).next_fire_at == (None if ends_in_order else NOON + 21 * MINUTE)
    bench.clock.advance(5 * MINUTE)
    await bench.settle(second, COMPLETE)
    await bench.plan()
    assert (await bench.get()).next_fire_at == NOON + 26 * MINUTE
    await bench.plan(10 * MINUTE)
    assert (await bench.get()).runs == 2


@pytest.mark.parametrize("case", ["due", "later", "changed", "added again", "paused"])
async def test_end_of_another_job_moves_no_fire_time_that_has_passed_or_does_not_follow_it(
    bench: Bench, case: str
) -> None:
    await bench.add(FixedDelay(10 * MINUTE), overlap=Overlap.ALLOW, pause_after_failures=9)
    await bench.plan(10 * MINUTE)
    await bench.schedules.trigger(KEY)
    fired, triggered = sorted(await bench.claim(), key=lambda claim: ":manual:" in claim.job_id)
    await bench.settle(triggered, COMPLETE)
    await bench.plan()
    bench.clock.advance(MINUTE)
    expected = NOON + 20 * MINUTE
    if case == "due":
        bench.clock.advance(HOUR)
    elif case == "later":
        await bench.schedules.pause(KEY)
        expected = NOON + 5 * HOUR
        # A fire time at this instant would be missed, so the delay begins a microsecond before.
        await bench.schedules.resume(KEY, resume_from=expected - 10 * MINUTE + INSTANT)
    elif case == "changed":
        expected = NOON + 5 * HOUR
        await bench.schedules.update(KEY, trigger=Every(HOUR))
        await bench.schedules.pause(KEY)
        await bench.schedules.resume(KEY, resume_from=expected)
        await bench.plan()
    elif case == "added again":
        await bench.schedules.remove(KEY)
        await bench.add(FixedDelay(9 * MINUTE), pause_after_failures=9)
        bench.clock.advance(MINUTE)
    elif case == "paused":
        await bench.schedules.pause(KEY)
        expected = NOON + 22 * MINUTE
        bench.clock.advance(MINUTE)
    await bench.settle(fired, COMPLETE)
    assert (await bench.get()).next_fire_at == expected
    if case == "due":
        await bench.plan()
        assert (await bench.get()).last_fire_at == expected


async def test_trigger_under_a_fixed_delay_leaves_a_finished_schedule_and_a_pause(bench: Bench) -> None:
    await bench.add(FixedDelay(MINUTE), max_runs=1, overlap=Overlap.QUEUE_ONE)
    await bench.plan(MINUTE)
    finished = await bench.get()
    await bench.schedules.trigger(KEY)
    # The triggered job waits for the last run.
    for _ in range(2):
        (claim,) = await bench.claim()
        await bench.settle(claim, COMPLETE)
    await bench.plan(MINUTE)
    schedule = await bench.get()
    assert (schedule.finished_at, schedule.next_fire_at) == (finished.finished_at, None)
    await bench.schedules.remove(KEY)
    await bench.add(FixedDelay(MINUTE), paused=True, start=bench.clock.now + HOUR)
    await bench.schedules.trigger(KEY)
    (claim,) = await bench.claim()
    assert await bench.schedules.resume(KEY)
    assert (await bench.get()).next_fire_at is None
    await bench.settle(claim, COMPLETE)
    await bench.plan()
    assert (await bench.get()).next_fire_at == bench.clock.now + HOUR + MINUTE, "after the start"


async def test_trigger_of_other_triggers_leaves_the_next_fire_time(bench: Bench) -> None:
    for trigger in (Every(HOUR), Cron("0 13 * * *"), Every(HOUR) & During(weekdays="TUE")):
        added = await bench.add(trigger, run_now=True)
        assert added.next_fire_at == NOON + HOUR
        await bench.schedules.trigger(KEY)
        assert (await bench.get()).next_fire_at == NOON + HOUR
        await bench.schedules.remove(KEY)


@pytest.mark.parametrize("is_running", [False, True])
async def test_fixed_delay_counts_from_the_end_of_what_replaced_the_last_job(
    bench: Bench, is_running: bool
) -> None:
    await bench.add(FixedDelay(10 * MINUTE))
    await bench.plan(10 * MINUTE)
    claims = await bench.claim() if is_running else []
    last_job_id = (await bench.get()).last_job_id
    bench.scheduler.register(work, name="tests.work")
    await bench.scheduler.schedule(
        work,
        execution_time=bench.clock.now,
        job_id=last_job_id,
        misfire_grace_time=None,
        conflict_resolution=REPLACE,
    )
    for claim in claims:
        await bench.settle(claim, COMPLETE)
        assert (await bench.get()).next_fire_at is None, "its replacement waits"
    await bench.plan(HOUR)
    (claim,) = await bench.claim()
    assert claim.job_id == last_job_id
    await bench.settle(claim, COMPLETE)
    await bench.plan()
    assert (await bench.get()).next_fire_at == NOON + 80 * MINUTE


async def test_fixed_delay_continues_when_it_is_removed_and_added_again_with_its_start(bench: Bench) -> None:
    """The job of its first fire time exists, and has ended."""
    await bench.add(FixedDelay(MINUTE), start=NOON)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    await bench.settle(claim, COMPLETE)
    await bench.schedules.remove(KEY)
    await bench.add(FixedDelay(MINUTE), start=NOON)
    await bench.plan()
    assert (await bench.get()).next_fire_at == NOON + 2 * MINUTE
    await bench.plan(MINUTE)
    assert await bench.minutes() == [1, 2]


async def test_fixed_delay_counts_from_the_start_when_it_is_added_updated_or_resumed(bench: Bench) -> None:
    first = NOON + 2 * HOUR
    added = await bench.add(FixedDelay(HOUR), start=NOON + HOUR)
    assert added.next_fire_at == first
    assert added.upcoming(1, after=NOON) == [first]
    changed = await bench.schedules.update(KEY, start=NOON + 2 * HOUR)
    assert changed.next_fire_at == NOON + 3 * HOUR
    await bench.schedules.pause(KEY)
    await bench.schedules.resume(KEY, resume_from=NOON)
    await bench.plan()
    assert (await bench.get()).next_fire_at == NOON + 3 * HOUR


@pytest.mark.parametrize("trigger", [At(NOON + HOUR), FixedDelay(HOUR)])
async def test_schedule_without_a_next_fire_time_gets_none_when_it_is_resumed(
    bench: Bench, trigger: Trigger
) -> None:
    await bench.add(trigger)
    await bench.plan(HOUR)
    assert len(await bench.jobs()) == 1
    await bench.schedules.pause(KEY)
    bench.clock.advance(10 * MINUTE)
    assert await bench.schedules.resume(KEY, resume_from=NOON)
    assert (await bench.get()).next_fire_at is None
    await bench.plan(HOUR)
    assert len(await bench.jobs()) == 1


async def test_upcoming_of_a_fixed_delay_begins_with_the_next_fire_time(bench: Bench) -> None:
    added = await bench.add(FixedDelay(HOUR), max_runs=3)
    assert added.upcoming() == [NOON + HOUR, NOON + 2 * HOUR, NOON + 3 * HOUR]
    assert added.upcoming(1) == [added.next_fire_at]
    assert added.upcoming(0) == []


async def test_fixed_delay_is_not_shifted_by_other_changes(bench: Bench) -> None:
    await bench.add(FixedDelay(10 * MINUTE))
    await bench.plan(10 * MINUTE)
    (claim,) = await bench.claim()
    updated = await bench.schedules.update(KEY, trigger=FixedDelay(MINUTE))
    assert (updated.next_fire_at, updated.finished_at) == (None, None)
    replaced = await bench.add(FixedDelay(MINUTE), end=NOON + HOUR, conflict_resolution=REPLACE)
    assert (replaced.next_fire_at, replaced.finished_at) == (None, None)
    await bench.settle(claim, COMPLETE)
    await bench.plan()
    assert (await bench.get()).next_fire_at == NOON + 11 * MINUTE


async def test_fixed_delay_counts_from_the_end_of_the_last_run_when_it_gets_more_runs(bench: Bench) -> None:
    await bench.add(FixedDelay(MINUTE), max_runs=1)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    assert (await bench.get()).finished_at is not None
    updated = await bench.schedules.update(KEY, max_runs=3)
    assert (updated.next_fire_at, updated.finished_at) == (None, None)
    await bench.plan(10 * MINUTE)
    await bench.settle(claim, COMPLETE)
    await bench.plan()
    assert (await bench.get()).next_fire_at == NOON + 12 * MINUTE
    await bench.plan(MINUTE)
    assert await bench.minutes() == [1, 12]


async def test_fixed_delay_counts_from_now_when_it_gets_more_runs_after_the_last_one(bench: Bench) -> None:
    await bench.add(FixedDelay(MINUTE), max_runs=1)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    await bench.settle(claim, COMPLETE)
    bench.clock.advance(10 * MINUTE)
    assert (await bench.schedules.update(KEY, max_runs=1, args=(1,))).finished_at is not None
    assert (await bench.schedules.update(KEY, max_runs=3)).next_fire_at == NOON + 12 * MINUTE


async def test_schedule_pauses_after_failures_in_a_row(bench: Bench, pool: asyncpg.Pool) -> None:
    await bench.add(Every(MINUTE), pause_after_failures=2)
    outcomes: list[tuple[Outcome, int]] = [
        (Outcome.fail("first"), 1),
        (COMPLETE, 0),
        (Outcome.fail("second"), 1),
        (Outcome.skip("cancelled"), 1),
        (Outcome.fail("third"), 2),
    ]
    for outcome, failures in outcomes:
        assert (await bench.get()).paused_at is None
        await bench.plan(MINUTE)
        (claim,) = await bench.claim()
        await bench.settle(claim, outcome)
        assert (await bench.get()).failures == failures
    schedule = await bench.get()
    assert (schedule.paused_at, schedule.note) == (NOON + 5 * MINUTE, "third")
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE on_end IS NOT NULL") == 0
    await bench.schedules.resume(KEY)
    assert (await bench.get()).failures == 0


async def test_end_of_a_job_whose_options_name_no_schedule_changes_none(
    bench: Bench, pool: asyncpg.Pool
) -> None:
    await bench.add(Every(MINUTE), pause_after_failures=1)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    await pool.execute("UPDATE scheduled_jobs SET options = '{\"schedule_id\": 7}'")
    await bench.settle(claim, Outcome.fail("why"))
    (job,) = await bench.jobs()
    assert job.status is JobStatus.FAILED
    assert ((await bench.get()).failures, (await bench.get()).paused_at) == (0, None)


async def test_schedule_that_adds_itself_again_in_its_last_job_exists_afterwards(bench: Bench) -> None:
    await bench.add(FixedDelay(MINUTE), max_runs=1)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    assert (await bench.get()).finished_at is not None
    again = await bench.add(FixedDelay(MINUTE), max_runs=1)
    assert (again.next_fire_at, again.finished_at) == (None, None)
    assert again == await bench.get()
    await bench.plan(5 * MINUTE)
    await bench.settle(claim, COMPLETE)
    await bench.plan(MINUTE)
    assert await bench.minutes() == [1, 7]


async def test_vacuum_deletes_schedules_that_finished_long_ago(bench: Bench) -> None:
    await bench.add(Every(MINUTE), max_runs=1)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    await bench.settle(claim, COMPLETE)
    for days, exists in ((6, True), (2, False)):
        bench.clock.advance(timedelta(days=days))
        await bench.parts.vacuum().run()
        assert (await bench.schedules.get(KEY) is not None) == exists
    with pytest.raises(ValueError, match="keep_last"):
        VacuumConfig(schedules=VacuumPolicy.keep_last(1))


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_vacuum_keeps_a_finished_schedule_while_its_last_job_runs(
    bench: Bench, is_cancelled: bool
) -> None:
    policy = VacuumConfig(schedules=VacuumPolicy.immediate())
    await bench.add(Every(MINUTE), max_runs=1, overlap=Overlap.SKIP)
    await bench.plan(MINUTE)
    (claim,) = await bench.claim()
    if is_cancelled:  # its attempt continues
        await bench.scheduler.cancel_job(claim.job_id)
    await bench.parts.vacuum(policy).run()
    await bench.add(Every(MINUTE), max_runs=1, overlap=Overlap.SKIP, conflict_resolution=REPLACE)
    await bench.plan(MINUTE)
    assert await bench.claim() == [], "the last job runs"


# -- changes -------------------------------------------------------------------------------------------


async def test_vacuum_deletes_finished_schedules_in_batches(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "SCHEDULES_BATCH_SIZE", 2)
    for schedule_id in "abcde":
        await bench.add(Every(MINUTE), schedule_id=schedule_id, max_runs=1)
    await bench.plan(MINUTE)
    for claim in await bench.claim():
        await bench.settle(claim, COMPLETE)
    bench.clock.advance(timedelta(days=8))
    await bench.parts.vacuum(VacuumConfig(schedules=VacuumPolicy.never())).run()
    assert len(await bench.schedules.list()) == 5
    await bench.parts.vacuum().run()
    assert await bench.schedules.list() == []


async def test_update_changes_only_the_given_fields(bench: Bench) -> None:
    added = await bench.add(Every(HOUR), kwargs={"a": 1}, max_retries=3, metadata={"tenant": 7})
    bench.clock.advance(MINUTE)
    updated = await bench.schedules.update(KEY, args=(1,), priority=JobPriority.LOW, timeout=None)
    assert (updated.args, updated.kwargs, updated.max_retries) == ((1,), {"a": 1}, 3)
    assert (updated.priority, updated.timeout, updated.metadata) == (JobPriority.LOW, None, {"tenant": 7})
    assert (updated.next_fire_at, updated.anchor) == (added.next_fire_at, added.anchor)
    assert (updated.version, updated.updated_at) == (2, NOON + MINUTE)
    assert updated == await bench.get()
    assert bench.seen.of(ScheduleUpdated, schedule_id=KEY)


async def greet(name: str, *, loud: bool = False) -> None: ...
async def sleep_until(when: datetime) -> None: ...


@pytest.mark.parametrize(
    "changes",
    [
        {"args": ()},
        {"args": ("Ada", 1)},
        {"kwargs": {"quiet": True}},
        {"kwargs": {"name": "Ada"}},
        {"func": sleep_until},
        {"func": "tests.greet", "args": ()},
    ],
)
async def test_update_raises_type_error_when_the_task_does_not_take_the_arguments(
    bench: Bench, changes: Mapping[str, Any]
) -> None:
    bench.scheduler.register(greet, name="tests.greet")
    added = await bench.schedules.add(
        greet, Every(HOUR), schedule_id=KEY, args=("Ada",), kwargs={"loud": True}
    )
    with pytest.raises(TypeError, match=r"\w+\(\) cannot be called with the arguments of the job"):
        await bench.schedules.update(KEY, **changes)
    assert await bench.get() == added
    updated = await bench.schedules.update(KEY, func=work)
    assert (updated.task, updated.args, updated.kwargs) == (f"{__name__}.work", ("Ada",), {"loud": True})


async def test_update_validates_the_arguments_of_a_typed_task(bench: Bench) -> None:
    bench.scheduler.register(sleep_until, name="tests.sleep", typed=True)
    await bench.schedules.add(sleep_until, Every(HOUR), schedule_id=KEY, args=(NOON,))
    with pytest.raises(PayloadError, match="when: "):
        await bench.schedules.update(KEY, args=("soon",))
    updated = await bench.schedules.update(KEY, args=(NOON + HOUR,))
    assert updated.args == ("2026-03-10T13:00:00Z",)
    assert (await bench.schedules.update(KEY, args=("a",), func="elsewhere")).args == ("a",)


@pytest.mark.parametrize(
    ("changes", "next_fire_at"),
    [
        ({"trigger": Every(25 * MINUTE)}, NOON + 75 * MINUTE),
        ({"trigger": Cron("15 * * * *")}, NOON + 75 * MINUTE),
        ({"start": NOON + 3 * HOUR}, NOON + 3 * HOUR),
        ({"end": NOON + 5 * HOUR}, NOON + 2 * HOUR),
        ({"max_runs": 9}, NOON + 2 * HOUR),
        ({"max_runs": 1}, None),
        ({"overlap": Overlap.SKIP}, NOON + 2 * HOUR),
    ],
)
async def test_update_computes_the_next_fire_time_of_another_trigger(
    bench: Bench, changes: Mapping[str, Any], next_fire_at: datetime | None
) -> None:
    await bench.add(Every(HOUR))
    await bench.plan(HOUR)
    updated = await bench.schedules.update(KEY, **changes)
    assert updated.next_fire_at == next_fire_at
    assert (updated.finished_at is None) == (next_fire_at is not None)


async def test_intervals_count_from_the_creation_when_the_start_is_removed(bench: Bench) -> None:
    await bench.add(CalendarInterval(days=1, at=NOON.time()), start=NOON + timedelta(days=365))
    bench.clock.advance(HOUR)
    changed = await bench.schedules.update(KEY, start=None)
    assert (changed.anchor, changed.next_fire_at) == (NOON, NOON + timedelta(days=1))
    await bench.add(Every(HOUR), start=NOON + 90 * MINUTE, conflict_resolution=REPLACE)
    replaced = await bench.add(Every(HOUR), conflict_resolution=REPLACE)
    assert (replaced.anchor, replaced.next_fire_at) == (NOON, NOON + 2 * HOUR)


async def test_update_with_an_equal_trigger_keeps_the_due_fire_time(bench: Bench) -> None:
    await bench.add(Every(HOUR))
    bench.clock.advance(90 * MINUTE)
    updated = await bench.schedules.update(KEY, trigger=Every(HOUR), kwargs={"flag": True})
    assert updated.next_fire_at == NOON + HOUR
    updated = await bench.schedules.update(KEY, kwargs={"flag": 1})
    assert updated.kwargs["flag"] is not True


async def test_replace_finishes_a_schedule_whose_runs_have_run_out(bench: Bench) -> None:
    await bench.add(Every(MINUTE), max_runs=2)
    await bench.plan(MINUTE)
    replaced = await bench.add(Every(MINUTE), max_runs=1, conflict_resolution=REPLACE)
    assert (replaced.next_fire_at, replaced.finished_at) == (None, NOON + MINUTE)


async def test_update_revives_a_finished_schedule_with_more_runs(bench: Bench) -> None:
    await bench.add(Every(HOUR), max_runs=1)
    await bench.plan(HOUR)
    assert (await bench.get()).finished_at is not None
    updated = await bench.schedules.update(KEY, max_runs=2)
    assert (updated.finished_at, updated.next_fire_at) == (None, NOON + 2 * HOUR)


async def test_update_raises_when_the_schedule_is_unknown_or_has_another_version(bench: Bench) -> None:
    with pytest.raises(ScheduleNotFoundError, match="does not exist"):
        await bench.schedules.update(KEY, args=())
    await bench.add(Every(HOUR))
    with pytest.raises(ScheduleConflictError, match="has version 1, not 2"):
        await bench.schedules.update(KEY, args=(1,), if_version=2)
    assert (await bench.schedules.update(KEY, args=(1,), if_version=1)).version == 2


async def test_schedule_declared_in_code_is_changed_by_the_code_only(bench: Bench) -> None:
    periodic(every=HOUR, dedup_key=KEY)(work)
    await bench.planner.prepare()
    await bench.plan()
    for resolution in ConflictResolution:
        with pytest.raises(ScheduleOwnedByCodeError, match="declared with @periodic"):
            await bench.add(Every(HOUR), conflict_resolution=resolution)
    with pytest.raises(ScheduleOwnedByCodeError):
        await bench.schedules.update(KEY, args=(1,))
    schedule = await bench.get()
    assert (schedule.owner, schedule.overlap, schedule.trigger) == ("code", Overlap.ALLOW, Every(HOUR))
    assert await bench.schedules.pause(KEY)
    assert bench.scheduler.get_periodic_jobs()[KEY].enabled  # as this process read it last
    assert await bench.schedules.trigger(KEY)
    (job,) = await bench.jobs()
    assert job.job_id.startswith(f"periodic:{KEY}:manual:")


async def test_pause_and_resume_are_reported_once(bench: Bench) -> None:
    assert not await bench.schedules.pause(KEY)
    assert not await bench.schedules.resume(KEY)
    await bench.add(Every(MINUTE), paused=True)
    assert (await bench.get()).paused_at == NOON
    assert await bench.schedules.pause(KEY, note="again")
    assert await bench.schedules.resume(KEY)
    assert await bench.schedules.resume(KEY)
    assert await bench.schedules.pause(KEY, note="why")
    assert (await bench.get()).note == "why"
    assert [event.note for event in bench.seen.of(SchedulePaused)] == ["why"]
    assert len(bench.seen.of(ScheduleResumed)) == 1
    for invalid in ("yesterday", NOON.replace(tzinfo=None)):
        with pytest.raises(ValueError, match="resume_from"):
            await bench.schedules.resume(KEY, resume_from=invalid)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("resume_from", "minutes"),
    [
        ("now", []),
        ("pause", [*range(1, 11)]),
        (NOON + 8 * MINUTE, [8, 9, 10]),
        (NOON + 15 * MINUTE, []),
        (NOON - HOUR, [*range(1, 11)]),  # none precedes the schedule
    ],
)
async def test_resume_decides_which_fire_times_of_the_pause_are_missed(
    bench: Bench, resume_from: Any, minutes: list[int]
) -> None:
    await bench.add(Every(MINUTE), catch_up=CatchUp.all())
    await bench.schedules.pause(KEY)
    await bench.plan(10.5 * MINUTE)
    assert await bench.jobs() == []
    assert await bench.schedules.resume(KEY, resume_from=resume_from)
    first = (await bench.get()).next_fire_at
    await bench.plan()
    assert await bench.minutes() == minutes
    following = NOON + (15 if resume_from == NOON + 15 * MINUTE else 11) * MINUTE
    assert (await bench.get()).next_fire_at == following
    assert first == (NOON + minutes[0] * MINUTE if minutes else following)


@pytest.mark.parametrize(("resume_from", "minutes"), [("now", [10]), ("pause", [*range(1, 11)])])
async def test_pause_ends_by_itself_with_or_without_its_fire_times(
    bench: Bench, seen: Recorder, resume_from: Any, minutes: list[int]
) -> None:
    await bench.add(Every(MINUTE), catch_up=CatchUp.all())
    until = NOON + 10 * MINUTE
    assert await bench.schedules.pause(KEY, note="moving", until=until, resume_from=resume_from)
    paused = await bench.get()
    assert (paused.paused_at, paused.paused_until, paused.note) == (NOON, until, "moving")
    assert paused.next_fire_at == NOON + MINUTE
    await bench.plan(10 * MINUTE - SECOND)
    assert await bench.jobs() == []
    assert bench.planner.next_fire_in == 1.0
    await bench.plan(SECOND)
    assert await bench.minutes() == minutes
    ended = await bench.get()
    assert (ended.paused_at, ended.paused_until, ended.note) == (None, None, None)
    assert (ended.next_fire_at, ended.runs, ended.missed) == (until + MINUTE, len(minutes), 0)
    assert [event.paused_until for event in bench.seen.of(SchedulePaused)] == [until]
    assert len(seen.of(ScheduleResumed)) == 1
    await bench.plan(MINUTE)
    assert await bench.minutes() == [*minutes, 11]


async def test_pause_ends_before_the_next_fire_time_and_resets_the_failures(
    bench: Bench, pool: asyncpg.Pool
) -> None:
    await bench.add(Every(HOUR), pause_after_failures=3)
    await pool.execute("UPDATE scheduler_schedules SET failures = 2")
    await bench.schedules.pause(KEY, until=NOON + 10 * MINUTE)
    assert (await bench.get()).next_fire_at == NOON + HOUR
    await bench.plan(10 * MINUTE)
    ended = await bench.get()
    assert (ended.paused_at, ended.next_fire_at, ended.failures) == (None, NOON + HOUR, 0)
    assert await bench.jobs() == []


async def test_pause_until_is_replaced_and_resumed_before_it_ends(bench: Bench) -> None:
    await bench.add(Every(MINUTE), catch_up=CatchUp.all())
    until = NOON + 10 * MINUTE
    await bench.schedules.pause(KEY, note="one", until=until)
    await bench.schedules.pause(KEY, note="two", until=until)
    assert (await bench.get()).note == "one"
    await bench.schedules.pause(KEY, note="three", until=NOON + HOUR, resume_from="pause")
    await bench.plan(11 * MINUTE)
    paused = await bench.get()
    assert (paused.paused_until, paused.keeps_fire_times, paused.note) == (NOON + HOUR, True, "three")
    await bench.schedules.pause(KEY)  # no end any more
    await bench.plan(HOUR)
    paused = await bench.get()
    assert (paused.paused_until, paused.keeps_fire_times) == (None, False)
    assert await bench.jobs() == []
    await bench.schedules.pause(KEY, until=bench.clock.now + HOUR)
    assert await bench.schedules.resume(KEY)
    resumed = await bench.get()
    assert (resumed.paused_at, resumed.paused_until) == (None, None)
    assert resumed.next_fire_at == NOON + 72 * MINUTE
    await bench.plan(MINUTE)
    assert await bench.minutes() == [72]


async def test_edit_during_a_pause_keeps_its_end(bench: Bench) -> None:
    await bench.add(Every(MINUTE))
    until = NOON + 10 * MINUTE + SECOND
    await bench.schedules.pause(KEY, until=until)
    edited = await bench.schedules.update(KEY, trigger=Every(5 * MINUTE))
    assert (edited.paused_until, edited.next_fire_at) == (until, NOON + 5 * MINUTE)
    await bench.add(Every(5 * MINUTE), conflict_resolution=REPLACE)
    assert (await bench.get()).paused_until == until
    await bench.plan(10 * MINUTE + SECOND)
    assert (await bench.get()).paused_at is None
    await bench.plan(5 * MINUTE)
    assert await bench.minutes() == [15]


async def test_pause_of_a_fixed_delay_ends_while_its_job_runs(bench: Bench) -> None:
    await bench.add(FixedDelay(MINUTE))
    await bench.plan(MINUTE)
    assert (await bench.get()).next_fire_at is None
    await bench.schedules.pause(KEY, until=NOON + 5 * MINUTE)
    await bench.plan(4 * MINUTE)
    ended = await bench.get()
    assert (ended.paused_at, ended.next_fire_at, ended.finished_at) == (None, None, None)
    (claim,) = await bench.claim()
    await bench.settle(claim, COMPLETE)
    await bench.plan(MINUTE)
    assert await bench.minutes() == [1, 6]


@pytest.mark.parametrize(
    ("resume_from", "pause_end", "following"),
    [
        ("now", 15, 22),  # the fire time is after the pause
        ("now", 22, 22),  # and at its end
        ("now", 30, 40),  # one within the pause is discarded
        ("pause", 15, 22),
        ("pause", 30, 30),  # and missed: due at once
    ],
)
async def test_fixed_delay_counts_from_the_end_of_a_job_that_ends_within_a_pause(
    bench: Bench, resume_from: Any, pause_end: int, following: int
) -> None:
    await bench.add(FixedDelay(10 * MINUTE))
    await bench.plan(10 * MINUTE)
    await bench.schedules.pause(KEY, until=NOON + pause_end * MINUTE, resume_from=resume_from)
    bench.clock.advance(2 * MINUTE)
    (claim,) = await bench.claim()
    await bench.settle(claim, COMPLETE)
    await bench.plan()
    await bench.plan((pause_end - 12) * MINUTE)
    assert (await bench.get()).paused_at is None
    ran = await bench.minutes()
    assert len(ran) == (2 if following == pause_end else 1)
    if following > pause_end:
        assert (await bench.get()).next_fire_at == NOON + following * MINUTE


async def test_pause_of_a_finished_schedule_ends_without_another_end(bench: Bench, seen: Recorder) -> None:
    await bench.add(Every(MINUTE), max_runs=1)
    await bench.plan(MINUTE)
    await bench.schedules.pause(KEY, until=NOON + 5 * MINUTE)
    await bench.plan(4 * MINUTE)
    ended = await bench.get()
    assert (ended.paused_at, ended.finished_at) == (None, NOON + MINUTE)
    assert len(seen.of(ScheduleFinished)) == 1


async def test_pause_of_a_schedule_in_code_ends_and_a_disabling_deploy_removes_its_end(
    bench: Bench, pool: asyncpg.Pool
) -> None:
    periodic(every=MINUTE, dedup_key=KEY)(work)
    await bench.planner.prepare()
    await bench.plan()
    await bench.schedules.pause(KEY, until=NOON + 5 * MINUTE)
    await bench.plan(4 * MINUTE)
    assert await bench.jobs() == []
    await pool.execute("UPDATE scheduler_schedules SET enabled_in_code = FALSE")  # as another release
    await bench.planner.prepare()
    await bench.plan()
    assert (await bench.get()).paused_until is None
    await bench.plan(MINUTE)
    assert await bench.minutes() == [5]


async def test_pause_until_rejects_a_past_end_and_a_choice_without_an_end(bench: Bench) -> None:
    await bench.add(Every(MINUTE))
    with pytest.raises(ValueError, match=r"2026-03-10T12:00:00\+00:00 has passed"):
        await bench.schedules.pause(KEY, until=NOON)
    with pytest.raises(ValueError, match="until"):
        await bench.schedules.pause(KEY, until=datetime(2027, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="pass until="):
        await bench.schedules.pause(KEY, resume_from="pause")
    with pytest.raises(ValueError, match="'now' or 'pause'"):
        await bench.schedules.pause(KEY, until=NOON + HOUR, resume_from="then")  # type: ignore[arg-type]
    assert (await bench.get()).paused_at is None


async def test_two_planners_end_a_pause_once(bench: Bench, seen: Recorder) -> None:
    for number in range(20):
        await bench.add(Every(MINUTE), schedule_id=f"s{number}", catch_up=CatchUp.all())
        await bench.schedules.pause(f"s{number}", until=NOON + 3 * MINUTE, resume_from="pause")
    bench.clock.advance(3 * MINUTE)
    await asyncio.gather(bench.planner.run_once(), bench.parts.planner().run_once())
    await bench.plan()
    assert len(await bench.jobs()) == 60
    assert len(seen.of(ScheduleResumed)) == 20
    assert {each.runs for each in await bench.schedules.list()} == {3}


async def test_resumed_schedule_whose_trigger_raises_can_be_read_until_it_is_paused_again(
    bench: Bench,
) -> None:
    await bench.add(Raising())
    await bench.plan(2 * MINUTE)
    assert (await bench.get()).paused_at is not None
    await bench.schedules.resume(KEY)
    resumed = await bench.get()
    assert (resumed.paused_at, resumed.next_fire_at) == (None, NOON + MINUTE)
    assert await bench.schedules.list() == [resumed]
    await bench.plan()
    assert (await bench.get()).note == "RuntimeError: a bug of the application"


async def test_remove_cancels_pending_jobs_on_request(bench: Bench) -> None:
    for cancel_jobs, status in ((False, JobStatus.PENDING), (True, JobStatus.CANCELLED)):
        await bench.add(Every(MINUTE))
        await bench.plan(MINUTE)
        assert await bench.schedules.remove(KEY, cancel_jobs=cancel_jobs)
        assert (await bench.jobs())[-1].status is status
        assert await bench.schedules.get(KEY) is None
    assert not await bench.schedules.remove(KEY)
    assert len(bench.seen.of(ScheduleRemoved)) == 2


async def test_remove_that_fails_while_it_cancels_jobs_can_be_repeated(
    bench: Bench, pool: asyncpg.Pool
) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.ALLOW)
    for _ in range(3):
        await bench.schedules.trigger(KEY)
    await pool.execute("CREATE SEQUENCE cancelled_jobs")
    await pool.execute("""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF nextval('cancelled_jobs') > 1 THEN RAISE 'no more'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON scheduled_jobs FOR EACH ROW EXECUTE FUNCTION refuse()
    """)
    with pytest.raises(asyncpg.RaiseError, match="no more"):
        await bench.schedules.remove(KEY, cancel_jobs=True)
    schedule = await bench.get()
    assert schedule.note == "is being removed"
    assert {job.status for job in await bench.jobs()} == {JobStatus.PENDING, JobStatus.CANCELLED}
    await pool.execute("DROP TRIGGER refuse ON scheduled_jobs")
    assert await bench.schedules.remove(KEY, cancel_jobs=True)
    assert {job.status for job in await bench.jobs()} == {JobStatus.CANCELLED}
    assert await bench.schedules.get(KEY) is None


async def test_trigger_enqueues_a_job_also_when_paused_or_finished(bench: Bench) -> None:
    assert await bench.schedules.trigger(KEY) is None
    await bench.add(Every(MINUTE), max_runs=1)
    await bench.plan(MINUTE)
    await bench.schedules.pause(KEY)
    job_id = await bench.schedules.trigger(KEY)
    assert job_id is not None
    schedule = await bench.get()
    assert (schedule.runs, schedule.last_job_id) == (1, job_id)
    assert len(await bench.jobs()) == 2


async def test_trigger_enqueues_a_job_also_where_the_kind_of_the_trigger_is_unknown(
    bench: Bench, pool: asyncpg.Pool
) -> None:
    await bench.add(Every(HOUR))
    await pool.execute("""UPDATE scheduler_schedules SET trigger = '{"kind": "elsewhere"}'""")
    job_id = await bench.schedules.trigger(KEY)
    (claim,) = await bench.claim()
    assert claim.job_id == job_id
    await bench.settle(claim, COMPLETE)
    assert (await bench.get()).next_fire_at == NOON + HOUR


async def test_backfill_enqueues_missing_fire_times_in_order(bench: Bench) -> None:
    with pytest.raises(ScheduleNotFoundError):
        await bench.schedules.backfill(KEY, NOON, NOON + HOUR)
    await bench.add(Every(10 * MINUTE))
    await bench.plan(10 * MINUTE)
    ids = await bench.schedules.backfill(KEY, NOON - 20 * MINUTE, NOON + 20 * MINUTE)
    assert [job_id.rpartition("T")[2] for job_id in ids] == [
        "11:40:00+00:00",
        "11:50:00+00:00",
        "12:00:00+00:00",
    ]
    assert await bench.minutes() == [-20, -10, 0, 10]
    assert (await bench.get()).runs == 1
    assert await bench.schedules.backfill(KEY, NOON - 20 * MINUTE, NOON) == []
    with pytest.raises(ValueError, match=r"end .* is before start .*; swap them"):
        await bench.schedules.backfill(KEY, NOON + HOUR, NOON)
    with pytest.raises(ValueError, match=r"has 7 fire times .* more than limit = 6"):
        await bench.schedules.backfill(KEY, NOON, NOON + HOUR + SECOND, limit=6)


async def test_jobs_run_one_by_one_after_a_backfill_of_fire_times_to_come(bench: Bench) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.QUEUE_ALL)
    await bench.plan(MINUTE)
    await bench.schedules.backfill(KEY, NOON + 2 * MINUTE, NOON + 3 * MINUTE + SECOND)
    ran = []
    for _ in range(4):
        await bench.plan(MINUTE)  # the first two fire times have their jobs already
        await bench.schedules.trigger(KEY)
    while claims := await bench.claim():
        (claim,) = claims
        ran.append(claim.job_id)
        await bench.settle(claim, COMPLETE)
    assert len(ran) == 9
    assert [job.status for job in await bench.jobs()] == [JobStatus.COMPLETED] * 9


async def test_missed_fire_times_run_one_by_one_when_some_of_them_were_backfilled(bench: Bench) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.QUEUE_ALL, catch_up=CatchUp.all())
    await bench.schedules.backfill(KEY, NOON + 2 * MINUTE, NOON + 3 * MINUTE)
    await bench.schedules.trigger(KEY)
    await bench.plan(4 * MINUTE)
    ran = 0
    while claims := await bench.claim():
        assert len(claims) == 1
        ran += 1
        await bench.settle(claims[0], COMPLETE)
    assert ran == 5


@pytest.mark.parametrize("backfilled", [1, 2])
async def test_schedule_with_a_limit_of_runs_goes_on_after_fire_times_that_were_backfilled(
    bench: Bench, backfilled: int
) -> None:
    await bench.add(Every(MINUTE), max_runs=2, catch_up=CatchUp.all())
    await bench.schedules.backfill(KEY, NOON + MINUTE, NOON + (1 + backfilled) * MINUTE)
    await bench.plan(2 * MINUTE)
    schedule = await bench.get()
    assert (schedule.runs, schedule.finished_at) == (2 - backfilled, None)
    assert schedule.next_fire_at == NOON + 3 * MINUTE
    await bench.plan(backfilled * MINUTE)
    schedule = await bench.get()
    assert (schedule.runs, schedule.next_fire_at) == (2, None)
    assert schedule.finished_at is not None


async def test_last_run_is_that_of_the_next_missed_fire_time_when_one_was_backfilled(bench: Bench) -> None:
    await bench.add(Every(MINUTE), max_runs=2, overlap=Overlap.QUEUE_ALL, catch_up=CatchUp.all())
    await bench.plan(MINUTE)
    await bench.schedules.backfill(KEY, NOON + 2 * MINUTE, NOON + 3 * MINUTE)
    await bench.plan(3 * MINUTE)
    assert await bench.minutes() == [1, 2, 3]
    schedule = await bench.get()
    assert (schedule.runs, schedule.missed, schedule.next_fire_at) == (2, 1, None)
    assert schedule.finished_at is not None


async def test_cancel_spares_the_last_job_when_the_fire_time_has_a_job_already(bench: Bench) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.CANCEL)
    await bench.schedules.backfill(KEY, NOON + MINUTE, NOON + 2 * MINUTE)
    await bench.schedules.trigger(KEY)
    await bench.plan(MINUTE)
    assert {job.status for job in await bench.jobs()} == {JobStatus.PENDING}


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("pause", [timedelta(0), SECOND], ids=["at once", "later"])
async def test_fire_times_get_jobs_after_their_schedule_was_removed_with_its_jobs_and_added_again(
    bench: Bench, seen: Recorder, overlap: Overlap, pause: timedelta
) -> None:
    await bench.add(Every(MINUTE), start=NOON, overlap=overlap)
    backfilled = await bench.schedules.backfill(KEY, NOON + MINUTE, NOON + 4 * MINUTE)
    assert len(backfilled) == 3
    bench.clock.advance(pause)
    assert await bench.schedules.remove(KEY, cancel_jobs=True)
    bench.clock.advance(pause)
    await bench.add(Every(MINUTE), start=NOON + MINUTE, overlap=overlap)
    ran = []
    for _ in range(4):
        await bench.plan(MINUTE)
        for claim in await bench.claim():
            ran.append(claim.job_id)
            await bench.settle(claim, COMPLETE)
    assert ran[:3] == backfilled
    schedule = await bench.get()
    assert (len(ran), schedule.runs, schedule.skipped, schedule.missed) == (4, 4, 0, 0)
    assert [event.job_id for event in seen.of(ScheduleFired)] == ran


async def test_job_that_waits_for_its_jitter_gives_its_fire_time_to_the_schedule_that_replaces_it(
    bench: Bench,
) -> None:
    jitter = timedelta(seconds=59)
    await bench.add(Every(MINUTE), jitter=jitter)
    await bench.plan(MINUTE)
    (job,) = await bench.jobs()
    assert await bench.schedules.remove(KEY, cancel_jobs=True)
    bench.clock.advance(SECOND)
    await bench.add(Every(MINUTE), start=NOON + MINUTE, jitter=jitter)
    await bench.plan()
    (again,) = await bench.jobs()
    assert (again.job_id, again.status) == (job.job_id, JobStatus.PENDING)
    assert (await bench.get()).runs == 1


async def test_backfill_enqueues_fire_times_whose_jobs_were_cancelled_with_an_earlier_schedule(
    bench: Bench,
) -> None:
    await bench.add(Every(MINUTE))
    backfilled = await bench.schedules.backfill(KEY, NOON + MINUTE, NOON + 4 * MINUTE)
    assert await bench.schedules.remove(KEY, cancel_jobs=True)
    await bench.add(Every(MINUTE), start=NOON)
    assert await bench.schedules.backfill(KEY, NOON + MINUTE, NOON + 4 * MINUTE) == backfilled
    assert {job.status for job in await bench.jobs()} == {JobStatus.PENDING}
    assert await bench.schedules.backfill(KEY, NOON + MINUTE, NOON + 4 * MINUTE) == []


async def test_runs_that_are_left_are_those_of_fire_times_whose_jobs_were_cancelled_with_an_earlier_schedule(
    bench: Bench,
) -> None:
    options = {"max_runs": 2, "overlap": Overlap.QUEUE_ALL, "catch_up": CatchUp.all()}
    await bench.add(Every(MINUTE), **options)
    await bench.schedules.backfill(KEY, NOON + MINUTE, NOON + 3 * MINUTE)
    assert await bench.schedules.remove(KEY, cancel_jobs=True)
    await bench.add(Every(MINUTE), start=NOON + MINUTE, **options)
    await bench.plan(4 * MINUTE)
    assert await bench.minutes() == [1, 2]
    assert {job.status for job in await bench.jobs()} == {JobStatus.PENDING}
    schedule = await bench.get()
    assert (schedule.runs, schedule.missed, schedule.next_fire_at) == (2, 2, None)


@pytest.mark.parametrize("has_begun", [False, True], ids=["pending", "running"])
async def test_fire_time_keeps_the_job_that_outlived_an_earlier_schedule(
    bench: Bench, has_begun: bool
) -> None:
    await bench.add(Every(MINUTE))
    await bench.plan(MINUTE)
    claims = await bench.claim() if has_begun else []
    # A running job is no pending one, so it still runs.
    assert await bench.schedules.remove(KEY, cancel_jobs=has_begun)
    bench.clock.advance(SECOND)
    await bench.add(Every(MINUTE), start=NOON + MINUTE)
    await bench.plan()
    for claim in claims or await bench.claim():
        await bench.settle(claim, COMPLETE)
    assert await bench.claim() == []
    assert [job.status for job in await bench.jobs()] == [JobStatus.COMPLETED]


async def test_job_that_is_cancelled_by_hand_is_not_enqueued_again_by_its_schedule(bench: Bench) -> None:
    await bench.add(Every(MINUTE), overlap=Overlap.QUEUE_ALL, catch_up=CatchUp.all())
    bench.clock.advance(SECOND)
    cancelled_id, _ = await bench.schedules.backfill(KEY, NOON + MINUTE, NOON + 3 * MINUTE)
    assert await bench.scheduler.cancel_job(cancelled_id)
    assert await bench.schedules.backfill(KEY, NOON + MINUTE, NOON + 3 * MINUTE) == []
    await bench.plan(2 * MINUTE)
    assert [job.status for job in await bench.jobs()] == [JobStatus.CANCELLED, JobStatus.PENDING]
    assert (await bench.get()).runs == 0


async def test_two_planners_enqueue_one_job_in_place_of_a_cancelled_one(bench: Bench) -> None:
    other_planner = bench.parts.planner()
    await bench.add(Every(MINUTE))
    for minute in range(1, 20):
        at = NOON + minute * MINUTE
        await bench.schedules.backfill(KEY, at, at + SECOND)
        assert await bench.schedules.remove(KEY, cancel_jobs=True)
        await bench.add(Every(MINUTE), start=at)
        bench.clock.advance(at - bench.clock.now)
        await asyncio.gather(bench.planner.run_once(), other_planner.run_once())
        await bench.plan()
        assert (await bench.get()).runs == 1
        assert await bench.minutes() == [float(number) for number in range(1, minute + 1)]
        (claim,) = await bench.claim()
        await bench.settle(claim, COMPLETE)


async def test_backfill_rejects_a_fixed_delay(bench: Bench) -> None:
    await bench.add(FixedDelay(HOUR))
    with pytest.raises(ValueError, match="has no fire times in the past"):
        await bench.schedules.backfill(KEY, NOON, NOON + HOUR)


async def test_list_returns_pages_and_filters(bench: Bench) -> None:
    for number in range(5):
        await bench.add(Every(HOUR), schedule_id=f"{number}", metadata={"tenant": number % 2, "more": 1})
    page = await bench.schedules.list(limit=2)
    assert ([each.schedule_id for each in page], page.next) == (["0", "1"], "1")
    page = await bench.schedules.list(limit=4, after=page.next)
    assert ([each.schedule_id for each in page], page.next) == (["2", "3", "4"], None)
    assert [each.schedule_id for each in await bench.schedules.list(metadata={"tenant": 1})] == ["1", "3"]
    assert len(await bench.schedules.list(task="tests.work", owner="api", due_before=NOON + 2 * HOUR)) == 5
    assert await bench.schedules.list(due_before=NOON) == await bench.schedules.list(owner="code") == []
    with pytest.raises(ValueError, match="owner must be"):
        await bench.schedules.list(owner="me")  # type: ignore[arg-type]


async def test_list_takes_any_mapping_and_rejects_what_json_cannot_represent(bench: Bench) -> None:
    await bench.add(Every(HOUR), metadata={"tenant": 7})
    assert len(await bench.schedules.list(metadata=MappingProxyType({"tenant": 7}))) == 1
    for value in (float("nan"), "a\x00", "\ud800", object()):
        with pytest.raises(PayloadError, match=r"metadata\['tenant'\]"):
            await bench.schedules.list(metadata={"tenant": value})


@pytest.mark.slow
async def test_pauses_resumes_and_updates_lose_nothing_against_a_planner_at_full_speed(
    bench: Bench, seen: Recorder
) -> None:
    await bench.add(Every(SECOND))
    done = asyncio.Event()

    async def plan() -> None:
        while not done.is_set():
            bench.clock.advance(SECOND)
            await bench.planner.run_once()

    planning = asyncio.create_task(plan())
    for number in range(100):
        await bench.schedules.pause(KEY)
        await bench.schedules.update(KEY, kwargs={"number": number})
        await bench.schedules.resume(KEY)
    done.set()
    await planning
    schedule = await bench.get()
    assert (schedule.kwargs, schedule.version, schedule.paused_at) == ({"number": 99}, 101, None)
    fired = [event.job_id for event in seen.of(ScheduleFired)]
    assert len(fired) == len(set(fired)) == schedule.runs > 0
