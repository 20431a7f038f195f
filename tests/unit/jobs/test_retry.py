"""The delays of RetryPolicy."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.retry import DEFAULT_RETRY_POLICY, RetryPolicy
from tests.support.cases import each_case


def test_retry_delay_doubles_up_to_five_minutes() -> None:
    delays = [DEFAULT_RETRY_POLICY.delay(n, spread=0.0).total_seconds() for n in range(5)]
    assert delays == [60, 120, 240, 300, 300]


@given(st.integers(0, 2**31 - 1), st.floats(-1, 1))
def test_retry_jitter_varies_a_delay_by_a_tenth_and_not_beyond_the_maximum(
    retries: int, spread: float
) -> None:
    plain = DEFAULT_RETRY_POLICY.delay(retries, spread=0.0)
    moved = DEFAULT_RETRY_POLICY.delay(retries, spread=spread)
    assert plain * 0.899 <= moved <= min(plain * 1.101, timedelta(seconds=300))


def test_retry_jitter_reaches_both_ends_of_its_range() -> None:
    assert DEFAULT_RETRY_POLICY.delay(0, spread=-1) == timedelta(seconds=54)
    assert DEFAULT_RETRY_POLICY.delay(0, spread=1) == timedelta(seconds=66)


def test_retry_delay_is_constant_when_the_factor_is_1() -> None:
    policy = RetryPolicy(timedelta(seconds=1), factor=1, maximum=timedelta(seconds=1), jitter=0)
    assert {policy.delay(n, spread=1) for n in (0, 1, 1000)} == {timedelta(seconds=1)}


@each_case(
    ("settings", "rule"),
    [
        ({"base": timedelta(0)}, "0 < base <= maximum .* not base=0:00:00"),
        ({"base": timedelta(seconds=-1)}, "0 < base <= maximum"),
        ({"maximum": timedelta(seconds=59)}, "maximum=0:00:59"),
        ({"maximum": timedelta.max}, "maximum <= 3650 days"),
        ({"factor": 0.5}, "factor >= 1 and .* not factor=0.5"),
        ({"factor": float("nan")}, "factor >= 1 .* not factor=nan"),
        ({"jitter": -0.1}, "jitter < 1, not factor=2.0, jitter=-0.1"),
        ({"jitter": 1}, "jitter < 1"),
        ({"jitter": float("nan")}, "jitter < 1"),
        (
            {"only": ("OSError",)},
            r"only must be a tuple of exception classes, not \('OSError',\); pass only=",
        ),
        ({"never": OSError()}, "never must be a tuple of exception classes, not OSError"),
        ({"never": int}, "never must be a tuple of exception classes"),
    ],
)
def test_retry_policy_raises_when_a_value_is_invalid(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule):
        RetryPolicy(**settings)


@given(st.floats(1, 1e308), st.integers(0, 2**31 - 1), st.floats(-1, 1))
def test_retry_delay_never_exceeds_the_maximum_when_the_power_overflows(
    factor: float, retries: int, spread: float
) -> None:
    policy = RetryPolicy(factor=factor, maximum=timedelta(days=3650))
    assert timedelta(0) < policy.delay(retries, spread=spread) <= policy.maximum


def test_retry_delay_is_computed_in_floats_when_the_factor_is_an_int() -> None:
    assert RetryPolicy(factor=2).delay(2**31 - 1, spread=0.0) == timedelta(seconds=300)
