"""The durable steps of a job in every format, and in what ``jobs show`` prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.conftest import Ran, Run, schema
from tests.support.golden import golden
from tests.support.inside import ExitCode, row_of_retries
from tests.support.world import HOUR, World, populate

GOLDEN = Path(__file__).with_name("golden")


def day(number: int, year: int = 2026) -> datetime:
    """Return a day of January."""
    return datetime(year, 1, number, tzinfo=UTC)


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command on a database with a job that has stored steps, and one that has not."""

    async def fill(world: World) -> None:
        planned = {"due": day(9, 2099), "created_at": day(1)}
        await world.job("order:7", "shop.order", attempt=2, options={"steps": 1}, **planned)
        await world.job("plain", "shop.order", **planned)
        bill = {"id": "pay-1", "note": "long " * 30}
        steps: list[tuple[datetime, str, str, dict[str, Any]]] = [
            (day(2), "charge", "step", {"value": bill}),
            (day(3), "lines", "cursor", {"value": 3}),
            (day(4), "cool-off", "sleep", {"until": day(5)}),
            (day(5), "late", "signal", {"until": day(6)}),
            (day(6), "approval", "signal", {"until": day(9, 2099), "ended": None, "attempt": 2}),
            (day(7), "scan", "step", {"value": "x" * 100_000, "attempt": 2}),
        ]
        for started, name, kind, columns in steps:
            await world.step(
                "order:7", name, kind, **{"started": started, "ended": started + HOUR, **columns}
            )

    populate(dsn, fill)
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.setenv("PG_SCHEDULER_TZ", "utc")
    return call


def test_steps_are_written_in_the_order_of_their_start(on: Callable[..., Ran]) -> None:
    ran = on("jobs", "steps", "order:7")
    rows = ran.checked("step")
    assert [(row["name"], row["state"]) for row in rows] == [
        ("charge", "stored"),
        ("lines", "stored"),
        ("cool-off", "over"),
        ("late", "timed_out"),
        ("approval", "waiting"),
        ("scan", "stored"),
    ]
    approval = rows[-2]
    assert approval == {
        "v": 1, "name": "approval", "kind": "signal", "state": "waiting", "value": None,
        "no_value_reason": None, "attempt": 2, "started_at": "2026-01-06T00:00:00Z", "ended_at": None,
        "until": "2099-01-09T00:00:00Z", "failures": 0, "errors": [],
        "mailbox": None,
    }  # fmt: skip
    assert (ran.code, ran.err) == (0, "6 steps\n")
    assert on("jobs", "steps", "plain", "-o", "json").out == (
        '{\n  "v": 1,\n  "items": [],\n  "is_capped": false,\n  "summary": "0 steps"\n}\n'
    )


def test_large_value_is_read_by_the_name_of_its_step(on: Callable[..., Ran]) -> None:
    *_, scan = on("jobs", "steps", "order:7").lines
    assert scan["value"] is None
    assert "read it alone: pg-scheduler jobs steps order:7 scan" in scan["no_value_reason"]
    (scan,) = on("jobs", "steps", "order:7", "scan").checked("step")
    assert (len(scan["value"]), scan["no_value_reason"]) == (100_000, None)


def test_other_formats_have_the_same_steps(on: Callable[..., Ran]) -> None:
    names = ["charge", "lines", "cool-off", "late", "approval", "scan"]
    assert on("jobs", "steps", "order:7", "-o", "ids").out.split() == names
    document = json.loads(on("jobs", "steps", "order:7", "-o", "json").out)
    assert [each["name"] for each in document["items"]] == names
    assert (document["is_capped"], document["summary"]) == (False, "6 steps")
    header, charge, *_ = on("jobs", "steps", "order:7", "-o", "csv").out.splitlines()
    assert header == (
        "name,kind,state,value,no_value_reason,attempt,started_at,ended_at,until,failures,errors,mailbox"
    )
    assert charge.startswith('charge,step,stored,"{""id"": ""pay-1""')


def test_values_can_be_omitted(on: Callable[..., Ran]) -> None:
    for arguments in (("steps", "order:7"), ("show", "order:7")):
        for format_ in ("json", "wide"):
            ran = on("jobs", *arguments, "--no-arguments", "-o", format_)
            assert ("charge" in ran.out, "pay-1" in ran.out) == (True, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "nothing"),
        (("order:7", "charg"), "job 'order:7' has no step 'charg'; did you mean charge?"),
        (("plain", "charge"), "job 'plain' has no step 'charge'"),
    ],
)
def test_missing_job_or_step_exits_with_3(
    on: Callable[..., Ran], arguments: tuple[str, ...], message: str
) -> None:
    ran = on("jobs", "steps", *arguments)
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert message in ran.err


def test_show_has_the_steps(on: Callable[..., Ran]) -> None:
    document = json.loads(on("jobs", "show", "order:7").out)
    jsonschema.validate(document, schema("shown_job"))
    assert [each["name"] for each in document["steps"]][:2] == ["charge", "lines"]
    assert document["steps"][1]["value"] == 3
    assert json.loads(on("jobs", "show", "plain").out)["steps"] == []
    shown = on("jobs", "show", "order:7", "-o", "table").out
    assert (
        '\nsteps:\n2026-01-02 00:00:00+00:00  charge (step) stored: {"id": "pay-1", "note": "long long'
    ) in shown
    assert "\n2026-01-06 00:00:00+00:00  approval (signal) waiting until 2099-01-09 00:00:00+00:00\n" in shown
    assert "steps:" not in on("jobs", "show", "plain", "-o", "table").out


def test_step_that_has_failed_has_its_failures(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [{"at": "2026-01-02T00:00:00Z", "attempt": 1, "error": "BankError: closed"}]
    failures = {"count": 2, "errors": errors}

    async def fill(world: World) -> None:
        options = {"steps": 1}
        await world.job(
            "order:7", "shop.order", attempt=2, options=options, due=day(9, 2099), created_at=day(1)
        )
        await world.step("order:7", "charge", value=1, started=day(3), ended=day(3))
        await world.step("order:7", row_of_retries("charge"), "retry", value=failures, started=day(2))
        row = row_of_retries("ship")
        await world.step(
            "order:7", row, "retry", value=failures, started=day(4), ended=None, until=day(9, 2099)
        )

    populate(dsn, fill)
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.setenv("PG_SCHEDULER_TZ", "utc")
    rows = call("jobs", "steps", "order:7").checked("step")
    assert [(row["name"], row["kind"], row["state"], row["failures"]) for row in rows] == [
        ("charge", "step", "stored", 2),
        ("ship", "step", "retrying", 2),
    ]
    assert rows[1]["errors"] == errors
    (row,) = call("jobs", "steps", "order:7", "ship").checked("step")
    assert (row["name"], row["until"]) == ("ship", "2099-01-09T00:00:00Z")
    shown = call("jobs", "show", "order:7", "-o", "table").out
    assert "charge (step) stored, 2 failures: 1\n" in shown
    assert ("ship (step) retrying until 2099-01-09 00:00:00+00:00, 2 failures: BankError: closed\n") in shown


def test_explain_names_the_signal_and_the_command_that_sends_it(on: Callable[..., Ran]) -> None:
    found = json.loads(on("jobs", "explain", "order:7").out)
    jsonschema.validate(found, schema("explanation"))
    (reason, *_) = found["reasons"]
    assert (reason["code"], found["eta"]) == ("SIGNAL", None)
    assert reason["remedy"] == "send the signal: pg-scheduler jobs signal order:7 approval JSON"


@pytest.mark.parametrize("width", [80, 200])
def test_table_of_steps_fits_the_width(
    on: Callable[..., Ran], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = on("jobs", "steps", "order:7", "-o", "table")
    assert max(map(len, ran.out.splitlines())) <= width
    assert ran.out == golden(GOLDEN / f"jobs-steps-{width}.txt", ran.out)
