"""A role whose functions add, cancel and signal jobs of some names: what it may do, and nothing else."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TypeAlias

import asyncpg
import pytest
from asyncpg.pool import PoolConnectionProxy

from pg_scheduler import ConfigurationError, JobStatus, Scheduler, current_job, periodic
from pg_scheduler.events import JobCompleted, JobSuspended
from pg_scheduler.inspect.store.senders import MAX_VALUE_BYTES, sender_script
from tests.support import inside
from tests.support.worker import PATIENCE, Recorder

MAX_STEPS = inside.internal_setting("steps_of_job")

AnyConnection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
DENIED = asyncpg.InsufficientPrivilegeError
SCHEMA = "jobs' and \"more"
TASKS = ("shop.*", "100%", "tests.inspect.*")
SIGNALS = ("approved", "stage_?", "note:*")


async def order() -> object:
    return await current_job().steps.wait("approved")


@pytest.fixture
async def owner(empty_dsn: str) -> AsyncIterator[asyncpg.Pool]:
    """Return a pool of the tables' owner."""
    async with asyncpg.create_pool(empty_dsn, min_size=0, max_size=8) as pool:
        await Scheduler(pool, schema=SCHEMA).initialize_db()
        yield pool


@pytest.fixture
async def sender(owner: asyncpg.Pool) -> AsyncIterator[AnyConnection]:
    """Return a connection of a role that has nothing but its functions, under its name."""
    role = f"sender_{uuid.uuid4().hex}"
    await owner.execute(f"CREATE ROLE {role}")
    try:
        await owner.execute(sender_script(SCHEMA, role, TASKS, SIGNALS))
        async with owner.acquire() as connection:
            await connection.execute(f"SET ROLE {role}")
            yield connection
            await connection.execute("RESET ROLE")
    finally:
        await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def call(connection: AnyConnection, action: str, *arguments: object) -> object:
    """Call a function of the connection's role."""
    role = await connection.fetchval("SELECT current_user")
    home = SCHEMA.replace('"', '""')
    places = ", ".join(f"${place}" for place in range(1, len(arguments) + 1))
    return await connection.fetchval(f'SELECT "{home}"."{role}_{action}"({places})', *arguments)


async def test_sender_adds_jobs_of_its_tasks(owner: asyncpg.Pool, sender: AnyConnection) -> None:
    scheduler = Scheduler(owner, schema=SCHEMA)
    job_id = await call(sender, "enqueue", "shop.order", json.dumps([7]))
    job = await scheduler.get_job(str(job_id))
    assert job is not None
    assert (job.job_name, job.args, job.status) == ("shop.order", (7,), JobStatus.PENDING)
    await call(sender, "enqueue", "100%")


@pytest.mark.parametrize("name", ["shop", "shopXorder", "bank.shop.order", "1000", "100%%", "", None])
async def test_sender_adds_no_jobs_of_other_tasks(
    owner: asyncpg.Pool, sender: AnyConnection, name: str | None
) -> None:
    with pytest.raises(DENIED, match="no permission to add a job of the task"):
        await call(sender, "enqueue", name)
    assert await Scheduler(owner, schema=SCHEMA).list_jobs() == []


async def test_sender_cancels_jobs_of_its_tasks_only(owner: asyncpg.Pool, sender: AnyConnection) -> None:
    scheduler = Scheduler(owner, schema=SCHEMA)
    await scheduler.enqueue("shop.order", job_id="own")
    await scheduler.enqueue("bank.transfer", job_id="foreign")
    assert await call(sender, "cancel", "own") is True
    assert await call(sender, "cancel", "own") is False
    messages = []
    for job_id in ("foreign", "missing"):
        with pytest.raises(DENIED) as refusal:
            await call(sender, "cancel", job_id)
        messages.append(str(refusal.value).replace(job_id, "ID"))
    # A job of another task looks like none.
    assert len(set(messages)) == 1
    assert (await scheduler.count_jobs()).pending == 1


async def test_signal_of_a_sender_wakes_the_job_that_waits_for_it(
    owner: asyncpg.Pool, sender: AnyConnection
) -> None:
    scheduler = Scheduler(owner, schema=SCHEMA)
    scheduler.register(order, name="shop.order")
    seen = Recorder(scheduler)
    async with scheduler:
        await scheduler.enqueue("shop.order", job_id="order:7", keep_result=timedelta(minutes=1))
        await seen.until(JobSuspended, job_id="order:7")
        assert await call(sender, "signal", "order:7", "approved", json.dumps({"by": "ann"})) is True
        result = await scheduler.get_job_result("order:7", wait=True, timeout=PATIENCE)
        assert result.unwrap() == {"by": "ann"}
        assert await call(sender, "signal", "order:7", "approved") is False


async def test_sender_signals_and_cancels_jobs_of_periodic_functions_by_the_names_of_their_tasks(
    owner: asyncpg.Pool, sender: AnyConnection
) -> None:
    @periodic(every=timedelta(days=999), dedup_key="approve")
    async def approve() -> None:
        await current_job().steps.wait("approved")

    scheduler = Scheduler(owner, schema=SCHEMA)
    seen = Recorder(scheduler)
    async with scheduler:
        ids = [await scheduler.trigger_periodic_job("approve") for _ in range(2)]
        for job_id in ids:
            assert job_id is not None
            await seen.until(JobSuspended, job_id=job_id)
        assert await call(sender, "signal", ids[0], "approved") is True
        assert await call(sender, "cancel", ids[1]) is True
        await seen.until(JobCompleted, job_id=ids[0])


async def test_signal_of_a_sender_is_stored_once_before_the_wait(
    owner: asyncpg.Pool, sender: AnyConnection
) -> None:
    scheduler = Scheduler(owner, schema=SCHEMA)
    scheduler.register(order, name="shop.order")
    await scheduler.enqueue("shop.order", job_id="order:7", keep_result=timedelta(minutes=1))
    assert await call(sender, "signal", "order:7", "approved", "1") is True
    assert await call(sender, "signal", "order:7", "approved", "2") is False
    async with scheduler:
        assert (await scheduler.get_job_result("order:7", wait=True, timeout=PATIENCE)).unwrap() == 1


@pytest.mark.parametrize("name", ["withdrawn", "stage_1", "stageX?", "note", "", None])
async def test_sender_sends_no_other_signals(
    owner: asyncpg.Pool, sender: AnyConnection, name: str | None
) -> None:
    await Scheduler(owner, schema=SCHEMA).enqueue("shop.order", job_id="order:7")
    with pytest.raises(DENIED, match="no permission to send the signal"):
        await call(sender, "signal", "order:7", name)


async def test_sender_signals_no_jobs_of_other_tasks(owner: asyncpg.Pool, sender: AnyConnection) -> None:
    await Scheduler(owner, schema=SCHEMA).enqueue("bank.transfer", job_id="foreign")
    for job_id in ("foreign", "missing", None):
        with pytest.raises(DENIED, match="no job with the id"):
            await call(sender, "signal", job_id, "approved")


async def test_signals_of_a_sender_have_the_bounds_of_all(owner: asyncpg.Pool, sender: AnyConnection) -> None:
    scheduler = Scheduler(owner, schema=SCHEMA)
    await scheduler.enqueue("shop.order", job_id="order:7")
    with pytest.raises(asyncpg.ProgramLimitExceededError):
        await call(sender, "signal", "order:7", "note:1", json.dumps("x" * MAX_VALUE_BYTES))
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await call(sender, "signal", "order:7", "note:" + "x" * 200)
    for number in range(MAX_STEPS):
        assert await call(sender, "signal", "order:7", f"note:{number}") is True
    with pytest.raises(asyncpg.ProgramLimitExceededError, match="no room for the signal"):
        await call(sender, "signal", "order:7", "approved")


async def test_two_senders_store_one_of_two_signals(owner: asyncpg.Pool, sender: AnyConnection) -> None:
    scheduler = Scheduler(owner, schema=SCHEMA)
    await scheduler.enqueue("shop.order", job_id="order:7")
    async with owner.acquire() as other:
        await other.execute(f"SET ROLE {await sender.fetchval('SELECT current_user')}")
        async with other.transaction():
            assert await call(other, "signal", "order:7", "approved", "1") is True
            second = asyncio.create_task(scheduler.signal("order:7", "approved", 2))
            third = asyncio.create_task(call(sender, "signal", "order:7", "approved", "3"))
            await asyncio.sleep(0)
        assert (await second, await third) == (False, False)
        await other.execute("RESET ROLE")


async def test_sender_has_no_other_rights(owner: asyncpg.Pool, sender: AnyConnection) -> None:
    home = SCHEMA.replace('"', '""')
    tables = await owner.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", SCHEMA)
    assert tables
    for (table,) in tables:
        for statement in ("SELECT FROM {}", "DELETE FROM {}", "INSERT INTO {} DEFAULT VALUES"):
            with pytest.raises(DENIED):
                await sender.execute(statement.format(f'"{home}"."{table}"'))
    with pytest.raises(DENIED):
        await sender.execute(f"SELECT \"{home}\".scheduler_add_job('shop.order')")


async def test_functions_of_a_sender_can_be_called_by_no_other_role(
    owner: asyncpg.Pool, sender: AnyConnection
) -> None:
    role = await sender.fetchval("SELECT current_user")
    home = SCHEMA.replace('"', '""')
    other = f"other_{uuid.uuid4().hex}"
    await owner.execute(f'CREATE ROLE {other}; GRANT USAGE ON SCHEMA "{home}" TO {other}')
    try:
        async with owner.acquire() as connection:
            await connection.execute(f"SET ROLE {other}")
            for action, arguments in (("enqueue", "'shop.order'"), ("cancel", "'a'"), ("signal", "'a', 'b'")):
                with pytest.raises(DENIED, match="permission denied for function"):
                    await connection.execute(f'SELECT "{home}".{role}_{action}({arguments})')
            await connection.execute("RESET ROLE")
    finally:
        await owner.execute(f"DROP OWNED BY {other}; DROP ROLE {other}")


async def test_only_the_owner_of_the_tables_creates_the_functions(owner: asyncpg.Pool) -> None:
    other = f"other_{uuid.uuid4().hex}"
    home = SCHEMA.replace('"', '""')
    await owner.execute(f'CREATE ROLE {other}; GRANT USAGE, CREATE ON SCHEMA "{home}" TO {other}')
    try:
        async with owner.acquire() as connection:
            await connection.execute(f"SET ROLE {other}")
            with pytest.raises(DENIED, match="rights of the role that creates them"):
                await connection.execute(sender_script(SCHEMA, other, TASKS, SIGNALS))
            await connection.execute("ROLLBACK")
            await connection.execute("RESET ROLE")
    finally:
        await owner.execute(f"DROP OWNED BY {other}; DROP ROLE {other}")


async def test_names_in_the_functions_end_no_text(owner: asyncpg.Pool) -> None:
    role = f"sender_{uuid.uuid4().hex}"
    names = ["a'b", "$sender$", "$statement$", "back\\slash", "new\nline", "und_er", "{schema}"]
    await owner.execute(f"CREATE ROLE {role}")
    try:
        await owner.execute(sender_script(SCHEMA, role, names, names))
        async with owner.acquire() as connection:
            await connection.execute(f"SET ROLE {role}")
            for name in names:
                job_id = await call(connection, "enqueue", name)
                assert await call(connection, "signal", job_id, name) is True
            with pytest.raises(DENIED):
                await call(connection, "enqueue", "undXer")
            await connection.execute("RESET ROLE")
    finally:
        await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("name", ["", "\x00"])
def test_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="a name must be a text"):
        sender_script("jobs", "webhook", [name], ["*"])


def test_role_whose_functions_would_have_too_long_names_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        sender_script("jobs", "x" * 60, ["*"], ["*"])
