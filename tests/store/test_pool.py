"""Routes of connections, advisory locks, and the LISTEN connection."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeAlias

import asyncpg
import pytest
from asyncpg.pool import PoolConnectionProxy

from pg_scheduler import Connection
from pg_scheduler.database.faults import ENDED_WHILE_IDLE, translated
from pg_scheduler.database.options import PLANNER_SETTINGS, ConnectionOptions
from pg_scheduler.errors import ConnectionLostError, DatabaseUnavailableError, PoolClosedError
from pg_scheduler.worker.notifications import Subscription
from tests.conftest import run_on
from tests.support.inside import Connections, Store
from tests.support.patience import PATIENCE
from tests.support.store import LEASE, Pool, worker
from tools.chaos.proxy import Proxy

KEY = -(2**63)
IMPATIENT = ConnectionOptions(call_timeout_s=0.01)


@asynccontextmanager
async def dedicated(connections: Connections) -> AsyncIterator[Connection]:
    """The connection of the hot path, which the pool can spare."""
    async with connections.dedicated_connection as held:
        assert held is not None
        yield held


@pytest.fixture
async def small(dsn: str) -> AsyncIterator[Pool]:
    """A pool of one connection."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        yield pool


@pytest.mark.parametrize(
    ("size", "direct", "spare", "lock"),
    [(1, False, False, False), (2, False, False, True), (3, False, True, True), (1, True, True, True)],
)
async def test_connections_allow_held_connections_depending_on_the_pool_size(
    dsn: str, size: int, direct: bool, spare: bool, lock: bool
) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=size) as pool:
        connections = Connections(pool, dsn if direct else None)
        assert (connections.can_spare_one, connections.can_hold_a_lock) == (spare, lock)


async def insert_and_fail(connections: Connections, *, reserved: bool = False) -> None:
    async with connections.transaction(reserved=reserved) as connection:
        await connection.execute("INSERT INTO mark VALUES (2)")
        await connection.execute("INSERT INTO mark VALUES (1 / 0)")


async def test_transaction_commits_on_success_and_rolls_back_on_error(pool: Pool) -> None:
    connections = Connections(pool)
    await pool.execute("CREATE TABLE mark (id int)")
    async with connections.transaction() as connection:
        await connection.execute("INSERT INTO mark VALUES (1)")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await insert_and_fail(connections)
    assert [row[0] for row in await pool.fetch("SELECT id FROM mark")] == [1]


async def test_statement_raises_unavailable_when_no_connection_becomes_free(small: Pool) -> None:
    connections = Connections(small, options=IMPATIENT)
    async with small.acquire():
        with pytest.raises(DatabaseUnavailableError, match="TimeoutError"):
            await Store(connections).statements.read_clock()


WAYS: Final = (Connections.acquire, Connections.sticky, Connections.transaction, dedicated)

Way: TypeAlias = Callable[[Connections], AbstractAsyncContextManager[Connection]]


@pytest.mark.parametrize("way", [*WAYS, Connections.checkout])
async def test_every_route_raises_pool_closed_when_the_pool_is_closed(dsn: str, way: Way) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=5)
    connections = Connections(pool)
    await pool.close()
    with pytest.raises(PoolClosedError, match=r"shutdown\(\) before pool\.close\(\)"):
        async with way(connections):
            pass


def terminate_while_blocked(dsn: str, process_id: int) -> None:
    """End a session of the server, while the event loop of the caller is blocked, and wait for its end."""

    async def terminate(connection: asyncpg.Connection) -> None:
        assert await connection.fetchval("SELECT pg_terminate_backend($1, 10000)", process_id)

    with ThreadPoolExecutor(1) as executor:
        executor.submit(run_on, dsn, terminate).result()


@pytest.mark.parametrize("way", [*WAYS, Connections.checkout])
@pytest.mark.parametrize("rounds", [0, 2])
async def test_every_route_names_the_end_of_its_idle_connection(dsn: str, way: Way, rounds: int) -> None:
    """After two rounds of the loop, asyncpg has read the last message of the server, but not the end."""

    async def use(connections: Connections) -> None:
        async with way(connections) as connection:
            terminate_while_blocked(dsn, await connection.fetchval("SELECT pg_backend_pid()"))
            for _ in range(rounds):
                await asyncio.sleep(0)
            with translated():  # as the user of a connection that is checked out
                await connection.fetchval("SELECT 1")

    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool:
        connections = Connections(pool)
        with pytest.raises(ConnectionLostError) as caught:
            await use(connections)
        assert "cannot switch" not in str(caught.value)
        if rounds:
            assert isinstance(caught.value.__cause__, asyncpg.InternalClientError)
            assert str(caught.value) == ENDED_WHILE_IDLE
        await connections.release_held()


async def test_route_names_the_end_of_a_connection_whose_socket_was_severed(
    proxied: tuple[Proxy, str],
) -> None:
    proxy, dsn = proxied

    async def use(pool: Pool) -> None:
        async with Connections(pool).acquire() as connection:
            waiting = asyncio.create_task(connection.execute("SELECT pg_sleep(60)"))
            await asyncio.sleep(0)
            proxy.reset()
            await waiting

    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        with pytest.raises(ConnectionLostError):
            await use(pool)
        proxy.heal()


async def test_transaction_raises_unavailable_when_its_connection_breaks(small: Pool) -> None:
    connections = Connections(small)
    with pytest.raises(DatabaseUnavailableError):
        async with connections.transaction() as connection:
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert await small.fetchval("SELECT 1") == 1, "the pool replaces it"


async def test_checkout_keeps_an_error_that_a_job_raises(pool: Pool) -> None:
    connections = Connections(pool)
    with pytest.raises(ConnectionResetError):
        async with connections.checkout():
            raise ConnectionResetError("of the job")


async def test_checkout_connects_beside_the_pool_when_a_direct_dsn_is_given(small: Pool, dsn: str) -> None:
    connections = Connections(small, dsn)
    async with connections.checkout() as direct, small.acquire() as connection:
        pids = {await each.fetchval("SELECT pg_backend_pid()") for each in (direct, connection)}
        assert len(pids) == 2
    assert direct.is_closed()


# -- dedicated connection ------------------------------------------------------------------------------


async def pid_of(connection: Connection) -> int:
    pid: int = await connection.fetchval("SELECT pg_backend_pid()")
    return pid


async def pid_and_settings(connections: Connections) -> tuple[int, dict[str, str]]:
    async with dedicated(connections) as connection:
        rows = await connection.fetch(
            "SELECT name, setting FROM pg_settings WHERE name = ANY ($1)", list(PLANNER_SETTINGS)
        )
        return await pid_of(connection), {row[0]: row[1] for row in rows}


async def settings_left(pool: Pool) -> int:
    """Return how many of the planner settings remain in sessions of the pool."""
    async with asyncio.TaskGroup() as group:
        counts = [
            group.create_task(
                pool.fetchval(
                    "SELECT count(*) FROM pg_settings, pg_sleep(0.01)"
                    " WHERE name = ANY ($1) AND source = 'session'",
                    list(PLANNER_SETTINGS),
                )
            )
            for _ in range(pool.get_max_size())
        ]
    return sum(count.result() for count in counts)


@pytest.fixture
async def connections(pool: Pool) -> AsyncIterator[Connections]:
    connections = Connections(pool)
    yield connections
    await connections.release_held()


async def test_dedicated_connection_keeps_its_settings_between_uses(
    connections: Connections, pool: Pool
) -> None:
    pid, settings = await pid_and_settings(connections)
    assert settings == PLANNER_SETTINGS
    async with asyncio.TaskGroup() as others:  # the pool is busy
        for _ in range(10):
            others.create_task(pool.fetchval("SELECT 1"))
    assert await pid_and_settings(connections) == (pid, PLANNER_SETTINGS)
    assert pool.get_size() - pool.get_idle_size() == 1


async def test_dedicated_connection_has_one_user_at_a_time(connections: Connections) -> None:
    order: list[str] = []

    async def use(name: str) -> None:
        async with dedicated(connections) as connection:
            order.append(f"{name} begins")
            await connection.execute("SELECT 1")
            order.append(f"{name} ends")

    await asyncio.gather(use("one"), use("two"))
    assert order == ["one begins", "one ends", "two begins", "two ends"]


async def test_release_held_resets_the_dedicated_connection(connections: Connections, pool: Pool) -> None:
    await pid_and_settings(connections)
    await connections.release_held()
    assert pool.get_size() == pool.get_idle_size()
    assert await settings_left(pool) == 0
    await connections.release_held()
    await pid_and_settings(connections)  # it can be taken again


@pytest.mark.skipif(
    "reset" not in inspect.signature(asyncpg.create_pool).parameters, reason="an asyncpg before 0.30"
)
async def test_release_held_resets_the_dedicated_connection_when_the_pool_has_its_own_reset(dsn: str) -> None:
    async def reset(connection: object) -> None:
        """Keep the settings."""

    async with asyncpg.create_pool(dsn, min_size=1, max_size=5, reset=reset) as pool:
        connections = Connections(pool)
        await pid_and_settings(connections)
        await connections.release_held()
        assert await settings_left(pool) == 0


async def test_dedicated_connection_is_replaced_when_it_breaks_during_use(
    connections: Connections, pool: Pool
) -> None:
    pid, _ = await pid_and_settings(connections)
    with pytest.raises(DatabaseUnavailableError):
        async with dedicated(connections) as connection:
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert pool.get_size() == pool.get_idle_size()
    again, settings = await pid_and_settings(connections)
    assert again != pid
    assert settings == PLANNER_SETTINGS


async def test_dedicated_connection_is_replaced_when_it_breaks_while_idle(
    connections: Connections, pool: Pool
) -> None:
    pid, _ = await pid_and_settings(connections)
    noticed = asyncio.Event()
    async with dedicated(connections) as held:
        held.add_termination_listener(lambda _connection: noticed.set())
    assert await pool.fetchval("SELECT pg_terminate_backend($1, 5000)", pid)
    await asyncio.wait_for(noticed.wait(), 10)
    again, settings = await pid_and_settings(connections)
    assert again != pid
    assert settings == PLANNER_SETTINGS


async def test_dedicated_connection_is_kept_when_a_statement_fails(connections: Connections) -> None:
    pid, _ = await pid_and_settings(connections)
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with dedicated(connections) as connection:
            await connection.execute("SELECT 1 / 0")
    assert await pid_and_settings(connections) == (pid, PLANNER_SETTINGS)


async def test_dedicated_connection_is_not_used_when_its_settings_fail(
    connections: Connections, pool: Pool
) -> None:
    wrong = ConnectionOptions(dedicated_settings=(("lock_timeout", "never"),))
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await pid_and_settings(Connections(pool, options=wrong))
    assert pool.get_size() == pool.get_idle_size()
    assert (await pid_and_settings(connections))[1] == PLANNER_SETTINGS


async def is_transactional(connections: Connections) -> bool:
    """Return whether a statement of the hot path is a transaction on another connection."""
    assert (await Store(connections).claims.claim("w1", ["test.job"], 1)).jobs == []
    return connections.dedicated_connection.connection is None


@pytest.mark.parametrize(("size", "transaction"), [(1, True), (2, True), (3, True), (4, False)])
async def test_hot_statement_is_a_transaction_when_the_pool_is_small(
    dsn: str, size: int, transaction: bool
) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=size) as pool:
        connections = Connections(pool)
        assert await is_transactional(connections) == transaction
        assert pool.get_size() - pool.get_idle_size() == (0 if transaction else 1)
        await connections.release_held()


async def test_hot_statement_is_a_transaction_when_the_pool_is_busy(
    connections: Connections, pool: Pool
) -> None:
    """Two schedulers on one pool of four would otherwise hold all of it."""
    others = [await pool.acquire() for _ in range(3)]
    assert await is_transactional(connections)
    await pool.release(others.pop())
    assert not await is_transactional(connections)
    for other in others:
        await pool.release(other)


@asynccontextmanager
async def used_up(pool: Pool) -> AsyncIterator[None]:
    """Let jobs hold every free connection."""
    async with AsyncExitStack() as jobs:
        while pool.get_size() - pool.get_idle_size() < pool.get_max_size():
            await jobs.enter_async_context(pool.acquire())
        yield


async def test_reserved_statements_run_when_jobs_use_up_the_pool(
    connections: Connections, pool: Pool
) -> None:
    store = Store(connections)
    await store.workers.register(worker(), LEASE)
    assert await pool.execute("CREATE TABLE mark (id int)")
    pid, _ = await pid_and_settings(connections)
    async with used_up(pool), asyncio.timeout(10):
        assert (await store.workers.renew("w1", {}, LEASE)).alive
        assert await store.results.settle("w1", []) == set()
        assert await store.jobs.statuses_of(["gone"]) == {}
        assert await store.schedules.pause("gone", None) is None
        await store.locks.notify(["due"])
        async with connections.transaction(reserved=True) as connection:
            await connection.execute("INSERT INTO mark VALUES (1)")
            assert await pid_of(connection) == pid
        with pytest.raises(asyncpg.DivisionByZeroError):
            await insert_and_fail(connections, reserved=True)
        assert await pid_and_settings(connections) == (pid, PLANNER_SETTINGS)
    assert [row[0] for row in await pool.fetch("SELECT id FROM mark")] == [1]
    async with connections.acquire(reserved=True) as connection:
        assert await pid_of(connection) != pid, "the hot path has it to itself again"


async def test_dedicated_connection_has_no_open_transaction_after_its_user_was_cancelled(
    connections: Connections, pool: Pool
) -> None:
    await pool.execute("CREATE TABLE mark (id int)")
    for turns in range(20):
        await pid_and_settings(connections)
        async with used_up(pool):
            using = asyncio.create_task(insert_and_fail(connections, reserved=True))
            for _ in range(turns):
                await asyncio.sleep(0)
            using.cancel()
            await asyncio.wait([using])
            async with asyncio.timeout(10), connections.transaction(reserved=True) as connection:
                await connection.execute("INSERT INTO mark VALUES ($1)", turns)
    assert [row[0] for row in await pool.fetch("SELECT id FROM mark ORDER BY id")] == [*range(20)]


async def test_notify_waits_for_the_pool_when_no_worker_runs(
    pool: Pool,
) -> None:
    connections = Connections(pool, options=IMPATIENT)
    async with used_up(pool):
        with pytest.raises(DatabaseUnavailableError, match="TimeoutError"):
            await Store(connections, schema="public").locks.notify(["due"])
    assert connections.dedicated_connection.connection is None


async def test_dedicated_connection_opens_beside_the_pool_when_jobs_use_it_up(
    dsn: str, pool: Pool, connections: Connections
) -> None:
    pid, _ = await pid_and_settings(connections)
    async with used_up(pool), asyncio.timeout(10):
        with pytest.raises(DatabaseUnavailableError):
            async with dedicated(connections) as connection:
                await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        async with used_up(pool):  # a waiting job takes the place in the pool
            extra, settings = await pid_and_settings(connections)
            assert (extra != pid, settings) == (True, PLANNER_SETTINGS)
            async with connections.transaction(reserved=True) as connection:
                assert await pid_of(connection) == extra
            assert pool.get_size() - pool.get_idle_size() == pool.get_max_size()
    assert (await pid_and_settings(connections))[0] == extra
    await connections.release_held()
    async with asyncio.timeout(10):
        while await pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", extra):  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert (await pid_and_settings(connections))[0] != extra


async def test_dedicated_connection_beside_the_pool_runs_the_init_of_the_pool(dsn: str) -> None:
    async def init(connection: asyncpg.Connection) -> None:
        await connection.execute("SET application_name = 'as the owner wants'")

    async with asyncpg.create_pool(dsn, min_size=1, max_size=4, init=init) as pool:
        connections = Connections(pool)
        async with used_up(pool), dedicated(connections) as connection:
            assert await connection.fetchval("SHOW application_name") == "as the owner wants"
        await connections.release_held()


async def test_reserved_acquire_waits_when_a_small_pool_is_used_up(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=3) as pool:
        connections = Connections(pool, options=IMPATIENT)
        async with used_up(pool):
            with pytest.raises(DatabaseUnavailableError, match="TimeoutError"):
                async with connections.acquire(reserved=True):
                    raise AssertionError


async def test_hot_statement_is_a_transaction_behind_a_pooler(
    connections: Connections, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PgBouncer reports a process id of its own, and clients share its sessions."""
    monkeypatch.setattr(PoolConnectionProxy, "get_server_pid", lambda _self: -1)
    for _ in range(2):
        assert await is_transactional(connections)
    assert pool.get_size() == pool.get_idle_size()


async def test_heartbeat_does_not_wait_for_the_dedicated_connection(
    connections: Connections, pool: Pool
) -> None:
    """A claim may wait long for a lock."""
    store = Store(connections)
    await store.workers.register(worker(), LEASE)
    async with dedicated(connections):
        assert (await asyncio.wait_for(store.workers.renew("w1", {}, LEASE), 10)).alive


@pytest.mark.parametrize("way", [*WAYS, Connections.transaction_of_job])
async def test_route_raises_connection_lost_when_its_connection_ends_between_two_steps(
    dsn: str, way: Way
) -> None:
    """The AttributeError of asyncpg; one of the block itself stays as it is."""

    async def use(connections: Connections, *, is_own: bool) -> None:
        async with way(connections) as connection:
            connection.terminate()
            if is_own:
                raise AttributeError("'NoneType' object has no attribute 'bind_execute'")
            # As the second step of a call, which does not check whether the connection is open.
            untyped: Any = connection
            await untyped._execute("SELECT 1", (), 0, None)

    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool:
        connections = Connections(pool)
        with pytest.raises(ConnectionLostError, match="ended between two steps of a call"):
            await use(connections, is_own=False)
        with pytest.raises(AttributeError, match="bind_execute"):
            await use(connections, is_own=True)
        assert await pid_and_settings(connections)
        await connections.release_held()


# -- advisory locks ------------------------------------------------------------------------------------


async def locks(pool: Pool) -> int:
    count: int = await pool.fetchval(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    return count


@pytest.fixture
async def roomy(dsn: str) -> AsyncIterator[Pool]:
    """A pool with room for three locks, LISTEN, the hot path and one for statements."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=6) as pool:
        yield pool


@pytest.mark.parametrize("direct", [False, True])
async def test_advisory_lock_has_one_holder_until_the_block_ends(roomy: Pool, dsn: str, direct: bool) -> None:
    pool = roomy
    store = Store(Connections(pool, dsn if direct else None))
    async with (
        store.locks.advisory_lock(KEY) as taken,
        store.locks.advisory_lock(KEY) as again,
        store.locks.advisory_lock(1) as other,
    ):
        assert (taken, again, other) == (True, False, True)
        assert await locks(pool) == 2
    assert await locks(pool) == 0
    with pytest.raises(LookupError):
        async with store.locks.advisory_lock(KEY):
            raise LookupError
    assert await locks(pool) == 0


@pytest.mark.parametrize("direct", [False, True])
async def test_release_of_an_advisory_lock_is_no_loss(pool: Pool, dsn: str, direct: bool) -> None:
    """Also where the release ends the session."""
    losses: list[bool] = []
    store = Store(Connections(pool, dsn if direct else None))
    async with store.locks.advisory_lock(KEY, lambda: losses.append(direct)) as taken:
        assert taken
    await asyncio.sleep(0.1)  # real time: the loop reads the end of the session
    assert losses == []


async def test_advisory_lock_survives_a_failed_attempt_to_take_it(pool: Pool) -> None:
    store = Store(Connections(pool))
    async with store.locks.advisory_lock(KEY):
        async with store.locks.advisory_lock(KEY) as again:
            assert not again
        assert await locks(pool) == 1


async def test_advisory_lock_is_free_when_its_connection_ended(pool: Pool) -> None:
    store = Store(Connections(pool))
    async with store.locks.advisory_lock(KEY) as taken:
        assert taken
        await pool.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        async with store.locks.advisory_lock(KEY) as again:
            assert again


# -- LISTEN -----------------------------------------------------------------------------------------


class Inbox:
    """Collect messages."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[str] = asyncio.Queue()
        self.broken = asyncio.Event()

    def subscription(self, store: Store) -> Subscription:
        return Subscription(store, self.messages.put_nowait, self.broken.set)

    async def receive(self) -> str:
        async with asyncio.timeout(10):
            return await self.messages.get()


@pytest.mark.parametrize("direct", [False, True])
async def test_subscription_receives_messages_when_their_transaction_commits(
    pool: Pool, dsn: str, direct: bool
) -> None:
    store, inbox = Store(Connections(pool, dsn if direct else None)), Inbox()
    subscription = inbox.subscription(store)
    open_before = subscription.is_open
    await subscription.open()
    assert (open_before, subscription.is_open) == (False, True)
    assert subscription.channel == await store.locks.channel()
    subscription.lend()
    await subscription.check(0)
    await store.locks.notify(["one", "two"])
    assert [await inbox.receive(), await inbox.receive()] == ["one", "two"]
    async with store.connections.transaction() as connection:
        await store.locks.notify(["later"], connection=connection)
        await store.locks.notify(["first"])
        assert await inbox.receive() == "first"
    assert await inbox.receive() == "later"
    await subscription.close()
    assert [subscription.is_open, inbox.broken.is_set()] == [False, False]
    await subscription.close()


async def test_subscription_receives_no_messages_of_other_schemas(pool: Pool) -> None:
    here, there, inbox = Store(Connections(pool)), Store(Connections(pool), schema="other"), Inbox()
    subscription = inbox.subscription(here)
    await subscription.open()
    await there.locks.notify(["elsewhere"])
    await here.locks.notify(["here"])
    assert await inbox.receive() == "here"
    await subscription.close()


async def test_subscription_reopens_after_its_connection_ended(pool: Pool) -> None:
    store, inbox = Store(Connections(pool)), Inbox()
    subscription = inbox.subscription(store)
    await subscription.open()
    subscription.lend()
    await pool.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    )
    async with asyncio.timeout(10):
        await inbox.broken.wait()
    assert not subscription.is_open
    with pytest.raises(DatabaseUnavailableError):
        await subscription.check(0)
    await subscription.close()
    await subscription.open()
    await store.locks.notify(["again"])
    assert await inbox.receive() == "again"
    await subscription.close()


async def test_subscription_check_does_nothing_when_it_is_closed(pool: Pool) -> None:
    await Inbox().subscription(Store(Connections(pool))).check(0)


async def test_sticky_connection_returns_to_the_pool_when_idle(
    dsn: str,
) -> None:
    options = ConnectionOptions(sticky_idle_s=0.01)  # real time: it is the subject
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool:
        connections = Connections(pool, options=options)
        seen = set()
        for _ in range(5):
            async with connections.sticky() as connection:
                seen.add(await connection.fetchval("SELECT pg_backend_pid()"))
        assert len(seen) == 1
        assert pool.get_idle_size() == pool.get_size() - 1
        async with asyncio.timeout(10):
            await pool.close()  # waits until every connection is released
    async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as small:
        connections = Connections(small, options=options)
        async with connections.sticky():
            pass
        assert small.get_idle_size() == small.get_size(), "a small pool keeps none"


async def test_steps_reuse_a_connection_and_do_not_wait_for_one_another(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool:
        connections = Connections(pool)
        async with connections.step() as first:
            async with asyncio.timeout(10), connections.step() as other:
                assert other is not first
            assert pool.get_idle_size() == pool.get_size() - 1, "a small pool keeps one"
        async with connections.step() as next_one:
            assert next_one is first, "it was not reset"
        async with asyncio.timeout(10):
            await connections.release_held()
        assert pool.get_idle_size() == pool.get_size()


async def test_sticky_connection_is_replaced_when_it_broke_while_idle(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool:
        connections = Connections(pool)
        async with connections.sticky() as connection:
            pid = await connection.fetchval("SELECT pg_backend_pid()")
            ended = asyncio.Event()
            connection.add_termination_listener(lambda _connection: ended.set())
        await pool.execute("SELECT pg_terminate_backend($1)", pid)
        async with asyncio.timeout(10):
            await ended.wait()
        async with connections.sticky() as connection:
            assert await connection.fetchval("SELECT pg_backend_pid()") != pid


async def test_sticky_connection_reports_no_error_when_its_release_fails(
    proxied: tuple[Proxy, str],
) -> None:
    proxy, dsn = proxied
    faults: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with asyncpg.create_pool(dsn, min_size=0, max_size=5) as pool:
        connections = Connections(pool, options=ConnectionOptions(sticky_idle_s=0))
        async with connections.sticky() as connection:
            await connection.execute("SELECT 1")
            proxy.stall()  # the reset of the pool gets no answer
        sticky = connections.sticky_connection
        assert sticky is not None
        while sticky.releasing is None or sticky.is_held:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
        releasing = sticky.releasing
        proxy.reset()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([releasing])
        assert releasing.exception() is None
        proxy.heal()
        async with connections.sticky() as connection:
            assert await connection.fetchval("SELECT 1") == 1
        await connections.release_held()
    assert not faults


@pytest.mark.parametrize("when", ["before", "within", "at the end"])
async def test_transaction_raises_unavailable_when_the_server_does_not_answer(
    proxied: tuple[Proxy, str], when: str
) -> None:
    proxy, dsn = proxied

    async def use(connections: Connections) -> None:
        async with connections.transaction() as connection:
            if when == "within":
                proxy.drop()
            await connection.execute("SELECT 1", timeout=connections.options.call_timeout_s)
            if when == "at the end":
                proxy.drop()

    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        options = ConnectionOptions(call_timeout_s=0.2)  # real time: the timeout is the subject
        connections = Connections(pool, options=options)
        if when == "before":
            proxy.drop()
        using = asyncio.create_task(use(connections))
        await asyncio.wait([using], timeout=PATIENCE)
        assert using.done()
        assert isinstance(using.exception(), DatabaseUnavailableError)
        proxy.heal()
        async with Connections(pool).transaction() as connection:
            assert await connection.fetchval("SELECT 1") == 1


async def test_sticky_connection_is_replaced_when_it_breaks_during_use(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool:
        connections = Connections(pool)
        with pytest.raises(DatabaseUnavailableError):
            async with connections.sticky() as connection:
                await connection.fetchval("SELECT pg_terminate_backend(pg_backend_pid())")
        async with connections.sticky() as connection:
            assert await connection.fetchval("SELECT 1") == 1
