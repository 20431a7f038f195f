"""Missed fire times, found by bisection: the work does not grow with the time that has passed.

A planner calls these functions with the stored next fire time of a schedule as ``first``, which must be a
fire time that is not after ``now``. A schedule with a `FixedDelay` has exactly one such fire time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.triggers.base import Trigger, is_fixed_delay, next_fire_time
from pg_scheduler.triggers.interval import Every
from pg_scheduler.triggers.search import INSTANT, Search, SearchLimitError, to_utc

MAX_COUNT: Final = 1000
"""Fire times that are counted one by one."""

MAX_CPU_S: Final = 1.5
"""Seconds of CPU that a slow trigger may take: to count missed fire times, and to find the newest ones."""

CHUNK: Final = 32
"""Fire times that one span of a search backwards may contain."""


@dataclass(frozen=True, slots=True)
class FireCount:
    """A number of fire times; a lower bound unless ``is_exact``."""

    number: int
    is_exact: bool


def fire_times_around(
    trigger: Trigger, *, first: datetime, now: datetime, anchor: datetime
) -> tuple[datetime, datetime | None]:
    """Return the latest fire time that is not after ``now``, and the next one; None if there is no next one.

    The next fire time of a `FixedDelay` is None, because it follows the end of a job.

    The search bisects the time since ``first``, so a year of missed seconds costs some fifty calls of
    ``next_after``.

    Args:
        trigger: The trigger.
        first: A fire time not after ``now``.
        now: A timezone-aware instant.
        anchor: The anchor of the schedule.

    Raises:
        SearchLimitError: The trigger is a combination that takes too many steps.
    """
    last_fire, end, origin = to_utc(first), to_utc(now), to_utc(anchor)
    if is_fixed_delay(trigger):
        return last_fire, None
    if isinstance(trigger, Every):
        latest = end - (end - origin) % trigger.every
        return latest, trigger.next_after(latest, anchor=origin)
    search, limit = Search(), end
    # At each step, ``last_fire`` is the latest fire time that was found, and no fire time up to the limit is
    # after ``end``.
    next_fire = next_fire_time(trigger, last_fire, origin, search)
    while next_fire is not None and next_fire <= limit:
        last_fire = next_fire
        # If a fire time follows the middle, the search continues there. Otherwise the next middle is earlier.
        middle = last_fire + (end - last_fire) / 2
        fire = next_fire_time(trigger, middle, origin, search)
        if fire is not None and fire <= limit:
            last_fire = fire
        else:
            end = middle
        next_fire = next_fire_time(trigger, last_fire, origin, search)
    return last_fire, next_fire


def newest_fire_times(
    trigger: Trigger, *, first: datetime, now: datetime, anchor: datetime, limit: int
) -> list[datetime]:
    """Return the newest ``limit`` fire times from ``first`` to ``now``, in order; fewer if it takes too long.

    The search goes back span by span. The next span is longer if the last one had few fire times, and a span
    with too many is searched again in shorter ones. So a gap between clusters of fire times costs a few more
    spans.

    Raises:
        SearchLimitError: The search for the latest fire time takes too many steps.
    """
    latest, _ = fire_times_around(trigger, first=first, now=now, anchor=anchor)
    fires_from_newest = [latest]
    begin, origin, search = to_utc(first), to_utc(anchor), Search(cpu_s=MAX_CPU_S)
    # Many fire times may need more steps than a search for one.
    search.left += 100 * limit
    span_end, span_length = latest, timedelta(seconds=1)
    while len(fires_from_newest) < limit and span_end > begin:
        # No span begins before the first fire time.
        span_start = span_end - min(span_length, span_end - begin)
        try:
            span_fires = _between(trigger, span_start - INSTANT, span_end, origin, search)
        except SearchLimitError:
            break
        # The span has too many fire times, so a shorter one is searched.
        if span_fires is None:
            span_length /= 4
            continue
        fires_from_newest += reversed(span_fires)
        span_end = span_start
        if len(span_fires) < CHUNK // 8:
            span_length *= 4
    newest_fires = fires_from_newest[:limit]
    newest_fires.reverse()
    return newest_fires


def count_fire_times(
    trigger: Trigger, *, first: datetime, now: datetime, anchor: datetime, limit: int = MAX_COUNT
) -> FireCount:
    """Count the fire times from ``first`` to ``now``, both included.

    The number is exact for `Every`. For other triggers it is exact up to ``limit``. It is a lower bound if
    there are more fire times, or if the search takes too long.
    """
    fire, end, origin = to_utc(first), to_utc(now), to_utc(anchor)
    if is_fixed_delay(trigger):
        return FireCount(1, is_exact=True)
    if isinstance(trigger, Every):
        return FireCount((end - fire) // trigger.every + 1, is_exact=True)
    search = Search(cpu_s=MAX_CPU_S)
    # ``fire`` is the fire time with this number. The first one has the number 1.
    for number in range(1, limit + 1):
        try:
            next_fire = next_fire_time(trigger, fire, origin, search)
        except SearchLimitError:
            return FireCount(number, is_exact=False)
        if next_fire is None or next_fire > end:
            return FireCount(number, is_exact=True)
        fire = next_fire
    return FireCount(limit, is_exact=False)


def _between(
    trigger: Trigger, start: datetime, end: datetime, anchor: datetime, search: Search
) -> list[datetime] | None:
    """Return the fire times after ``start`` and before ``end``; None if there are more than `CHUNK`."""
    fires: list[datetime] = []
    fire = next_fire_time(trigger, start, anchor, search)
    while fire is not None and fire < end:
        if len(fires) == CHUNK:
            return None
        fires.append(fire)
        fire = next_fire_time(trigger, fire, anchor, search)
    return fires
