"""Add headers to every answer, and compress it unless another site has caused the request.

The reason for the exception is the attack BREACH: a site makes a browser request pages with texts of its
choice, sees the lengths of the encrypted answers, and finds out from these what else a compressed page
contains. Browsers state with ``Sec-Fetch-Site`` which site a request comes from. So a page is compressed only
if a page of the dashboard, or the user, requests it. Static files contain no secret, and are always
compressed. Streams and exported files are never compressed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Send

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy: no inline script, no inline style, nothing from another host."""

ALWAYS: Final[Mapping[str, str]] = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with "no-referrer", browsers send "Origin: null" with forms
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers that an answer has unless it sets them itself."""

OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Where a request comes from: a page of the same origin, or the user, who enters an address."""

STATIC: Final = ("text/css", "text/javascript", "image/svg+xml")
MIN_BYTES: Final = 1000
LEVEL: Final = 5
"""Level 9 takes twice as long for 3 % less."""


def secured(send: Send, *, has_policy: bool, has_body: bool) -> Send:
    """Return the function that sends an answer with the headers of this module.

    Args:
        send: Sends to the server.
        has_policy: Whether the answer gets the Content-Security-Policy. An answer of ``authorize=``, such as
            a login page, may have scripts of its own, so it does not get it.
        has_body: Whether the body is sent; not for HEAD.
    """

    async def send_secured(message: Message) -> None:
        """Send a message of the answer: its start with the headers, or its body if it is to be sent."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in ALWAYS.items():
                headers.setdefault(name, value)
            if has_policy:
                headers["content-security-policy"] = POLICY
        elif message["type"] == "http.response.body" and not has_body:
            message = {**message, "body": b""}
        await send(message)

    return send_secured


def compressed(response: Response, request: Request) -> ASGIApp:
    """Return the answer; compressed, if that is safe for its content and the browser accepts it."""
    # The module explains why a page is not compressed for another site.
    is_own = request.headers.get("sec-fetch-site") in OWN_SITES
    is_static = response.headers.get("content-type", "").startswith(STATIC)
    if is_static or (is_own and isinstance(response, HTMLResponse)):
        return GZipMiddleware(response, minimum_size=MIN_BYTES, compresslevel=LEVEL)
    return response
