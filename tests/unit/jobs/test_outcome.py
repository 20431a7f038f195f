"""The outcome of a result, and the text of an error."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pg_scheduler import Abort, Snooze
from pg_scheduler.base.status import JobStatus
from pg_scheduler.events import JobEvent, JobFailed, JobRetried
from pg_scheduler.jobs.outcome import (
    LOCK_RETRY_DELAY,
    MAX_ERROR_LENGTH,
    ErrorResult,
    InterruptResult,
    Result,
    ReturnResult,
    RowChange,
    SkippedResult,
    UnrunnableResult,
    decide,
    describe,
)
from pg_scheduler.jobs.retry import RetryPolicy
from tests.support.cases import each_case
from tests.support.inside import COMPLETE, RELEASE, Claim, Outcome

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


def effect(outcome: Outcome) -> tuple[RowChange, JobEvent | None]:
    """Return what an outcome does, without the traceback in the history."""
    return replace(outcome.change, entry=None), outcome.event_of(CLAIM)


@each_case(
    ("result", "retries", "allowed", "outcome"),
    [
        (ReturnResult(), 0, 0, COMPLETE),
        (ReturnResult(), 2, 2, COMPLETE),
        (ErrorResult(ValueError("no")), 0, 0, Outcome.fail("ValueError: no")),
        (ErrorResult(ValueError("no")), 0, 1, Outcome.retry(timedelta(seconds=60), "ValueError: no")),
        (ErrorResult(TimeoutError()), 1, 2, Outcome.retry(timedelta(seconds=120), "TimeoutError")),
        (ErrorResult(ValueError("no")), 2, 2, Outcome.fail("ValueError: no")),
        (ErrorResult(ValueError("no")), 3, 2, Outcome.fail("ValueError: no")),
        (ErrorResult(Snooze(90)), 2, 2, Outcome.snooze(timedelta(seconds=90))),
        (ErrorResult(Abort("no such order")), 0, 5, Outcome.fail("Abort: no such order")),
        (UnrunnableResult(LookupError("gone")), 0, 5, Outcome.fail("LookupError: gone")),
        (InterruptResult(), 0, 0, RELEASE),
        (InterruptResult(), 5, 5, RELEASE),
    ],
)
def test_decide_returns_the_outcome_of_a_result(
    result: Result, retries: int, allowed: int, outcome: Outcome
) -> None:
    claim = CLAIM._replace(retry_count=retries, max_retries=allowed)
    assert effect(decide(claim, result, POLICY, spread=0.0)) == effect(outcome)


def test_decide_delays_a_job_that_has_begun_while_another_attempt_holds_its_lock() -> None:
    outcome = decide(CLAIM._replace(attempt=2), SkippedResult("locked"), POLICY, spread=0.0)
    assert effect(outcome) == effect(Outcome.snooze(LOCK_RETRY_DELAY))
    outcome = decide(CLAIM._replace(attempt=1), SkippedResult("locked"), POLICY, spread=0.0)
    assert effect(outcome) == effect(Outcome.skip("locked"))


def test_decide_applies_jitter_to_the_delay_of_a_retry() -> None:
    claim = CLAIM._replace(max_retries=1)
    outcome = decide(claim, ErrorResult(OSError()), POLICY, spread=1.0)
    assert effect(outcome) == effect(Outcome.retry(timedelta(seconds=90), "OSError"))


@pytest.mark.parametrize(
    ("classes", "error", "is_retried"),
    [
        ({"only": (OSError,)}, ConnectionError(), True),
        ({"only": (OSError, KeyError)}, KeyError(), True),
        ({"only": (OSError,)}, ValueError(), False),
        ({"never": (ValueError,)}, UnicodeError(), False),
        ({"never": (ValueError,)}, OSError(), True),
        ({"only": (OSError,), "never": (ConnectionError,)}, ConnectionResetError(), False),
        ({"only": (OSError,), "never": (ConnectionError,)}, FileNotFoundError(), True),
    ],
)
def test_decide_retries_the_exceptions_that_the_policy_selects(
    classes: dict[str, Any], error: Exception, is_retried: bool
) -> None:
    outcome = decide(
        CLAIM._replace(max_retries=1), ErrorResult(error), RetryPolicy(jitter=0, **classes), spread=0.0
    )
    assert isinstance(outcome.event_of(CLAIM), JobRetried if is_retried else JobFailed)


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
def test_describe_returns_text_that_the_column_can_store(error: Exception, text: str) -> None:
    assert describe(error) == text


def test_describe_truncates_a_long_error() -> None:
    assert len(describe(ValueError("x" * 10**6))) == MAX_ERROR_LENGTH


@pytest.mark.parametrize("error", [Mute(), NotText()])
def test_decide_fails_the_job_when_its_exception_has_no_text(error: Exception) -> None:
    outcome = decide(CLAIM, ErrorResult(error), POLICY, spread=0.0)
    assert outcome.change.status is JobStatus.FAILED
    assert str(outcome.change.error).startswith(type(error).__name__)
