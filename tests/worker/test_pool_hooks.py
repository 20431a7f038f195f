"""Connections outside of the pool use its callables: a keeper, a liveness lock and LISTEN with any pool."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.events import JobCompleted, KeeperConnected, KeeperLost, LeaseLost, ListenerConnected
from pg_scheduler.migrate import migrate
from tests.support import inside
from tests.support.inside import Connections, worker_of
from tests.support.store import as_user
from tests.support.worker import Recorder, now

pytestmark = pytest.mark.slow

LEASE_S = 1.0
HAS_CONNECT = hasattr(asyncpg.Pool, "_connect")
NEEDS_CONNECT = pytest.mark.skipif(not HAS_CONNECT, reason="asyncpg 0.29 has no connect=")


class Roles:
    """A role with all rights on the tables in the schema ``jobs``, and a login role without any."""

    def __init__(self, dsn: str) -> None:
        suffix = uuid.uuid4().hex
        self.group, self.login = f"group_{suffix}", f"login_{suffix}"
        self.dsn = as_user(dsn, self.login)
        self.server_dsn = dsn

    async def set_role(self, connection: Any) -> None:
        await connection.execute(f"SET ROLE {self.group}")

    async def set_role_and_path(self, connection: Any) -> None:
        await connection.execute(f"SET ROLE {self.group}; SET search_path = jobs")

    async def set_codecs(self, connection: Any) -> None:
        await self.set_role(connection)
        await connection.set_type_codec("jsonb", schema="pg_catalog", encoder=repr, decoder=len)

    async def connect(self, *_: object, **settings: Any) -> asyncpg.Connection:
        """Connect with credentials that only this callable knows."""
        settings.pop("user")
        return await asyncpg.connect(self.server_dsn, **settings)


@pytest.fixture
async def roles(dsn: str) -> AsyncIterator[Roles]:
    roles = Roles(dsn)
    owner = await asyncpg.connect(dsn)
    await owner.execute("DROP SCHEMA public CASCADE")
    await migrate(owner, schema="jobs")
    await owner.execute(
        f"CREATE ROLE {roles.group}; CREATE ROLE {roles.login} LOGIN NOINHERIT;"
        f" GRANT {roles.group} TO {roles.login}; GRANT USAGE ON SCHEMA jobs TO {roles.group};"
        f" GRANT ALL ON ALL TABLES IN SCHEMA jobs TO {roles.group}"
    )
    yield roles
    await owner.execute(f"DROP OWNED BY {roles.group}; DROP ROLE {roles.group}, {roles.login}")
    await owner.close()


@pytest.fixture(autouse=True)
def fast_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    inside.replace(monkeypatch, report_delay_of_blocked_loop_s=0.2)
    inside.replace(monkeypatch, poll_interval_of_lease_keeper_s=0.05)


async def work_with(pool: asyncpg.Pool, **settings: Any) -> None:
    """Start a worker and block its event loop for two leases."""

    async def block() -> float:
        lease = runtime.heartbeat._lease
        before: float = lease.renewed_at
        time.sleep(2 * LEASE_S)  # noqa: ASYNC251 - the subject of the test
        renewals.append(lease.renewed_at - before)
        return before

    renewals: list[float] = []
    scheduler = Scheduler(pool, **settings)
    scheduler.LEASE_DURATION = LEASE_S  # type: ignore[misc]
    scheduler.register(block, name="block")
    seen = Recorder(scheduler)
    async with scheduler:
        runtime: Any = worker_of(scheduler)
        await seen.until(KeeperConnected, has_lock=True)
        await seen.until(ListenerConnected)
        async with pool.acquire() as connection:
            key = await connection.fetchval("SELECT liveness_key FROM jobs.scheduler_workers")
            assert not await connection.fetchval("SELECT pg_try_advisory_xact_lock_shared($1)", key)
        job_id = await scheduler.schedule(block, execution_time=now())
        await seen.until(JobCompleted, job_id=job_id, attempt=1)
    assert renewals[0] > LEASE_S / 2, "the keeper renewed the lease of the blocked loop"
    assert not seen.of(KeeperLost)
    assert not seen.of(LeaseLost)


@pytest.mark.parametrize("hook", ["init", "setup"])
async def test_keeper_holds_the_lease_when_the_pool_sets_the_role(roles: Roles, hook: str) -> None:
    hooks: Any = {hook: roles.set_role}
    async with asyncpg.create_pool(roles.dsn, min_size=1, max_size=5, **hooks) as pool:
        await work_with(pool, schema="jobs")


async def test_keeper_holds_the_lease_when_the_pool_sets_the_search_path(roles: Roles) -> None:
    async with asyncpg.create_pool(roles.dsn, min_size=1, max_size=5, setup=roles.set_role_and_path) as pool:
        await work_with(pool)


async def test_keeper_holds_the_lease_when_the_pool_sets_codecs(roles: Roles) -> None:
    async with asyncpg.create_pool(roles.dsn, min_size=1, max_size=5, init=roles.set_codecs) as pool:
        await work_with(pool, schema="jobs")


@NEEDS_CONNECT
async def test_keeper_holds_the_lease_when_the_pool_brings_its_own_connect(roles: Roles) -> None:
    settings: Any = {"connect": roles.connect, "user": "nobody"}
    async with asyncpg.create_pool(roles.server_dsn, min_size=1, max_size=5, **settings) as pool:
        await work_with(pool, schema="jobs")


async def test_keeper_holds_the_lease_when_a_password_is_fetched_in_the_loop_of_the_pool(
    roles: Roles,
) -> None:
    loop, fetched = asyncio.get_running_loop(), []

    async def password() -> str:
        if asyncio.get_running_loop() is not loop:
            raise RuntimeError("attached to a different loop")
        fetched.append("")
        return ""

    async with asyncpg.create_pool(
        roles.dsn, min_size=1, max_size=5, init=roles.set_role, password=password
    ) as pool:
        await work_with(pool, schema="jobs")
    assert fetched


@pytest.mark.parametrize("hook", ["init", "setup"])
@pytest.mark.parametrize("target", ["direct_dsn", "keeper_dsn"])
async def test_connections_to_a_given_dsn_call_the_hooks_of_the_pool(
    roles: Roles, hook: str, target: str
) -> None:
    hooks: Any = {hook: roles.set_role}
    async with asyncpg.create_pool(roles.dsn, min_size=1, max_size=5, **hooks) as pool:
        await work_with(pool, schema="jobs", **{target: roles.dsn})


async def test_connection_is_closed_when_a_hook_raises(roles: Roles) -> None:
    opened: list[asyncpg.Connection] = []

    async def fail(connection: Any) -> None:
        opened.append(connection)
        raise LookupError("no such tenant")

    async with asyncpg.create_pool(roles.dsn, min_size=0, max_size=5, setup=fail) as pool:
        with pytest.raises(LookupError):
            await Connections(pool).connect()
        assert opened[0].is_closed()
