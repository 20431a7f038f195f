"""Tables of the commands that other modules do not compare, at 80 columns and, wide, at 200."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import Scheduler, embedded
from pg_scheduler.triggers import Cron
from tests.cli.conftest import Run
from tests.conftest import Admin, Connection, database, run_on
from tests.support.errors import count_errors
from tests.support.golden import golden

GOLDEN = Path(__file__).with_name("golden")
START = datetime(2099, 3, 28, tzinfo=UTC)
"""The day before a clock change in Berlin."""

ERRORS = [
    {
        "attempt": 2,
        "outcome": "error",
        "started_at": "2026-01-02T04:00:00+00:00",
        "ended_at": "2026-01-02T04:00:30+00:00",
        "worker_id": "w1",
        "error_type": "smtplib.SMTPServerDisconnected",
        "message": "the server at 192.0.2.1 closed the connection",
        "traceback": "Traceback (most recent call last):\n  mail.py, line 7, in send",
        "log": ["connected", "sent the greeting"],
    }
]
ROWS = """
INSERT INTO scheduler_workers (worker_id, hostname, pid, version, max_concurrent_jobs, running_jobs, names,
    state, health, settings, metadata, identity, started_at, last_beat, lease_until)
VALUES ('0192f0c1-7a52-7cc3-b3a4-5d6f1e0a9b77', 'worker-one.example.com', 4711, '2026.1', 25, 3,
    ARRAY ['mail.send', 'reports.build'], 'running', '{"loop_lag_s": 0.0021, "is_listening": true}',
    '{"limits": []}', '{"zone": "b"}', 'one', '2026-01-01Z', '2026-01-02Z', '2099-01-01Z');
INSERT INTO scheduler_workers (worker_id, hostname, pid, version, max_concurrent_jobs, started_at, last_beat,
    lease_until)
VALUES ('w2', 'host', 7, '2025.12', 5, '2026-01-01 01:00Z', '2026-01-01 02:00Z', '2026-01-01 03:00Z');
INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, priority, attempt, max_retries,
    created_at, started_at, finished_at, worker_id, error_message, task_data)
SELECT 'mail:' || n, 'mail.send', '2026-01-02 04:00Z', 'failed', 5, 2, 1, '2026-01-01Z',
    '2026-01-02 04:00Z', '2026-01-02 04:00:30Z', 'w1',
    'smtplib.SMTPServerDisconnected: the server at 192.0.2.' || n || ' closed the connection',
    '{"kwargs": {"to": "ada@example.com"}, "metadata": {"tags": ["red", "blue"], "tenant": 7}}'
FROM generate_series(1, 3) AS n;
UPDATE scheduler_schedules SET created_at = '2026-01-01Z', updated_at = '2026-01-02Z';
UPDATE scheduler_schedules SET last_fire_at = '2099-03-27 07:00Z', last_job_id = 'job', runs = 1,
    note = 'quarter'
WHERE schedule_id = 'daily';
DELETE FROM scheduler_audit;
INSERT INTO scheduler_audit (at, actor, via, action, subject, details)
VALUES ('2026-01-02Z', 'ada@host', 'cli', 'update_schedule', 'daily',
    '{"before": {"described": "at 07:00"}, "after": {"described": "at 08:00"}}');
INSERT INTO scheduler_stats (bucket, span, job_name, counts, sums, run_hist, late_hist)
SELECT date_trunc('minute', now()) - interval '10 minutes', 60, name,
    ARRAY [12, 9, 5, 1, 3, 0, 0, 0, 0, 0, 0], ARRAY [4.5, 0.1],
    array_fill(0, ARRAY [20]) || 9 || array_fill(0, ARRAY [27]),
    array_fill(0, ARRAY [10]) || 9 || array_fill(0, ARRAY [37])
FROM unnest(ARRAY ['mail.send', 'reports.build']) AS name;
"""
TRIGGERS = {"daily": Cron("30 2 * * *", timezone="Europe/Berlin"), "invoices:acme": Cron("0 8 * * 1-5")}
COMMANDS = {
    "jobs-errors": ("jobs", "errors"),
    "jobs-explain": ("jobs", "explain", "mail:1"),
    "jobs-show": ("jobs", "show", "mail:1"),
    "schedules": ("schedules", "list"),
    "schedules-calendar": ("schedules", "calendar", "--from", "2099-03-29T00:00Z"),
    "schedules-preview": ("schedules", "preview", "daily", "-n", "3"),
    "schedules-show": ("schedules", "show", "daily"),
    "stats": ("stats", "--since", "30d"),
    "workers": ("workers", "list"),
    "workers-show": ("workers", "show", "0192f0c1-7a52-7cc3-b3a4-5d6f1e0a9b77"),
}


@pytest.fixture(scope="module")
def filled(server: embedded.Server, server_admin: Admin, template: str) -> Iterator[str]:
    """The DSN of a database with schedules, failed jobs, workers and statistics."""
    with database(server_admin, template) as name:
        dsn = server.dsn(name)

        async def fill(connection: Connection) -> None:
            async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
                scheduler = Scheduler(pool)
                for schedule_id, trigger in TRIGGERS.items():
                    await scheduler.schedules.add(
                        "reports.build", trigger, schedule_id=schedule_id, start=START
                    )
            await connection.execute(ROWS)
            await connection.execute("UPDATE scheduled_jobs SET errors = $1", json.dumps(ERRORS))
            await count_errors(connection)

        run_on(dsn, fill)
        yield dsn


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("width", [80, 200])
def test_table_fits_the_width(
    call: Run, filled: str, name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = call(*COMMANDS[name], "--dsn", filled, "--tz", "utc", "-o", "table" if width == 80 else "wide")
    assert ran.out == golden(GOLDEN / f"{name}-{width}.txt", ran.out), ran.err
    assert width == 200 or name.endswith("-show") or max(map(len, ran.out.splitlines())) <= width
