"""Every, FixedDelay, At and Cron: arithmetic, descriptions, and invalid parameters."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.triggers import At, CalendarInterval, Cron, Every, FixedDelay, Trigger
from tests.support.cases import each_case
from tests.support.triggers import fire_after

ANCHOR = datetime(2024, 1, 1, 12, 30, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")

INSTANTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
PERIODS = st.timedeltas(timedelta(microseconds=1), timedelta(days=400))


@given(every=PERIODS, instant=INSTANTS, anchor=INSTANTS)
def test_interval_fires_at_multiples_from_its_anchor(
    every: timedelta, instant: datetime, anchor: datetime
) -> None:
    fire = fire_after(Every(every), instant, anchor)
    assert fire > instant
    assert fire - every <= instant
    assert (fire - anchor) % every == timedelta(0)


def test_interval_counts_elapsed_time_when_the_clock_changes() -> None:
    anchor = datetime(2024, 3, 30, 12, 0, tzinfo=BERLIN)
    fire = Every(timedelta(days=1)).next_after(anchor, anchor=anchor)
    assert fire == anchor.astimezone(UTC) + timedelta(days=1)
    assert fire.tzinfo is UTC


def test_triggers_are_values_with_equality_hash_and_repr() -> None:
    triggers: list[Trigger] = [Every(timedelta(minutes=1)), Cron("* * * * *", BERLIN)]
    assert {trigger.next_after(ANCHOR, anchor=ANCHOR) for trigger in triggers} == {
        ANCHOR + timedelta(minutes=1)
    }
    assert Cron("* * * * *", BERLIN) == triggers[1]
    assert len({*triggers, Cron("* * * * *", BERLIN)}) == 2
    assert repr(triggers[1]).startswith("Cron(expression='* * * * *', timezone=")


@pytest.mark.parametrize("trigger", [Every(timedelta(minutes=1)), Cron("* * * * *", BERLIN)])
def test_next_after_raises_when_the_instant_is_naive(trigger: Trigger) -> None:
    with pytest.raises(ValueError, match=r"has no time zone; use datetime\.now\(UTC\)"):
        trigger.next_after(ANCHOR.replace(tzinfo=None), anchor=ANCHOR)


@pytest.mark.parametrize("every", [timedelta(0), timedelta(seconds=-1), 30, None])
def test_every_raises_when_it_is_not_a_positive_timedelta(every: Any) -> None:
    with pytest.raises(ValueError, match=r"every must be a positive timedelta, .* not "):
        Every(every)


def test_every_accepts_units() -> None:
    assert Every(weeks=1, days=2, hours=3, minutes=4, seconds=5) == Every(
        timedelta(days=9, hours=3, minutes=4, seconds=5)
    )
    assert Every(hours=0.5) == Every(timedelta(minutes=30))


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"every": timedelta(hours=1), "hours": 1}, "pass a timedelta or units, not both"),
        ({"hours": -1}, "every must be a positive timedelta"),
        ({"days": 3661}, "at most 3660 days"),
        ({"days": 10**12}, "units must be numbers, up to 3660 days in all, not .*days=1000000000000"),
        ({"hours": "1"}, "units must be numbers, .* hours='1'"),
        ({"hours": float("nan")}, "units must be numbers"),
        ({"hours": True}, "units must be numbers, .* hours=True"),
    ],
)
def test_every_raises_when_its_units_are_invalid(parameters: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Every(**parameters)


@pytest.mark.parametrize(
    ("delay", "reason"),
    [
        (timedelta(0), "delay must be a positive timedelta"),
        (5, "delay must be a positive timedelta, .* not 5"),
        (timedelta(days=3661), "delay must be at most 3660 days"),
    ],
)
def test_fixed_delay_raises_when_it_is_not_a_positive_timedelta(delay: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FixedDelay(delay)


def test_at_fires_once_at_each_instant() -> None:
    later = ANCHOR + timedelta(days=1)
    trigger = At(later, ANCHOR, later.astimezone(BERLIN))
    assert trigger == At(ANCHOR, later)
    assert trigger.upcoming(after=ANCHOR - timedelta(days=9)) == [ANCHOR, later]
    assert trigger.next_after(later) is None


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize("wall", [datetime(2024, 3, 31, 2, 30), datetime(2024, 10, 27, 2, 30)])  # noqa: DTZ001
def test_at_fires_at_wall_times_that_are_skipped_or_repeated(wall: datetime, fold: int) -> None:
    instant = wall.replace(tzinfo=BERLIN, fold=fold)
    trigger = At(instant)
    assert trigger.instants == (instant.astimezone(UTC),)
    assert Trigger.from_json(trigger.to_json()) == trigger


@pytest.mark.parametrize(
    ("instants", "reason"),
    [
        ((), "At has 0 instants; pass 1 to 1000"),
        ((ANCHOR,) * 1001, "At has 1001 instants"),
        (("2024-01-01",), "At takes datetimes, not '2024-01-01'"),
        ((ANCHOR.replace(tzinfo=None),), "has no time zone"),
    ],
)
def test_at_raises_when_its_instants_are_invalid(instants: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        At(*instants)


@each_case(
    ("trigger", "text"),
    [
        (Every(hours=1), "every hour"),
        (Every(seconds=90), "every 1 minute 30 seconds"),
        (Every(days=1), "every 24 hours"),
        (Every(days=14), "every 14 days"),
        (Every(timedelta(microseconds=1)), "every microsecond"),
        (FixedDelay(timedelta(seconds=10)), "10 seconds after the previous job ended"),
        (At(ANCHOR), "at 2024-01-01 12:30 UTC"),
        (At(ANCHOR.replace(second=5), ANCHOR), "at 2024-01-01 12:30, 2024-01-01 12:30:05 UTC"),
        (
            At(*(ANCHOR + timedelta(days=day) for day in range(4))),
            "at 4 instants from 2024-01-01 12:30 to 2024-01-04 12:30 UTC",
        ),
        (CalendarInterval(months=1, at=time(9), timezone="Asia/Tokyo"), "every month at 09:00 Asia/Tokyo"),
        (
            CalendarInterval(years=1, days=2, first=date(2024, 1, 31), missing_day="skip"),
            "every 1 year 2 days at 00:00 UTC from 2024-01-31 unless the day is missing",
        ),
        (Cron("0 3 * * SUN", "Europe/Berlin"), "at 03:00 on Sunday, Europe/Berlin"),
        (Cron("30 2 * * *"), "at 02:30 every day, UTC"),
        (Cron("0 9,17 * * 1-5"), "at 09:00 and 17:00 on Monday to Friday, UTC"),
        (Cron("0 9 * 6-8 0,6"), "at 09:00 on Saturday and Sunday in June, July and August, UTC"),
        (Cron("0 0 * jan *"), "at 00:00 every day in January, UTC"),
        (Cron("@monthly"), "at 00:00 on day 1 of every month, UTC"),
        (Cron("0 0 1,15 1 *"), "at 00:00 on day 1 and 15 of January, UTC"),
        (Cron("0 0 L * *"), "at 00:00 on the last day of every month, UTC"),
        (Cron("0 0 1,L * *"), "cron '0 0 1,L * *', UTC"),
        (Cron("0 0 1-9 * *"), "cron '0 0 1-9 * *', UTC"),
        (Cron("0 0 * 1-9 *"), "cron '0 0 * 1-9 *', UTC"),
        (Cron("0 0 1 * 1"), "cron '0 0 1 * 1', UTC"),
        (Cron("0 0 1 * */2"), "cron '0 0 1 * */2', UTC"),
        (Cron("0 9 * * FRI#2"), "cron '0 9 * * FRI#2', UTC"),
        (Cron("* * * * *"), "every minute, UTC"),
        (Cron("*/5 * * * *"), "every 5 minutes, UTC"),
        (Cron("*/7 * * * *"), "cron '*/7 * * * *', UTC"),
        (Cron("5/10 * * * *"), "every 10 minutes from minute 5 of every hour, UTC"),
        (Cron("*/30 * * 1 *"), "every 30 minutes in January, UTC"),
        (Cron("15 * * * *"), "at minute 15 of every hour, UTC"),
        (Cron("@hourly"), "at minute 0 of every hour, UTC"),
        (Cron("5,20,50 * * * MON"), "at minutes 5, 20 and 50 of every hour on Monday, UTC"),
        (Cron("*/5 9-17 * * MON-FRI"), "every 5 minutes from 09:00 to 17:55 on Monday to Friday, UTC"),
        (Cron("* 3 * * *"), "every minute from 03:00 to 03:59, UTC"),
        (Cron("0 */6 * * *"), "every 6 hours from 00:00 to 18:00, UTC"),
        (Cron("30 8-18/2 * * *"), "every 2 hours from 08:30 to 18:30, UTC"),
        (Cron("15 9-17 1 * *"), "every hour from 09:15 to 17:15 on day 1 of every month, UTC"),
        (Cron("*/5 9,12 * * *"), "cron '*/5 9,12 * * *', UTC"),
        (Cron("0-30/10 * * * *"), "cron '0-30/10 * * * *', UTC"),
        (Cron("0 1,2,4,9 * * *"), "cron '0 1,2,4,9 * * *', UTC"),
        (Cron("* * * * * *"), "every second, UTC"),
        (Cron("* * * * * */10"), "every 10 seconds, UTC"),
        (Cron("* * * * * 5/10"), "cron '* * * * * 5/10', UTC"),
        (Cron("* 3 * * * */10"), "cron '* 3 * * * */10', UTC"),
        (Cron("0 0 * * * 30"), "cron '0 0 * * * 30', UTC"),
    ],
)
def test_str_describes_the_trigger(trigger: Trigger, text: str) -> None:
    assert str(trigger) == text


def test_time_zone_is_a_name_or_a_zone() -> None:
    assert Cron("@daily", "Europe/Berlin") == Cron("@daily", BERLIN)
    assert Cron("@daily", UTC) == Cron("@daily") == Cron("@daily", ZoneInfo("UTC"))
    with pytest.raises(ValueError, match="Invalid timezone 'Mars'"):
        Cron("@daily", "Mars")


@each_case(
    ("expression", "reason"),
    [
        ("", "has 0 fields; write five"),
        ("5", "has 1 field; write five"),
        ("* * * *", "has 4 fields; write five"),
        ("0 0 1 1 * 0 2030", "has 7 fields. .* years are not supported"),
        (None, "None is not ASCII text"),
        (["* * * * *"], r"\['\* \* \* \* \*'\] is not ASCII text"),
        ("٣ * * * *", "is not ASCII text"),
        ("@reboot", "unknown alias; use one of @annually, @daily"),
        ("60 * * * *", "has '60' as minute, which is invalid; .* from 0 to 59"),
        ("* * * * * 60", "has '60' as second"),
        ("* * 0 * *", "has '0' as day of month"),
        ("* * * 13 *", "has '13' as month"),
        ("* * * * 8", "has '8' as day of week"),
        ("0 9 * * 5L", "has '5L' as day of week, which is invalid; write L5"),
        ("0 9 * Januar *", "has 'Januar' as month"),
        ("0 9 * jan,FOO *", "has 'jan,FOO' as month"),
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
        ("R * * * *", "'R' as minute, a random or hashed value"),
        ("* H(0-7) * * *", "a random or hashed value; write a number"),
        ("* * * * * H/5", "'H/5' as second, a random or hashed value"),
        ("* * 15W * *", "nearest weekday, which is not supported"),
        ("* 22-5/3 * * *", "with steps across the end"),
        ("0 0 31 2 *", "has a date that never occurs"),
        ("0 0 31 4,6 *", "has a date that never occurs"),
    ],
)
def test_cron_raises_with_reason_and_remedy_when_the_expression_is_invalid(
    expression: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        Cron(expression, BERLIN)
    message = str(caught.value)
    assert repr(expression) in message
    assert "; " in message
    assert "\n" not in message


@given(st.text("0123456789*/-,?#lwhrfebmon() @", max_size=20) | st.text(max_size=20))
def test_cron_accepts_any_text_or_raises_value_error(expression: str) -> None:
    try:
        trigger = Cron(expression, BERLIN)
    except ValueError:
        return
    assert fire_after(trigger, ANCHOR) > ANCHOR


@given(st.lists(st.text("0123456789*/-,?#lfebmo()", min_size=1, max_size=6), min_size=5, max_size=6))
def test_cron_accepts_any_fields_or_raises_value_error(fields: list[str]) -> None:
    test_cron_accepts_any_text_or_raises_value_error.hypothesis.inner_test(" ".join(fields))  # type: ignore[attr-defined]
