"""Missed fire times: the latest, the newest, and their number, in few steps."""

from __future__ import annotations

import time as clock
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pg_scheduler.triggers import (
    At,
    CalendarInterval,
    Cron,
    During,
    Every,
    FixedDelay,
    SearchLimitError,
    Trigger,
    missed,
)
from pg_scheduler.triggers.base import Combination
from pg_scheduler.triggers.missed import FireCount, count_fire_times, fire_times_around, newest_fire_times
from tests.support.cases import each_case
from tests.support.triggers import INSTANTS, durings, simple

ANCHOR = datetime(2024, 1, 1, 12, 30, tzinfo=UTC)
YEAR = timedelta(days=366)
BERLIN = "Europe/Berlin"
PERIODS = st.timedeltas(timedelta(microseconds=1), timedelta(days=400))

DENSE: list[Trigger] = [
    Every(seconds=1),
    Cron("* * * * * *", BERLIN),
    Cron("* 2 * * * *", BERLIN),
    Every(seconds=1) & During(weekdays="mon-fri", start=time(9), end=time(17), timezone=BERLIN),
    Cron("* * * * *") | Every(seconds=7),
]


@given(every=PERIODS, steps=st.integers(0, 10**6), late=st.floats(0, 0.99))
def test_latest_fire_time_of_an_interval_is_the_last_one_that_is_due(
    every: timedelta, steps: int, late: float
) -> None:
    expected = ANCHOR + min(steps, timedelta(days=10**5) // every) * every
    now = min(expected + every * late, expected + every - timedelta(microseconds=1))
    around = fire_times_around(Every(every), first=ANCHOR, now=now, anchor=ANCHOR)
    assert around == (expected, expected + every)


@dataclass
class Counting(Trigger):
    """Counts the calls of a trigger."""

    trigger: Trigger
    calls: int = 0

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        self.calls += 1
        return self.trigger.next_after(instant, anchor=anchor)


def first_of(trigger: Trigger) -> datetime:
    first = trigger.next_after(ANCHOR, anchor=ANCHOR)
    assert first is not None
    return first


@pytest.mark.parametrize(
    "trigger", [*DENSE, Cron("0 0 1 1 * 0", BERLIN), Every(timedelta(microseconds=1))], ids=str
)
def test_latest_fire_time_is_found_in_few_calls_when_a_year_was_missed(trigger: Trigger) -> None:
    """A call takes some 10 microseconds; stepping through every fire time would take minutes."""
    counting = Counting(trigger)
    now = ANCHOR + YEAR
    found, following = fire_times_around(counting, first=first_of(trigger), now=now, anchor=ANCHOR)
    assert following is not None
    assert following == trigger.next_after(found, anchor=ANCHOR)
    assert found <= now < following
    assert counting.calls <= 120


@pytest.mark.parametrize("trigger", DENSE, ids=str)
def test_year_of_missed_seconds_is_summarised_in_bounded_time(trigger: Trigger) -> None:
    """T5 allows 50 ms of Python for an interval; the bound leaves room for a loaded machine."""
    first, now = first_of(trigger), ANCHOR + YEAR
    began = clock.process_time()
    latest, _ = fire_times_around(trigger, first=first, now=now, anchor=ANCHOR)
    newest = newest_fire_times(trigger, first=first, now=now, anchor=ANCHOR, limit=100)
    count = count_fire_times(trigger, first=first, now=now, anchor=ANCHOR)
    assert clock.process_time() - began < 1
    assert (len(newest), newest[-1]) == (100, latest)
    assert newest == sorted(set(newest))
    assert trigger.next_after(newest[0], anchor=ANCHOR) == newest[1]
    if isinstance(trigger, Every):
        assert count == FireCount(366 * 86_400, is_exact=True)
    else:
        assert count == FireCount(1000, is_exact=False)


def test_newest_fire_times_end_when_the_first_one_no_longer_exists() -> None:
    """New time zone data can move a stored fire time."""
    trigger, first = Cron("0 3 * * *"), datetime(2024, 1, 1, 2, tzinfo=UTC)
    now = first + timedelta(days=3)
    days = [datetime(2024, 1, day, 3, tzinfo=UTC) for day in (1, 2, 3)]
    assert newest_fire_times(trigger, first=first, now=now, anchor=ANCHOR, limit=10) == days
    assert newest_fire_times(trigger, first=first, now=now, anchor=ANCHOR, limit=2) == days[1:]


COMBINED: st.SearchStrategy[Trigger] = st.one_of(
    simple,
    st.tuples(simple, simple).map(lambda pair: pair[0] | pair[1]),
    st.tuples(simple, durings).map(lambda pair: pair[0] & pair[1]),
)


@settings(max_examples=80, deadline=None)
@given(
    trigger=COMBINED,
    anchor=INSTANTS,
    start=INSTANTS,
    passed=st.timedeltas(timedelta(0), timedelta(days=500)),
    limit=st.integers(1, 40),
)
def test_missed_fire_times_equal_those_found_one_by_one(
    trigger: Trigger, anchor: datetime, start: datetime, passed: timedelta, limit: int
) -> None:
    try:
        first = trigger.next_after(start, anchor=anchor)
        if first is None:
            return
        now = first + passed
        walked: list[datetime] = []
        fire, following = first, None
        while fire <= now and len(walked) < 1100:
            walked.append(fire)
            following = trigger.next_after(fire, anchor=anchor)
            if following is None:
                break
            fire = following
        if len(walked) == 1100:
            return
        around = fire_times_around(trigger, first=first, now=now, anchor=anchor)
        assert around == (walked[-1], following)
        assert newest_fire_times(trigger, first=first, now=now, anchor=anchor, limit=limit) == walked[-limit:]
        count = count_fire_times(trigger, first=first, now=now, anchor=anchor)
        if isinstance(trigger, Every) or (len(walked) <= 1000 and not isinstance(trigger, Combination)):
            assert count == FireCount(len(walked), is_exact=True)
        elif len(walked) > 1000 and count.number == 1000:
            assert not count.is_exact
        else:
            assert count.number == len(walked) if count.is_exact else count.number <= len(walked)
    except SearchLimitError:
        return


def test_bursts_are_found_in_order() -> None:
    """Three fire times within a second, once a month."""
    trigger = Cron("0 0 1 * * 0,1,2")
    first, now = first_of(trigger), ANCHOR + YEAR
    newest = newest_fire_times(trigger, first=first, now=now, anchor=ANCHOR, limit=7)
    assert [f"{fire:%m-%S}" for fire in newest] == [
        "11-02",
        "12-00",
        "12-01",
        "12-02",
        "01-00",
        "01-01",
        "01-02",
    ]
    assert count_fire_times(trigger, first=first, now=now, anchor=ANCHOR) == FireCount(36, is_exact=True)


def test_count_is_a_lower_bound_beyond_the_limit() -> None:
    trigger = Cron("* * * * *")
    first = first_of(trigger)
    for late, expected in ((999, FireCount(1000, is_exact=True)), (1000, FireCount(1000, is_exact=False))):
        now = first + late * timedelta(minutes=1)
        assert count_fire_times(trigger, first=first, now=now, anchor=ANCHOR) == expected


def test_count_is_a_lower_bound_when_the_search_takes_too_many_steps() -> None:
    hours = [Cron(f"{minute} * * * * {minute}") for minute in range(1, 50)]
    trigger: Trigger = hours[0]
    for other in hours[1:]:
        trigger = trigger | other
    rare = trigger & Cron("*/7 */3 * * * */7")
    first = first_of(rare)
    count = count_fire_times(rare, first=first, now=ANCHOR + 3 * YEAR, anchor=ANCHOR)
    assert 1 < count.number < 1000
    assert not count.is_exact


def test_fixed_delay_and_instants_have_no_more_fire_times_than_given() -> None:
    delay = FixedDelay(timedelta(seconds=1)) & During(weekdays="mon-fri")
    now = ANCHOR + YEAR
    assert fire_times_around(delay, first=ANCHOR, now=now, anchor=ANCHOR) == (ANCHOR, None)
    assert newest_fire_times(delay, first=ANCHOR, now=now, anchor=ANCHOR, limit=9) == [ANCHOR]
    assert count_fire_times(delay, first=ANCHOR, now=now, anchor=ANCHOR) == FireCount(1, is_exact=True)
    at = At(ANCHOR, ANCHOR + YEAR / 2)
    assert fire_times_around(at, first=ANCHOR, now=now, anchor=ANCHOR) == (ANCHOR + YEAR / 2, None)
    assert count_fire_times(at, first=ANCHOR, now=now, anchor=ANCHOR) == FireCount(2, is_exact=True)
    monthly = CalendarInterval(months=1, first=ANCHOR.date())
    first = monthly.next_after(ANCHOR)
    assert first is not None
    assert count_fire_times(monthly, first=first, now=now, anchor=ANCHOR) == FireCount(12, is_exact=True)


def test_newest_fire_times_are_found_when_a_second_has_hundreds() -> None:
    every = timedelta(milliseconds=2)
    trigger = Every(every) & During(weekdays="mon-sun")
    now = ANCHOR + timedelta(hours=1)
    newest = newest_fire_times(trigger, first=ANCHOR + every, now=now, anchor=ANCHOR, limit=100)
    assert newest == [now - back * every for back in reversed(range(100))]


@pytest.mark.slow
@each_case("nights", [1, 3, 366])
@each_case("limit", [7, 100, 5000])
def test_newest_fire_times_are_found_when_they_come_in_clusters(nights: int, limit: int) -> None:
    trigger = Cron("*/5 9-17 * * 1-5")
    friday = datetime(2024, 1, 5, 12, tzinfo=UTC)
    now = friday + timedelta(days=nights)
    walked = [fire for fire in trigger.upcoming(30_000, after=friday) if fire <= now]
    newest = newest_fire_times(trigger, first=walked[0], now=now, anchor=friday, limit=limit)
    assert newest == walked[-limit:]


def test_newest_fire_times_are_those_that_were_found_when_the_search_takes_too_many_steps() -> None:
    trigger = Cron("* * * * *") & Every(seconds=59.9)  # every 10 hours, in 1,200 steps
    now = ANCHOR + YEAR
    newest = newest_fire_times(trigger, first=first_of(trigger), now=now, anchor=ANCHOR, limit=100)
    assert 0 < len(newest) < 100
    latest, _ = fire_times_around(trigger, first=first_of(trigger), now=now, anchor=ANCHOR)
    assert newest[-1] == latest


def test_latest_fire_time_is_found_when_a_branch_never_fires() -> None:
    trigger = Cron("* * * * *") | (Every(hours=2) & Cron("30 1 * * *"))
    now = ANCHOR + YEAR
    latest, _ = fire_times_around(trigger, first=first_of(trigger), now=now, anchor=ANCHOR)
    assert latest == now


@dataclass(frozen=True)
class Laborious(Trigger):
    """Fires every minute, and needs much CPU to compute that."""

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        ends_at = clock.thread_time() + 0.001
        while clock.thread_time() < ends_at:
            pass
        return Every(minutes=1).next_after(instant, anchor=anchor)


def test_missed_fire_times_are_those_that_were_found_when_a_trigger_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(missed, "MAX_CPU_S", 0.2)
    now = ANCHOR + timedelta(days=1)
    count = count_fire_times(Laborious(), first=ANCHOR, now=now, anchor=ANCHOR)
    assert 1 < count.number < 1000
    assert not count.is_exact
    newest = newest_fire_times(Laborious(), first=ANCHOR, now=now, anchor=ANCHOR, limit=1000)
    assert 1 < len(newest) < 1000
    assert newest[-1] == now
