"""The Scheduler of a node of the demo, which ``pg-scheduler worker`` runs.

Any number of nodes can share the database of ``PG_SCHEDULER_DSN``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import asyncpg

from pg_scheduler import RetryPolicy, Scheduler
from pg_scheduler.cli.errors import UsageError
from pg_scheduler.cli.settings import DEMO_NODE

from . import jobs
from .ledger import Ledger

SLOTS: Final = 25
SHOP_SETTINGS: Final = {"max_crashes": 1, "shutdown_timeout": 1.0}


def open_node() -> AbstractAsyncContextManager[Scheduler]:
    """Return a context manager that runs the jobs of the demo."""
    return _open()


def open_shop() -> AbstractAsyncContextManager[Scheduler]:
    """Return a context manager that also runs the jobs of the shop, except the one that kills its worker."""
    from . import shop  # noqa: PLC0415 - registers its jobs

    return _open(skip=[shop.LEGACY], **SHOP_SETTINGS)


def open_legacy() -> AbstractAsyncContextManager[Scheduler]:
    """Return a context manager that runs the job that kills its worker."""
    from . import shop  # noqa: PLC0415 - registers its jobs

    return _open(only=[shop.LEGACY], **SHOP_SETTINGS)


def application_name(node: str, pid: int) -> str:
    """Return the application name of a node's connections in ``pg_stat_activity``."""
    return f"demo {node} {pid}"


@asynccontextmanager
async def _open(**settings: Any) -> AsyncIterator[Scheduler]:
    dsn, name = os.environ.get("PG_SCHEDULER_DSN"), os.environ.get(DEMO_NODE)
    if not dsn:
        raise UsageError("PG_SCHEDULER_DSN is not set; set it to postgresql://user:password@host/database")
    if name is None:
        name = f"{platform.node()}-{os.getpid()}"
    else:
        logging.disable(logging.ERROR)
        # Nothing is written there, so readable means closed: the demo has ended.
        asyncio.get_running_loop().add_reader(sys.stdin, os._exit, 1)
    connection = {"application_name": application_name(name, os.getpid())}
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=5, server_settings=connection) as pool,
        asyncpg.create_pool(dsn, min_size=1, max_size=4, server_settings=connection) as ledger_pool,
    ):
        ledger = Ledger(ledger_pool, name)
        await ledger.create()
        jobs.use_ledger(ledger)
        retry = RetryPolicy(base=timedelta(seconds=0.5), jitter=0.1)
        yield Scheduler(pool, max_concurrent_jobs=SLOTS, retry_policy=retry, identity=name, **settings)
