"""Keep the message of an action until the next page, in a cookie that this page removes.

So a reload does not repeat the message, and no link can show one.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

MAX_AGE_S: Final = 10


def _name(request: Request, base: str) -> str:
    """Return the name of the cookie, which differs between the dashboards of a host.

    With the prefix, browsers accept it over HTTPS only, and not from another host of the domain.
    """
    prefix = "__Host-" if request.url.scheme == "https" else ""
    return f"{prefix}pg_scheduler-{sha256(base.encode()).hexdigest()[:8]}"


def keep(response: Response, request: Request, base: str, message: str) -> None:
    """Let the next page show a message, given as ``messages.written()`` returns it."""
    is_https = request.url.scheme == "https"
    response.set_cookie(
        _name(request, base), message, max_age=MAX_AGE_S, secure=is_https, httponly=True, samesite="strict"
    )


def read(request: Request, base: str) -> str:
    """Return the message for this page; empty if there is none."""
    return request.cookies.get(_name(request, base), "")


def remove(response: Response, request: Request, base: str) -> None:
    """Let no other page show the message."""
    is_https = request.url.scheme == "https"
    response.delete_cookie(_name(request, base), secure=is_https, httponly=True, samesite="strict")
