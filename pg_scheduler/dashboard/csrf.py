"""Tell requests of the dashboard's own pages from those that another site makes a browser send.

A browser states with each unsafe request where it comes from: in ``Sec-Fetch-Site`` if the address is HTTPS
or that of this machine, and in ``Origin``. So no token is needed, and no session or cookie to keep one in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from starlette.requests import Request

_ORIGIN: Final = re.compile(r"https?://[^/\s?#@]+")


def check_origins(origins: Iterable[str]) -> frozenset[str]:
    """Return the origins in lower case.

    Raises:
        TypeError: They are a str.
        ValueError: One of them is not an origin.
    """
    if isinstance(origins, str):
        raise TypeError(f"trusted_origins must be several origins, not a str; write ({origins!r},)")
    candidates: list[object] = list(origins)
    for origin in candidates:
        if not isinstance(origin, str) or not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f'each of trusted_origins must be an origin such as "https://example.org", not {origin!r}'
            )
    return frozenset(str(origin).lower() for origin in candidates)


def is_own_request(request: Request, trusted: frozenset[str]) -> bool:
    """Return whether an unsafe request comes from a page of this origin, or of a trusted one.

    If the browser states the site, ``Origin`` is not compared with ``Host``: ``Host`` has no scheme, so a
    page of the same host over HTTP would pass for one over HTTPS. A request with neither ``Sec-Fetch-Site``
    nor ``Origin`` does not come from a browser. It must have the header ``Authorization``, which a page of
    another site cannot set.
    """
    sites = request.headers.getlist("sec-fetch-site")
    origins = request.headers.getlist("origin")
    # No browser sends one of these headers twice.
    if len(sites) > 1 or len(origins) > 1:
        return False
    origin = origins[0].lower() if origins else None
    if sites:
        return sites[0] == "same-origin" or origin in trusted
    if origin is None:
        return "authorization" in request.headers
    return origin in trusted or _is_host(origin, request)


def _is_host(origin: str, request: Request) -> bool:
    """Return whether the request was sent to the host of an origin."""
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or not _ORIGIN.fullmatch(origin):
        return False
    _scheme, _, host_of_origin = origin.partition("//")
    return host_of_origin == hosts[0].lower()
