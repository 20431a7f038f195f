"""An error of connecting has the address of the server and a remedy, whatever connects, and no password."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, Scheduler
from pg_scheduler.base.dsn import address_parts, server_in
from pg_scheduler.database.asyncpg_private import server_of_pool
from pg_scheduler.database.faults import connecting
from pg_scheduler.database.opening import open_connection_to
from pg_scheduler.errors import ConnectionLostError
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.store.connections import open_connection, open_pool
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.testing import TestScheduler
from tests.support.inside import Connections

SECRET: Final = "geheim"


async def connect(dsn: str, _pool: asyncpg.Pool) -> None:
    async with Scheduler.connect(dsn):
        pass


async def connect_client(dsn: str, _pool: asyncpg.Pool) -> None:
    async with Scheduler.connect(dsn, start=False):
        pass


async def enqueue_blocking(dsn: str, _pool: asyncpg.Pool) -> None:
    def enqueue() -> None:
        with SyncScheduler(dsn) as scheduler:
            scheduler.enqueue("mail.send")

    await asyncio.to_thread(enqueue)


async def start_on_a_pool(dsn: str, _pool: asyncpg.Pool) -> None:
    async with asyncpg.create_pool(dsn, min_size=0) as dead_pool:
        await Scheduler(dead_pool).start()


async def enqueue_on_a_pool_with_arguments(dsn: str, _pool: asyncpg.Pool) -> None:
    host = address_parts(dsn)["host"]
    async with asyncpg.create_pool(host=host, user="app", password=SECRET, min_size=0) as dead_pool:
        await Scheduler(dead_pool).enqueue("mail.send")


async def inspect(dsn: str, _pool: asyncpg.Pool) -> None:
    async with asyncpg.create_pool(dsn, min_size=0) as dead_pool:
        await Inspector(dead_pool).search_jobs("")


async def examine(dsn: str, _pool: asyncpg.Pool) -> None:
    async with asyncpg.create_pool(dsn, min_size=0) as dead_pool:
        await Inspector(dead_pool).doctor()


async def start_a_test(dsn: str, _pool: asyncpg.Pool) -> None:
    async with TestScheduler(dsn):
        pass


async def open_one(dsn: str, _pool: asyncpg.Pool) -> None:
    async with open_connection(dsn, application_name="test"):
        pass


async def open_several(dsn: str, _pool: asyncpg.Pool) -> None:
    async with open_pool(dsn, application_name="test"):
        pass


async def open_for_a_worker(dsn: str, _pool: asyncpg.Pool) -> None:
    async with open_pool(dsn, application_name="test", runs_worker=True):
        pass


async def open_directly(dsn: str, _pool: asyncpg.Pool) -> None:
    await open_connection_to(dsn, "the DSN")


async def hold_a_direct_connection(dsn: str, pool: asyncpg.Pool) -> None:
    async with Connections(pool, dsn).hold_session():
        pass


async def keep_by_a_direct_connection(dsn: str, pool: asyncpg.Pool) -> None:
    await Connections(pool, dsn).connect()


async def keep_by_its_own_connection(dsn: str, pool: asyncpg.Pool) -> None:
    await Connections(pool, keeper_dsn=dsn).connect()


async def keep_as_the_pool(dsn: str, _pool: asyncpg.Pool) -> None:
    async with asyncpg.create_pool(dsn, min_size=0) as dead_pool:
        await Connections(dead_pool).connect()


async def run_at_exit(dsn: str, _pool: asyncpg.Pool) -> None:
    async def run(_connection: object) -> None: ...

    async with asyncpg.create_pool(dsn, min_size=0) as dead_pool:
        await asyncio.to_thread(Connections(dead_pool).run_at_exit, run)


WAYS: Final[list[Callable[[str, asyncpg.Pool], Awaitable[None]]]] = [
    *(connect, connect_client, enqueue_blocking, start_on_a_pool, enqueue_on_a_pool_with_arguments),
    *(inspect, examine, start_a_test, open_one, open_several, open_for_a_worker, open_directly),
    *(hold_a_direct_connection, keep_by_a_direct_connection, keep_by_its_own_connection),
    *(keep_as_the_pool, run_at_exit),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_error_of_connecting_has_the_address_and_a_remedy(
    way: Callable[[str, asyncpg.Pool], Awaitable[None]], tmp_path: Path, pool: asyncpg.Pool
) -> None:
    """The newcomer's server had ended, and the message was that of the system about a missing file."""
    dsn = f"postgresql://app:{SECRET}@/shop?host={quote(str(tmp_path))}&port=5432"
    with pytest.raises(DatabaseUnavailableError) as caught:
        await way(dsn, pool)
    message = str(caught.value)
    assert message.startswith(f"cannot connect to {tmp_path}/.s.PGSQL.5432 (FileNotFoundError: ")
    assert "check that the server runs there, or correct " in message
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("dsn", "server"),
    [
        ("postgresql://app:geheim@db/shop", "db:7"),
        ("postgresql://app:geheim@db:5433/shop?password=geheim", "db:5433"),
        ("postgresql://app@[::1]/shop", "[::1]:7"),
        ("postgresql://app@[::1]:1,127.0.0.1:2/shop", "[::1]:1,127.0.0.1:2"),
        ("postgresql://app@/shop", "/run/pg/.s.PGSQL.7"),
        ("postgresql://app:gehe/im@db/shop", None),
        ("postgresql://app:12/34@db/shop", None),
        (None, "/run/pg/.s.PGSQL.7"),
    ],
)
def test_address_is_that_of_the_dsn_or_of_the_variables_of_libpq(
    dsn: str | None, server: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", "/run/pg/")
    monkeypatch.setenv("PGPORT", "7")
    assert server_in(dsn, "dsn") == server


def test_address_without_any_setting_is_the_default_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.delenv("PGPORT", raising=False)
    assert server_in("postgresql://app@/shop", "dsn") == "the sockets of this machine, or localhost:5432"


async def test_pool_that_connects_by_itself_has_no_known_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGPORT", raising=False)

    async def connect(*_: Any, **__: Any) -> Any:
        raise ConnectionRefusedError

    pool = asyncpg.create_pool("postgresql://app@db/shop", min_size=0)
    assert server_of_pool(pool) == "db:5432"
    untyped_pool: Any = pool
    untyped_pool._connect = connect
    assert server_of_pool(pool) is None
    error = ConnectionRefusedError()
    with pytest.raises(DatabaseUnavailableError) as caught, connecting("url", lambda: server_of_pool(pool)):
        raise error
    assert str(caught.value).startswith("cannot connect (ConnectionRefusedError); check that the server runs")
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [FileNotFoundError(2, "No such file", "/etc/root.crt"), PermissionError(13, "denied", "/root/x")]
)
def test_error_of_a_file_is_no_error_of_connecting(error: OSError) -> None:
    with pytest.raises(type(error)) as caught, connecting("dsn", lambda: "db:5432"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (TimeoutError(), DatabaseUnavailableError, "TimeoutError: no answer in time"),
        (ConnectionResetError(104, "reset"), ConnectionLostError, "ConnectionResetError: [Errno 104] reset"),
    ],
)
def test_timeout_and_reset_of_a_connection_name_the_address(
    error: OSError, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind) as caught, connecting("dsn", lambda: "db:5432"):
        raise error
    assert str(caught.value).startswith(f"cannot connect to db:5432 ({reason}); check that the server runs")
