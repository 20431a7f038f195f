"""SyncScheduler in a gunicorn that loads the application before it forks its workers."""

from __future__ import annotations

import json
import signal
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.sync.programs import TIMEOUT_S, gunicorn

pytestmark = pytest.mark.slow

WORKERS = 4

APPLICATION = """
import atexit, json, multiprocessing, os
from datetime import UTC, datetime

from pg_scheduler import job
from pg_scheduler.database.asyncpg_private import file_number, open_connections
from pg_scheduler.sync import SyncScheduler

atexit.register(lambda: os.write(1, f"exit {os.getpid()}\\n".encode()))  # after that of the scheduler


@job(name="web.work")
async def work(): ...


def sockets():
    return [os.fstat(file_number(each)).st_ino for each in open_connections(scheduler.db_pool)]


scheduler = SyncScheduler(os.environ["DATABASE_URL"])
scheduler.count_jobs()  # the master opens a connection before it forks
in_master = sockets()
all_workers = multiprocessing.get_context("fork").Barrier(4)


def app(environ, start_response):
    all_workers.wait(30)  # so each worker handles one of four requests
    job_id = scheduler.schedule(work, execution_time=datetime(2030, 1, 1, tzinfo=UTC))
    files = []
    for name in os.listdir("/dev/fd"):
        try:
            files.append(os.fstat(int(name)).st_ino)
        except OSError:  # that of the listing
            pass
    found = {"pid": os.getpid(), "job_id": job_id, "files": files}
    body = json.dumps(found | {"sockets": sockets(), "in_master": in_master}).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
"""


def get(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as response:
        found: dict[str, Any] = json.load(response)
        return found


async def test_each_worker_of_gunicorn_enqueues_on_sockets_of_its_own_and_exits(
    pool: asyncpg.Pool, dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "web.py").write_text(APPLICATION, encoding="utf-8")
    with gunicorn("web:app", tmp_path, dsn) as (process, address):
        with ThreadPoolExecutor(WORKERS) as threads:
            answers = list(threads.map(get, [address] * WORKERS))
        process.send_signal(signal.SIGTERM)
        out, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, log
    pids = {answer["pid"] for answer in answers}
    assert len(pids) == WORKERS
    assert {f"exit {pid}" for pid in pids} <= set(out.splitlines()), "a worker was killed: it did not exit"
    assert "SIGKILL" not in log
    assert "Traceback" not in log
    for one, other in combinations(answers, 2):
        assert not set(one["sockets"]) & set(other["sockets"])
    for answer in answers:
        assert answer["sockets"]
        assert answer["in_master"]
        assert not set(answer["files"]) & set(answer["in_master"])
    rows = await pool.fetch("SELECT job_id FROM scheduled_jobs")
    assert {row["job_id"] for row in rows} == {answer["job_id"] for answer in answers}
