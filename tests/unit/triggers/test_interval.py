"""Both triggers: interval arithmetic, the latest fire time, and invalid parameters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.triggers import CronTrigger, IntervalTrigger, Trigger
from pg_scheduler.triggers.base import latest_fire_time

ANCHOR = datetime(2024, 1, 1, 12, 30, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")

INSTANTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
PERIODS = st.timedeltas(timedelta(microseconds=1), timedelta(days=400))


@given(every=PERIODS, instant=INSTANTS, anchor=INSTANTS)
def test_interval_fires_at_multiples_from_its_anchor(
    every: timedelta, instant: datetime, anchor: datetime
) -> None:
    fire = IntervalTrigger(every).next_after(instant, anchor=anchor)
    assert fire > instant
    assert fire - every <= instant
    assert (fire - anchor) % every == timedelta(0)


def test_interval_counts_elapsed_time_when_the_clock_changes() -> None:
    anchor = datetime(2024, 3, 30, 12, 0, tzinfo=BERLIN)
    fire = IntervalTrigger(timedelta(days=1)).next_after(anchor, anchor=anchor)
    assert fire == anchor.astimezone(UTC) + timedelta(days=1)
    assert fire.tzinfo is UTC


@given(every=PERIODS, steps=st.integers(0, 10**6), late=st.floats(0, 0.99))
def test_latest_fire_time_of_an_interval_is_the_last_one_that_is_due(
    every: timedelta, steps: int, late: float
) -> None:
    expected = ANCHOR + min(steps, timedelta(days=10**5) // every) * every
    now = min(expected + every * late, expected + every - timedelta(microseconds=1))
    assert latest_fire_time(IntervalTrigger(every), first=ANCHOR, now=now, anchor=ANCHOR) == expected


@dataclass
class Counting:
    """Counts the calls of a trigger."""

    trigger: Trigger
    calls: int = 0

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
        self.calls += 1
        return self.trigger.next_after(instant, anchor=anchor)


@pytest.mark.parametrize(
    "trigger",
    [
        CronTrigger("* * * * * *", BERLIN),
        CronTrigger("* 2 * * * *", BERLIN),
        CronTrigger("0 0 1 1 * 0", BERLIN),
        IntervalTrigger(timedelta(microseconds=1)),
    ],
)
def test_latest_fire_time_is_found_in_few_calls_when_a_year_was_missed(trigger: Trigger) -> None:
    """A call takes some 10 microseconds; stepping through every fire time would take minutes."""
    counting = Counting(trigger)
    now = ANCHOR + timedelta(days=366)
    first = trigger.next_after(ANCHOR, anchor=ANCHOR)
    found = latest_fire_time(counting, first=first, now=now, anchor=ANCHOR)
    assert found <= now < trigger.next_after(found, anchor=ANCHOR)
    assert counting.calls <= 120


def test_triggers_are_values_with_equality_hash_and_repr() -> None:
    triggers: list[Trigger] = [IntervalTrigger(timedelta(minutes=1)), CronTrigger("* * * * *", BERLIN)]
    assert {trigger.next_after(ANCHOR, anchor=ANCHOR) for trigger in triggers} == {
        ANCHOR + timedelta(minutes=1)
    }
    assert CronTrigger("* * * * *", BERLIN) == triggers[1]
    assert len({*triggers, CronTrigger("* * * * *", BERLIN)}) == 2
    assert repr(triggers[1]).startswith("CronTrigger(expression='* * * * *', timezone=")


@pytest.mark.parametrize("trigger", [IntervalTrigger(timedelta(minutes=1)), CronTrigger("* * * * *", BERLIN)])
def test_next_after_raises_when_the_instant_is_naive(trigger: Trigger) -> None:
    with pytest.raises(ValueError, match=r"has no time zone; use datetime\.now\(UTC\)"):
        trigger.next_after(ANCHOR.replace(tzinfo=None), anchor=ANCHOR)


@pytest.mark.parametrize("every", [timedelta(0), timedelta(seconds=-1), 30, None])
def test_interval_trigger_raises_when_every_is_not_a_positive_timedelta(every: Any) -> None:
    with pytest.raises(ValueError, match=r"every must be a positive timedelta, .* not "):
        IntervalTrigger(every)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "has 0 fields; write five"),
        ("5", "has 1 field; write five"),
        ("* * * *", "has 4 fields; write five"),
        ("0 0 1 1 * 0 2030", "has 7 fields. .* years are not supported"),
        (None, "None is not ASCII text"),
        ("٣ * * * *", "is not ASCII text"),
        ("@reboot", "unknown alias; use one of @annually, @daily"),
        ("60 * * * *", "has '60' as minute, which is invalid; .* from 0 to 59"),
        ("* * * * * 60", "has '60' as second"),
        ("* * 0 * *", "has '0' as day of month"),
        ("* * * 13 *", "has '13' as month"),
        ("* * * * 8", "has '8' as day of week"),
        ("*/0 * * * *", "has '\\*/0' as minute"),
        ("1,,2 * * * *", "has '1,,2' as minute"),
        ("x-5 * * * *", "has 'x-5' as minute"),
        ("foo-5 * * * *", "has 'foo' as minute"),
        ("5-5 * * * *", "has '5-5' as minute, a range of one value; write 5"),
        ("* * * * mon-mon", "has 'mon-mon' as day of week, a range of one value; write mon"),
        ("* * * * 3-3#2", "a range of one value; write 3"),
        ("59/15 * * * *", "has '59/15' as minute, a range of one value; write 59"),
        ("* * * dec/3 *", "a range of one value; write dec"),
        ("* * * * 7-7", "starts with 7; write 0"),
        ("* * * * 7/2", "starts with 7; write 0"),
        ("R * * * *", "'r' as minute, a random or hashed value"),
        ("* H(0-7) * * *", "a random or hashed value; write a number"),
        ("* * * * * H/5", "'h/5' as second, a random or hashed value"),
        ("* * 15W * *", "nearest weekday, which is not supported"),
        ("* 22-5/3 * * *", "with steps across the end"),
        ("0 0 31 2 *", "has a date that never occurs"),
        ("0 0 31 4,6 *", "has a date that never occurs"),
    ],
)
def test_cron_trigger_raises_with_reason_and_remedy_when_the_expression_is_invalid(
    expression: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        CronTrigger(expression, BERLIN)
    message = str(caught.value)
    assert repr(expression) in message
    assert "; " in message
    assert "\n" not in message


@given(st.text("0123456789*/-,?#lwhrfebmon() @", max_size=20) | st.text(max_size=20))
def test_cron_trigger_accepts_any_text_or_raises_value_error(expression: str) -> None:
    try:
        trigger = CronTrigger(expression, BERLIN)
    except ValueError:
        return
    assert trigger.next_after(ANCHOR) > ANCHOR


@given(st.lists(st.text("0123456789*/-,?#lfebmo()", min_size=1, max_size=6), min_size=5, max_size=6))
def test_cron_trigger_accepts_any_fields_or_raises_value_error(fields: list[str]) -> None:
    test_cron_trigger_accepts_any_text_or_raises_value_error.hypothesis.inner_test(" ".join(fields))  # type: ignore[attr-defined]
