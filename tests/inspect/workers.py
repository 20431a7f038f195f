"""Rows of workers that do not run."""

from __future__ import annotations

from typing import Any

import asyncpg


async def add_worker(pool: asyncpg.Pool | asyncpg.Connection, worker_id: str = "w1", **columns: Any) -> None:
    """Insert the row of a worker that claims "work", with one free slot of two."""
    values = {
        "worker_id": worker_id,
        "hostname": "host",
        "pid": 1,
        "version": "1",
        "max_concurrent_jobs": 2,
        "running_jobs": 1,
        "names": ["work"],
        **columns,
    }
    names = ", ".join(values)
    places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    await pool.execute(
        f"INSERT INTO scheduler_workers ({names}, started_at, last_beat, lease_until)"
        f" VALUES ({places}, now(), now(), now() + interval '1 minute')",
        *values.values(),
    )
