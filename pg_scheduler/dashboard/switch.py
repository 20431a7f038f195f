"""Several Schedulers in one dashboard: each has a part of the address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from pg_scheduler.dashboard.context import path_of

MAX_SOURCES: Final = 50

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._~-]{0,63}")


class Switch:
    """Passes each request on to the dashboard of the source that its path names, else to the first one."""

    def __init__(self, apps: Mapping[str, ASGIApp]) -> None:
        self._apps = apps
        self._first = next(iter(apps))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        name = self._first
        if scope["type"] == "http":
            path = path_of(Request(scope)).removeprefix("/")
            first_part, _, remainder = path.partition("/")
            if first_part in self._apps:
                name, path = first_part, remainder
            # For the dashboard of the source, the name is a part of the path under which it is mounted.
            root = f"{str(scope.get('root_path', '')).rstrip('/')}/{name}"
            scope = {**scope, "root_path": root, "path": f"{root}/{path}"}
        await self._apps[name](scope, receive, send)


def check_names(names: list[object]) -> tuple[str, ...]:
    """Return the names of sources, in their order.

    Raises:
        ValueError: There is none, there are too many, or one cannot be a part of an address.
    """
    if not 1 <= len(names) <= MAX_SOURCES:
        raise ValueError(f"source must have 1 to {MAX_SOURCES} Schedulers, not {len(names)}")
    for name in names:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise ValueError(
                f"each name of source must be a part of an address, of letters, digits and ._~-, not {name!r}"
            )
    return tuple(map(str, names))
