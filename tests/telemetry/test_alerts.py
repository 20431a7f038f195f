"""The alerting rules: each fires when it should, stays quiet otherwise, and has a runbook entry."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT
from tests.support.cases import each_case
from tests.support.debian import required
from tests.support.prometheus import promtool
from tests.support.stories import NIGHTLY
from tools.reference.extension import complete_metrics

RULES = files("pg_scheduler") / "ops" / "alerts" / "pg_scheduler.rules.yaml"
NAMES = re.findall(r"^      - alert: (\w+)$", RULES.read_text(encoding="utf-8"), re.MULTILINE)
C, P = "pg_scheduler_cluster_", "pg_scheduler_"
ENDED = C + 'jobs_ended_total{job_name="mail",outcome="%s"}'
LATE = C + 'job_lateness_seconds_bucket{job_name="mail",le="%s"}'

Series = dict[str, str]

CASES: dict[str, tuple[str, Series, Series]] = {
    "NoWorker": (
        "3m",
        {C + 'workers{state="alive"}': "0x9", C + 'workers{state="dead"}': "2x9"},
        {C + 'workers{state="alive"}': "1x9", C + 'workers{state="dead"}': "0x9"},
    ),
    "JobsLate": (
        "5m",
        {C + 'oldest_due_seconds{job_name="mail"}': "61x9"},
        {C + 'oldest_due_seconds{job_name="mail"}': "59x9", C + 'oldest_due_seconds{job_name="x"}': "0x9"},
    ),
    "NameUnknown": (
        "4m",
        {C + 'jobs_unknown_name{job_name="mail"}': "1x20"},
        {C + 'jobs_unknown_name{job_name="mail"}': "0x20"},
    ),
    "Quarantined": ("70m", {C + "jobs_quarantined": "3x60 4x20"}, {C + "jobs_quarantined": "4x60 3x20"}),
    "FailureRatio": (
        "40m",
        {ENDED % "completed": "0+8x60", ENDED % "retried": "0+1x60", ENDED % "snoozed": "0+99x60"},
        {ENDED % "completed": "0+2x60", ENDED % "suspended": "0+18x60", ENDED % "failed": "0+1x60"},
    ),
    "Expiring": (
        "20m",
        {ENDED % "expired": "0x15 1x10", ENDED % "failed": "0x30"},
        {ENDED % "expired": "7x30", ENDED % "failed": "0+1x30"},
    ),
    "ScheduleOverdue": (
        "5m",
        {C + 'schedule_overdue_seconds{schedule="a"}': "61x9"},
        {C + 'schedule_overdue_seconds{schedule="a"}': "59x9"},
    ),
    "LatenessP99": (
        "30m",
        {LATE % "5.0": "0+90x60", LATE % "10.0": "0+100x60", LATE % "+Inf": "0+100x60"},
        {LATE % "5.0": "0+100x60", LATE % "10.0": "0+100x60", LATE % "+Inf": "0+100x60"},
    ),
    "SlotsFull": (
        "20m",
        {C + "slots_busy": "49x30", C + "slots": "50x30"},
        {C + "slots_busy": "47x30", C + "slots": "50x30"},
    ),
    "WorkerDied": (
        "5m",
        {P + "workers_declared_dead_total": "0 0 1x9", C + "last_death_timestamp_seconds": "-700x9"},
        {P + "workers_declared_dead_total": "1x9", C + "last_death_timestamp_seconds": "-700x9"},
    ),
    "LeaseLost": ("5m", {P + "leases_lost_total": "0 0 1x9"}, {P + "leases_lost_total": "1x9"}),
    "LoopBlocked": (
        "15m",
        {P + 'loop_blocked_seconds_total{job_name="new"}': "_x13 12x9"},
        {
            P + 'loop_blocked_seconds_total{job_name="old"}': "12x30",
            P + 'loop_blocked_seconds_total{job_name=""}': "0x30",
        },
    ),
    "WorkerNoListen": (
        "8m",
        {P + "listener_connected": "0x9", P + "slots": "25x9"},
        {P + "listener_connected": "0x9", P + "slots": "0x9"},
    ),
    "DatabaseErrors": (
        "10m",
        {P + 'service_errors_total{kind="transient",service="claimer"}': "0+9x20"},
        {P + 'service_errors_total{kind="transient",service="claimer"}': "0+3x20"},
    ),
    "SnapshotHeld": (
        "1m",
        {C + "oldest_transaction_seconds": "1801x9"},
        {C + "oldest_transaction_seconds": "1799x9"},
    ),
    "HotLost": ("40m", {C + "hot_update_ratio": "0.1x60"}, {C + "hot_update_ratio": "0.49x60"}),
    "TableGrows": (
        "8h",
        {C + 'table_bytes{table="scheduled_jobs"}': "0+10000000x600"},
        {C + 'table_bytes{table="scheduled_jobs"}': "9000000000x600"},
    ),
    "ExporterDown": (
        "5m",
        {'up{job="production/pg-scheduler-exporter"}': "0x9"},
        {'up{job="pg-scheduler"}': "1x9", 'up{job="other"}': "0x9", C + "collect_errors_total": "3x9"},
    ),
}


def test_every_rule_has_a_case() -> None:
    assert ["PgScheduler" + name for name in CASES] == NAMES


def test_rules_are_accepted_by_promtool() -> None:
    promtool("check", "rules", str(RULES))


@pytest.mark.slow
def test_every_rule_fires_in_its_case_only(tmp_path: Path) -> None:
    tests = [
        {
            "name": f"{name} {'fires' if fires else 'is quiet'}",
            "interval": "1m",
            "input_series": [{"series": key, "values": value} for key, value in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="PgScheduler{name}",alertstate="firing"}})',
                    "eval_time": time,
                    "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
                }
            ],
        }
        for name, (time, firing, quiet) in CASES.items()
        for fires, series in ((True, firing), (False, quiet))
    ]
    file = tmp_path / "tests.yaml"  # JSON is YAML
    file.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}),
        encoding="utf-8",
    )
    promtool("test", "rules", str(file))


@pytest.mark.parametrize("job", ["pg_scheduler", "pg-scheduler", "pg-scheduler-cluster"])
def test_target_that_is_down_is_found_by_the_name_of_its_job(job: str, tmp_path: Path) -> None:
    test = {
        "interval": "1m",
        "input_series": [{"series": f'up{{job="{job}"}}', "values": "0x9"}],
        "promql_expr_test": [
            {
                "expr": 'count(ALERTS{alertname="PgSchedulerExporterDown",alertstate="firing"})',
                "eval_time": "5m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        ],
    }
    file = tmp_path / "tests.yaml"
    file.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}),
        encoding="utf-8",
    )
    promtool("test", "rules", str(file))


BEFORE_GRACE = "4m30s"
"""The misfire grace time is 5 minutes by default: jobs that are due at 0 s are lost then."""

LOSSES: dict[str, tuple[str, Series]] = {
    "no worker claims the name": ("NameUnknown", {C + 'jobs_unknown_name{job_name="mail"}': "50x20"}),
    "its workers are too slow": ("JobsLate", {C + 'oldest_due_seconds{job_name="mail"}': "0+15x20"}),
    "there is no worker": ("NoWorker", {C + 'workers{state="alive"}': "0x20"}),
    "no planner plans the schedule": (
        "ScheduleOverdue",
        {C + 'schedule_overdue_seconds{schedule="a",task="mail"}': "0+15x20"},
    ),
    "the exporter cannot read the database": ("ExporterDown", {'up{job="pg-scheduler"}': "0x20"}),
    "its worker died, seen by the exporter": (
        "WorkerDied",
        {C + "last_death_timestamp_seconds": "0x4 60x20"},
    ),
    "its worker died": ("WorkerDied", {P + "workers_declared_dead_total": "0x4 1x20"}),
}
"""The ways in which jobs wait until they are lost, with the alert that fires before, and what a Prometheus
scrapes every 15 s from the moment at which they are due."""


@each_case("way", LOSSES)
def test_alert_fires_before_the_first_job_is_lost(way: str, tmp_path: Path) -> None:
    name, series = LOSSES[way]
    test = {
        "interval": "15s",
        "input_series": [{"series": key, "values": value} for key, value in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="PgScheduler{name}",alertstate="firing"}})',
                "eval_time": BEFORE_GRACE,
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
        ],
    }
    file = tmp_path / "tests.yaml"
    file.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [test]}),
        encoding="utf-8",
    )
    promtool("test", "rules", str(file))


def test_expired_jobs_of_a_failed_exporter_raise_no_alert_when_it_returns(tmp_path: Path) -> None:
    """Totals of the database are large at the first scrape."""
    firing = {"alertname": "PgSchedulerExpiring", "alertstate": "firing"}
    labels = ",".join(f'{key}="{value}"' for key, value in firing.items())
    test = {
        "interval": "1m",
        "input_series": [{"series": ENDED % "expired", "values": "_x5 700x20"}],
        "promql_expr_test": [{"expr": f"ALERTS{{{labels}}}", "eval_time": "15m", "exp_samples": []}],
    }
    file = tmp_path / "tests.yaml"
    file.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}),
        encoding="utf-8",
    )
    promtool("test", "rules", str(file))


def test_every_alert_has_an_entry_in_the_runbook_and_a_link_to_it() -> None:
    runbook = (files("pg_scheduler") / "ops" / "runbook" / "alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (\w+)$", runbook, re.MULTILINE) == NAMES
    links = re.findall(r"^          runbook_url: (\S+)$", RULES.read_text(encoding="utf-8"), re.MULTILINE)
    base = "https://pg-scheduler.github.io/pg-scheduler/operations/runbook.html#"
    assert links == [base + name.lower() for name in NAMES]


def test_page_lists_every_alert_and_states_their_number() -> None:
    page = complete_metrics()["operations/metrics"]
    table = page.partition("| Alert | Condition | For | Severity |\n")[2].partition("\n\n")[0]
    assert ["PgScheduler" + name for name in re.findall(r"^\| \[`(\w+)`\]", table, re.MULTILINE)] == NAMES
    unknown = "max without (instance) (pg_scheduler_cluster_jobs_unknown_name) > 0"
    assert (
        f"| [`NameUnknown`](runbook.md#pgschedulernameunknown) | `{unknown}` | 2 min | warning |\n" in table
    )
    assert re.findall(r"(\d+)\s+rules", page) == [str(len(NAMES))] * 2


@each_case("name", NAMES)
def test_every_alert_has_a_severity_and_texts(name: str) -> None:
    rule = RULES.read_text(encoding="utf-8").partition(f"- alert: {name}\n")[2].partition("- alert:")[0]
    assert re.search(r"severity: (critical|warning)\n", rule)
    for key in ("summary", "description"):
        assert re.search(rf'^          {key}: "[^"]+"$', rule, re.MULTILINE), key


def test_run_of_all_alerts_causes_each_one() -> None:
    """By the text of the module: its jobs are not to be registered here."""
    causes = (ROOT / "tools" / "alerts" / "causes.py").read_text(encoding="utf-8")
    assert sorted("PgScheduler" + name for name in re.findall(r'Cause\(\s*"(\w+)"', causes)) == sorted(NAMES)


@pytest.mark.slow
@NIGHTLY
def test_alert_fires_under_a_real_prometheus_and_ends_after_its_page_was_followed() -> None:
    """The run of all alerts, ``dev.py alerts``, takes half an hour; this is its shortest part."""
    required("prometheus")
    words = [sys.executable, "-m", "tools.alerts", "--way", "processes", "--only", "SnapshotHeld"]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "| PgSchedulerSnapshotHeld | fired" in ran.stdout
