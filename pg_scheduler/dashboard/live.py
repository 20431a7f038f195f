"""Send the part of a page that changes, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from time import monotonic
from typing import Final

from starlette.responses import Response, StreamingResponse

from pg_scheduler.dashboard.context import NotFoundError, PageRequest, RejectedError
from pg_scheduler.dashboard.pages import LIVE_PARAMETERS, PAGES
from pg_scheduler.dashboard.rendering import render_region
from pg_scheduler.dashboard.texts import plain
from pg_scheduler.errors import SchedulerError

MAX_SECONDS: Final = 30.0
"""Seconds after which a stream ends. The browser opens another one, so revoked rights take effect."""

MEDIA_TYPE: Final = "text/event-stream"


async def stream(request: PageRequest, *, is_head: bool) -> Response:
    """Return the stream of the page that ``page=`` names: the HTML of its region, each time its data changed.

    Viewers with the same rights share one read per interval, which happens only while there are viewers.

    Raises:
        NotFoundError: The page has no stream.
    """
    path = request.parameters.get("page", "")
    page = PAGES.get(path)
    if page is None or not page.is_live:
        raise NotFoundError("this page has no stream")
    if is_head:
        return Response(media_type=MEDIA_TYPE)
    access, parameters = request.access, request.parameters
    key = (
        "live",
        path,
        request.base,
        access.visible_names,
        access.sees_arguments,
        access.rights,
        *(parameters.get(name) for name in LIVE_PARAMETERS),
    )

    async def read() -> tuple[str, ...]:
        fresh = await request.dated()
        found = await page.build(fresh)
        regions = [render_region(found, each, fresh, path) for each in (page.template, "read")]
        data = plain(found)
        data.pop("next", None)  # the position of the following page, which contains when this one was read
        return json.dumps(data), *regions

    async def events() -> AsyncIterator[str]:
        ends_at, shown = monotonic() + MAX_SECONDS, ""
        yield "retry: 1000\n\n"
        while monotonic() < ends_at:
            try:
                data, html, read_at = await request.cache.get(key, request.settings.refresh_s, read)
            except RejectedError as error:  # what the page shows does not exist any more
                yield _event("problem", str(error))
                return
            except SchedulerError:  # the database is unavailable: the page keeps what it shows
                yield _event("problem", "the database did not answer in time")
            else:
                if data != shown:
                    shown = data
                    yield _event("region", html) + _event("read", read_at)
            await asyncio.sleep(request.settings.refresh_s)

    return StreamingResponse(events(), media_type=MEDIA_TYPE, headers={"x-accel-buffering": "no"})


def _event(name: str, text: str) -> str:
    """Return an event with a text as JSON, because its lines would end the event."""
    return f"event: {name}\ndata: {json.dumps(text)}\n\n"
