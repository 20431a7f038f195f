"""A trigger of the application that refuses a new job fails the call that adds it, and no concurrent one."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.api.conftest import Make
from tests.support.guards import STATES, guard

CALLS = 8


async def work(number: int) -> None: ...


@pytest.mark.parametrize("state", STATES)
async def test_insert_that_is_refused_fails_no_concurrent_call(
    make: Make, pool: asyncpg.Pool, state: str
) -> None:
    scheduler = make()
    scheduler.register(work, name="work")
    await scheduler.initialize_db()
    raising = f"RAISE EXCEPTION 'not this one' USING ERRCODE = '{state}'"
    await guard(
        pool, f"IF NEW.job_id = '5' THEN {raising}; END IF; RETURN NEW;", on="INSERT", is_deferred=False
    )
    calls = [scheduler.enqueue(work, args=(number,), job_id=str(number)) for number in range(CALLS)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert "not this one" in str(answers.pop(5))
    assert answers == [str(number) for number in range(CALLS) if number != 5]
