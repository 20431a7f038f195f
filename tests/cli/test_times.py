"""The grammar of times and durations, which every option has."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from zoneinfo import ZoneInfo

import pytest

from pg_scheduler.cli.errors import CommandError
from pg_scheduler.cli.output import read_zone
from pg_scheduler.cli.values import read_duration, read_move, read_since, read_time
from tests.support.inside import ExitCode

BERLIN = ZoneInfo("Europe/Berlin")
NEAR = timedelta(minutes=1)
POSIX_BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172_800), ("1w", 604_800), ("0.5s", 0.5)],
)
def test_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert read_duration("--timeout", text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5", "-5m", "1y"])
def test_other_text_is_no_duration(text: str) -> None:
    with pytest.raises(CommandError, match="--timeout must be a duration"):
        read_duration("--timeout", text)


@pytest.mark.parametrize("text", ["0s", "36501d", "99999999d"])
def test_duration_out_of_range_is_named_with_the_range(text: str) -> None:
    message = f"--at must be more than 0s and at most 36500d, not '{text}'"
    with pytest.raises(CommandError, match=message):
        read_duration("--at", text)
    with pytest.raises(CommandError, match=message):
        read_time("--at", text, UTC)


@pytest.mark.parametrize(
    ("text", "later"),
    [
        ("now", timedelta()),
        ("5m", timedelta(minutes=5)),
        ("+1h", timedelta(hours=1)),
        ("-15m", timedelta(minutes=-15)),
    ],
)
def test_relative_times_count_from_now(text: str, later: timedelta) -> None:
    assert abs(read_time("--at", text, UTC) - datetime.now(UTC) - later) < NEAR


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2027-01-31", "2027-01-30T23:00+00:00"),
        ("2027-01-31T09:00", "2027-01-31T08:00+00:00"),
        ("2027-01-31 09:00:30", "2027-01-31T08:00:30+00:00"),
        ("2027-01-31T09:00Z", "2027-01-31T09:00+00:00"),
        ("2027-01-31T09:00+05:30", "2027-01-31T03:30+00:00"),
    ],
)
def test_days_and_times_are_in_the_zone_unless_they_have_one(text: str, instant: str) -> None:
    assert read_time("--at", text, BERLIN) == datetime.fromisoformat(instant)


@pytest.mark.parametrize("text", ["", "soon", "5", "+", "<2027-01-01"])
def test_other_text_is_no_time(text: str) -> None:
    with pytest.raises(CommandError, match="--at must be a time such as"):
        read_time("--at", text, UTC)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2027-13-01", "does not exist: month must be in 1..12"),
        ("2027-01-31T25:00", "does not exist: hour must be in 0..23"),
        ("0001-01-01T00:00+01:00", "is out of range; it must be between 0001-01-02 and 9999-12-30"),
        ("9999-12-31", "is out of range; it must be between 0001-01-02 and 9999-12-30"),
    ],
)
def test_time_out_of_range_is_named_with_what_is_out_of_range(text: str, reason: str) -> None:
    with pytest.raises(CommandError, match=re.escape(f"--at: the time {text!r} {reason}")):
        read_time("--at", text, UTC)


def test_duration_without_a_sign_looks_back_where_the_past_is_meant() -> None:
    assert abs(read_since("--since", "1h", UTC) - datetime.now(UTC) + timedelta(hours=1)) < NEAR
    assert abs(read_since("--since", "+1h", UTC) - datetime.now(UTC) - timedelta(hours=1)) < NEAR


def test_sign_moves_each_job_from_its_own_time() -> None:
    assert read_move("--to", "+1h", UTC) == timedelta(hours=1)
    assert read_move("--to", "-30m", UTC) == timedelta(minutes=-30)
    assert read_move("--to", "2027-01-31T09:00", UTC) == datetime(2027, 1, 31, 9, tzinfo=UTC)


@pytest.mark.parametrize("variable", [POSIX_BERLIN, f":{POSIX_BERLIN}"])
def test_local_zone_without_a_name_has_the_offset_of_each_instant(
    set_zone: Callable[[str], None], variable: str
) -> None:
    set_zone(variable)
    zone = read_zone("local")
    # 2027-03-28 has no times from 02:00 to 03:00, and 2027-10-31 has those from 02:00 to 03:00 twice.
    days = [datetime.fromisoformat(f"2027-{day}") for day in ("01-31", "03-28", "07-01", "10-31")]
    for day, minutes, fold in product(days, range(0, 24 * 60, 10), (0, 1)):
        wall = (day + timedelta(minutes=minutes)).replace(fold=fold)
        assert wall.replace(tzinfo=zone).utcoffset() == wall.replace(tzinfo=BERLIN).utcoffset(), wall
        instant = wall.replace(tzinfo=UTC, fold=0)
        local, expected = instant.astimezone(zone), instant.astimezone(BERLIN)
        assert local.replace(tzinfo=None) == expected.replace(tzinfo=None)
        assert (local.fold, local.tzname()) == (expected.fold, expected.tzname())
        assert local.astimezone(UTC) == instant


def test_time_is_read_in_a_local_zone_without_a_name(set_zone: Callable[[str], None]) -> None:
    set_zone(POSIX_BERLIN)
    zone = read_zone("local")
    assert read_time("--at", "2027-01-31T09:00", zone) == datetime(2027, 1, 31, 8, tzinfo=UTC)
    assert read_time("--at", "2027-07-01T09:00", zone) == datetime(2027, 7, 1, 7, tzinfo=UTC)
    assert read_time("--at", "0001-01-02", zone) == datetime(1, 1, 1, 23, tzinfo=UTC)
    assert read_time("--at", "9999-12-30", zone) == datetime(9999, 12, 29, 23, tzinfo=UTC)
    with pytest.raises(CommandError, match="is out of range"):
        read_time("--at", "9999-12-31", zone)


def test_local_zone_with_an_empty_variable_is_utc(set_zone: Callable[[str], None]) -> None:
    set_zone("")
    assert read_time("--at", "2027-07-01T09:00", read_zone("local")) == datetime(2027, 7, 1, 9, tzinfo=UTC)


@pytest.mark.parametrize("variable", ["UTC+25", "ABC-24"])
def test_local_zone_of_a_day_or_more_is_a_usage_error(set_zone: Callable[[str], None], variable: str) -> None:
    set_zone(variable)
    message = re.escape(f"TZ={variable!r}, is 24 hours or more from UTC")
    with pytest.raises(CommandError, match=message) as caught:
        read_zone("local")
    assert caught.value.code == ExitCode.USAGE
    assert read_zone("utc") is UTC
