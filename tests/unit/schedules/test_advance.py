"""From one window of a schedule to the next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.schedules.advance import Step, step, window_job_id
from pg_scheduler.schedules.timing import parse_timezone, trigger_for
from pg_scheduler.triggers.cron import CronTrigger
from pg_scheduler.triggers.interval import IntervalTrigger

ANCHOR = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_triggers() -> None:
    assert trigger_for(MINUTE, None, None) == IntervalTrigger(MINUTE)
    assert trigger_for(None, "0 3 * * *", "Europe/Berlin") == CronTrigger(
        "0 3 * * *", ZoneInfo("Europe/Berlin")
    )


@pytest.mark.parametrize(
    ("parts", "error", "rule"),
    [
        ((None, None, None), ValueError, "exactly one of every and cron must be given, not every=None"),
        ((MINUTE, "* * * * *", None), ValueError, "exactly one of every and cron"),
        ((MINUTE, None, "UTC"), ValueError, "timezone='UTC' goes with cron only"),
        ((timedelta(0), None, None), ValueError, "no positive timedelta"),
        ((-MINUTE, None, None), ValueError, "no positive timedelta"),
        ((60, None, None), TypeError, "every must be a timedelta, not int: 60"),
        ((None, "", None), ValueError, "cron|''"),
        ((None, "61 * * * *", None), ValueError, "61"),
        ((None, "* * * * *", "Europe/Atlantis"), ValueError, "'Europe/Atlantis' is not known here"),
    ],
)
def test_other_parts_are_refused(parts: Any, error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=rule):
        trigger_for(*parts)


def test_time_zones() -> None:
    assert parse_timezone(None) is UTC
    assert parse_timezone("Asia/Kathmandu") == parse_timezone(ZoneInfo("Asia/Kathmandu"))
    assert str(parse_timezone("UTC")) == str(parse_timezone(UTC)) == "UTC"


@pytest.mark.parametrize(
    "zone", ["", "/etc/passwd", "../UTC", "Europe", "a\x00b", "\ud800", "UTC+2", 2, b"UTC"]
)
def test_what_is_no_time_zone_is_refused(zone: Any) -> None:
    with pytest.raises(ValueError, match="timezone"):
        parse_timezone(zone)


@pytest.mark.parametrize(
    "zone", [timezone(timedelta(hours=2)), timezone(timedelta(hours=2), "Europe/Berlin")]
)
def test_a_time_zone_without_an_iana_name_is_refused(zone: timezone) -> None:
    """The row keeps the name, and other nodes must find the same zone by it."""
    with pytest.raises(ValueError, match="must be an IANA name, or a ZoneInfo with one"):
        parse_timezone(zone)


def test_utc_needs_no_time_zone_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from pg_scheduler.schedules import timing as schedule

    class Missing(ZoneInfo):
        def __new__(cls, key: str) -> Missing:
            raise ZoneInfoNotFoundError(key)

    monkeypatch.setattr(schedule, "ZoneInfo", Missing)
    assert parse_timezone("UTC") is UTC
    with pytest.raises(ValueError, match="install the package tzdata"):
        parse_timezone("Europe/Berlin")


def test_the_next_window() -> None:
    trigger = IntervalTrigger(MINUTE)
    first = ANCHOR + MINUTE
    assert step(trigger, anchor=ANCHOR, first=first, now=first) == Step(first, first + MINUTE)


def test_missed_windows_collapse_into_the_latest() -> None:
    late = step(IntervalTrigger(MINUTE), anchor=ANCHOR, first=ANCHOR + MINUTE, now=ANCHOR + 10.5 * MINUTE)
    assert late == Step(ANCHOR + 10 * MINUTE, ANCHOR + 11 * MINUTE)
    cron = CronTrigger("0 12 * * *", ZoneInfo("UTC"))
    noon = ANCHOR + timedelta(hours=12)
    assert step(cron, anchor=ANCHOR, first=noon, now=noon + timedelta(days=400, hours=1)) == Step(
        noon + timedelta(days=400), noon + timedelta(days=401)
    )


@given(st.integers(1, 10**10), st.integers(0, 10**12))
def test_a_step_never_fires_early_and_always_goes_on(every: int, later: int) -> None:
    trigger = IntervalTrigger(timedelta(microseconds=every))
    first = trigger.next_after(ANCHOR, anchor=ANCHOR)
    now = first + timedelta(microseconds=later)
    taken = step(trigger, anchor=ANCHOR, first=first, now=now)
    assert first <= taken.window <= now < taken.next_fire_at
    assert taken.next_fire_at - taken.window == trigger.every
    assert (taken.window - ANCHOR) % trigger.every == timedelta(0)


def test_a_windows_id_is_the_same_on_every_node() -> None:
    window = datetime(2030, 6, 1, 14, tzinfo=ZoneInfo("Europe/Berlin"))
    assert window_job_id("key", window) == "periodic:key:2030-06-01T12:00:00+00:00"
    assert window_job_id("key", window.astimezone(UTC)) == window_job_id("key", window)
    assert window_job_id("key", window + timedelta(microseconds=1)) != window_job_id("key", window)
