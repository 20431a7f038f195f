"""The test kits end, with an error that names the jobs, where jobs do not."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler import Retry, Snooze, current_job
from pg_scheduler.testing import AsyncTestKit, TestKit, TestScheduler
from tests.support.statements import Statements
from tests.support.transactions import application

MOST: Final = 20

SHORT_S: Final = 1e-6
"""A delay after which a clock that stands still never runs a job, and run_until() runs it again and again."""


async def endless(kind: str) -> None:
    job = current_job()
    if kind == "enqueues itself":
        await job.scheduler.enqueue("endless", args=(kind,))
    elif kind == "snoozes":
        raise Snooze(SHORT_S)
    elif kind == "is retried":
        raise Retry(delay=SHORT_S)
    else:
        for number in range(1000):
            await job.steps.sleep(f"{number}", SHORT_S)


async def stuck() -> None:
    await asyncio.Event().wait()


Kit = AsyncTestKit | TestKit | TestScheduler


@asynccontextmanager
async def async_kit(dsn: str, pool: asyncpg.Pool) -> AsyncIterator[AsyncTestKit]:
    async with application("asyncpg", dsn, pool) as app:
        yield AsyncTestKit(app.connection)


@asynccontextmanager
async def virtual(_dsn: str, pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, shutdown_timeout=0.1) as t:
        yield t


OPEN: Final[dict[str, Callable[..., Any]]] = {"AsyncTestKit": async_kit, "TestScheduler": virtual}

CALLS: Final[dict[tuple[str, str], Callable[..., Awaitable[Any]]]] = {
    ("AsyncTestKit", "drain"): lambda kit, **bounds: kit.drain(raises=False, **bounds),
    ("AsyncTestKit", "run_due"): lambda kit, **bounds: kit.run_due(raises=False, **bounds),
    ("TestScheduler", "drain"): lambda t, **bounds: t.drain(**bounds),
    ("TestScheduler", "run_until"): lambda t, **bounds: t.run_until(timedelta(hours=1), **bounds),
    ("TestScheduler", "run_one"): lambda t, **bounds: t.run_one(**bounds),
}
"""The methods that run jobs of rows."""

ENDLESS: Final = [
    ("AsyncTestKit", "drain", "enqueues itself"),
    ("TestScheduler", "drain", "enqueues itself"),
    ("TestScheduler", "run_until", "enqueues itself"),
    *(
        pytest.param("TestScheduler", "run_until", kind, marks=pytest.mark.slow)
        for kind in ("snoozes", "is retried", "sleeps")
    ),
]
"""The methods that run what jobs make due, and how jobs do that."""


def test_each_method_that_runs_jobs_has_bounds() -> None:
    for kit in (AsyncTestKit, TestKit, TestScheduler):
        for name, method in inspect.getmembers(kit, inspect.isfunction):
            if name in {"drain", "run_until"}:
                assert {"max_attempts", "timeout"} <= {*inspect.signature(method).parameters}, (kit, name)
            elif name in {"run_due", "run_one"}:
                assert "timeout" in inspect.signature(method).parameters, (kit, name)
            else:
                assert not name.startswith(("run_", "drain")), f"{kit.__name__}.{name}() needs a bound"


@pytest.mark.parametrize(("kit", "method", "kind"), ENDLESS)
async def test_job_that_never_ends_is_named(
    kit: str, method: str, kind: str, dsn: str, pool: asyncpg.Pool
) -> None:
    async with OPEN[kit](dsn, pool) as opened:
        opened.scheduler.register(endless, name="endless")
        options = {"max_retries": 1000} if kind == "is retried" else {}
        await opened.scheduler.enqueue("endless", args=(kind,), **options)
        with pytest.raises(RuntimeError, match=f"more than {MOST} attempts .* endless {MOST + 1} times"):
            await CALLS[kit, method](opened, max_attempts=MOST)


async def test_kit_claims_no_job_before_its_clock_has_reached_it(dsn: str) -> None:
    statements = Statements()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=4, init=statements.listen) as pool:
        async with TestScheduler(pool, shutdown_timeout=0.1) as t:
            t.scheduler.register(endless, name="endless")
            await t.scheduler.enqueue("endless", args=("sleeps",))
            with pytest.raises(RuntimeError, match=f"more than {MOST} attempts"):
                await t.run_until(timedelta(hours=1), max_attempts=MOST)
        sent = await statements.take()
    claims = sent.named["exchange_jobs"] + sent.named["claim_jobs"]
    # Each sleep takes one claim that finds the job, one that writes its outcome, and one that finds no job.
    assert MOST < claims <= 3 * (MOST + 1)


@pytest.mark.parametrize(("kit", "method"), CALLS)
async def test_attempt_that_does_not_end_in_time_is_named(
    kit: str, method: str, dsn: str, pool: asyncpg.Pool
) -> None:
    async with OPEN[kit](dsn, pool) as opened:
        opened.scheduler.register(stuck, name="stuck")
        await opened.scheduler.enqueue("stuck", job_id="one")
        with pytest.raises(TimeoutError, match=r"these still run: stuck \(id one, attempt 1\)"):
            await CALLS[kit, method](opened, timeout=0.01)


def test_plain_kit_names_the_job_that_never_ends(dsn: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(dsn) as connection:
        kit = TestKit(connection)

        def again() -> None:
            kit.scheduler.enqueue("again", connection=connection)

        kit.scheduler.register(again, name="again")
        kit.scheduler.enqueue("again")
        with pytest.raises(RuntimeError, match=f"again {MOST + 1} times"):
            kit.drain(max_attempts=MOST)
        connection.rollback()


async def test_as_many_jobs_as_the_bound_run(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool) as t:
        t.scheduler.register(endless, name="endless")
        for _ in range(MOST):
            await t.scheduler.enqueue(asyncio.sleep, args=(0,))
        assert await t.drain(max_attempts=MOST) == MOST
        for seconds in range(MOST):
            await t.scheduler.enqueue(asyncio.sleep, args=(0,), delay=timedelta(seconds=seconds))
        assert await t.run_until(timedelta(hours=1), max_attempts=1) == MOST
