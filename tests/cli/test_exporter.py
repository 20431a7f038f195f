"""The command exporter, as a process of its own and in this one."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Run
from tests.support.inside import ExitCode, hide_libraries
from tests.support.patience import PATIENCE
from tests.support.prometheus import Exposition, promtool
from tests.support.tables import rename
from tests.support.world import HOUR, populate


@pytest.fixture
def started(dsn: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start an exporter; its process and its URL."""

    populate(dsn, lambda world: world.job("a", "exported.job", due=-HOUR))
    command = [sys.executable, "-m", "pg_scheduler", "exporter", "--port", "0"]
    environment = {**os.environ, "PG_SCHEDULER_DSN": dsn}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            found = re.fullmatch(r"serving (http://127\.0\.0\.1:\d+/metrics)\n", line)
            assert found, line
            yield process, found[1]
        finally:
            process.kill()


def read(url: str) -> Exposition:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return Exposition(answer.read().decode())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_exporter_serves_the_metrics_of_all_workers_until_a_signal(
    started: tuple[subprocess.Popen[str], str], number: signal.Signals
) -> None:
    process, url = started
    found = read(url)
    assert found.by("pg_scheduler_cluster_jobs_due", "job_name") == {"exported.job": 1}
    assert found["pg_scheduler_cluster_collect_errors_total"] == 0
    promtool("check", "metrics", text=found.text)
    process.send_signal(number)
    assert process.wait(PATIENCE) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


@pytest.mark.slow
def test_exporter_logs_why_it_collects_nothing(started: tuple[subprocess.Popen[str], str], dsn: str) -> None:
    process, url = started
    rename(dsn, "job_name")
    assert read(url)["pg_scheduler_cluster_collect_errors_total"] == 1
    process.terminate()
    assert process.wait(PATIENCE) == 0
    assert process.stderr is not None
    log = process.stderr.read()
    assert "metrics of the cluster could not be collected" in log
    assert "job_name" in log


def test_used_port_is_refused(call: Run, dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = call("exporter", "--dsn", dsn, "--port", str(port))
    assert ran.code == ExitCode.REFUSED
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in ran.err


def test_exporter_ends_if_the_tables_are_missing(call: Run, empty_dsn: str) -> None:
    assert call("exporter", "--dsn", empty_dsn, "--port", "0").code == ExitCode.SCHEMA


def test_missing_extra_is_named(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_libraries(monkeypatch)
    ran = call("exporter")
    assert ran.code == ExitCode.USAGE
    assert "pip install 'pg-scheduler[metrics]'" in ran.err
