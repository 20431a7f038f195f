"""Results of jobs are kept, waited for and read by any number of readers; jobs without them pay nothing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    DatabaseUnavailableError,
    JobCancelledError,
    JobError,
    JobExpiredError,
    JobFailedError,
    JobNotFoundError,
    JobResult,
    JobSpec,
    JobStatus,
    PollingConfig,
    PoolClosedError,
    ResultUnavailableError,
    Scheduler,
    VacuumConfig,
    VacuumPolicy,
)
from pg_scheduler.events import JobCompleted, JobFailed, ListenerConnected, ListenerLost
from pg_scheduler.inspect import Inspector
from tests.api.conftest import Make, Pools
from tests.support.inside import store_of
from tests.support.statements import Statements
from tests.support.worker import PATIENCE, Gate, Recorder, now, wire_to
from tests.worker import processes

HOUR = timedelta(hours=1)


async def add(one: int, other: int) -> int:
    return one + other


async def echo(value: Any) -> Any:
    return value


async def give_object() -> object:
    return object()


async def give_long() -> str:
    return "x" * 200


async def fail(message: str = "no luck") -> None:
    raise ValueError(message)


async def result_of(scheduler: Scheduler, job_id: str) -> JobResult:
    result = await scheduler.get_job_result(job_id)
    assert result is not None
    return result


async def stored(pool: asyncpg.Pool) -> int:
    count: int = await pool.fetchval("SELECT count(*) FROM scheduler_results")
    return count


async def test_result_of_an_earlier_end_is_not_that_of_a_job_that_has_ended_since(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    seen = Recorder(scheduler)
    scheduler.register(echo, name="echo")
    scheduler.register(fail, name="fail")
    await scheduler.enqueue("echo", args=(1,), job_id="one", keep_result=timedelta(hours=1))
    assert (await result_of(scheduler, "one")).unwrap() == 1
    replace = ConflictResolution.REPLACE
    await scheduler.enqueue("fail", job_id="one", conflict_resolution=replace, max_retries=0)
    await seen.until(JobFailed)
    failed = await scheduler.get_job_result("one", wait=False)
    assert failed is not None
    assert (failed.status, failed.value) == (JobStatus.FAILED, None)
    await pool.execute("DELETE FROM scheduled_jobs")
    await scheduler.enqueue("echo", args=(3,), job_id="one")
    await seen.until(JobCompleted, 2)
    completed = await scheduler.get_job_result("one", wait=False)
    assert completed is not None
    assert (completed.status, completed.value) == (JobStatus.COMPLETED, None)


FUNCTIONS: dict[str, Any] = {"echo": echo, "fail": fail}


async def enqueue_again(scheduler: Scheduler, name: str, _pool: asyncpg.Pool) -> None:
    await scheduler.enqueue(name, args=(2,), job_id="one")


async def replace(scheduler: Scheduler, name: str, _pool: asyncpg.Pool) -> None:
    await scheduler.enqueue(name, args=(2,), job_id="one", conflict_resolution=ConflictResolution.REPLACE)


async def add_in_bulk(scheduler: Scheduler, name: str, _pool: asyncpg.Pool) -> None:
    assert await scheduler.schedule_bulk([JobSpec(FUNCTIONS[name], args=(2,), job_id="one")]) == ["one"]


async def replace_in_bulk(scheduler: Scheduler, name: str, _pool: asyncpg.Pool) -> None:
    spec = JobSpec(FUNCTIONS[name], args=(2,), job_id="one")
    await scheduler.schedule_bulk([spec], conflict_resolution=ConflictResolution.REPLACE)


async def add_by_sql(_scheduler: Scheduler, name: str, pool: asyncpg.Pool) -> None:
    await pool.execute("SELECT scheduler_add_job($1, '[2]', job_id => 'one')", name)


async def delete(scheduler: Scheduler) -> None:
    async for _ in Inspector(scheduler).delete_jobs(where="id:one"):
        pass


async def vacuum(scheduler: Scheduler) -> None:
    await scheduler.run_vacuum()


@pytest.mark.parametrize(
    ("name", "way_out"),
    [("echo", None), ("echo", vacuum), ("echo", delete), ("fail", vacuum), ("fail", delete)],
)
@pytest.mark.parametrize("way_in", [enqueue_again, replace, add_in_bulk, replace_in_bulk, add_by_sql])
async def test_result_of_an_earlier_job_is_not_that_of_a_later_one_whose_row_is_deleted(
    make: Make, pool: asyncpg.Pool, way_in: Any, name: str, way_out: Any
) -> None:
    """Without a way out, the row is deleted as the job completes."""
    of_completed = VacuumPolicy.immediate() if way_out is None else VacuumPolicy.keep_last(0)
    config = VacuumConfig(completed=of_completed, failed=VacuumPolicy.keep_last(0))
    scheduler = make(vacuum_config=config, vacuum_enabled=way_out is None)
    seen = Recorder(scheduler)
    scheduler.register(echo, name="echo")
    scheduler.register(fail, name="fail")
    await scheduler.start()
    await scheduler.enqueue("echo", args=(1,), job_id="one", keep_result=HOUR)
    assert (await result_of(scheduler, "one")).unwrap() == 1
    if way_in not in {replace, replace_in_bulk} and way_out is not None:
        await way_out(scheduler)
    assert (await result_of(scheduler, "one")).unwrap() == 1
    await way_in(scheduler, name, pool)
    await seen.until(JobFailed if name == "fail" else JobCompleted, 1 if name == "fail" else 2)
    if way_out is not None:
        await way_out(scheduler)
    with pytest.raises(JobNotFoundError):
        await scheduler.get_job_result("one", wait=False)
    assert await stored(pool) == 0


async def test_waiters_of_a_job_do_not_receive_the_result_of_an_earlier_one(make: Make) -> None:
    scheduler, gate = make(vacuum_config=VacuumConfig(completed=VacuumPolicy.immediate())), Gate()

    async def work(value: str) -> str:
        if value == "new":
            await gate.job()
        return value

    scheduler.register(work, name="work")
    await scheduler.start()
    assert await scheduler.run_job("work", args=("old",), job_id="one") == "old"
    await scheduler.enqueue("work", args=("new",), job_id="one")
    ignore = ConflictResolution.IGNORE
    waiter = asyncio.create_task(scheduler.get_job_result("one"))
    caller = asyncio.create_task(
        scheduler.run_job("work", args=("new",), job_id="one", conflict_resolution=ignore)
    )
    await gate.wait_begun()
    gate.open.set()
    with pytest.raises(JobNotFoundError):
        await waiter
    with pytest.raises((JobNotFoundError, ResultUnavailableError)):
        await caller


async def test_two_readers_and_a_late_third_receive_the_result(scheduler: Scheduler) -> None:
    job_id = await scheduler.enqueue(add, args=(1, 2), keep_result=HOUR)
    one, other = await asyncio.gather(result_of(scheduler, job_id), result_of(scheduler, job_id))
    third = await result_of(scheduler, job_id)
    assert one == other == third
    assert (one.status, one.unwrap(), one.attempts, one.error) == (JobStatus.COMPLETED, 3, 1, None)
    assert one.started_at is not None
    assert one.finished_at is not None
    assert one.expires_at == one.finished_at + HOUR


async def test_result_is_received_when_no_notification_arrives(make: Make) -> None:
    polling = PollingConfig(max_interval=0.2)
    worker = make(polling_config=polling)
    client = make(polling_config=polling)  # not started: it receives no notifications
    worker.register(echo)
    await worker.start()
    job_id = await client.enqueue(echo, args=({"a": [1, None]},), keep_result=HOUR)
    assert (await result_of(client, job_id)).value == {"a": [1, None]}


async def test_all_readers_receive_the_result_while_listen_is_cut(make: Make, dsn: str, gate: Gate) -> None:
    sent = Statements()
    async with (
        wire_to(dsn) as wire,
        asyncpg.create_pool(dsn, min_size=1, max_size=5, init=sent.listen) as own_pool,
    ):
        worker = make()
        worker.register(gate.job, name="gated")
        reader = make(
            own_pool,
            direct_dsn=wire.dsn,
            keeper_dsn=dsn,
            polling_config=PollingConfig(max_interval=0.2),
            role="observer",
        )
        seen = Recorder(reader)
        async with worker, reader:
            wire.cut()
            await seen.until(ListenerLost)
            job_id = await worker.enqueue("gated", keep_result=HOUR)
            readers = [asyncio.create_task(reader.get_job_result(job_id, timeout=PATIENCE)) for _ in range(2)]
            await gate.wait_begun()
            async with asyncio.timeout(PATIENCE):
                while not (await sent.take()).named["get_results"]:  # a query that finds nothing comes first
                    pass
            gate.open.set()
            one, other = await asyncio.gather(*readers)
            assert one == other == await reader.get_job_result(job_id, timeout=PATIENCE)
            assert one is not None
            assert one.status is JobStatus.COMPLETED
            assert len(seen.of(ListenerConnected)) <= 1, "no notification could arrive"


async def test_many_waiters_share_one_query(make: Make, pools: Pools) -> None:
    worker, own_pool = make(), await pools(1)  # one connection: a query of each waiter would take its turn
    worker.register(add)
    await worker.start()
    client = make(own_pool, polling_config=PollingConfig(max_interval=0.2))
    ids = await client.schedule_bulk([JobSpec(add, now(), (n, 1), keep_result=HOUR) for n in range(50)])
    results = await asyncio.gather(*(result_of(client, job_id) for job_id in ids if job_id for _ in "ab"))
    assert [result.value for result in results] == [n + 1 for n in range(50) for _ in "ab"]


async def test_result_is_none_without_wait_before_the_end(
    scheduler: Scheduler, gate: Gate, seen: Recorder
) -> None:
    job_id = await scheduler.enqueue(gate.job, keep_result=HOUR)
    assert await scheduler.get_job_result(job_id, wait=False) is None
    with pytest.raises(TimeoutError, match=rf"job '{job_id}' has not ended within 0.01 s"):
        await scheduler.get_job_result(job_id, timeout=0.01)
    gate.open.set()
    await seen.until(JobCompleted)
    result = await scheduler.get_job_result(job_id, wait=False)
    assert result is not None
    assert result.status is JobStatus.COMPLETED


async def test_wait_of_no_time_returns_the_result_of_a_job_that_has_ended(
    scheduler: Scheduler, gate: Gate, seen: Recorder
) -> None:
    job_id = await scheduler.enqueue(gate.job, keep_result=HOUR)
    with pytest.raises(TimeoutError, match=rf"job '{job_id}' has not ended within 0.0 s"):
        await scheduler.get_job_result(job_id, timeout=0)
    gate.open.set()
    await seen.until(JobCompleted)
    result = await scheduler.get_job_result(job_id, timeout=0)
    assert result == await result_of(scheduler, job_id)
    with pytest.raises(JobNotFoundError):
        await scheduler.get_job_result("missing", timeout=timedelta(0))


async def test_unknown_id_raises_job_not_found_error(scheduler: Scheduler) -> None:
    assert issubclass(JobNotFoundError, LookupError)
    for wait in (True, False):
        with pytest.raises(JobNotFoundError, match="job 'missing' does not exist") as caught:
            await scheduler.get_job_result("missing", wait=wait)
        assert caught.value.job_id == "missing"


async def test_value_that_json_cannot_carry_leaves_the_job_completed(scheduler: Scheduler) -> None:
    result = await result_of(scheduler, await scheduler.enqueue(give_object, keep_result=HOUR))
    assert (result.status, result.value) == (JobStatus.COMPLETED, None)
    assert result.no_value_reason == (
        "the value is a builtins.object, which JSON cannot represent; "
        "return None, bool, int, float, str, list or dict"
    )
    with pytest.raises(ResultUnavailableError, match="completed without a value: the value is a builtins"):
        result.unwrap()
    assert await scheduler.run_job(add, args=(1, 1)) == 2, "the worker runs on"


async def test_value_beyond_the_limit_is_not_kept(make: Make) -> None:
    scheduler = make(max_result_bytes=100)
    await scheduler.start()
    result = await result_of(scheduler, await scheduler.enqueue(give_long, keep_result=HOUR))
    assert result.status is JobStatus.COMPLETED
    assert result.no_value_reason is not None
    assert result.no_value_reason.startswith(
        "the value has 202 bytes of JSON, more than max_result_bytes = 100"
    )


async def test_value_is_measured_in_utf_8(make: Make) -> None:
    scheduler = make(max_result_bytes=100)
    await scheduler.start()
    assert await scheduler.run_job(echo, args=("я" * 49,)) == "я" * 49
    result = await result_of(scheduler, await scheduler.enqueue(echo, args=("я" * 50,), keep_result=HOUR))
    assert str(result.no_value_reason).startswith("the value has 102 bytes of JSON, more than")


async def test_failed_job_keeps_its_error_with_the_traceback(scheduler: Scheduler) -> None:
    result = await result_of(scheduler, await scheduler.enqueue(fail, keep_result=HOUR))
    assert result.status is JobStatus.FAILED
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("ValueError", "no luck")
    assert result.error.traceback is not None
    assert "in fail" in result.error.traceback
    with pytest.raises(JobFailedError, match="failed: ValueError: no luck") as caught:
        result.unwrap()
    assert caught.value.result == result


async def test_huge_error_is_kept_in_part(scheduler: Scheduler) -> None:
    result = await result_of(
        scheduler, await scheduler.enqueue(fail, args=("x" * 100_000,), keep_result=HOUR)
    )
    assert result.error is not None
    assert 9_900 < len(result.error.message) <= 10_000
    assert await scheduler.run_job(add, args=(1, 1)) == 2, "the worker runs on"


async def test_result_without_a_kept_value_is_read_from_the_row(scheduler: Scheduler, seen: Recorder) -> None:
    done, failed = await scheduler.enqueue(add, args=(1, 2)), await scheduler.enqueue(fail)
    await seen.until(JobCompleted)
    await seen.until(JobFailed)
    completed = await result_of(scheduler, done)
    assert (completed.status, completed.attempts, completed.expires_at) == (JobStatus.COMPLETED, 1, None)
    with pytest.raises(ResultUnavailableError, match="was not kept"):
        completed.unwrap()
    result = await result_of(scheduler, failed)
    assert result.error == JobError("ValueError", "no luck")
    with pytest.raises(JobFailedError, match="failed: ValueError: no luck"):
        result.unwrap()


async def test_plain_job_stores_no_result(scheduler: Scheduler, pool: asyncpg.Pool, seen: Recorder) -> None:
    await scheduler.enqueue(add, args=(1, 2))
    await seen.until(JobCompleted)
    assert await stored(pool) == 0


async def test_result_outlives_the_row_until_it_expires(
    scheduler: Scheduler, pool: asyncpg.Pool, seen: Recorder
) -> None:
    job_id = await scheduler.enqueue(add, args=(1, 2), keep_result=HOUR)
    await result_of(scheduler, job_id)
    await pool.execute("DELETE FROM scheduled_jobs")
    assert (await result_of(scheduler, job_id)).value == 3
    await scheduler.run_vacuum()
    assert await stored(pool) == 1
    await pool.execute("UPDATE scheduler_results SET expires_at = now()")
    with pytest.raises(JobNotFoundError):
        await scheduler.get_job_result(job_id)
    await scheduler.run_vacuum()
    assert await stored(pool) == 0


async def test_waiter_of_a_job_that_runs_again_receives_the_new_result(
    scheduler: Scheduler, gate: Gate, seen: Recorder
) -> None:
    gate.open.set()
    job_id = await scheduler.enqueue(gate.job, keep_result=HOUR)
    await seen.until(JobCompleted)
    gate.open.clear()
    assert await scheduler.retry_job(job_id)
    assert await scheduler.get_job_result(job_id, wait=False) is None
    gate.open.set()
    assert (await result_of(scheduler, job_id)).attempts == 2


async def test_run_job_returns_the_value(scheduler: Scheduler, pool: asyncpg.Pool) -> None:
    assert await scheduler.run_job(add, args=(1,), kwargs={"other": 2}) == 3
    lifetime = await pool.fetchval("SELECT expires_at - finished_at FROM scheduler_results")
    assert lifetime == timedelta(minutes=15)


async def test_run_job_by_name_keeps_the_result_as_long_as_requested(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    scheduler.register(add, name="add")
    assert await scheduler.run_job("add", args=(1, 2), keep_result=HOUR, job_id="sum") == 3
    assert await pool.fetchval("SELECT expires_at - finished_at FROM scheduler_results") == HOUR
    assert (await result_of(scheduler, "sum")).value == 3


async def test_run_job_raises_the_exception_of_this_process_as_the_cause(scheduler: Scheduler) -> None:
    with pytest.raises(JobFailedError, match="ValueError: no luck") as caught:
        await scheduler.run_job(fail)
    assert isinstance(caught.value.__cause__, ValueError)


async def test_run_job_raises_the_cause_when_the_result_arrives_before_the_event(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, has_raised = store_of(scheduler).results, asyncio.Event()
    settle = results.settle

    async def settle_slowly(*args: Any, **options: Any) -> set[str]:
        accepted = await settle(*args, **options)
        await has_raised.wait()
        return accepted

    monkeypatch.setattr(results, "settle", settle_slowly)
    with pytest.raises(JobFailedError) as caught:
        await scheduler.run_job(fail)
    has_raised.set()
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("cancels", [False, True])
async def test_run_job_times_out_and_cancels_the_job_on_request(
    scheduler: Scheduler, gate: Gate, *, cancels: bool
) -> None:
    with pytest.raises(TimeoutError, match=r"job 'slow' has not ended within 0.05 s"):
        await scheduler.run_job(gate.job, job_id="slow", wait_timeout=0.05, cancel_on_timeout=cancels)
    if cancels:
        with pytest.raises(JobCancelledError):
            (await result_of(scheduler, "slow")).unwrap()
    else:
        gate.open.set()
        assert (await result_of(scheduler, "slow")).status is JobStatus.COMPLETED


async def test_run_job_rejects_a_connection(scheduler: Scheduler, pool: asyncpg.Pool) -> None:
    async with pool.acquire() as connection, connection.transaction():
        with pytest.raises(ValueError, match="run_job\\(\\) takes no connection"):
            await scheduler.run_job(add, args=(1, 2), connection=connection)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_expired_job_ends_its_waiter(make: Make) -> None:
    scheduler = make(polling_config=PollingConfig(max_interval=0.2))
    await scheduler.start()
    late = datetime.now(UTC) - HOUR
    job_id = await scheduler.schedule(
        add, execution_time=late, args=(1, 2), misfire_grace_time=1, keep_result=HOUR
    )
    with pytest.raises(JobExpiredError, match="expired"):
        (await result_of(scheduler, job_id)).unwrap()


async def test_task_default_applies_unless_the_call_keeps_nothing(
    scheduler: Scheduler, pool: asyncpg.Pool, seen: Recorder
) -> None:
    scheduler.register(echo, name="echo", keep_result=HOUR)
    await result_of(scheduler, await scheduler.enqueue(echo, args=(1,)))
    await result_of(scheduler, await scheduler.enqueue("echo", args=(2,)))
    await result_of(scheduler, await scheduler.schedule_job("echo", now(), {"args": [3]}))
    assert await stored(pool) == 3
    await result_of(scheduler, await scheduler.enqueue(echo, args=(4,), keep_result=None))
    assert await stored(pool) == 3


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (900, TypeError, r"keep_result must be a timedelta or None, not 900; pass timedelta"),
        (timedelta(0), ConfigurationError, "keep_result must be positive and at most ten years"),
        (timedelta(days=4000), ConfigurationError, "keep_result must be positive and at most ten years"),
    ],
)
async def test_invalid_lifetime_is_rejected(
    scheduler: Scheduler, pool: asyncpg.Pool, value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await scheduler.enqueue(add, args=(1, 2), keep_result=value)
    with pytest.raises(error, match=message):
        scheduler.register(add, keep_result=value)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


@pytest.mark.parametrize(
    "options",
    [
        "1",
        "[]",
        '{"keep_result": "x"}',
        '{"keep_result": -1}',
        '{"keep_result": true}',
        "[" * 3000 + "]" * 3000,
    ],
)
async def test_job_with_hostile_options_runs_and_keeps_nothing(
    scheduler: Scheduler, pool: asyncpg.Pool, seen: Recorder, options: str
) -> None:
    scheduler.register(add, name="add")
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, task_data, options)"
        """ VALUES ('a', 'add', now(), '{"args": [1, 2]}', $1::text::jsonb)""",
        options,
    )
    await scheduler.retry_job("a")  # wakes nobody: the job is not finished
    await scheduler.enqueue(echo, args=(1,))
    await seen.until(JobCompleted, job_id="a")
    assert await stored(pool) == 0


async def test_hostile_results_are_read_as_far_as_they_are_valid(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await pool.execute("""
        INSERT INTO scheduler_results
            (job_id, status, error, attempts, started_at, finished_at, expires_at)
        VALUES
            ('text', 'failed', '"text"', -1, '-infinity', 'infinity', 'infinity'),
            ('odd', 'failed', '{"type": 1, "traceback": []}', 0, NULL, 'epoch', 'infinity'),
            ('status', 'unknown', NULL, 0, NULL, 'epoch', 'infinity')
    """)
    text = await result_of(scheduler, "text")
    assert (text.started_at, text.finished_at, text.expires_at) == (None, None, None)
    assert str(text.error) == '"text"'
    odd = await result_of(scheduler, "odd")
    assert str(odd.error) == ""
    assert await scheduler.get_job_result("status", wait=False) is None


async def test_waiters_fail_when_the_pool_is_closed(make: Make, pools: Pools) -> None:
    own_pool = await pools(2)
    client = make(own_pool)
    await client.initialize_db()
    job_id = await client.schedule(add, execution_time=now() + HOUR, args=(1, 2))
    waiting = asyncio.create_task(client.get_job_result(job_id))
    await asyncio.sleep(0)
    await own_pool.close()
    with pytest.raises(PoolClosedError):
        await waiting


async def test_waiter_asks_again_when_the_database_was_unavailable(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = store_of(scheduler).kept_results
    get, tries = results.get, 0

    async def failing(job_ids: list[str]) -> dict[str, JobResult | None]:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise DatabaseUnavailableError("down")
        return await get(job_ids)

    monkeypatch.setattr(results, "get", failing)
    job_id = await scheduler.enqueue(add, args=(1, 2), keep_result=HOUR)
    assert (await result_of(scheduler, job_id)).unwrap() == 3
    assert tries > 2


async def test_replaced_job_keeps_the_result_of_its_new_definition(scheduler: Scheduler) -> None:
    later = now() + HOUR
    await scheduler.schedule(add, execution_time=later, args=(1, 2), job_id="sum")
    await scheduler.schedule(
        add,
        execution_time=now(),
        args=(3, 4),
        job_id="sum",
        keep_result=HOUR,
        conflict_resolution=ConflictResolution.REPLACE,
    )
    assert (await result_of(scheduler, "sum")).value == 7


@pytest.fixture
async def with_processes(make: Make) -> Scheduler:
    scheduler = make()
    scheduler.register(processes.give, executor="process")
    scheduler.register(processes.fail, executor="process", max_retries=0)
    await scheduler.start()
    return scheduler


@pytest.mark.slow
async def test_process_job_returns_its_value_as_json(with_processes: Scheduler) -> None:
    scheduler = with_processes
    assert await scheduler.run_job(processes.give, args=("rows",)) == {"rows": [1, [2.5, None]], "name": "ä"}
    result = await result_of(
        scheduler, await scheduler.enqueue(processes.give, args=("None",), keep_result=HOUR)
    )
    assert (result.status, result.value, result.no_value_reason) == (JobStatus.COMPLETED, None, None)


async def test_process_job_completes_without_a_value_that_json_cannot_carry(
    with_processes: Scheduler,
) -> None:
    job_id = await with_processes.enqueue(processes.give, args=("object",), keep_result=HOUR)
    result = await result_of(with_processes, job_id)
    assert (result.status, result.value) == (JobStatus.COMPLETED, None)
    assert result.no_value_reason == (
        "the value is a builtins.object, which JSON cannot represent; "
        "return None, bool, int, float, str, list or dict"
    )


async def test_value_of_a_process_beyond_the_limit_is_not_kept(make: Make) -> None:
    scheduler = make(max_result_bytes=100)
    scheduler.register(processes.give, executor="process")
    await scheduler.start()
    result = await result_of(
        scheduler, await scheduler.enqueue(processes.give, args=("long",), keep_result=HOUR)
    )
    assert result.no_value_reason is not None
    assert "more than max_result_bytes = 100" in result.no_value_reason


async def test_error_of_a_process_job_is_kept_with_its_traceback(with_processes: Scheduler) -> None:
    job_id = await with_processes.enqueue(processes.fail, args=("OwnError",), keep_result=HOUR)
    result = await result_of(with_processes, job_id)
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("OwnError", "mine")
    assert "in fail" in (result.error.traceback or "")
