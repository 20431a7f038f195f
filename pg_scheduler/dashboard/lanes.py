"""Place the attempts of a worker in the lanes of its slots, over the last hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pg_scheduler.dashboard.texts import short
from pg_scheduler.facts.outcomes import FAILED_ENTRIES, FAILED_JOBS
from pg_scheduler.inspect.texts import count, counted, length
from pg_scheduler.inspect.workers import Attempt

SPAN: Final = timedelta(hours=1)

STEP: Final = timedelta(seconds=15)
MINUTES: Final = 60

SHORTEST: Final = timedelta(seconds=5)
"""The shortest attempt that has a bar of its own: two pixels on most screens."""

MAX_BARS: Final = 200
MAX_LANES: Final = 40
MIN_WIDTH: Final = 0.15
"""Percent of the width that a bar has at least."""

FAILED: Final = FAILED_ENTRIES | FAILED_JOBS
"""The outcomes of attempts that failed: those in the history of a job, or the status of the job itself."""
TONES: Final = {"completed": "ok", "running": "run"} | dict.fromkeys(FAILED, "bad")


@dataclass(frozen=True, slots=True)
class Bar:
    """An attempt. ``x`` and ``width`` are percent of the span, ``lane`` counts from 0."""

    lane: int
    x: float
    width: float
    tone: str
    job_id: str
    title: str


@dataclass(frozen=True, slots=True)
class Minute:
    """The attempts of a minute that have no bar. ``x`` is percent of the span, the heights are percent."""

    x: float
    height: float
    failed_height: float
    title: str
    count: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """The attempts of a worker.

    Attributes:
        since: The start of the span, which ends at ``until``.
        count: The number of lanes.
        bars: The 200 longest of its attempts that took 5 seconds or more, if they fit into 40 lanes.
        minutes: The other attempts, by minute.
        summary: How many attempts there are, and how many of them have bars.
        failed: How many of them failed, as a text; empty for none.
        highest: The attempts of the highest column, as a text; empty without columns.
    """

    since: datetime
    until: datetime
    count: int = 0
    bars: Sequence[Bar] = ()
    minutes: Sequence[Minute] = ()
    summary: str = ""
    failed: str = ""
    highest: str = ""


def lanes_of(
    attempts: Iterable[Attempt], now: datetime, *, is_capped: bool = False, is_over: bool = False
) -> Lanes:
    """Return where the attempts of the last hour are drawn: the longest as bars, the others by minute.

    A lane stands for a slot of the worker, so the bars in one lane do not overlap.

    Args:
        attempts: The attempts of the worker.
        now: The end of the hour.
        is_capped: Whether there may be further attempts.
        is_over: Whether nothing can be added to the hour any more, because it is the last one of a worker
            that died.
    """
    # The time is rounded down, so that a live page does not change all the time. An hour that is over is not
    # rounded, because the attempt under which the worker died may have begun in its last seconds.
    if not is_over:
        now -= (now - datetime.fromtimestamp(0, UTC)) % STEP
    since = now - SPAN
    recent_attempts = [
        attempt for attempt in attempts if attempt.started_at < now and _end(attempt, now) > since
    ]
    recent_attempts.sort(key=lambda attempt: _end(attempt, now) - attempt.started_at, reverse=True)
    long_attempts = [
        attempt
        for attempt in recent_attempts[:MAX_BARS]
        if _end(attempt, now) - attempt.started_at >= SHORTEST
    ]
    # The recent attempts are in descending order of their lengths, so the long ones are the first.
    other_attempts = recent_attempts[len(long_attempts) :]
    bars: list[Bar] = []
    # The end of the last bar of each lane. From then on, the lane is free.
    lane_ends: list[datetime] = []
    for attempt in sorted(long_attempts, key=lambda attempt: (attempt.started_at, attempt.job_id)):
        free_lanes = (lane for lane, end in enumerate(lane_ends) if end <= attempt.started_at)
        # Without a free lane, the attempt gets a new one after the last one.
        lane = next(free_lanes, len(lane_ends))
        # The slice replaces the end of this lane, or adds the end of a new lane.
        lane_ends[lane : lane + 1] = [_end(attempt, now)]
        if lane < MAX_LANES:
            bars.append(_bar(attempt, lane, since, now))
        else:
            other_attempts.append(attempt)
    summary = counted(len(recent_attempts), "attempt", is_capped=is_capped)
    if other_attempts and bars:
        summary += ", a bar for the longest" if len(bars) == 1 else f", bars for the {len(bars):,} longest"
    minutes = _minutes(other_attempts, since, now, is_capped=is_capped)
    failed_count = sum(attempt.outcome in FAILED for attempt in recent_attempts)
    return Lanes(
        since=since,
        until=now,
        count=min(len(lane_ends), MAX_LANES),
        bars=bars,
        minutes=minutes,
        summary=summary,
        failed=count(failed_count, is_capped=is_capped) if failed_count else "",
        highest=count(max(minute.count for minute in minutes), is_capped=is_capped) if minutes else "",
    )


def _end(attempt: Attempt, now: datetime) -> datetime:
    """Return the end of the bar of an attempt: now for one that runs, and never before its start."""
    end = now if attempt.ended_at is None else min(attempt.ended_at, now)
    return max(attempt.started_at, end)


def _bar(attempt: Attempt, lane: int, since: datetime, now: datetime) -> Bar:
    """Return the bar of an attempt. A bar of an attempt that began before the hour begins with the hour."""
    start, end = max(attempt.started_at, since), _end(attempt, now)
    x = 100 * (start - since) / SPAN
    width = max(100 * (end - start) / SPAN, MIN_WIDTH)
    duration = length(end - attempt.started_at)
    event = f"runs for {duration}" if attempt.ended_at is None else f"{attempt.outcome} after {duration}"
    title = f"{short(attempt.job_name)}: {event}"
    return Bar(lane, round(x, 2), round(width, 2), TONES.get(attempt.outcome, "wait"), attempt.job_id, title)


def _minutes(attempts: Iterable[Attempt], since: datetime, now: datetime, *, is_capped: bool) -> list[Minute]:
    """Return the numbers of attempts by the minutes in which they ended; the greatest one is 100 % high."""
    # By the number of a minute in the hour, from 0 to 59.
    counts, failures = Counter[int](), Counter[int]()
    for attempt in attempts:
        minute = int((_end(attempt, now) - since) * MINUTES / SPAN)
        # An attempt that ends with the hour counts for the last minute.
        minute = min(max(minute, 0), MINUTES - 1)
        counts[minute] += 1
        if attempt.outcome in FAILED:
            failures[minute] += 1
    maximum = max(counts.values(), default=1)
    minutes = []
    for minute, attempt_count in sorted(counts.items()):
        failure_count = failures[minute]
        title = counted(attempt_count, "attempt", is_capped=is_capped)
        if failure_count:
            title += f", {count(failure_count, is_capped=is_capped)} failed"
        minutes.append(
            Minute(
                x=round(100 * minute / MINUTES, 2),
                height=round(100 * attempt_count / maximum, 1),
                failed_height=round(100 * failure_count / maximum, 1),
                title=title,
                count=attempt_count,
            )
        )
    return minutes
