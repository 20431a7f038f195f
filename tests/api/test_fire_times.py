"""A model of schedules: what becomes of each fire time under random operations on two workers.

A story adds, edits, pauses, triggers and removes schedules while a virtual clock moves, also over changes
of daylight saving time. Workers plan in turns or at once, crash, stop, and are away for days. The model lists
the fire times of a trigger once, from its anchor, and decides by the rules of the guide which of them become
jobs.

With PG_SCHEDULER_PROTOCOL=long there are more and longer stories.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from functools import partial
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

import asyncpg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from pg_scheduler import (
    CatchUp,
    ConflictResolution,
    JobStatus,
    Overlap,
    Schedule,
    current_job,
)
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import At, CalendarInterval, Cron, During, Every, Trigger
from tests.support import inside
from tests.support.crash_stories import CrashStory, open_pool, run_stories
from tests.support.crashes import NumberedCrash
from tests.support.stories import LONG, NIGHTLY

MAX_COUNT = inside.internal_setting("counted_fire_times")

INSTANT: Final = timedelta(microseconds=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)

BEGINS: Final = (
    datetime(2030, 3, 9, 20, 0, 0, 123457, tzinfo=UTC),
    datetime(2030, 3, 30, 12, tzinfo=UTC),
    datetime(2030, 4, 5, 21, 59, 59, 999999, tzinfo=UTC),
    datetime(2030, 10, 26, 12, tzinfo=UTC),
    datetime(2030, 11, 2, 20, 0, 0, 1, tzinfo=UTC),
)
"""Each precedes a change of daylight saving time in one of the zones by a day."""

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
"""The last one changes its clock by half an hour."""

TRIGGERS: Final[dict[str, Trigger]] = {
    "every 40 minutes": Every(minutes=40),
    "every day": Every(hours=24),
    "nightly in Berlin": Cron("30 2 * * *", timezone=BERLIN),
    "twice an hour on Lord Howe": Cron("*/30 * * * *", timezone=LORD_HOWE),
    "at night in New York": Cron("15,45 1-2 * * *", timezone=NEW_YORK),
    "each second day at the jump": CalendarInterval(days=2, at=time(2, 15), timezone=LORD_HOWE),
    "by day": Every(minutes=50) & During(start=time(9), end=time(17), timezone=BERLIN),
    "either": Cron("0 1 * * *", timezone=BERLIN) | Every(hours=5),
    "a few": At(*(begin + hours * HOUR for begin in BEGINS for hours in (1, 7, 30))),
}
CATCH_UPS: Final = (
    CatchUp.latest(),
    CatchUp.latest(within=2 * HOUR),
    CatchUp.earliest(),
    CatchUp.earliest(within=20 * HOUR),
    CatchUp.none(),
    CatchUp.all(limit=3),
    CatchUp.all(within=9 * HOUR),
)
FREE, HELD = "fire_times.free", "fire_times.held"
"""Tasks. A story pauses the second one, so that jobs of its schedules stay unfinished."""

IDS = st.sampled_from(["a", "b", "c"])
SPANS = st.sampled_from([1, 59, 600, 3600, 5 * 3600, 86400, 3 * 86400]).map(lambda s: timedelta(seconds=s))
SHORT_SPANS = st.sampled_from([1, 600, 3600, 9 * 3600]).map(lambda s: timedelta(seconds=s))
UNTIL_DUE = st.none()
STARTS = st.sampled_from([None, None, None, -DAY, -HOUR, timedelta(0), 3 * HOUR])
BOUNDS = st.sampled_from([None, None, 1, 2, 5])


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a schedule that decide what becomes of its fire times."""

    task: str
    overlap: Overlap
    catch_up: CatchUp
    misfire_grace_time: int | None


@st.composite
def options(draw: st.DrawFn) -> Options:
    """Return options that may be combined. Jobs that wait for others never expire here."""
    if draw(st.booleans()):
        task, overlap, grace = FREE, Overlap.ALLOW, draw(st.sampled_from([450, 5000]))
    else:
        task, overlap, grace = draw(st.sampled_from([FREE, HELD])), draw(st.sampled_from(list(Overlap))), None
    may_have_all = overlap in {Overlap.ALLOW, Overlap.QUEUE_ALL}
    catch_ups = [policy for policy in CATCH_UPS if may_have_all or policy.selection != "all"]
    return Options(task, overlap, draw(st.sampled_from(catch_ups)), grace)


@dataclass(frozen=True, slots=True)
class Definition:
    """What a schedule is added with; times count from then."""

    trigger: str
    start: timedelta | None
    end: timedelta | None
    max_runs: int | None
    options: Options

    def at(self, schedule_id: str, now: datetime) -> Expected:
        start, end = (None if span is None else now + span for span in (self.start, self.end))
        return Expected(schedule_id, now, TRIGGERS[self.trigger], start, end, self.max_runs, self.options)


def definitions() -> st.SearchStrategy[Definition]:
    ends = st.sampled_from([None, None, 5 * HOUR, 3 * DAY])
    return st.builds(Definition, st.sampled_from(sorted(TRIGGERS)), STARTS, ends, BOUNDS, options())


class FireTimes:
    """The fire times of a trigger in order, each searched for once."""

    def __init__(self, trigger: Trigger, created_at: datetime, start: datetime | None) -> None:
        self.anchor = start or created_at
        if isinstance(trigger, CalendarInterval) and start is not None:
            first = start.astimezone(ZoneInfo(trigger.timezone)).date()
            trigger = CalendarInterval(
                days=trigger.days, at=trigger.at, timezone=trigger.timezone, first=first
            )
        self.trigger = trigger
        self.searched: list[datetime] = []
        self.is_complete = False

    def __iter__(self) -> Iterator[datetime]:
        place = 0
        while True:
            if place == len(self.searched):
                self.search_more()
            if place == len(self.searched):
                return
            yield self.searched[place]
            place += 1

    def search_more(self) -> None:
        if not self.is_complete:
            after = self.searched[-1] if self.searched else self.anchor - INSTANT
            more = self.trigger.upcoming(50, after=after, anchor=self.anchor)
            self.searched += more
            self.is_complete = len(more) < 50

    def between(self, after: datetime, last: datetime) -> list[datetime]:
        """Return those in ``after < t <= last``."""
        fire_times = []
        for fire_time in self:
            if fire_time > last:
                break
            if fire_time > after:
                fire_times.append(fire_time)
        return fire_times

    def first_after(self, after: datetime) -> datetime | None:
        return next((fire_time for fire_time in self if fire_time > after), None)


@dataclass(slots=True)
class Expected:
    """A schedule as the guide describes it."""

    schedule_id: str
    origin: datetime
    """The instant from which intervals count without a start."""
    trigger: Trigger
    start: datetime | None
    end: datetime | None
    max_runs: int | None
    options: Options
    fire_times: FireTimes = field(init=False)
    created_at: datetime = field(init=False)
    """When a schedule of the id was added first, unless that was removed."""
    cursor: datetime = field(init=False)
    """What becomes of the fire times up to here is decided."""
    last_planned: datetime | None = None
    is_paused: bool = False
    paused_until: datetime | None = None
    keeps_fire_times: bool = False
    is_finished: bool = False
    ends_with_pass: bool = False
    """Whether nothing is left after a pause, which the next pass finds out."""
    runs: int = 0
    skipped: int = 0
    missed: int = 0
    last_job: str | None = None

    def __post_init__(self) -> None:
        self.fire_times = FireTimes(self.trigger, self.origin, self.start)
        self.created_at, self.cursor = self.origin, self.floor

    @property
    def floor(self) -> datetime:
        """The instant after which the schedule may fire."""
        return self.origin if self.start is None else self.start - INSTANT

    @property
    def next_fire_at(self) -> datetime | None:
        """The first fire time that is not decided; None if there is no further one."""
        if self.is_finished:
            return None
        fire_time = self.fire_times.first_after(self.cursor)
        return None if fire_time is None or (self.end is not None and fire_time > self.end) else fire_time

    @property
    def due_at(self) -> datetime | None:
        """The instant at which a worker next looks at the schedule."""
        if self.is_paused:
            return self.paused_until
        return self.cursor if self.ends_with_pass else self.next_fire_at

    def search_from(self, now: datetime) -> bool:
        """Continue at the first fire time after now by the present trigger; return False if there is none."""
        previous_plan = self.fire_times, self.cursor, self.is_finished
        self.fire_times = FireTimes(self.trigger, self.origin, self.start)
        if self.max_runs is not None and self.runs >= self.max_runs:
            self.is_finished = True
            return True
        self.cursor, self.is_finished = max(now, self.floor), False
        self.ends_with_pass = False
        if self.next_fire_at is None:
            self.fire_times, self.cursor, self.is_finished = previous_plan
            return False
        return True

    def edit(self, now: datetime, changes: dict[str, Any]) -> bool:
        """Change some fields; return False, without a change, if there would be no fire time.

        Another trigger or start, or what lets a finished schedule continue, moves it to its first fire time
        after now.
        """
        if self.start is not None and changes.get("start", self.start) is None:
            changes["origin"] = self.created_at
        previous_values = {name: getattr(self, name) for name in changes}
        for name, value in changes.items():
            setattr(self, name, value)
        changed = {name for name in changes if changes[name] != previous_values[name]} - {"options"}
        has_run_out = self.max_runs is not None and self.runs >= self.max_runs
        has_none = not self.is_finished and self.next_fire_at is None
        is_empty = self.start is not None and self.end is not None and self.end < self.start
        moves = changed & {"trigger", "start"} or (changed and (self.is_finished or has_run_out or has_none))
        if is_empty or (moves and not self.search_from(now)):
            for name, value in previous_values.items():
                setattr(self, name, value)
            return False
        return True

    def plan(
        self, now: datetime, *, is_unfinished: bool, has_job: Callable[[datetime], bool]
    ) -> list[datetime]:
        """Return the fire times that become jobs now. The last job of the schedule may be unfinished.

        A fire time whose job exists uses up no run.
        """
        if self.paused_until is not None:
            if not self.keeps_fire_times:
                self.cursor = max(self.cursor, self.paused_until - INSTANT)
            self.end_pause()
        due = self.fire_times.between(self.cursor, now if self.end is None else min(now, self.end))
        chosen = self.chosen(due, now)
        if due:
            self.cursor = self.last_planned = due[-1]
        if self.max_runs is not None:
            runs_left = self.max_runs - self.runs
            chosen = [
                fire_time
                for number, fire_time in enumerate(chosen)
                if sum(not has_job(previous) for previous in chosen[:number]) < runs_left
            ]
        # Those of an interval are computed, and others are found one by one.
        counted = len(due) if isinstance(self.trigger, Every) else min(len(due), MAX_COUNT)
        self.missed += max(counted - len(chosen), 0)
        if is_unfinished and self.options.overlap in {Overlap.SKIP, Overlap.QUEUE_ONE}:
            self.skipped += len(chosen)
            chosen = []
        return chosen

    def chosen(self, due: list[datetime], now: datetime) -> list[datetime]:
        """Return which of the due fire times become jobs by the policy for missed ones."""
        if not due:
            return []
        catch_up, grace = self.options.catch_up, self.options.misfire_grace_time
        is_in_time = grace is None or now - due[-1] <= timedelta(seconds=grace)
        if len(due) == 1 and is_in_time:
            return due
        allowed = [
            fire_time for fire_time in due if catch_up.within is None or fire_time >= now - catch_up.within
        ]
        caught_up = {
            "latest": allowed[-1:],
            "earliest": allowed[:1],
            "all": allowed[-(catch_up.limit or 1) :],
            "none": [],
        }[catch_up.selection]
        return caught_up or (due[-1:] if is_in_time else [])

    def pause(self, until: datetime | None, *, keeps_fire_times: bool) -> None:
        self.is_paused, self.paused_until, self.keeps_fire_times = True, until, keeps_fire_times

    def end_pause(self) -> None:
        self.is_paused, self.paused_until, self.keeps_fire_times = False, None, False

    def resume(self, now: datetime, since: datetime | None, *, keeps_fire_times: bool) -> None:
        """Continue after a pause with its fire times, with those since an instant, or with none of them."""
        if not self.is_paused:
            return
        self.end_pause()
        if self.is_finished:
            return
        if since is not None:
            self.cursor = max(since - INSTANT, self.floor, self.last_planned or self.floor)
        elif not keeps_fire_times:
            self.cursor = max(self.cursor, now)
        self.ends_with_pass = self.next_fire_at is None

    def count(self, jobs: int) -> None:
        """Count the jobs of a pass, after which the schedule may have finished."""
        self.runs += jobs
        if self.next_fire_at is None or (self.max_runs is not None and self.runs >= self.max_runs):
            self.is_finished = True


class World:
    """Two workers with one clock, the jobs that have run, and the schedules that are expected."""

    def __init__(self, workers: list[TestScheduler], pool: asyncpg.Pool) -> None:
        self.workers = workers
        self.pool = pool
        self.expected: dict[str, Expected] = {}
        self.jobs: set[str] = set()
        """The ids of the jobs of fire times, also of schedules that were removed."""
        self.manual_jobs: set[str] = set()
        self.pending: dict[str, str] = {}
        """The jobs that have not ended, with the tasks whose jobs they are."""
        self.predecessors: dict[str, str] = {}
        """The unfinished jobs of their schedules after which jobs run."""
        self.cancelled: dict[str, datetime] = {}
        """The jobs that were cancelled before they started, and when."""
        self.may_expire: set[str] = set()
        self.runs: Counter[str] = Counter()
        self.faults: list[str] = []
        self.is_held = False
        for worker in workers:
            worker.scheduler.register(self.free, name=FREE)
            worker.scheduler.register(self.held, name=HELD)

    @property
    def scheduler(self) -> Any:
        return self.workers[0].scheduler

    @property
    def now(self) -> datetime:
        return self.workers[0].now

    async def free(self) -> None:
        self.note_run()

    async def held(self) -> None:
        self.note_run()

    def note_run(self) -> None:
        """Note a job that runs, which is never before its fire time."""
        job = current_job()
        self.runs[job.job_id] += 1
        if job.fire_time is not None and not job.fire_time <= job.execution_time <= self.now:
            self.faults.append(f"{job.job_id} runs at {self.now}")

    # -- what is expected ----------------------------------------------------------------------------------

    def plan(self, now: datetime) -> None:
        """Expect what a pass of a planner does, then what the workers do."""
        for schedule in self.expected.values():
            if schedule.due_at is None or schedule.due_at > now:
                continue
            if schedule.is_finished:
                schedule.end_pause()
                continue
            chosen = schedule.plan(
                now,
                is_unfinished=schedule.last_job in self.pending,
                has_job=partial(self.has_job, schedule),
            )
            new = [self.job_id(schedule, at) for at in chosen if not self.has_job(schedule, at)]
            if new and schedule.options.overlap == Overlap.CANCEL and schedule.last_job in self.pending:
                self.cancelled[schedule.last_job] = now
                del self.pending[schedule.last_job]
            self.expect_jobs(schedule, new)
            schedule.count(len(new))
        for job_id, task in list(self.pending.items()):
            can_run = task == FREE or not self.is_held
            # A job may follow one of another task, which its schedule had before.
            if can_run and self.predecessors.get(job_id) not in self.pending:
                del self.pending[job_id]

    def job_id(self, schedule: Expected, fire_time: datetime) -> str:
        return f"schedule:{schedule.schedule_id}:{fire_time.isoformat()}"

    def has_job(self, schedule: Expected, fire_time: datetime) -> bool:
        """Return whether a fire time gets no job of its own, because a job with that id exists.

        A job of an earlier schedule with the id is in the way, unless it was cancelled before it started.
        """
        job_id = self.job_id(schedule, fire_time)
        cancelled_at = self.cancelled.get(job_id)
        is_obsolete = cancelled_at is not None and cancelled_at <= schedule.created_at
        return job_id in self.jobs and not is_obsolete

    def expect_jobs(self, schedule: Expected, job_ids: list[str]) -> None:
        for job_id in job_ids:
            self.jobs.add(job_id)
            self.cancelled.pop(job_id, None)
            if schedule.options.overlap != Overlap.ALLOW and schedule.last_job in self.pending:
                self.predecessors[job_id] = schedule.last_job
            self.pending[job_id] = schedule.options.task
            schedule.last_job = job_id
            if schedule.options.misfire_grace_time is not None:
                self.may_expire.add(job_id)

    def plan_until(self, until: datetime) -> None:
        """Expect a pass at each instant at which a schedule is due."""
        now = self.now
        while now < until:
            self.plan(now)
            due = [
                s.due_at for s in self.expected.values() if s.due_at is not None and now < s.due_at < until
            ]
            now = min(due, default=until)
        self.plan(until)

    # -- what callers and workers do -----------------------------------------------------------------------

    async def add(self, added: Expected, *, paused: bool, resolution: ConflictResolution) -> None:
        """Add a schedule, or apply the resolution to the one that has its id and has not finished."""
        existing_schedule = self.expected.get(added.schedule_id)
        is_new, raises = existing_schedule is None or existing_schedule.is_finished, False
        if is_new and existing_schedule is not None:
            added.created_at, added.last_job = existing_schedule.created_at, existing_schedule.last_job
            added.last_planned = existing_schedule.last_planned
            added.cursor = max(added.cursor, existing_schedule.last_planned or added.cursor)
        added.is_paused = paused
        if is_new:
            raises = added.next_fire_at is None
        elif existing_schedule is not None and resolution == ConflictResolution.REPLACE:
            names = ("trigger", "start", "end", "max_runs", "options")
            raises = not existing_schedule.edit(self.now, {name: getattr(added, name) for name in names})
        else:
            raises = resolution == ConflictResolution.RAISE
        options = added.options
        try:
            await self.scheduler.schedules.add(
                options.task,
                added.trigger,
                schedule_id=added.schedule_id,
                start=added.start,
                end=added.end,
                max_runs=added.max_runs,
                overlap=options.overlap,
                catch_up=options.catch_up,
                misfire_grace_time=options.misfire_grace_time,
                paused=paused,
                conflict_resolution=resolution,
            )
        except ValueError:
            self.check("add raises", True, raises)
        else:
            self.check("add raises", False, raises)
            if is_new:
                self.expected[added.schedule_id] = added

    async def work(self, *workers: int) -> None:
        """Let workers plan and run what is due; several do so at once."""
        await asyncio.gather(*(self.workers[worker].drain() for worker in workers))
        if len(workers) > 1:  # each may have left to the other one what that had locked
            await self.workers[0].drain()
        self.plan(self.now)

    async def crash(self, worker: int, number: int, moment: Literal["before", "after"]) -> None:
        """Let a worker crash while it plans, if it executes so many statements; the other one plans then."""
        if not await NumberedCrash(self.workers[worker], number, moment, plans=True).run(timedelta(0)):
            await self.workers[1 - worker].drain()
        self.plan(self.now)

    async def run_until(self, worker: int, span: timedelta) -> None:
        until = self.now + span
        self.plan_until(until)
        await self.workers[worker].run_until(until)

    # -- comparisons ---------------------------------------------------------------------------------------

    def check(self, subject: str, value: object, expected: object) -> None:
        if value != expected:
            self.faults.append(f"{subject}: {value!r}, not {expected!r}")

    async def compare(self) -> None:
        """Compare the tables with what is expected."""
        rows = await self.pool.fetch(
            "SELECT job_id, status FROM scheduled_jobs WHERE job_id LIKE 'schedule:%'"
        )
        statuses = {row["job_id"]: row["status"] for row in rows}
        self.check("jobs too many", sorted(statuses.keys() - self.jobs - self.manual_jobs), [])
        self.check("jobs too few", sorted((self.jobs | self.manual_jobs) - statuses.keys()), [])
        for job_id in self.jobs | self.manual_jobs:
            ended = statuses.get(job_id) not in {"pending", "running"}
            self.check(f"{job_id} has ended", ended, job_id not in self.pending)
            if ended and job_id not in self.may_expire:
                self.check(f"runs of {job_id}", self.runs[job_id], 0 if job_id in self.cancelled else 1)
            elif self.runs[job_id] > 1:
                self.faults.append(f"{job_id} has run {self.runs[job_id]} times")
        page = await self.scheduler.schedules.list()
        schedules = {schedule.schedule_id: schedule for schedule in page if schedule.task in {FREE, HELD}}
        self.check("schedules", sorted(schedules), sorted(self.expected))
        for schedule_id, expected in self.expected.items():
            self.compare_schedule(schedules[schedule_id], expected)
        assert self.faults == []

    def compare_schedule(self, schedule: Schedule, expected: Expected) -> None:
        for name, value in {
            "next_fire_at": expected.next_fire_at,
            "last_fire_at": expected.last_planned,
            "last_job_id": expected.last_job,
            "is paused": expected.is_paused,
            "paused_until": expected.paused_until,
            "has finished": expected.is_finished,
            "runs": expected.runs,
            "skipped": expected.skipped,
            "missed": expected.missed,
        }.items():
            shown = {
                "is paused": schedule.paused_at is not None,
                "has finished": schedule.finished_at is not None,
            }
            self.check(
                f"{name} of {schedule.schedule_id}", shown.get(name, getattr(schedule, name, None)), value
            )

    # -- what callers and workers do -----------------------------------------------------------------------

    def span_until_due(self) -> timedelta:
        """Return the time until a schedule is next due, so that stories meet the very instants."""
        due = [s.due_at - self.now for s in self.expected.values() if s.due_at and s.due_at > self.now]
        return min([*due, 3 * DAY])

    async def pause(self, schedule_id: str, span: timedelta | None, *, keeps_fire_times: bool) -> None:
        expected, until = self.expected.get(schedule_id), None if span is None else self.now + span
        was_changed = await self.scheduler.schedules.pause(
            schedule_id, until=until, resume_from="pause" if keeps_fire_times and until else "now"
        )
        self.check("pause", was_changed, expected is not None)
        if expected is not None:
            expected.pause(until, keeps_fire_times=keeps_fire_times and until is not None)

    async def resume(self, schedule_id: str, resume_from: timedelta | str) -> None:
        expected, since = self.expected.get(schedule_id), None
        if isinstance(resume_from, timedelta):
            since = self.now - resume_from
        was_changed = await self.scheduler.schedules.resume(schedule_id, resume_from=since or resume_from)
        self.check("resume", was_changed, expected is not None)
        if expected is not None:
            expected.resume(self.now, since, keeps_fire_times=resume_from == "pause")

    async def remove(self, schedule_id: str, *, cancels_jobs: bool) -> None:
        was_changed = await self.scheduler.schedules.remove(schedule_id, cancel_jobs=cancels_jobs)
        self.check("remove", was_changed, self.expected.pop(schedule_id, None) is not None)
        if cancels_jobs:
            prefix = f"schedule:{schedule_id}:"
            for job_id in [job_id for job_id in self.pending if job_id.startswith(prefix)]:
                self.cancelled[job_id] = self.now
                del self.pending[job_id]

    async def edit(self, schedule_id: str, **changes: Any) -> None:
        """Change the trigger or the bounds of a schedule."""
        raises = not self.expected[schedule_id].edit(self.now, dict(changes))
        try:
            await self.scheduler.schedules.update(schedule_id, **changes)
        except ValueError:
            self.check("update raises", True, raises)
        else:
            self.check("update raises", False, raises)

    async def trigger(self, schedule_id: str) -> None:
        expected = self.expected.get(schedule_id)
        job_id = await self.scheduler.schedules.trigger(schedule_id)
        self.check("trigger", job_id is not None, expected is not None)
        if job_id is not None and expected is not None:
            self.expect_jobs(expected, [job_id])
            self.jobs.discard(job_id)
            self.manual_jobs.add(job_id)

    async def backfill(self, schedule_id: str, span: timedelta) -> None:
        expected = self.expected.get(schedule_id)
        if expected is None:
            return
        start, end = self.now - span, self.now
        after = start if expected.start is None else max(start, expected.start)
        last = end if expected.end is None else min(end, expected.end + INSTANT)
        trigger, anchor = expected.fire_times.trigger, expected.fire_times.anchor
        fire_times = trigger.upcoming(200, after=after - INSTANT, anchor=anchor)  # also before its creation
        due = [fire_time for fire_time in fire_times if fire_time < last]
        new = [self.job_id(expected, at) for at in due if not self.has_job(expected, at)]
        self.check("backfill", await self.scheduler.schedules.backfill(schedule_id, start, end), new)
        self.expect_jobs(expected, new)

    async def hold(self, *, is_held: bool) -> None:
        self.is_held = is_held
        await (self.scheduler.tasks.pause(HELD) if is_held else self.scheduler.tasks.resume(HELD))


def has_schedules(story: Story) -> bool:
    return bool(story.world.expected)


class Story(CrashStory):
    """Random operations on one world."""

    world: World

    def existing(self, schedule_id: str) -> str:
        """Return the id of a schedule that exists, that one if possible."""
        return schedule_id if schedule_id in self.world.expected else min(self.world.expected)

    @initialize(begin=st.sampled_from(BEGINS), definitions=st.tuples(*[definitions()] * 3))
    def start(self, begin: datetime, definitions: tuple[Definition, ...]) -> None:
        self.do(self.begin(begin))
        for schedule_id, definition in zip("abc", definitions, strict=True):
            added = definition.at(schedule_id, begin)
            self.do(self.world.add(added, paused=False, resolution=ConflictResolution.RAISE))

    async def begin(self, begin: datetime) -> None:
        await self.pool.execute(
            "TRUNCATE scheduled_jobs, scheduler_schedules, scheduler_workers, scheduler_tasks"
        )
        workers = [TestScheduler(self.pool, now=begin, vacuum_enabled=False) for _ in range(2)]
        workers[1]._clock = workers[0]._clock
        for worker in workers:
            await self.stack.enter_async_context(worker)
        self.world = World(workers, self.pool)

    @rule(
        schedule_id=IDS,
        definition=definitions(),
        paused=st.sampled_from([False, False, True]),
        resolution=st.sampled_from(list(ConflictResolution)),
    )
    def add(
        self, schedule_id: str, definition: Definition, paused: bool, resolution: ConflictResolution
    ) -> None:
        self.do(self.world.work(0))  # so that an edit meets no search that a pause has requested
        added = definition.at(schedule_id, self.world.now)
        self.do(self.world.add(added, paused=paused, resolution=resolution))

    @precondition(has_schedules)
    @rule(schedule_id=IDS, cancels_jobs=st.booleans())
    def remove(self, schedule_id: str, cancels_jobs: bool) -> None:
        self.do(self.world.remove(self.existing(schedule_id), cancels_jobs=cancels_jobs))

    @precondition(has_schedules)
    @rule(schedule_id=IDS, trigger=st.sampled_from(sorted(TRIGGERS)))
    def edit_trigger(self, schedule_id: str, trigger: str) -> None:
        self.do(self.world.edit(self.existing(schedule_id), trigger=TRIGGERS[trigger]))

    @precondition(has_schedules)
    @rule(schedule_id=IDS, start=STARTS)
    def edit_start(self, schedule_id: str, start: timedelta | None) -> None:
        self.do(
            self.world.edit(
                self.existing(schedule_id), start=None if start is None else self.world.now + start
            )
        )

    @precondition(has_schedules)
    @rule(schedule_id=IDS, end=st.sampled_from([None, HOUR, 3 * DAY]))
    def edit_end(self, schedule_id: str, end: timedelta | None) -> None:
        self.do(self.world.work(0))
        self.do(
            self.world.edit(self.existing(schedule_id), end=None if end is None else self.world.now + end)
        )

    @precondition(has_schedules)
    @rule(schedule_id=IDS, max_runs=BOUNDS)
    def edit_max_runs(self, schedule_id: str, max_runs: int | None) -> None:
        self.do(self.world.edit(self.existing(schedule_id), max_runs=max_runs))

    @precondition(has_schedules)
    @rule(schedule_id=IDS, span=st.none() | SPANS, keeps_fire_times=st.booleans())
    def pause(self, schedule_id: str, span: timedelta | None, keeps_fire_times: bool) -> None:
        self.do(self.world.pause(self.existing(schedule_id), span, keeps_fire_times=keeps_fire_times))

    @precondition(has_schedules)
    @rule(schedule_id=IDS, keeps_fire_times=st.booleans(), count=st.integers(1, 3))
    def pause_until_a_fire_time(self, schedule_id: str, keeps_fire_times: bool, count: int) -> None:
        schedule_id, now = self.existing(schedule_id), self.world.now
        coming = self.world.expected[schedule_id].fire_times.between(now, now + 3 * DAY)[:count]
        if coming:
            pausing = self.world.pause(schedule_id, coming[-1] - now, keeps_fire_times=keeps_fire_times)
            self.do(pausing)

    @precondition(has_schedules)
    @rule(schedule_id=IDS, resume_from=st.sampled_from(["now", "pause"]) | SPANS)
    def resume(self, schedule_id: str, resume_from: timedelta | str) -> None:
        self.do(self.world.resume(self.existing(schedule_id), resume_from))

    @precondition(has_schedules)
    @rule(schedule_id=IDS)
    def trigger(self, schedule_id: str) -> None:
        self.do(self.world.trigger(self.existing(schedule_id)))

    @precondition(has_schedules)
    @rule(schedule_id=IDS, span=SPANS)
    def backfill(self, schedule_id: str, span: timedelta) -> None:
        self.do(self.world.backfill(self.existing(schedule_id), span))

    @rule(is_held=st.booleans())
    def hold(self, is_held: bool) -> None:
        self.do(self.world.hold(is_held=is_held))

    def be_away(self, span: timedelta | None) -> None:
        self.world.workers[0].advance(self.world.span_until_due() if span is None else span)

    @rule(span=SPANS | UNTIL_DUE)
    def advance(self, span: timedelta | None) -> None:
        self.be_away(span)

    @rule(span=SPANS | UNTIL_DUE, workers=st.sampled_from([(0,), (1,), (0, 1)]))
    def work_after(self, span: timedelta | None, workers: tuple[int, ...]) -> None:
        if len(workers) > 1:  # a job that ends while the other worker plans may be unfinished or not
            self.do(self.world.work(0))
        self.be_away(span)
        self.do(self.world.work(*workers))

    @rule(worker=st.sampled_from([0, 1]), span=SHORT_SPANS | UNTIL_DUE)
    def run_until(self, worker: int, span: timedelta | None) -> None:
        self.do(self.world.run_until(worker, self.world.span_until_due() if span is None else span))

    @rule(
        worker=st.sampled_from([0, 1]),
        span=SPANS | UNTIL_DUE,
        number=st.integers(0, 20),
        moment=st.sampled_from(["before", "after"]),
    )
    def crash_after(
        self, worker: int, span: timedelta | None, number: int, moment: Literal["before", "after"]
    ) -> None:
        self.be_away(span)
        self.do(self.world.crash(worker, number, moment))

    @rule(worker=st.sampled_from([0, 1]))
    def stop(self, worker: int) -> None:
        self.do(self.world.workers[worker].scheduler.shutdown())

    @invariant()
    def fire_times_become_what_the_guide_says(self) -> None:
        self.do(self.world.compare())

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.do(self.finish())
        finally:
            self.do(self.stack.aclose())

    async def finish(self) -> None:
        """Let all jobs end, and the clock go on for a while."""
        await self.world.hold(is_held=False)
        await self.world.work(0)
        await self.world.compare()


async def test_backfill_of_a_schedule_without_further_runs_counts_from_its_new_start(
    pool: asyncpg.Pool,
) -> None:
    async def run() -> None: ...

    begin = BEGINS[1]
    async with TestScheduler(pool, now=begin) as t:
        schedules = t.scheduler.schedules
        await schedules.add(run, Every(hours=1), schedule_id="a", max_runs=1)
        await t.run_until(2 * HOUR)
        start = begin + timedelta(minutes=10)
        await schedules.update("a", start=start)
        job_ids = await schedules.backfill("a", start, start + 2 * HOUR)
        assert job_ids == [f"schedule:a:{(start + hours * HOUR).isoformat()}" for hours in range(2)]


async def test_crash_at_any_statement_of_a_plan_leaves_no_replaced_job_uncancelled(dsn: str) -> None:
    async def run() -> None: ...

    pool = await open_pool(dsn)
    for number in range(100):
        await pool.execute("TRUNCATE scheduled_jobs, scheduler_schedules, scheduler_workers")
        async with TestScheduler(pool, now=BEGINS[1]) as t:
            schedules = t.scheduler.schedules
            await schedules.add(run, Every(hours=1), schedule_id="a", overlap=Overlap.CANCEL)
            replaced_id = await schedules.trigger("a")
            t.advance(HOUR)
            has_run = await NumberedCrash(t, number, "after", plans=True).run(timedelta(0))
            await t.drain()
            statuses = {job.job_id: job.status for job in await t.scheduler.list_jobs()}
            fire_time_job = f"schedule:a:{(BEGINS[1] + HOUR).isoformat()}"
            assert statuses == {replaced_id: JobStatus.CANCELLED, fire_time_job: JobStatus.COMPLETED}, number
        if has_run:
            break
    assert 15 < number < 40
    pool.terminate()


@pytest.mark.timeout(7200 if LONG else 600)
def test_random_stories_of_schedules_keep_each_fire_time_once(dsn: str) -> None:
    run_stories(Story, dsn, examples=300 if LONG else 5, steps=60 if LONG else 20)


@NIGHTLY
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_longer_stories_of_schedules_keep_each_fire_time_once(dsn: str) -> None:
    run_stories(Story, dsn, examples=12, steps=40)
