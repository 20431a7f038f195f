"""No two transactions of the application deadlock if each makes one call about jobs that wait for others.

Such a transaction holds the jobs for which new ones wait, and its commit writes their rows. The orders of all
statements and commits are exhausted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from typing import TypeAlias

import asyncpg
import pytest

from pg_scheduler import Connection
from tests.store.protocol import Op, interleave
from tests.store.test_child_waits import Waits, save
from tests.support.dependencies import child
from tests.support.inside import Extras, JobWriter, Store
from tests.support.store import new_job
from tests.support.stories import LONG, NIGHTLY

pytestmark = pytest.mark.slow

KEYED = Extras(unique_key="key", blocked_on="after")
"""The job ``x`` has this key."""

Call: TypeAlias = Callable[[Store, Connection], Awaitable[object]]

ADDING: dict[str, Call] = {
    "add a job after x": lambda it, conn: JobWriter(it).insert([child("new", "x")], conn),
    "add a job after p and x": lambda it, conn: JobWriter(it).insert([child("new", "p", "x")], conn),
    "add a job after a and x": lambda it, conn: JobWriter(it).insert([child("new", "a", "x")], conn),
}

REPLACING: dict[str, Call] = {
    "replace x": lambda it, conn: JobWriter(it).replace([new_job("x", priority=1)], conn),
    "replace x after p": lambda it, conn: JobWriter(it).replace([child("x", "p")], conn),
    "replace a and x after p": lambda it, conn: JobWriter(it).replace(
        [child("x", "p"), child("a", "p")], conn
    ),
    "replace x, and a after p": lambda it, conn: JobWriter(it).replace([new_job("x"), child("a", "p")], conn),
    "replace a, and x after p": lambda it, conn: JobWriter(it).replace([new_job("a"), child("x", "p")], conn),
}

BY_KEY: dict[str, Call] = {
    "replace the job with the key after p": lambda it, conn: JobWriter(it).replace(
        [child("other", "p", extras=KEYED)], conn
    ),
}

CALLS = ADDING | REPLACING | BY_KEY

WAITING = "replace x after p"

ALL_PAIRS = [
    *((adding, replacing) for adding, replacing in product(ADDING, REPLACING) if replacing != WAITING),
    *combinations_with_replacement(REPLACING, 2),
    ("add a job after x", *BY_KEY),
    (WAITING, *BY_KEY),
]

PAIRS = ALL_PAIRS if LONG else ALL_PAIRS[::-2]
"""The pairs whose orders are exhausted. One pair takes some seconds."""


@dataclass
class Application(Op):
    """A transaction of the application with one call."""

    call: Call

    async def run(self, store: Store) -> bool:
        async with store.connections.transaction() as connection:
            await self.call(store, connection)
        return True


@pytest.mark.parametrize("adding", ADDING)
async def test_commit_of_a_new_job_and_a_new_definition_of_the_other_one_do_not_deadlock(
    dsn: str, pool: asyncpg.Pool, store: Store, adding: str
) -> None:
    await exhaust(dsn, pool, store, adding, WAITING)


@NIGHTLY
@pytest.mark.parametrize("names", PAIRS, ids=[" and ".join(pair) for pair in PAIRS])
async def test_no_order_of_two_other_calls_is_a_deadlock(
    dsn: str, pool: asyncpg.Pool, store: Store, names: tuple[str, str]
) -> None:
    await exhaust(dsn, pool, store, *names)


async def exhaust(dsn: str, pool: asyncpg.Pool, store: Store, *names: str) -> None:
    """Run calls in every order of their statements and commits; a deadlock is raised."""

    async def check(ops: Sequence[Op]) -> None:
        assert all(op.answer for op in ops)

    async with Waits.on(dsn, 2) as world:
        assert isinstance(world, Waits)
        world.check = check
        await store.inserts.insert([new_job("a"), new_job("p")])
        await store.inserts.insert_extended([child("x", extras=Extras(unique_key="key"))])
        begin = await save(pool)
        assert await interleave(world, begin, lambda: [Application(CALLS[name]) for name in names]) > 1
