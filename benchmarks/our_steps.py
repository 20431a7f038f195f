"""The jobs of the rows about durable steps, with this library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from benchmarks.peers.protocol import record
from pg_scheduler import current_job

SIGNAL: Final = "go"
INSERT: Final = "INSERT INTO effects VALUES ($1)"


def id_of(number: int) -> str:
    """Return the id of the job that waits for this signal."""
    return f"job-{number}"


async def same(number: int) -> int:
    """Return a small value."""
    return number


async def steps(t: float, user: str, steps: int) -> None:  # noqa: ARG001 - a typical argument
    """Store as many steps as wanted."""
    record.begin()
    for number in range(steps):
        await current_job().steps.run(f"step-{number}", same, number)
    record(t)


async def wait(t: float, user: str) -> None:  # noqa: ARG001 - a typical argument
    """Wait for a signal, and record when it arrives."""
    record.suspend()
    record(await current_job().steps.wait(SIGNAL, kind=float))


async def sleep(t: float, user: str) -> None:  # noqa: ARG001 - typical arguments
    """Sleep for an hour without a worker."""
    record.suspend()
    await current_job().steps.sleep("hour", 3600)


async def write(t: float, user: str) -> None:
    """Write a row and complete in one transaction."""
    record.begin()
    async with current_job().completing() as connection:
        await connection.execute(INSERT, user)
    record(t)


DURABLE_JOBS: Final[dict[str, Callable[..., Any]]] = {
    "steps": steps,
    "wait": wait,
    "sleep": sleep,
    "write": write,
}
