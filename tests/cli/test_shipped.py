"""The commands that print files of the package."""

from __future__ import annotations

from importlib.resources import files

from tests.cli.conftest import Run


def test_alerts_are_printed(call: Run) -> None:
    ran = call("alerts")
    assert ran.code == 0
    assert ran.out == (files("pg_scheduler") / "ops/alerts/pg_scheduler.rules.yaml").read_text()
