"""Jobs of durable steps and of shares, which the release before does not have."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from typing import Any

from pg_scheduler import Share, current_job, job
from tests.cluster.node import report_job

TENANTS = ("a", "b")


async def charge() -> str:
    report_job("charged")
    return "payment"


async def ship(connection: Any) -> None:
    await connection.execute("INSERT INTO effects VALUES ($1)", current_job().job_id)


@job(name="durable.order", max_retries=3)
async def order() -> None:
    """Sleep, wait for a signal, and write once."""
    steps = current_job().steps
    assert await steps.run("charge", charge) == "payment"
    await steps.sleep("nap", timedelta(seconds=1))
    assert await steps.wait("approval") == "ann"
    await steps.transaction("ship", ship)


@job(name="durable.nap", max_retries=3)
async def nap() -> None:
    """Sleep for long enough to be rolled back."""
    steps = current_job().steps
    await steps.run("charge", charge)
    await steps.sleep("nap", timedelta(seconds=10))


@job(name="durable.hold", max_retries=3)
async def hold() -> None:
    """Store a step, and run until the node dies at the first attempt."""
    await current_job().steps.run("charge", charge)
    if current_job().attempt == 1:
        await asyncio.Event().wait()


@job(name="durable.turn", share=Share(key=lambda tenant: tenant))
async def turn(tenant: str) -> None:
    report_job(f"turn of {tenant}")


async def stop_process() -> int:
    """Stop the whole process (SIGSTOP) in the first attempt."""
    attempt = current_job().attempt
    if attempt == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return attempt


@job(name="durable.freeze", max_retries=3)
async def freeze() -> None:
    await current_job().steps.run("stop", stop_process)
