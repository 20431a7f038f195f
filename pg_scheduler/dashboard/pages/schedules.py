"""The pages of schedules, and of one schedule with its next fire times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import partial
from itertools import takewhile
from typing import Any, Final, NamedTuple

from pg_scheduler.base.foreign import class_name, message_of
from pg_scheduler.base.text.values import copy_fields
from pg_scheduler.dashboard.context import NotFoundError, PageRequest, RejectedError, View
from pg_scheduler.dashboard.json_tree import JsonTree, arguments_tree
from pg_scheduler.dashboard.pages.audit import AuditItem, item_of
from pg_scheduler.dashboard.pauses import PauseForm, pauses_of
from pg_scheduler.dashboard.positions import read_after, write_next
from pg_scheduler.facts.schedule_state import ScheduleState
from pg_scheduler.inspect import AuditRecord
from pg_scheduler.inspect.clock_changes import mark_fires, zone_of
from pg_scheduler.inspect.errors import FAILED_STATUSES
from pg_scheduler.inspect.fire_searches import search_one
from pg_scheduler.inspect.schedule_history import (
    RECORDS,
    PastFire,
    newest_results,
    search_past_fire_times,
    with_statuses,
)
from pg_scheduler.inspect.schedules import (
    list_schedules,
    next_after_pause,
    pauser_of,
    read_state,
    upcoming_after_pause,
)
from pg_scheduler.inspect.store.schedules import TABS
from pg_scheduler.inspect.texts import count
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.pause import Pause
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.triggers.search import INSTANT
from pg_scheduler.triggers.zones import parse_timezone

PAGE_LENGTH: Final = 25
"""Schedules of a page: each has 20 results, of 500 jobs."""

FIRE_TIMES: Final = 20
MAX_IN_DAY: Final = 1500
"""Fire times of the next 24 hours that are counted; a schedule that fires every minute has 1,440."""

DAY: Final = timedelta(days=1)
HOUR: Final = timedelta(hours=1)
SLOT: Final = timedelta(minutes=15)
MAX_TICKS: Final = DAY // SLOT
"""Fire times of the next 24 hours that have a tick of their own. If there are more, a tick stands for those
of 15 minutes."""

CHANGES: Final = frozenset({"update_schedule", "pause_schedule", "resume_schedule"})
"""The actions that change a schedule."""

HIDDEN_VALUES: Final[dict[str, Any]] = {"args": (), "kwargs": {}, "metadata": {}}
"""Empty arguments and metadata, for a list or a request that may not see those of the schedule."""

SHOWN: Final = 8
MAX_AFFECTED: Final = 100
NO_CHANGES: Final[Mapping[datetime, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSchedule(Schedule):
    """A schedule as a request may see it; in a list, without its arguments and metadata."""

    state: ScheduleState
    """Its state in one word."""
    zone: str
    """The time zone of its trigger; UTC if it has several or none."""
    paused_by: str | None
    """Who paused it; None if it is not paused, or that is unknown or hidden."""
    after_pause_at: datetime | None
    """The next fire time of a paused schedule after its pause, or if it were resumed now; None for none."""
    task_pause: Pause | None = None
    """The pause of its task, for which its jobs wait; None if the task is not paused."""
    results: Sequence[PastFire] = ()
    """The last 20 fire times and requested jobs, the newest first. In a list, it has fire times only, and is
    empty if they were not computed in time."""

    def next_local(self, now: datetime) -> str | None:
        """Return the next fire time in the zone, with the name of the zone at that time.

        Within an hour it has seconds and no day, within six days a weekday, and later a date.
        """
        if self.next_fire_at is None:
            return None
        local, wait = self.next_fire_at.astimezone(parse_timezone(self.zone)), self.next_fire_at - now
        if abs(wait) < HOUR:
            return f"{local:%H:%M:%S %Z}"
        # In less than six days, no two days have the same weekday.
        return f"{local:%a %H:%M %Z}" if abs(wait) < 6 * DAY else f"{local:%Y-%m-%d %H:%M %Z}"

    @property
    def last_run(self) -> PastFire | None:
        """The last result with a job that has ended."""
        return next((result for result in self.results if result.finished_at is not None), None)


@dataclass(frozen=True, slots=True)
class FireTime:
    """A fire time, as an instant, and as a text in the zone of the trigger."""

    at: datetime
    local: str
    clock_change: str | None = None
    """The effect of a clock change on this fire time, or on those just before it; None for no effect."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on the line of the next 24 hours."""

    at: datetime
    end: datetime | None = None
    """The end of the part of the day that it stands for; None for one fire time."""
    number: int = 1
    """The fire times for which it stands; if not all were counted, there may be more."""
    share: float = 1.0
    """Its height, from 0 to 1: how many these are, compared with the densest part."""


def local_fires(
    fires: Iterable[datetime], zone: tzinfo, changes: Mapping[datetime, str] = NO_CHANGES
) -> list[FireTime]:
    """Return fire times with their texts in a zone.

    ``changes`` has the effects of clock changes, by the fire times that they concern.
    """
    fire_times = []
    for at in fires:
        local_text = f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"
        fire_times.append(FireTime(at, local_text, clock_change=changes.get(at)))
    return fire_times


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePage(ShownSchedule):
    """A schedule with its next fire times and its changes."""

    fire_times: Sequence[FireTime]
    """The next fire times; of a paused schedule, those after its pause, or if it were resumed now."""
    ticks: Sequence[Tick]
    """The fire times of the next 24 hours, or their number in each 15 minutes."""
    fires_in_day: int
    """The number of these fire times, at most 1,500."""
    is_dense: bool
    """Whether counting stopped, so that there may be more."""
    changed_at: datetime | None
    """When it was last changed or paused, else when it was added; None if that is unknown."""
    problem: str | None
    changes: Sequence[AuditItem] | None
    """The last 50 changes; None if only some names are visible."""
    sees_arguments: bool
    last_error: str | None
    """The error of its newest job that has ended; None unless that one failed or expired."""
    is_claimed: bool
    """Whether code defines it and a live worker may declare it again, so that it cannot be removed."""
    _argument_names: Sequence[str] = ()
    """The names of its first positional arguments, as far as workers report them."""

    @property
    def _last_fire(self) -> FireTime | None:
        """Its last fire time, with its text in the zone; None if it never fired."""
        if self.last_fire_at is None:
            return None
        return local_fires([self.last_fire_at], parse_timezone(self.zone))[0]

    @property
    def _failed_runs(self) -> int:
        """How many of its last runs in a row ended with the same status as the newest one."""
        # The results are in descending order of time, so the newest status is the first.
        statuses = [result.status for result in self.results if result.finished_at is not None]
        newest_run = takewhile(lambda status: status is statuses[0], statuses)
        return len(list(newest_run))

    @property
    def _is_even(self) -> bool:
        """Whether it fires equally often in each part of a day, so that a line of the day shows nothing."""
        # A tick with an end stands for all fire times of 15 minutes. The first and the last 15 minutes of the
        # line are not complete.
        numbers = {tick.number for tick in self.ticks[1:-1] if tick.end is not None}
        return len(self.ticks) >= MAX_TICKS and len(numbers) == 1

    @property
    def _arguments(self) -> JsonTree:
        """The arguments as a tree of HTML."""
        return arguments_tree(self.args, self.kwargs, self._argument_names)


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePage(SchedulePage):
    """The form that pauses or resumes a schedule, with the fire times that this affects."""

    entered: PauseForm
    """The form as it was entered."""
    affected: Sequence[FireTime]
    """The first 100 fire times of the pause: up to now, or those before the end that was entered. Without an
    end, the next eight."""

    @property
    def is_more(self) -> bool:
        """Whether there may be further fire times of the pause."""
        return len(self.affected) == MAX_AFFECTED

    @property
    def _status(self) -> int:
        """The status of the answer."""
        return 400 if self.entered.wrong else 200


async def build(request: PageRequest) -> View:
    """Read a page of schedules, as far as the request may see them."""
    parameters = request.parameters
    state = request.choice("state", TABS, "all")
    task = parameters.get("task") or None
    text = parameters.get("q") or None
    visible_names = request.access.visible_names
    try:
        listing = await list_schedules(
            request.inspector,
            state=state,
            names=visible_names,
            task=task,
            text=text,
            limit=PAGE_LENGTH,
            after=await read_after(request),
        )
    # The address has a text that the name or the id of no row can be, or that is no position in this list.
    except ValueError as error:
        raise NotFoundError(str(error)) from error
    results = await newest_results(request.inspector, listing.items, request.access.sees_name)
    pauses = await pauses_of((schedule.task for schedule in listing.items), request)
    times_after_pause = await next_after_pause(listing.items, request.now)
    items = [
        copy_fields(
            ShownSchedule,
            schedule,
            **HIDDEN_VALUES,
            state=listing.states[schedule.schedule_id],
            zone=zone_of(schedule),
            # The audit has who paused it, and only a request that sees all names may read the audit.
            paused_by=listing.paused_by.get(schedule.schedule_id) if visible_names is None else None,
            after_pause_at=times_after_pause.get(schedule.schedule_id),
            results=results.get(schedule.schedule_id, ()),
            task_pause=pauses.get(schedule.task),
        )
        for schedule in listing.items
    ]
    return View(
        items=items,
        next=await write_next(request, listing.next),
        counts=listing.counts,
        is_capped=listing.is_capped,
        state=state,
        task=task,
        q=text,
        after=parameters.get("after") or None,
        _summary=count(listing.counts["all"], is_capped=listing.is_capped),
    )


async def visible_schedule(request: PageRequest, schedule_id: str) -> Schedule:
    """Return a schedule that the request may see: one whose task has a visible name.

    Raises:
        NotFoundError: It does not exist, or the request does not see it.
    """

    def is_visible(schedule: Schedule) -> bool:
        """Return whether the request sees the task of a schedule."""
        return request.access.sees_name(schedule.task)

    return await request.visible("schedule", schedule_id, request.inspector.get_schedule, is_visible)


def is_claimed(schedule: Schedule, workers: Iterable[Worker]) -> bool:
    """Return whether code defines a schedule and a live worker claims its task, and so may declare it.

    A worker whose ``names`` are None claims the jobs of all names.
    """
    return schedule.owner == "code" and any(
        worker.is_alive and (worker.names is None or schedule.task in worker.names) for worker in workers
    )


async def build_one(request: PageRequest) -> SchedulePage:
    """Read a schedule and compute its next fire times."""
    schedule = await visible_schedule(request, request.required("id"))
    state = await read_state(request.inspector, schedule.schedule_id)
    if state is None:
        raise NotFoundError.of("schedule", schedule.schedule_id)
    records = (await request.inspector.audit(subject=schedule.schedule_id, limit=RECORDS)).items
    fires, day = list[FireTime](), _Day((), 0, is_capped=False)
    past: Sequence[PastFire] = ()
    problem = None
    try:
        fires, day = await search_one(schedule.trigger, partial(_next_fires, schedule, request.now))
        past = await search_past_fire_times(schedule, records)
    except Exception as error:  # noqa: BLE001 - a trigger that the user has written may raise anything
        problem = message_of(error) or class_name(error)
    # Only a request that sees all names may see what the audit contains.
    is_open = request.access.visible_names is None
    results = await with_statuses(request.inspector, past, request.access.sees_name)
    return copy_fields(
        SchedulePage,
        schedule,
        **_permitted(schedule, request),
        state=state,
        zone=zone_of(schedule),
        paused_by=pauser_of(schedule, records) if is_open else None,
        after_pause_at=fires[0].at if fires and schedule.paused_at is not None else None,
        task_pause=(await pauses_of([schedule.task], request)).get(schedule.task),
        results=results,
        last_error=await _last_error(request, results),
        fire_times=fires,
        ticks=day.ticks,
        fires_in_day=day.number,
        is_dense=day.is_capped,
        changed_at=_changed_at(schedule, records),
        problem=problem,
        changes=[item_of(record, request) for record in records] if is_open else None,
        sees_arguments=request.access.sees_arguments,
        is_claimed=is_claimed(schedule, await request.workers()),
        _argument_names=await request.argument_names(schedule.task, schedule.args),
    )


async def build_pause(request: PageRequest) -> PausePage:
    """Read a schedule, and compute the fire times that a pause affects."""
    page, entered = await build_one(request), PauseForm.of(request.parameters)
    until = None
    try:
        until = entered.ends_at(request.now)
    except RejectedError as error:
        entered = entered._replace(wrong=str(error))
    affected, changes = list[datetime](), NO_CHANGES
    # A schedule whose trigger cannot be searched for fire times can be paused too, and then none are listed.
    if page.problem is None:
        fire_times = await search_one(page.trigger, partial(page.upcoming, MAX_AFFECTED))
        # For a schedule that is not paused, these are the fire times until the end of the new pause. A paused
        # schedule keeps the next fire time that it had, so for it they are the fire times of the pause so
        # far.
        end_at = until if page.paused_at is None else request.now
        if end_at is None:
            affected = fire_times[:SHOWN]
        else:
            affected = [fire_time for fire_time in fire_times if fire_time < end_at]
        if page.trigger is not None:
            changes = mark_fires(page.trigger, page.anchor, affected)
    return copy_fields(
        PausePage,
        page,
        **HIDDEN_VALUES,
        changes=None,
        entered=entered,
        affected=local_fires(affected, parse_timezone(page.zone), changes),
    )


def _permitted(schedule: Schedule, request: PageRequest) -> dict[str, Any]:
    """Return the arguments and the metadata as far as the request may see them."""
    if not request.access.sees_arguments:
        return HIDDEN_VALUES
    return {name: request.settings.redaction.values(getattr(schedule, name)) for name in HIDDEN_VALUES}


async def _last_error(request: PageRequest, results: Iterable[PastFire]) -> str | None:
    """Return the error of the newest job that has ended; None unless it failed or expired."""
    last_result = next((result for result in results if result.finished_at is not None), None)
    if last_result is None or last_result.status not in FAILED_STATUSES:
        return None
    job = await request.inspector.get_job(last_result.job_id)
    return None if job is None else request.visible_job(job).error_message


def _changed_at(schedule: Schedule, records: Sequence[AuditRecord]) -> datetime | None:
    """Return when a schedule was last changed, else when it was added; None if that is unknown.

    ``records`` are its newest audit records. The column ``updated_at`` does not help, because each firing
    writes the row too.
    """
    changes = [record.at for record in records if record.action in CHANGES]
    if changes:
        return max(changes)
    # A missing record of a change proves nothing if older records were not read. The version grows with each
    # edit, also with one that has no record.
    was_never_changed = schedule.version <= 1 and len(records) < RECORDS
    return schedule.created_at if was_never_changed else None


class _Day(NamedTuple):
    """The line of the next 24 hours, the number of fire times on it, and whether there may be more."""

    ticks: Sequence[Tick]
    number: int
    is_capped: bool


def _day_of(schedule: Schedule, fire_times: Sequence[datetime], now: datetime) -> _Day:
    """Return the line of the next 24 hours of a schedule with these next fire times.

    Up to 96 fire times have a tick each. If there are more, a tick stands for those of 15 minutes, and its
    height shows how many these are.
    """
    end = now + DAY
    fires = [fire for fire in fire_times if now <= fire < end]
    is_capped = len(fire_times) == MAX_IN_DAY and fire_times[-1] < end
    if len(fires) <= MAX_TICKS:
        return _Day([Tick(fire) for fire in fires], len(fires), is_capped)
    counts = Counter(fire.replace(minute=fire.minute // 15 * 15, second=0, microsecond=0) for fire in fires)
    highest_count = max(counts.values())
    if is_capped:
        # The fire times that follow were not computed, so the last slot and the later ones have no true
        # count. One search for each of these slots finds whether it has any fire time. If so, it gets the
        # full height.
        slot = max(counts)
        while slot < end:
            # The result is later than ``after``, so the search begins just before the slot.
            next_times = schedule.upcoming(1, after=slot - INSTANT)
            if next_times and next_times[0] < slot + SLOT:
                counts[slot] = highest_count
            slot += SLOT
    ticks = [
        Tick(slot, slot + SLOT, number, number / highest_count) for slot, number in sorted(counts.items())
    ]
    return _Day(ticks, len(fires), is_capped)


def _next_fires(schedule: Schedule, now: datetime) -> tuple[list[FireTime], _Day]:
    """Return the next 20 fire times, and the line of the next 24 hours."""
    zone = parse_timezone(zone_of(schedule))
    fire_times = upcoming_after_pause(schedule, MAX_IN_DAY, now)
    next_fires = fire_times[:FIRE_TIMES]
    changes = {} if schedule.trigger is None else mark_fires(schedule.trigger, schedule.anchor, next_fires)
    return local_fires(next_fires, zone, changes), _day_of(schedule, fire_times, now)
