"""Send the stream of a job to browsers as server-sent events, from applications of Starlette and FastAPI.

It needs Starlette, which FastAPI installs. An endpoint that decides who may read returns `stream_response()`;
`stream_route()` is such an endpoint with a route.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from time import monotonic
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from pg_scheduler import Job, JobNotFoundError, Scheduler, StreamItem
from pg_scheduler.base.web_server import LOOK_INTERVAL_S, is_stopping
from pg_scheduler.tools import check_scheduler

__all__ = ["stream_response", "stream_route"]

HEARTBEAT_S: Final = 15.0
"""Seconds after which a comment is sent if nothing else was, so that proxies keep the connection open."""

HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Neither a cache nor nginx keeps the events back."""


async def stream_response(
    request: Request, scheduler: Scheduler, job_id: str, name: str, *, heartbeat: float = HEARTBEAT_S
) -> Response:
    """Return the items of a stream as server-sent events: those that are stored, then each new one.

    An event has the number of its item as the id and its value as JSON. So a browser that connects again
    continues behind its last item: it sends the header ``Last-Event-ID``. For a reload of the page, pass the
    last number as the parameter ``after`` of the URL. The last event has the type ``end`` and as its data an
    object with the ``status`` of the job. Close the ``EventSource`` then, since it connects again otherwise.

    If the client disconnects, the iteration over the stream ends. If uvicorn shuts down, the response ends
    within a second, and the client connects again. The endpoint decides before this call whether the client
    may read the job.

    Args:
        request: The request.
        scheduler: Reads the stream. It need not be started.
        job_id: The job.
        name: The name of the stream.
        heartbeat: Seconds after which a comment is sent if no item was.

    Returns:
        The response: a stream of events, 404 if there is no such job, or 400 if the number is none.

    Raises:
        TypeError: ``scheduler`` is no Scheduler.
        ValueError: ``job_id`` or ``name`` is empty or too long.

    Example::

        from fastapi import FastAPI, Request, Response

        from pg_scheduler.integrations.fastapi import SchedulerDep
        from pg_scheduler.integrations.starlette import stream_response

        app = FastAPI()


        @app.get("/answers/{job_id}")
        async def answer(request: Request, job_id: str, scheduler: SchedulerDep) -> Response:
            return await stream_response(request, scheduler, job_id, "words")
    """
    check_scheduler(scheduler)
    # The header is newer than the URL, which stays the same when the browser connects again.
    text = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        return PlainTextResponse("Last-Event-ID and after= must be the number of an item\n", 400)
    try:
        items = scheduler.stream(job_id, name, after=int(text))
    except ValueError:
        if int(text) == 0:
            raise
        return PlainTextResponse(f"a stream has no item {int(text)}\n", 400)
    job = await scheduler.get_job(job_id)
    if job is None:
        return PlainTextResponse("there is no such job\n", 404)
    events = _events(scheduler, job, items, heartbeat)
    return StreamingResponse(events, media_type="text/event-stream", headers=HEADERS)


def stream_route(
    path: str = "/jobs/{job_id}/streams/{name}",
    *,
    access: Callable[[Request, str, str], Awaitable[bool]],
    scheduler: Callable[[Request], Scheduler] | None = None,
) -> Route:
    """Return a route for all streams, for ``Starlette(routes=[...])`` or ``FastAPI(routes=[...])``.

    Args:
        path: The path, with the parameters ``job_id`` and ``name``. A job id with slashes needs
            ``{job_id:path}``.
        access: Decides whether a client may read a stream, by the request, the job id and the name. The
            response is 404 otherwise, as for a job that does not exist.
        scheduler: Returns the Scheduler for a request; None for the one that the lifespan of the application
            yields as ``scheduler``.

    Raises:
        TypeError: ``scheduler`` is no function.

    Example::

        from starlette.applications import Starlette
        from starlette.requests import Request

        from pg_scheduler.integrations.starlette import stream_route


        async def is_owner(request: Request, job_id: str, name: str) -> bool:
            return job_id.startswith(f"answer:{request.user.username}:")


        app = Starlette(routes=[stream_route(access=is_owner)])
    """
    _check_function(scheduler)

    async def endpoint(request: Request) -> Response:
        """Check the access, and return the events."""
        job_id, name = request.path_params["job_id"], request.path_params["name"]
        # Only True grants access: a coroutine that was not awaited, or None, does not.
        if await access(request, job_id, name) is not True:
            return PlainTextResponse("there is no such job\n", 404)
        # Without a lifespan that yields one, stream_response() raises the error with the remedy.
        found_scheduler: Any = getattr(request.state, "scheduler", None)
        if scheduler is not None:
            found_scheduler = scheduler(request)
        try:
            return await stream_response(request, found_scheduler, job_id, name)
        except ValueError as error:  # the id or the name in the URL is too long
            return PlainTextResponse(f"{error}\n", 400)

    return Route(path, endpoint, methods=["GET"], name="job_stream")


def _check_function(scheduler: object) -> None:
    """Raise TypeError with the remedy unless it is a function, which returns the Scheduler, or None."""
    if scheduler is not None and (not callable(scheduler) or isinstance(scheduler, type)):
        raise TypeError(
            f"scheduler must be a function of the request, not {type(scheduler).__name__}; pass "
            "scheduler=lambda request: scheduler"
        )


async def _events(
    scheduler: Scheduler, job: Job, items: AsyncIterator[StreamItem], heartbeat: float
) -> AsyncIterator[str]:
    """Yield the items as events, comments in between, and the end."""
    # The first bytes open the connection for the browser before there is an item.
    yield ": open\n\n"
    try:
        async with aclosing(_with_heartbeats(items, heartbeat)) as parts:
            async for item in parts:
                if item is None:
                    yield ": heartbeat\n\n"
                else:
                    yield f"id: {item.number}\ndata: {_json(item.value)}\n\n"
        # The browser connects again, to another process or to the next one, and continues there.
        if is_stopping():
            return
        ended_job = await scheduler.get_job(job.job_id)
    except JobNotFoundError:
        ended_job = None
    # A job that was deleted meanwhile has no status.
    status = None if ended_job is None else ended_job.status.value
    yield f"event: end\ndata: {_json({'status': status})}\n\n"


async def _with_heartbeats(
    items: AsyncIterator[StreamItem], heartbeat: float
) -> AsyncGenerator[StreamItem | None]:
    """Yield the items until the web server stops, and None each time that none has come for a while."""
    pending: asyncio.Future[StreamItem | None] | None = None
    next_heartbeat = monotonic() + heartbeat
    try:
        while True:
            if pending is None:
                pending = asyncio.ensure_future(anext(items, None))
            await asyncio.wait([pending], timeout=min(next_heartbeat - monotonic(), LOOK_INTERVAL_S))
            if is_stopping():
                return
            if not pending.done():
                if monotonic() >= next_heartbeat:
                    next_heartbeat = monotonic() + heartbeat
                    yield None
                continue
            next_heartbeat = monotonic() + heartbeat
            item, pending = pending.result(), None
            if item is None:
                return
            yield item
    finally:
        # The client has gone, or the stream has ended.
        if pending is not None:
            pending.cancel()


def _json(value: Any) -> str:
    """Return a value as JSON in one line, since a line break would end the data of the event."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
