"""What a try that ended makes of its job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pg_scheduler.domain.job import Claim
from pg_scheduler.domain.outcome import (
    MAX_ERROR_LENGTH,
    Completed,
    Errored,
    Failed,
    Interrupted,
    Outcome,
    Release,
    Result,
    Retry,
    Returned,
    Skip,
    Skipped,
    Unrunnable,
    decide,
    describe,
)
from pg_scheduler.domain.retry import RetryPolicy

CLAIM = Claim(
    job_id="id",
    job_name="app.work",
    function="app.work",
    attempt=7,
    execution_time=datetime(2030, 1, 1, tzinfo=UTC),
    task_data="{}",
    priority=5,
    retry_count=0,
    max_retries=0,
    timeout_seconds=None,
    lock_key=None,
)
POLICY = RetryPolicy(jitter=0.5)


@pytest.mark.parametrize(
    ("result", "retries", "allowed", "outcome"),
    [
        (Returned(), 0, 0, Completed()),
        (Returned(), 2, 2, Completed()),
        (Errored(ValueError("no")), 0, 0, Failed("ValueError: no")),
        (Errored(ValueError("no")), 0, 1, Retry(timedelta(seconds=60), "ValueError: no")),
        (Errored(TimeoutError()), 1, 2, Retry(timedelta(seconds=120), "TimeoutError")),
        (Errored(ValueError("no")), 2, 2, Failed("ValueError: no")),
        (Errored(ValueError("no")), 3, 2, Failed("ValueError: no")),
        (Unrunnable(LookupError("gone")), 0, 5, Failed("LookupError: gone")),
        (Skipped("locked"), 0, 5, Skip("locked")),
        (Interrupted(), 0, 0, Release()),
        (Interrupted(), 5, 5, Release()),
    ],
)
def test_decisions(result: Result, retries: int, allowed: int, outcome: Outcome) -> None:
    claim = CLAIM._replace(retry_count=retries, max_retries=allowed)
    assert decide(claim, result, POLICY, spread=0.0) == outcome


def test_the_spread_moves_the_retry() -> None:
    claim = CLAIM._replace(max_retries=1)
    assert decide(claim, Errored(OSError()), POLICY, spread=1.0) == Retry(timedelta(seconds=90), "OSError")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NotText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value] # noqa: PLE0307 - the mistake in question


class Outer:
    class InnerError(Exception): ...


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("k"), "KeyError: 'k'"),
        (Outer.InnerError("x"), "Outer.InnerError: x"),
        (ValueError(), "ValueError"),
        (ValueError("a\x00b"), "ValueError: a\\x00b"),
        (ValueError("a\ud800b 🦉"), "ValueError: a\\ud800b 🦉"),
    ],
)
def test_an_error_as_text_that_the_column_can_hold(error: Exception, text: str) -> None:
    assert describe(error) == text


def test_a_long_error_is_cut() -> None:
    assert len(describe(ValueError("x" * 10**6))) == MAX_ERROR_LENGTH


@pytest.mark.parametrize("error", [Mute(), NotText()])
def test_an_exception_that_cannot_say_what_it_is_still_fails_its_job_only(error: Exception) -> None:
    outcome = decide(CLAIM, Errored(error), POLICY, spread=0.0)
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith(type(error).__name__)
