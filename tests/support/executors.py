"""An executor as an application may have one."""

from __future__ import annotations

import asyncio
from typing import Any

from pg_scheduler import JobCall, JobExecutor


class InThread(JobExecutor):
    """Runs jobs in threads, as the guide shows it."""

    async def run(self, call: JobCall) -> Any:
        return await asyncio.to_thread(call.func, *call.args, **call.kwargs)
