"""The numbers of jobs by state: what a search of the state finds, within bounds."""

from __future__ import annotations

import asyncpg
import pytest

from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.jobs import StateCount, count_states
from pg_scheduler.inspect.search.terms import SearchStatus
from tests.inspect.test_search_jobs import fill
from tests.support import inside

JOBS = 3_000


@pytest.fixture
async def inspector(pool: asyncpg.Pool) -> Inspector:
    await fill(pool, JOBS)
    return Inspector(pool)


async def test_numbers_are_those_of_the_searches_of_the_states(inspector: Inspector) -> None:
    counts = await count_states(inspector)
    assert set(counts) == {"", *(each.value for each in SearchStatus)} - {"pending"}
    assert counts.pop("") == StateCount(JOBS, is_estimated=True)
    assert counts.pop("completed") == StateCount(JOBS // 6, is_estimated=True)
    # Of running jobs, the data has some that are due later, which no worker starts.
    assert counts.pop("running").number == JOBS // 6
    for state, count in counts.items():
        found = await inspector.search_jobs(f"status:{state}", limit=1000)
        assert (count, found.is_complete) == (StateCount(found.found), True), state
        assert count.number > 0, state


async def test_numbers_that_reach_a_bound_are_marked(
    inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, unfinished_rows=5)
    inside.replace(monkeypatch, unsuccessful_rows=30)
    counts = await count_states(inspector)
    later = ("scheduled", "sleeping", "awaiting", "retrying")
    for state in ("due", "running", *later, "blocked", "failed", "expired", "cancelled"):
        assert counts[state].is_capped, state
    assert counts["blocked"].number == 5
    assert sum(counts[each].number for each in ("failed", "expired", "cancelled")) == 30
    numbers = [counts[state].number for state in ("due", "running", *later)]
    assert sum(numbers) == 30, "five of three priorities, now and later"


async def test_numbers_without_an_index_or_statistics_are_missing(
    inspector: Inspector, pool: asyncpg.Pool
) -> None:
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    counts = await count_states(inspector)
    assert {"failed", "expired", "cancelled", "completed"} & set(counts) == set()
    assert counts["blocked"].number > 0
    await pool.execute("TRUNCATE scheduled_jobs CASCADE")
    counted = {"due", "running", "scheduled", "sleeping", "awaiting", "retrying", "blocked"}
    assert set(await count_states(inspector)) == counted
