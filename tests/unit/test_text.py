"""The grammar of lengths of time, which options, searches and forms have in common, and values as JSON."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta

import pytest

from pg_scheduler.base.text import values
from pg_scheduler.base.text.durations import read_seconds, write_duration
from pg_scheduler.base.text.times import read_span
from pg_scheduler.cli.job_show import JOB
from pg_scheduler.cli.output import Format, Output
from pg_scheduler.cli.values import read_duration
from pg_scheduler.inspect import parse_search
from pg_scheduler.inspect.texts import length
from pg_scheduler.triggers import Every, parse_trigger

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("text", ["90s", "1h30m", "1.5h", "2d", "1w"])
def test_option_search_and_form_read_the_same_length(text: str) -> None:
    seconds = read_seconds(text)
    assert seconds is not None
    assert read_duration("--timeout", text) == seconds
    assert parse_trigger(f"every {text}") == Every(timedelta(seconds=seconds))
    at = NOW - timedelta(seconds=seconds)
    assert read_span(f"-{text}", NOW, UTC) == (at, at)
    written = parse_search(f"due:>-{text}", now=NOW, tz=UTC)
    assert written == parse_search(f"due:>-{seconds:g}s", now=NOW, tz=UTC)


@pytest.mark.parametrize("text", ["45s", "1h30m", "1w2d3h4m5s"])
def test_written_length_is_the_one_that_was_read(text: str) -> None:
    assert write_duration(timedelta(seconds=read_seconds(text) or 0)) == text


def test_form_reads_relative_times() -> None:
    now = datetime.now(UTC)
    (at,) = parse_trigger("at +2h").upcoming(1, after=now, anchor=now)
    assert abs(at - now - timedelta(hours=2)) < timedelta(minutes=1)


def test_value_is_shown_to_any_depth_unless_levels_are_given() -> None:
    value: list[object] = ["end"]
    for _ in range(200):
        value = [value]
    assert values.plain(value) == value
    assert values.plain(value, 2) == [["…"]]


EVIL = "\x1b]0;owned\x07\x9b31m\u202e\u2028 ü"


@pytest.mark.parametrize("form", ["table", "wide", "json", "jsonl", "csv", "ids"])
def test_no_output_of_a_command_controls_a_terminal(form: Format) -> None:
    out = io.StringIO()
    row = dict.fromkeys(column.key for column in JOB.columns) | {"job_id": EVIL, "error_message": EVIL}
    Output(form, UTC, out=out).write_list(JOB, [row])
    Output(form, UTC, out=out).write_one(JOB, row)
    assert "ü" in out.getvalue()
    assert not set(EVIL) & set(out.getvalue()) - set("ü ]0;owned31m")


def test_json_of_a_command_has_the_whole_text() -> None:
    out = io.StringIO()
    Output("jsonl", UTC, out=out).write_list(JOB, [{"job_id": f"{EVIL}\U000e0001"}])
    assert json.loads(out.getvalue()) == {"job_id": f"{EVIL}\U000e0001"}


def test_csv_of_a_command_has_no_formulas_and_all_numbers() -> None:
    out = io.StringIO()
    row = {"a": "=1+1", "b": -1, "c": "-x", "d": "plain", "e": True, "f": None, "g": ["=x"], "h": -0.5}
    Output("csv", UTC, out=out).write_list(JOB, [row])
    _, cells = csv.reader(io.StringIO(out.getvalue()))
    assert cells == ["'=1+1", "-1", "'-x", "plain", "true", "", '["=x"]', "-0.5"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 ms"), (0.0001, "< 1 ms"), (0.0005, "< 1 ms"), (0.0006, "1 ms"), (-1, "0 ms")]
)
def test_length_that_is_not_zero_is_not_shown_as_zero(seconds: float, text: str) -> None:
    assert length(seconds) == text
