"""Jobs of sequences that record when they ran, in a table, and that kill their node now and then."""

from __future__ import annotations

import os
import signal

from pg_scheduler import Sequence, current_job, job

KILLING: int = 40
"""Of so many jobs of a key, one kills its node in its first attempt."""


@job(
    name="sequences.book",
    sequence=Sequence(key=lambda account, *_: account, on_failure="skip"),
    max_retries=1,
)
async def book(account: int, number: int) -> None:
    """Record the booking when it begins, and once more in one commit with its end."""
    attempt = current_job().attempt
    async with current_job().completing() as connection:
        await connection.execute("INSERT INTO bookings (account, number) VALUES ($1, $2)", account, number)
        if attempt == 1 and number == account % KILLING and account < 2:
            os.kill(os.getpid(), signal.SIGKILL)


@job(name="sequences.count", sequence=Sequence("counts", key=lambda account, *_: account))
async def count(account: int, number: int) -> None:
    """Complete as most jobs do: the worker hands the sequence over."""
    connection = current_job().scheduler.db_pool
    await connection.execute("INSERT INTO counts (account, number) VALUES ($1, $2)", account, number)
