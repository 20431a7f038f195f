"""Jobs whose results are passed to one, which kills its node in the middle of its first attempt."""

from __future__ import annotations

import os
import signal

from pg_scheduler import current_job, job


@job(name="predecessors.number")
async def number(value: int) -> int:
    return value


@job(name="predecessors.add")
async def add(kill_after: int) -> list[int]:
    """Return the number of results, of different jobs among them, and their sum."""
    ids: list[str] = []
    total = 0
    async for result in current_job().predecessors():
        ids.append(result.job_id)
        total += result.unwrap(int)
        if len(ids) == kill_after and current_job().attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return [len(ids), len(set(ids)), total]
