"""What requests share: each value for as long as it is kept, and no value of another function."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Final

import pytest

import pg_scheduler.dashboard
from pg_scheduler.dashboard.cache import MAX_ENTRIES, Cache, SharedReads
from tests.support.source import calls_of, parsed

PACKAGE: Final = Path(pg_scheduler.dashboard.__file__).parent


async def test_concurrent_requests_share_one_read() -> None:
    reads, may_end = 0, asyncio.Event()

    async def read(_request: None, _name: str) -> int:
        nonlocal reads
        reads += 1
        await may_end.wait()
        return reads

    cache = SharedReads(Cache())
    calls = [asyncio.create_task(cache.get(read, None, "name", age_s=60)) for _ in range(10)]
    await asyncio.sleep(0)
    may_end.set()
    assert await asyncio.gather(*calls) == [1] * 10
    assert await cache.get(read, None, "other", age_s=60) == 2
    assert await cache.get(read, None, "name", age_s=60, depends_on="rights") == 3


async def test_two_functions_share_no_value() -> None:
    async def figures_of_task(_request: None, name: str) -> str:
        return f"task {name}"

    async def figures_of_period(_request: None, name: str) -> str:
        return f"period {name}"

    cache = SharedReads(Cache())
    assert await cache.get(figures_of_task, None, "1h", age_s=60) == "task 1h"
    assert await cache.get(figures_of_period, None, "1h", age_s=60) == "period 1h"


def test_each_function_that_requests_share_is_one_of_its_module() -> None:
    """A function that each call defines anew would be another one for each request, so none would share."""
    calls = 0
    for path in PACKAGE.rglob("*.py"):
        functions = {node.name for node in parsed(path).body if isinstance(node, ast.AsyncFunctionDef)}
        for call in calls_of(path, {"read_shared"}):
            calls += 1
            assert ast.unparse(call.args[0]) in functions, f"{path.name}: {ast.unparse(call)}"
    assert calls > 20


async def test_value_is_kept_for_its_age_and_ten_times_its_duration() -> None:
    now, took = 0.0, 0.0

    async def read(_request: None) -> float:
        nonlocal now
        now += took
        return now

    cache = SharedReads(Cache(lambda: now))
    assert await cache.get(read, None, age_s=2) == 0
    now = 1.9
    assert await cache.get(read, None, age_s=2) == 0
    now, took = 2.0, 3.0
    assert await cache.get(read, None, age_s=2) == 5
    now = 34.9
    assert await cache.get(read, None, age_s=2) == 5
    now = 35.0
    assert await cache.get(read, None, age_s=2) == 38


async def test_cache_keeps_a_bounded_number_of_values_those_used_last() -> None:
    numbers: list[int] = []

    async def read(_request: None, number: int) -> None:
        numbers.append(number)
        assert len(cache._entries) <= MAX_ENTRIES

    cache = Cache(lambda: 0.0)
    reads = SharedReads(cache)
    for number in range(2 * MAX_ENTRIES):
        await reads.get(read, None, number, age_s=60)
        await reads.get(read, None, 0, age_s=60)
    await asyncio.gather(*(reads.get(read, None, number, age_s=60) for number in range(-MAX_ENTRIES, 0)))
    assert len(cache._entries) == MAX_ENTRIES
    assert numbers.count(0) == 1


async def test_error_is_not_kept_and_expired_values_are_forgotten() -> None:
    is_failing = True

    async def read(_request: None, _number: int) -> str:
        if is_failing:
            raise LookupError
        return "value"

    now = 0.0
    cache = Cache(lambda: now)
    reads = SharedReads(cache)
    with pytest.raises(LookupError):
        await reads.get(read, None, 0, age_s=1)
    is_failing = False
    assert await reads.get(read, None, 0, age_s=1) == "value"
    for number in range(600):
        now = float(number)
        await reads.get(read, None, number, age_s=1)
    assert len(cache._entries) <= 2
