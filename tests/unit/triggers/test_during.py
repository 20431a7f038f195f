"""Sets of instants: conditions, midnight, clock changes, and the laws of their algebra."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pg_scheduler.triggers import During, DuringSet, SearchLimitError
from pg_scheduler.triggers.search import Search, end_of_search
from pg_scheduler.triggers.sets import find_inside, find_outside
from tests.support.cases import each_case
from tests.support.triggers import (
    CHANGES,
    DAY_NAMES,
    Change,
    durings,
    sets,
)

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
NEAR_CHANGES = st.tuples(CHANGES, st.timedeltas(-3 * DAY, 3 * DAY)).map(
    lambda pair: pair[0].instant + pair[1]
)


def numbers(text: str, names: list[str]) -> set[int]:
    """The numbers from 0 that a text of names and ranges contains."""
    found: set[int] = set()
    for item in text.split(","):
        first, _, last = item.partition("-")
        number = names.index(first)
        found.add(number)
        while last and names[number] != last:
            number = (number + 1) % len(names)
            found.add(number)
    return found


def holds(during: During, instant: datetime) -> bool:
    """Whether all conditions hold, checked one by one on the wall clock."""
    zone = ZoneInfo(during.timezone)
    local = instant.astimezone(zone)
    now, day = local.time(), local.date()
    start, end = during.start or time(0), during.end or time(0)
    in_range = (start <= now < end) if start < end else (now >= start or now < end)

    def bound(given: date | datetime) -> datetime:
        return given if isinstance(given, datetime) else datetime.combine(given, time(0), zone)

    return (
        (during.weekdays is None or day.weekday() in numbers(during.weekdays, DAY_NAMES))
        and (during.months is None or day.month - 1 in numbers(during.months, MONTHS))
        and (during.dates is None or day in during.dates)
        and in_range
        and (during.since is None or instant >= bound(during.since))
        and (during.until is None or instant < bound(during.until))
    )


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(during=durings, instant=NEAR_CHANGES)
def test_during_contains_the_instants_at_which_all_conditions_hold(during: During, instant: datetime) -> None:
    assert (instant in during) == holds(during, instant)


@settings(max_examples=150, deadline=None)
@given(during=durings, change=CHANGES, back=st.integers(0, 50))
def test_edges_of_during_are_the_first_instants_inside_and_outside(
    during: During, change: Change, back: int
) -> None:
    instant = change.instant - back * HOUR
    minutes = [instant + each * timedelta(minutes=15) for each in range(300)]
    for find, wanted in ((find_inside, True), (find_outside, False)):
        found = find(during, instant, Search())
        assert found is None or holds(during, found) is wanted
        for each in minutes:
            if found is not None and each >= found:
                break
            assert holds(during, each) is not wanted, (found, each)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(one=sets, other=sets, instant=NEAR_CHANGES)
def test_algebra_of_sets_follows_boolean_logic(one: DuringSet, other: DuringSet, instant: datetime) -> None:
    in_one, in_other = instant in one, instant in other
    assert (instant in ~one) is (not in_one)
    assert (instant in one | other) is (in_one or in_other)
    assert (instant in one & other) is (in_one and in_other)
    assert (instant in ~(one | other)) is (instant in ~one & ~other)
    assert (instant in ~(one & other)) is (instant in ~one | ~other)
    assert ~~one == one
    assert one | one | other == one | other
    assert (one & other) & one == one & other


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(which=sets, instant=NEAR_CHANGES)
def test_edges_of_combined_sets_are_in_order(which: DuringSet, instant: datetime) -> None:
    inside, outside = find_inside(which, instant, Search()), find_outside(which, instant, Search())
    assert instant in {inside, outside}
    assert inside is None or inside in which
    assert outside is None or outside not in which
    edge = outside if inside == instant else inside
    if edge is not None and edge <= end_of_search(instant):  # combinations find nothing later
        assert ((edge - MICROSECOND) in which) is (inside == instant)


def test_range_that_passes_midnight_is_two_ranges_of_each_day() -> None:
    night = During(weekdays="mon", start=time(22), end=time(6))
    monday = datetime(2024, 1, 1, tzinfo=UTC)
    inside = [hour for hour in range(-6, 36) if monday + hour * HOUR in night]
    assert inside == [*range(6), 22, 23]
    whole = During(start=time(6), end=time(6))
    assert all(monday + hour * HOUR in whole for hour in range(24))
    assert find_outside(whole, monday, Search()) is None
    assert find_outside(During(start=time(22), end=time(0)), monday + 22 * HOUR, Search()) == monday + DAY


def test_end_and_until_are_excluded_and_start_and_since_are_included() -> None:
    office = During(start=time(9), end=time(17))
    day = datetime(2024, 1, 1, tzinfo=UTC)
    assert [hour for hour in range(24) if day + hour * HOUR in office] == [*range(9, 17)]
    year = During(since=date(2024, 1, 1), until=date(2025, 1, 1), timezone="Europe/Berlin")
    begin = datetime(2023, 12, 31, 23, tzinfo=UTC)
    assert [begin - MICROSECOND in year, begin in year] == [False, True]
    assert find_outside(year, begin, Search()) == datetime(2024, 12, 31, 23, tzinfo=UTC)
    assert find_inside(year, begin + 400 * DAY, Search()) is None


def test_iso_weeks_follow_the_iso_calendar() -> None:
    last = During(iso_weeks=53)
    first = find_inside(last, datetime(2021, 2, 1, tzinfo=UTC), Search())
    assert first == datetime(2026, 12, 28, tzinfo=UTC)
    assert find_outside(last, first, Search()) == first + 7 * DAY
    early = During(iso_weeks="1-26", weekdays="mon")
    assert datetime(2024, 1, 1, tzinfo=UTC) in early
    assert datetime(2024, 7, 1, tzinfo=UTC) not in early


def test_conditions_that_hold_every_day_never_end() -> None:
    for every in (During(weekdays="mon-sun"), During(months="1-12"), During(iso_weeks="1-53")):
        assert find_outside(every, datetime(2024, 1, 1, tzinfo=UTC), Search()) is None
        assert find_inside(every, datetime(2024, 1, 1, tzinfo=UTC), Search()) is not None
    quarter = During(months="1-3")
    assert find_outside(quarter, datetime(2024, 1, 9, tzinfo=UTC), Search()) == datetime(
        2024, 4, 1, tzinfo=UTC
    )


def test_empty_dates_match_nothing() -> None:
    nothing = During(dates=())
    assert find_inside(nothing, datetime(2024, 1, 1, tzinfo=UTC), Search()) is None
    assert datetime(2024, 1, 1, tzinfo=UTC) in ~nothing
    saturday = During(dates=(date(2024, 1, 6),), weekdays="mon-fri")
    assert find_inside(saturday, datetime(2024, 1, 1, tzinfo=UTC), Search()) is None


def test_equal_conditions_are_equal_sets() -> None:
    assert During(weekdays="Mon,tue, wed,thu-fri") == During(weekdays="mon-fri", timezone=ZoneInfo("UTC"))
    assert During(months=12) == During(months="dec")
    assert During(dates=[date(2024, 1, 2), date(2024, 1, 1), date(2024, 1, 2)]) == During(
        dates=(date(2024, 1, 1), date(2024, 1, 2))
    )
    assert len({During(weekdays="sat,sun"), During(weekdays="sat-sun"), During(weekdays="sat")}) == 2


@each_case(
    ("which", "text"),
    [
        (During(weekdays="mon-fri", start=time(9), end=time(17)), "mon-fri 09:00-17:00 UTC"),
        (During(start=time(9, 30, 15), timezone="Asia/Tokyo"), "09:30:15-24:00 Asia/Tokyo"),
        (During(end=time(6), months="1-2", iso_weeks=2), "jan,feb week 2 00:00-06:00 UTC"),
        (During(dates=()), "no date UTC"),
        (
            During(dates=[date(2024, 1, day) for day in range(1, 6)]),
            "5 dates from 2024-01-01 to 2024-01-05 UTC",
        ),
        (
            During(since=date(2024, 1, 1), until=datetime(2025, 1, 1, tzinfo=UTC)),
            "since 2024-01-01 until 2025-01-01 00:00:00+00:00 UTC",
        ),
        (
            ~During(weekdays="mon") & (During(months=1) | During(months=2)),
            "not mon UTC and (jan UTC or feb UTC)",
        ),
        (~(During(months=1) & During(weekdays="sun")), "not (jan UTC and sun UTC)"),
    ],
)
def test_str_describes_the_set(which: DuringSet, text: str) -> None:
    assert str(which) == text


@each_case(
    ("parameters", "reason"),
    [
        ({}, "has no condition; pass weekdays="),
        ({"timezone": "UTC"}, "has no condition"),
        ({"weekdays": "1-5"}, "weekdays must be a list or range of names, such as 'mon-fri', not '1-5'"),
        ({"weekdays": "monday"}, "not 'monday'"),
        ({"weekdays": ""}, "not ''"),
        ({"weekdays": "mon,,tue"}, "not 'mon,,tue'"),
        ({"weekdays": "mon," * 200}, r"not '(mon,){10}\.\.\.'"),
        ({"months": "0-3"}, "months must be a list or range of numbers from 1 to 12, .* not '0-3'"),
        ({"months": True}, "not True"),
        ({"months": 13}, "not 13"),
        ({"months": "٣"}, "months must be"),
        ({"iso_weeks": 54}, "iso_weeks must be .* from 1 to 53"),
        ({"iso_weeks": 53, "months": 6}, "months='jun' and iso_weeks='53' have no day in common"),
        ({"start": "09:00"}, "start must be a time without tzinfo, .* not '09:00'"),
        ({"end": time(9, tzinfo=UTC)}, "end must be a time without tzinfo"),
        ({"dates": "2024-01-01"}, "dates must be a tuple of dates, not '2024-01-01'"),
        ({"dates": 5}, "dates must be a tuple of dates, not 5"),
        ({"dates": ["2024-01-01"]}, "dates must contain dates such as .* not '2024-01-01'"),
        ({"dates": [datetime(2024, 1, 1, tzinfo=UTC)]}, "dates must contain dates"),
        ({"dates": [date(2000, 1, 1) + each * DAY for each in range(5001)]}, "more than 5000 dates"),
        ({"since": datetime(2024, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"until": "2024-01-01"}, "until must be a timezone-aware datetime or a date, not '2024-01-01'"),
        ({"since": date(2024, 1, 1), "until": date(2024, 1, 1)}, "is not after since="),
        ({"weekdays": "mon", "timezone": "Mars"}, "Invalid timezone 'Mars'"),
        ({"weekdays": "mon", "timezone": 2}, "Invalid timezone 2"),
        ({"since": date(1, 1, 1), "timezone": "Asia/Tokyo"}, "begins outside of the years 1 to 9999"),
    ],
)
def test_during_raises_when_a_condition_is_invalid(parameters: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        During(**parameters)


def test_search_counts_the_years_that_it_passes() -> None:
    """Else each of its 50,000 steps could look for a rare week."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    week = During(iso_weeks=53, weekdays="fri", months="jan")
    search = Search(100)
    assert find_inside(week, begin, search) == datetime(2027, 1, 1, tzinfo=UTC)
    assert search.left <= 96
    with pytest.raises(SearchLimitError):
        find_inside(week, begin, Search(3))


@given(st.lists(st.integers(0, 12)), st.integers(0, 12))
def test_outside_of_dates_begins_on_the_first_other_day(days: list[int], start: int) -> None:
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    dates = During(dates=[begin.date() + day * DAY for day in days])
    expected = next(day for day in range(start, 14) if day not in days)
    search = Search(20)
    assert find_outside(dates, begin + start * DAY, search) == begin + expected * DAY


@pytest.mark.parametrize(
    "during", [During(weekdays="mon-sun"), During(months="jan-dec"), During(iso_weeks="1-53")]
)
def test_full_list_of_days_is_no_condition(during: During) -> None:
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    assert find_inside(during, begin, Search(1)) == begin
    assert find_outside(during, begin, Search(1)) is None
    wall = during._wall
    assert (wall.weekdays, wall.months, wall.weeks) == (None, None, None), "no day is looked at"


def test_sets_raise_when_combined_with_something_else() -> None:
    weekend: Any = During(weekdays="sat,sun")
    with pytest.raises(ValueError, match="Union takes sets of instants, such as During, not 5"):
        weekend | 5
    with pytest.raises(ValueError, match="Intersection takes sets of instants"):
        weekend & "mon"


@pytest.mark.parametrize(
    "during",
    [
        During(weekdays="mon-sun"),
        During(months="jan-dec"),
        During(iso_weeks="1-53"),
        During(weekdays="mon-sun", months="jan-dec", iso_weeks="1-53"),
    ],
    ids=repr,
)
def test_conditions_that_always_hold_have_no_instant_outside(during: During) -> None:
    instant = datetime(2030, 5, 5, 12, tzinfo=UTC)
    assert find_inside(during, instant, Search()) == instant
    assert find_outside(during, instant, Search()) is None
    assert instant not in ~during


@pytest.mark.parametrize("wall", [datetime(2024, 3, 31, 2, 30), datetime(2024, 10, 27, 2, 30)])  # noqa: DTZ001
@pytest.mark.parametrize("name", ["since", "until"])
def test_bounds_differ_by_the_fold_of_their_wall_time(name: str, wall: datetime) -> None:
    first, second = (wall.replace(tzinfo=ZoneInfo("Europe/Berlin"), fold=fold) for fold in (0, 1))
    early, late = During(**{name: first}), During(**{name: second})  # type: ignore[arg-type]
    assert early != late
    for during, bound in ((early, first), (late, second)):
        assert DuringSet.from_json(during.to_json()) == during
        assert During(**{name: bound.astimezone(UTC)}) == during  # type: ignore[arg-type]
