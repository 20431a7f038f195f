"""Mistakes of the first hour end in an error that names the remedy, and store nothing."""

from __future__ import annotations

import asyncio
import functools
import inspect
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    DatabaseUnavailableError,
    JobFunction,
    JobSpec,
    NameConflictError,
    NotRunningError,
    PayloadError,
    PollingConfig,
    RetryPolicy,
    Scheduler,
    VacuumConfig,
    VacuumPolicy,
    periodic,
)
from pg_scheduler.events import JobCompleted
from pg_scheduler.triggers import Cron, During
from tests.api.conftest import Make
from tests.support.cases import each_case
from tests.support.inside import periodic_catalogue, worker_of
from tests.support.logs import records_of
from tests.support.worker import PROMPT, Recorder, now

ENABLED = "SELECT paused_at IS NULL FROM scheduler_schedules WHERE schedule_id = 'mine'"


async def work(*args: object, **kwargs: object) -> None: ...


async def count_rows(pool: asyncpg.Pool) -> int:
    count: int = await pool.fetchval("SELECT count(*) FROM scheduled_jobs")
    return count


# -- connection= outside a transaction -----------------------------------------------------------------


@pytest.mark.parametrize("mode", ConflictResolution)
async def test_schedule_rejects_a_connection_outside_a_transaction(
    make: Make, pool: asyncpg.Pool, dsn: str, mode: ConflictResolution
) -> None:
    scheduler = make()
    own = await asyncpg.connect(dsn)
    async with pool.acquire() as pooled:
        for connection in (own, pooled):
            with pytest.raises(ValueError, match=r"async with connection\.transaction\(\)"):
                await scheduler.schedule(
                    work, execution_time=now(), connection=connection, conflict_resolution=mode
                )
            with pytest.raises(ValueError, match="not in a transaction"):
                await scheduler.schedule_bulk(
                    [JobSpec(work, now())], connection=connection, conflict_resolution=mode
                )
    await own.close()
    assert await count_rows(pool) == 0


async def test_schedule_raises_the_error_of_the_driver_in_an_aborted_transaction(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        with pytest.raises(asyncpg.DivisionByZeroError):
            await connection.execute("SELECT 1 / 0")
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await scheduler.schedule(work, execution_time=now(), connection=connection)
        await transaction.rollback()
    assert await count_rows(pool) == 0


async def test_schedule_raises_database_unavailable_error_when_the_connection_has_ended(
    make: Make, pool: asyncpg.Pool, dsn: str
) -> None:
    """asyncpg has the same state whether its owner or the server ended a connection."""
    scheduler = make()
    async with pool.acquire() as released:
        pass
    closed, lost = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    await closed.close()
    await lost.transaction().start()
    await pool.execute("SELECT pg_terminate_backend($1)", lost.get_server_pid())
    for connection in (released, closed, lost):
        with pytest.raises(DatabaseUnavailableError):
            await scheduler.schedule(work, execution_time=now(), connection=connection)
    assert await count_rows(pool) == 0


# -- wait() without start() ----------------------------------------------------------------------------


async def test_wait_raises_when_the_scheduler_was_not_started(make: Make) -> None:
    with pytest.raises(NotRunningError, match=r"call await scheduler\.start\(\)"):
        await make().wait()


async def test_wait_raises_after_a_failed_start(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await pool.execute("UPDATE scheduler_migrations SET checksum = 'changed' WHERE version = 1")
    with pytest.raises(Exception, match="migration"):
        await scheduler.start()
    with pytest.raises(NotRunningError):
        await scheduler.wait()


async def test_wait_waits_for_a_start_in_progress_and_returns_after_shutdown(make: Make) -> None:
    scheduler = make()
    starting = asyncio.create_task(scheduler.start())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(scheduler.wait())
    await starting
    assert not waiting.done()
    await scheduler.shutdown()
    await waiting
    await scheduler.wait()


# -- values of a wrong type ----------------------------------------------------------------------------


async def greet(name: str = "") -> None: ...


@each_case(
    ("values", "message"),
    [
        ({"priority": "high"}, r"priority must be a JobPriority, not str: 'high'; pass JobPriority\.HIGH$"),
        ({"priority": 5}, r"JobPriority\.CRITICAL or .* or JobPriority\.LOW$"),
        ({"conflict_resolution": "IGNORE"}, r"'IGNORE'; pass ConflictResolution\.IGNORE$"),
        (
            {"execution_time": timedelta(minutes=5)},
            r"not timedelta: datetime\.timedelta\(seconds=300\); pass datetime\.now\(UTC\) \+ the timedelta$",
        ),
        ({"execution_time": "2030-01-01"}, r"'2030-01-01'; pass datetime\.fromisoformat\(\)"),
        ({"execution_time": 1_900_000_000}, r"pass datetime\.fromtimestamp\(seconds, UTC\)"),
        ({"execution_time": None}, r"pass datetime\.now\(UTC\) \+ timedelta"),
        ({"args": "ada"}, r"args must be a tuple or a list, not str; pass one argument as args=\(value,\)"),
        ({"kwargs": ["ada"]}, r"kwargs must be a dict, not list; pass kwargs=\{'name': value\}"),
        ({"job_id": uuid.UUID(int=7)}, r"job_id must be a str, not UUID: .*; pass str\(\) of it"),
    ],
    ids=str,
)
async def test_schedule_names_the_remedy_for_a_value_of_the_wrong_type(
    make: Make, pool: asyncpg.Pool, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        await make().schedule(greet, **({"execution_time": now()} | values))
    assert await count_rows(pool) == 0


async def test_schedule_names_the_remedy_when_the_function_was_called(make: Make, pool: asyncpg.Pool) -> None:
    called: Any = greet("ada")
    with pytest.raises(TypeError, match=r"without parentheses, and its arguments as args="):
        await make().schedule(called, execution_time=now())
    called.close()
    assert await count_rows(pool) == 0


# -- invalid settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PollingConfig(max_interval=0), "max_interval must be greater than 0, not 0"),
        (lambda: VacuumPolicy.after_days(-1), "days must be greater than or equal to 0, not -1"),
        (lambda: RetryPolicy(base=5), r"base must be a timedelta, not 5; pass timedelta\(seconds="),  # type: ignore[arg-type]
        (lambda: RetryPolicy(maximum=None), "maximum must be a timedelta, not None"),  # type: ignore[arg-type]
        (lambda: RetryPolicy(factor="2"), "factor must be a number, not '2'"),  # type: ignore[arg-type]
        (lambda: RetryPolicy(jitter=True), "jitter must be a number, not True"),
    ],
    ids=range(6),
)
def test_invalid_setting_is_rejected_with_its_name_value_and_rule(
    build: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()


# -- calls of a Scheduler that was not started ---------------------------------------------------------


@pytest.mark.parametrize("is_stored", [False, True])
async def test_switch_is_stored_when_the_scheduler_was_not_started(
    make: Make, pool: asyncpg.Pool, is_stored: bool
) -> None:
    periodic(every=timedelta(hours=1), dedup_key="mine")(greet)
    if is_stored:
        async with Scheduler(pool):
            pass
    other = make()
    for enabled in (False, True):
        scheduler = make()
        assert (scheduler.enable_periodic_job if enabled else scheduler.disable_periodic_job)("mine")
        await scheduler.shutdown()
        stored = await pool.fetchval(ENABLED)
        assert stored is enabled
        status = scheduler.get_periodic_job_status("mine")
        assert status is not None
        assert status["enabled"] is enabled
    other.disable_periodic_job("mine")
    await other.shutdown()
    async with make() as started:
        assert started.get_periodic_jobs()["mine"].enabled is False


async def test_switch_before_the_first_start_is_stored_by_it(
    make: Make, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    await pool.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    periodic(every=timedelta(hours=1), dedup_key="mine")(greet)
    scheduler = make()
    assert scheduler.disable_periodic_job("mine")
    await scheduler.shutdown()
    (record,) = records_of(caplog)
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("enabled and disabled schedules not stored, start() stores them: ")
    await scheduler.start()
    await scheduler.shutdown()
    assert not await pool.fetchval(ENABLED)


async def test_switch_is_stored_when_a_job_calls_it_during_shutdown(make: Make, pool: asyncpg.Pool) -> None:
    periodic(every=timedelta(hours=1), dedup_key="mine")(greet)
    scheduler = make(shutdown_timeout=5)
    began = asyncio.Event()

    async def switch_late() -> None:
        began.set()
        runtime = worker_of(scheduler)
        while runtime.planner.is_running:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)
        assert scheduler.disable_periodic_job("mine")

    await scheduler.start()
    await scheduler.schedule(switch_late, execution_time=now())
    await began.wait()
    await scheduler.shutdown()
    assert not await pool.fetchval(ENABLED)


@pytest.mark.parametrize("calls", [1, 3])
async def test_job_runs_without_a_poll_when_retried_on_a_scheduler_that_was_not_started(
    make: Make, scheduler: Scheduler, seen: Recorder, calls: int
) -> None:
    scheduler.register(greet)
    other = make()
    for number in range(calls):
        await scheduler.schedule(greet, execution_time=now(), job_id=f"{number}")
    await seen.until(JobCompleted, calls)
    for number in range(calls):
        assert await other.retry_job(f"{number}")
    async with asyncio.timeout(PROMPT):
        await seen.until(JobCompleted, 2 * calls)


# -- @periodic -----------------------------------------------------------------------------------------


class Service:
    def __init__(self) -> None:
        self.runs = 0

    async def sweep(self) -> None:
        self.runs += 1


def closure_over(tenant: str) -> Callable[[], Coroutine[Any, Any, None]]:
    async def sweep() -> None:
        assert tenant

    return sweep


@pytest.mark.parametrize(
    "functions", [(closure_over("a"), closure_over("b")), (Service().sweep, Service().sweep)]
)
def test_periodic_rejects_closures_and_methods_of_one_name_under_two_keys(
    functions: tuple[JobFunction, JobFunction],
) -> None:
    periodic(every=timedelta(hours=1), dedup_key="one")(functions[0])
    with pytest.raises(NameConflictError, match=r"sweep already has the schedule 'one' .*another name"):
        periodic(every=timedelta(hours=1), dedup_key="two")(functions[1])
    assert set(periodic_catalogue.configs()) == {"one"}


async def test_periodic_runs_one_function_under_two_keys(make: Make) -> None:
    service = Service()
    for key in ("one", "two"):
        periodic(every=timedelta(hours=1), dedup_key=key)(service.sweep)
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    for key in ("one", "two"):
        assert await scheduler.trigger_periodic_job(key)
    await seen.until(JobCompleted, 2)
    assert service.runs == 2


async def with_parameters(tenant: str, *rest: str, limit: int, page: int = 1) -> None: ...


def test_periodic_rejects_a_function_with_required_parameters() -> None:
    with pytest.raises(ConfigurationError, match="requires tenant, limit; give them defaults"):
        periodic(every=timedelta(hours=1))(with_parameters)
    assert not periodic_catalogue.configs()


def test_periodic_accepts_a_wrapper_that_passes_the_required_arguments() -> None:
    @functools.wraps(with_parameters)
    async def wrapper() -> None:
        await with_parameters("ada", limit=1)

    periodic(every=timedelta(hours=1))(wrapper)
    assert periodic_catalogue.configs()


@pytest.mark.parametrize("cron", ["0 */5 * * * *", "*/5 * * * * *", "0 0 3 * * *"])
def test_periodic_warns_about_cron_expressions_with_the_seconds_first(cron: str) -> None:
    with pytest.warns(UserWarning, match="minute, hour, day of month, month, day of week, second") as warned:
        periodic(cron=cron)(greet)
    assert warned[0].filename == __file__


async def test_schedule_warns_about_cron_expressions_with_the_seconds_first(make: Make) -> None:
    scheduler = make()
    scheduler.register(greet, name="greet")
    message = "minute, hour, day of month, month, day of week, second"
    with pytest.warns(UserWarning, match=message) as warned:
        await scheduler.schedules.add("greet", Cron("0 */5 * * * *"), schedule_id="often")
    with pytest.warns(UserWarning, match=message) as changed:
        await scheduler.schedules.update("often", trigger=Cron("0 0 3 * * *") & During(weekdays="mon"))
    assert (warned[0].filename, changed[0].filename) == (__file__, __file__)


@pytest.mark.parametrize("cron", ["0 */5 * * *", "* * * * * */10", "* * * * * *", "*/5 * * * * 0"])
def test_periodic_accepts_other_cron_expressions_without_a_warning(cron: str) -> None:
    periodic(cron=cron)(greet)  # a warning fails the test


def test_cron_error_names_the_order_of_six_fields() -> None:
    with pytest.raises(ValueError, match="the order of six fields is minute, hour, day of month"):
        periodic(cron="0 0 12 * * MON-FRI")(greet)


# -- arguments that JSON cannot represent --------------------------------------------------------------


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    number: int


class Model(BaseModel):
    number: int


@each_case(
    ("value", "conversion"),
    [
        (uuid.UUID(int=7), "str(...)"),
        (Decimal("9.90"), "str(...)"),
        (Path("report.pdf"), "str(...)"),
        (datetime(2030, 1, 1, tzinfo=UTC), ".isoformat()"),
        (date(2030, 1, 1), ".isoformat()"),
        (time(12), ".isoformat()"),
        (timedelta(minutes=5), ".total_seconds()"),
        (Colour.RED, ".value"),
        ({"a"}, "sorted(...)"),
        (b"a", ".hex()"),
        (Order(1), "dataclasses.asdict(...)"),
        (Model(number=1), '.model_dump(mode="json")'),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_payload_error_names_the_conversion(
    make: Make, pool: asyncpg.Pool, value: object, conversion: str
) -> None:
    path = "args[0]['order']"
    with pytest.raises(PayloadError) as raised:
        await make().schedule(greet, execution_time=now(), args=({"order": value},))
    assert str(raised.value).startswith(f"{path} is a ")
    assert f"; pass {conversion} of it, or None" in str(raised.value)
    assert await count_rows(pool) == 0


@pytest.mark.parametrize("value", [object(), Colour, Model, Order])
async def test_payload_error_names_no_conversion_of_other_types(make: Make, value: object) -> None:
    with pytest.raises(PayloadError, match=r"; pass None, bool, int, float, str, list or dict$"):
        await make().schedule(greet, execution_time=now(), args=(value,))


# -- another event loop, another thread, a pool that was not awaited -----------------------------------

ROW: dict[str, Any] = {"job_id": "a"}

CALLS: dict[str, Callable[[Scheduler], Coroutine[Any, Any, object]]] = {
    "start": lambda it: it.start(),
    "shutdown": lambda it: it.shutdown(),
    "wait": lambda it: it.wait(),
    "initialize_db": lambda it: it.initialize_db(),
    "schedule": lambda it: it.schedule(greet, execution_time=now()),
    "schedule_bulk": lambda it: it.schedule_bulk([JobSpec(greet, now())] * 200),
    "enqueue": lambda it: it.enqueue("some.name"),
    "schedule_job": lambda it: it.schedule_job("some.name", now(), {}),
    "get_job_result": lambda it: it.get_job_result("a"),
    "run_job": lambda it: it.run_job(greet),
    "cancel_job": lambda it: it.cancel_job("a"),
    "cancel_jobs": lambda it: it.cancel_jobs(job_name="a"),
    "retry_job": lambda it: it.retry_job("a"),
    "run_job_now": lambda it: it.run_job_now("a"),
    "signal": lambda it: it.signal("a", "b"),
    "send": lambda it: it.send("a", "b"),
    "broadcast": lambda it: it.broadcast("a", 1),
    "get_value": lambda it: it.get_value("a", "b"),
    "end_sleep": lambda it: it.end_sleep("a"),
    "update_job_status": lambda it: it.update_job_status("a", "pending"),
    "next_event": lambda it: it.next_event(),
    "get_job": lambda it: it.get_job("a"),
    "list_jobs": lambda it: it.list_jobs(),
    "count_jobs": lambda it: it.count_jobs(),
    "workers": lambda it: it.workers(),
    "recover_orphaned_jobs": lambda it: it.recover_orphaned_jobs(),
    "periodic_orphan_recovery": lambda it: it.periodic_orphan_recovery(),
    "monitor_heartbeats": lambda it: it.monitor_heartbeats(),
    "listen_for_jobs": lambda it: it.listen_for_jobs(),
    "send_heartbeat": lambda it: it.send_heartbeat("a"),
    "load_task_functions": lambda it: it.load_task_functions(),
    "execute_job": lambda it: it.execute_job(ROW),
    "execute_job_with_concurrency_control": lambda it: it.execute_job_with_concurrency_control(ROW),
    "run_vacuum": lambda it: it.run_vacuum(),
    "get_vacuum_stats": lambda it: it.get_vacuum_stats(),
    "get_total_vacuum_stats": lambda it: it.get_total_vacuum_stats(),
    "trigger_periodic_job": lambda it: it.trigger_periodic_job("mine"),
}


def run_elsewhere(call: Callable[[Scheduler], Coroutine[Any, Any, object]], scheduler: Scheduler) -> None:
    asyncio.run(call(scheduler))


@pytest.mark.parametrize("name", CALLS)
async def test_call_from_the_event_loop_of_another_thread_raises_and_leaves_the_scheduler_running(
    make: Make, pool: asyncpg.Pool, name: str
) -> None:
    periodic(every=timedelta(hours=1), dedup_key="mine")(greet)
    scheduler = make(vacuum_config=VacuumConfig(track_metrics=True))
    seen = Recorder(scheduler)
    await scheduler.start()
    insert = asyncio.create_task(scheduler.schedule(greet, execution_time=now()))  # keeps the batcher busy
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match=r"another event loop.*asyncio\.run_coroutine_threadsafe"):
        await asyncio.to_thread(run_elsewhere, CALLS[name], scheduler)
    job_id = await insert
    await seen.until(JobCompleted, job_id=job_id)
    assert scheduler.is_running
    assert await count_rows(pool) == 1


def test_every_coroutine_method_is_called_from_another_event_loop() -> None:
    public = {
        name for name, _ in inspect.getmembers(Scheduler, inspect.iscoroutinefunction) if name[0] != "_"
    }
    assert set(CALLS) == public


async def test_iteration_over_events_in_another_event_loop_raises(make: Make) -> None:
    scheduler = make()

    async def read() -> None:
        async for _ in scheduler.events():
            break

    with pytest.raises(RuntimeError, match=r"another event loop.*asyncio\.run_coroutine_threadsafe"):
        await asyncio.to_thread(asyncio.run, read())


async def test_switch_from_another_thread_raises(make: Make) -> None:
    periodic(every=timedelta(hours=1), dedup_key="mine")(greet)
    scheduler = make()
    for _ in range(2):
        for switch in (scheduler.disable_periodic_job, scheduler.enable_periodic_job):
            with pytest.raises(RuntimeError, match="another event loop or thread"):
                await asyncio.to_thread(switch, "mine")
        assert scheduler.get_periodic_jobs()["mine"].enabled
        await scheduler.start()


async def test_call_from_a_thread_succeeds_with_the_remedy(make: Make) -> None:
    scheduler, loop = make(), asyncio.get_running_loop()

    def call() -> str:
        return asyncio.run_coroutine_threadsafe(
            scheduler.schedule(greet, execution_time=now()), loop
        ).result()

    job_id = await asyncio.to_thread(call)
    assert await scheduler.get_job(job_id)


def test_scheduler_rejects_a_pool_of_an_event_loop_that_has_ended(dsn: str) -> None:
    with asyncio.Runner() as runner:
        pool = runner.run(open_pool(dsn))
        with asyncio.Runner() as other, pytest.raises(RuntimeError, match="loop that created the pool"):
            other.run(Scheduler(pool).start())
        runner.run(pool.close())


async def open_pool(dsn: str) -> asyncpg.Pool:
    return await asyncpg.create_pool(dsn, min_size=1, max_size=5)


@pytest.mark.parametrize(
    "name", ["start", "initialize_db", "schedule", "schedule_bulk", "get_job", "workers"]
)
async def test_call_names_the_remedy_when_the_pool_was_not_awaited(dsn: str, name: str) -> None:
    scheduler = Scheduler(asyncpg.create_pool(dsn, min_size=1, max_size=5))
    with pytest.raises(RuntimeError, match=r"not initialized; write pool = await asyncpg\.create_pool"):
        await CALLS[name](scheduler)


# -- values of a wrong type that were once taken for others --------------------------------------------


class TaskName(str, Enum):  # noqa: UP042 - str() of a StrEnum is its value
    GREET = "greet"


async def test_schedule_stores_the_value_of_a_name_from_a_str_enum(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    scheduler.register(greet, name="greet")
    await scheduler.initialize_db()
    schedule = await scheduler.schedules.add(TaskName.GREET, Cron("0 8 * * *"), schedule_id="daily")
    assert schedule.task == "greet"
    assert (await scheduler.schedules.update("daily", func=TaskName.GREET)).task == "greet"
    assert await pool.fetchval("SELECT task FROM scheduler_schedules") == "greet"


async def test_number_of_seconds_as_wait_is_rejected(make: Make) -> None:
    with pytest.raises(TypeError, match="wait must be a bool, not 30; pass timeout= for the maximum wait"):
        await make().get_job_result("a", wait=30)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="cancel_on_timeout must be a bool, not str: 'no'"):
        await make().run_job(greet, cancel_on_timeout="no")  # type: ignore[call-overload]


async def test_function_instead_of_a_dedup_key_is_rejected(make: Make) -> None:
    key: Any = greet
    message = r"dedup_key must be a str, not .*greet.*; pass a key of get_periodic_jobs\(\)"
    with pytest.raises(TypeError, match=message):
        await make().trigger_periodic_job(key)
    for call in (Scheduler.enable_periodic_job, Scheduler.disable_periodic_job):
        with pytest.raises(TypeError, match=message):
            call(make(), key)
    with pytest.raises(TypeError, match=message):
        make().get_periodic_job_status(key)


async def test_value_instead_of_a_list_is_rejected(make: Make) -> None:
    scheduler = make()
    with pytest.raises(TypeError, match="jobs must be a list of JobSpec, not JobSpec"):
        await scheduler.schedule_bulk(JobSpec(greet))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="status must be a JobStatus, not int: 5"):
        await scheduler.list_jobs(status=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="aliases must be a list of names, not NoneType: None"):
        scheduler.register(greet, aliases=None)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match=r"owner must be 'code', 'api' or None, not \['api'\]"):
        await scheduler.schedules.list(owner=["api"])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"resume_from must be 'now' or 'pause', not \[\]"):
        await scheduler.schedules.pause("daily", resume_from=[])  # type: ignore[arg-type]


async def test_clock_without_override_is_rejected(pool: asyncpg.Pool) -> None:
    with pytest.raises(TypeError, match=r"clock must have a method override\(\), not <built-in method now"):
        Scheduler(pool, clock=datetime.now)  # type: ignore[arg-type]
