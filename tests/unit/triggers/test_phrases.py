"""Triggers as people write them: one grammar for forms and commands."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pg_scheduler.triggers import At, Cron, During, Every, FixedDelay, Trigger, parse_trigger
from pg_scheduler.triggers.phrases import EXAMPLES, MAX_LENGTH, write_trigger
from tests.support.cases import each_case
from tests.support.hostile_texts import HOSTILE, LONG

NINE = datetime(2027, 1, 31, 8, tzinfo=UTC)
"""Nine o'clock in Berlin."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 8 * * 1-5", Cron("0 8 * * 1-5", timezone="Europe/Berlin")),
        ("@hourly", Cron("@hourly", timezone="Europe/Berlin")),
        ("every 90s", Every(seconds=90)),
        ("EVERY 1w2d3h4m5s", Every(weeks=1, days=2, hours=3, minutes=4, seconds=5)),
        ("after 10m", FixedDelay(timedelta(minutes=10))),
        (
            "at 2027-01-31T09:00, 2027-02-01T09:00:00.25Z",
            At(NINE, NINE.replace(month=2, day=1, hour=9, microsecond=250_000)),
        ),
        ('{"kind": "every", "every": "PT15M"}', Every(minutes=15)),
    ],
)
def test_trigger_is_read_and_written(text: str, expected: Trigger) -> None:
    found = parse_trigger(text, "Europe/Berlin")
    assert found == expected
    assert parse_trigger(*write_trigger(found)) == expected


def test_instants_are_in_the_zone_unless_they_have_an_offset() -> None:
    found = parse_trigger("at 2027-01-31T09:00, 2027-02-01T09:00Z", "Europe/Berlin")
    assert isinstance(found, At)
    assert [each.hour for each in found.instants] == [8, 9]


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_of_triggers_are_valid(text: str) -> None:
    assert str(parse_trigger(text))


@each_case(
    "text",
    [
        *HOSTILE,
        LONG,
        "",
        "every",
        "every 15",
        "every -1m",
        "every 0s",
        "every 999999999w",
        "at",
        "at soon",
        "at " + ",".join(["2027-01-31T09:00"] * 1001),
        "at 0001-01-01",
        "after x",
        "* * * *",
        "{",
        "{}",
        '{"kind": "x"}',
        '{"kind":' * 3000,
        "x" * (MAX_LENGTH + 1),
    ],
    ids=itertools.count(),
)
def test_wrong_trigger_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_trigger(text)


@pytest.mark.parametrize("value", [None, 5, ["every 1h"], timedelta(hours=1), Every(hours=1)], ids=repr)
def test_value_that_is_no_text_is_rejected(value: Any) -> None:
    with pytest.raises(ValueError, match=r"a trigger must be a str, not .*; enter one such as"):
        parse_trigger(value)


def test_unknown_zone_is_rejected() -> None:
    for text in ("0 8 * * *", "at 2027-01-31T09:00"):
        with pytest.raises(ValueError, match="Nowhere"):
            parse_trigger(text, "Nowhere/City")


@pytest.mark.parametrize(
    "trigger",
    [
        Every(timedelta(milliseconds=1500)),
        FixedDelay(timedelta(milliseconds=1500)),
        At(*(NINE + number * timedelta(days=1) for number in range(1000))),
        Every(hours=1) | Cron("0 8 * * *"),
        Every(hours=1) - During(weekdays="sun"),
    ],
    ids=itertools.count(),
)
def test_written_trigger_is_the_one_that_is_read(trigger: Trigger) -> None:
    assert parse_trigger(*write_trigger(trigger)) == trigger


@pytest.mark.parametrize(
    ("text", "zone"),
    [("berlin", "Europe/Berlin"), ("New York", "America/New_York"), ("Europe/Berln", "Europe/Berlin")],
)
def test_unknown_zone_names_a_similar_one(text: str, zone: str) -> None:
    with pytest.raises(ValueError, match=f"such as '{zone}'"):
        parse_trigger("0 8 * * *", text)
