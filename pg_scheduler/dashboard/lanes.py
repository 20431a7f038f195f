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


@dataclass(frozen=True, slots=True)
class Lanes:
    """The attempts of a worker.

    Attributes:
        since: The start of the span, which ends at ``until``.
        count: The number of lanes.
        bars: The 200 longest of its attempts that took 5 seconds or more, if they fit into 40 lanes.
        minutes: The other attempts, by minute.
        summary: How many attempts there are, and how many of them have bars.
    """

    since: datetime
    until: datetime
    count: int = 0
    bars: Sequence[Bar] = ()
    minutes: Sequence[Minute] = ()
    summary: str = ""


def lanes_of(
    attempts: Iterable[Attempt], now: datetime, *, is_capped: bool = False, is_over: bool = False
) -> Lanes:
    """Return where the attempts of the last hour are drawn: the longest as bars, the others by minute.

    ``is_capped`` is whether there may be further attempts. ``is_over`` is whether nothing can be added to the
    hour any more, because it is the last one of a dead worker.
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
    ends: list[datetime] = []  # when each lane becomes free
    # The recent attempts are in descending order of their lengths, so the long ones are the first.
    bars, other_attempts = [], recent_attempts[len(long_attempts) :]
    for attempt in sorted(long_attempts, key=lambda attempt: (attempt.started_at, attempt.job_id)):
        lane = next((place for place, end in enumerate(ends) if end <= attempt.started_at), len(ends))
        # The slice replaces the end of a lane, or adds a lane after the last one.
        ends[lane : lane + 1] = [_end(attempt, now)]
        if lane < MAX_LANES:
            bars.append(_bar(attempt, lane, since, now))
        else:
            other_attempts.append(attempt)
    longest = "the longest" if len(bars) == 1 else f"the {len(bars):,} longest"
    summary = counted(len(recent_attempts), "attempt", is_capped=is_capped) + (
        f", {'a bar' if len(bars) == 1 else 'bars'} for {longest}" if other_attempts and bars else ""
    )
    minutes = _minutes(other_attempts, since, now, is_capped=is_capped)
    return Lanes(since, now, min(len(ends), MAX_LANES), bars, minutes, summary)


def _end(attempt: Attempt, now: datetime) -> datetime:
    """Return when an attempt ended: at most now, as for one that runs, and not before its start."""
    return max(attempt.started_at, now if attempt.ended_at is None else min(attempt.ended_at, now))


def _bar(attempt: Attempt, lane: int, since: datetime, now: datetime) -> Bar:
    start, end = max(attempt.started_at, since), _end(attempt, now)
    x, width = 100 * (start - since) / SPAN, max(100 * (end - start) / SPAN, MIN_WIDTH)
    duration = length(end - attempt.started_at)
    event = f"runs for {duration}" if attempt.ended_at is None else f"{attempt.outcome} after {duration}"
    title = f"{short(attempt.job_name)}: {event}"
    return Bar(lane, round(x, 2), round(width, 2), TONES.get(attempt.outcome, "wait"), attempt.job_id, title)


def _minutes(attempts: Iterable[Attempt], since: datetime, now: datetime, *, is_capped: bool) -> list[Minute]:
    """Return the numbers of attempts by the minutes in which they ended; the greatest one is 100 % high."""
    counts, failures = Counter[int](), Counter[int]()
    for attempt in attempts:
        place = min(max(int((_end(attempt, now) - since) * MINUTES / SPAN), 0), MINUTES - 1)
        counts[place] += 1
        if attempt.outcome in FAILED:
            failures[place] += 1
    maximum = max(counts.values(), default=1)
    return [
        Minute(
            round(100 * place / MINUTES, 2),
            round(100 * number / maximum, 1),
            round(100 * failures[place] / maximum, 1),
            counted(number, "attempt", is_capped=is_capped)
            + (f", {count(failures[place], is_capped=is_capped)} failed" if failures[place] else ""),
        )
        for place, number in sorted(counts.items())
    ]
