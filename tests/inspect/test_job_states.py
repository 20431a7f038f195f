"""The state of a job is the same for a row and for the statements that search and count."""

from __future__ import annotations

import asyncpg
import pytest

from pg_scheduler.facts.job_state import state_of
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.jobs import count_states

NOT_YET = "execution_time, retry_count) VALUES ($1, 'work', now() + interval '1 hour'"
ENDED = "execution_time, status, finished_at, error_message) VALUES ($1, 'work', now()"

ROWS = {
    "due": "execution_time) VALUES ($1, 'work', now() - interval '1 hour')",
    "scheduled": f"{NOT_YET}, 0)",
    "retrying": f"{NOT_YET}, 2)",
    "blocked": "execution_time, blocked_on) VALUES ($1, 'work', now(), 'limit:api:')",
    "running": "execution_time, status, started_at, worker_id, attempt) VALUES ($1, 'work', now(), 'running',"
    " now(), 'w1', 1)",
    "completed": "execution_time, status, finished_at) VALUES ($1, 'work', now(), 'completed', now())",
    "failed": f"{ENDED}, 'failed', now(), 'no')",
    "quarantined": f"{ENDED}, 'failed', now(), 'quarantined: 3 workers died')",
    "expired": f"{ENDED}, 'expired', now(), 'late')",
    "cancelled": f"{ENDED}, 'cancelled', now(), 'by a caller')",
}


@pytest.mark.parametrize("state", ROWS)
async def test_state_of_a_row_is_that_of_searches_and_counts(pool: asyncpg.Pool, state: str) -> None:
    await pool.execute(f"INSERT INTO scheduled_jobs (job_id, job_name, {ROWS[state]}", state)
    inspector = Inspector(pool)
    job = await inspector.get_job(state)
    assert job is not None
    now = await pool.fetchval("SELECT now()")
    assert state_of(job, now) == state
    searched = "failed" if state == "quarantined" else state
    found = await inspector.search_jobs(f"status:{searched}")
    assert [each.job_id for each in found.items] == [state]
    counts = {name: count.number for name, count in (await count_states(inspector)).items() if name}
    assert {name for name, number in counts.items() if number} <= {searched}
    assert counts.get(searched, 1) == 1
