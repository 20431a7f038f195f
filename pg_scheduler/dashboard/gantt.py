"""The attempts of a job to scale: bars in percent of the time from its creation to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.inspect.texts import length
from pg_scheduler.inspect.timeline import Attempt
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT
from pg_scheduler.jobs.model import Job
from pg_scheduler.status import JobStatus

MIN_WIDTH: Final = 0.8
"""Percent of a bar that is too short to be seen."""

LABEL_WIDTH: Final = 16.0
"""Percent from which a wait has room for its label."""

NUMBER_WIDTH: Final = 4.0
"""Percent between the numbers of two attempts."""

LONGEST_WAIT: Final = 4
"""A first wait that is longer than so many times the rest is cut."""

MIN_STEPS: Final = 50
MIN_STEP_S: Final = 1
"""The bars of a job that has not ended change in steps of a second, or of 2 % of its age at most."""

STEPS: Final = (1 / 3, 2 / 3)
"""Where the axis has labels between its ends."""

KINDS: Final = {
    None: "running",
    "completed": "completed",
    "cancelled": "cancelled",
    "skipped": "cancelled",
    "released": "released",
    "snoozed": "released",
    "lost": "released",
}
"""The states of attempts by their outcomes; others failed."""

WAITS: Final = frozenset({"wait", "backoff", "limit"})
"""The kinds of bars for the time between attempts."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of the life of a job.

    Attributes:
        kind: One of `WAITS`, or the state of an attempt.
        x: Where it begins, in percent.
        width: Its width in percent.
        title: What it shows.
        label: The text above it; empty if it has no room.
    """

    kind: str
    x: float
    width: float
    title: str
    label: str = ""

    @property
    def is_attempt(self) -> bool:
        """Whether the job ran."""
        return self.kind not in WAITS

    @property
    def middle(self) -> float:
        """Where its label is, in percent."""
        return round(self.x + self.width / 2, 2)


@dataclass(frozen=True, slots=True)
class Gantt:
    """The bars of a job, and the axis below them."""

    begin: datetime
    end: datetime
    bars: Sequence[Bar]
    steps: Sequence[str]
    """The times since its begin at one and two thirds of the axis."""
    is_open: bool
    """Whether its end is now."""
    summary: str
    """How long the job took, and how much of that it ran; empty if it has not ended."""

    @property
    def label(self) -> str:
        """What the bars show, for those who do not see them."""
        return "; ".join(bar.title for bar in self.bars)


def state_of(attempt: Attempt) -> str:
    """Return the state of an attempt, one of the values of `KINDS` or ``failed``."""
    return KINDS.get(attempt.outcome, "failed")


def gantt_of(job: Job, attempts: Sequence[Attempt], now: datetime) -> Gantt | None:
    """Return the bars of a job; None for one without any time, such as one created in the future."""
    now = job.finished_at or _rounded(now, job.created_at)
    begin, end = job.created_at, now
    if job.status is JobStatus.PENDING:
        end = max(now, job.execution_time)
    first = next((each.started_at for each in attempts if each.started_at is not None), None)
    first = first or min(job.execution_time, end)
    if first - begin > LONGEST_WAIT * (end - first) > timedelta():
        begin = first - (end - first) / LONGEST_WAIT
    if end <= begin:
        return None
    scale = _Scale(begin, end)
    bars = list(_bars(job, attempts, now, scale))
    return Gantt(
        begin=begin,
        end=end,
        bars=_labelled(bars),
        steps=[f"+{length((end - begin) * share)}" for share in STEPS],
        is_open=job.finished_at is None and end == now,
        summary=_summary(job, attempts),
    )


def _rounded(now: datetime, since: datetime) -> datetime:
    """Return a time that is at most 2 %, or one second, later, so that a live page changes seldom."""
    parts = int((now - since).total_seconds()) // MIN_STEPS
    step = timedelta(seconds=max(1 << parts.bit_length() >> 1, MIN_STEP_S))  # a power of two of seconds
    return max(now, since - (since - now) // step * step)


def _summary(job: Job, attempts: Sequence[Attempt]) -> str:
    if job.finished_at is None:
        return ""
    ran_s = sum(each.seconds or 0.0 for each in attempts)
    ran = f", {length(ran_s)} of it running" if ran_s else ""
    return f"{length(job.finished_at - job.created_at)} from its creation to its end{ran}"


@dataclass(frozen=True, slots=True)
class _Scale:
    begin: datetime
    end: datetime

    def place(self, at: datetime) -> float:
        """Return where an instant is, in percent."""
        share = (at - self.begin) / (self.end - self.begin)
        return round(min(max(share, 0.0), 1.0) * 100, 2)

    def bar(self, kind: str, since: datetime, until: datetime, what: str, *, is_open: bool = False) -> Bar:
        """Return the bar of a span, with its length unless it continues: its end is not exact then."""
        x, right = self.place(since), self.place(until)
        title = what.rstrip(",") if is_open else f"{what} {length(until - since)}"
        return Bar(kind, x, round(right - x, 2), title)


def _bars(job: Job, attempts: Sequence[Attempt], now: datetime, scale: _Scale) -> Iterator[Bar]:
    at, before = job.created_at, None
    for each in attempts:
        if each.started_at is None:
            continue
        yield from _wait(scale, at, each.started_at, before, was_limited=each.was_limited)
        at, before = each.ended_at or now, each
        title = f"attempt {each.number}: {each.outcome or 'running'},"
        bar = scale.bar(state_of(each), each.started_at, at, title, is_open=each.ended_at is None)
        width = max(bar.width, MIN_WIDTH)
        yield replace(bar, x=min(bar.x, 100 - width), width=width, label=str(each.number))
    if job.status is JobStatus.PENDING:
        due = max(job.execution_time, at)
        yield from _wait(scale, at, due, before)
        is_limited = (job.blocked_on or "").startswith(BLOCKED_BY_LIMIT)
        yield from _wait(scale, due, now, None, was_limited=is_limited, is_open=True)
    elif not attempts:
        yield from _wait(scale, at, now, None)


def _wait(
    scale: _Scale,
    since: datetime,
    until: datetime,
    before: Attempt | None,
    *,
    was_limited: bool = False,
    is_open: bool = False,
) -> Iterator[Bar]:
    if until <= since:
        return
    if was_limited:
        what = "a limit," if before is None else "backoff and a limit,"
        yield scale.bar("limit", since, until, what, is_open=is_open)
    elif before is None:
        yield scale.bar("wait", since, until, "waits" if is_open else "waited", is_open=is_open)
    else:
        yield scale.bar("backoff", since, until, "postponed" if before.outcome == "snoozed" else "backoff")


def _labelled(bars: Sequence[Bar]) -> list[Bar]:
    """Return the bars with the labels that have room."""
    found: list[Bar] = []
    last = -NUMBER_WIDTH
    for bar in bars:
        label = bar.label
        if bar.is_attempt:
            label = label if bar.middle - last >= NUMBER_WIDTH else ""
            last = bar.middle if label else last
        elif bar.kind != "wait" and bar.width >= LABEL_WIDTH:
            label = bar.title
        found.append(replace(bar, label=label))
    return found
