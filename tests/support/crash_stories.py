"""Random stories about one world, whose workers may crash at any statement."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import asyncpg
import hypothesis
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from pg_scheduler.testing.crashing_worker import NumberedConnection


class CrashStory(RuleBasedStateMachine):
    """Random operations on one world. Each story has its own."""

    runner: ClassVar[asyncio.Runner]
    pool: ClassVar[asyncpg.Pool]

    def __init__(self) -> None:
        super().__init__()
        self.stack = AsyncExitStack()

    def do(self, action: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(action)


def run_stories(
    story: type[CrashStory], dsn: str, *, examples: int, steps: int, preparation: str | None = None
) -> None:
    """Run so many stories of at most so many steps, after a statement that prepares their database."""
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        pool = runner.run(open_pool(dsn))
        story_of_this_run: Any = type(story.__name__, (story,), {"runner": runner, "pool": pool})
        try:
            if preparation is not None:
                runner.run(pool.execute(preparation))
            run_state_machine_as_test(story_of_this_run, settings=settings)
        finally:
            pool.terminate()  # a task of a worker that crashed may hold a connection


async def open_pool(dsn: str) -> asyncpg.Pool:
    return await asyncpg.create_pool(dsn, min_size=2, connection_class=NumberedConnection)
