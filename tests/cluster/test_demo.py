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

from examples.demo.checks import PERIODIC, Verdict, judge
from examples.demo.ledger import Run

ROOT = Path(__file__).resolve().parents[2]
DEMO = (sys.executable, "-m", "examples.demo")
INTERRUPTED = 130


@pytest.mark.timeout(90)
def test_the_demo_loses_nothing_and_doubles_nothing() -> None:
    # Real time: the story takes some twenty seconds, and the user was promised less than thirty.
    began = time.monotonic()
    done = subprocess.run(DEMO, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    took = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert took < 30
    assert "is killed with SIGKILL while it renders" in done.stdout
    assert "nothing lost: 2,100 of 2,100 one-off jobs completed" in done.stdout
    assert re.search(r"nothing doubled: 0 of 2,1\d\d jobs completed twice", done.stdout)
    assert "FAILED" not in done.stdout


async def test_ctrl_c_ends_the_demo_and_leaves_nothing(empty_dsn: str) -> None:
    environment = os.environ | {"PG_SCHEDULER_DSN": empty_dsn}
    demo = await asyncio.create_subprocess_exec(
        *DEMO, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert demo.stdout is not None
    async with asyncio.timeout(20):
        await demo.stdout.readuntil(b"reminders are scheduled")
        demo.send_signal(signal.SIGINT)
        out, err = await demo.communicate()
    assert demo.returncode == INTERRUPTED, out + err
    assert out.endswith(b"stopped\n")
    assert err == b""
    connection = await asyncpg.connect(empty_dsn)
    try:
        assert not await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'demo_%'")
    finally:
        await connection.close()


NOW = datetime(2030, 1, 1, tzinfo=UTC)
SOUND = [
    Run("a", "video", 1, "node-1", NOW, NOW, None),
    Run("a", "video", 2, "node-2", NOW, NOW + timedelta(seconds=9), "done"),
    Run("b", "reminder", 1, "node-2", NOW, NOW, "done"),
    *(Run("c", "broken", attempt, "node-2", NOW, NOW, "failed") for attempt in (1, 2, 3)),
    *(
        Run(f"{kind} {number}", kind, 1, "node-2", NOW + number * step, NOW + number * step, "done")
        for kind, step in PERIODIC.items()
        for number in range(3)
    ),
]


def verdict(runs: list[Run]) -> Verdict:
    expected = {"a": "video", "b": "reminder", "c": "broken"}
    return judge(expected, runs, ["node-1", "node-2"], "node-1", NOW + timedelta(seconds=5))


def test_the_verdict_on_a_sound_ledger_is_good() -> None:
    assert verdict(SOUND).holds


@pytest.mark.parametrize("missing", [run for run in SOUND if run.outcome and run.job_id != "interval 0"])
def test_whatever_is_missing_makes_the_verdict_bad(missing: Run) -> None:
    ends = {"cron 0", "cron 2", "interval 2"}  # a window less at either end is no gap
    assert verdict([run for run in SOUND if run != missing]).holds is (missing.job_id in ends)


@pytest.mark.parametrize("twice", [run for run in SOUND if run.outcome])
def test_whatever_ended_twice_makes_the_verdict_bad(twice: Run) -> None:
    assert not verdict([*SOUND, twice]).holds
