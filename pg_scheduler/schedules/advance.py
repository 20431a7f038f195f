"""Advance a due schedule: the fire times that become jobs, the missed ones, and the next fire time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pg_scheduler.schedules.policies import LATEST, CatchUp
from pg_scheduler.triggers.base import Trigger, is_fixed_delay, next_fire_time
from pg_scheduler.triggers.missed import FireCount, count_fire_times, latest_fire_time, newest_fire_times
from pg_scheduler.triggers.search import INSTANT, Search


@dataclass(frozen=True, slots=True)
class Advance:
    """The result of planning one schedule.

    Attributes:
        fire_times: The fire times that become jobs, in order.
        last_fire_at: The latest due fire time; None if none is due.
        next_fire_at: The one after it; None if there is none, or until the job ends under a `FixedDelay`.
        skipped: Fire times that are dropped because the schedule is busy.
        missed: Missed fire times without a job.
        is_exact: Whether there are no more missed ones than that.
        is_finished: Whether no further fire time becomes a job.
    """

    fire_times: tuple[datetime, ...] = ()
    last_fire_at: datetime | None = None
    next_fire_at: datetime | None = None
    skipped: int = 0
    missed: int = 0
    is_exact: bool = True
    is_finished: bool = False


def not_before(trigger: Trigger, start: datetime) -> datetime:
    """Return the instant after which to search for the first fire time of a schedule with a start."""
    return start if is_fixed_delay(trigger) else start - INSTANT


def first_allowed(
    trigger: Trigger, *, after: datetime, anchor: datetime, end: datetime | None
) -> datetime | None:
    """Return the first fire time after an instant that is not after ``end``; None if there is none.

    Raises:
        ValueError: The search takes too many steps, or the trigger returned something else than an instant.
    """
    fire = next_fire_time(trigger, after, anchor, Search())
    return None if fire is None or (end is not None and fire > end) else fire


def advance(
    trigger: Trigger,
    *,
    anchor: datetime,
    first: datetime | None,
    now: datetime,
    end: datetime | None = None,
    catch_up: CatchUp = LATEST,
    grace_s: float | None = None,
    runs_left: int | None = None,
    is_busy: bool = False,
) -> Advance:
    """Return what becomes of the fire times from ``first`` to ``now``.

    Args:
        trigger: The trigger of the schedule.
        anchor: The instant from which an interval is counted.
        first: The next fire time; None if there is none.
        now: The time of the database.
        end: No fire time is after it.
        catch_up: Selects the jobs of missed fire times.
        grace_s: A fire time that is found later than this is missed; None for never.
        runs_left: The number of jobs at most.
        is_busy: Whether the last job is unfinished and the overlap policy drops fire times.

    Raises:
        ValueError: The search takes too many steps, or the trigger returned something else than an instant.
    """
    if first is None or (end is not None and first > end):
        return Advance(is_finished=True)
    if first > now:
        return Advance(next_fire_at=first)
    limit = now if end is None else min(now, end)
    latest = latest_fire_time(trigger, first=first, now=limit, anchor=anchor)
    if latest < first:  # the stored time is not a fire time
        following = first_allowed(trigger, after=first, anchor=anchor, end=end)
        return Advance(next_fire_at=following, is_finished=following is None)
    is_missed = grace_s is not None and (now - latest).total_seconds() > grace_s
    if latest == first and not is_missed:
        chosen = [first]
    else:
        oldest = first if catch_up.within is None else max(first, now - catch_up.within)
        chosen = [] if latest < oldest else _caught_up(trigger, catch_up, anchor, (first, oldest, latest))
        if not chosen and not is_missed:
            chosen = [latest]
    if latest == first:
        due = FireCount(1, is_exact=True)
    else:
        due = count_fire_times(trigger, first=first, now=limit, anchor=anchor)
    if runs_left is not None:
        chosen = chosen[:runs_left]
    skipped = len(chosen) if is_busy else 0
    if is_busy:
        chosen = []
    is_last = runs_left is not None and len(chosen) >= runs_left
    waits = bool(chosen) and is_fixed_delay(trigger) and not is_last
    following = None
    if not is_last and not waits:
        after = max(latest, now) if is_fixed_delay(trigger) else latest
        following = first_allowed(trigger, after=after, anchor=anchor, end=end)
    return Advance(
        fire_times=tuple(chosen),
        last_fire_at=latest,
        next_fire_at=following,
        skipped=skipped,
        missed=max(due.number - len(chosen) - skipped, 0),
        is_exact=due.is_exact,
        is_finished=following is None and not waits,
    )


def _caught_up(
    trigger: Trigger, catch_up: CatchUp, anchor: datetime, span: tuple[datetime, datetime, datetime]
) -> list[datetime]:
    """Return the fire times that become jobs: none before the oldest that is allowed."""
    first, oldest, latest = span
    if catch_up.selection == "latest":
        return [latest]
    if catch_up.selection == "earliest":
        if oldest == first:
            return [first]
        earliest = next_fire_time(trigger, oldest - INSTANT, anchor, Search())
        return [latest if earliest is None else min(earliest, latest)]
    if catch_up.selection == "all":
        limit = catch_up.limit or 1
        found = newest_fire_times(trigger, first=first, now=latest, anchor=anchor, limit=limit)
        return [fire for fire in found if fire >= oldest]
    return []


def fire_time_job_id(schedule_id: str, fire_time: datetime, *, prefix: str = "schedule") -> str:
    """Return the id of the job of a fire time. Every node derives the same id, so the job exists once."""
    return f"{prefix}:{schedule_id}:{fire_time.astimezone(UTC).isoformat()}"


def jitter_of(
    schedule_id: str, fire_time: datetime, jitter_s: float, following: datetime | None
) -> timedelta:
    """Return how much later than its fire time a job is due: the same on every node and in every preview.

    The values spread over the whole range, which ends at the next fire time.
    """
    text = f"{schedule_id}:{fire_time.astimezone(UTC).isoformat()}"
    share = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48
    span = timedelta(seconds=jitter_s)
    if following is not None:
        span = min(span, following - fire_time)
    return span * share
