"""Cron expressions of any shape: increasing fire times or a ValueError, in bounded time."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.triggers.cron import Cron, describe
from pg_scheduler.triggers.cron_fields import CronFields, parse_cron
from tests.support.cases import each_case
from tests.support.triggers import fire_after

START = datetime(2024, 2, 28, 23, 59, 58, 7, UTC)
RANGES = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6), (0, 59)]
MONTHS = ["jan", "Feb", "DEC"]
DAYS = ["sun", "Mon", "SAT"]


@st.composite
def items(draw: st.DrawFn, low: int, high: int) -> str:
    """One valid item of a list."""
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


def check_increasing(trigger: Cron) -> None:
    instant = START
    for _ in range(5):
        following = fire_after(trigger, instant)
        assert following > instant
        assert following.microsecond == 0
        instant = following


@given(valid.map(" ".join))
def test_cron_fire_times_increase_when_the_expression_is_valid(expression: str) -> None:
    try:
        trigger = Cron(expression, UTC)
    except ValueError as error:  # its date never occurs
        assert re.search("never occurs|range of one value|is invalid", str(error))  # noqa: PT017
        return
    check_increasing(trigger)


@given(rubbish | mixed)
def test_parse_cron_raises_only_value_error_when_the_text_is_arbitrary(expression: str) -> None:
    try:
        trigger = Cron(expression, UTC)
    except ValueError:
        return
    check_increasing(trigger)


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
def test_parse_cron_takes_bounded_time_when_the_expression_is_huge(expression: str) -> None:
    try:
        trigger = Cron(expression, UTC)
    except ValueError:
        return
    check_increasing(trigger)


def test_parse_cron_raises_without_parsing_when_the_expression_is_too_long() -> None:
    everything = " ".join(",".join(map(str, numbers)) for numbers in (range(60), range(24), range(1, 32)))
    check_increasing(Cron(f"{everything} * *", UTC))
    with pytest.raises(ValueError, match=r"'0,0,0,[0,]+\.\.\.' has 1010 characters; write at most 1000"):
        Cron("0," * 500 + "0 * * * *" + " ", UTC)


def test_cron_has_no_fire_time_when_the_calendar_ends_before_the_next_match() -> None:
    leap_day = Cron("0 0 29 2 *")
    last = datetime(9996, 2, 29, tzinfo=UTC)
    assert fire_after(leap_day, datetime(9995, 6, 1, tzinfo=UTC)) == last
    assert leap_day.next_after(last) is None


@each_case(
    ("weekdays", "days"),
    [
        ("sat#3", "20"),
        ("*,sat#3", "15 16 17 18 19 20 21"),
        ("0-6,sat#3", "15 16 17 18 19 20 21"),
        ("*,L5", "15 16 17 18 19 20 21"),
        ("1,sat#3", "15 20"),
        ("mon,L5", "15"),
        ("5,6#3", "19 20"),
        ("6#3,L5", "20"),
    ],
)
def test_list_of_weekdays_matches_each_of_its_items(weekdays: str, days: str) -> None:
    fires = Cron(f"0 0 * * {weekdays}").upcoming(7, after=datetime(2024, 1, 14, tzinfo=UTC))
    assert " ".join(str(fire.day) for fire in fires if fire < datetime(2024, 1, 22, tzinfo=UTC)) == days


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("0 0 * * 5L", "write L5 for the last such day"),
        ("0 0 * * FRIL", "write L5 for the last such day"),
        ("0 0 * * 1,LFRI", "write L5 for the last such day"),
        ("0 0 * * L", "L5 for the last Friday, or 5#3 for the third one"),
        ("0 0 LW * *", "write L for the last day"),
        ("0 0 L-2 * *", "write L for the last day"),
        ("0 0 L/2 * *", "or L for the last day"),
    ],
)
def test_parse_cron_names_the_supported_form_when_that_of_another_library_is_used(
    expression: str, remedy: str
) -> None:
    with pytest.raises(ValueError, match=f"{remedy}$"):
        Cron(expression)


MINUTES = (
    "*",
    "0",
    "15",
    "*/5",
    "*/7",
    "*/15",
    "*/30",
    "0,30",
    "5/10",
    "5,20,50",
    "0-30/10",
    "1-59/2",
    "0-58",
)
HOURS = ("*", "0", "9", "9,17", "9-17", "*/6", "*/5", "8-18/2", "1/2", "9,12,15", "0-22", "22-23", "20,0,4,8")
DAYS_OF_MONTH = ("*", "1", "1,15", "L")
DAYS_OF_WEEK = ("*", "MON", "1-5", "0,6")
SECONDS = ("", " *", " */10", " 5/10", " 30")


def test_expressions_with_one_sentence_match_the_same_times() -> None:
    """A sentence that leaves out what its expression says would be the same for another expression."""
    values_by_sentence: dict[str, tuple[object, ...]] = {}
    described = 0
    for minute, hour, day, month, weekday, second in product(
        MINUTES, HOURS, DAYS_OF_MONTH, ("*", "1"), DAYS_OF_WEEK, SECONDS
    ):
        expression = f"{minute} {hour} {day} {month} {weekday}{second}"
        fields = parse_cron(expression)
        sentence = describe(expression, fields)
        if sentence.startswith("cron '"):
            continue
        described += 1
        # How clock changes are followed depends on what was written, which no sentence tells.
        values = tuple(getattr(fields, name) for name in CronFields.__slots__ if name != "wild")
        assert values_by_sentence.setdefault(sentence, values) == values, (expression, sentence)
    assert described > 900
