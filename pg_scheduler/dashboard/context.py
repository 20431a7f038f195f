"""The input of a page: the settings of the dashboard, and one request."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, TypeAlias
from urllib.parse import quote, urlencode

from starlette.requests import Request

from pg_scheduler.dashboard.access import Access, Authorize
from pg_scheduler.dashboard.cache import SharedReads
from pg_scheduler.dashboard.operations import Operations
from pg_scheduler.dashboard.redaction import Redaction
from pg_scheduler.dashboard.rights import Right
from pg_scheduler.inspect import Bounds, Inspector
from pg_scheduler.inspect.texts import term
from pg_scheduler.jobs.model import Job, Worker
from pg_scheduler.text.times import OutOfRangeError, TimeError, read_instant

JobTexts: TypeAlias = Callable[[Job], str]
JobLinks: TypeAlias = Callable[[Job], Mapping[str, str]]

EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""The times of a form, so that each is an instant in any zone, and also a moment later."""

_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)+/?")


WORKERS_AGE_S: Final = 10.0
"""Seconds for which workers are kept."""


class RejectedError(Exception):
    """A request that cannot be answered; the message is shown."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class NotFoundError(RejectedError):
    """Nothing visible has this address. What exists and is not visible answers the same."""

    def __init__(self, text: str) -> None:
        super().__init__(text, 404)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of ``dashboard()``, checked."""

    authorize: Authorize
    title: str
    environment: str | None
    redaction: Redaction
    format_arguments: JobTexts | None
    links: JobLinks | None
    refresh_s: float
    bounds: Bounds
    trust_forwarded: bool
    read_only: bool
    trusted_origins: frozenset[str]
    views: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    """The names of all sources; empty for one without a name."""
    source: str | None = None
    """The name of the source of this dashboard."""
    has_read_pool: bool = False
    """Whether pages are read on a pool of their own, which may lead to a standby."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request that may be answered.

    Attributes:
        settings: The settings of the dashboard.
        access: The rights of the request.
        inspector: Reads it.
        parameters: The parameters of the address.
        base: The path under which browsers reach the dashboard, without a slash at the end.
        now: The time of the operations.
        cache: The values that requests share.
        operations: Makes the changes, and has the clock.
        did: The message about the action before, as its cookie has it; empty for none.
        is_compact: Whether tables are dense in this browser.
        standby_lag_s: How many seconds the data is behind the primary; None if it is not that of a standby.
    """

    settings: Settings
    access: Access
    inspector: Inspector
    parameters: Mapping[str, str]
    base: str
    now: datetime
    cache: SharedReads
    operations: Operations
    did: str = ""
    is_compact: bool = False
    standby_lag_s: float | None = None

    async def dated(self) -> PageRequest:
        """Return the request as of now, with the delay of a standby, before anything shared was read."""
        cache, lag_s = self.cache.renewed(), None
        if self.settings.has_read_pool:
            lag_s = await cache.get(
                "standby", self.settings.refresh_s, self.inspector.standby_lag_s, is_data=False
            )
        return replace(self, now=self.operations.now, cache=cache, standby_lag_s=lag_s)

    async def workers(self, *, is_data: bool = False) -> Sequence[Worker]:
        """Return every worker that has a row; all requests share the read for some seconds.

        Args:
            is_data: Whether the age of the read matters to those who read the page.
        """
        return await self.cache.get("workers", WORKERS_AGE_S, self.inspector.workers, is_data=is_data)

    async def worker_names(self) -> dict[str, str]:
        """Return the names of workers that have one, by their ids."""
        return {each.worker_id: each.identity for each in await self.workers() if each.identity}

    def uncounted(self, text: str | None) -> str | None:
        """Return which live workers count nothing, without their names if only some job names are visible."""
        return text if text is None or self.access.visible_names is None else "some workers count nothing"

    def may(self, right: Right) -> bool:
        """Return whether the request may make such changes."""
        return not self.settings.read_only and self.access.may(right)

    def url(self, path: str, /, **parameters: object) -> str:
        """Return the address of a page."""
        given = {key: str(value) for key, value in parameters.items() if value not in {None, ""}}
        query = urlencode(given, quote_via=quote)
        return f"{self.base}{path}{'?' if query else ''}{query}"

    def source_url(self, name: str) -> str:
        """Return the address of another source."""
        return f"{self.base.rpartition('/')[0]}/{name}/"

    def search_url(self, **terms: str) -> str:
        """Return the address of a search for jobs with these values."""
        return self.url("/jobs", q=" ".join(term(field, value) for field, value in terms.items()))

    def required(self, name: str) -> str:
        """Return a parameter.

        Raises:
            RejectedError: It is missing.
        """
        value = self.parameters.get(name, "")
        if not value:
            raise RejectedError(f"the parameter {name!r} is missing in the address")
        return value

    def choice(self, name: str, known: Collection[str], default: str = "") -> str:
        """Return a parameter that is one of several values.

        Raises:
            RejectedError: It is none of them.
        """
        value = self.parameters.get(name) or default
        if value not in known:
            shown = ", ".join(filter(None, known))
            raise RejectedError(f"{name} must be one of {shown}, not {value[:50]!r}")
        return value


def base_of(request: Request, *, trust_forwarded: bool) -> str:
    """Return the path under which browsers reach the dashboard, without a slash at the end."""
    base = str(request.scope.get("root_path", "")).rstrip("/")
    prefix = request.headers.get("x-forwarded-prefix", "") if trust_forwarded else ""
    if _PREFIX.fullmatch(prefix):
        base = prefix.rstrip("/") + base
    return quote(base, safe="/~")


def path_of(request: Request) -> str:
    """Return the path of the request within the dashboard. ``path`` contains the ``root_path`` or not."""
    path, root = str(request.scope["path"]), str(request.scope.get("root_path", "")).rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return path.rstrip("/") or "/"


def entered_instant(name: str, text: str, now: datetime) -> datetime | None:
    """Return the instant of a field, which is in UTC unless it has an offset; None if the field is empty.

    Raises:
        RejectedError: It is none.
    """
    if not text:
        return None
    try:
        found: datetime | None = read_instant(text, now, UTC)
    except OutOfRangeError:
        found = None
    except TimeError as error:
        raise RejectedError(f"{name} must be a time such as 2027-01-31T09:00, not {text[:50]!r}") from error
    if found is None or not EARLIEST <= found <= LATEST:
        raise RejectedError(f"{name} must be between 0001-01-02 and 9999-12-30, not {text[:50]!r}")
    return found
