"""Cron expressions of any shape: they give rising times, or are a ValueError; nothing else, and soon."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.triggers.cron import CronTrigger

START = datetime(2024, 2, 28, 23, 59, 58, 7, UTC)
RANGES = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6), (0, 59)]
MONTHS = ["jan", "Feb", "DEC"]
DAYS = ["sun", "Mon", "SAT"]


@st.composite
def items(draw: st.DrawFn, low: int, high: int) -> str:
    """One item of a list, right in itself."""
    first = draw(st.integers(low, high - 1))
    last = draw(st.integers(first + 1, high))
    step = draw(st.integers(1, high - low))
    return draw(st.sampled_from(["*", f"*/{step}", f"{first}", f"{first}-{last}", f"{first}-{last}/{step}"]))


def fields(place: int) -> st.SearchStrategy[str]:
    names = {3: MONTHS, 4: DAYS}.get(place, [])
    one = items(*RANGES[place])
    one = one | st.sampled_from(names) if names else one
    return st.lists(one, min_size=1, max_size=3).map(",".join)


valid = st.tuples(*map(fields, range(5))) | st.tuples(*map(fields, range(6)))
numbers = st.integers().map(str) | st.sampled_from(["9" * 5000, "00", "1.5", "٣", "1e3", "-1", "4294967297"])
shreds = numbers | st.sampled_from(
    [*"*?/-,#LWhr@ \t\n\x00", "l5", "5l", "15w", "h(1-2)", "@daily", "@x", "mon", "a"]
)
rubbish = st.text(max_size=40) | st.lists(shreds, max_size=30).map("".join)
mixed = st.lists(st.lists(shreds, max_size=4).map("".join), min_size=5, max_size=6).map(" ".join)


def rises(trigger: CronTrigger) -> None:
    instant = START
    for _ in range(5):
        following = trigger.next_after(instant)
        assert following > instant
        assert following.microsecond == 0
        instant = following


@given(valid.map(" ".join))
def test_the_times_of_an_expression_rise(expression: str) -> None:
    try:
        trigger = CronTrigger(expression, UTC)
    except ValueError as error:  # a date that never comes
        assert re.search("never comes|spans one value|not understood", str(error))  # noqa: PT017
        return
    rises(trigger)


@given(rubbish | mixed)
def test_anything_else_is_a_value_error(expression: str) -> None:
    try:
        trigger = CronTrigger(expression, UTC)
    except ValueError:
        return
    rises(trigger)


@pytest.mark.parametrize(
    "expression",
    [
        "0-999999999 * * * *",
        "*/1000000000000 * * * *",
        "0/1 * * * *",
        ",".join(["0"] * 100_000) + " * * * *",
        "0 " * 100_000,
        f"{'9' * 5000} * * * *",
        f"0-{'9' * 5000}/1 * * * *",
        "* * * * mon#9",
        "* * * * mon#" + "1" * 5000,
        "* * * * 1#0",
        "* * l#1 * *",
    ],
    ids=lambda text: text[:20],
)
def test_what_could_take_for_ever(expression: str) -> None:
    try:
        trigger = CronTrigger(expression, UTC)
    except ValueError:
        return
    rises(trigger)


def test_what_is_too_long_is_refused_unread() -> None:
    everything = " ".join(",".join(map(str, numbers)) for numbers in (range(60), range(24), range(1, 32)))
    rises(CronTrigger(f"{everything} * *", UTC))
    with pytest.raises(
        ValueError, match=r"'0,0,0,[0,]+\.\.\.' has 1010 characters\. At most 1000 make sense"
    ):
        CronTrigger("0," * 500 + "0 * * * *" + " ", UTC)
