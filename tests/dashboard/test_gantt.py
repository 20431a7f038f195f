"""The attempts of a job to scale."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from pg_scheduler import Job, JobStatus
from pg_scheduler.dashboard.gantt import Gantt, gantt_of
from pg_scheduler.inspect import StepState
from pg_scheduler.inspect.timeline import attempts_of
from tests.unit.inspect.test_explain import HOUR, MINUTE, NOW, PENDING, SECOND
from tests.unit.inspect.test_timeline import entry

FAILED = replace(
    PENDING,
    status=JobStatus.FAILED,
    created_at=NOW - HOUR,
    execution_time=NOW - HOUR + 4 * MINUTE,
    attempt=4,
    retry_count=2,
    errors=(entry(1), entry(3), entry(4)),
    started_at=NOW - HOUR + 4 * MINUTE,
    finished_at=NOW - HOUR + 4 * MINUTE + 2 * SECOND,
)


def bars_of(job: Job, now: datetime = NOW) -> Gantt:
    found = gantt_of(job, attempts_of(job), now)
    assert found is not None
    ends = [0.0, *(end for bar in found.bars for end in (bar.x, bar.x + bar.width)), 100.0]
    assert all(-0.01 <= end <= 100.01 for end in ends)
    return found


def test_bars_are_waits_attempts_backoffs_and_limits_in_the_order_of_time() -> None:
    found = bars_of(FAILED)
    assert [(bar.kind, bar.title) for bar in found.bars] == [
        ("wait", "waited 60 s"),
        ("failed", "attempt 1: error, 2 s"),
        ("limit", "backoff and a limit, 118 s"),
        ("failed", "attempt 2: error, 2 s"),
        ("backoff", "backoff 58 s"),
        ("failed", "attempt 3: error, 2 s"),
    ]
    assert [bar.label for bar in found.bars if bar.is_attempt] == ["1", "2", "3"]
    assert found.bars[2].width == pytest.approx(100 * 118 / 242, abs=0.1)
    assert found.summary == "4 min from its creation to its end, 6 s of it running"


def test_wait_after_a_step_suspended_the_job_is_no_backoff_and_no_limit() -> None:
    job = replace(PENDING, created_at=NOW - HOUR, execution_time=NOW + HOUR, attempt=5)
    job = replace(job, errors=(entry(1), entry(3)))
    steps = [StepState("nap", "sleep", "over", None, None, 0, NOW - HOUR, NOW - HOUR, NOW)]
    found = gantt_of(job, attempts_of(job, steps), NOW, steps)
    assert found is not None
    assert [(bar.kind, bar.title) for bar in found.bars if not bar.is_attempt] == [
        ("wait", "waited 60 s"),
        ("wait", "suspended 118 s"),
        ("wait", "suspended 117 min"),
    ]


@pytest.mark.parametrize(
    ("outcome", "title"),
    [
        ("crashed", "reclaimed after 58 s"),
        ("lost", "reclaimed after 58 s"),
        ("snoozed", "postponed 58 s"),
        ("released", "waited 58 s"),
        ("cancelled", "waited 58 s"),
    ],
)
def test_wait_after_an_attempt_that_used_no_retry_is_no_backoff(outcome: str, title: str) -> None:
    job = replace(FAILED, errors=(*FAILED.errors[:1], replace(entry(3), outcome=outcome), entry(4)))
    waits = [bar for bar in bars_of(job).bars if not bar.is_attempt]
    assert (waits[-1].kind, waits[-1].title) == ("wait", title)
    limited = replace(FAILED, errors=(replace(entry(1), outcome=outcome), *FAILED.errors[1:]))
    assert [bar.title for bar in bars_of(limited).bars if bar.kind == "limit"] == ["a limit, 118 s"]


def test_wait_after_a_failure_for_good_is_no_backoff() -> None:
    """A person has retried the job, which resets its number of used retries."""
    again = replace(FAILED, attempt=5, retry_count=0, errors=(entry(1), entry(3), entry(4), entry(5)))
    waits = [bar.title for bar in bars_of(again).bars if not bar.is_attempt]
    assert waits[1:] == ["backoff and a limit, 118 s", "backoff 58 s", "retried after 58 s"]
    retried = replace(
        FAILED, status=JobStatus.PENDING, retry_count=0, started_at=None, finished_at=None, execution_time=NOW
    )
    assert [bar.title[:7] for bar in bars_of(retried).bars][-2:] == ["retried", "waits"]
    waiting = replace(retried, retry_count=3)
    assert [bar.title[:7] for bar in bars_of(waiting).bars][-2:] == ["backoff", "waits"]


def test_long_wait_before_the_first_attempt_is_cut() -> None:
    assert bars_of(FAILED).left_out == timedelta()
    found = bars_of(replace(FAILED, created_at=NOW - 90 * 24 * HOUR))
    assert (found.end - found.begin) < timedelta(minutes=5)
    assert found.left_out > 89 * timedelta(days=1)
    assert found.bars[0].width == pytest.approx(20, abs=0.1)


def test_attempt_of_a_moment_can_be_seen() -> None:
    job = replace(FAILED, errors=(replace(entry(4), ended_at=entry(4).started_at),))
    assert [bar.width for bar in bars_of(job).bars if bar.is_attempt] == [0.8]


@pytest.mark.parametrize("age", [10 * MINUTE, HOUR, 400 * 24 * HOUR])
def test_bars_of_a_job_that_waits_change_seldom(age: timedelta) -> None:
    job = replace(PENDING, created_at=NOW - age, execution_time=NOW - age, blocked_on="limit:bank:")
    found = bars_of(job)
    assert [bar.kind for bar in found.bars] == ["limit"]
    assert found.end - NOW <= age / 50
    ends = {bars_of(job, NOW + number * SECOND).end for number in range(5)}
    assert len(ends) <= 2


def test_bars_of_a_young_job_end_now() -> None:
    job = replace(PENDING, created_at=NOW - 2.5 * SECOND, execution_time=NOW - 2.5 * SECOND)
    found = bars_of(job)
    assert timedelta() <= found.end - NOW < SECOND
    assert found.steps == [("+1 s", 33.33), ("+1.5 s", 50.0), ("+2 s", 66.67)]


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        (0.42, [("+200 ms", 47.62)]),
        (14, [("+6 s", 42.86), ("+8 s", 57.14)]),
        (150, [("+1 min", 40.0)]),
        (20_000, [("+2 h", 36.0), ("+3 h", 54.0)]),
        (40_000_000, [("+200 d", 43.2), ("+300 d", 64.8)]),
    ],
)
def test_labels_of_the_axis_are_round_times_at_their_places(
    seconds: float, steps: list[tuple[str, float]]
) -> None:
    created_at = NOW - seconds * SECOND
    job = replace(FAILED, created_at=created_at, execution_time=created_at, finished_at=NOW, errors=())
    job = replace(job, started_at=created_at)
    assert bars_of(job).steps == steps


@pytest.mark.parametrize(
    ("changes", "titles"),
    [
        ({"blocked_on": "limit:bank:"}, ["waited 60 s", "a limit"]),
        ({}, ["waited 60 s", "waits"]),
        (
            {"status": JobStatus.RUNNING, "attempt": 1, "started_at": NOW - SECOND},
            ["waited 119 s", "attempt 1: running"],
        ),
    ],
)
def test_bar_that_continues_states_no_length(changes: dict[str, Any], titles: list[str]) -> None:
    job = replace(PENDING, created_at=NOW - 2 * MINUTE, execution_time=NOW - MINUTE, **changes)
    found = bars_of(job)
    assert found.is_open
    assert [bar.title for bar in found.bars] == titles
    assert not bars_of(FAILED).is_open
    assert not bars_of(replace(job, status=JobStatus.PENDING, execution_time=NOW + HOUR)).is_open


def test_job_that_has_had_no_time_has_no_bars() -> None:
    job = replace(PENDING, created_at=NOW + HOUR, execution_time=NOW)
    assert gantt_of(job, [], NOW) is None
