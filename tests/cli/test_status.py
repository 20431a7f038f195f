"""The commands status and stats, against real rows."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import jsonschema
import pytest

from pg_scheduler.cli.commands import pause_between_runs
from pg_scheduler.cli.status import sparkline
from tests.cli.conftest import Ran, Run, schema
from tests.conftest import Connection, run_on
from tests.docs.snippets import ROOT
from tests.support.golden import golden
from tests.support.inside import ExitCode
from tests.support.patience import PATIENCE
from tests.support.world import HOUR, World, populate

GOLDEN = Path(__file__).with_name("golden")
FIGURES = """
INSERT INTO scheduler_stats (bucket, span, job_name, counts, sums, run_hist, late_hist)
SELECT date_trunc('minute', now()) - minutes * interval '1 minute', 60, name,
    ARRAY [1, 4 * minutes, 3, 1, 0, 0, 0, 0, 0, 0, 0], ARRAY [2.4, 0.2],
    array_fill(0, ARRAY [20]) || 4 || array_fill(0, ARRAY [27]),
    array_fill(0, ARRAY [9]) || 4 || array_fill(0, ARRAY [38])
FROM unnest(ARRAY ['mail.send', 'report.build']) AS name, generate_series(0, 3) AS minutes
"""


def execute(dsn: str, *statements: str) -> None:
    async def run(connection: Connection) -> None:
        for statement in statements:
            await connection.execute(statement)

    run_on(dsn, run)


async def add_worker(world: World) -> None:
    await world.worker(names=["mail.send"], max_concurrent_jobs=25, running_jobs=3, lease=HOUR)


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.setenv("PG_SCHEDULER_TZ", "utc")
    return call


def test_strict_status_exits_with_1_while_no_worker_runs(on: Callable[..., Ran], dsn: str) -> None:
    ran = on("status", "--strict")
    assert ran.code == ExitCode.NEGATIVE
    assert "WORKER-NONE: no live worker runs jobs; start a worker" in ran.err
    assert on("status").code == 0
    populate(dsn, add_worker)
    ran = on("status", "--strict")
    assert ran.code == 0
    assert "All is well: 1 worker, 3 of 25 slots busy, nothing late." in ran.err
    areas = {row["area"]: row for row in ran.checked("area")}
    assert areas["workers"] == {
        "v": 1, "area": "workers", "severity": "ok", "text": "1 alive, 3 of 25 slots busy",
    }  # fmt: skip


def test_document_of_the_status_has_the_sentences(on: Callable[..., Ran], dsn: str) -> None:
    populate(dsn, add_worker)
    document = json.loads(on("status", "-o", "json").out)
    jsonschema.validate(document, schema("list"))
    assert document["severity"] == "ok"
    assert document["sentences"] == ["All is well: 1 worker, 3 of 25 slots busy, nothing late."]


@pytest.mark.parametrize("width", [80, 200])
def test_status_table_fits_the_width(
    on: Callable[..., Ran], dsn: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    populate(dsn, add_worker)
    name = "a.long.name.of.a.task.{}".format
    populate(dsn, lambda world: world.paused_task(name, count=5, actor="ada@host"))
    monkeypatch.setenv("COLUMNS", str(width))
    lines = on("status", "-o", "table").out.splitlines()
    shown = "".join(f"{line}\n" for line in lines if not line.startswith("tables"))
    assert shown == golden(GOLDEN / f"status-{width}.txt", shown)
    assert max(map(len, lines)) <= width


UNAVAILABLE = "postgresql://x@127.0.0.1:1/x"


def test_unavailable_database_exits_with_5(call: Run) -> None:
    assert call("status", "--dsn", UNAVAILABLE).code == ExitCode.UNAVAILABLE


def watch_twice(command: Sequence[str], dsn: str, part: str, stream: str) -> None:
    """Watch until two lines of a stream had a part, and interrupt."""
    none, pipe = subprocess.DEVNULL, subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", "pg_scheduler", *command, "--watch", "0.5", "-o", "table"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PG_SCHEDULER_DSN": dsn},
        stdout=pipe if stream == "stdout" else none, stderr=pipe if stream == "stderr" else none,
        stdin=none, text=True,
    )  # fmt: skip
    with getattr(process, stream) as lines:
        seen = 0
        for line in lines:
            seen += (is_repeated := part in line)
            if is_repeated and seen == 2:
                process.send_signal(signal.SIGINT)
    assert seen >= 2
    assert process.wait(2 * PATIENCE) == ExitCode.INTERRUPTED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "line_of_each"), [(("status",), "WORKER-NONE"), (("limits", "list"), "MAX STARTS")]
)
def test_watch_repeats_until_ctrl_c(dsn: str, command: tuple[str, ...], line_of_each: str) -> None:
    watch_twice(command, dsn, line_of_each, "stdout")


@pytest.mark.slow
@pytest.mark.parametrize("command", [("status",), ("limits", "list")])
def test_watch_goes_on_while_the_database_is_unavailable(command: tuple[str, ...]) -> None:
    watch_twice(command, UNAVAILABLE, "ConnectionRefusedError", "stderr")


def test_cancellation_that_a_driver_swallowed_ends_the_repetition() -> None:
    runs = 0

    async def repeat() -> None:
        nonlocal runs
        while True:
            runs += 1
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(PATIENCE)
            await pause_between_runs(0.01)

    async def cancel() -> None:
        task = asyncio.create_task(repeat())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
        assert task.cancelled()

    asyncio.run(cancel())
    assert runs == 1


def test_stats_by_name_and_by_outcome(on: Callable[..., Ran], dsn: str) -> None:
    execute(dsn, FIGURES)
    rows = {row["name"]: row for row in on("stats", "--since", "15m").checked("figures")}
    assert set(rows) == {"mail.send", "report.build"}
    mail = rows["mail.send"]
    assert (mail["scheduled"], mail["started"], mail["completed"], mail["failed"]) == (4, 24, 12, 4)
    assert mail["run_p50_s"] == pytest.approx(0.6), "the mean, because all are in one bucket"
    assert mail["late_p95_s"] is not None
    assert mail["trend"].strip("▁") == "█▆▃"
    outcomes = {row["outcome"]: row["jobs"] for row in on("stats", "--by", "outcome").checked("outcome")}
    assert outcomes == {"completed": 24, "failed": 8}
    assert [row["name"] for row in on("stats", "--name", "mail.send").checked("figures")] == ["mail.send"]
    assert on("stats", "--since", "1d", "-o", "table").out.splitlines()[1].split()[:2] == ["mail.send", "24"]


def test_figures_state_which_workers_count_nothing(on: Callable[..., Ran], dsn: str) -> None:
    populate(dsn, add_worker)
    execute(dsn, """UPDATE scheduler_workers SET settings = '{"statistics": false}'""")
    text = "statistics are off (statistics=False): w1 on host"
    for command in (("stats",), ("stats", "--by", "outcome"), ("tasks", "list")):
        ran = on(*command, "-o", "json")
        assert json.loads(ran.out)["uncounted"] == text
        assert text in ran.err
    assert text in on("status").out


@pytest.mark.parametrize("options", [("--since", "soon"), ("--since", "91d"), ("--by", "worker")])
def test_wrong_options_of_stats_exit_with_2(on: Callable[..., Ran], options: tuple[str, str]) -> None:
    assert on("stats", *options).code == ExitCode.USAGE


def test_sparkline_is_in_proportion() -> None:
    assert sparkline([0, 1, 7, 14]) == "▁▁▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""
