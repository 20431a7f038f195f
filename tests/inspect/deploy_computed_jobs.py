"""A job whose steps have computed names, so that its source does not tell which are gone."""

from __future__ import annotations

from typing import Any

from pg_scheduler import current_job


async def fetch(number: int) -> int:
    return number


async def many(names: list[str], numbers: list[int]) -> None:
    durable: Any = current_job().steps
    for name, number in zip(names, numbers, strict=True):
        await durable.run(name, fetch, number)
