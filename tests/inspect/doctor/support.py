"""Short forms for the tests of the doctor."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from pg_scheduler import Scheduler
from pg_scheduler.inspect import Diagnosis, Finding, FindingCode, Inspector, Thresholds
from tests.support.inside import worker_of
from tests.support.patience import PATIENCE

POLL_S = 0.05


async def beat(scheduler: Scheduler) -> None:
    """Make a heartbeat now, which reports the names and the health of the worker."""
    await worker_of(scheduler).heartbeat.run_once()


async def examine(
    source: asyncpg.Pool, *codes: FindingCode, schema: str | None = None, **limits: Any
) -> Diagnosis:
    """Return the diagnosis for these codes."""
    return await Inspector(source, schema=schema).doctor(only=codes, thresholds=Thresholds(**limits))


async def find(source: asyncpg.Pool, code: FindingCode, **limits: Any) -> Finding:
    """Return the only finding of a code."""
    diagnosis = await examine(source, code, **limits)
    assert not diagnosis.not_made
    (finding,) = diagnosis.findings
    return finding


async def subjects(source: asyncpg.Pool, code: FindingCode, **limits: Any) -> list[str]:
    """Return the subjects of the findings of a code."""
    diagnosis = await examine(source, code, **limits)
    assert not diagnosis.not_made
    return [each.subject for each in diagnosis.findings]


async def until(source: asyncpg.Pool, code: FindingCode, expected: list[str], **limits: Any) -> None:
    """Wait until exactly these subjects are found: statistics of the server are written later."""
    async with asyncio.timeout(PATIENCE):
        while await subjects(source, code, **limits) != expected:  # noqa: ASYNC110 - the server sends no event
            await asyncio.sleep(POLL_S)
