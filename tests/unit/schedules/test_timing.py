"""Fire times of a due schedule, and building the trigger of a declared one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.schedules.declared import trigger_for
from pg_scheduler.schedules.timing import Advance, jitter_of, pass_time
from pg_scheduler.triggers import zones
from pg_scheduler.triggers.at import At
from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.cron import Cron
from pg_scheduler.triggers.interval import Every
from pg_scheduler.triggers.zones import parse_timezone
from tests.support.cases import each_case
from tests.support.inside import fire_time_job_id
from tests.support.store import new_schedule
from tests.support.triggers import fire_after

ANCHOR = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def passed(
    trigger: Trigger, *, first: datetime | None, now: datetime, end: datetime | None = None
) -> Advance:
    """What becomes of the fire times of a schedule whose next fire time is ``first``."""
    text = json.dumps(trigger.to_json())
    return pass_time(new_schedule(trigger=text, anchor=ANCHOR, next_fire_at=first, end_at=end), now)


def test_trigger_for_returns_the_trigger_of_an_interval_or_a_cron_expression() -> None:
    assert trigger_for(MINUTE, None, None) == Every(MINUTE)
    assert trigger_for(None, "0 3 * * *", "Europe/Berlin") == Cron("0 3 * * *", ZoneInfo("Europe/Berlin"))


@each_case(
    ("parts", "error", "rule"),
    [
        ((None, None, None), ValueError, "Either every= or cron= must be given; both are None"),
        ((MINUTE, "* * * * *", None), ValueError, "Either every= or cron= must be given, not both"),
        ((MINUTE, None, "UTC"), ValueError, "timezone='UTC' requires cron="),
        ((timedelta(0), None, None), ValueError, "every must be a positive timedelta"),
        ((-MINUTE, None, None), ValueError, "every must be a positive timedelta"),
        ((60, None, None), TypeError, "every must be a timedelta, not int: 60"),
        ((None, "", None), ValueError, "cron|''"),
        ((None, "61 * * * *", None), ValueError, "61"),
        ((None, "* * * * *", "Europe/Atlantis"), ValueError, "Invalid timezone 'Europe/Atlantis': not found"),
        (
            (None, None, "UTC", Every(MINUTE)),
            ValueError,
            "timezone='UTC' requires cron=; pass .* the trigger",
        ),
        ((MINUTE, None, None, Every(2 * MINUTE)), ValueError, "not 'every 2 minutes' and 'every minute'"),
    ],
)
def test_trigger_for_raises_when_a_parameter_is_invalid(
    parts: Any, error: type[Exception], rule: str
) -> None:
    with pytest.raises(error, match=rule):
        trigger_for(*parts)


def test_parse_timezone_returns_the_zone_of_a_name() -> None:
    assert parse_timezone(None) is UTC
    assert parse_timezone("Asia/Kathmandu") == parse_timezone(ZoneInfo("Asia/Kathmandu"))
    assert str(parse_timezone("UTC")) == str(parse_timezone(UTC)) == "UTC"


@each_case(
    "zone", ["", "/etc/passwd", "../UTC", "Europe", "a\x00b", "\ud800", "UTC+2", 2, b"UTC", "localtime"]
)
def test_parse_timezone_raises_when_the_value_is_not_a_time_zone(zone: Any) -> None:
    with pytest.raises(ValueError, match=r"^Invalid timezone"):
        parse_timezone(zone)


@pytest.mark.parametrize(
    "zone", [timezone(timedelta(hours=2)), timezone(timedelta(hours=2), "Europe/Berlin")]
)
def test_parse_timezone_raises_when_the_zone_has_no_iana_name(zone: timezone) -> None:
    """The row stores the name, and other nodes must find the same zone by it."""
    with pytest.raises(ValueError, match="has no IANA name"):
        parse_timezone(zone)


def test_parse_timezone_returns_utc_when_the_machine_has_no_time_zone_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Missing(ZoneInfo):
        def __new__(cls, key: str) -> Missing:
            raise ZoneInfoNotFoundError(key)

    monkeypatch.setattr(zones, "ZoneInfo", Missing)
    assert parse_timezone("UTC") is UTC
    with pytest.raises(ValueError, match="install the package tzdata"):
        parse_timezone("Europe/Berlin")


def test_pass_time_returns_the_due_fire_time_and_the_next_one() -> None:
    trigger = Every(MINUTE)
    first = ANCHOR + MINUTE
    following = first + MINUTE
    assert passed(trigger, first=first, now=first) == Advance(
        (first,), (first,), first, following, searched_from=first, following=following
    )


def test_pass_time_returns_the_latest_fire_time_when_several_were_missed() -> None:
    late = passed(Every(MINUTE), first=ANCHOR + MINUTE, now=ANCHOR + 10.5 * MINUTE)
    latest = ANCHOR + 10 * MINUTE
    following = ANCHOR + 11 * MINUTE
    assert late == Advance(
        (latest,), (latest,), latest, following, missed=9, searched_from=latest, following=following
    )
    cron = Cron("0 12 * * *", ZoneInfo("UTC"))
    noon = ANCHOR + timedelta(hours=12)
    latest = noon + timedelta(days=400)
    following = noon + timedelta(days=401)
    assert passed(cron, first=noon, now=latest + timedelta(hours=1)) == Advance(
        (latest,), (latest,), latest, following, missed=400, searched_from=latest, following=following
    )


@given(st.integers(1, 10**10), st.integers(0, 10**12))
def test_pass_time_never_fires_early_and_always_moves_forward(every: int, later: int) -> None:
    trigger = Every(timedelta(microseconds=every))
    first = fire_after(trigger, ANCHOR, ANCHOR)
    now = first + timedelta(microseconds=later)
    due = passed(trigger, first=first, now=now)
    (fire_time,) = due.fire_times
    assert due.next_fire_at is not None
    assert first <= fire_time <= now < due.next_fire_at
    assert due.next_fire_at - fire_time == trigger.every
    assert (fire_time - ANCHOR) % trigger.every == timedelta(0)
    assert due.missed == (fire_time - first) // trigger.every


def test_job_id_of_a_fire_time_is_the_same_on_every_node() -> None:
    fire_time = datetime(2030, 6, 1, 14, tzinfo=ZoneInfo("Europe/Berlin"))
    assert fire_time_job_id("key", fire_time) == "schedule:key:2030-06-01T12:00:00+00:00"
    assert fire_time_job_id("key", fire_time, owner="code").startswith("periodic:key:2030")
    assert fire_time_job_id("key", fire_time.astimezone(UTC)) == fire_time_job_id("key", fire_time)
    assert fire_time_job_id("key", fire_time + timedelta(microseconds=1)) != fire_time_job_id(
        "key", fire_time
    )


def test_pass_time_finishes_a_schedule_whose_fire_times_have_ended() -> None:
    trigger, finished = Every(MINUTE), Advance(is_finished=True)
    assert passed(trigger, first=None, now=ANCHOR) == finished
    first = ANCHOR + MINUTE
    late = ANCHOR + 5 * MINUTE
    assert passed(trigger, first=first, now=late, end=first - MINUTE / 2) == finished
    at_its_end = passed(trigger, first=first, now=first, end=first)
    assert at_its_end == Advance((first,), (first,), first, None, is_finished=True, searched_from=first)


def test_jitter_ends_at_the_next_fire_time_and_is_unbounded_after_the_last_one() -> None:
    fires = [ANCHOR + n * MINUTE for n in range(200)]
    every, once = (
        new_schedule(trigger=json.dumps(trigger.to_json()), anchor=ANCHOR, jitter_seconds=3600.0)
        for trigger in (Every(MINUTE), At(ANCHOR))
    )
    bounded = [jitter_of(every, fire) for fire in fires]
    unbounded = [jitter_of(once, fire) for fire in fires]
    assert all(timedelta(0) <= each < MINUTE for each in bounded)
    assert all(timedelta(0) <= each < 60 * MINUTE for each in unbounded)
    assert max(unbounded) > 50 * MINUTE
    assert [each * 60 for each in bounded] == pytest.approx(unbounded, abs=timedelta(milliseconds=1))
