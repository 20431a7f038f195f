"""The demo, run as a new user runs it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler.cli.demo.jobs import Attempt
from pg_scheduler.cli.demo.report import PERIODIC, Report, build_report
from tests.support.patience import PATIENCE
from tools.installed_demo import open_dashboard

ROOT = Path(__file__).resolve().parents[2]
DEMO = (sys.executable, "-m", "pg_scheduler", "demo")
EXIT_INTERRUPTED = 130


@pytest.mark.timeout(240)
def test_demo_completes_every_job_exactly_once_and_then_serves_the_dashboard() -> None:
    # Runs in real time: about twenty seconds.
    out, page = "", ""
    command = [*DEMO, "--dashboard", "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            out += line
            if link := re.search(r"http://\S+", line):
                page = read_until(link[0], "shop.legacy")
                running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        assert (running.wait(PATIENCE), running.stderr.read()) == (0, ""), out
    assert "cron: " in out
    assert "quarantined" in page
    assert "with SIGKILL while it runs" in out
    assert "which frees its liveness lock" in out
    assert "long before its lease of 60 s expires" in out
    (reclaimed,) = re.findall(r"orphaned jobs of node-\d restarted, ([\d.]+) s after the kill", out)
    assert float(reclaimed) < 30  # within the demo, whose lease is 60 s
    assert "nothing lost: 2,100 of 2,100 one-off jobs completed" in out
    assert re.search(r"nothing doubled: 0 of 2,1\d\d jobs completed twice", out)
    assert "FAILED" not in out


def read_until(link: str, text: str) -> str:
    """Send the form of the one-time link, and read its page about errors until it contains the text."""
    browser = open_dashboard(link)
    page, deadline = "", time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with browser.open(link.partition("?")[0] + "errors?state=quarantined", timeout=PATIENCE) as answer:
            page = str(answer.read().decode())
        if text in page:
            return page
    raise AssertionError(f"{text!r} is not in {page}")


async def test_demo_removes_its_schema_when_interrupted(empty_dsn: str) -> None:
    environment = os.environ | {"PG_SCHEDULER_DSN": empty_dsn}
    demo = await asyncio.create_subprocess_exec(
        *DEMO, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert demo.stdout is not None
    async with asyncio.timeout(PATIENCE):
        await demo.stdout.readuntil(b"one due every")
        demo.send_signal(signal.SIGINT)
        out, err = await demo.communicate()
    assert demo.returncode == EXIT_INTERRUPTED, out + err
    assert out.endswith(b"stopped\n")
    assert err == b""
    connection = await asyncpg.connect(empty_dsn)
    try:
        assert not await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'demo_%'")
    finally:
        await connection.close()


NOW = datetime(2030, 1, 1, tzinfo=UTC)
COMPLETE = [
    Attempt("a", "video", 1, "node-1", NOW, NOW, None),
    Attempt("a", "video", 2, "node-2", NOW, NOW + timedelta(seconds=9), "done"),
    Attempt("b", "reminder", 1, "node-2", NOW, NOW, "done"),
    *(Attempt("c", "broken", attempt, "node-2", NOW, NOW, "failed") for attempt in (1, 2, 3)),
    *(
        Attempt(f"{kind} {number}", kind, 1, "node-2", NOW + number * step, NOW + number * step, "done")
        for kind, step in PERIODIC.items()
        for number in range(3)
    ),
]


def report(attempts: list[Attempt]) -> Report:
    expected = {"a": "video", "b": "reminder", "c": "broken"}
    return build_report(expected, attempts, ["node-1", "node-2"], "node-1", NOW + timedelta(seconds=5))


def test_demo_report_passes_when_the_ledger_is_complete() -> None:
    assert report(COMPLETE).passed


@pytest.mark.parametrize(
    "missing", [each for each in COMPLETE if each.outcome and each.job_id != "interval 0"]
)
def test_demo_report_fails_when_an_attempt_is_missing(missing: Attempt) -> None:
    edges = {"cron 0", "cron 2", "interval 2"}  # a missing first or last fire time is not a gap
    assert report([each for each in COMPLETE if each != missing]).passed is (missing.job_id in edges)


@pytest.mark.parametrize("twice", [each for each in COMPLETE if each.outcome])
def test_demo_report_fails_when_an_attempt_finished_twice(twice: Attempt) -> None:
    assert not report([*COMPLETE, twice]).passed
