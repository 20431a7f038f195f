"""Cron against Debian's cron, minute by minute (second by second for six fields).

The comparison omits intended differences (see the docstring of the module): how often a job starts within
one instant, and changes of less than five minutes, which the zones below do not have. The simulated daemon
detects every change of the UTC offset, also those that the real one ignores.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pg_scheduler.triggers.cron import Cron
from pg_scheduler.triggers.missed import fire_times_around
from tests.support.cases import each_case
from tests.support.debian_cron import MINUTE, SECOND, fires, read
from tests.support.triggers import fire_after

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

YEARS = [
    ("Africa/Casablanca", 2024),  # back for Ramadan, forward after it
    ("America/Caracas", 2007),  # back by 30 minutes
    ("America/Caracas", 2016),  # and forward
    ("America/Havana", 2024),  # spring at midnight, fall at 01:00
    ("America/New_York", 2024),
    ("America/Sao_Paulo", 2018),  # no midnight in spring, two 23 o'clocks in fall
    ("America/St_Johns", 1988),  # two hours, at 00:01
    ("Antarctica/Casey", 2010),  # back by exactly three hours
    ("Antarctica/Casey", 2011),  # and forward, and back by two
    ("Antarctica/Troll", 2024),  # two hours
    ("Asia/Beirut", 2024),  # no midnight in spring
    ("Asia/Kathmandu", 1986),  # forward by 15 minutes
    ("Australia/Lord_Howe", 2024),  # 30 minutes
    ("Europe/Berlin", 2024),
    ("Europe/Dublin", 2024),  # winter time is the saving there
    ("Pacific/Apia", 2011),  # a whole day is skipped
    ("Pacific/Chatham", 2024),  # at 02:45
]


def transitions(name: str, year: int) -> list[datetime]:
    """The instants at which the UTC offset of the zone changes, around that year."""
    zone = ZoneInfo(name)
    start = datetime(year, 1, 1, tzinfo=UTC) - DAY
    found = []
    for hour in range(367 * 24):
        low = start + hour * HOUR
        if low.astimezone(zone).utcoffset() != (low + HOUR).astimezone(zone).utcoffset():
            before = low.astimezone(zone).utcoffset()
            while low.astimezone(zone).utcoffset() == before:
                low += MINUTE
            found.append(low)
    return found


CHANGES = [(name, instant) for name, year in YEARS for instant in transitions(name, year)]

EXPRESSIONS = [
    "* * * * *",
    "*/15 * * * *",
    "0 * * * *",
    "10 * * * *",
    "30 0 * * *",
    "0 0 * * *",
    "5 0 * * *",
    "0 1 * * *",
    "30 1 * * *",
    "59 1 * * *",
    "0 2 * * *",
    "15 2 * * *",
    "30 2 * * *",
    "45 2 * * *",
    "0 3 * * *",
    "0,30 2 * * *",
    "0,30 0-4 * * *",
    "*/30 2 * * *",
    "*/20 0-3 * * *",
    "0 */2 * * *",
    "30 */3 * * *",
    "10-50/20 22-23 * * *",
    "30 23 * * *",
    "30 2 * * sun",
    "30 2 31 * *",
    "30 1 1-7 * sun",
    "0 12 * * 1-5",
    "0 0 1 */3 *",
]

SECONDS = [
    "* * * * * *",
    "* * * * * */20",
    "30 2 * * * *",
    "30 0 * * * 15",
    "0 * * * * 30",
    "* 2 * * * 5",
    "*/10 1-2 * * * 0,59",
    "0,30 1-3 * * * 10-50/20",
    "15 23,0,1,2,3 * * * 45",
]


def walk(trigger: Cron, start: datetime, end: datetime) -> list[datetime]:
    """The fire times from ``start`` on, before ``end``, in order."""
    found = []
    instant = start - timedelta(microseconds=1)
    while (instant := fire_after(trigger, instant)) < end:
        found.append(instant)
    return found


@cache
def zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def check(expression: str, name: str, change: datetime, reach: timedelta) -> list[datetime]:
    start, end = change - reach, change + reach
    ours = walk(Cron(expression, zone(name)), start, end)
    assert ours == fires(expression, zone(name), start, end)
    return ours


def test_clock_changes_under_test_cover_every_kind() -> None:
    shifts = set()
    for name, instant in CHANGES:
        after, before = (at.astimezone(zone(name)).utcoffset() for at in (instant, instant - SECOND))
        assert after is not None
        assert before is not None
        shifts.add((after - before) / MINUTE)
    assert len({name for name, _ in CHANGES}) >= 9
    assert shifts >= {15, 30, 60, 120, 180, 24 * 60, -30, -60, -120, -180}


@pytest.mark.slow
@each_case(("name", "change"), CHANGES, ids=str)
def test_cron_fires_as_debian_through_every_clock_change(name: str, change: datetime) -> None:
    for expression in EXPRESSIONS:
        check(expression, name, change, 30 * HOUR)


@pytest.mark.parametrize(("name", "change"), CHANGES[::3], ids=str)
def test_cron_fires_as_debian_when_the_expression_has_seconds(name: str, change: datetime) -> None:
    for expression in SECONDS:
        check(expression, name, change, timedelta(hours=2, minutes=10))


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    one = st.integers(low, high)
    span = st.tuples(one, one).filter(lambda ends: ends[0] < ends[1]).map(lambda ends: f"{ends[0]}-{ends[1]}")
    stepped = st.tuples(span, st.integers(1, 30)).map(lambda parts: f"{parts[0]}/{parts[1]}")
    return st.lists(st.one_of(one.map(str), one.map(str), span, stepped), min_size=1, max_size=3).map(
        ",".join
    )


def field(low: int, high: int) -> st.SearchStrategy[str]:
    stars = st.integers(1, (high - low) // 2 + 1).map(lambda step: f"*/{step}")
    return st.one_of(numbers(low, high), numbers(low, high), stars, st.just("*"))


MINUTES = field(0, 59)
HOURS = st.one_of(field(0, 23), numbers(0, 4), numbers(0, 4))
DATES = st.one_of(st.just("*"), st.just("*"), field(1, 31))
MONTHS = st.one_of(st.just("*"), st.just("*"), st.just("*"), field(1, 12))
WEEKDAYS = st.one_of(st.just("*"), st.just("*"), field(0, 6))


def comes(expression: str) -> bool:
    """Whether Debian's cron would ever run it."""
    entry = read(expression)
    first = datetime(2000, 1, 1)  # noqa: DTZ001  a wall time
    days = (first + number * DAY for number in range(29 * 366))
    return any(day.month in entry.sets[3] and entry.names_day(day) for day in days)


FIVE = st.tuples(MINUTES, HOURS, DATES, MONTHS, WEEKDAYS).map(" ".join).filter(comes)
NOONS = st.tuples(st.just("0 12"), DATES, MONTHS, field(0, 6)).map(" ".join).filter(comes)


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(expression=FIVE, change=st.sampled_from(CHANGES))
def test_cron_fires_as_debian_when_the_expression_is_arbitrary(
    expression: str, change: tuple[str, datetime]
) -> None:
    check(expression, change[0], change[1], 26 * HOUR)


@pytest.mark.slow
@each_case(("name", "change"), CHANGES, ids=str)
def test_cron_fires_as_debian_from_any_instant_near_a_clock_change(name: str, change: datetime) -> None:
    for expression in EXPRESSIONS:
        fired = fires(expression, zone(name), change - 30 * HOUR, change + 30 * HOUR)
        trigger = Cron(expression, zone(name))
        for minutes in range(-200, 200, 29):
            instant = change + minutes * MINUTE
            coming = [fire for fire in fired if fire > instant]
            assert not coming or fire_after(trigger, instant) == coming[0]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(parts=st.tuples(MINUTES, HOURS, field(0, 59)), change=st.sampled_from(CHANGES))
def test_cron_fires_as_debian_when_an_arbitrary_expression_has_seconds(
    parts: tuple[str, str, str], change: tuple[str, datetime]
) -> None:
    minute, hour, second = parts
    check(f"{minute} {hour} * * * {second}", change[0], change[1], timedelta(hours=1, minutes=5))


@settings(max_examples=80, deadline=None)
@given(expression=NOONS, year=st.integers(1999, 2101))
def test_cron_matches_days_as_debian_does(expression: str, year: int) -> None:
    """One match is enough when day of month and day of week are both restricted, else both must match."""
    entry = read(expression)
    noons = [datetime(year, 1, 1, 12, tzinfo=UTC) + number * DAY for number in range(800)]
    expected = [noon for noon in noons if noon.month in entry.sets[3] and entry.names_day(noon)]
    assert walk(Cron(expression, zone("UTC")), noons[0], noons[-1] + SECOND) == expected


@settings(max_examples=100, deadline=None)
@given(
    expression=FIVE,
    change=st.sampled_from(CHANGES),
    offset=st.timedeltas(-2 * DAY, 2 * DAY),
)
def test_next_after_returns_the_first_later_fire_time(
    expression: str, change: tuple[str, datetime], offset: timedelta
) -> None:
    trigger = Cron(expression, zone(change[0]))
    instant = change[1] + offset
    fire = fire_after(trigger, instant)
    assert fire > instant
    assert fire_after(trigger, instant + (fire - instant) / 2) == fire
    assert fire_after(trigger, fire - timedelta(microseconds=1)) == fire
    assert fire_after(trigger, fire) > fire


@settings(max_examples=100, deadline=None)
@given(
    expression=FIVE,
    change=st.sampled_from(CHANGES),
    back=st.timedeltas(timedelta(0), DAY),
    ahead=st.timedeltas(timedelta(0), DAY),
)
def test_latest_fire_time_equals_the_last_result_of_next_after(
    expression: str, change: tuple[str, datetime], back: timedelta, ahead: timedelta
) -> None:
    trigger = Cron(expression, zone(change[0]))
    first = fire_after(trigger, change[1] - back)
    now = max(first, change[1] + ahead)
    walked = walk(trigger, first, now + timedelta(microseconds=1))
    latest, following = fire_times_around(trigger, first=first, now=now, anchor=first)
    assert latest == walked[-1]
    assert following == fire_after(trigger, latest)


# Computed by hand, to detect an error that the simulation and the trigger share. Times are UTC.
@each_case(
    ("expression", "name", "day", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2024-03-31", ["01:00"]),
        ("0,30 2 * * *", "Europe/Berlin", "2024-03-31", ["01:00"]),
        ("30 2,3 * * *", "Europe/Berlin", "2024-03-31", ["01:00", "01:30"]),
        ("*/30 2 * * *", "Europe/Berlin", "2024-03-31", []),
        ("30 2 * * *", "Europe/Berlin", "2024-10-27", ["00:30"]),
        ("*/30 2 * * *", "Europe/Berlin", "2024-10-27", ["00:00", "00:30", "01:00", "01:30"]),
        ("30 1 * * *", "America/New_York", "2024-11-03", ["05:30"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2024-10-05", ["15:30"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2024-04-06", ["14:45"]),
        (
            "*/15 1 * * *",
            "Australia/Lord_Howe",
            "2024-04-06",
            ["14:00", "14:15", "14:30", "14:45", "15:00", "15:15"],
        ),
        ("0 3 * * *", "Pacific/Chatham", "2024-09-28", ["14:00"]),
        ("0 0 * * *", "America/Sao_Paulo", "2018-11-04", ["03:00"]),
        ("30 12 30 12 *", "Pacific/Apia", "2011-12-30", []),
        ("@hourly", "Asia/Kolkata", "2024-01-01", [f"{hour:02}:30" for hour in range(24)]),
        ("59 23 * * * 59", "UTC", "2024-02-29", ["23:59:59"]),
    ],
)
def test_cron_fires_at_the_expected_times(expression: str, name: str, day: str, expected: list[str]) -> None:
    start = datetime.fromisoformat(f"{day}T00:00+00:00")
    found = walk(Cron(expression, zone(name)), start, start + DAY)
    assert found == [datetime.fromisoformat(f"{day}T{text}+00:00") for text in expected]


@each_case(
    ("expression", "expected"),
    [
        ("0 0 l * *", ["2024-01-31", "2024-02-29", "2024-03-31"]),
        ("0 0 * * 5#3", ["2024-01-19", "2024-02-16", "2024-03-15"]),
        ("0 0 * * l5", ["2024-01-26", "2024-02-23", "2024-03-29"]),
        ("0 0 ? * fri-sun", ["2024-01-05", "2024-01-06", "2024-01-07"]),
        ("0 0 1,30 2-3 *", ["2024-02-01", "2024-03-01", "2024-03-30"]),
        ("0 0 31 2 1", ["2024-02-05", "2024-02-12", "2024-02-19"]),
        ("0 0 29 2 *", ["2024-02-29", "2028-02-29", "2032-02-29"]),
        ("0 0 * * 6-7 0", ["2024-01-06", "2024-01-07", "2024-01-13"]),
        ("@Yearly", ["2025-01-01", "2026-01-01", "2027-01-01"]),
    ],
)
def test_cron_accepts_days_that_debian_has_no_syntax_for(expression: str, expected: list[str]) -> None:
    trigger = Cron(expression, zone("UTC"))
    instant = datetime(2024, 1, 1, tzinfo=UTC)
    found = [instant := fire_after(trigger, instant) for _ in expected]
    assert [f"{fire:%Y-%m-%d}" for fire in found] == expected
