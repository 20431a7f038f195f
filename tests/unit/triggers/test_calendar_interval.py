"""CalendarInterval: month ends, anchors, and equality with stepping through all dates."""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings

from pg_scheduler.triggers import CalendarInterval
from tests.support.cases import each_case
from tests.support.triggers import DATES, END, INSTANTS, calendar_intervals, changes_of

DAY = timedelta(days=1)
NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)


def days(trigger: CalendarInterval, n: int, after: datetime = NEW_YEAR - DAY) -> list[str]:
    return [f"{fire:%Y-%m-%d}" for fire in trigger.upcoming(n, after=after, anchor=NEW_YEAR)]


def test_monthly_trigger_on_the_31st_fires_12_times_a_year() -> None:
    trigger = CalendarInterval(months=1, first=date(2023, 12, 31))
    assert days(trigger, 12, NEW_YEAR) == [
        f"2024-{month:02}-{monthrange(2024, month)[1]}" for month in range(1, 13)
    ]
    skipping = CalendarInterval(months=1, first=date(2023, 12, 31), missing_day="skip")
    assert days(skipping, 7, NEW_YEAR) == [f"2024-{month:02}-31" for month in (1, 3, 5, 7, 8, 10, 12)]


def test_yearly_trigger_at_a_skipped_wall_time_fires_every_year() -> None:
    """02:30 on 31 March is skipped in Berlin in 2024 and 2030."""
    trigger = CalendarInterval(years=1, at=time(2, 30), timezone="Europe/Berlin", first=date(2024, 3, 31))
    berlin = ZoneInfo("Europe/Berlin")
    local = [fire.astimezone(berlin) for fire in trigger.upcoming(10, after=NEW_YEAR)]
    assert [fire.year for fire in local] == [*range(2024, 2034)]
    assert [f"{fire:%d %H:%M}" for fire in local if fire.time() != time(2, 30)] == ["31 03:00"] * 2
    monthly = CalendarInterval(months=1, at=time(2, 30), timezone="Europe/Berlin", first=date(2024, 1, 31))
    assert [fire.astimezone(berlin).month for fire in monthly.upcoming(6, after=NEW_YEAR)] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


def test_leap_day_fires_every_year_or_every_leap_year() -> None:
    last = CalendarInterval(years=1, first=date(2024, 2, 29))
    assert days(last, 5) == ["2024-02-29", "2025-02-28", "2026-02-28", "2027-02-28", "2028-02-29"]
    skip = CalendarInterval(years=1, first=date(2024, 2, 29), missing_day="skip")
    assert days(skip, 3) == ["2024-02-29", "2028-02-29", "2032-02-29"]
    assert days(skip, 2, datetime(2096, 6, 1, tzinfo=UTC)) == ["2104-02-29", "2108-02-29"]


def test_months_are_added_before_days() -> None:
    trigger = CalendarInterval(months=1, weeks=1, days=1, first=date(2024, 1, 31))
    assert days(trigger, 3) == ["2024-01-31", "2024-03-08", "2024-04-16"]


def test_dates_are_counted_from_the_anchor_when_no_first_date_is_given() -> None:
    trigger = CalendarInterval(days=2, at=time(9), timezone="Europe/Berlin")
    anchor = datetime(2024, 5, 1, 10, tzinfo=UTC)  # after 09:00 in Berlin
    fires = trigger.upcoming(2, after=anchor - 5 * DAY, anchor=anchor)
    assert fires == [datetime(2024, 5, 3, 7, tzinfo=UTC), datetime(2024, 5, 5, 7, tzinfo=UTC)]
    early = anchor.replace(hour=6)
    assert trigger.next_after(early, anchor=early) == datetime(2024, 5, 3, 7, tzinfo=UTC), (
        "one interval later"
    )
    at_start = datetime(2024, 5, 1, 7, tzinfo=UTC)
    assert trigger.next_after(at_start - DAY, anchor=at_start) == at_start, "a start is the first fire time"
    with pytest.raises(ValueError, match=r"counts from an anchor; pass anchor= or first="):
        trigger.next_after(anchor)


@settings(max_examples=150, deadline=None)
@given(trigger=calendar_intervals, first=DATES, instant=INSTANTS)
def test_next_after_equals_stepping_through_all_dates(
    trigger: CalendarInterval, first: date, instant: datetime
) -> None:
    trigger = replace_first(trigger, first)
    expected = instant
    step = 0
    while expected <= instant:
        month = first.month - 1 + step * (12 * trigger.years + trigger.months)
        year, month = first.year + month // 12, month % 12 + 1
        last = monthrange(year, month)[1]
        if first.day <= last or trigger.missing_day == "last":
            days = timedelta(days=7 * trigger.weeks + trigger.days)
            day = date(year, month, min(first.day, last)) + step * days
            expected = instant_of(datetime.combine(day, trigger.at), trigger.timezone)
        step += 1
    assert trigger.next_after(instant) == expected


def replace_first(trigger: CalendarInterval, first: date) -> CalendarInterval:
    return CalendarInterval.from_json({**trigger.to_json(), "first": str(first)})


def instant_of(wall: datetime, zone: str) -> datetime:
    """The first instant with the wall time, or the clock change that skips it."""
    instant = wall.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    if instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None) == wall:
        return instant
    assume(instant < END)
    return max(change.instant for change in changes_of(zone) if change.instant <= instant)


def test_next_after_returns_none_after_the_end_of_the_calendar() -> None:
    trigger = CalendarInterval(years=90, first=date(2024, 1, 1))
    assert trigger.next_after(datetime(9990, 1, 1, tzinfo=UTC)) is None


@each_case(
    ("parameters", "reason"),
    [
        ({}, "has no interval; pass years="),
        ({"months": 0}, "has no interval"),
        ({"months": -1}, "months must be an int of at least 0, not -1"),
        ({"days": True}, "days must be an int of at least 0, not True"),
        ({"weeks": 1.5}, "weeks must be an int"),
        ({"years": 101}, "at most 100 years, not .*101"),
        ({"days": 10**30}, "at most 100 years"),
        ({"days": 1, "at": "09:00"}, "at must be a time without tzinfo, .* not '09:00'; pass timezone="),
        ({"days": 1, "at": time(9, tzinfo=UTC)}, "at must be a time without tzinfo"),
        ({"days": 1, "at": None}, "at must be a time without tzinfo"),
        ({"days": 1, "first": NEW_YEAR}, "first must be a date, such as date"),
        ({"days": 1, "missing_day": "first"}, "missing_day must be 'last' or 'skip', not 'first'"),
        ({"days": 1, "missing_day": ["last"]}, r"missing_day must be 'last' or 'skip', not \['last'\]"),
        ({"days": 1, "timezone": "Europe/Atlantis"}, "Invalid timezone 'Europe/Atlantis'"),
    ],
)
def test_calendar_interval_raises_when_a_parameter_is_invalid(parameters: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        CalendarInterval(**parameters)
