"""Streams of jobs as server-sent events, in applications of Starlette and FastAPI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pg_scheduler import Scheduler, current_job
from pg_scheduler.integrations.starlette import stream_response, stream_route
from tests.support.event_client import Client
from tests.support.patience import PATIENCE


@pytest.fixture
async def scheduler(pool: asyncpg.Pool) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(pool, shutdown_timeout=0.05)
    await scheduler.start()
    yield scheduler
    await scheduler.shutdown()


async def everyone(*_: object) -> bool:
    return True


def starlette(**options: Any) -> Starlette:
    return Starlette(routes=[stream_route(**{"access": everyone} | options)])


async def speak(words: str) -> None:
    for word in words.split():
        await current_job().stream("words").append({"word": word})


async def events_of(app: Any, url: str, scheduler: Scheduler, **headers: str) -> list[str]:
    async with Client(app, url, scheduler, **headers) as client:
        parts = await client.rest()
        assert client.status == 200
        assert client.headers["content-type"].startswith("text/event-stream")
        assert client.headers["cache-control"] == "no-store"
    return parts


ENDED = 'event: end\ndata: {"status":"completed"}\n\n'


async def test_items_are_events_with_their_numbers_as_ids(scheduler: Scheduler) -> None:
    job_id = await scheduler.enqueue(speak, args=("a ü\n",), job_id="job")
    parts = await events_of(starlette(), f"/jobs/{job_id}/streams/words", scheduler)
    assert parts == [
        ": open\n\n",
        'id: 1\ndata: {"word":"a"}\n\n',
        'id: 2\ndata: {"word":"ü"}\n\n',
        ENDED,
    ]


async def test_browser_that_connects_again_continues_behind_its_last_item(scheduler: Scheduler) -> None:
    job_id = await scheduler.enqueue(speak, args=("a b c",), job_id="job")
    url = f"/jobs/{job_id}/streams/words"
    third = 'id: 3\ndata: {"word":"c"}\n\n'
    assert (await events_of(starlette(), f"{url}?after=2", scheduler))[1:] == [third, ENDED]
    assert (await events_of(starlette(), url, scheduler, last_event_id="2"))[1:] == [third, ENDED]
    assert (await events_of(starlette(), f"{url}?after=1", scheduler, last_event_id="3"))[1:] == [ENDED]


@pytest.mark.parametrize("number", ["-1", "x", "1" * 10, "999999999", "²"])
async def test_number_that_is_none_is_refused(scheduler: Scheduler, number: str) -> None:
    await scheduler.enqueue(speak, args=("a",), job_id="job")
    async with Client(starlette(), f"/jobs/job/streams/words?after={number}", scheduler) as client:
        await client.rest()
    assert client.status == 400


async def test_unknown_job_and_refused_access_look_the_same(scheduler: Scheduler) -> None:
    await scheduler.enqueue(speak, args=("a",), job_id="job")

    async def nobody(*_: object) -> Any:
        return "not True"

    for app, job_id in ((starlette(), "none"), (starlette(access=nobody), "job")):
        async with Client(app, f"/jobs/{job_id}/streams/words", scheduler) as client:
            assert await client.rest() == ["there is no such job\n"]
        assert client.status == 404


async def test_name_that_is_too_long_is_refused(scheduler: Scheduler) -> None:
    async with Client(starlette(), f"/jobs/job/streams/{'x' * 300}", scheduler) as client:
        await client.rest()
    assert client.status == 400


async def test_access_gets_the_request_the_job_and_the_stream(scheduler: Scheduler) -> None:
    seen: list[Any] = []

    async def access(request: Request, job_id: str, name: str) -> bool:
        seen.append((request.query_params["user"], job_id, name))
        return True

    await scheduler.enqueue(speak, args=("a",), job_id="job")
    await events_of(starlette(access=access), "/jobs/job/streams/words?user=ann", scheduler)
    assert seen == [("ann", "job", "words")]


async def test_heartbeats_are_sent_while_nothing_comes(scheduler: Scheduler) -> None:
    go = asyncio.Event()

    async def wait() -> None:
        await go.wait()
        await current_job().stream("words").append(1)

    async def endpoint(request: Request) -> Response:
        return await stream_response(request, scheduler, "job", "words", heartbeat=0.01)

    await scheduler.enqueue(wait, job_id="job")
    async with Client(Starlette(routes=[Route("/", endpoint)]), "/", scheduler) as client:
        assert [await client.part() for _ in range(3)] == [": open\n\n", *[": heartbeat\n\n"] * 2]
        go.set()
        parts = await client.rest()
    assert [part for part in parts if part != ": heartbeat\n\n"] == ["id: 1\ndata: 1\n\n", ENDED]


async def test_client_that_disconnects_ends_its_reader(scheduler: Scheduler) -> None:
    go = asyncio.Event()

    async def wait() -> None:
        await current_job().stream("words").append(1)
        await go.wait()

    await scheduler.enqueue(wait, job_id="job")
    readers = scheduler._parts.stream_readers
    async with Client(starlette(), "/jobs/job/streams/words", scheduler) as client:
        assert [await client.part() for _ in range(2)] == [": open\n\n", "id: 1\ndata: 1\n\n"]
        client.leave()
        await client.rest()
        async with asyncio.timeout(PATIENCE):
            while readers.count:  # noqa: ASYNC110 - the generator ends in another task
                await asyncio.sleep(0)
    go.set()


async def test_job_that_is_deleted_ends_the_stream(scheduler: Scheduler, pool: asyncpg.Pool) -> None:
    async def wait() -> None:
        await current_job().stream("words").append(1)
        await asyncio.Event().wait()

    await scheduler.enqueue(wait, job_id="job")
    async with Client(starlette(), "/jobs/job/streams/words", scheduler) as client:
        assert [await client.part() for _ in range(2)][1] == "id: 1\ndata: 1\n\n"
        await pool.execute("DELETE FROM scheduled_jobs")
        assert await client.rest() == ['event: end\ndata: {"status":null}\n\n']


async def test_fastapi_uses_the_same_route_and_response(scheduler: Scheduler) -> None:
    fastapi = pytest.importorskip("fastapi", exc_type=ImportError)
    from pg_scheduler.integrations.fastapi import get_scheduler

    default: Any = fastapi.Depends(get_scheduler)

    async def endpoint(request: Request, job_id: str, found: Any = default) -> Any:
        return await stream_response(request, found, job_id, "words")

    # The annotations are texts, which FastAPI evaluates by the names of the module.
    endpoint.__annotations__ = {"request": Request, "job_id": str}
    app = fastapi.FastAPI(routes=[stream_route(access=everyone)])
    app.get("/answers/{job_id}", response_model=None)(endpoint)
    await scheduler.enqueue(speak, args=("a",), job_id="job")
    expected = [": open\n\n", 'id: 1\ndata: {"word":"a"}\n\n', ENDED]
    assert await events_of(app, "/answers/job", scheduler) == expected
    assert await events_of(app, "/jobs/job/streams/words", scheduler) == expected
