"""Let in the browser that opens a link which only the terminal shows."""

from __future__ import annotations

import secrets
from hmac import compare_digest

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from pg_scheduler.dashboard.access import Access
from pg_scheduler.dashboard.rights import Role

__all__ = ["OneTimeLink"]


class OneTimeLink:
    """An ``authorize=``: the first request with the token receives a cookie.

    The cookie lasts as long as this object.

    Args:
        name: The name of the cookie. Browsers send the cookies of a host to each of its ports.
        role: The role of the browser.
    """

    def __init__(self, name: str, role: Role = "admin") -> None:
        self._name = name
        self._access = Access("terminal", role)
        self._cookie = secrets.token_urlsafe(32)
        self._token: str | None = secrets.token_urlsafe(32)

    @property
    def query(self) -> str:
        """What the link has after its path."""
        return f"?token={self._token}"

    def __call__(self, request: Request) -> Access | Response:
        """Decide about a request."""
        given = request.cookies.get(self._name, "")
        if compare_digest(given.encode(), self._cookie.encode()):
            return self._access
        token = request.query_params.get("token", "")
        if self._token is None or not compare_digest(token.encode(), self._token.encode()):
            text = "open the link that the terminal shows; it works once, so start the dashboard again\n"
            return PlainTextResponse(text, status_code=403)
        self._token = None
        answer = RedirectResponse(request.url.path, status_code=303)
        answer.set_cookie(self._name, self._cookie, httponly=True, samesite="strict")
        return answer
