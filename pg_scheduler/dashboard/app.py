"""The ASGI application: decide about each request, build its page, answer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, TypeAlias

import asyncpg
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pg_scheduler.base.text.remedies import POOL_REMEDY, SCHEDULER_REMEDY
from pg_scheduler.dashboard import density, messages
from pg_scheduler.dashboard.access import (
    Access,
    Authorize,
    allow_anyone,
    check_authorize,
    decide,
)
from pg_scheduler.dashboard.actions import ACTIONS, act
from pg_scheduler.dashboard.answers import PUBLIC_STYLE, refusal, wants_json
from pg_scheduler.dashboard.cache import Cache, SharedReads
from pg_scheduler.dashboard.context import (
    NotFoundError,
    PageRequest,
    RejectedError,
    Settings,
    View,
    base_of,
    path_of,
)
from pg_scheduler.dashboard.csrf import check_origins, is_own_request
from pg_scheduler.dashboard.export import export
from pg_scheduler.dashboard.headers import compressed, secured
from pg_scheduler.dashboard.live import stream
from pg_scheduler.dashboard.metrics import metrics
from pg_scheduler.dashboard.operations import Operations
from pg_scheduler.dashboard.pages import PAGES
from pg_scheduler.dashboard.pages.completion import complete
from pg_scheduler.dashboard.pages.job_values import raw_value
from pg_scheduler.dashboard.redaction import IsHidden, Redaction
from pg_scheduler.dashboard.rendering import render, static_files, static_version
from pg_scheduler.dashboard.search_runs import SearchRuns
from pg_scheduler.dashboard.switch import Switch, check_names
from pg_scheduler.dashboard.team_views import check_views
from pg_scheduler.errors import DatabaseUnavailableError, PayloadError, SchedulerError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.inspect import Bounds, Inspector, ReadSettings, SearchError
from pg_scheduler.inspect.pages import DEFAULT_BOUNDS
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.validation import TextError, check_instance, check_kind
from pg_scheduler.scheduler import Scheduler

Source: TypeAlias = Scheduler | Callable[[], Scheduler | None]

READ_SETTINGS: Final = ReadSettings(
    connections=2, statement_timeout_s=2.0, application_name="pg_scheduler dashboard"
)
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
STREAMS: Final = {
    "/live": stream,
    "/export": export,
    "/complete": complete,
    "/metrics": metrics,
    "/value": raw_value,
}
"""The functions that answer without a template, by path: streams, files, and JSON for scripts."""

REPEATED: Final = frozenset({"q", "cols"})
"""Parameters that a form sends once for each term of the search, and once for each column."""

MIN_REFRESH_S: Final = 0.5
STATIC_AGE_S: Final = 365 * 86400
CHANGED_STATIC_AGE_S: Final = 60

_VERSION: Final = re.compile(r"[0-9a-f]{12}")


def dashboard(
    source: Source | Mapping[str, Source],
    *,
    authorize: Authorize,
    title: str = "Jobs",
    environment: str | None = None,
    redact: Iterable[str] | IsHidden = (),
    format_arguments: Callable[[Job], str] | None = None,
    links: Callable[[Job], Mapping[str, str]] | None = None,
    read_pool: asyncpg.Pool | Mapping[str, asyncpg.Pool] | None = None,
    refresh: float = 2.0,
    bounds: Bounds = DEFAULT_BOUNDS,
    trust_forwarded: bool = False,
    read_only: bool = False,
    trusted_origins: Iterable[str] = (),
    views: Mapping[str, str] = MappingProxyType({}),
) -> ASGIApp:
    """Return the dashboard as an ASGI application that can be mounted under any path.

    It needs no lifespan or session. Pages are read in read-only transactions on at most 2 connections
    at once, whose statements the server cancels after 2 seconds. Requests with the rights for it change jobs,
    tasks, schedules and workers by POST, on the pool of the Scheduler.

    Args:
        source: A Scheduler, started or not, or a function that returns one, so that it can be made after
            the application; or several of these by name, which is a part of the URL.
        authorize: Decides about each request: a function, plain or async, that receives the Starlette
            ``Request`` and returns an `Access`, None for status 403, or a ``Response`` such as a redirect to
            the login. `basic_auth()`, `bearer()` and `trusted_header()` return one; `allow_anyone` is one.
        title: The heading of every page.
        environment: The name of the environment, such as ``"production"``; None for none. It is red if
            it starts with ``prod``.
        redact: Keys, in any case, whose values are hidden in arguments, results and metadata; or a function
            of a key that returns whether its value is hidden. The key of a positional argument is its
            number as a text. Searches for hidden values are rejected.
        format_arguments: Returns the arguments of a job as a text, instead of JSON. Its job has no hidden
            values.
        links: Returns URLs for a job by their labels, such as that of its trace. URLs that start
            neither with ``https://``, ``http://`` nor a single ``/`` are omitted. Its job has no hidden
            values.
        read_pool: A pool for the reads, which may lead to a standby; None for that of the Scheduler. For
            several sources, the pools by the names of their sources; a source without one is read on the
            pool of its Scheduler.
        refresh: Seconds between two queries for pages that are updated, 0.5 or more.
        bounds: The maximum that a page of a search, or the page of errors, examines.
        trust_forwarded: Whether ``X-Forwarded-Prefix`` is added to the URLs of links. Set it only
            behind a proxy that sets or removes this header.
        read_only: Whether no action is accepted, whatever the rights: there are no buttons for them, and
            their URLs respond with 405.
        trusted_origins: Other origins, such as ``"https://admin.example.org"``, whose pages may send
            changes. Those of the dashboard's own host always may.
        views: URLs of lists by name, such as ``{"Failed mails": "/jobs?q=status:failed name:mail.*"}``,
            which the page of jobs offers to everybody who may see them; at most 50.

    Raises:
        TypeError: ``source``, ``authorize``, ``redact``, ``read_pool``, ``bounds``, ``trusted_origins`` or
            ``views`` has the wrong type.
        ValueError: ``refresh`` is out of range, a name of ``source`` cannot be a part of a URL, a name
            of ``read_pool`` is none of ``source``, one of ``trusted_origins`` is no origin, or one of
            ``views`` is not the URL of a list, or its search is invalid.

    Example::

        from starlette.applications import Starlette
        from pg_scheduler.dashboard import basic_auth, dashboard

        app = Starlette()
        app.mount("/jobs", dashboard(scheduler, authorize=basic_auth("admin", "a long password")))
    """
    for candidate in source.values() if isinstance(source, Mapping) else [source]:
        is_function = callable(candidate) and not isinstance(candidate, type)
        if not isinstance(candidate, Scheduler) and not is_function:
            raise TypeError(
                "source must be a Scheduler or a function that returns one, not "
                f"{type(candidate).__name__}; {SCHEDULER_REMEDY}"
            )
    settings = Settings(
        authorize=check_authorize(authorize),
        title=title,
        environment=environment,
        redaction=Redaction.of(redact),
        format_arguments=format_arguments,
        links=links,
        refresh_s=_check_refresh(refresh),
        bounds=check_kind("bounds", bounds, Bounds),
        trust_forwarded=trust_forwarded,
        read_only=read_only,
        trusted_origins=check_origins(trusted_origins),
        views=check_views(views),
    )
    if authorize is allow_anyone:
        logger.warning(
            "the dashboard %r lets anyone read all jobs with their arguments; pass another authorize= "
            "outside of development",
            title,
            extra=record_fields(),
        )
    if not isinstance(source, Mapping):
        if isinstance(read_pool, Mapping):
            raise TypeError(
                "read_pool must be an asyncpg.Pool for one source, not pools by name; pass one of these pools"
            )
        if read_pool is not None:
            check_instance("read_pool", read_pool, asyncpg.Pool, "an asyncpg.Pool", POOL_REMEDY)
        return _Dashboard(source, settings, read_pool)
    names = check_names(list(source))
    pools = _check_pools(read_pool, names)
    return Switch(
        {
            name: _Dashboard(source[name], replace(settings, sources=names, source=name), pools.get(name))
            for name in names
        }
    )


def _check_pools(
    pools: asyncpg.Pool | Mapping[str, asyncpg.Pool] | None, names: Sequence[str]
) -> Mapping[str, asyncpg.Pool]:
    """Return the pools for the reads by the names of several sources."""
    if pools is None:
        return {}
    if not isinstance(pools, Mapping):
        raise TypeError(
            f"read_pool must have pools by the names of the sources, not {type(pools).__name__}; "
            f"write {{{names[0]!r}: pool}}"
        )
    if unknown_names := [name for name in pools if name not in names]:
        raise ValueError(
            f"read_pool has {unknown_names[0]!r}, which is no source; sources: {', '.join(names)}"
        )
    for pool in pools.values():
        check_instance("read_pool", pool, asyncpg.Pool, "asyncpg.Pools by name", POOL_REMEDY)
    return pools


def _check_refresh(refresh: object) -> float:
    """Return ``refresh=``, the seconds between two updates of a page, as a float.

    Raises:
        ValueError: It is no finite number, or too small.
    """
    if isinstance(refresh, int | float) and math.isfinite(refresh) and refresh >= MIN_REFRESH_S:
        return float(refresh)
    raise ValueError(f"refresh must be a number of seconds from {MIN_REFRESH_S} on, not {refresh!r}")


class _Dashboard:
    """The application for one source."""

    def __init__(self, source: Source, settings: Settings, read_pool: asyncpg.Pool | None) -> None:
        self._source = source
        self._settings = replace(settings, has_read_pool=read_pool is not None)
        self._read_pool = read_pool
        self._operations: Operations
        """Set together with ``_scheduler_inspector``, so missing before the first request."""
        self._scheduler: Scheduler | None = None
        """The Scheduler that the Inspector reads. If the source returns another one, both are replaced."""
        self._scheduler_inspector: Inspector | None = None
        self._cache = Cache()
        self._searches = SearchRuns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI connection. A lifespan is acknowledged, since some servers start one for any app."""
        if scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        else:
            request = Request(scope, receive)
            response, is_own = await self._respond(request)
            has_body = request.method != "HEAD"
            answer = compressed(response, request) if is_own and has_body else response
            await answer(scope, receive, secured(send, has_policy=is_own, has_body=has_body))

    async def _respond(self, request: Request) -> tuple[Response, bool]:
        """Return the answer, and whether the dashboard made it.

        The function that the application passed as ``authorize=`` may return an answer instead of an access,
        such as a redirect to the login. Only an answer of the dashboard is compressed and gets its security
        policy.
        """
        try:
            if (refused := _check_method(request, self._settings)) is not None:
                return refused, True
            if path_of(request) == PUBLIC_STYLE:
                return _static(PUBLIC_STYLE), True
            access = await decide(self._settings.authorize, request)
            if access is None:
                return refusal(request, 403, "you may not read this dashboard"), True
            if isinstance(access, Response):
                return access, False
            return await self._answer(request, access), True
        # A bug, or an error of a function of the host such as ``authorize=``. Its text may contain secrets,
        # so only the log has it.
        except Exception:
            path = request.url.path
            logger.exception("the dashboard could not answer %s", path, extra=record_fields())
            text = "the dashboard could not answer; its log has the reason"
            return refusal(request, 500, text), True

    async def _answer(self, request: Request, access: Access) -> Response:
        """Return the answer for a request that ``authorize=`` has let in."""
        path = path_of(request)
        if path.startswith("/static/"):
            return _static(path)
        try:
            inspector = self._inspector()
        except RejectedError as error:
            return refusal(request, error.status, str(error))
        is_json = wants_json(request)
        base = base_of(request, trust_forwarded=self._settings.trust_forwarded)
        # Only an HTML page shows the message of the cookie. For other answers, the cookie stays.
        shows_message = path in PAGES and request.method == "GET" and not is_json
        page_request = PageRequest(
            settings=self._settings,
            access=access,
            inspector=inspector,
            parameters=_parameters(request),
            base=base,
            now=self._operations.now,
            cache=SharedReads(self._cache),
            operations=self._operations,
            searches=self._searches,
            did=messages.read(request, base) if shows_message else "",
            is_compact=density.is_compact(request),
        )
        # A message in the cookie means that this user has just sent an action. The process that ran the
        # action has dropped its cached values, but this may be another process, whose values are out of date.
        # A user without rights has changed nothing.
        if page_request.did and access.rights:
            page_request.cache.forget_recent()
        answer = await _build(path, request, page_request, is_json=is_json)
        if page_request.did:
            messages.remove(answer, request, base)
        return answer

    def _inspector(self) -> Inspector:
        """Return the object that reads the database of the Scheduler that the source returns now.

        If the source returns another Scheduler than before, the operations, the cache and the continued
        searches are replaced too, because they belong to the previous one.
        """
        scheduler = self._source if isinstance(self._source, Scheduler) else self._source()
        if scheduler is None:
            raise RejectedError("the Scheduler is not ready yet; reload the page", 503)
        if not isinstance(scheduler, Scheduler):
            raise TypeError(f"source must return a Scheduler, not {type(scheduler).__name__}")
        inspector = self._scheduler_inspector
        if inspector is None or self._scheduler is not scheduler:
            inspector = Inspector(
                scheduler,
                read_pool=self._read_pool,
                read_settings=READ_SETTINGS,
                actor="dashboard",
                bounds=self._settings.bounds,
            )
            self._scheduler, self._scheduler_inspector = scheduler, inspector
            self._operations = Operations(scheduler, self._settings.bounds)
            self._cache = Cache()
            self._searches = SearchRuns()
        return inspector


def _parameters(request: Request) -> dict[str, str]:
    """Return the parameters of the address.

    A form without a script sends each term of a search, and each column, as a parameter of its own, so these
    are joined. A browser that opens a stream again sends the id of its last event as a header, which becomes
    the parameter ``seen``, so that the stream continues after that event.
    """
    last_event_id, query = request.headers.get("last-event-id"), request.query_params
    parameters = {name: " ".join(query.getlist(name)) if name in REPEATED else query[name] for name in query}
    return parameters | ({} if last_event_id is None else {"seen": last_event_id})


async def _build(path: str, http: Request, request: PageRequest, *, is_json: bool) -> Response:
    """Return the answer of an action, a stream or a page."""
    try:
        if path in ACTIONS:
            return await act(path, http, request)
        if path == density.PATH:
            return await density.choose(http, request.base)
        if path in STREAMS:
            return await STREAMS[path](request, is_head=http.method == "HEAD")
        page = PAGES.get(path)
        if page is None:
            raise NotFoundError("there is no such page")
        request = await request.dated()
        view = await page.build(request)
        # Only a page that shows an error, such as that of an invalid search, states its status.
        status = getattr(view, "_status", 200)
        return await render(view, page.template, request, path, is_json=is_json, status=status)
    except RejectedError as error:
        status, text = error.status, str(error)
    # A text of the address has characters that the database lacks, or is too long.
    except (PayloadError, SearchError, TextError) as error:
        status, text = 400, str(error)
    except SchedulerError as error:
        status, text = 503, str(error)
        if isinstance(error, DatabaseUnavailableError):
            text = "the database did not answer in time; reload the page"
        logger.warning("the dashboard could not answer %s: %s", path, error, extra=record_fields())
    failure = View(status=status, text=text)
    return await render(failure, "error", request, path, is_json=is_json, status=status)


def _check_method(request: Request, settings: Settings) -> Response | None:
    """Return the refusal of a request whose method or origin is not accepted; None if both are."""
    path = path_of(request)
    # The choice of the density only sets a cookie, so it works in a dashboard that is read-only, too.
    is_action = path == density.PATH or (path in ACTIONS and not settings.read_only)
    allowed = frozenset({"POST"}) if is_action else SAFE_METHODS
    if request.method not in allowed:
        allow = ", ".join(sorted(allowed))
        return refusal(request, 405, f"this address accepts {allow} only", {"allow": allow})
    if is_action and not is_own_request(request, settings.trusted_origins):
        text = "the request comes from another site; send it from a page of the dashboard"
        return refusal(request, 403, text)
    return None


def _static(path: str) -> Response:
    """Return the response with a static file, or status 404.

    The path is ``/static/<version>/<name>``, or without a version ``/static/<name>``. The version is a digest
    of all static files, as the process that rendered the page had them.
    """
    version, _, name = path.removeprefix("/static/").rpartition("/")
    file = static_files().get(name)
    if file is None or not (version == "" or _VERSION.fullmatch(version)):
        return PlainTextResponse("there is no such file\n", 404)
    # An address with another version is in a page of another process or of an earlier release. Such a page
    # may need another content of this file, so the browser keeps this content for a short time only.
    is_current = version == static_version()
    age = f"{STATIC_AGE_S}, immutable" if is_current else str(CHANGED_STATIC_AGE_S)
    headers = {"cache-control": f"private, max-age={age}"}
    return Response(file.content, media_type=file.media_type, headers=headers)
