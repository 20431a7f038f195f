"""A process that makes one pass of the planner, and kills itself after so many statements: ``DSN NUMBER``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import asyncpg

from pg_scheduler.database.pool import Connections
from pg_scheduler.events import EventBus
from pg_scheduler.scheduler.store import Store
from tests.support.parts import Parts


async def work() -> None: ...


async def main(dsn: str, number: int) -> None:
    left = number

    def count(_record: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    async def listen(connection: Any) -> None:
        connection.add_query_logger(count)

    async with asyncpg.create_pool(dsn, min_size=0, max_size=2, init=listen) as pool:
        connections = Connections(pool)
        parts = Parts(Store(connections), EventBus())
        parts.tasks.register(work, name="app.work")
        await parts.planner().run_once()
        await connections.release_held()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
