"""Triggers at every clock change of all time zones from 1970 to 2037."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pg_scheduler.triggers import CalendarInterval, Cron, During, Every, SearchLimitError, Trigger
from pg_scheduler.triggers.search import HORIZON
from tests.support.triggers import (
    CHANGES,
    INSTANTS,
    SECOND,
    Change,
    clock_changes,
    distinct_changes,
    triggers,
)

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)


def walls(change: Change) -> tuple[datetime, datetime, datetime]:
    """The first skipped or repeated wall time, one in the middle, and the first one after them."""
    naive = change.instant.replace(tzinfo=None)
    first, end = sorted((naive + change.before, naive + change.after))
    return first, first + (end - first) // 2, end


def is_small(change: Change) -> bool:
    """Whether Debian's cron takes it for the begin or end of daylight saving time."""
    return timedelta(hours=-3) <= change.after - change.before < timedelta(hours=3)


def has_gap_of_a_day(change: Change) -> bool:
    return change.after - change.before >= DAY


def test_clock_changes_are_those_of_all_time_zones() -> None:
    changes = clock_changes()
    assert len(changes) > 10_000
    assert any(has_gap_of_a_day(each) for each in changes)
    last: dict[str, datetime] = {}
    for each in changes:  # two changes within the reach of a search would be taken for one
        assert each.instant - last.get(each.zone, each.instant - 3 * DAY) > timedelta(hours=25)
        last[each.zone] = each.instant


@pytest.mark.slow
def test_calendar_interval_fires_at_the_jump_or_at_the_first_pass() -> None:
    for change in distinct_changes():
        first, middle, end = walls(change)
        for wall in (first, middle, end - SECOND):
            trigger = CalendarInterval(days=1, at=wall.time(), timezone=change.zone, first=wall.date())
            fire = trigger.next_after(change.instant - 3 * DAY)
            expected = (
                change.instant if change.after > change.before else (wall - change.before).replace(tzinfo=UTC)
            )
            assert fire == expected, (change, wall)
            if not has_gap_of_a_day(change):
                following = trigger.next_after(fire)
                assert following is not None
                assert following.astimezone(ZoneInfo(change.zone)).date() == wall.date() + DAY, (change, wall)


@pytest.mark.slow
def test_cron_fires_once_at_a_fixed_time_and_follows_the_clock_otherwise() -> None:
    for change in distinct_changes()[::2]:
        first, middle, _ = walls(change)
        wall = middle.replace(second=0)
        if wall < first or has_gap_of_a_day(change):
            continue  # no whole minute is skipped or repeated, or the next day has the same time
        zone = ZoneInfo(change.zone)
        passes = [(wall - each).replace(tzinfo=UTC) for each in (change.before, change.after)]
        start, end = min(passes) - 10 * SECOND, max(passes) + 10 * SECOND
        fixed = fires(Cron(f"{wall.minute} {wall.hour} * * *", change.zone), start, end)
        if change.after > change.before:
            assert fixed == ([change.instant] if is_small(change) else []), change
        else:
            assert fixed == (passes[:1] if is_small(change) else passes), change
        follows = fires(Cron(f"*/5 {wall.hour} * * *", change.zone), start, end)
        tens = (start + each * 10 * SECOND for each in range((end - start) // (10 * SECOND) + 1))
        local = ((each, each.astimezone(zone)) for each in tens)
        assert follows == [
            each
            for each, shown in local
            if shown.hour == wall.hour and shown.minute % 5 == 0 and shown.second == 0 and start <= each < end
        ], change


@pytest.mark.slow
def test_during_contains_both_passes_and_no_skipped_time() -> None:
    for change in distinct_changes():
        first, middle, end = walls(change)
        if first.date() != (end - SECOND).date():
            continue
        inside = During(start=first.time(), end=end.time(), dates=(first.date(),), timezone=change.zone)
        size = abs(change.after - change.before)
        if change.after > change.before:
            outside = fires(Every(seconds=30) & inside, change.instant - HOUR, change.instant + HOUR)
            assert not outside, change
        else:
            for instant in (change.instant - size, change.instant, change.instant + size - SECOND):
                assert instant in inside, change
            for instant in (change.instant - size - SECOND, change.instant + size):
                assert instant not in inside, change
            assert (middle - change.after).replace(tzinfo=UTC) in inside


def fires(trigger: Trigger, start: datetime, end: datetime) -> list[datetime]:
    """The fire times from ``start`` on, before ``end``."""
    found = []
    fire = trigger.next_after(start - MICROSECOND, anchor=start)
    while fire is not None and fire < end:
        found.append(fire)
        fire = trigger.next_after(fire, anchor=start)
    return found


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    trigger=triggers,
    anchor=INSTANTS,
    change=CHANGES,
    back=st.timedeltas(0 * DAY, 3 * DAY),
)
def test_fire_times_increase_and_do_not_depend_on_the_start(
    trigger: Trigger, anchor: datetime, change: Change, back: timedelta
) -> None:
    instant = change.instant - back
    try:
        fire = trigger.next_after(instant, anchor=anchor)
        if fire is None:
            return
        assert fire > instant
        assert fire.tzinfo is UTC
        if MICROSECOND < fire - instant <= HORIZON:  # a & b is searched over 10 years from the instant
            assert trigger.next_after(instant + (fire - instant) / 2, anchor=anchor) == fire
        assert trigger.next_after(fire - MICROSECOND, anchor=anchor) == fire
        following = trigger.next_after(fire, anchor=anchor)
        assert following is None or following > fire
    except SearchLimitError:
        return


class Zone(str, Enum):  # noqa: UP042 - str() of a StrEnum is its value
    HOME = "America/Caracas"


def test_zone_of_an_enum_is_described_by_its_name() -> None:
    kept = ZoneInfo(Zone.HOME)  # zoneinfo has the member as the key of this zone from now on
    for zone in (Zone.HOME, kept, "America/Caracas"):
        cron = Cron("0 9 * * *", zone)
        assert str(cron) == "at 09:00 every day, America/Caracas"
        assert type(cron.timezone) is str
