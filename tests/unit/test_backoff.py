"""Delays between attempts: their bounds, and when they begin again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.base.backoff import Backoff


@given(st.floats(0.001, 10), st.integers(0, 20), st.floats(1, 100))
def test_each_delay_is_twice_the_previous_one_less_up_to_a_half(
    first_s: float, number: int, factor: float
) -> None:
    longest_s = first_s * factor
    backoff = Backoff(first_s, longest_s)
    for index in range(number):
        whole_s = min(first_s * 2**index, longest_s)
        assert whole_s / 2 <= backoff.next_delay_s() <= whole_s
    backoff.reset()
    assert backoff.next_delay_s() <= first_s


def test_another_limit_shortens_the_delays_that_follow_too() -> None:
    backoff = Backoff(8.0, 64.0)
    assert 0.5 <= backoff.next_delay_s(longest_s=1.0) <= 1.0
    assert 1.0 <= backoff.next_delay_s() <= 2.0
    assert 2.0 <= backoff.next_delay_s(longest_s=100.0) <= 4.0


def test_delays_of_two_processes_differ() -> None:
    delays = {Backoff(1.0, 1.0).next_delay_s() for _ in range(9)}
    assert len(delays) > 1
