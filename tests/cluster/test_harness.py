"""The adapter for the public harness, as the harness starts and reads it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from benchmarks.harness.__main__ import HERE, OURS, ROOT, server_settings
from tests.support.patience import PATIENCE

FOLDER = HERE / f"{OURS}-bench"
REQUIRED = {
    *("claim_p50_ms", "claim_p95_ms", "claim_p99_ms"),
    *("enqueue_rate", "completion_rate", "queue_depth"),
}
"""The metrics that the harness wants from each adapter."""

COMPLETED = "SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'"


@pytest.mark.parametrize("pacing", ["harness", "adapter"])
async def test_adapter_runs_jobs_as_the_harness_paces_them_and_reports_metrics(
    dsn: str, pool: asyncpg.Pool, pacing: str
) -> None:
    settings = {"DATABASE_URL": dsn, "PYTHONPATH": str(ROOT), "SAMPLE_EVERY_S": "1", "WORKER_COUNT": "8"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(FOLDER / "main.py"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | settings | {"PRODUCER_PACING": pacing, "PRODUCER_RATE": "100"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    records: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(2 * PATIENCE):
            descriptor = json.loads(await process.stdout.readline())
            if pacing == "harness":
                process.stdin.write(b"ENQUEUE 30\nENQUEUE 20\n")
                await process.stdin.drain()
            # Jobs that ended before the first whole second are in no rate.
            seen = set[str]()
            while not seen >= REQUIRED or await pool.fetchval(COMPLETED) < 50:
                records.append(json.loads(await process.stdout.readline()))
                seen.add(records[-1]["metric"])
            if pacing == "harness":
                assert await pool.fetchval(COMPLETED) == 50
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    manifest = json.loads((FOLDER / "adapter.json").read_text(encoding="utf-8"))
    assert descriptor["kind"] == "descriptor"
    assert descriptor["system"] == manifest["system"] == OURS
    assert set(descriptor["event_tables"]) >= set(manifest["event_tables"])
    for name in (*manifest["event_tables"], *manifest["event_indexes"]):
        assert await pool.fetchval("SELECT to_regclass($1) IS NOT NULL", name), name
    assert {each["kind"] for each in records} == {"adapter"}
    assert all(each["instance_id"] == 0 and each["t"].endswith("Z") for each in records)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'failed'") == 0


def test_settings_of_the_harness_apply_to_a_server_at_its_port(tmp_path: Path) -> None:
    file = tmp_path / "postgresql.conf"
    file.write_text(
        "# comment\nmax_connections = 400\nlisten_addresses = '*'  # all\n\nwork_mem = 8MB\n",
        encoding="utf-8",
    )
    assert server_settings(file.read_text(encoding="utf-8"), 15555) == {
        "max_connections": "400",
        "work_mem": "8MB",
        "listen_addresses": "127.0.0.1",
        "port": "15555",
    }
