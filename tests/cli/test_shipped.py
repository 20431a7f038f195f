"""The commands that print files of the package."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from pg_scheduler.cli.errors import ExitCode
from tests.cli.conftest import Run


def test_alerts_are_printed(call: Run) -> None:
    ran = call("alerts")
    assert ran.code == 0
    assert ran.out == (files("pg_scheduler") / "ops/alerts/pg_scheduler.rules.yaml").read_text()


def test_dashboards_are_listed_and_printed(call: Run) -> None:
    names = call("grafana").out.split()
    assert names == ["database", "overview", "schedules", "tasks", "workers"]
    for name in names:
        assert json.loads(call("grafana", name).out)["uid"] == f"pg-scheduler-{name}"


@pytest.mark.parametrize(
    ("name", "hint"), [("worker", "did you mean workers?"), ("../x", "dashboards: database, overview")]
)
def test_unknown_dashboard_is_not_found(call: Run, name: str, hint: str) -> None:
    ran = call("grafana", name)
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert f"no dashboard is named '{name}'; {hint}" in ran.err
