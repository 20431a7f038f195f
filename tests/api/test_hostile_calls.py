"""Any value that a caller passes is stored unchanged or rejected with a TypeError or a ValueError."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pg_scheduler import JobSpec, PayloadError, Scheduler, periodic
from pg_scheduler.jobs.payload import MAX_DEPTH, encode, encode_object, encode_value
from pg_scheduler.jobs.signals import signal_text
from pg_scheduler.jobs.step_values import ReturnType, step_text
from pg_scheduler.jobs.typed import TypedArguments
from tests.api.conftest import Make
from tests.support.worker import now

Call = Callable[[Scheduler, Any], Coroutine[Any, Any, object]]

LATER = datetime(9000, 1, 1, tzinfo=UTC)
EXAMPLES = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])

TEXTS = [
    "",
    "'",
    '"; DROP TABLE scheduled_jobs; --',
    "\x00",
    "a\x00b",
    "x" * 10_240,
    "x" * 2000,
    "é" * 1001,
    "🦉👩\u200d👩\u200d👧" * 20,
    "\u202eabc\u202c",
    "עברית",
    "\ud800",
    "%s %d {schema} {} $1 :x",
    "\\",
    "\r\n\t",
    "periodic:x:1",
    "../../etc/passwd",
]
texts = st.sampled_from(TEXTS) | st.text(st.characters(), max_size=50)
anything = (
    texts
    | st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**5000, -(10**5000), 2**31, 2**63, b"bytes", [], {}, object, timedelta.max])
    | st.floats()
)
offsets = st.sampled_from([0, -23, 23]).map(lambda hours: timezone(timedelta(hours=hours)))
EARLIEST, LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
times = st.datetimes(timezones=st.none() | offsets) | st.sampled_from([EARLIEST, LATEST])
graces = st.none() | st.sampled_from([0, 1, 2**31 - 1])
timeouts = st.none() | st.sampled_from([5e-324, 1e308, 10**300, timedelta.max, timedelta.resolution])


async def work(*args: Any, **kwargs: Any) -> None: ...


CALLS: list[Call] = [
    lambda scheduler, value: scheduler.schedule_job(value, LATER, {}),
    lambda scheduler, value: scheduler.schedule_job("x", LATER, value),
    lambda scheduler, value: scheduler.schedule_job("x", value, {}),
    lambda scheduler, value: scheduler.schedule(work, execution_time=LATER, args=value),
    lambda scheduler, value: scheduler.schedule(work, execution_time=LATER, kwargs=value),
    lambda scheduler, value: scheduler.schedule(work, execution_time=LATER, args=(value,)),
    lambda scheduler, value: scheduler.schedule(work, execution_time=LATER, priority=value),
    lambda scheduler, value: scheduler.schedule(work, execution_time=LATER, max_retries=value),
    lambda scheduler, value: scheduler.schedule(work, execution_time=LATER, misfire_grace_time=value),
    lambda scheduler, value: scheduler.schedule(work, execution_time=LATER, timeout=value),
    lambda scheduler, value: scheduler.schedule(work, execution_time=LATER, connection=value),
    lambda scheduler, value: scheduler.schedule(work, execution_time=LATER, conflict_resolution=value),
    lambda scheduler, value: scheduler.schedule(value, execution_time=LATER),
    lambda scheduler, value: scheduler.schedule_bulk([value]),
    lambda scheduler, value: scheduler.schedule_bulk([JobSpec(work, LATER, job_id=value)]),
    lambda scheduler, value: scheduler.schedule_bulk([], batch_size=value),
    lambda scheduler, value: scheduler.get_job(value),
    lambda scheduler, value: scheduler.cancel_job(value),
    lambda scheduler, value: scheduler.update_job_status(value, "pending"),
    lambda scheduler, value: scheduler.update_job_status("x", value),
    lambda scheduler, value: scheduler.list_jobs(after=value),
    lambda scheduler, value: scheduler.list_jobs(job_name=value),
    lambda scheduler, value: scheduler.list_jobs(worker_id=value),
    lambda scheduler, value: scheduler.list_jobs(status=value),
    lambda scheduler, value: scheduler.list_jobs(due_from=value),
    lambda scheduler, value: scheduler.list_jobs(limit=value),
    lambda scheduler, value: scheduler.count_jobs(job_name=value),
    lambda scheduler, value: scheduler.get_vacuum_stats(value),
    lambda scheduler, value: scheduler.trigger_periodic_job(str(value)),
]


@EXAMPLES
@given(anything | times)
async def test_public_calls_accept_any_value_or_raise_type_or_value_error(
    pool: asyncpg.Pool, value: object
) -> None:
    scheduler = Scheduler(pool)
    for call in CALLS:
        try:
            await call(scheduler, value)
        except (TypeError, ValueError) as error:
            assert str(error)  # noqa: PT017 - not every call raises for every value
    await scheduler.shutdown()


@EXAMPLES
@given(texts)
async def test_ids_and_names_are_stored_unchanged(pool: asyncpg.Pool, text: str) -> None:
    scheduler = Scheduler(pool)
    await pool.execute("TRUNCATE scheduled_jobs")
    try:
        job_id = await scheduler.schedule_job(text, LATER, {}, job_id=text)
    except ValueError:
        assert not 0 < len(text.encode(errors="replace")) <= 2000 or "\x00" in text or max(text) >= "\ud800"
        return
    assert job_id == text
    job = await scheduler.get_job(text)
    assert job is not None
    assert (job.job_id, job.job_name) == (text, text)
    assert await scheduler.list_jobs(job_name=text) == [job]
    assert (await scheduler.count_jobs(job_name=text)).pending == 1
    with pytest.raises(ValueError, match="pending"):
        await scheduler.schedule_job("x", LATER, {}, job_id=text)
    assert await scheduler.cancel_job(text)


@EXAMPLES
@given(times, graces, timeouts, st.booleans())
async def test_extreme_times_and_settings_are_stored_or_rejected(
    pool: asyncpg.Pool, due: datetime, grace: int | None, timeout: Any, single: bool
) -> None:
    scheduler = Scheduler(pool)
    settings: dict[str, Any] = {"misfire_grace_time": grace, "timeout": timeout, "max_retries": 2**31 - 1}
    try:
        if single:
            job_id: str | None = await scheduler.schedule(work, execution_time=due, **settings)
        else:  # uses COPY
            job_id = (await scheduler.schedule_bulk([JobSpec(work, due, **settings)] * 100))[0]
    except ValueError:
        in_range = due.tzinfo is not None and timedelta(days=1) < due - EARLIEST
        assert not in_range or due.year == 9999
        return
    assert job_id
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert (job.execution_time, job.misfire_grace_time, job.max_retries) == (due, grace, 2**31 - 1)
    if grace is not None and job.expires_at is not None:
        assert job.expires_at - due == timedelta(seconds=grace)


def size_of(args: tuple[Any, ...]) -> int:
    return len(json.dumps({"args": args, "kwargs": {}}, ensure_ascii=False, separators=(",", ":")).encode())


@pytest.mark.parametrize("letter", ["x", "é", "語", "🦉", '"'])
@pytest.mark.parametrize("limit", [1_048_576, 100])
async def test_arguments_are_rejected_when_one_byte_above_the_size_limit(
    make: Make, pool: asyncpg.Pool, letter: str, limit: int
) -> None:
    scheduler = make() if limit == 1_048_576 else make(max_payload_bytes=limit)
    count = (limit - size_of(("",))) // (size_of((letter,)) - size_of(("",)))
    fits = letter * count
    fits += "." * (limit - size_of((fits,)))
    assert size_of((fits,)) == limit
    await scheduler.schedule(work, execution_time=LATER, args=(fits,))
    rejected: list[Coroutine[Any, Any, object]] = [
        scheduler.schedule(work, execution_time=LATER, args=(fits + ".",)),
        scheduler.schedule_job("x", LATER, {"args": [fits + "."]}),
        scheduler.schedule_bulk(
            [JobSpec(work, LATER, (n,)) for n in range(600)] + [JobSpec(work, LATER, (fits + ".",))]
        ),
    ]
    for call in rejected:
        with pytest.raises(
            PayloadError, match=f"{limit + 1} bytes .* more than max_payload_bytes = {limit}; store"
        ) as raised:
            await call
        assert fits[:20] not in str(raised.value)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1


async def test_arguments_of_any_size_are_accepted_when_there_is_no_limit(make: Make) -> None:
    scheduler = make(max_payload_bytes=None)
    job_id = await scheduler.schedule(work, execution_time=LATER, args=("x" * 3_000_000,))
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert len(job.args[0]) == 3_000_000


async def test_jobs_without_arguments_are_accepted_with_the_smallest_size_limit(make: Make) -> None:
    scheduler = make(max_payload_bytes=64)

    @periodic(every=timedelta(hours=1), dedup_key="k" * 200)
    async def sweep() -> None: ...

    assert await scheduler.schedule(work, execution_time=now())
    assert await scheduler.trigger_periodic_job("k" * 200)


async def take_list(value: list[Any]) -> list[Any]:
    return value


async def take_undefined(value: Any) -> Undefined:  # type: ignore[name-defined]  # noqa: F821
    return value


WAYS: dict[str, Callable[[Any], object]] = {
    "signal": lambda value: signal_text("name", value, None, None, "job"),
    "signal in a dict": lambda value: signal_text("name", {"key": (value,)}, None, None, "job"),
    "step": lambda value: step_text("name", ReturnType(work).to_json("name", value), None),
    "step with a type": lambda value: step_text("name", ReturnType(take_list).to_json("name", value), None),
    "step with an undefined type": lambda value: step_text(
        "name", ReturnType(take_undefined).to_json("name", value), None
    ),
    "argument": lambda value: encode((value,), {"key": value}),
    "argument with a type": lambda value: TypedArguments(take_list).encode((value,), {}),
    "metadata": lambda value: encode_object("metadata", {"key": value}),
    "result": encode_value,
}


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 320, 900, 5_000])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_value_that_is_nested_too_deep_is_rejected_in_every_way_in(
    way: Callable[[Any], object], depth: int
) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    with pytest.raises(PayloadError):
        way(value)
    while isinstance(value, list):  # otherwise its deallocation would recurse as deeply
        value = value[0]


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5_000, 100_000])
async def test_arguments_are_rejected_when_nested_too_deeply(make: Make, depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    with pytest.raises(PayloadError, match="nested deeper"):
        await make().schedule(work, execution_time=LATER, args=(value,))
    while isinstance(value, list):  # otherwise its deallocation would recurse as deeply
        value = value[0]
