"""The supervisor of worker processes, with small programs in their place."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from pg_scheduler.cli.errors import CommandError
from pg_scheduler.cli.settings import REPORT_FD
from pg_scheduler.cli.worker.stop import StopRequest
from pg_scheduler.cli.worker.supervisor import (
    HealthReports,
    Supervisor,
    open_report_pipe,
    read_report,
    send_reports,
)
from tests.support import inside
from tests.support.inside import ExitCode, Health, HealthCheck
from tests.support.patience import PATIENCE

READY = Health("running", 25, 2, (HealthCheck("lease", True, "trusted", ("ready",)),))
STALE = Health("running", 25, 3, (HealthCheck("lease", False, "not trusted", ("ready",)),))

PROGRAM = """
import os, signal, sys, time
pipe = os.fdopen(int(os.environ["PG_SCHEDULER_REPORT_FD"]), "w")
runs = open({log!r}, "a"); runs.write(str(os.getpid()) + "\\n"); runs.close()
n = len(open({log!r}).read().split())
def report(line):
    pipe.write(line + "\\n"); pipe.flush()
def wait():
    signal.pause()
"""


def supervise(
    code: str, path: Path, *, count: int = 1, ends_when_done: bool = False
) -> tuple[Supervisor, StopRequest]:
    stop = StopRequest()
    command = [sys.executable, "-S", "-c", PROGRAM.format(log=str(path)) + code]
    return Supervisor([command] * count, dict(os.environ), stop, ends_when_done=ends_when_done), stop


async def wait_for(condition: object) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # type: ignore[operator] # noqa: ASYNC110 - processes raise no event
            await asyncio.sleep(0.01)  # until the processes have come so far


def runs(path: Path) -> list[int]:
    return [int(line) for line in path.read_text(encoding="utf-8").split()] if path.exists() else []


@pytest.mark.slow
async def test_failed_process_is_started_again_with_growing_delays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pg_scheduler")
    supervisor, stop = supervise("sys.exit(1) if n < 3 else wait()", tmp_path / "runs")
    running = asyncio.create_task(supervisor.run())
    await wait_for(lambda: len(runs(tmp_path / "runs")) == 3)
    stop.receive(signal.SIGTERM)
    await running
    delays = [record.args[2] for record in caplog.records if "started again" in record.msg]  # type: ignore[index]
    assert delays == [0.5, 1.0]


async def test_processes_are_recycled_without_delay_and_end_when_done(tmp_path: Path) -> None:
    line = json.dumps(asdict(READY) | {"is_recycling": True})
    supervisor, stop = supervise(
        f"if n < 4: report({line!r})", tmp_path / "runs", count=2, ends_when_done=True
    )
    await supervisor.run()
    assert len(runs(tmp_path / "runs")) in {4, 5}  # two processes may count the same runs
    assert stop.reason is None


async def test_exit_code_that_no_restart_repairs_ends_all_processes(tmp_path: Path) -> None:
    supervisor, stop = supervise("sys.exit(6) if n == 2 else wait()", tmp_path / "runs", count=2)
    with pytest.raises(CommandError, match="cannot begin its work") as caught:
        await supervisor.run()
    assert caught.value.code is ExitCode.SCHEMA
    assert stop.reason in {"process 1 ended with exit code 6", "process 2 ended with exit code 6"}


async def test_same_exit_code_of_a_process_that_was_ready_is_restarted(tmp_path: Path) -> None:
    line = json.dumps(asdict(READY))
    supervisor, stop = supervise(f"report({line!r}); wait() if n == 2 else sys.exit(6)", tmp_path / "runs")
    running = asyncio.create_task(supervisor.run())
    await wait_for(lambda: len(runs(tmp_path / "runs")) == 2)
    stop.receive(signal.SIGTERM)
    await running


async def test_signals_are_forwarded_and_the_second_one_too(tmp_path: Path) -> None:
    code = """
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
signal.signal(signal.SIGUSR2, lambda *_: open({usr2!r}, "w").close())
open({ready!r}, "w").close()
while len(got) < 2: wait()
""".format(usr2=str(tmp_path / "usr2"), ready=str(tmp_path / "ready"))
    supervisor, stop = supervise(code, tmp_path / "runs")
    running = asyncio.create_task(supervisor.run())
    await wait_for((tmp_path / "ready").exists)
    supervisor.send(signal.SIGUSR2)
    await wait_for((tmp_path / "usr2").exists)
    stop.receive(signal.SIGTERM)
    await wait_for(lambda: supervisor.reports.health().state == "draining")
    assert not running.done()
    stop.receive(signal.SIGINT)
    await running
    assert stop.is_hurried


def reported(*, is_draining: bool | None, is_recycling: bool = False) -> str:
    return json.dumps({**asdict(READY), "is_draining": is_draining, "is_recycling": is_recycling})


async def test_drain_holds_for_processes_that_begin_until_a_worker_is_resumed(tmp_path: Path) -> None:
    code = f"""
drains = open({str(tmp_path / "drains")!r}, "a")
def drain(*_): print(n, file=drains, flush=True)
begin = {str(tmp_path / "begin")!r}
if n == 1:  # it was started before the drain, and handles no signal yet
    while not os.path.exists(begin): time.sleep(0.01)
signal.signal(signal.SIGUSR1, drain)
if n < 3:  # the signal has come before the first report
    signal.sigwait([signal.SIGUSR1]); drain()
report({reported(is_draining=None)!r})
if n < 3:
    report({reported(is_draining=True)!r})
if n == 2: report({reported(is_draining=False)!r})  # resumed
if n < 3:
    report({reported(is_draining=None, is_recycling=True)!r})
else:
    report({reported(is_draining=False)!r})
    wait()
"""
    supervisor, stop = supervise(code, tmp_path / "runs")
    running = asyncio.create_task(supervisor.run())
    await wait_for(lambda: len(runs(tmp_path / "runs")) == 1)
    supervisor.drain()
    (tmp_path / "begin").touch()
    await wait_for(lambda: len(runs(tmp_path / "runs")) == 3 and supervisor.reports.has(0))
    stop.receive(signal.SIGTERM)
    await running
    assert runs(tmp_path / "drains") == [1, 2], "the third process follows one that was resumed"


def test_health_of_processes_names_the_one_that_fails() -> None:
    reports = HealthReports(2)
    health = reports.health()
    assert (health.state, health.ready, health.live) == ("starting", False, True)
    reports.set(0, READY)
    reports.set(1, READY)
    health = reports.health()
    assert (health.ready, health.slots, health.slots_busy) == (True, 50, 4)
    reports.set(1, STALE)
    health = reports.health()
    assert not health.ready
    assert "process 2: not trusted" in [check.text for check in health.checks]
    reports.set(0, None)
    assert "1 of 2 running" in [check.text for check in reports.health().checks]
    assert not reports.health().started


def test_silent_process_is_not_live(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    inside.replace(monkeypatch, supervisor_time=lambda: now)
    reports = HealthReports(1)
    reports.set(0, READY)
    now = 29.0
    assert reports.health().live
    now = 31.0
    assert not reports.health().live
    assert "process 1 has not reported for 31 s" in [check.text for check in reports.health().checks]


class Source:
    def health(self) -> Health:
        return READY


def test_reports_arrive_and_the_last_one_states_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv(REPORT_FD, str(writing))
    with send_reports(open_report_pipe(), Source(), pytest.fail, lambda: True) as ending:
        assert REPORT_FD not in os.environ
        ending.is_recycling = True
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().splitlines()
    assert read_report(lines[-1]) == (READY, True, True)


@pytest.mark.slow
def test_end_of_the_supervisor_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv(REPORT_FD, str(writing))
    orphaned = threading.Event()
    with send_reports(open_report_pipe(), Source(), orphaned.set, lambda: False):
        os.close(reading)
        assert orphaned.wait(PATIENCE)


def test_signal_that_comes_twice_at_once_counts_once_and_later_cancels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GNU timeout signals its child and then the process group, in which the child is too."""
    times = iter((100.0, 100.001, 100.09, 100.11))
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    stop = StopRequest()
    states = []
    for _ in range(4):
        stop.receive(signal.SIGTERM)
        states.append(stop.is_hurried)
    assert states == [False, False, False, True]
