"""Decide when a schedule fires: its first fire time, those that are due, and the one after them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.schedules.row import ScheduleRow, catch_up_of, read_trigger
from pg_scheduler.triggers.base import (
    Trigger,
    first_fire_time,
    is_fixed_delay,
    is_quick,
    next_fire_time,
    restricted_trigger,
)
from pg_scheduler.triggers.missed import FireCount, count_fire_times, fire_times_around, newest_fire_times
from pg_scheduler.triggers.search import INSTANT, Search
from pg_scheduler.triggers.zones import data_version

CLOCK_TOLERANCE: Final = timedelta(seconds=5)
"""A clock that was set back by less catches up soon. The SQL fragment ``is_ahead`` has the same value."""

_ZONE: Final = re.compile(r'"timezone": ?"(?!UTC")')
"""A field of a trigger's JSON with a time zone whose rules may change."""


@dataclass(frozen=True, slots=True)
class Advance:
    """The result of planning one schedule.

    Attributes:
        fire_times: The fire times that become jobs, in order.
        due_times: When each of these jobs is due: later than its fire time by the jitter.
        last_fire_at: The fire time up to which the schedule is planned; None keeps the stored one.
        next_fire_at: The next fire time; None if there is none, or under a `FixedDelay` until the job ends.
        skipped: Fire times that are dropped because the schedule is busy.
        missed: Missed fire times without a job.
        is_exact: Whether ``missed`` is exact; otherwise it is a lower bound.
        is_finished: Whether no further fire time becomes a job.
        searched_from: The next fire time is the first one after this instant.
        following: The fire time after the latest due one. It is the next one if some of the jobs are not
            enqueued, by the rules of `after_insertion()`; None if there is none. That of a `FixedDelay` is
            searched for only if it may become the next one: a search may take long, and its error pauses the
            schedule.
        spare: Missed fire times for which no run is left, in order. They take the places of those whose jobs
            exist already; see ``with_spare()``.
    """

    fire_times: tuple[datetime, ...] = ()
    due_times: tuple[datetime, ...] = ()
    last_fire_at: datetime | None = None
    next_fire_at: datetime | None = None
    skipped: int = 0
    missed: int = 0
    is_exact: bool = True
    is_finished: bool = False
    searched_from: datetime | None = None
    following: datetime | None = None
    spare: tuple[datetime, ...] = ()


def must_retime(row: ScheduleRow, old: ScheduleRow, trigger: Trigger, now: datetime) -> bool:
    """Return whether the edit from ``old`` to ``row`` requires a search for the next fire time."""
    # The clock was set back since the fire time was computed.
    if old.next_fire_at is not None and is_ahead(old, now):
        return True
    has_same_fire_times = row.trigger == old.trigger and row.start_at == old.start_at
    if has_same_fire_times and row.end_at == old.end_at and row.max_runs == old.max_runs:
        return False
    # The edit may let a finished schedule fire again, or end this one.
    if old.finished_at is not None or _has_run_out(row):
        return True
    # The schedule waits for the end of its last job, which will set the fire time.
    if old.next_fire_at is None:
        return not follows_last_job(row, old, trigger)
    # The stored fire time stays valid if the trigger and the start are equal, and the end is not before it.
    is_within_end = row.end_at is None or old.next_fire_at <= row.end_at
    return not (has_same_fire_times and is_within_end)


def follows_last_job(row: ScheduleRow, old: ScheduleRow, trigger: Trigger) -> bool:
    """Return whether an edited schedule still waits for the end of its last job, unless that has ended.

    A schedule with a fixed delay has no next fire time while its last job runs. The end of that job sets the
    fire time, and finds the row by the id of the schedule. So before and after the edit, the schedule must
    have a fixed delay and the same id.
    """
    return (
        old.next_fire_at is None
        and not _has_run_out(row)
        and row.schedule_id == old.schedule_id
        and is_fixed_delay(trigger)
        and _follows_jobs(old)
    )


def retime(
    row: ScheduleRow, trigger: Trigger, now: datetime, *, is_new: bool = False, may_end: bool = False
) -> ScheduleRow:
    """Return a new or edited schedule with its next fire time, or with a request to search for it.

    The search is requested if it may take long or raise an exception. A call of `Scheduler.schedules` then
    searches in a thread. A schedule of the code is left to the planner, which pauses it after an error.

    Args:
        row: The schedule.
        trigger: Its trigger. It may be one of an application that cannot be read from the row.
        now: The time of the database.
        is_new: Whether it is new, so that a start in the past is its first fire time.
        may_end: Whether a schedule without a fire time is finished; otherwise that is an error.

    Raises:
        ValueError: It has none from its start to its end.
    """
    row = request_search(row, trigger, now=now, is_new=is_new)
    if row.resume_from is None or not is_quick(trigger):
        return row
    if not may_end:
        return find_next_fire(row)
    first = first_to_plan(row)
    finished_at = now if first is None else None
    return replace(with_next_fire(row, first), finished_at=finished_at)


def request_search(row: ScheduleRow, trigger: Trigger, *, now: datetime, is_new: bool = False) -> ScheduleRow:
    """Return a new or edited schedule, marked so that the planner searches for its next fire time.

    The mark is ``resume_from``, the instant after which to search. If the schedule has a start, it becomes
    the anchor, and a new schedule fires first at its start, even if that has passed. An edited schedule fires
    after now. A schedule that has no runs left is finished instead.
    """
    after, start = now, row.start_at
    if start is not None:
        # A schedule without further runs gets the anchor too, since backfill() counts from it.
        row = replace(row, anchor=restricted_trigger(trigger)._anchor_from(start))  # noqa: SLF001
        after = not_before(trigger, start) if is_new else now
    if _has_run_out(row):
        return replace(row, next_fire_at=None, resume_from=None, finished_at=now)
    # The clock was set back since the last fire time. Without this, the search would begin after that fire
    # time, which the clock reaches again later.
    if is_ahead(row, now) and row.last_fire_at is not None:
        row = replace(row, last_fire_at=min(row.last_fire_at, now))
    # Due now: the planner searches in its next pass, unless the caller does.
    return replace(row, next_fire_at=now, resume_from=after, finished_at=None)


def find_next_fire(row: ScheduleRow) -> ScheduleRow:
    """Return a schedule with its next fire time, by the search that `request_search()` has requested.

    Raises:
        ValueError: It has none from its start to its end, or the search takes too many steps.
    """
    if row.resume_from is None:
        return row
    trigger = read_trigger(row.trigger)
    first = first_fire_time(trigger, after=_begin_of_search(row, row.resume_from), anchor=row.anchor)
    if first > row.last_fire:
        end = f"{row.last_fire}, after which no schedule fires" if row.end_at is None else f"end {row.end_at}"
        raise ConfigurationError(
            f"'{trigger}' has no fire time between {row.start_at or 'now'} and {end}; the next one is {first}"
        )
    return with_next_fire(row, first)


def with_next_fire(row: ScheduleRow, fire: datetime | None) -> ScheduleRow:
    """Return a schedule with the result of the search that was requested."""
    return replace(
        row,
        next_fire_at=fire,
        resume_from=None,
        searched_from=row.resume_from,
        tzdata=zone_data_of(row),
    )


def first_to_plan(row: ScheduleRow) -> datetime | None:
    """Return the first fire time to plan: never at or before the last one that was planned.

    Raises:
        ValueError: The search takes too many steps, or the trigger returned something else than an instant.
    """
    stored_fire, last_fire = row.next_fire_at, row.last_fire_at
    # This mark requests a search, so the stored fire time does not count.
    if row.resume_from is not None:
        return _first_after(row, _begin_of_search(row, row.resume_from))
    # A stored fire time that was planned already is that of a row which was edited by hand, for example.
    if stored_fire is not None and last_fire is not None and stored_fire <= last_fire:
        return _first_after(row, last_fire)
    return stored_fire


def after_pause(row: ScheduleRow, until: datetime) -> ScheduleRow:
    """Return a paused schedule as it is after its pause has ended by itself, at the instant ``until``.

    The fire times before that instant are discarded, unless the schedule keeps them as missed ones.
    """
    after = row.resume_from
    first = None
    if not row.keeps_fire_times and row.next_fire_at is not None:
        first = first_to_plan(row)
    if first is not None and first < until:
        end_of_pause = not_before(read_trigger(row.trigger), until)
        after = end_of_pause if after is None else max(after, end_of_pause)
    return replace(row, paused_at=None, paused_until=None, keeps_fire_times=False, resume_from=after)


def pass_time(
    row: ScheduleRow,
    now: datetime,
    *,
    grace_s: float | None = None,
    is_busy: bool = False,
    is_unique: bool = False,
) -> Advance:
    """Return what becomes of a schedule's fire times up to now: which of them become jobs, and what follows.

    Args:
        row: The schedule.
        now: The time of the database.
        grace_s: Seconds by which a fire time may be found late; a later one is missed. None for no limit.
        is_busy: Whether the last job is unfinished and the overlap policy drops fire times.
        is_unique: Whether the database may reject the jobs.

    Raises:
        ValueError: The search takes too many steps, or the trigger returned something else than an instant.
    """
    if row.paused_until is not None:
        # Without a next fire time, there is nothing to plan: only its pause ends.
        if row.next_fire_at is None:
            return Advance(is_finished=row.finished_at is not None)
        row = after_pause(row, row.paused_until)
    handled_until = None
    if row.next_fire_at is not None and is_ahead(row, now) and not _is_due(row, now):
        # Before the clock was set back, the schedule has fired for the time up to now, and for times that the
        # clock reaches again later. It must not fire for the time up to now again. So the search begins now,
        # and the last fire time does not move its begin to later.
        handled_until = None if row.last_fire_at is None else min(row.last_fire_at, now)
        after = now if row.resume_from is None else min(row.resume_from, now)
        row = replace(row, last_fire_at=None, resume_from=after)
    if row.resume_from is None and row.next_fire_at is not None and row.next_fire_at > now:
        row = _request_search_again(row)
    trigger, anchor, end = read_trigger(row.trigger), row.anchor, row.last_fire
    first = first_to_plan(row)
    if first is None or first > end:
        return Advance(is_finished=True)
    if first > now:
        return Advance(
            next_fire_at=first,
            last_fire_at=handled_until,
            searched_from=row.resume_from or row.searched_from,
        )
    latest_possible = min(now, end)
    latest, following = fire_times_around(trigger, first=first, now=latest_possible, anchor=anchor)
    if following is not None and following > end:
        following = None
    # The stored time is not a fire time of the trigger, since a row can be edited by hand.
    if latest < first:
        return Advance(next_fire_at=following, searched_from=first, is_finished=following is None)
    is_missed = grace_s is not None and (now - latest).total_seconds() > grace_s
    due_count = FireCount(1, is_exact=True)
    if latest != first:
        due_count = count_fire_times(trigger, first=first, now=latest_possible, anchor=anchor)
    job_times = [first]
    # If several fire times are due, or the only one is missed, the catch-up policy decides. If it selects no
    # fire time, the latest one becomes a job unless it is missed.
    if latest != first or is_missed:
        default_times = [] if is_missed else [latest]
        job_times = _caught_up(row, trigger, now, first, latest) or default_times
    runs_left = None if row.max_runs is None else max(row.max_runs - row.runs, 0)
    # A spare fire time has no run left. It takes the place of one whose job exists already. Without a limit
    # of runs, no fire time is spare. If no run is left, there is no place that a spare one could take.
    spare = job_times[runs_left:] if runs_left else []
    job_times = job_times[:runs_left]
    skipped = len(job_times) if is_busy else 0
    if is_busy:
        job_times, spare = [], []
    is_last = runs_left is not None and len(job_times) >= runs_left
    follows_end = is_fixed_delay(trigger)
    # Under a fixed delay, the end of the job that is enqueued now sets the next fire time.
    awaits_end = bool(job_times) and follows_end and not is_last
    # The search may take long. With a fixed delay its result is needed only if a run is left, or if the
    # database may reject the job of the last run.
    if follows_end and (is_unique or not is_last):
        following = _first_after(row, now)
    next_fire_at = None if is_last or awaits_end else following
    return Advance(
        fire_times=tuple(job_times),
        due_times=_due_times(row, job_times),
        last_fire_at=latest,
        next_fire_at=next_fire_at,
        skipped=skipped,
        missed=max(due_count.number - len(job_times) - skipped, 0),
        is_exact=due_count.is_exact,
        is_finished=next_fire_at is None and not awaits_end,
        searched_from=now if follows_end else latest,
        following=following,
        spare=tuple(spare),
    )


def with_spare(row: ScheduleRow, advance: Advance, enqueued: Collection[datetime]) -> Advance:
    """Return what becomes of the fire times if the jobs of some exist already, for example by a backfill.

    ``enqueued`` are the fire times whose jobs exist. They use up none of the runs that are left, so spare
    fire times, for which there was no run, become jobs in their places.
    """
    fire_times = list(advance.fire_times)
    free_runs = sum(fire_time in enqueued for fire_time in fire_times)
    for fire_time in advance.spare:
        if free_runs == 0:
            break
        fire_times.append(fire_time)
        # A spare fire time whose job exists uses up no run either.
        if fire_time not in enqueued:
            free_runs -= 1
    added_count = len(fire_times) - len(advance.fire_times)
    return replace(
        advance,
        fire_times=tuple(fire_times),
        due_times=_due_times(row, fire_times),
        missed=advance.missed - added_count,
        spare=(),
    )


def after_insertion(row: ScheduleRow, advance: Advance, inserted: int, *, is_unique: bool) -> Advance:
    """Return what becomes of the fire times after the insert, which has enqueued ``inserted`` of their jobs.

    If the task is unique, the fire times without a new job count as skipped. Otherwise their jobs exist
    already. Neither uses up a run, so a schedule that would have ended with its last run may continue.
    """
    without_job = len(advance.fire_times) - inserted
    if not without_job:
        return advance
    if is_unique:
        advance = replace(advance, skipped=advance.skipped + without_job)
    # After a new job, the next fire time is right as it is; a `FixedDelay` waits for the end of that job.
    # Without a new job, a `FixedDelay` continues by itself. A schedule that was finished by its last run
    # continues if that run was not used up.
    if inserted and not advance.is_finished:
        return advance
    is_last = row.max_runs is not None and row.runs + inserted >= row.max_runs
    following = None if is_last else advance.following
    return replace(advance, next_fire_at=following, is_finished=following is None)


def fire_times_between(row: ScheduleRow, start: datetime, end: datetime, *, limit: int) -> list[datetime]:
    """Return the fire times of a schedule in ``start <= t < end``, for a backfill.

    Raises:
        ValueError: ``end`` is before ``start``, there are more than ``limit``, or they follow the ends of
            jobs.
    """
    if end < start:
        raise ConfigurationError(f"end {end} is before start {start}; swap them")
    trigger = read_trigger(row.trigger)
    if is_fixed_delay(trigger):
        raise ConfigurationError(f"'{trigger}' has no fire times in the past; use trigger() instead")
    after = not_before(trigger, start if row.start_at is None else max(start, row.start_at))
    # A fire time at the end of the schedule counts, while one at ``end`` does not.
    stop = min(end, row.last_fire + INSTANT)
    search = Search()
    # The search continues beyond the limit, to count the fire times for the error.
    max_counted = 100 * limit
    search.left += max_counted
    fire_times: list[datetime] = []
    count = 0
    fire = next_fire_time(trigger, after, row.anchor, search)
    while fire is not None and fire < stop and count < max_counted:
        count += 1
        if count <= limit:
            fire_times.append(fire)
        fire = next_fire_time(trigger, fire, row.anchor, search)
    if count > limit:
        bound = " at least" if count == max_counted else ""
        raise ConfigurationError(
            f"schedule {row.schedule_id!r} has{bound} {count} fire times from {start} to {end}, more than "
            f"limit = {limit}; pass a larger limit= or a shorter span"
        )
    return fire_times


def not_before(trigger: Trigger, start: datetime) -> datetime:
    """Return the instant after which to search, so that the first fire time is not before the start.

    A search finds fire times after an instant. So it begins just before the start, at which the schedule may
    fire. A fixed delay counts from the instant of the search, so that is the start itself.
    """
    return start if is_fixed_delay(trigger) else start - INSTANT


def fire_time_job_id(schedule_id: str, fire_time: datetime, *, owner: str = "api") -> str:
    """Return the id of the job of a fire time. Every node derives the same id, so the job exists once."""
    return f"{job_id_prefix(schedule_id, owner)}{fire_time.astimezone(UTC).isoformat()}"


def job_id_prefix(schedule_id: str, owner: str) -> str:
    """Return the text with which the ids of all jobs of a schedule begin."""
    kind = "periodic" if owner == "code" else "schedule"
    return f"{kind}:{schedule_id}:"


def _due_times(row: ScheduleRow, fire_times: Sequence[datetime]) -> tuple[datetime, ...]:
    """Return when the jobs of fire times are due: at these times, or later by the jitter."""
    if not row.jitter_seconds:
        return tuple(fire_times)
    return tuple(fire + jitter_of(row, fire) for fire in fire_times)


def jitter_of(row: ScheduleRow, fire_time: datetime) -> timedelta:
    """Return how much later than its fire time a job is due: the same on every node and in every preview.

    It is a part of ``jitter_seconds``, or of the time until the next fire time if that is shorter.
    """
    # The first 6 bytes of a hash, as a fraction from 0 to 1: random, but equal for the same fire time.
    hashed_text = f"{row.schedule_id}:{fire_time.astimezone(UTC).isoformat()}"
    fraction = int.from_bytes(hashlib.sha256(hashed_text.encode()).digest()[:6]) / 2**48
    longest_jitter = timedelta(seconds=row.jitter_seconds)
    following = next_fire_time(read_trigger(row.trigger), fire_time, row.anchor)
    if following is not None:
        longest_jitter = min(longest_jitter, following - fire_time)
    return fraction * longest_jitter


def zone_data_of(row: ScheduleRow) -> str | None:
    """Return the version of the time zone data by which this process computes the fire times of a row.

    None if the trigger has no time zone but UTC, or the version is unknown.
    """
    return data_version() if _ZONE.search(row.trigger) else None


def is_ahead(row: ScheduleRow, now: datetime) -> bool:
    """Return whether the server's clock was set back since a schedule was written or has fired.

    It was, if one of these is at an instant that the clock has not reached. A last fire time that equals the
    anchor does not count: it is that of the pending job of a chain of pg_scheduler 0.2, which may be due
    later.
    """
    limit = now + CLOCK_TOLERANCE
    last_fire = row.last_fire_at
    return row.updated_at > limit or (last_fire is not None and last_fire > limit and last_fire != row.anchor)


def _is_due(row: ScheduleRow, now: datetime) -> bool:
    """Return whether a schedule has a fire time up to now that was not planned yet."""
    first = first_to_plan(row)
    return first is not None and first <= now


def _request_search_again(row: ScheduleRow) -> ScheduleRow:
    """Return the row with a request to repeat the last search, if older time zone data gave its result."""
    data = zone_data_of(row)
    # Versions such as 2025a and 2025b compare as texts.
    is_outdated = row.tzdata is not None and data is not None and row.tzdata < data
    return replace(row, resume_from=row.searched_from) if is_outdated else row


def _follows_jobs(row: ScheduleRow) -> bool:
    """Return whether a schedule has a fixed delay; False if its trigger cannot be read."""
    try:
        return is_fixed_delay(read_trigger(row.trigger))
    # Another process, or a person, has written a trigger that this process cannot interpret.
    except ValueError:
        return False


def _has_run_out(row: ScheduleRow) -> bool:
    """Return whether as many fire times as ``max_runs`` allows have become jobs."""
    return row.max_runs is not None and row.runs >= row.max_runs


def _begin_of_search(row: ScheduleRow, after: datetime) -> datetime:
    """Return the instant after which to search for the next fire time: not before ``after``.

    It is later if the last fire time or the start of the schedule is later.
    """
    if row.last_fire_at is not None:
        after = max(after, row.last_fire_at)
    if row.start_at is not None:
        after = max(after, not_before(read_trigger(row.trigger), row.start_at))
    return after


def _first_after(row: ScheduleRow, after: datetime) -> datetime | None:
    """Return the first fire time after an instant; None if there is none until the end of the schedule."""
    fire = next_fire_time(read_trigger(row.trigger), after, row.anchor)
    return None if fire is None or fire > row.last_fire else fire


def _caught_up(
    row: ScheduleRow, trigger: Trigger, now: datetime, first: datetime, latest: datetime
) -> list[datetime]:
    """Return the fire times from ``first`` to ``latest`` that become jobs by the schedule's catch-up policy.

    Fire times that are older than ``within`` of the policy are left out.
    """
    catch_up = catch_up_of(row)
    oldest = first if catch_up.within is None else max(first, now - catch_up.within)
    if latest < oldest:
        return []
    if catch_up.selection == "latest":
        return [latest]
    if catch_up.selection == "earliest":
        if oldest == first:
            return [first]
        # Fire times before ``oldest`` are left out, so the first one from there on is searched for.
        earliest = next_fire_time(trigger, oldest - INSTANT, row.anchor)
        return [latest if earliest is None else min(earliest, latest)]
    if catch_up.selection == "all":
        # This selection always has a limit; the 1 is for type checkers.
        limit = catch_up.limit or 1
        fire_times = newest_fire_times(trigger, first=first, now=latest, anchor=row.anchor, limit=limit)
        return [fire for fire in fire_times if fire >= oldest]
    return []
