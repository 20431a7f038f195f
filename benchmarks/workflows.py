"""Measure what durable jobs have besides steps: ``python -m benchmarks.workflows [--dbos PYTHON]``.

- Messages to one job, which receives them one after the other.
- Values that a job publishes, one every 20 ms, and the delay until a reader that waits has one.
- Steps that fail once each, and are called again at once.
- The time until a job with a hundred waiting children is cancelled with all of them.

With ``--dbos``, see ``dbos_turns.py``.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from benchmarks.dbos_turns import Figures, main

MESSAGES: Final = 500
VALUES: Final = 90
GAP_S: Final = 0.02
STEPS: Final = 200
CHILDREN: Final = 100
HOUR_S: Final = 3600.0


class Flaky:
    """A function that fails at the first call with each number."""

    def __init__(self) -> None:
        self._called: set[int] = set()

    async def call(self, number: int) -> int:
        """Return the number, or raise ConnectionError."""
        if number not in self._called:
            self._called.add(number)
            raise ConnectionError("down")
        return number


async def duration(action: Callable[[], Awaitable[Any]]) -> float:
    """Return the seconds that an action takes."""
    started_at = time.perf_counter()
    await action()
    return time.perf_counter() - started_at


def figures_of(messages_s: float, delays: list[float], steps_s: float, cancel_s: float) -> Figures:
    """Return the figures of one round by their names."""
    return {
        "messages_per_s": round(MESSAGES / messages_s),
        "value_p50_ms": round(1000 * statistics.median(delays), 1),
        "value_p90_ms": round(1000 * statistics.quantiles(delays, n=10)[8], 1),
        "failing_steps_per_s": round(STEPS / steps_s),
        "cancel_101_jobs_s": round(cancel_s, 3),
    }


async def delays_of(read: Callable[[str], Awaitable[float]]) -> list[float]:
    """Return the seconds from the publication of each value until it is read."""
    delays = []
    for number in range(VALUES):
        published_at = await read(f"value-{number}")
        delays.append(time.time() - published_at)
    return delays


# -- this library ----------------------------------------------------------------------------------------


async def run_ours(dsn: str) -> Figures:
    """Return the figures of this library."""
    from pg_scheduler import RetryPolicy, Scheduler, call, current_job  # noqa: PLC0415 - only in one environment

    flaky, at_once = Flaky(), RetryPolicy(base=timedelta(milliseconds=1), factor=1, jitter=0)

    async def receive() -> None:
        """Receive all messages."""
        for _ in range(MESSAGES):
            await current_job().steps.receive("orders")

    async def publish() -> None:
        """Publish a value every 20 ms."""
        for number in range(VALUES):
            await asyncio.sleep(GAP_S)
            await current_job().publish(f"value-{number}", time.time())

    async def fail() -> None:
        """Call steps that fail once each."""
        for number in range(STEPS):
            await current_job().steps.run(f"step-{number}", flaky.call, number, retry=at_once)

    async def rest() -> None:
        """Sleep for an hour."""
        await current_job().steps.sleep("hour", HOUR_S)

    async def start_children() -> None:
        """Start the children, and wait for them."""
        await current_job().steps.gather("children", [call(rest)] * CHILDREN)

    async with Scheduler.connect(dsn, max_concurrent_jobs=200) as scheduler:
        for func in (receive, publish, fail, rest, start_children):
            scheduler.register(func, name=func.__name__)

        async def exchange() -> None:
            """Send all messages to a job, and wait for its end."""
            job_id = await scheduler.enqueue(receive)
            for number in range(MESSAGES):
                await scheduler.send(job_id, "orders", number)
            await scheduler.get_job_result(job_id)

        messages_s = await duration(exchange)
        publisher = await scheduler.enqueue(publish)
        delays = await delays_of(lambda name: scheduler.get_value(publisher, name))
        steps_s = await duration(lambda: scheduler.run_job(fail))
        parent = await scheduler.enqueue(start_children)
        sleeping = "SELECT count(*) FROM scheduler_steps WHERE name = 'hour'"
        while await scheduler.db_pool.fetchval(sleeping) < CHILDREN:  # noqa: ASYNC110 - rows, not an event
            await asyncio.sleep(0.05)

        async def cancel() -> None:
            """Cancel the tree, and wait until its last job has ended."""
            await scheduler.cancel_job(parent, children=True)
            unfinished = "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL"
            while await scheduler.db_pool.fetchval(unfinished):  # noqa: ASYNC110 - rows, not an event
                await asyncio.sleep(0.005)

        return figures_of(messages_s, delays, steps_s, await duration(cancel))


# -- DBOS ------------------------------------------------------------------------------------------------


async def run_dbos(dsn: str) -> Figures:
    """Return the figures of DBOS."""
    from dbos import DBOS, DBOSConfig  # noqa: PLC0415 - only in one environment

    flaky = Flaky()

    @DBOS.step(retries_allowed=True, interval_seconds=0.001, backoff_rate=1.0)
    async def flaky_step(number: int) -> int:
        """Return the number at the second call."""
        return await flaky.call(number)

    @DBOS.workflow()
    async def receive() -> None:
        """Receive all messages."""
        for _ in range(MESSAGES):
            await DBOS.recv_async("orders")

    @DBOS.workflow()
    async def publish() -> None:
        """Publish a value every 20 ms."""
        for number in range(VALUES):
            await asyncio.sleep(GAP_S)
            await DBOS.set_event_async(f"value-{number}", time.time())

    @DBOS.workflow()
    async def fail() -> None:
        """Call steps that fail once each."""
        for number in range(STEPS):
            await flaky_step(number)

    @DBOS.workflow()
    async def rest() -> None:
        """Sleep for an hour."""
        await DBOS.sleep_async(HOUR_S)

    @DBOS.workflow()
    async def start_children() -> None:
        """Start the children, and wait for them."""
        for handle in [await DBOS.start_workflow_async(rest) for _ in range(CHILDREN)]:
            await handle.get_result()

    DBOS(
        config=DBOSConfig(
            name="workflows", system_database_url=dsn, sys_db_pool_size=20, log_level="CRITICAL"
        )
    )
    DBOS.launch()
    try:

        async def exchange() -> None:
            """Send all messages to a workflow, and wait for its end."""
            handle = await DBOS.start_workflow_async(receive)
            for number in range(MESSAGES):
                await DBOS.send_async(handle.workflow_id, number, "orders")
            await handle.get_result()

        messages_s = await duration(exchange)
        publisher = await DBOS.start_workflow_async(publish)
        delays = await delays_of(lambda name: DBOS.get_event_async(publisher.workflow_id, name))

        async def run_failing() -> None:
            """Run the workflow of failing steps."""
            await (await DBOS.start_workflow_async(fail)).get_result()

        steps_s = await duration(run_failing)
        parent = await DBOS.start_workflow_async(start_children)

        async def unfinished() -> int:
            """Return how many workflows have not ended."""
            return len(await DBOS.list_workflows_async(status=["PENDING", "ENQUEUED"], load_input=False))

        while await unfinished() < CHILDREN + 1:  # noqa: ASYNC110 - rows, not an event
            await asyncio.sleep(0.05)

        async def cancel() -> None:
            """Cancel the tree, and wait until its last workflow has ended."""
            await DBOS.cancel_workflow_async(parent.workflow_id, cancel_children=True)
            while await unfinished():  # noqa: ASYNC110 - rows, not an event
                await asyncio.sleep(0.005)

        return figures_of(messages_s, delays, steps_s, await duration(cancel))
    finally:
        DBOS.destroy(workflow_completion_timeout_sec=0)


if __name__ == "__main__":
    main("benchmarks.workflows", __doc__ or "", run_ours, run_dbos)
