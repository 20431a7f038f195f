"""Arbitrary triggers and sets of instants, and the clock changes of all time zones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import strategies as st

from pg_scheduler.triggers import (
    At,
    CalendarInterval,
    Cron,
    During,
    DuringSet,
    Every,
    FixedDelay,
    Trigger,
    serialization,
)

SECOND = timedelta(seconds=1)
WEEK = timedelta(days=7)
START = datetime(1970, 1, 1, tzinfo=UTC)
END = datetime(2038, 1, 1, tzinfo=UTC)

ZONES = [
    "UTC",
    "Europe/Berlin",
    "Europe/Dublin",
    "America/New_York",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Antarctica/Troll",
]


class Change(NamedTuple):
    """A clock change: an instant, and the offsets before and after it."""

    zone: str
    instant: datetime
    before: timedelta
    after: timedelta


def offset(instant: datetime, zone: tzinfo) -> timedelta:
    found = instant.astimezone(zone).utcoffset()
    assert found is not None
    return found


@cache
def clock_changes() -> tuple[Change, ...]:
    """The changes of all time zones from 1970 to 2037, once for zones that have the same.

    To find them takes seconds: call it in tests, and let strategies take `CHANGES`.
    """
    known: set[tuple[tuple[datetime, timedelta], ...]] = set()
    found: list[Change] = []
    for name in sorted(available_timezones()):
        changes = tuple(changes_of(name))
        key = tuple((each.instant, each.after) for each in changes)
        if key not in known:
            known.add(key)
            found += changes
    return tuple(found)


@cache
def distinct_changes() -> tuple[Change, ...]:
    """The changes of all time zones, once for zones whose clocks change equally at an instant."""
    found = {(each.instant, each.before, each.after): each for each in clock_changes()}
    return tuple(found.values())


@cache
def changes_of(name: str) -> list[Change]:
    zone = ZoneInfo(name)
    found = []
    low, before = START, offset(START, zone)
    while low < END:
        high = low + WEEK
        if (after := offset(high, zone)) != before:
            left, right = low, high
            while right - left > SECOND:
                middle = left + (right - left) // SECOND // 2 * SECOND
                if offset(middle, zone) == before:
                    left = middle
                else:
                    right = middle
            after = offset(right, zone)
            found.append(Change(name, right, before, after))
            low, before = right, after
        else:
            low = high
    return found


def fire_after(trigger: Trigger, instant: datetime, anchor: datetime = START) -> datetime:
    """The next fire time of a trigger that has one."""
    fire = trigger.next_after(instant, anchor=anchor)
    assert fire is not None
    return fire


@contextmanager
def own_kinds() -> Iterator[None]:
    """Remove the kinds of triggers that are registered within."""
    before = dict(serialization._KINDS)
    try:
        yield
    finally:
        serialization._KINDS.clear()
        serialization._KINDS.update(before)


CHANGES = st.deferred(lambda: st.sampled_from(clock_changes()))
WHOLE_SECONDS = st.integers(0, 2**31).map(lambda seconds: START + seconds * SECOND)
INSTANTS = st.datetimes(datetime(1970, 1, 1), datetime(2037, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
TIMES = st.times(timezones=st.none()).map(lambda moment: moment.replace(microsecond=0, fold=0)) | st.builds(
    time, st.integers(0, 23), st.sampled_from([0, 15, 30])
)
DATES = st.dates(date(1970, 1, 1), date(2037, 12, 31))
ZONE_NAMES = st.sampled_from(ZONES)
DAY_NAMES = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEKDAYS = st.sampled_from(["mon-fri", "sat,sun", "fri-mon", *DAY_NAMES])
EXPRESSIONS = st.sampled_from(
    [
        "* * * * *",
        "*/15 * * * *",
        "0 * * * *",
        "30 2 * * *",
        "0 9 * * 1-5",
        "0 0 L * *",
        "0 12 * * FRI#2",
        "*/10 1-3 * * * 0,30",
        "@daily",
        "0 0 29 2 *",
    ]
)


def built(cls: Any, required: int, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Call a class with some of the parameters, at least so many of them."""
    options = {name: st.tuples(st.just(name), each) for name, each in parts.items()}
    subsets = st.lists(st.sampled_from(sorted(options)), min_size=required, unique=True)
    chosen = subsets.flatmap(lambda names: st.tuples(*(options[name] for name in names)))
    return st.tuples(chosen, ZONE_NAMES).map(lambda both: cls(**dict(both[0]), timezone=both[1]))


durings: st.SearchStrategy[During] = built(
    During,
    1,
    weekdays=WEEKDAYS,
    months=st.sampled_from(["jan-mar", "oct", "mar,oct", "nov-feb"]),
    start=TIMES,
    end=TIMES,
    dates=st.lists(DATES, max_size=6),
    since=DATES.filter(lambda day: day.year < 2000) | WHOLE_SECONDS.filter(lambda day: day.year < 2000),
    until=DATES.filter(lambda day: day.year > 2000),
)


def combined_sets(inner: st.SearchStrategy[DuringSet]) -> st.SearchStrategy[DuringSet]:
    return st.one_of(
        inner.map(lambda each: ~each),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
    )


sets: st.SearchStrategy[DuringSet] = st.recursive(durings, combined_sets, max_leaves=4)

calendar_intervals: st.SearchStrategy[CalendarInterval] = st.tuples(
    st.tuples(st.integers(0, 2), st.integers(0, 14), st.integers(0, 3), st.integers(0, 40)).filter(any),
    TIMES,
    ZONE_NAMES,
    DATES | st.none(),
    st.booleans(),
).map(
    lambda parts: CalendarInterval(
        years=parts[0][0],
        months=parts[0][1],
        weeks=parts[0][2],
        days=parts[0][3],
        at=parts[1],
        timezone=parts[2],
        first=parts[3],
        missing_day="skip" if parts[4] else "last",
    )
)

simple: st.SearchStrategy[Trigger] = st.one_of(
    st.timedeltas(SECOND, timedelta(days=400)).map(Every),
    st.integers(1, 48).map(lambda hours: Every(hours=hours)),
    st.tuples(EXPRESSIONS, ZONE_NAMES).map(lambda pair: Cron(*pair)),
    st.lists(INSTANTS, min_size=1, max_size=5).map(lambda instants: At(*instants)),
    calendar_intervals,
)


def combined(inner: st.SearchStrategy[Trigger]) -> st.SearchStrategy[Trigger]:
    return st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, sets).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, sets).map(lambda pair: pair[0] - pair[1]),
    )


triggers: st.SearchStrategy[Trigger] = st.recursive(simple, combined, max_leaves=4)
delays = st.timedeltas(SECOND, timedelta(days=30)).map(FixedDelay)
