"""The timeline of a job: attempts without holes, waits for limits, and when its misfire grace time starts."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pg_scheduler import AttemptError, JobStatus
from pg_scheduler.inspect.timeline import attempts_of, retries_used, timeline_of
from pg_scheduler.jobs.history import PARENT
from tests.unit.inspect.test_explain import HOUR, MINUTE, NOW, PENDING, SECOND


def entry(claim: int, outcome: str = "error", **changes: Any) -> AttemptError:
    at = NOW - HOUR + claim * MINUTE
    return replace(
        AttemptError(claim, at, at + 2 * SECOND, "w1", outcome, "ValueError", "no", None), **changes
    )


def events(**changes: Any) -> list[tuple[str, bool]]:
    job = replace(PENDING, max_retries=0, **changes)
    return [(each.title, each.is_ahead) for each in timeline_of(job, NOW)]


def test_attempts_are_numbered_without_the_claims_that_a_limit_sent_back() -> None:
    job = replace(PENDING, attempt=4, errors=(entry(1), entry(3), entry(4)))
    assert [(each.number, each.claim, each.held_by) for each in attempts_of(job)] == [
        (1, 1, ""),
        (2, 3, "limit"),
        (3, 4, ""),
    ]
    titles = [each.title for each in timeline_of(job, NOW)]
    assert titles == [
        "created",
        "attempt 1: error after 2 s",
        "waited for a limit",
        "attempt 2: error after 2 s",
        "attempt 3: error after 2 s",
        "attempt 4 due",
        "3 retries left",
    ]


def test_attempt_that_follows_a_claim_sent_back_says_that_it_waited() -> None:
    job = replace(
        PENDING,
        status=JobStatus.COMPLETED,
        attempt=3,
        errors=(entry(1),),
        started_at=NOW - SECOND,
        finished_at=NOW,
        worker_id="w2",
    )
    assert [(each.number, each.outcome, each.held_by) for each in attempts_of(job)] == [
        (1, "error", ""),
        (2, "completed", "limit"),
    ]
    titles = [each.title for each in timeline_of(job, NOW)]
    assert titles[2:] == ["waited for a limit", "due", "attempt 2 started", "completed"]


def test_job_that_never_ran_waits_for_its_first_attempt_although_it_was_claimed() -> None:
    assert events(attempt=1, blocked_on="limit:bank:7") == [
        ("created", False),
        ("attempt 1 due", False),
        ("starts once its limit has room", True),
    ]


def test_attempts_continue_after_those_that_the_row_dropped() -> None:
    job = replace(PENDING, attempt=30, errors=tuple(entry(claim) for claim in range(21, 31)))
    assert [each.number for each in attempts_of(job)] == list(range(21, 31))


def test_job_cancelled_before_its_start_has_no_attempt() -> None:
    error = entry(0, PARENT, started_at=None, worker_id=None, error_type=None)
    job = replace(PENDING, status=JobStatus.CANCELLED, finished_at=NOW, errors=(error,))
    assert attempts_of(job) == []
    assert [each.title for each in timeline_of(job, NOW)] == ["created", "not started", "due", "cancelled"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"blocked_on": "after", "misfire_grace_time": 300, "expires_at": NOW - SECOND},
            [
                ("attempt 1 due", False),
                ("starts once the jobs that it waits for have ended", True),
                ("expires 5 min after that, unless it has started", True),
            ],
        ),
        (
            {
                "blocked_on": "after",
                "misfire_grace_time": 300,
                "execution_time": NOW + HOUR,
                "expires_at": NOW + HOUR + 5 * MINUTE,
            },
            [
                ("attempt 1 due", True),
                ("starts once the jobs that it waits for have ended", True),
                ("expires 5 min after that or its due time, whichever is later, unless it has started", True),
            ],
        ),
        (
            {"blocked_on": "after"},
            [("attempt 1 due", False), ("starts once the jobs that it waits for have ended", True)],
        ),
        (
            {"blocked_on": "limit:bank:", "expires_at": NOW + MINUTE},
            [
                ("attempt 1 due", False),
                ("starts once its limit has room", True),
                ("expires 2 min after its due time unless it has started", True),
            ],
        ),
        (
            {"expires_at": NOW - SECOND},
            [("attempt 1 due", False), ("expires now: its misfire grace time has passed", True)],
        ),
    ],
)
def test_expiry_is_promised_only_once_its_time_has_begun(
    changes: dict[str, Any], expected: list[tuple[str, bool]]
) -> None:
    assert events(**changes)[1:] == expected


def test_no_event_ahead_lies_in_the_past() -> None:
    job = replace(PENDING, expires_at=NOW - timedelta(seconds=5))
    assert all(each.at is None or each.at > NOW for each in timeline_of(job, NOW) if each.is_ahead)


@pytest.mark.parametrize(
    ("used", "allowed", "text"),
    [(2, 2, "2 of 2 retries used"), (0, 1, "0 of 1 retry used"), (0, 0, "no retries")],
)
def test_retries_used_counts_retries_and_not_claims(used: int, allowed: int, text: str) -> None:
    assert retries_used(replace(PENDING, attempt=9, retry_count=used, max_retries=allowed)) == text
