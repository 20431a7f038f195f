"""A durable job for a worker behind a pooler."""

from __future__ import annotations

from pg_scheduler import current_job, job


@job(name="pooled.durable")
async def make_durable(number: int) -> int:
    """Use the database thirty times."""
    steps = current_job().steps
    for step in range(30):
        number = await steps.run(f"step {step}", add_one, number)
    return number


async def add_one(number: int) -> int:
    return number + 1
