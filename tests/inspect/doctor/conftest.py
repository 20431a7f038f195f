"""Schedulers whose registered functions have names that no other test uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Protocol

import asyncpg
import pytest

from pg_scheduler import Scheduler


class Make(Protocol):
    """Start a Scheduler that is shut down at the end of the test."""

    async def __call__(
        self, source: asyncpg.Pool | None = None, /, *, tasks: Mapping[str, Any] = {}, **settings: Any
    ) -> Scheduler: ...


@pytest.fixture
async def make(pool: asyncpg.Pool) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        async def build(
            source: asyncpg.Pool | None = None, /, *, tasks: Mapping[str, Any] = {}, **settings: Any
        ) -> Scheduler:
            scheduler = Scheduler(source or pool, **{"shutdown_timeout": 0.05, **settings})
            for name, function in tasks.items():
                scheduler.register(function, name=name)
            stack.push_async_callback(scheduler.shutdown)
            await scheduler.start()
            return scheduler

        yield build
