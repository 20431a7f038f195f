"""Send the parts of a page that change, as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Hashable, Mapping
from time import monotonic
from typing import Final

from starlette.responses import Response, StreamingResponse

from pg_scheduler.base.web_server import is_stopping, sleep_until_stop
from pg_scheduler.dashboard.context import NotFoundError, PageRequest, RejectedError
from pg_scheduler.dashboard.pages import LIVE_PARAMETERS, PAGES, Page
from pg_scheduler.dashboard.rendering import render_parts
from pg_scheduler.dashboard.snapshot import Snapshot, thinned
from pg_scheduler.errors import SchedulerError

MAX_SECONDS: Final = 30.0
"""Seconds after which a stream ends. The browser opens another one, so revoked rights take effect."""

MEDIA_TYPE: Final = "text/event-stream"


async def stream(request: PageRequest, *, is_head: bool) -> Response:
    """Return the event stream of the page that ``page=`` names: its parts, each time their HTML has changed.

    A browser states with ``seen=`` which versions of the parts it shows, so it receives no part twice.
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
    # Viewers for which all of these values are equal receive the same HTML.
    depends_on = (
        request.base,
        access.visible_names,
        access.sees_arguments,
        access.rights,
        *(parameters.get(name) for name in LIVE_PARAMETERS),
    )

    async def events() -> AsyncIterator[str]:
        """Yield the parts that have changed, in intervals, until the time of the stream is over."""
        ends_at = monotonic() + MAX_SECONDS
        shown_versions = parameters.get("seen", "")
        # The parts as the browser shows them; empty until it is known which ones it shows.
        shown_parts: Mapping[str, str] = {}
        # How far a search of the page has come, if it has one that continues. The progress is a part of the
        # key of the shared read, so the page is read again at each progress, before the interval is over.
        progress: Hashable = None
        yield "retry: 1000\n\n"
        # The stream holds back the end of the web server's process, and the browser opens another one.
        while monotonic() < ends_at and not is_stopping():
            try:
                snapshot = await request.read_shared(
                    _render, path, age_s=request.settings.refresh_s, depends_on=(*depends_on, progress)
                )
            # What the page shows does not exist any more, so the stream ends.
            except RejectedError as error:
                yield _event("problem", str(error))
                return
            # The database is unavailable. The page keeps what it shows, and the stream continues.
            except SchedulerError:
                yield _event("problem", "the database did not answer in time")
            else:
                changed_parts = snapshot.since(shown_versions, request.operations.now)
                if changed_parts:
                    shown_versions = snapshot.versions
                    # thinned() leaves out rows that the browser shows already.
                    sent_parts = {
                        name: thinned(html, shown_parts.get(name, "")) for name, html in changed_parts.items()
                    }
                    yield _event("parts", {**sent_parts, "read": snapshot.read}, shown_versions)
                # A part may be thinned only by comparison with HTML that the browser is known to show.
                if snapshot.is_shown(shown_versions):
                    shown_parts = snapshot.parts
            latest_progress = await _advance(request, page)
            # If a search continues, _advance() has taken about half a second for it. Otherwise the stream
            # waits.
            if latest_progress is None:
                await sleep_until_stop(request.settings.refresh_s)
            else:
                progress = latest_progress

    return StreamingResponse(events(), media_type=MEDIA_TYPE, headers={"x-accel-buffering": "no"})


async def _render(request: PageRequest, path: str) -> Snapshot:
    """Read a page as of now, and return the HTML of its parts."""
    page, fresh = PAGES[path], await request.dated()
    return await render_parts(await page.build(fresh), page.template, fresh, path)


async def _advance(request: PageRequest, page: Page) -> Hashable:
    """Continue for a moment the search that a page shows, and return how far it has come.

    The result is None if the page has no search, if its search has ended, or if the database is unavailable:
    then the search is continued after the interval.
    """
    if page.advance is None:
        return None
    try:
        return await page.advance(request)
    except SchedulerError:
        return None


def _event(name: str, data: str | Mapping[str, str], versions: str = "") -> str:
    """Return an event. Its data is JSON, which has no line breaks: these would end the data.

    The versions are the id of the event, which the browser sends when it opens the stream again.
    """
    id_line = f"id: {versions}\n" if versions else ""
    return f"event: {name}\n{id_line}data: {json.dumps(data)}\n\n"
