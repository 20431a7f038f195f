"""Tables at the widths of usual terminals."""

from __future__ import annotations

import io
from datetime import UTC, datetime

import pytest

from pg_scheduler.cli.job_show import JOB
from pg_scheduler.cli.jobs import GROUP
from pg_scheduler.cli.output import Output
from pg_scheduler.cli.tables import Field, fit, shorten

IDS = ("0f8fad5b-d9cb-469f-a165-70867728950e", "periodic:shop.tick:2026-11-21T11:13:20.666538+00:00")
NAME = "shop.charge"
ERROR = "TimeoutError: the payment provider did not answer within 30 seconds"


def jobs_table(format_: str, width: int | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    rows = [
        dict.fromkeys(column.key for column in JOB.columns)
        | {
            "job_id": job_id,
            "job_name": NAME,
            "status": "cancelled",
            "execution_time": datetime(2026, 11, 21, 11, 13, 20, tzinfo=UTC),
            "attempt": 3,
            "error_message": ERROR,
        }
        for job_id in IDS
    ]
    out = io.StringIO()
    Output(format_, UTC, out=out).write_list(JOB, rows)  # type: ignore[arg-type]
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_job_is_one_line_with_its_name_and_status(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = jobs_table("table", width, monkeypatch)
    assert len(lines) == 1 + len(IDS)
    assert lines[0].split() == ["ID", "NAME", "STATUS", "DUE", "ATTEMPT", "ERROR"]
    for line, job_id in zip(lines[1:], IDS, strict=True):
        assert len(line) <= width
        shown, *rest = line.split()
        assert rest[:2] == [NAME, "cancelled"]
        head, mark, tail = shown.partition("\N{HORIZONTAL ELLIPSIS}")
        assert shown == job_id if not mark else job_id.startswith(head) and job_id.endswith(tail)
        assert len(shown) >= 9
    assert (IDS[1] in lines[2]) == (width == 200)


def test_table_in_a_file_shortens_and_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = jobs_table("table", None, monkeypatch)
    assert len(lines) == 1 + len(IDS)
    for line, job_id in zip(lines[1:], IDS, strict=True):
        assert {job_id, NAME, "cancelled"} <= set(line.split())
        assert ERROR in line


def test_wide_is_one_whole_line_for_each_row_at_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = jobs_table("wide", 40, monkeypatch)
    assert len(lines) == 1 + len(IDS)
    for line, job_id in zip(lines[1:], IDS, strict=True):
        assert {job_id, NAME, "cancelled"} <= set(line.split())
        assert ERROR in line


def test_widths_never_go_below_the_least_that_is_legible() -> None:
    fields = [Field(36, 2, "id"), Field(30, 4, "folded"), Field(9, 6, "whole"), Field(90, 5, "cut")]
    assert fit(fields, 10) == [9, 10, 9, 6]
    assert fit(fields, 500) == [36, 30, 9, 90]


@pytest.mark.parametrize(
    ("text", "width", "shown"), [("abc", 3, "abc"), ("abcdefgh", 5, "ab\u2026gh"), ("ab", 1, "\u2026")]
)
def test_shortened_text_fits_and_is_marked(text: str, width: int, shown: str) -> None:
    assert shorten(text, width) == shown


def test_table_of_errors_shows_the_whole_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {"fingerprint": "0123456789abcdef", "count": 3, "job_name": NAME, "text": ERROR}
    out = io.StringIO()
    Output("table", UTC, out=out).write_list(GROUP, [row])
    lines = out.getvalue().splitlines()
    start = lines[0].index("ERROR")
    assert " ".join(line[start:].strip() for line in lines[1:]) == ERROR
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("0123456789abcdef ")
