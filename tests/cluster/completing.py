"""Jobs that complete in their own transaction, on nodes that stop or die within it.

The variable ``KILL`` is ``before`` or ``after`` and the number of a statement of the job at which the process
kills itself, such as ``before 2``; the job has that name. Without it, the node runs the jobs of all names.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import asyncpg

from pg_scheduler import JobLostError, current_job, job
from pg_scheduler.jobs.context import current
from tests.cluster.node import report_job

MAX_STATEMENTS = 8
"""More than the job sends."""

POINTS = [f"{place} {number}" for number in range(MAX_STATEMENTS) for place in ("before", "after")]


async def charge() -> None:
    me = current_job()
    async with me.completing() as connection:
        await connection.execute("INSERT INTO effects VALUES ($1)", me.job_id)
        await me.scheduler.schedule_job(
            "cluster.note",
            me.execution_time,
            {"args": [], "kwargs": {}},
            job_id=f"receipt of {me.job_id}",
            connection=connection,
        )


@job(name="completing.freeze")
async def freeze() -> None:
    """Stop the whole process (SIGSTOP) in the block of the first attempt."""
    me = current_job()
    try:
        async with me.completing() as connection:
            await connection.execute("INSERT INTO effects VALUES ($1)", f"{me.job_id} {me.attempt}")
            if me.attempt == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
    except JobLostError:
        report_job("refused")
        raise


def die_at(place: str, number: int) -> None:
    """Kill this process before or after a statement of the code of a job."""
    sent = 0

    def wrap(name: str) -> None:
        method = getattr(asyncpg.Connection, name)

        async def call(self: asyncpg.Connection, *args: Any, **options: Any) -> Any:
            nonlocal sent
            place_of_kill = None
            if current.get(None) is not None:  # else a service sends it
                place_of_kill = place if sent == number else None
                sent += 1
            if place_of_kill == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = await method(self, *args, **options)
            if place_of_kill == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(asyncpg.Connection, name, call)

    for name in ("execute", "fetch"):
        wrap(name)


if point := os.environ.get("KILL"):
    job(name=point)(charge)
    die_at(point.partition(" ")[0], int(point.partition(" ")[2]))
else:
    for each in POINTS:
        job(name=each)(charge)
