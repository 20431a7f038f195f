"""Let in the browser that opens a link which only the terminal shows, and confirms it.

Programs open links too: those that preview a message, scan it or fetch a page in advance. So the link shows a
page with a button, and only the POST of the button uses up the link. The response to the POST is a redirect
within this site. So the browser sends the cookie, which is ``SameSite=Strict``, wherever the user found the
link.
"""

from __future__ import annotations

import secrets
from hmac import compare_digest
from html import escape
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pg_scheduler.dashboard.access import Access, Role
from pg_scheduler.dashboard.answers import public_page, refusal
from pg_scheduler.dashboard.context import base_of
from pg_scheduler.dashboard.headers import secured

FORM: Final = """<p>This link lets in one browser.</p>
<form method="post" action="{action}"><button autofocus>Open the dashboard</button></form>"""


class OneTimeLink:
    """An ``authorize=`` for the browser that receives the cookie of the link.

    The cookie lasts as long as this object.
    """

    def __init__(self, name: str, role: Role = "admin") -> None:
        self._name = name
        self._access = Access("terminal", role)
        self._cookie = secrets.token_urlsafe(32)
        self._token: str | None = secrets.token_urlsafe(32)

    @property
    def query(self) -> str:
        """The query string of the link, after its path."""
        return f"?token={self._token}"

    def __call__(self, request: Request) -> Access | Response:
        """Let in a request with the cookie of the link, and refuse any other."""
        cookie = request.cookies.get(self._name, "")
        if compare_digest(cookie.encode(), self._cookie.encode()):
            return self._access
        text = "open the link that the terminal shows"
        if self._token is None:
            text = "the link of the terminal works once, and was used; start the dashboard again for another"
        return refusal(request, 403, text)

    def before(self, app: ASGIApp) -> ASGIApp:
        """Return an application that answers the link, and passes other requests to ``app``."""

        async def entrance(scope: Scope, receive: Receive, send: Send) -> None:
            """Answer a request for the link, and pass any other one to the application."""
            answer = self._answer(Request(scope)) if scope["type"] == "http" else None
            if answer is None:
                await app(scope, receive, send)
            else:
                has_body = scope["method"] != "HEAD"
                await answer(scope, receive, secured(send, has_policy=True, has_body=has_body))

        return entrance

    def _answer(self, request: Request) -> Response | None:
        """Return the answer to a request for the link: a page with a button, or what follows its POST.

        None for a request without the token of the link, or after the link was used.
        """
        token = request.query_params.get("token", "")
        if self._token is None or not compare_digest(token.encode(), self._token.encode()):
            return None
        # An address that begins with two slashes would lead to another host.
        root = "/" + f"{base_of(request, trust_forwarded=False)}/".lstrip("/")
        if request.method != "POST":
            return public_page(request, "Dashboard", FORM.format(action=escape(root + self.query)))
        self._token = None
        answer = RedirectResponse(root, status_code=303)
        answer.set_cookie(self._name, self._cookie, httponly=True, samesite="strict")
        return answer
