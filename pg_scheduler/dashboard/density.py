"""The density of tables: kept in a cookie, so the server writes it into each page, before the first paint."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pg_scheduler.dashboard.actions.request import read_form
from pg_scheduler.dashboard.pages import PAGES

PATH: Final = "/density"
COMPACT: Final = "compact"
MAX_AGE_S: Final = 365 * 86400


def is_compact(request: Request) -> bool:
    """Return whether this browser shows more rows."""
    return request.cookies.get(_name(request)) == COMPACT


async def choose(request: Request, base: str) -> Response:
    """Keep what was chosen, and return to the page on which it was.

    Raises:
        RejectedError: The form is invalid.
    """
    form = await read_form(request)
    back = form.get("back", ["/"])[0]
    answer = RedirectResponse(base + (back if back.partition("?")[0] in PAGES else "/"), 303)
    name, is_https = _name(request), request.url.scheme == "https"
    if form.get("rows") == [COMPACT]:
        answer.set_cookie(name, COMPACT, MAX_AGE_S, secure=is_https, httponly=True, samesite="lax")
    else:
        answer.delete_cookie(name, secure=is_https, httponly=True, samesite="lax")
    return answer


def _name(request: Request) -> str:
    return f"{'__Host-' if request.url.scheme == 'https' else ''}pg_scheduler-density"
