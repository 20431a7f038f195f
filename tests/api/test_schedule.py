"""schedule() and schedule_job(): stored values, rejected values, conflicts and execution."""

from __future__ import annotations

import functools
import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import asyncpg
import pytest

from pg_scheduler import (
    ConflictResolution,
    JobConflictError,
    JobPriority,
    JobStatus,
    PayloadError,
    Scheduler,
    SchemaMissingError,
    job,
)
from pg_scheduler.events import JobCompleted, JobExpired, JobFailed, JobRetried, JobStarted
from tests.api.conftest import Make, Pools
from tests.support.cases import each_case
from tests.support.inside import JOB_OPTIONS, worker_of
from tests.support.worker import PROMPT, Gate, Recorder, now

HOUR = timedelta(hours=1)
START = datetime(2040, 1, 1, tzinfo=UTC)
LAST = datetime.max.replace(tzinfo=UTC) - timedelta.resolution
"""The last instant that PostgreSQL stores for Python."""


async def work(*args: Any, **kwargs: Any) -> None: ...


async def rows(pool: asyncpg.Pool) -> int:
    count: int = await pool.fetchval("SELECT count(*) FROM scheduled_jobs")
    return count


async def test_job_runs_once_with_its_arguments(scheduler: Scheduler, seen: Recorder) -> None:
    calls: list[Any] = []

    async def mine(*args: Any, **kwargs: Any) -> None:
        calls.append((args, kwargs))

    job_id = await scheduler.schedule(
        mine, execution_time=now(), args=(1, ("a", [None])), kwargs={"key": {"x": 1.5}}
    )
    assert UUID(job_id).version == 7
    await seen.until(JobCompleted, job_id=job_id)
    assert calls == [((1, ["a", [None]]), {"key": {"x": 1.5}})]
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert (row.status, row.attempt, row.worker_id) == (JobStatus.COMPLETED, 1, scheduler.worker_id)
    assert row.finished_at is not None


async def test_schedule_stores_every_parameter(make: Make) -> None:
    due = datetime(2040, 5, 6, 7, 8, 9, 123456, tzinfo=ZoneInfo("Asia/Tokyo"))
    scheduler = make()
    job_id = await scheduler.schedule(
        work,
        execution_time=due,
        args=(1,),
        kwargs={"a": "b"},
        priority=JobPriority.CRITICAL,
        max_retries=4,
        job_id="mine",
        misfire_grace_time=7,
        timeout=timedelta(seconds=90),
    )
    assert job_id == "mine"
    row = await scheduler.get_job("mine")
    assert row is not None
    assert row.execution_time == due
    assert (row.args, row.kwargs) == ((1,), {"a": "b"})
    assert (row.priority, row.max_retries) == (JobPriority.CRITICAL, 4)
    assert (row.misfire_grace_time, row.timeout) == (7, timedelta(seconds=90))
    assert row.expires_at == due + timedelta(seconds=7)
    assert row.job_name == f"{__name__}.work"
    assert (row.status, row.attempt, row.retry_count, row.worker_id) == (JobStatus.PENDING, 0, 0, None)


async def test_future_job_starts_at_its_time_without_a_poll(scheduler: Scheduler, seen: Recorder) -> None:
    """Real time: the job starts not early, and not later than a busy machine explains."""
    due = now() + timedelta(seconds=0.3)
    started: list[datetime] = []

    async def mine() -> None:
        started.append(now())

    await scheduler.schedule(mine, execution_time=due)
    await seen.until(JobCompleted)
    assert timedelta(0) <= started[0] - due < timedelta(seconds=PROMPT)


async def test_earlier_job_starts_on_time_when_scheduled_after_a_later_one(
    scheduler: Scheduler, seen: Recorder, open_gate: Gate
) -> None:
    await scheduler.schedule(open_gate.job, execution_time=now() + HOUR, job_id="later")
    await scheduler.schedule(open_gate.job, execution_time=now() + timedelta(seconds=0.1), job_id="sooner")
    await seen.until(JobCompleted, job_id="sooner")


@pytest.mark.parametrize(
    "due", [datetime(1970, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=5)))]
)
async def test_job_runs_at_once_when_its_time_is_in_the_past(
    scheduler: Scheduler, seen: Recorder, open_gate: Gate, due: datetime
) -> None:
    await scheduler.schedule(open_gate.job, execution_time=due, misfire_grace_time=None)
    await seen.until(JobCompleted)


# -- invalid values ------------------------------------------------------------------------------------


async def test_schedule_rejects_a_naive_time_with_the_remedy(make: Make, pool: asyncpg.Pool) -> None:
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - the subject
    with pytest.raises(ValueError, match=r"datetime\.now\(UTC\)"):
        await make().schedule(work, execution_time=naive)
    with pytest.raises(ValueError, match="no time zone"):
        await make().schedule_job("x", naive, {})
    assert await rows(pool) == 0


@pytest.mark.parametrize("func", [print, lambda: None, "work", None, functools.partial(work, 1)])
async def test_schedule_rejects_anything_but_coroutine_functions(make: Make, func: Any) -> None:
    with pytest.raises(TypeError, match="async function"):
        await make().schedule(func, execution_time=now())


@each_case(
    ("args", "kwargs", "path"),
    [
        (("ok", "a\x00b"), None, r"args\[1\]"),
        (("\ud800",), None, r"args\[0\]"),
        ((math.nan,), None, r"args\[0\]"),
        ((math.inf,), None, r"args\[0\]"),
        (([{"deep": {1, 2}}],), None, r"args\[0\]\[0\]\['deep'\]"),
        ((object(),), None, r"args\[0\]"),
        ((datetime(2030, 1, 1, tzinfo=UTC),), None, r"args\[0\]"),
        ((b"bytes",), None, r"args\[0\]"),
        ((), {"key": [1, -math.inf]}, r"kwargs\['key'\]\[1\]"),
        ((), {"k\x00": 1}, "kwargs"),
        (({1: "a"},), None, r"args\[0\]"),
        ("text", None, "args"),
        ((), [1], "kwargs"),
    ],
)
async def test_schedule_rejects_invalid_arguments_with_their_path(
    make: Make, pool: asyncpg.Pool, args: Any, kwargs: Any, path: str
) -> None:
    scheduler = make()
    with pytest.raises(PayloadError, match=path) as raised:
        await scheduler.schedule(work, execution_time=now(), args=args, kwargs=kwargs)
    assert isinstance(raised.value, TypeError)
    assert isinstance(raised.value, ValueError)
    with pytest.raises(PayloadError, match=path):
        await scheduler.schedule_job("x", now(), {"args": args, "kwargs": kwargs})
    assert await rows(pool) == 0


@each_case(
    ("values", "error"),
    [
        ({"execution_time": "tomorrow"}, TypeError),
        ({"execution_time": datetime.max.replace(tzinfo=timezone(-HOUR))}, ValueError),
        ({"priority": 5}, TypeError),
        ({"priority": "normal"}, TypeError),
        ({"max_retries": -1}, ValueError),
        ({"max_retries": 2**31}, ValueError),
        ({"max_retries": 1.5}, TypeError),
        ({"max_retries": True}, TypeError),
        ({"job_id": ""}, ValueError),
        ({"job_id": "a\x00b"}, ValueError),
        ({"job_id": "\ud800"}, ValueError),
        ({"job_id": "x" * 2001}, ValueError),
        ({"job_id": 7}, TypeError),
        ({"conflict_resolution": "raise"}, TypeError),
        ({"misfire_grace_time": -1}, ValueError),
        ({"misfire_grace_time": 0.5}, TypeError),
        ({"timeout": 0}, ValueError),
        ({"timeout": -1.0}, ValueError),
        ({"timeout": math.nan}, ValueError),
        ({"timeout": math.inf}, ValueError),
        ({"timeout": "1"}, TypeError),
    ],
    ids=str,
)
async def test_schedule_rejects_invalid_values(
    make: Make, pool: asyncpg.Pool, values: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await make().schedule(work, **({"execution_time": now()} | values))
    assert await rows(pool) == 0


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (("", now(), {}), ValueError),
        (("a\x00", now(), {}), ValueError),
        (("\ud800", now(), {}), ValueError),
        ((None, now(), {}), (TypeError, ValueError)),
        (("x", now(), None), PayloadError),
        (("x", now(), {"argh": []}), PayloadError),
        (("x", now(), {"args": 1}), PayloadError),
    ],
)
async def test_schedule_job_rejects_invalid_values(
    make: Make, pool: asyncpg.Pool, call: tuple[Any, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await make().schedule_job(*call)
    assert await rows(pool) == 0


async def test_schedule_stores_extreme_values(make: Make) -> None:
    scheduler = make()
    job_id = "ü" * 1000
    await scheduler.schedule(
        work,
        execution_time=datetime(9999, 12, 31, tzinfo=UTC),
        job_id=job_id,
        max_retries=2**31 - 1,
        misfire_grace_time=2**31 - 1,
        timeout=1e300,
        args=(2**4000, "\U0010ffff", 5e-324, 1.5e15),
    )
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert row.args == (2**4000, "\U0010ffff", 5e-324, 1.5e15)
    assert row.misfire_grace_time == 2**31 - 1
    assert row.expires_at is None  # beyond the range of datetime


EXTREMES: dict[str, list[Any]] = {
    "execution_time": [datetime.min.replace(microsecond=1, tzinfo=UTC), LAST],
    "priority": list(JobPriority),
    "max_retries": [0, 2**31 - 1],
    "misfire_grace_time": [None, 0, 2**31 - 1],
    "timeout": [None, timedelta.resolution, timedelta.max, 1e16, 1e23, 10**300, 1e308],
    "deadline": [None, START + timedelta.resolution, LAST],
}
"""The least and the largest values of a job that are accepted. ``keep_result`` is no field of a job."""


@each_case(("name", "value"), [(name, value) for name, values in EXTREMES.items() for value in values])
async def test_extreme_value_of_a_job_is_read_as_it_was_given(make: Make, name: str, value: Any) -> None:
    scheduler = make()
    job_id = await scheduler.schedule(work, **{"execution_time": START, name: value})
    job = await scheduler.get_job(job_id)
    assert job is not None
    is_too_long = name == "timeout" and isinstance(value, int | float)
    assert getattr(job, name) == (timedelta.max if is_too_long else value)


def test_each_option_of_a_job_has_extremes() -> None:
    assert EXTREMES.keys() == {"execution_time", *JOB_OPTIONS} - {"keep_result"}


async def test_schedule_raises_with_the_remedy_when_the_tables_are_missing(empty_dsn: str) -> None:
    async with asyncpg.create_pool(empty_dsn, min_size=1, max_size=2) as pool:
        scheduler = Scheduler(pool)
        with pytest.raises(SchemaMissingError, match="initialize_db"):
            await scheduler.schedule(work, execution_time=now())
        await scheduler.initialize_db()
        await scheduler.schedule(work, execution_time=now())
        assert await rows(pool) == 1


# -- existing ids --------------------------------------------------------------------------------------


async def test_schedule_raises_with_id_and_status_when_the_id_exists(make: Make) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=now() + HOUR, job_id="mine")
    with pytest.raises(JobConflictError, match=r"'mine'.*'pending'") as raised:
        await scheduler.schedule(work, execution_time=now(), job_id="mine")
    assert isinstance(raised.value, ValueError)
    assert (raised.value.job_id, raised.value.status) == ("mine", "pending")
    await scheduler.update_job_status("mine", "failed")
    with pytest.raises(ValueError, match=r"'mine'.*'failed'"):
        await scheduler.schedule_job("x", now(), {}, job_id="mine")


async def test_schedule_returns_the_id_of_the_existing_job_when_ignoring(make: Make) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=now() + HOUR, job_id="mine", args=("old",))
    again = await scheduler.schedule(
        work,
        execution_time=now(),
        job_id="mine",
        args=("new",),
        conflict_resolution=ConflictResolution.IGNORE,
    )
    row = await scheduler.get_job("mine")
    assert row is not None
    assert (again, row.args) == ("mine", ("old",))


@pytest.mark.parametrize("status", [status for status in JobStatus if status != "running"])
async def test_schedule_stores_a_new_definition_and_resets_retries_when_replacing(
    make: Make, pool: asyncpg.Pool, status: JobStatus
) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=now() + HOUR, job_id="mine", args=("old",), max_retries=5)
    await pool.execute("UPDATE scheduled_jobs SET retry_count = 3, error_message = 'old', attempt = 4")
    await scheduler.update_job_status("mine", status)
    due = now() + 2 * HOUR
    await scheduler.schedule(
        work,
        execution_time=due,
        job_id="mine",
        args=("new",),
        priority=JobPriority.LOW,
        conflict_resolution=ConflictResolution.REPLACE,
    )
    row = await scheduler.get_job("mine")
    assert row is not None
    assert (row.status, row.args, row.execution_time) == (JobStatus.PENDING, ("new",), due)
    assert (row.retry_count, row.max_retries, row.error_message) == (0, 0, None)
    assert (row.priority, row.finished_at, row.worker_id) == (JobPriority.LOW, None, None)
    assert row.attempt == 4  # part of the fencing token: it never decreases


async def test_finished_job_runs_again_when_replaced(
    scheduler: Scheduler, seen: Recorder, open_gate: Gate
) -> None:
    for run in range(1, 4):
        await scheduler.schedule(
            open_gate.job,
            execution_time=now(),
            job_id="mine",
            conflict_resolution=ConflictResolution.REPLACE,
        )
        await seen.until(JobCompleted, run)
    assert [event.attempt for event in seen.of(JobCompleted)] == [1, 2, 3]


@pytest.mark.parametrize("how", ["well", "badly", "retry"])
async def test_running_job_finishes_and_then_runs_the_new_definition_when_replaced(
    scheduler: Scheduler, seen: Recorder, how: str
) -> None:
    gate = Gate()

    async def mine(which: str) -> None:
        await gate.job(which)
        if which == "old" and how != "well":
            raise ValueError("no")

    async def replace(which: str) -> None:
        await scheduler.schedule(
            mine,
            execution_time=now(),
            job_id="mine",
            args=(which,),
            max_retries=1 if how == "retry" and which == "old" else 0,
            conflict_resolution=ConflictResolution.REPLACE,
        )

    await replace("old")
    await gate.wait_begun()
    await replace("overwritten")
    await replace("new")  # the last definition replaces the one before
    row = await scheduler.get_job("mine")
    assert row is not None
    assert (row.status, row.args, row.replacement) == (JobStatus.RUNNING, ("old",), True)
    gate.open.set()
    await seen.until(JobCompleted, job_id="mine", attempt=2)
    assert gate.calls == [("old",), ("new",)]
    assert (gate.most, gate.cancelled) == (1, 0)
    row = await scheduler.get_job("mine")
    assert row is not None
    assert (row.status, row.args, row.replacement) == (JobStatus.COMPLETED, ("new",), False)


async def test_replacement_of_a_running_job_is_kept_when_its_worker_shuts_down(
    scheduler: Scheduler, make: Make, gate: Gate
) -> None:
    await scheduler.schedule(gate.job, execution_time=now(), job_id="mine", args=("old",))
    await gate.wait_begun()
    await scheduler.schedule(
        gate.job,
        execution_time=now(),
        job_id="mine",
        args=("new",),
        conflict_resolution=ConflictResolution.REPLACE,
    )
    await scheduler.shutdown()
    row = await scheduler.get_job("mine")
    assert row is not None
    assert (row.status, row.args) == (JobStatus.PENDING, ("new",))
    other = make()
    seen = Recorder(other)
    other.register(gate.job)
    gate.open.set()
    await other.start()
    await seen.until(JobCompleted, job_id="mine")
    assert gate.calls == [("old",), ("new",)]


async def test_cancel_job_discards_the_replacement_of_a_running_job(
    scheduler: Scheduler, seen: Recorder, gate: Gate
) -> None:
    for _ in range(2):
        await scheduler.schedule(
            gate.job,
            execution_time=now(),
            job_id="mine",
            conflict_resolution=ConflictResolution.REPLACE,
        )
        if not gate.calls:
            await gate.wait_begun()
    assert await scheduler.cancel_job("mine")
    row = await scheduler.get_job("mine")
    assert row is not None
    assert (row.status, row.replacement) == (JobStatus.CANCELLED, False)


# -- misfire grace time, retries, timeout --------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheduler_grace", "given", "expected"),
    [
        (300, {}, 300),
        (None, {}, None),
        (300, {"misfire_grace_time": 5}, 5),
        (300, {"misfire_grace_time": 0}, 0),
        (300, {"misfire_grace_time": None}, None),
        (None, {"misfire_grace_time": 5}, 5),
    ],
)
async def test_misfire_grace_time_defaults_to_that_of_the_scheduler(
    make: Make, scheduler_grace: int | None, given: dict[str, int | None], expected: int | None
) -> None:
    scheduler = make(misfire_grace_time=scheduler_grace)
    by_name = await scheduler.schedule_job("x", now(), {}, **given)  # type: ignore[arg-type]
    by_function = await scheduler.schedule(work, execution_time=now(), **given)  # type: ignore[arg-type]
    for job_id in (by_name, by_function):
        row = await scheduler.get_job(job_id)
        assert row is not None
        assert row.misfire_grace_time == expected


async def test_misfire_grace_time_and_timeout_default_to_those_of_the_job_decorator(make: Make) -> None:
    @job(name=f"{__name__}.unlimited", misfire_grace_time=None, timeout=5)
    async def unlimited() -> None: ...

    scheduler = make(misfire_grace_time=1)
    for job_id in (
        await scheduler.schedule(unlimited, execution_time=now()),
        await scheduler.schedule_job(f"{__name__}.unlimited", now(), {}),
    ):
        row = await scheduler.get_job(job_id)
        assert row is not None
        assert (row.misfire_grace_time, row.timeout) == (None, timedelta(seconds=5))
    job_id = await scheduler.schedule(unlimited, execution_time=now(), misfire_grace_time=9, timeout=None)
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert (row.misfire_grace_time, row.timeout) == (9, None)


async def test_job_expires_when_its_misfire_grace_time_elapses(make: Make, open_gate: Gate) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    late = now() - timedelta(seconds=60)
    await scheduler.schedule(open_gate.job, execution_time=late, misfire_grace_time=30, job_id="late")
    await scheduler.schedule(open_gate.job, execution_time=late, misfire_grace_time=None, job_id="unlimited")
    await scheduler.start()
    await seen.until(JobCompleted, job_id="unlimited")
    await seen.until(JobExpired, job_id="late")
    assert len(open_gate.calls) == 1
    row = await scheduler.get_job("late")
    assert row is not None
    assert row.status is JobStatus.EXPIRED
    assert row.finished_at is not None


async def test_job_fails_when_its_retries_are_exhausted(scheduler: Scheduler, seen: Recorder) -> None:
    from pg_scheduler import RetryPolicy

    attempts: list[int] = []

    async def mine() -> None:
        from pg_scheduler import current_job

        attempts.append(current_job().attempt)
        raise ValueError(f"attempt {len(attempts)}")

    worker_of(scheduler).executor._policy = RetryPolicy(
        base=timedelta(milliseconds=1), maximum=timedelta(milliseconds=1)
    )
    job_id = await scheduler.schedule(mine, execution_time=now(), max_retries=2)
    (failed,) = await seen.until(JobFailed)
    assert failed.error == "ValueError: attempt 3"
    assert attempts == [1, 2, 3]
    assert len(seen.of(JobRetried)) == 2
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert (row.status, row.retry_count, row.error_message) == (JobStatus.FAILED, 2, "ValueError: attempt 3")


async def test_job_fails_when_it_exceeds_its_timeout(
    scheduler: Scheduler, seen: Recorder, gate: Gate
) -> None:
    await scheduler.schedule(gate.job, execution_time=now(), timeout=0.02)
    (failed,) = await seen.until(JobFailed)
    assert "longer than its timeout of 0.02 seconds" in failed.error


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [({}, HOUR), ({"timeout": None}, None), ({"timeout": 2.5}, timedelta(seconds=2.5))],
)
async def test_job_timeout_defaults_to_one_hour(
    make: Make, timeout: dict[str, Any], expected: timedelta | None
) -> None:
    scheduler = make()
    row = await scheduler.get_job(await scheduler.schedule(work, execution_time=now(), **timeout))
    assert row is not None
    assert row.timeout == expected


async def test_jobs_start_by_priority_then_time_then_id(make: Make, open_gate: Gate) -> None:
    scheduler = make(max_concurrent_jobs=2, batch_claim_limit=1)
    seen = Recorder(scheduler)
    old = now() - HOUR
    for job_id, priority, due in [
        ("4", JobPriority.NORMAL, now() - timedelta(minutes=1)),
        ("7", JobPriority.LOW, old),
        ("3", JobPriority.NORMAL, old),
        ("2", JobPriority.NORMAL, old),
        ("1", JobPriority.HIGH, now()),
        ("0", JobPriority.CRITICAL, now()),
    ]:
        await scheduler.schedule(
            open_gate.job, execution_time=due, priority=priority, job_id=job_id, misfire_grace_time=None
        )
    await scheduler.start()
    await seen.until(JobCompleted, 6)
    assert [event.job_id for event in seen.of(JobStarted)] == ["0", "1", "2", "3", "4", "7"]


# -- the caller's connection, notifications ------------------------------------------------------------


async def test_job_exists_only_if_the_callers_transaction_commits(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool, open_gate: Gate
) -> None:
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await scheduler.schedule(
            open_gate.job, execution_time=now(), job_id="rolled back", connection=connection
        )
        assert await scheduler.get_job("rolled back") is None
        await transaction.rollback()
        async with connection.transaction():
            await scheduler.schedule(
                open_gate.job, execution_time=now(), job_id="committed", connection=connection
            )
            assert not open_gate.calls
    await seen.until(JobCompleted, job_id="committed")  # woken by the commit
    assert await scheduler.get_job("rolled back") is None
    assert len(open_gate.calls) == 1


async def test_callers_transaction_stays_usable_after_a_conflict(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=now() + HOUR, job_id="taken")
    async with pool.acquire() as connection, connection.transaction():
        with pytest.raises(JobConflictError):
            await scheduler.schedule(work, execution_time=now(), job_id="taken", connection=connection)
        await scheduler.schedule(work, execution_time=now(), job_id="mine", connection=connection)
    assert await scheduler.get_job("mine") is not None


async def test_schedule_succeeds_on_the_only_connection_of_the_pool(make: Make, pools: Pools) -> None:
    """The call acquires no second connection, which would block it."""
    pool = await pools(1)
    scheduler = make(pool)
    async with pool.acquire() as connection, connection.transaction():
        await scheduler.schedule(work, execution_time=now(), job_id="mine", connection=connection)
    assert await rows(pool) == 1


async def test_job_runs_without_a_poll_when_scheduled_by_a_process_that_never_starts(
    scheduler: Scheduler, seen: Recorder, make: Make, open_gate: Gate
) -> None:
    other = make()
    scheduler.register(open_gate.job)
    await other.schedule(open_gate.job, execution_time=now(), job_id="now")
    await seen.until(JobCompleted, job_id="now")
    await other.schedule(open_gate.job, execution_time=now() + timedelta(seconds=0.05), job_id="soon")
    await seen.until(JobCompleted, job_id="soon")


async def test_job_runs_without_a_poll_on_the_other_worker_that_registers_its_name(
    scheduler: Scheduler, make: Make, open_gate: Gate
) -> None:
    """The calling worker does not register the function, so the other one must receive a notification."""
    other = make()
    seen = Recorder(other)
    other.register(open_gate.job)
    await other.start()
    await scheduler.schedule_job(f"{Gate.__module__}.Gate.job", now(), {})
    await seen.until(JobCompleted)
