"""The state of a job is the same for a row and for the statements that search and count."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from pg_scheduler.facts.job_state import state_of
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.jobs import count_states
from tests.support.world import HOUR, World

ROWS: dict[str, dict[str, Any]] = {
    "due": {"due": -HOUR},
    "scheduled": {"due": HOUR},
    "retrying": {"due": HOUR, "retry_count": 2},
    "blocked": {"blocked_on": "limit:api:"},
    "running": {"status": "running"},
    "completed": {"status": "completed"},
    "failed": {"status": "failed"},
    "quarantined": {"status": "failed", "error_message": "quarantined: 3 workers died"},
    "expired": {"status": "expired", "error_message": "late"},
    "cancelled": {"status": "cancelled", "error_message": "by a caller"},
}


@pytest.mark.parametrize("state", ROWS)
async def test_state_of_a_row_is_that_of_searches_and_counts(
    pool: asyncpg.Pool, world: World, state: str
) -> None:
    await world.job(state, "work", **ROWS[state])
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
