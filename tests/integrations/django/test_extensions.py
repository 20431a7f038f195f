"""The middleware, the executors and the codec in the ``OPTIONS`` of a backend."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
import sentry_sdk

from pg_scheduler import Codec, JobCall, JobExecutor, ProcessExecutor, ScheduledCall, ThreadExecutor
from pg_scheduler.events import JobFailed
from pg_scheduler.integrations.sentry import SentryMiddleware
from tests.support.codecs import KeyedCodec
from tests.support.django import BACKEND, project, require_tasks, working
from tests.support.patience import PATIENCE
from tests.support.sentry import reporting

require_tasks()

from django.core import checks  # noqa: E402 - only where Django is
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.db import connection  # noqa: E402
from django.test import override_settings  # noqa: E402

from pg_scheduler.integrations.django import Backend, DjangoThreads  # noqa: E402
from pg_scheduler.integrations.django.task import JobTask  # noqa: E402

SENTRY = "pg_scheduler.integrations.sentry.SentryMiddleware"
VALUES: dict[str, Any] = {"priority": 0, "backend": "default", "queue_name": "default", "run_after": None}

HOUR = timedelta(hours=1)

CODEC = f"{__name__}.codec"
codec = KeyedCodec("k1")

around: list[str] = []


async def note(call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
    around.append(call.job.job_name)
    return await call_next()


class Numbered:
    """Adds a header to each job, the same object for all of them."""

    created = 0

    def __init__(self) -> None:
        Numbered.created += 1
        self.number = 0

    def headers(self, _call: ScheduledCall) -> Mapping[str, str]:
        self.number += 1
        return {"number": str(self.number)}

    async def __call__(self, call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
        return await call_next()


class Named:
    """Requires an argument."""

    def __init__(self, name: str) -> None:
        self.name = name


class Counting(JobExecutor):
    """Counts its attempts."""

    attempts = 0

    async def run(self, call: JobCall) -> Any:
        Counting.attempts += 1
        return await asyncio.to_thread(call.func, *call.args, **call.kwargs)


async def count_orders(call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
    from tests.integrations.django.shop.models import Order  # when the settings are there

    await Order.objects.acount()
    return await call_next()


def counted() -> int:
    """Stand for a task with an executor."""
    return 7


def in_few_threads() -> str:
    return threading.current_thread().name


def messages() -> list[tuple[str | None, str]]:
    found = checks.run_checks()
    return [(each.id, each.msg) for each in found if (each.id or "").startswith("pg_scheduler")]


async def value_of(scheduler: Any, job_id: str) -> Any:
    return (await scheduler.get_job_result(job_id)).unwrap()


# -- Sentry --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [SENTRY, SentryMiddleware(on="failed")], ids=["path", "object"])
@pytest.mark.parametrize(("task", "error"), [("fail", "OutOfStockError"), ("exit_async", "SystemExit")])
async def test_failed_task_is_one_event_in_the_trace_of_the_request(
    dsn: str, given: Any, task: str, error: str
) -> None:
    """Django logs the failure, too, from which Sentry would make another event."""
    with reporting() as sentry, project(dsn, OPTIONS={"MIDDLEWARE": [given]}) as shop:
        failing = getattr(shop, task)
        with sentry_sdk.isolation_scope(), sentry_sdk.start_transaction(name="POST /orders") as request:
            result = failing.enqueue()
        async with working() as (_, seen):
            await seen.until(JobFailed, job_id=result.id)
        name = f"{failing.module_path}@default"
        assert sentry.errors == [error]
        (event,) = sentry.of("event")
        assert event["tags"] == {"job_id": result.id, "job_name": name, "attempt": "1"}
        (sent,) = sentry.transactions("POST /orders")
        (publish,) = [span for span in sent["spans"] if span["op"] == "queue.publish"]
        (attempt,) = sentry.transactions(name)
        assert attempt["contexts"]["trace"]["trace_id"] == request.trace_id
        assert attempt["contexts"]["trace"]["parent_span_id"] == publish["span_id"]


# -- middleware ----------------------------------------------------------------------------------------


async def test_middleware_runs_around_tasks_of_both_kinds(dsn: str) -> None:
    around.clear()
    with project(dsn, OPTIONS={"MIDDLEWARE": [f"{__name__}.note"]}) as shop:
        plain, coroutine = shop.add.enqueue(1), shop.describe_async.enqueue("x")
        async with working() as (scheduler, _):
            assert await value_of(scheduler, plain.id) == 2
            assert (await value_of(scheduler, coroutine.id))[0] == "x"
    assert sorted(around) == sorted(f"{each.module_path}@default" for each in (shop.add, shop.describe_async))


async def test_middleware_of_a_path_is_one_object_for_all_threads(dsn: str, pool: asyncpg.Pool) -> None:
    Numbered.created = 0
    with project(dsn, OPTIONS={"MIDDLEWARE": [f"{__name__}.Numbered"]}) as shop:

        def enqueue() -> None:
            shop.add.enqueue(1)
            connection.close()

        for _ in range(2):
            thread = threading.Thread(target=enqueue)  # which has a backend of its own
            thread.start()
            thread.join()
    rows = await pool.fetch("SELECT task_data->'metadata'->'trace'->>'number' FROM scheduled_jobs ORDER BY 1")
    assert [row[0] for row in rows] == ["1", "2"]
    assert Numbered.created == 1


async def test_sessions_of_middleware_are_closed_after_each_attempt(dsn: str, pool: asyncpg.Pool) -> None:
    await pool.execute("CREATE TABLE shop_order (id bigint PRIMARY KEY, number int)")
    sessions = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND application_name = '' AND query LIKE '%shop_order%' AND pid <> pg_backend_pid()"""
    with project(dsn, OPTIONS={"MIDDLEWARE": [f"{__name__}.count_orders"]}) as shop:
        async with working() as (scheduler, _):
            for _ in range(3):
                assert await value_of(scheduler, shop.add.enqueue(1).id) == 2
            async with asyncio.timeout(PATIENCE):
                while await pool.fetchval(sessions):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # until the server has ended them


# -- executors -----------------------------------------------------------------------------------------


async def test_task_runs_in_the_executor_that_it_names(dsn: str) -> None:
    Counting.attempts = 0
    with project(dsn, OPTIONS={"EXECUTORS": {"counting": f"{__name__}.Counting"}}):
        task = JobTask(func=counted, takes_context=False, executor="counting", **VALUES)
        async with working() as (scheduler, _):
            assert await value_of(scheduler, task.enqueue().id) == 7
    assert Counting.attempts == 1


async def test_threads_of_an_executor_are_limited_and_close_their_connections(dsn: str) -> None:
    few = DjangoThreads(threads=1)
    assert (few.capacity, DjangoThreads().capacity) == (1, None)
    with project(dsn, OPTIONS={"EXECUTORS": {"few": few}}):
        async with working() as (scheduler, _):
            scheduler.register(in_few_threads, name="django.threads", executor="few")
            ids = [await scheduler.enqueue(in_few_threads, keep_result=HOUR) for _ in range(3)]
            assert len({await value_of(scheduler, job_id) for job_id in ids}) == 1


def test_task_in_a_process_is_refused(shop: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot run the task .*\.counted_in_process"):
        JobTask(func=counted_in_process, takes_context=False, executor="process", **VALUES)


def counted_in_process() -> None:
    """Stand for a task that would need a process."""


# -- codec ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [CODEC, KeyedCodec("k1")], ids=["path", "object"])
async def test_arguments_and_results_of_tasks_are_encoded(
    dsn: str, pool: asyncpg.Pool, given: str | Codec
) -> None:
    with project(dsn, OPTIONS={"CODEC": given}) as shop:
        result = shop.add.enqueue(1)
        async with working() as (scheduler, _):
            assert await value_of(scheduler, result.id) == 2
        result.refresh()
        assert (result.args, result.return_value) == ([1], 2)
    stored = await pool.fetchval("SELECT task_data->'args'->>'key' FROM scheduled_jobs")
    kept = await pool.fetchval("SELECT value->>'key' FROM scheduler_results")
    assert (stored, kept) == ("k1", "k1")


# -- mistakes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"MIDDLEWARE": SENTRY}, "MIDDLEWARE must be a list"),
        ({"EXECUTORS": [SENTRY]}, "EXECUTORS must be a dict"),
    ],
)
def test_wrong_collection_is_an_error_of_the_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"TASKS\['jobs'\]\['OPTIONS'\]: " + message):
        Backend("jobs", {"OPTIONS": options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"MIDDLEWARE": ["sentry"]}, "['MIDDLEWARE']: sentry doesn't look like a module path"),
        ({"MIDDLEWARE": ["shop.absent.one"]}, "['MIDDLEWARE']: No module named 'shop'"),
        ({"MIDDLEWARE": [f"{__name__}.absent"]}, 'does not define a "absent" attribute'),
        ({"MIDDLEWARE": [f"{__name__}.counted"]}, "middleware[0] must be a coroutine function"),
        ({"MIDDLEWARE": [f"{__name__}.Named"]}, f"the class '{__name__}.Named' requires arguments"),
        ({"MIDDLEWARE": [SENTRY, 7]}, "middleware[1] must be a coroutine function"),
        ({"CODEC": f"{__name__}.absent"}, 'does not define a "absent" attribute'),
        (
            {"CODEC": f"{__name__}.counted"},
            "codec must be an object with name, key_id, encode() and decode()",
        ),
        ({"EXECUTORS": {"async": f"{__name__}.Counting"}}, "cannot replace 'async'"),
        ({"EXECUTORS": {"one": f"{__name__}.counted"}}, "executors['one'] must be a JobExecutor"),
        ({"EXECUTORS": {"thread": ThreadExecutor(8)}}, "use pg_scheduler.integrations.django.DjangoThreads"),
        ({"EXECUTORS": {"one": ProcessExecutor(1)}}, "use pg_scheduler.integrations.django.DjangoProcesses"),
    ],
)
def test_mistake_is_reported_by_the_checks_and_at_the_use(
    dsn: str, options: dict[str, Any], message: str
) -> None:
    with project(dsn), override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        ((code, found),) = messages()
        backend = Backend("default", {"OPTIONS": options})
        if "EXECUTORS" not in options:
            with pytest.raises(ImproperlyConfigured):
                _ = backend.client
    assert code == "pg_scheduler.E003"
    assert found.startswith("TASKS['default']['OPTIONS']")
    assert message in found
