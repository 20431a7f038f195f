"""The headers of every answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

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


def secured(send: Send, *, has_policy: bool, has_body: bool) -> Send:
    """Return the function that sends an answer with these headers.

    Args:
        send: Sends to the server.
        has_policy: Whether the answer is a page of the dashboard. The host's own, such as its login, has
            scripts of its own.
        has_body: Whether the body is sent; not for HEAD.
    """

    async def send_secured(message: Message) -> None:
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
