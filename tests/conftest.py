"""A real PostgreSQL for all tests, and a separate database for each test that requests one.

Each session (and each xdist worker) has one server: an embedded one, or the one in PG_SCHEDULER_TEST_DSN. A
template database is migrated once, and each test uses a copy of it, which takes some milliseconds. The
fixtures do this outside of the tests' event loops, so sync tests can use them too.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import shutil
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import hypothesis
import pytest

from pg_scheduler import embedded
from tests.support.patience import PATIENCE
from tests.support.stories import LONG
from tools.chaos.proxy import Proxy
from tools.suite import SLOW_FOLDERS

# Background jobs of a shell ignore Ctrl-C, and the programs that tests interrupt would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests share the machine with a database, so a slow example is no defect. Each run of the suite draws the
# same examples, so a failure can be repeated; PG_SCHEDULER_PROTOCOL=long searches for new ones. The parent is
# the same with and without a variable CI, which makes Hypothesis load another profile.
DEFAULT_PROFILE = hypothesis.settings.get_profile("default")
hypothesis.settings.register_profile(
    "pg_scheduler",
    DEFAULT_PROFILE,
    deadline=None,
    derandomize=not LONG,
)
hypothesis.settings.load_profile("pg_scheduler")

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Work: TypeAlias = Callable[[Connection], Coroutine[Any, Any, None]]
Admin: TypeAlias = Callable[[Work], None]
"""Runs a coroutine function on a connection that may create databases."""

FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_wal_size": "256MB",
    # A test decides itself when the server counts the rows of a table anew; no background process does.
    "autovacuum_naptime": "2147483",
}
MEMORY = Path("/dev/shm")
MIN_MEMORY_BYTES = 2 * 2**30
SLOW_TIME_LIMIT_S = 300.0
MAX_SEARCH_MS = 60_000


def pytest_sessionstart() -> None:
    """Let no test fail because a finalizer ran at the recursion limit.

    Parsing a text that is nested too deep reaches that limit. If the garbage collector runs at that moment,
    the finalizer of any object fails. Python passes that error to ``sys.unraisablehook``, and pytest fails
    the test that runs, although another one may have made the object.
    """
    hook_of_pytest = sys.unraisablehook

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        """Report each error of a finalizer but that of the recursion limit."""
        if not issubclass(unraisable.exc_type, RecursionError):
            hook_of_pytest(unraisable)

    sys.unraisablehook = report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector examine none of the objects of the tests' modules, which all stay.

    There are millions, and every full collection during the tests would examine them again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests by what they wait for, and let some workers begin with the slow ones."""
    for item in items:
        if item.path.parent.name in SLOW_FOLDERS:
            item.add_marker("slow")
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIME_LIMIT_S))
        if "scratch" in getattr(item, "fixturenames", ()):  # the folder of every server's data
            item.add_marker("database")
    items[:] = spread(items, workers=int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def spread(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Deal the slow tests, which mostly wait, to half of the workers; the others use the processor meanwhile.

    The tests of the longest time limits come first, so that none begins at the end.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = [item for item in items if not item.get_closest_marker("slow")]
    slow.sort(key=_time_limit_s, reverse=True)
    half = (workers + 1) // 2
    arranged: list[pytest.Item] = []
    for index in range(workers):
        size = (len(items) - len(arranged)) // (workers - index)  # as --dist worksteal divides them
        first = slow[index::half] if index < half else []
        rest = max(0, size - len(first))
        arranged += [*first, *others[:rest]]
        del others[:rest]
    return [*arranged, *others]


def _time_limit_s(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    assert mark
    return float(mark.args[0])


@contextmanager
def held_connection(dsn: str) -> Iterator[Admin]:
    """Connect, and yield a function that runs coroutine functions on the connection.

    They run in an event loop that never becomes the current one.
    """
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        connection = runner.run(asyncpg.connect(dsn))
        try:
            yield lambda work: runner.run(work(connection))
        finally:
            runner.run(connection.close())


def run_on(dsn: str, work: Work) -> None:
    """Run a coroutine function on a new connection."""
    with held_connection(dsn) as execute:
        execute(work)


@contextmanager
def database(admin: Admin, template: str | None = None) -> Iterator[str]:
    """Create a database, empty or copied from the template; yield its name and drop it at the end."""
    name = f"test_{uuid.uuid4().hex}"

    async def create(connection: Connection) -> None:
        source = f'template "{template}"' if template else "template template0"
        if connection.get_server_version() >= (15,):
            source += " strategy file_copy"
        await connection.execute(f'create database "{name}" {source}')

    async def drop(connection: Connection) -> None:
        await connection.execute(f'drop database "{name}" with (force)')

    admin(create)
    try:
        yield name
    finally:
        admin(drop)


async def migrate_on(connection: Connection) -> None:
    """Create the tables."""
    from pg_scheduler.migrate import migrate

    await migrate(connection)


@pytest.fixture
async def debugged_loop() -> None:
    """Turn on asyncio's debug mode, in which calls of the event loop from other threads raise.

    It also slows tasks down, which hides races: most tests run without it, as applications do.
    """
    asyncio.get_running_loop().set_debug(True)


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Restore the logging of the process, which some commands and applications set up.

    It waits for threads that log a message of this test. Otherwise, the next test would get the record.
    """
    from pg_scheduler.tools import join_log_threads

    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    join_log_threads(PATIENCE)
    root.setLevel(level)
    for handler in set(root.handlers).difference(handlers):
        root.removeHandler(handler)


@pytest.fixture(autouse=True)
def restored_catalogues(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep apart what tests register, and what their modules register."""
    from tests.support.catalogues import own_registrations

    with own_registrations(request.module.__name__):
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_searches() -> None:
    """Let searches in this process examine what they find, however long a busy machine takes for it."""
    from pg_scheduler.inspect import Inspector

    bounds = inspect.signature(Inspector).parameters["bounds"].default
    object.__setattr__(bounds, "milliseconds", MAX_SEARCH_MS)


@pytest.fixture(scope="session")
def scratch() -> Path | None:
    """A folder in memory for data, None if it is too small: containers often have 64 MB."""
    is_large = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MIN_MEMORY_BYTES
    return MEMORY if is_large else None


@pytest.fixture(scope="session")
def server(scratch: Path | None) -> Iterator[embedded.Server]:
    """The server of the session."""
    with embedded.server(settings=FAST, scratch=scratch) as running:
        yield running


@pytest.fixture(scope="session")
def server_admin(server: embedded.Server) -> Iterator[Admin]:
    """The connection of the session that creates and drops databases: connecting takes longer than either."""
    with held_connection(server.dsn()) as execute:
        yield execute


@pytest.fixture(scope="session")
def template(server: embedded.Server, server_admin: Admin) -> Iterator[str]:
    """The name of the migrated template database."""
    with database(server_admin) as name:
        run_on(server.dsn(name), migrate_on)
        yield name


@pytest.fixture
def dsn(server: embedded.Server, server_admin: Admin, template: str) -> Iterator[str]:
    """The DSN of a migrated database for this test."""
    with database(server_admin, template) as name:
        yield server.dsn(name)


@pytest.fixture
def other_dsn(server: embedded.Server, server_admin: Admin, template: str) -> Iterator[str]:
    """The DSN of another migrated database of the same server."""
    with database(server_admin, template) as name:
        yield server.dsn(name)


@pytest.fixture
def empty_dsn(server: embedded.Server, server_admin: Admin) -> Iterator[str]:
    """The DSN of an empty database for this test."""
    with database(server_admin) as name:
        yield server.dsn(name)


@pytest.fixture
async def proxied(server: embedded.Server, dsn: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy to the test's database, which simulates network faults, and the DSN through it."""
    if not isinstance(server, embedded.EmbeddedPostgres):
        pytest.skip("the proxy needs a server with a socket on this machine")
    proxy = Proxy(dsn)
    yield proxy, await proxy.start()
    proxy.close()


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[asyncpg.Pool[asyncpg.Record]]:
    """A pool of up to five connections to the test's database."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=5)
    yield pool
    # Without the timeout, a connection that was not released would block close().
    await asyncio.wait_for(pool.close(), 60)


@pytest.fixture
def hangup_by_default() -> Iterator[None]:
    """Give SIGHUP its default action in programs that a test starts. Under nohup they would ignore it."""
    inherited_handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, inherited_handler)
