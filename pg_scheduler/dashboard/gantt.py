"""The attempts of a job to scale: bars in percent of the time from its creation to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pg_scheduler.base.status import JobStatus
from pg_scheduler.inspect.steps import StepState, has_suspended
from pg_scheduler.inspect.texts import length
from pg_scheduler.inspect.timeline import SUSPENDED, Attempt
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.step_values import NO_TIMEOUT

MIN_WIDTH: Final = 0.8
"""The minimum width of the bar of an attempt in percent: a narrower one could not be seen."""

UNITS_S: Final = {"d": 86_400, "h": 3600, "min": 60}
"""The units of the labels of the axis, in seconds. Shorter intervals are written in seconds."""

LABEL_WIDTH: Final = 16.0
"""The width in percent from which on the bar of a wait has room for its label."""

NUMBER_WIDTH: Final = 4.0
"""The minimum distance between the numbers of two attempts in percent."""

LONGEST_WAIT: Final = 4
"""The first wait is cut if it is longer than this many times the time after it."""

MIN_STEPS: Final = 50
MIN_STEP_S: Final = 1
"""The bars of a job that has not ended change in steps of at most 2 % of its age, or of a second."""

STEPS_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1, 2, 5, 10, 20, 60, 120, 300, 600, 1200, 3600, 7200, 21_600, 43_200),
    *(86_400 * days for days in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)),
)
"""The intervals between two labels of the axis, in seconds."""

STEPS_OF_AXIS: Final = 7
"""The axis has at most so many of these intervals."""

FIRST_SHARE: Final = 0.3
FIRST_SHARE_IF_CUT: Final = 0.5
LAST_SHARE: Final = 0.68
"""The part of the axis that has labels. The instants of its ends are before and after it. That of the begin
has a longer text if the axis does not begin with the creation of the job."""

KINDS: Final = {
    None: "running",
    "completed": "completed",
    "cancelled": "cancelled",
    "skipped": "cancelled",
    "released": "released",
    "snoozed": "released",
    SUSPENDED: "completed",
}
"""The states of attempts by their outcomes; None for an attempt that runs. The others have failed."""

USES_RETRY: Final = frozenset({"error", "timeout"})
"""The outcomes of attempts after which a job is retried, as long as it has retries."""

WAITS_AFTER: Final = {"snoozed": "postponed", "crashed": "reclaimed after", "lost": "reclaimed after"}
"""What the wait after an attempt is called, by outcomes that use no retry and so have no backoff."""

WAITS: Final = frozenset({"wait", "backoff", "limit"})


class Step(NamedTuple):
    """A label of the axis: a time since its begin, and its place in percent."""

    label: str
    at: float


class Span(NamedTuple):
    """The time that a bar shows.

    Attributes:
        kind: The kind of the bar.
        since: Its start.
        until: Its end.
        title: What it shows.
        number: The number of its attempt; empty for a wait.
    """

    kind: str
    since: datetime
    until: datetime
    title: str
    number: str = ""


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
    steps: Sequence[Step]
    """Round times since its begin, at their places."""
    is_open: bool
    left_out: timedelta
    """The first part of a long first wait, which the axis does not have."""
    summary: str
    """How long the job took, and how much of that it ran; empty if it has not ended."""

    @property
    def label(self) -> str:
        """What the bars show, for those who do not see them."""
        return "; ".join(bar.title for bar in self.bars)


def state_of(attempt: Attempt) -> str:
    """Return the state of an attempt, one of the values of `KINDS` or ``failed``."""
    return KINDS.get(attempt.outcome, "failed")


def gantt_of(
    job: Job, attempts: Sequence[Attempt], now: datetime, steps: Sequence[StepState] = ()
) -> Gantt | None:
    """Return the bars of a job; None for one without any time, such as one created in the future.

    Args:
        job: The job.
        attempts: Its attempts.
        now: The time.
        steps: Its steps, which may have suspended it.
    """
    # The time of an ended job stops at its end. For another job, it is rounded, so that the page changes
    # seldom.
    now = job.finished_at or _rounded(now, job.created_at)
    begin, end = job.created_at, now
    # The axis of a pending job also shows the wait until its due time, which may be in the future.
    if job.status is JobStatus.PENDING:
        end = max(now, _due(job))
    first_start = next((attempt.started_at for attempt in attempts if attempt.started_at is not None), None)
    first_start = first_start or min(job.execution_time, end)
    # A long first wait would leave no room for the attempts, so the axis begins shortly before them.
    time_since_start = end - first_start
    if time_since_start > timedelta() and first_start - begin > LONGEST_WAIT * time_since_start:
        begin = first_start - time_since_start / LONGEST_WAIT
    if end <= begin:
        return None

    def place(at: datetime) -> float:
        """Return the place of an instant on the axis, in percent."""
        share = (at - begin) / (end - begin)
        return round(min(max(share, 0.0), 1.0) * 100, 2)

    bars: list[Bar] = []
    # The middle of the last bar whose number is shown. The first number always has room.
    last_middle = -NUMBER_WIDTH
    for span in _spans(job, attempts, now, is_durable=has_suspended(steps)):
        x = place(span.since)
        width = round(place(span.until) - x, 2)
        is_attempt = bool(span.number)
        if is_attempt:
            width = max(width, MIN_WIDTH)
            # A bar at the end of the axis that was widened begins earlier, so that it is within the axis.
            bar = Bar(span.kind, min(x, 100 - width), width, span.title, label=span.number)
            has_room = bar.middle - last_middle >= NUMBER_WIDTH
            if has_room:
                last_middle = bar.middle
        else:
            bar = Bar(span.kind, x, width, span.title, label=span.title)
            # An ordinary wait needs no label.
            has_room = span.kind != "wait" and width >= LABEL_WIDTH
        bars.append(bar if has_room else replace(bar, label=""))
    return Gantt(
        begin=begin,
        end=end,
        bars=bars,
        steps=list(_steps((end - begin).total_seconds(), is_cut=begin > job.created_at)),
        is_open=job.finished_at is None and end == now,
        left_out=begin - job.created_at,
        summary=_summary(job, attempts),
    )


def _steps(length_s: float, *, is_cut: bool) -> Iterator[Step]:
    """Yield labels of round times in the middle of an axis of this length in seconds.

    ``is_cut`` is whether it begins after the creation of the job.
    """
    step_s = next((step_s for step_s in STEPS_S if step_s * STEPS_OF_AXIS >= length_s), STEPS_S[-1])
    # All labels have one unit: the largest of which the interval is a multiple.
    unit_s: float
    unit, unit_s = next(((unit, size) for unit, size in UNITS_S.items() if step_s % size == 0), ("s", 1))
    if length_s < 1:
        unit, unit_s = "ms", 0.001
    first_share = FIRST_SHARE_IF_CUT if is_cut else FIRST_SHARE
    for number in range(1, STEPS_OF_AXIS + 1):
        share = number * step_s / length_s
        if first_share <= share <= LAST_SHARE:
            yield Step(f"+{number * step_s / unit_s:,.6g} {unit}", round(100 * share, 2))


def _rounded(now: datetime, since: datetime) -> datetime:
    """Return the present time, rounded up so that a live page changes seldom.

    The age, which is the time since ``since``, is rounded up by at most 2 %, or by a second if that is more.
    """
    max_step_s = int((now - since).total_seconds()) // MIN_STEPS
    # This is the greatest power of two that is not above the maximum, or 0 if the maximum is 0. A power of
    # two stays the same while the age doubles, so that the time is rounded to the same instants for long.
    step_s = 1 << max_step_s.bit_length() >> 1
    step = timedelta(seconds=max(step_s, MIN_STEP_S))
    # Python's floor division rounds down. So the age is negated before it and after it, which rounds it up.
    rounded_age = -((since - now) // step) * step
    return max(now, since + rounded_age)


def _summary(job: Job, attempts: Sequence[Attempt]) -> str:
    """Return how long an ended job took, and how much of that it ran; empty for another job."""
    if job.finished_at is None:
        return ""
    ran_s = sum(attempt.seconds or 0.0 for attempt in attempts)
    ran = f", {length(ran_s)} of it running" if ran_s else ""
    return f"{length(job.finished_at - job.created_at)} from its creation to its end{ran}"


def _spans(job: Job, attempts: Sequence[Attempt], now: datetime, *, is_durable: bool) -> Iterator[Span]:
    """Yield the waits and the attempts of a job in the order of their times.

    ``is_durable`` is whether the job has a step that has suspended it.
    """
    # ``at`` is the end of the last span, and ``previous`` the last attempt before it.
    at, previous = job.created_at, None
    # After this attempt the job had failed for good, so only a person can have retried it.
    final_attempt = _final_attempt(job, attempts)
    for attempt in attempts:
        if attempt.started_at is None:
            continue
        is_retried = previous is not None and previous is final_attempt
        yield from _wait(at, attempt.started_at, previous, attempt.held_by, is_retried=is_retried)
        at, previous = attempt.ended_at or now, attempt
        # The times of an attempt that a step has suspended are not known exactly, so its duration is left
        # out.
        is_exact = attempt.ended_at is not None and attempt.outcome != SUSPENDED
        duration_text = f", {length(at - attempt.started_at)}" if is_exact else ""
        title = f"attempt {attempt.number}: {attempt.outcome or 'running'}{duration_text}"
        yield Span(state_of(attempt), attempt.started_at, at, title, str(attempt.number))
    if job.status is JobStatus.PENDING:
        due = max(_due(job), at)
        # ``job.attempt`` counts the claims of the job. If the last claim has no known attempt, a step has
        # suspended the job in it; attempts_of() concludes the same.
        is_suspended = is_durable and previous is not None and job.attempt > previous.claim
        is_retried = previous is not None and previous is final_attempt
        yield from _wait(at, due, previous, "step" if is_suspended else "", is_retried=is_retried)
        if (job.blocked_on or "").startswith(BLOCKED_BY_LIMIT):
            kind, title = "limit", "a limit"
        else:
            kind, title = "wait", "waits"
        # The job is due and has not started. This wait continues, so its title does not state its length.
        if now > due:
            yield Span(kind, due, now, title)
    elif not attempts:
        # The job ended without any attempt, for example because it was cancelled.
        yield from _wait(at, now, None)


def _due(job: Job) -> datetime:
    """Return when a job is due; when it was created if it waits for a signal without a timeout."""
    return job.created_at if job.execution_time >= NO_TIMEOUT else job.execution_time


def _final_attempt(job: Job, attempts: Sequence[Attempt]) -> Attempt | None:
    """Return the last attempt before a person retried the job, which had failed for good; None for none.

    Such a retry resets the number of used retries. Since then, as many attempts have failed as the job has
    used retries, and one more if the job has failed for good again. The failed attempt before these is the
    result.
    """
    failed_attempts = [attempt for attempt in attempts if attempt.outcome in USES_RETRY]
    # If each failed attempt has used a retry, no person has retried the job.
    if job.retry_count >= len(failed_attempts):
        return None
    has_failed_since = job.status is JobStatus.FAILED and attempts[-1:] == failed_attempts[-1:]
    failures_since = job.retry_count + (1 if has_failed_since else 0)
    earlier_attempts = failed_attempts[: len(failed_attempts) - failures_since]
    return earlier_attempts[-1] if earlier_attempts else None


def _wait(
    since: datetime,
    until: datetime,
    previous: Attempt | None,
    held_by: str = "",
    *,
    is_retried: bool = False,
) -> Iterator[Span]:
    """Yield the wait before an attempt, with a title that states why and how long; nothing without a wait.

    Args:
        since: When the wait began.
        until: When it ended, or will end.
        previous: The previous attempt; None for the first wait.
        held_by: What held the job meanwhile, as in `Attempt`.
        is_retried: Whether the job had failed, and a person retried it.
    """
    kind, what = "wait", "waited"
    if held_by == "limit":
        has_backoff = previous is not None and previous.outcome in USES_RETRY
        kind, what = "limit", "backoff and a limit," if has_backoff else "a limit,"
    elif held_by == "step" or (previous is not None and previous.outcome == SUSPENDED):
        what = "suspended"
    elif previous is not None and is_retried:
        kind, what = "backoff", "retried after"
    elif previous is not None and previous.outcome in USES_RETRY:
        kind, what = "backoff", "backoff"
    elif previous is not None:
        what = WAITS_AFTER.get(previous.outcome or "", "waited")
    if until > since:
        yield Span(kind, since, until, f"{what} {length(until - since)}")
