"""Send the parts of a page that change, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Hashable, Mapping
from time import monotonic
from typing import Final

from starlette.responses import Response, StreamingResponse

from pg_scheduler.dashboard.context import NotFoundError, PageRequest, RejectedError
from pg_scheduler.dashboard.pages import LIVE_PARAMETERS, PAGES, Page
from pg_scheduler.dashboard.rendering import render_parts
from pg_scheduler.dashboard.snapshot import Snapshot, thinned
from pg_scheduler.errors import SchedulerError

MAX_SECONDS: Final = 30.0
"""Seconds after which a stream ends. The browser opens another one, so revoked rights take effect."""

MEDIA_TYPE: Final = "text/event-stream"


async def stream(request: PageRequest, *, is_head: bool) -> Response:
    """Return the stream of the page that ``page=`` names: its parts, each time their HTML changed.

    A browser states with ``seen=`` which versions it shows, so it receives no part twice.

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
    depends_on = (
        request.base,
        access.visible_names,
        access.sees_arguments,
        access.rights,
        *(parameters.get(name) for name in LIVE_PARAMETERS),
    )

    async def events() -> AsyncIterator[str]:
        """Yield the parts that have changed, in intervals, until the time of the stream is over."""
        ends_at, shown_versions = monotonic() + MAX_SECONDS, parameters.get("seen", "")
        shown_parts: Mapping[str, str] = {}  # the parts as the browser shows them
        # How far the page has come. A new value makes a new snapshot, before the interval is over.
        progress: Hashable = None
        yield "retry: 1000\n\n"
        while monotonic() < ends_at:
            try:
                snapshot = await request.read_shared(
                    _render, path, age_s=request.settings.refresh_s, depends_on=(*depends_on, progress)
                )
            except RejectedError as error:  # what the page shows does not exist any more
                yield _event("problem", str(error))
                return
            except SchedulerError:  # the database is unavailable: the page keeps what it shows
                yield _event("problem", "the database did not answer in time")
            else:
                if changed := snapshot.since(shown_versions, request.operations.now):
                    shown_versions = snapshot.versions
                    parts = {name: thinned(html, shown_parts.get(name, "")) for name, html in changed.items()}
                    yield _event("parts", {**parts, "read": snapshot.read}, shown_versions)
                # thinned() leaves out rows that the browser shows already. So it compares only with parts
                # that the browser is known to show.
                if snapshot.is_shown(shown_versions):
                    shown_parts = snapshot.parts
            if (latest_progress := await _advance(request, page)) is None:
                await asyncio.sleep(request.settings.refresh_s)
            else:
                progress = latest_progress

    return StreamingResponse(events(), media_type=MEDIA_TYPE, headers={"x-accel-buffering": "no"})


async def _render(request: PageRequest, path: str) -> Snapshot:
    page, fresh = PAGES[path], await request.dated()
    return await render_parts(await page.build(fresh), page.template, fresh, path)


async def _advance(request: PageRequest, page: Page) -> Hashable:
    """Continue for a moment what a page shows; return how far that has come, None if nothing continues."""
    if page.advance is None:
        return None
    try:
        return await page.advance(request)
    except SchedulerError:  # the database is unavailable: the next attempt follows after the interval
        return None


def _event(name: str, data: str | Mapping[str, str], versions: str = "") -> str:
    """Return an event. Its data is JSON, which has no line breaks: these would end the data.

    The versions are the id of the event, which the browser sends when it opens the stream again.
    """
    id_line = f"id: {versions}\n" if versions else ""
    return f"event: {name}\n{id_line}data: {json.dumps(data)}\n\n"
