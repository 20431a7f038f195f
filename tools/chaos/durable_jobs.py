"""The durable jobs: orders of ten steps, jobs that complete in a transaction or sum up, jobs of two tenants.

Each call of a function and each value that an attempt receives is recorded in the ledger. Each effect is a
row of a table, with the attempt that wrote it.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Final

import asyncpg

from pg_scheduler import (
    Abort,
    Child,
    Connection,
    JobResult,
    Retry,
    RetryPolicy,
    Share,
    Sleep,
    Wait,
    call,
    current_job,
    job,
)
from pg_scheduler.errors import JobFailedError
from pg_scheduler.jobs.step_retries import IN_PLACE_WAIT_S
from pg_scheduler.sync import StepConnection, current_steps
from tools.chaos import jobs
from tools.chaos.jobs import entry, ledger, own_value, pause

ORDER: Final = "chaos.order"
THREAD_ORDER: Final = "chaos.thread_order"
ORDERS: Final = (ORDER, THREAD_ORDER)
COMPLETING: Final = "chaos.completing"
SUMMARY: Final = "chaos.summary"
THREAD_SUMMARY: Final = "chaos.thread_summary"
SUMMARIES: Final = (SUMMARY, THREAD_SUMMARY)
SHARED: Final = "chaos.shared"
CHOICE: Final = "chaos.choice"
CHOICE_STEP: Final = "choice"
CHOSEN: Final = "chosen"
DRAWN: Final = "drawn"
"""The job that waits for the first of several, its step, and the signal and the child among them."""

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

PARCEL: Final = "parcel"
DOCUMENTS: Final = "documents"
CHILDREN: Final = (PARCEL, *(f"{DOCUMENTS}:{number}" for number in range(2)))
"""The jobs for which an order waits: what follows its own id in theirs."""

COUPON_TIMEOUT: Final = timedelta(seconds=1)
MAX_RETRIES: Final = 1000
"""The attempts of a job may fail as often as faults break its connection."""

RETRY: Final = RetryPolicy(base=timedelta(seconds=0.2), maximum=timedelta(seconds=2))

FAILING_SHARE: Final = 0.4
DOWN_S: Final = (*(0.05,) * 9, IN_PLACE_WAIT_S + 1)
CALL_TIMEOUT_S: Final = 60
"""How often a call of an unreliable step fails, after how many seconds it is repeated, and its time limit."""

CALLED: Final = "StepCalled"
RECEIVED: Final = "StepReceived"
"""The records of a call of a step's function, and of a value that a step returned."""

PASSED: Final = "ResultsPassed"
"""The record of the results of predecessors: id, status and value of each."""

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


def record_call(step: str) -> None:
    """Record that the function of a step is called."""
    this = current_job()
    ledger().write(CALLED, this.job_id, this.attempt, step)


async def compute(step: str) -> str:
    """Return the value of a step."""
    record_call(step)
    await asyncio.sleep(random.uniform(0, 0.2))
    return step_value(own_value(), step)


def compute_in_thread(step: str) -> str:
    """Return the value of a step of a job in a thread."""
    record_call(step)
    pause(random.uniform(0, 0.2))
    return step_value(own_value(), step)


def fail_at_times() -> None:
    """Raise the error of a service that is down at times, mostly for a moment, seldom for a suspension."""
    if random.random() < FAILING_SHARE:
        raise Retry(random.choice(DOWN_S)) from ConnectionError("the service is down")


async def compute_unreliably(step: str) -> str:
    """Return the value of a step, or fail before the call is recorded."""
    fail_at_times()
    return await compute(step)


def compute_unreliably_in_thread(step: str) -> str:
    """Do the same in a thread."""
    fail_at_times()
    return compute_in_thread(step)


async def write_effect(connection: Connection, step: str) -> str:
    """Write an effect, and return the value of its step."""
    this = current_job()
    await connection.execute(INSERT_EFFECT, this.job_id, step, this.attempt, ledger().worker_id)
    await asyncio.sleep(random.choice((0, 0, 0.1)))
    return step_value(own_value(), step)


def write_effect_in_thread(connection: StepConnection, step: str) -> str:
    """Do the same in a thread."""
    this = current_job()
    connection.execute(INSERT_EFFECT, this.job_id, step, this.attempt, ledger().worker_id)
    return step_value(own_value(), step)


def receive(step: str, value: str | None) -> None:
    """Record the value that a step returned to this attempt."""
    this = current_job()
    ledger().write(RECEIVED, this.job_id, this.attempt, step, value)


def receive_documents(values: list[str]) -> None:
    """Record the values of the children that ran at once."""
    for number, value in enumerate(values):
        receive(f"{DOCUMENTS}:{number}", value)


def receive_results(results: list[JobResult]) -> None:
    """Record the results of predecessors."""
    this = current_job()
    passed = [(result.job_id, result.status.value, result.value) for result in results]
    ledger().write(PASSED, this.job_id, this.attempt, passed)


@job(name=ORDER, max_retries=MAX_RETRIES, retry=RETRY)
async def order(*, exact: bool, completes: bool, fails: bool) -> str:
    """Go through ten steps.

    With ``exact``, each value of the cursor commits with the effect of its line. With ``completes``, the
    completion commits with an effect. With ``fails``, it fails because its first child does.
    """
    with entry():
        steps = current_job().steps
        receive("quote", await steps.run("quote", compute, "quote"))
        receive("reserve", await steps.transaction("reserve", write_effect, "reserve"))
        await _go_through_lines(exact=exact)
        await steps.sleep("cool-off", random.uniform(0, 1))
        receive(APPROVAL, await steps.wait(APPROVAL, kind=str))
        retries = {"retry": RETRY, "max_retries": MAX_RETRIES, "timeout": CALL_TIMEOUT_S}
        label_step = steps.run("label", compute_unreliably, "label", **retries)
        coupon, label = await asyncio.gather(_coupon(), label_step)
        receive(COUPON, coupon)
        receive("label", label)
        receive("book", await steps.transaction("book", write_effect, "book"))
        try:
            receive(PARCEL, await steps.child(PARCEL, call(parcel, fails=fails)))
        except JobFailedError as error:
            raise Abort(str(error)) from error
        receive_documents(await steps.gather(DOCUMENTS, [call(jobs.value), call(jobs.thread_value)]))
        if completes:
            await _complete()
        return own_value()


@job(name=THREAD_ORDER, max_retries=MAX_RETRIES, retry=RETRY)
def thread_order(*, fails: bool) -> str:
    """Go through the same steps in a thread."""
    with entry():
        steps = current_steps()
        receive("quote", steps.run("quote", compute_in_thread, "quote"))
        receive("reserve", steps.transaction("reserve", write_effect_in_thread, "reserve"))
        with steps.cursor("lines", start=0) as cursor:
            for number in range(cursor.value, len(LINES)):
                compute_in_thread(LINES[number])
                cursor.set(number + 1)
        steps.sleep("cool-off", random.uniform(0, 1))
        receive(APPROVAL, steps.wait(APPROVAL, kind=str))
        receive(COUPON, _coupon_in_thread())
        label = steps.run(
            "label", compute_unreliably_in_thread, "label", retry=RETRY, max_retries=MAX_RETRIES
        )
        receive("label", label)
        receive("book", steps.transaction("book", write_effect_in_thread, "book"))
        try:
            receive(PARCEL, steps.child(PARCEL, call(parcel, fails=fails)))
        except JobFailedError as error:
            raise Abort(str(error)) from error
        receive_documents(steps.gather(DOCUMENTS, [call(jobs.value), call(jobs.thread_value)]))
        return own_value()


@job(name=CHOICE, max_retries=MAX_RETRIES, retry=RETRY)
async def choose() -> str:
    """Wait for the first of a signal, a sleep and a child, and work once more."""
    with entry():
        steps = current_job().steps
        winner = await steps.first(
            CHOICE_STEP,
            Wait(CHOSEN, kind=str),
            Sleep("limit", random.uniform(1, 3)),
            Child(DRAWN, call(jobs.value)),
        )
        receive(CHOICE_STEP, f"{winner.name}={winner.value}")
        receive("after", await steps.run("after", compute, "after"))
        return own_value()


@job(name="chaos.parcel")
async def parcel(*, fails: bool) -> str:
    """Return a value; with ``fails``, fail at the first attempt."""
    with entry() as attempt:
        await asyncio.sleep(random.uniform(0, 0.5))
        if fails and attempt == 1:
            raise LookupError("the first attempt fails")
        return own_value()


@job(name=SUMMARY, max_retries=MAX_RETRIES, retry=RETRY)
async def summary() -> None:
    """Read the results that were passed."""
    with entry():
        receive_results([result async for result in current_job().predecessors()])
        await asyncio.sleep(random.uniform(0, 0.2))


@job(name=THREAD_SUMMARY, max_retries=MAX_RETRIES, retry=RETRY)
def thread_summary() -> None:
    """Do the same in a thread."""
    with entry():
        receive_results(list(current_steps().predecessors()))
        pause(random.uniform(0, 0.2))


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
                await compute(LINES[number])
                await cursor.set(number + 1)


async def _coupon() -> str | None:
    try:
        return await current_job().steps.wait(COUPON, timeout=COUPON_TIMEOUT, kind=str)
    except TimeoutError:
        return None


def _coupon_in_thread() -> str | None:
    try:
        return current_steps().wait(COUPON, timeout=COUPON_TIMEOUT, kind=str)
    except TimeoutError:
        return None


async def _complete() -> None:
    async with current_job().completing() as connection:
        await write_effect(connection, COMPLETED)
        current_job().set_result(own_value())


FUNCTIONS: Final = (order, thread_order, parcel, completing, summary, thread_summary, shared, choose)
