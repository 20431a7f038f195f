"""A task with options, for commands that read them from the code."""

from __future__ import annotations

from pg_scheduler import Unique, job


@job(name="optioned.bill", max_retries=7, unique=Unique())
async def bill() -> None: ...
