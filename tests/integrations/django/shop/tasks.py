"""Tasks, as users write them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

from pg_scheduler import Abort, Snooze, current_job
from tests.integrations.django.shop.models import Order


class OutOfStockError(Exception):
    """An error with a path of its own."""


class ShortagesError(ExceptionGroup[Exception]):
    """Several errors."""


@task
def add(one: int, other: int = 1) -> int:
    return one + other


@task(queue_name="mail", priority=20)
def send(to: str) -> str:
    return f"sent to {to}"


@task(takes_context=True)
def describe(context: Any, word: str) -> dict[str, Any]:
    result = context.task_result
    return {"word": word, "id": result.id, "attempt": context.attempt, "workers": result.worker_ids}


@task(takes_context=True)
async def describe_async(context: Any, word: str) -> list[Any]:
    await asyncio.sleep(0)
    return [word, context.task_result.id, context.attempt]


@task
def fail(how: str = "stock") -> None:
    match how:
        case "stock":
            raise OutOfStockError("no\nmore")
        case "value":
            raise ValueError("bad")
        case "group":
            raise ShortagesError("two", [OutOfStockError("one"), ValueError("other")])
        case "exit":
            raise SystemExit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "abort":
            raise Abort("never")
        case "snooze":
            raise Snooze(3600)


@task
async def exit_async() -> None:
    raise SystemExit(3)


@task
async def wait_in_thread() -> None:
    """Wait in the thread of the ORM, which cannot be cancelled."""

    def wait() -> None:
        connection.ensure_connection()
        sessions.append(connection.connection)
        gate.wait()

    await sync_to_async(wait)()


@task
def unserialisable(how: str = "object") -> object:
    values: dict[str, object] = {"object": threading, "nul": "a\0b", "keys": {1: "one"}}
    return values[how]


@task
async def unserialisable_async(how: str) -> object:
    return unserialisable.call(how)


@task(takes_context=True)
def fail_once(context: Any) -> list[Any]:
    if context.attempt == 1:
        raise OutOfStockError("once")
    return [context.attempt, len(context.task_result.worker_ids), len(context.task_result.errors)]


@task
def session() -> list[Any]:
    """Return the thread and the session of the ORM."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return [threading.get_ident(), cursor.fetchone()[0]]


@task
def count_queries() -> int:
    """Return how many queries the ORM remembers, this one among them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return len(connection.queries)


@task
async def session_async() -> int:
    first: int = await Order.objects.acount()
    return first + int(await Order.objects.acount())


@task
async def meet(number: int) -> int:
    """Return how many tasks run at the same time."""
    barrier = meetings.setdefault(number, asyncio.Barrier(number))
    await Order.objects.acount()
    async with asyncio.timeout(30):
        await barrier.wait()
    return number


@task
def sleep_until_cancelled() -> str:
    event = threading.Event()
    while not current_job().is_cancelled:
        event.wait(0.01)
    return "cancelled"


gate = threading.Event()

sessions: list[Any] = []

meetings: dict[int, asyncio.Barrier] = {}

TASKS = [
    add,
    send,
    describe,
    describe_async,
    fail,
    fail_once,
    exit_async,
    wait_in_thread,
    unserialisable,
    unserialisable_async,
    session,
    count_queries,
    session_async,
    meet,
    sleep_until_cancelled,
]
