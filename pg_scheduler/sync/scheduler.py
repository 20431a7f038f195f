"""The Scheduler for code without asyncio."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self, Unpack

import asyncpg

from pg_scheduler.base.blocking import check_may_block
from pg_scheduler.base.dsn import normalise_dsn
from pg_scheduler.base.fork import inheritance
from pg_scheduler.base.job_imports import check_not_importing
from pg_scheduler.database.opening import create_pool
from pg_scheduler.errors import ConfigurationError, NotRunningError
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.validation import check_count
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.scheduler.parts import parts_of
from pg_scheduler.sync.methods import BlockingMethods, Settings
from pg_scheduler.sync.portal import CLOSED, Portal
from pg_scheduler.sync.uwsgi import check_uwsgi_threads

Declaration = Callable[[Scheduler], object]

CLASS_ATTRIBUTES: Final = ("HEARTBEAT_THRESHOLD", "LEASE_DURATION", "WORKER_ID_LENGTH")
"""The attributes that each Scheduler takes from the SyncScheduler, on which a user may have set them."""

POOL_CLOSE_TIMEOUT_S: Final = 5.0
"""Time for calls in progress to end before their connections are terminated."""

NO_DSN: Final = "SyncScheduler has no DSN; pass connection=, or create SyncScheduler(dsn)"

CLOSED_BY_JOB: Final = (
    "close() was called in a job that this SyncScheduler runs, so it would wait for the end of that job; "
    "call shutdown() in the job, which returns at once, and close() where the program ends"
)

CLOSE_MARGIN_S: Final = 15.0
"""Time to write results and close the pool, after ``shutdown_timeout``."""


class PortalScheduler(Scheduler):
    """The asyncio Scheduler that runs in the event loop of a portal."""

    def close_in_children(self) -> None:
        """Close the sockets of the pool in children forked from now on."""
        self._parts.store.connections.close_in_children()

    async def flush_notifications(self) -> None:
        """Send the notifications of enqueued jobs that have not been sent yet."""
        await self._parts.outbox.flush_or_report()


class ForkSafeState:
    """The state that all portals of a process share.

    A `Portal` is a daemon thread with an event loop, in which an asyncio Scheduler runs.

    Attributes:
        starting: Held while a portal starts. A forked child needs a new lock, since another thread of the
            parent may hold this one.
        inherited: The portals of the parent, which a forked child keeps so that it never frees them. Their
            event loops would remove the sockets from the epoll instance that the child and the parent share.
    """

    def __init__(self) -> None:
        self.starting = threading.RLock()
        self.inherited: list[Portal[PortalScheduler]] = []
        inheritance.call_in_children(self._renew)

    def _renew(self) -> None:
        """Make a new lock in a forked child."""
        self.starting = threading.RLock()


shared: Final = ForkSafeState()


class SyncScheduler(BlockingMethods):
    """The methods of `Scheduler` for code without asyncio; each blocks until its result is there.

    The first call starts a daemon thread with an event loop and a pool of its own. So does the first call in
    a forked child, where registered functions and subscribers remain. Any number of threads may call. Async
    jobs and subscribers run in the daemon thread. ``start()`` makes it a worker, ``with`` does not.

    With ``connection=`` a method runs on a connection of yours instead: in the thread of the call and in the
    transaction of that connection. This needs neither the daemon thread nor a DSN.

    Args:
        dsn: Address of the database: ``postgresql://user:password@host:5432/database``, or the URL of a
            SQLAlchemy engine. None if all calls pass ``connection=``.
        pool_size: Maximum number of connections. They are opened when needed, and closed after five minutes
            without use. With fewer than 5, the connection of an insert is reset after each call, which is
            another round trip.
        **settings: The other parameters of `Scheduler`, by name.

    Raises:
        ConfigurationError: A setting is invalid. The first call without ``connection=`` raises it if there is
            no DSN, or uWSGI runs without threads.
        RuntimeError: A method was called without ``connection=`` in a thread with a running event loop, or
            after ``close()``.

    Example::

        with SyncScheduler(dsn) as scheduler:
            scheduler.schedule(send_mail, execution_time=datetime.now(UTC))
    """

    def __init__(self, dsn: str | None = None, *, pool_size: int = 5, **settings: Unpack[Settings]) -> None:
        if not isinstance(dsn, str | None):
            raise TypeError(f"dsn must be a str, not {type(dsn).__name__}; for a pool, use Scheduler")
        self._dsn = None if dsn is None else normalise_dsn(dsn, "dsn")
        self._pool_size = check_count("pool_size", pool_size, least=1)
        self._settings = settings
        # The draft is a Scheduler without connections. It checks the settings, and the declarations that
        # precede the first call. It also runs the calls with ``connection=``.
        self._draft = self._new_draft()
        # The Scheduler of the last portal, whose properties can be read after ``close()``. Before the first
        # call, it is the draft.
        self._last_scheduler: Scheduler = self._draft
        # Calls of register() and subscribe(), which are repeated for each later Scheduler, such as that of a
        # forked child.
        self._declarations: list[Declaration] = []
        self._current_portal: Portal[PortalScheduler] | None = None
        self._is_closed = False
        self._closes_at_exit = False

    @property
    def db_pool(self) -> asyncpg.Pool:
        """The pool, for async jobs and subscribers."""
        return self._source().db_pool

    @property
    def state(self) -> Any:
        """An object of the application for its jobs, which `job_state()` returns; see `Scheduler`."""
        return self._draft.state

    @state.setter
    def state(self, state: Any) -> None:
        self._draft.state = self._last_scheduler.state = state

    def close(self) -> None:
        """Shut down if started, close the pool and end the thread. The exit of the interpreter does it too.

        Calls of other threads that are in progress raise RuntimeError. A second call is a no-op.

        Raises:
            DatabaseUnavailableError: Results could not be written; see ``shutdown()``.
            RuntimeError: The caller is a job that this object runs, and for whose end it would wait.
        """
        check_may_block("close")
        if self._runs_the_caller():
            raise RuntimeError(CLOSED_BY_JOB)
        with shared.starting:
            self._is_closed = True
            portal = self._current_portal
            self._current_portal = None
            atexit.unregister(self.close)
        # There was no call yet, or this is a second close().
        if portal is None:
            return
        # A forked child must never free the portal of its parent, and cannot end its thread.
        if portal.is_inherited:
            shared.inherited.append(portal)
            return
        timeout_s = self._settings.get("shutdown_timeout", 30.0) + CLOSE_MARGIN_S
        if not portal.close(timeout_s):
            logger.warning(
                "the thread of a SyncScheduler did not end within %.0f s: a job or subscriber blocks it",
                timeout_s,
                extra=record_fields(),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        portal = self._current_portal
        state = "open" if portal and portal.is_alive else "not started"
        if self._is_closed:
            state = "closed"
        # The DSN is left out, because it may have a password.
        return f"<SyncScheduler, {state}>"

    def _runs_the_caller(self) -> bool:
        """Return whether the caller is a job that this object runs."""
        portal = self._current_portal
        # A forked child runs no job of its parent.
        if portal is None or portal.is_inherited or not portal.is_alive:
            return False
        runtime = parts_of(portal.resource).runtime
        return runtime is not None and runtime.runs_the_caller()

    def _source(self) -> Scheduler:
        """Return the Scheduler whose properties are read: that of the portal, also after ``close()``."""
        return self._last_scheduler if self._is_closed else self._portal().resource

    def _local_target(self) -> Scheduler:
        """Return the Scheduler that runs the calls with ``connection=``, without a thread: the draft."""
        if self._is_closed:
            raise RuntimeError(CLOSED)
        return self._draft

    def _portal(self) -> Portal[PortalScheduler]:
        """Return the portal of this process; start one if none is alive."""
        portal = self._current_portal
        if portal is not None and portal.is_alive:
            return portal
        with shared.starting:
            if self._is_closed:
                raise RuntimeError(CLOSED)
            if self._dsn is None:
                raise ConfigurationError(NO_DSN)
            # Another thread may have started a portal while this one waited for the lock.
            if self._current_portal is None or not self._current_portal.is_alive:
                self._current_portal = self._start_portal()
                self._last_scheduler = self._current_portal.resource
            return self._current_portal

    def _start_portal(self) -> Portal[PortalScheduler]:
        """Start a portal and return it; raise ConfigurationError where its thread must not or cannot run."""
        check_not_importing()
        check_uwsgi_threads()
        # A forked child keeps the portal of its parent, which must never be freed.
        if self._current_portal is not None and self._current_portal.is_inherited:
            shared.inherited.append(self._current_portal)
        if not self._closes_at_exit:
            self._closes_at_exit = True
            atexit.register(self.close)
        return Portal(self._open)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[PortalScheduler]:
        """Open the pool and the Scheduler of a portal, and make all declarations; close both at the end."""
        pool = await create_pool(self._dsn, "dsn", min_size=0, max_size=self._pool_size)
        try:
            scheduler = PortalScheduler(pool, **self._settings)
            # A user may have set these attributes on the SyncScheduler.
            for name in CLASS_ATTRIBUTES:
                setattr(scheduler, name, getattr(self, name))
            scheduler.state = self._draft.state
            scheduler.close_in_children()
            for declare in self._declarations:
                # A declaration may need a started Scheduler. The parent process had one, a child has none.
                with suppress(NotRunningError):
                    declare(scheduler)
            try:
                yield scheduler
            finally:
                await scheduler.shutdown()
                await scheduler.flush_notifications()
        finally:
            await _close_pool(pool)

    def _new_draft(self) -> Scheduler:
        """Return a Scheduler without connections, which checks the settings; see ``__init__()``."""
        return Scheduler(closed_pool(self._dsn, self._pool_size), **self._settings)

    def _declare(self, name: str, declare: Declaration) -> None:
        """Make a declaration now, and again for each later Scheduler, such as that of a forked child.

        A declaration is a call of ``register()`` or ``subscribe()``, whose name is ``name``. This starts no
        thread, because modules make declarations while they are imported.
        """
        with shared.starting:
            if self._is_closed:
                raise RuntimeError(CLOSED)
            portal = self._current_portal
            # Before the first call, only the draft checks the declaration. The lock keeps a portal from
            # starting without it.
            if portal is None or not portal.is_alive:
                declare(self._draft)
                self._declarations.append(declare)
                return
        # A Scheduler is used only in the thread of its event loop. An async job calls this in that thread.
        if portal.is_own_thread:
            declare(portal.resource)
        else:
            check_may_block(name)
            portal.call(lambda: declare(portal.resource))
        self._declarations.append(declare)

    def _register(self, func: Any = None, **options: Any) -> Any:
        """Register a function here and at later Schedulers; without a function, return a decorator."""

        def add(function: Any) -> Any:
            """Register the function, and return it."""
            self._declare("register", lambda scheduler: scheduler.register(function, **options))
            # The draft runs the calls with connection=. If it has made the declaration, this changes nothing.
            self._draft.register(function, **options)
            return function

        return add if func is None else add(func)

    def _subscribe(self, *arguments: Any, **options: Any) -> Callable[[], None]:
        """Subscribe at the Scheduler of this process and at later ones; return a function to unsubscribe."""
        # The function that ends the subscription at the current Scheduler; None after it was called.
        stop_subscription: Callable[[], None] | None = None

        def declare(scheduler: Scheduler) -> None:
            """Subscribe at a Scheduler, which may be the one of a forked child."""
            nonlocal stop_subscription
            stop_subscription = scheduler.subscribe(*arguments, **options)

        def unsubscribe() -> None:
            """End the subscription at this Scheduler and at later ones; a second call does nothing."""
            nonlocal stop_subscription
            if stop_subscription is None:
                return
            stop = stop_subscription
            stop_subscription = None
            if declare in self._declarations:
                self._declarations.remove(declare)
            # The Scheduler of a portal is used only in the thread of the portal, as long as that runs.
            portal = self._current_portal
            if portal is None or not portal.is_alive or portal.is_own_thread:
                stop()
            else:
                portal.call(stop)

        self._declare("subscribe", declare)
        # A subscription to the events of the cluster requires a started Scheduler. A forked child has none,
        # so the declaration is not made again.
        if options.get("cluster"):
            self._declarations.remove(declare)
        return unsubscribe


def closed_pool(dsn: str | None = None, size: int = 1) -> asyncpg.Pool:
    """Return a pool that can open no connection, because its event loop is closed."""
    loop = asyncio.new_event_loop()
    loop.close()
    if dsn is None:
        return asyncpg.create_pool(min_size=0, max_size=size, loop=loop)
    return create_pool(dsn, "dsn", min_size=0, max_size=size, loop=loop)


async def _close_pool(pool: asyncpg.Pool) -> None:
    """Close a pool, and terminate the connections of calls that do not end in time."""
    try:
        await asyncio.wait_for(pool.close(), POOL_CLOSE_TIMEOUT_S)
    # A call that does not end still uses a connection.
    except TimeoutError:
        pool.terminate()
