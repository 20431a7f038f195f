"""A job whose steps have computed names, so that its source does not tell which are gone."""

from __future__ import annotations

from typing import Any

from pg_scheduler import current_job


async def many(names: list[str], functions: list[Any]) -> None:
    durable: Any = current_job().steps
    for name, function in zip(names, functions, strict=True):
        await durable.run(name, function)
