"""Combined triggers: the fire times of each operator, bounded searches, and descriptions."""

from __future__ import annotations

import time as clock
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from functools import reduce
from operator import and_, or_, sub
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pg_scheduler.triggers import (
    At,
    CalendarInterval,
    Cron,
    During,
    DuringSet,
    Every,
    FixedDelay,
    SearchLimitError,
    Trigger,
)
from pg_scheduler.triggers.base import AllOf, AnyOf, first_fire_time, is_fixed_delay
from pg_scheduler.triggers.sets import Union
from tests.support.cases import each_case
from tests.support.triggers import INSTANTS, ZONE_NAMES, delays, sets, simple, triggers

START = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)
WEEKEND = During(weekdays="sat,sun")


def fires(
    trigger: Trigger, start: datetime, end: datetime, anchor: datetime, most: int = 60
) -> list[datetime]:
    """The fire times from ``start`` on, before ``end``."""
    found: list[datetime] = []
    fire = trigger.next_after(start - MICROSECOND, anchor=anchor)
    while fire is not None and fire < end and len(found) < most:
        found.append(fire)
        fire = trigger.next_after(fire, anchor=anchor)
    return found


def test_every_two_hours_within_the_weekend_fires() -> None:
    trigger = Every(hours=2) & WEEKEND
    found = trigger.upcoming(26, after=START)
    assert found[:2] == [START + 5 * DAY, START + 5 * DAY + 2 * HOUR]
    assert all(fire.weekday() in {5, 6} for fire in found)
    assert found[24] == START + 12 * DAY


@pytest.mark.slow
@each_case(
    "trigger",
    [
        Cron("0 9 * * *") & Cron("0 10 * * *"),
        Every(hours=2) & Cron("30 1 * * *"),
        Cron("* * * * * 0") & Cron("* * * * * 1"),
        Every(seconds=2) & Cron("* * * * * 1-59/2"),
        (Cron("* * * * * 0") & Cron("* * * * * 1")) | (Cron("* * * * * 2") & Cron("* * * * * 1")),
        Every(minutes=1) & During(weekdays="mon") & During(weekdays="tue"),
        Every(seconds=1) & ~During(weekdays="mon-sun"),
        Every(days=1) & During(start=time(12), end=time(12, 0, 1)),
        Every(days=7) & During(weekdays="tue"),
        Cron("0 9 * * 1") - During(weekdays="mon"),
        Cron("* * * * *") - During(since=date(1970, 1, 1)),
        Every(hours=1) & During(dates=()),
        Every(hours=1) & During(until=date(2020, 1, 1)),
        CalendarInterval(days=1, first=date(2024, 1, 1))
        & CalendarInterval(days=1, at=time(1), first=date(2024, 1, 1)),
    ],
    ids=str,
)
def test_triggers_that_never_coincide_are_rejected_in_bounded_time(trigger: Trigger) -> None:
    """A second on an idle machine; the bound leaves room for a loaded one."""
    began = clock.process_time()
    with pytest.raises(ValueError, match="no fire time"):
        first_fire_time(trigger, after=START, anchor=START)
    assert clock.process_time() - began < 3


def test_error_of_a_trigger_that_never_fires_has_the_remedy() -> None:
    with pytest.raises(
        ValueError, match=r"never coincide; to restrict a trigger to a time of day, use During$"
    ):
        first_fire_time(Cron("0 9 * * *") & Cron("0 10 * * *"), after=START, anchor=START)
    with pytest.raises(
        ValueError, match=r"no fire time after .* for 'every hour, no date UTC': .* within 10 years$"
    ):
        first_fire_time(Every(hours=1) & During(dates=()), after=START, anchor=START)
    with pytest.raises(ValueError, match=r"it has ended$"):
        first_fire_time(At(START), after=START, anchor=START)
    with pytest.raises(ValueError, match=r"too many steps: .* hardly ever coincide; .* use During$"):
        first_fire_time(Cron("* * * * * 0") & Cron("* * * * * 1"), after=START, anchor=START)
    assert first_fire_time(Every(hours=1), after=START, anchor=START) == START + HOUR


def test_intervals_of_one_schedule_coincide_at_their_common_multiples() -> None:
    trigger = Every(hours=2) & Every(hours=3) & Every(minutes=90)
    assert trigger.upcoming(3, after=START) == [START + 6 * HOUR, START + 12 * HOUR, START + 18 * HOUR]
    prime = (
        Every(timedelta(seconds=1, microseconds=1)) & Every(days=3) & Every(timedelta(microseconds=999_983))
    )
    assert prime.next_after(START, anchor=START) is None
    assert prime.next_after(START - HOUR, anchor=START) == START


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(one=simple, other=simple, which=sets, start=INSTANTS, anchor=INSTANTS)
def test_operators_follow_set_algebra(
    one: Trigger, other: Trigger, which: DuringSet, start: datetime, anchor: datetime
) -> None:
    last = max(
        (found[-1] for each in (one, other) if (found := fires(each, start, start + 3650 * DAY, anchor))),
        default=start,
    )
    end = min(
        [last]
        + [
            found[-1]
            for each in (one, other)
            if len(found := fires(each, start, start + 3650 * DAY, anchor)) == 60
        ]
    )
    first, second = (set(fires(each, start, end, anchor, 10**4)) for each in (one, other))
    try:
        assert fires(one | other, start, end, anchor, 10**4) == sorted(first | second)
        assert fires(one & other, start, end, anchor, 10**4) == sorted(first & second)
        assert fires(one & which, start, end, anchor, 10**4) == sorted(
            fire for fire in first if fire in which
        )
        assert fires(one - which, start, end, anchor, 10**4) == sorted(
            fire for fire in first if fire not in which
        )
    except SearchLimitError:
        return


def test_chains_are_flat_and_contain_each_member_once() -> None:
    a, b, c = Every(hours=1), Every(hours=2), Cron("@daily")
    assert (a | b) | c == a | (b | c)
    assert a | a | b == a | b
    assert (a & b) & c == a & (b & c)
    assert str(a | b | c) == "every hour or every 2 hours or at 00:00 every day, UTC"
    long: Trigger = a
    for hour in range(2, 90):
        long = long | Every(hours=hour)
    assert long.upcoming(1, after=START) == [START + HOUR]


def test_combinations_are_equal_whatever_the_order_of_their_parts() -> None:
    a, b, c = Every(hours=1), Every(hours=2), Cron("@daily")
    night = During(start=time(22), end=time(6))
    for combine in (or_, and_):
        assert combine(a, b) == combine(b, a)
        assert hash(combine(a, b)) == hash(combine(b, a))
        assert combine(a, b) != combine(a, c)
        assert combine(combine(a, b), c) != combine(a, b)
        assert combine(WEEKEND, night) == combine(night, WEEKEND)
        assert hash(combine(WEEKEND, night)) == hash(combine(night, WEEKEND))
        assert a - combine(WEEKEND, night) == a - combine(night, WEEKEND)
    assert a | b != a & b
    assert a | (b & c) == (c & b) | a
    assert [each["every"] for each in (b | a).to_json()["triggers"]] == ["PT2H", "PT1H"]  # as given


def test_combinations_raise_when_they_are_too_large() -> None:
    hours = [Every(hours=hour) for hour in range(1, 200)]
    with pytest.raises(
        ValueError, match="more than 100 parts; pass several dates or instants to one During or At"
    ):
        reduce(or_, hours)
    with pytest.raises(ValueError, match="nested deeper than 16 levels"):
        reduce(and_, [WEEKEND] * 20, hours[0])
    with pytest.raises(ValueError, match="more than 100 parts"):
        reduce(or_, [During(dates=(date(2024, 1, 1) + day * DAY,)) for day in range(200)])


@dataclass(frozen=True)
class Compared(Trigger):
    """Counts how often it is compared."""

    number: int
    comparisons: list[int] = field(default_factory=list, repr=False)

    def __eq__(self, other: object) -> bool:
        self.comparisons.append(1)
        return self is other

    def __hash__(self) -> int:
        raise NotImplementedError

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        raise NotImplementedError


@pytest.mark.parametrize("kind", [AnyOf, AllOf])
def test_combination_compares_few_of_its_members_when_they_are_too_many(
    kind: type[AnyOf] | type[AllOf],
) -> None:
    comparisons: list[int] = []
    with pytest.raises(ValueError, match="more than 100 parts"):
        kind(tuple(Compared(number, comparisons) for number in range(2000)))
    assert len(comparisons) < 2 * 101 * 101


def test_fixed_delay_counts_from_the_given_instant() -> None:
    trigger = FixedDelay(timedelta(minutes=10))
    ended = datetime(2024, 1, 1, 12, 3, tzinfo=timezone(HOUR))
    assert trigger.next_after(ended) == datetime(2024, 1, 1, 11, 13, tzinfo=UTC)
    assert trigger.upcoming(2, after=START) == [START + timedelta(minutes=10), START + timedelta(minutes=20)]
    assert is_fixed_delay(trigger)
    assert is_fixed_delay((trigger & WEEKEND) - During(months=1))
    assert not is_fixed_delay(Every(hours=1) & WEEKEND)


def test_fixed_delay_is_postponed_to_the_first_instant_within_the_set() -> None:
    office = During(weekdays="mon-fri", start=time(9), end=time(17))
    trigger = FixedDelay(timedelta(minutes=30)) & office
    assert trigger.next_after(START + 10 * HOUR, anchor=START) == START + 10.5 * HOUR
    assert trigger.next_after(START + 16.75 * HOUR, anchor=START) == START + DAY + 9 * HOUR
    holiday = (trigger - During(dates=(date(2024, 1, 2),))) - During(start=time(9), end=time(10))
    assert holiday.next_after(START + 16.75 * HOUR, anchor=START) == START + 2 * DAY + 10 * HOUR
    never = trigger & During(weekdays="sun")
    assert never.next_after(START, anchor=START) is None


@given(trigger=delays, which=sets, instant=INSTANTS)
@settings(max_examples=50, deadline=None)
def test_fixed_delay_never_fires_early_nor_outside(
    trigger: FixedDelay, which: DuringSet, instant: datetime
) -> None:
    fire = (trigger & which).next_after(instant, anchor=instant)
    assert fire is None or (fire >= instant + trigger.delay and fire in which)


@pytest.mark.parametrize("other", [Every(hours=1), Cron("@daily") & WEEKEND])
def test_fixed_delay_raises_when_combined_with_a_trigger(other: Trigger) -> None:
    for delay in (FixedDelay(HOUR), FixedDelay(HOUR) & WEEKEND):
        for combine in (or_, and_):
            with pytest.raises(ValueError, match=r"ended.* cannot be combined .* combines with During only"):
                combine(delay, other)


def test_operators_raise_type_error_when_the_operand_is_something_else() -> None:
    trigger: Any = Every(hours=1)
    for combine, other in ((or_, 5), (and_, "mon"), (sub, trigger), (or_, WEEKEND)):
        with pytest.raises(TypeError, match="unsupported operand"):
            combine(trigger, other)
    with pytest.raises(ValueError, match="AnyOf takes triggers, not 5"):
        AnyOf((trigger, 5))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="AllOf has no triggers; pass at least one"):
        AllOf(())
    with pytest.raises(ValueError, match="Union has no sets"):
        Union(())


@dataclass(frozen=True)
class Odd(Trigger):
    """Returns what it is given."""

    result: Any

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        result: datetime | None = self.result
        return result


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (START - HOUR, "as fire time, which is not after"),
        (START, "as fire time, which is not after"),
        ("tomorrow", "returned 'tomorrow' as fire time; return a datetime or None"),
        (datetime(2030, 1, 1), "has no time zone"),  # noqa: DTZ001
    ],
)
def test_fire_time_that_is_not_a_later_instant_raises(result: Any, reason: str) -> None:
    odd = Odd(result)
    for call in (
        lambda: odd.upcoming(1, after=START),
        lambda: (odd & WEEKEND).next_after(START, anchor=START),
        lambda: (odd | Every(hours=1)).next_after(START, anchor=START),
        lambda: (odd & Every(hours=1)).next_after(START, anchor=START),
        lambda: first_fire_time(odd, after=START, anchor=START),
    ):
        with pytest.raises(ValueError, match=reason):
            call()


@dataclass(frozen=True)
class Listed(Trigger):
    """A trigger whose field is not hashable."""

    hours: list[int]

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        return Cron(f"0 {','.join(map(str, self.hours))} * * *").next_after(instant)


def test_custom_trigger_combines_when_it_is_not_hashable() -> None:
    trigger = Listed([9]) | Listed([17]) | Listed([9])
    assert trigger == AnyOf((Listed([9]), Listed([17])))
    assert trigger.upcoming(2, after=START) == [START + 9 * HOUR, START + 17 * HOUR]
    assert (Listed([9]) & Every(hours=1)).upcoming(1, after=START) == [START + 9 * HOUR]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(trigger=triggers, anchor=INSTANTS, after=INSTANTS, n=st.integers(0, 5))
def test_upcoming_returns_the_results_of_next_after(
    trigger: Trigger, anchor: datetime, after: datetime, n: int
) -> None:
    expected: list[datetime] = []
    try:
        fire: datetime | None = after
        while len(expected) < n and (fire := trigger.next_after(fire, anchor=anchor)) is not None:  # type: ignore[arg-type]
            expected.append(fire)
        assert trigger.upcoming(n, after=after, anchor=anchor) == expected
    except SearchLimitError:
        return


def test_upcoming_counts_from_after_when_no_anchor_is_given() -> None:
    assert Every(hours=1).upcoming(after=START) == [START + each * HOUR for each in range(1, 11)]
    assert Every(hours=1).upcoming(1, after=START, anchor=START + HOUR / 2) == [START + HOUR / 2]
    assert At(START + HOUR).upcoming(after=START) == [START + HOUR]


EDGES = (
    st.sampled_from([datetime.min, datetime.max])  # noqa: DTZ901
    .flatmap(
        lambda edge: st.tuples(
            st.just(edge),
            st.timedeltas(timedelta(0), timedelta(days=4000)) | st.timedeltas(timedelta(0), 3 * DAY),
            st.integers(-14, 14).map(lambda hours: timezone(hours * HOUR)),
        )
    )
    .map(lambda parts: (parts[0] + parts[1] * (1 if parts[0].year == 1 else -1)).replace(tzinfo=parts[2]))
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(trigger=triggers | delays, name=ZONE_NAMES, instant=EDGES, data=st.data())
def test_triggers_end_with_the_calendar_of_python(
    trigger: Trigger, name: str, instant: datetime, data: st.DataObject
) -> None:
    anchor = data.draw(st.just(instant) | INSTANTS)
    office = During(weekdays="mon-fri", start=time(9), end=time(17), timezone=name)
    for each in (trigger, trigger & office, trigger - office):
        try:
            fire = each.next_after(instant, anchor=anchor)
        except SearchLimitError:
            continue
        assert fire is None or fire > instant


def test_last_fire_time_is_followed_by_none() -> None:
    noon = datetime(9999, 12, 31, 12, tzinfo=UTC)
    for trigger in (Every(hours=6), Cron("0 */6 * * *"), At(noon + 6 * HOUR), FixedDelay(6 * HOUR)):
        assert trigger.upcoming(after=noon, anchor=noon) == [noon + 6 * HOUR]
    yearly = CalendarInterval(years=1, at=time(18), first=date(2024, 12, 31))
    assert yearly.upcoming(after=noon) == [noon + 6 * HOUR]
    assert (yearly & During(months="dec")).upcoming(after=noon) == [noon + 6 * HOUR]
    assert (yearly - During(months="dec")).upcoming(after=noon) == []


@pytest.mark.parametrize("trigger", [Every(hours=1), Every(hours=1) & WEEKEND, CalendarInterval(days=1)])
def test_naive_datetimes_are_rejected(trigger: Trigger) -> None:
    naive = datetime(2024, 1, 1)  # noqa: DTZ001
    for call in (
        lambda: trigger.upcoming(1, after=naive),
        lambda: trigger.upcoming(1, after=START, anchor=naive),
        lambda: trigger.next_after(naive, anchor=START),
    ):
        with pytest.raises(ValueError, match=r"has no time zone; use datetime\.now\(UTC\)"):
            call()


@each_case(
    ("trigger", "text"),
    [
        (
            Every(minutes=15)
            & During(weekdays="mon-fri", start=time(9), end=time(17), timezone="Europe/London"),
            "every 15 minutes, mon-fri 09:00-17:00 Europe/London",
        ),
        (
            Cron("0 9 * * 1-5") - During(dates=(date(2024, 12, 25),), timezone="Europe/Berlin"),
            "at 09:00 on Monday to Friday, UTC, except 2024-12-25 Europe/Berlin",
        ),
        (Every(hours=1) & ~WEEKEND, "every hour, except sat,sun UTC"),
        ((Every(hours=1) | Every(hours=5)) & WEEKEND, "(every hour or every 5 hours), sat,sun UTC"),
        (Every(hours=1) | (Cron("@daily") & WEEKEND), "every hour or (at 00:00 every day, UTC, sat,sun UTC)"),
        (Every(hours=1) & (WEEKEND | During(months=1)), "every hour, (sat,sun UTC or jan UTC)"),
        (Every(hours=1) & Cron("@daily"), "every hour and at 00:00 every day, UTC"),
        (FixedDelay(90 * timedelta(minutes=1)), "1 hour 30 minutes after the previous job ended"),
    ],
)
def test_str_describes_the_combination(trigger: Trigger, text: str) -> None:
    assert str(trigger) == text


@dataclass(frozen=True)
class Ended(Trigger):
    """Has no fire time, and counts its searches."""

    searches: list[datetime] = field(default_factory=list, compare=False)

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        self.searches.append(instant)
        return None


def test_branch_that_never_fires_is_searched_once_in_ten_years() -> None:
    ended = Ended()
    trigger = Cron("0 0 1 * *") | ended
    start = datetime(2024, 1, 1, tzinfo=UTC)
    for after in trigger.upcoming(110, after=start):
        assert trigger.next_after(after, anchor=start) is not None
    assert ended.searches == [start]
    trigger.upcoming(20, after=datetime(2033, 12, 1, tzinfo=UTC), anchor=start)
    assert len(ended.searches) == 2


def test_branch_that_fires_after_more_than_ten_years_is_found_in_time() -> None:
    start, late = datetime(2024, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)
    branch = Cron("0 0 1 1 *") & During(since=late)
    others = At(
        datetime(2025, 1, 1, tzinfo=UTC), datetime(2035, 1, 1, tzinfo=UTC), datetime(2040, 6, 1, tzinfo=UTC)
    )
    trigger = others | branch
    found = [f"{fire:%Y-%m}" for fire in trigger.upcoming(8, after=start)]
    assert found == ["2025-01", "2035-01", "2036-01", "2037-01", "2038-01", "2039-01", "2040-01", "2040-06"]


def test_upcoming_returns_what_was_found_when_the_search_takes_too_many_steps() -> None:
    trigger = Cron("* * * * *") & Every(seconds=59.99)  # twice a week, in 12,000 steps
    start = datetime(2024, 1, 1, tzinfo=UTC)
    found = trigger.upcoming(40, after=start)
    assert 0 < len(found) < 40
    assert found == trigger.upcoming(len(found), after=start)
