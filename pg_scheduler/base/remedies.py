"""Remedies of errors about a value that is no Scheduler, or no pool. Several rooms raise such errors."""

from __future__ import annotations

from typing import Final

SCHEDULER_REMEDY: Final = (
    "pass what Scheduler(pool) returns, or what a block of Scheduler.connect(url) yields"
)
POOL_REMEDY: Final = "pass the result of asyncpg.create_pool()"
