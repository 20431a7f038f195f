"""The density of tables. It is in a cookie, so the server writes it into each page before the first paint."""

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
    """Return whether the user has chosen compact tables, which show more rows, in this browser."""
    return request.cookies.get(_name(request)) == COMPACT


async def choose(request: Request, base: str) -> Response:
    """Store the chosen density in a cookie, and send the browser back to the page of the form.

    An address that is no page of the dashboard leads to the first page.

    Raises:
        RejectedError: The form is invalid.
    """
    form = await read_form(request)
    back = form.get("back", ["/"])[0]
    path_of_back, _, _ = back.partition("?")
    # Only an address of this dashboard is accepted, so that the form cannot lead to another site.
    answer = RedirectResponse(base + (back if path_of_back in PAGES else "/"), 303)
    name, is_https = _name(request), request.url.scheme == "https"
    if form.get("rows") == [COMPACT]:
        answer.set_cookie(name, COMPACT, MAX_AGE_S, secure=is_https, httponly=True, samesite="lax")
    else:
        answer.delete_cookie(name, secure=is_https, httponly=True, samesite="lax")
    return answer


def _name(request: Request) -> str:
    """Return the name of the cookie. Browsers accept its prefix over HTTPS only."""
    return f"{'__Host-' if request.url.scheme == 'https' else ''}pg_scheduler-density"
