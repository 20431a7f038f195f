"""The durable jobs: orders of eight steps, jobs that complete in a transaction, and jobs of two tenants.

Each call of a function and each value that an attempt receives is recorded in the ledger. Each effect is a
row of a table, with the attempt that wrote it.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Final

import asyncpg

from pg_scheduler import Connection, RetryPolicy, Share, current_job, job
from tools.chaos.jobs import entry, ledger, own_value

ORDER: Final = "chaos.order"
COMPLETING: Final = "chaos.completing"
SHARED: Final = "chaos.shared"

CREATE_EFFECTS: Final = "CREATE TABLE chaos_effects (job_id text, step text, attempt integer, worker_id text)"
INSERT_EFFECT: Final = "INSERT INTO chaos_effects VALUES ($1, $2, $3, $4)"
EFFECTS: Final = "SELECT job_id, step, attempt, worker_id FROM chaos_effects"

COMPLETED: Final = "completed"
"""The effect that commits with the completion of its job."""

LINES: Final = tuple(f"line-{number}" for number in range(6))
TRANSACTIONS: Final = ("reserve", "book")
"""The effects of the cursor and of the transaction steps of an order."""

APPROVAL: Final = "approval"
COUPON: Final = "coupon"
SIGNALS: Final = (APPROVAL, COUPON)
"""The signals for which an order waits, for the second one for a limited time."""

COUPON_TIMEOUT: Final = timedelta(seconds=1)
MAX_RETRIES: Final = 1000
"""The attempts of a job may fail as often as faults break its connection."""

RETRY: Final = RetryPolicy(base=timedelta(seconds=0.2), maximum=timedelta(seconds=2))

CALLED: Final = "StepCalled"
RECEIVED: Final = "StepReceived"
"""The records of a call of a step's function, and of a value that a step returned."""

_pools: list[asyncpg.Pool] = []


def use_pool(pool: asyncpg.Pool) -> None:
    """Set the pool for transactions of the jobs' own."""
    _pools[:] = [pool]


def step_value(own: str, step: str) -> str:
    """Return the value of a step that only one attempt returns, whose own value is given."""
    return f"{own} {step}"


def expected_effects(*, exact: bool, completes: bool) -> tuple[str, ...]:
    """Return the effects of a completed order."""
    return (*TRANSACTIONS, *(LINES if exact else ()), *((COMPLETED,) if completes else ()))


async def call(step: str) -> str:
    """Record that the function of a step is called, and return its value."""
    this = current_job()
    ledger().write(CALLED, this.job_id, this.attempt, step)
    await asyncio.sleep(random.uniform(0, 0.2))
    return step_value(own_value(), step)


async def write_effect(connection: Connection, step: str) -> str:
    """Write an effect, and return the value of its step."""
    this = current_job()
    await connection.execute(INSERT_EFFECT, this.job_id, step, this.attempt, ledger().worker_id)
    await asyncio.sleep(random.choice((0, 0, 0.1)))
    return step_value(own_value(), step)


def receive(step: str, value: str | None) -> None:
    """Record the value that a step returned to this attempt."""
    this = current_job()
    ledger().write(RECEIVED, this.job_id, this.attempt, step, value)


@job(name=ORDER, max_retries=MAX_RETRIES, retry=RETRY)
async def order(*, exact: bool, completes: bool) -> str:
    """Go through eight steps.

    With ``exact``, each value of the cursor commits with the effect of its line. With ``completes``, the
    completion commits with an effect.
    """
    with entry():
        steps = current_job().steps
        receive("quote", await steps.run("quote", call, "quote"))
        receive("reserve", await steps.transaction("reserve", write_effect, "reserve"))
        await _go_through_lines(exact=exact)
        await steps.sleep("cool-off", random.uniform(0, 1))
        receive(APPROVAL, await steps.wait(APPROVAL, kind=str))
        coupon, label = await asyncio.gather(_coupon(), steps.run("label", call, "label"))
        receive(COUPON, coupon)
        receive("label", label)
        receive("book", await steps.transaction("book", write_effect, "book"))
        if completes:
            await _complete()
        return own_value()


@job(name=COMPLETING, max_retries=MAX_RETRIES, retry=RETRY)
async def completing() -> None:
    """Complete with an effect; some run on afterwards."""
    with entry():
        await asyncio.sleep(random.choice((0, 0, 0.5)))
        await _complete()
        await asyncio.sleep(random.choice((0, 0, 0, 1)))


@job(name=SHARED, share=Share(key=lambda tenant: tenant))
async def shared(tenant: str) -> None:  # noqa: ARG001 - the key of the share
    """Run in the turn of its tenant."""
    with entry():
        await asyncio.sleep(random.uniform(0, 0.2))


async def _go_through_lines(*, exact: bool) -> None:
    async with current_job().steps.cursor("lines", start=0) as cursor:
        for number in range(cursor.value, len(LINES)):
            if exact:
                async with _pools[0].acquire(timeout=10) as connection, connection.transaction():
                    await write_effect(connection, LINES[number])
                    await cursor.save(number + 1, connection=connection)
            else:
                await call(LINES[number])
                await cursor.set(number + 1)


async def _coupon() -> str | None:
    try:
        return await current_job().steps.wait(COUPON, timeout=COUPON_TIMEOUT, kind=str)
    except TimeoutError:
        return None


async def _complete() -> None:
    async with current_job().completing() as connection:
        await write_effect(connection, COMPLETED)
        current_job().set_result(own_value())


FUNCTIONS: Final = (order, completing, shared)
