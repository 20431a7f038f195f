"""Chunks of running Schedulers: each job has its own outcome, retries, limits and history."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import date, timedelta
from decimal import Decimal
from types import FunctionType
from typing import Annotated, Any, get_type_hints

import asyncpg
import pytest
from pydantic import BaseModel

from pg_scheduler import (
    Abort,
    Chunk,
    ChunkJob,
    ConfigurationError,
    Injected,
    JobCall,
    JobExecutor,
    JobSpec,
    JobStatus,
    Limit,
    PayloadError,
    PollingConfig,
    ProcessExecutor,
    Retry,
    RetryPolicy,
    Scheduler,
    Sequence,
    Share,
    Snooze,
    Unique,
    current_job,
    job_state,
    periodic,
)
from pg_scheduler.events import JobCompleted, JobFailed, JobRetried, JobSnoozed
from pg_scheduler.telemetry.logging import JobLogHandler
from pg_scheduler.triggers import Every
from tests.api.conftest import Make, Pools
from tests.api.test_limits import LEFT, until
from tests.support.inside import TaskRegistry, registry_of
from tests.support.worker import PATIENCE, Recorder, now

logger = logging.getLogger("tests.chunks")

SOON = RetryPolicy(base=timedelta(milliseconds=10))


@pytest.fixture
def handler() -> Iterator[JobLogHandler]:
    handler = JobLogHandler()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


async def fill(scheduler: Scheduler, func: Callable[..., Any], items: Iterable[Any], **options: Any) -> None:
    """Schedule a job for each item, all in one commit."""
    await scheduler.schedule_bulk(
        [JobSpec(func, now(), args=(item,), job_id=f"job {item}", **options) for item in items]
    )


# -- outcomes ------------------------------------------------------------------------------------------


async def test_each_job_has_its_own_outcome(scheduler: Scheduler) -> None:
    calls: list[list[str]] = []

    async def index(chunk: Chunk[str]) -> None:
        calls.append(sorted(job.item for job in chunk))
        for job in chunk:
            match job.item:
                case "value":
                    chunk.complete(job, {"pages": 3})
                case "retry" if job.attempt == 1:
                    chunk.fail(job, OSError("the first time"))
                case "abort":
                    chunk.fail(job, Abort("never"))
                case "snooze" if job.attempt == 1:
                    chunk.fail(job, Snooze(0.01))
                case "asks" if job.retry_count == 0:
                    chunk.fail(job, Retry(0.01))

    scheduler.register(
        index, chunk=100, chunk_wait=0, max_retries=2, retry=SOON, keep_result=timedelta(hours=1)
    )
    record = Recorder(scheduler)
    items = ["value", "retry", "abort", "snooze", "asks", "rest"]
    await fill(scheduler, index, items)
    await record.until(JobCompleted, 5)
    await record.until(JobFailed)
    assert calls[0] == sorted(items)
    assert [event.job_id for event in record.of(JobFailed)] == ["job abort"]
    assert {event.job_id for event in record.of(JobRetried)} == {"job retry", "job asks"}
    assert [event.job_id for event in record.of(JobSnoozed)] == ["job snooze"]
    results = {item: await scheduler.get_job_result(f"job {item}") for item in ("value", "rest")}
    assert {item: result.value for item, result in results.items()} == {
        "value": {"pages": 3},
        "rest": None,
    }
    retried = await scheduler.get_job("job retry")
    assert retried is not None
    assert [error.message for error in retried.errors] == ["the first time"]


async def test_error_of_the_call_fails_the_jobs_without_an_outcome(scheduler: Scheduler) -> None:
    """Each with its own retries."""
    attempts: list[int] = []

    async def index(chunk: Chunk[int]) -> None:
        attempts.append(len(chunk))
        for job in chunk:
            if job.item == 0:
                chunk.complete(job)
        raise OSError("the search engine is down")

    scheduler.register(index, chunk=10, chunk_wait=0, retry=SOON)
    record = Recorder(scheduler)
    jobs = [
        JobSpec(index, now(), args=(n,), job_id=f"job {n}", max_retries=0 if n == 1 else 2) for n in range(4)
    ]
    await scheduler.schedule_bulk(jobs)
    await record.until(JobFailed, 3)
    assert [event.job_id for event in record.of(JobCompleted)] == ["job 0"]
    assert attempts[0] == 4
    rows = {n: await scheduler.get_job(f"job {n}") for n in (1, 2)}
    assert [len(row.errors) for row in rows.values() if row] == [1, 3]
    assert rows[2] is not None
    # The jobs share the exception, but each has the traceback of the call only.
    trace = rows[2].errors[0].traceback
    assert trace is not None
    assert trace.count("in index") == 1
    assert trace.count("in outcome") == 1


async def test_outcome_is_written_while_the_function_continues(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    may_end = asyncio.Event()

    async def index(chunk: Chunk[int]) -> None:
        chunk.complete(chunk.jobs[0])
        await may_end.wait()

    scheduler.register(index, chunk=2, chunk_wait=60)
    await fill(scheduler, index, range(2))
    await until(pool, "SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'", 1)
    assert await pool.fetchval(LEFT) == 1
    may_end.set()
    await until(pool, LEFT, 0)


async def test_wrong_outcomes_are_refused(scheduler: Scheduler) -> None:
    texts: list[str] = []
    former: list[tuple[Chunk[int], ChunkJob[int]]] = []

    def note(call: Callable[[], None], kind: type[Exception]) -> None:
        with pytest.raises(kind) as caught:
            call()
        texts.append(str(caught.value))

    async def index(chunk: Chunk[int]) -> None:
        job = chunk.jobs[0]
        wrong: Any = OSError
        note(lambda: chunk.fail(job, wrong), TypeError)
        no_job: Any = {}
        note(lambda: chunk.complete(no_job), TypeError)
        note(lambda: chunk.fail(no_job, OSError()), TypeError)
        chunk.complete(job)
        note(lambda: chunk.complete(job), RuntimeError)
        if former:
            note(lambda: chunk.complete(former[0][1]), ValueError)
            note(lambda: former[0][0].fail(former[0][1], OSError("late")), RuntimeError)
        former.append((chunk, job))

    scheduler.register(index, chunk=1)
    record = Recorder(scheduler)
    await fill(scheduler, index, [1])
    await record.until(JobCompleted, 1)
    await fill(scheduler, index, [2])
    await record.until(JobCompleted, 2)
    assert not record.of(JobFailed)
    first, kind, _, second, *_, foreign, late = texts
    assert first.startswith("error must be an exception, not type: <class 'OSError'>; pass an object such as")
    assert kind == "job must be one of the jobs over which the chunk iterates, not dict: {}"
    assert second == "job 'job 1' has an outcome already, which counts; give it only one"
    assert foreign.startswith("<ChunkJob 'job 1', attempt 1> is not in this chunk")
    assert late.startswith("the call for job 'job 1' has ended")


async def test_value_of_the_function_belongs_to_no_job(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    async def index(chunk):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - no annotation shows it
        if chunk.jobs[0].item:
            chunk.complete(chunk.jobs[0])
        return 5

    scheduler.register(index, chunk=1)
    record = Recorder(scheduler)
    await fill(scheduler, index, [0])
    (failed,) = await record.until(JobFailed)
    problem = (
        "TypeError: the function of a chunk returned int, which belongs to none of its jobs; return nothing"
    )
    assert failed.error.startswith(problem)
    await fill(scheduler, index, [1])
    await record.until(JobCompleted)
    assert [each for each in caplog.messages if "returned int" in each], "it is not lost"


async def test_value_is_copied_when_it_is_given(scheduler: Scheduler) -> None:
    async def index(chunk: Chunk[int]) -> None:
        value: dict[str, int] = {}
        for job in chunk:
            value["item"] = job.item
            chunk.complete(job, value)

    scheduler.register(index, chunk=3, chunk_wait=60, keep_result=timedelta(hours=1))
    record = Recorder(scheduler)
    await fill(scheduler, index, range(3))
    await record.until(JobCompleted, 3)
    results = [await scheduler.get_job_result(f"job {item}") for item in range(3)]
    assert [result.value for result in results] == [{"item": item} for item in range(3)]


async def test_value_of_a_typed_task_is_kept_by_its_own_class(scheduler: Scheduler) -> None:
    async def double(chunk: Chunk[Decimal]) -> None:
        for job in chunk:
            chunk.complete(job, object() if job.item < 0 else job.item * 2)

    scheduler.register(double, chunk=3, chunk_wait=0, typed=True, keep_result=timedelta(hours=1))
    record = Recorder(scheduler)
    await fill(scheduler, double, [Decimal("1.10"), Decimal(-1)])
    await record.until(JobCompleted, 2)
    kept, refused = [await scheduler.get_job_result(f"job {item}") for item in ("1.10", "-1")]
    assert kept.unwrap(Decimal) == Decimal("2.20")
    assert refused.no_value_reason
    assert "object" in refused.no_value_reason


async def test_number_and_its_text_are_two_keys(scheduler: Scheduler) -> None:
    calls: list[list[Any]] = []

    async def index(chunk: Chunk[Any]) -> None:
        calls.append([job.item for job in chunk])

    scheduler.register(index, chunk=10, chunk_wait=0, chunk_by=lambda item: item)
    record = Recorder(scheduler)
    items: list[Any] = [1, "1", "\u00e9", "\\xe9"]
    await scheduler.schedule_bulk([JobSpec(index, now(), args=(item,)) for item in items])
    await record.until(JobCompleted, 4)
    assert sorted(map(repr, calls)) == sorted(repr([item]) for item in items)


async def test_call_may_shut_the_scheduler_down_but_not_enter_it(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(shutdown_timeout=PATIENCE)
    texts: list[str] = []

    async def index(chunk: Chunk[int]) -> None:
        try:
            async with chunk.scheduler:
                pass
        except RuntimeError as error:
            texts.append(str(error))
        # It would wait for the end of this call.
        await asyncio.wait_for(chunk.scheduler.shutdown(), PATIENCE)
        texts.append("returned")

    scheduler.register(index, chunk=10, chunk_wait=0)
    await fill(scheduler, index, [1])
    await scheduler.start()
    await until(pool, "SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'", 1)
    await asyncio.wait_for(scheduler.shutdown(), PATIENCE)
    assert texts[0].startswith("this Scheduler calls the function of the chunk that enters it")
    assert texts[1:] == ["returned"]


# -- the jobs are jobs ---------------------------------------------------------------------------------


async def test_limit_bounds_the_jobs_of_a_chunk(make: Make) -> None:
    scheduler = make()
    sizes: list[int] = []

    async def index(chunk: Chunk[int]) -> None:
        sizes.append(len(chunk))

    scheduler.register(index, chunk=10, chunk_wait=0.01, limits=[Limit("engine", max_running=2)])
    record = Recorder(scheduler)
    await fill(scheduler, index, range(6))
    await scheduler.start()
    await record.until(JobCompleted, 6)
    assert max(sizes) <= 2


async def test_two_workers_run_each_job_once(make: Make, pools: Pools, pool: asyncpg.Pool) -> None:
    ran: list[int] = []

    async def index(chunk: Chunk[int]) -> None:
        ran.extend(job.item for job in chunk)

    schedulers = [make(await pools(5), max_concurrent_jobs=slots) for slots in (1, 4)]
    for each in schedulers:
        each.register(index, name="index", chunk=7, chunk_wait=0.02)
    await fill(schedulers[0], index, range(100))
    for each in schedulers:
        await each.start()
    await until(pool, LEFT, 0)
    assert sorted(ran) == list(range(100))
    assert await pool.fetchval("SELECT max(attempt) FROM scheduled_jobs") == 1


async def test_jobs_of_other_tasks_run_while_a_chunk_waits(make: Make) -> None:
    scheduler = make(max_concurrent_jobs=1)
    seen: list[int] = []

    async def index(chunk: Chunk[int]) -> None:
        seen.append(len(chunk))

    async def plain() -> None: ...

    scheduler.register(index, chunk=3, chunk_wait=600)
    record = Recorder(scheduler)
    await scheduler.start()
    await fill(scheduler, index, range(2))
    job_id = await scheduler.enqueue(plain)
    await record.until(JobCompleted, job_id=job_id)
    assert seen == []
    await fill(scheduler, index, [2])
    await record.until(JobCompleted, 4)
    assert seen == [3]


async def test_shutdown_runs_the_jobs_that_wait(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(shutdown_timeout=PATIENCE)

    async def index(chunk: Chunk[int]) -> None: ...

    scheduler.register(index, chunk=100, chunk_wait=600)
    await fill(scheduler, index, range(3))
    await scheduler.start()
    await until(pool, "SELECT count(*) FROM scheduled_jobs WHERE status = 'running'", 3)
    await scheduler.shutdown()
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'") == 3


async def test_caller_cancels_a_job_of_a_call(scheduler: Scheduler) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()
    chunks: list[Chunk[int]] = []

    async def index(chunk: Chunk[int]) -> None:
        chunks.append(chunk)
        began.set()
        await may_end.wait()

    scheduler.register(index, chunk=2, chunk_wait=600)
    record = Recorder(scheduler)
    await fill(scheduler, index, range(2))
    async with asyncio.timeout(PATIENCE):
        await began.wait()
        assert await scheduler.cancel_job("job 0")
        while not chunks[0].jobs[0].has_left:  # noqa: ASYNC110 - the notification reaches the worker
            await asyncio.sleep(0.01)
    may_end.set()
    await record.until(JobCompleted, job_id="job 1")
    cancelled = await scheduler.get_job("job 0")
    assert cancelled is not None
    assert cancelled.status is JobStatus.CANCELLED


async def test_killed_worker_repeats_only_the_jobs_without_an_outcome(
    make: Make, dsn: str, pool: asyncpg.Pool
) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.api.chunk_process", dsn)
    assert await asyncio.wait_for(process.wait(), PATIENCE) == -signal.SIGKILL
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'") == 3
    items: list[int] = []

    async def index(chunk: Chunk[int]) -> None:
        items.extend(job.item for job in chunk)

    # Polls look at the liveness locks of other workers.
    scheduler = make(polling_config=PollingConfig())
    scheduler.register(index, name="index", chunk=10, chunk_wait=0)
    await scheduler.start()
    await until(pool, LEFT, 0)
    assert sorted(items) == list(range(3, 10))


# -- what the function gets ----------------------------------------------------------------------------


class Document(BaseModel):
    name: str
    day: date


async def test_items_of_a_typed_task_are_validated(scheduler: Scheduler) -> None:
    seen: list[Document] = []

    async def index(chunk: Chunk[Document]) -> None:
        seen.extend(job.item for job in chunk)

    scheduler.register(index, chunk=10, chunk_wait=0, typed=True)
    record = Recorder(scheduler)
    document = Document(name="a", day=date(2030, 1, 1))
    await scheduler.enqueue(Chunk.call(index, document))
    await record.until(JobCompleted)
    assert seen == [document]
    with pytest.raises(PayloadError, match="item"):
        await scheduler.enqueue(index, args=({"name": "a", "day": "no day"},))
    # "pg-scheduler check" calls this with stored arguments.
    task = registry_of(scheduler).task_of(index)
    assert task is not None
    task.check(({"name": "a", "day": "2030-01-01"},), {})
    with pytest.raises(PayloadError, match=r"day: .*; pass arguments that fit"):
        task.check(({"name": "a", "day": "no day"},), {})


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2), {}), ((), {"chunk": 1})], ids=["none", "two", "the chunk"]
)
async def test_each_job_has_one_argument(
    scheduler: Scheduler, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    async def index(chunk: Chunk[int]) -> None: ...

    scheduler.register(index, chunk=10)
    with pytest.raises(TypeError, match=r"index\(\) cannot be called with the arguments of the job"):
        await scheduler.enqueue(index, args=args, kwargs=kwargs)


async def test_argument_may_be_named_and_wrong_rows_fail_alone(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    seen: list[int] = []

    async def index(chunk: Chunk[int]) -> None:
        seen.extend(job.item for job in chunk)

    scheduler.register(index, name="index", chunk=10, chunk_wait=0.05, unique=Unique(args=("item",)))
    record = Recorder(scheduler)
    async with pool.acquire() as connection, connection.transaction():
        await scheduler.enqueue(index, kwargs={"item": 7}, connection=connection)
        await scheduler.enqueue(index, args=(8,), job_id="changed", connection=connection)
        change = "UPDATE scheduled_jobs SET task_data = $1 WHERE job_id = 'changed'"
        await connection.execute(change, '{"args": [1, 2], "kwargs": {}}')
    (failed,) = await record.until(JobFailed)
    assert failed.job_id == "changed"
    assert "index() cannot be called with the arguments of the job" in failed.error
    await record.until(JobCompleted)
    assert seen == [7]


async def test_function_has_no_current_job_but_the_scheduler(make: Make) -> None:
    scheduler = make()
    scheduler.state = {"rate": 2}
    seen: list[object] = []

    async def index(chunk: Chunk[int]) -> None:
        with pytest.raises(LookupError, match="use those over which the chunk iterates") as caught:
            current_job()
        seen.append(caught.type)
        seen.append(job_state(dict))
        seen.append(chunk.scheduler is scheduler and chunk.pool is scheduler.db_pool)
        seen.append(chunk.is_cancelled)
        seen.append([dict(job.metadata) for job in chunk])
        seen.append((repr(chunk), chunk.jobs[0].max_retries))

    scheduler.register(index, chunk=2, chunk_wait=0, metadata={"team": "search"}, max_retries=1)
    record = Recorder(scheduler)
    await fill(scheduler, index, range(2))
    await scheduler.start()
    await record.until(JobCompleted, 2)
    assert seen == [LookupError, {"rate": 2}, True, False, [{"team": "search"}] * 2, ("<Chunk of 2>", 1)]


async def test_middleware_surrounds_each_job(make: Make) -> None:
    """And the call gets nothing that it has set for one of them."""
    log: list[tuple[str, Any]] = []
    tenant: ContextVar[str] = ContextVar("tenant")

    async def middleware(call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
        log.append(("before", call.args))
        tenant.set("one")
        assert call.func == index
        try:
            value = await call_next()
        except ValueError as error:
            log.append(("error", str(error)))
            raise
        log.append(("after", (call.job.job_id, value)))
        return value

    async def index(chunk: Chunk[int]) -> None:
        log.append(("call", len(chunk)))
        assert tenant.get(None) is None
        chunk.complete(chunk.jobs[0], 5)
        chunk.fail(chunk.jobs[1], ValueError("no"))

    scheduler = make(middleware=[middleware])
    scheduler.register(index, name="index", chunk=2)
    record = Recorder(scheduler)
    await fill(scheduler, index, range(2))
    await scheduler.start()
    await record.until(JobFailed)
    assert log == [
        ("before", (0,)),
        ("before", (1,)),
        ("call", 2),
        ("after", ("job 0", 5)),
        ("error", "no"),
    ]


@pytest.mark.usefixtures("handler")
async def test_lines_of_the_call_are_kept_with_each_failed_job(make: Make) -> None:
    async def index(chunk: Chunk[int]) -> None:
        logger.info("%d documents", len(chunk))
        raise OSError("down")

    scheduler = make()
    scheduler.register(index, chunk=2, chunk_wait=0)
    record = Recorder(scheduler)
    await fill(scheduler, index, range(2))
    await scheduler.start()
    await record.until(JobFailed, 2)
    for n in range(2):
        job = await scheduler.get_job(f"job {n}")
        assert job is not None
        assert [error.log for error in job.errors] == [("2 documents",)]


async def test_schedule_of_a_chunked_task_fires_jobs_that_join(
    make: Make, own_catalogue: TaskRegistry
) -> None:
    scheduler = make()
    seen: list[int] = []

    async def index(chunk: Chunk[int]) -> None:
        seen.extend(job.item for job in chunk)

    scheduler.register(index, name="index", chunk=10, chunk_wait=0)
    record = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedules.add("index", Every(seconds=1), schedule_id="often", args=(3,))
    await record.until(JobCompleted)
    assert seen[0] == 3


# -- declarations --------------------------------------------------------------------------------------


async def good(chunk: Chunk[int]) -> None: ...


def plain(chunk: Chunk[int]) -> None: ...


async def pair(chunk: Chunk[int], other: int) -> None: ...


async def listed(chunk: list[int]) -> None: ...


async def valued(chunk: Chunk[int]) -> int:
    return len(chunk)


async def injected(chunk: Chunk[int], *, session: Injected[object]) -> None: ...


async def named(*, chunk: Chunk[int]) -> None: ...


@pytest.mark.parametrize(
    ("func", "options", "kind", "text"),
    [
        (good, {"chunk": 0}, ConfigurationError, "chunk must be between 1 and 10000, not 0"),
        (good, {"chunk": 20_000}, ConfigurationError, "chunk must be between 1 and 10000, not 20000"),
        (good, {"chunk": "5"}, TypeError, "chunk must be an int, not str: '5'"),
        (good, {"chunk": 5, "chunk_wait": -1}, ConfigurationError, "chunk_wait must be between 0 and 3600"),
        (good, {"chunk": 5, "chunk_wait": float("nan")}, ConfigurationError, "not nan; pass 0"),
        (good, {"chunk": 5, "chunk_wait": None}, TypeError, "chunk_wait must be seconds or a timedelta"),
        (good, {"chunk_wait": 1}, ConfigurationError, "chunk_wait= has no effect without chunk="),
        (good, {"chunk_by": lambda item: item}, ConfigurationError, "chunk_by= has no effect without chunk="),
        (good, {"chunk": 5, "chunk_by": 3}, TypeError, "chunk_by must be a function, not int: 3"),
        (good, {"chunk": 5, "sequence": Sequence(key=lambda item: item)}, ConfigurationError, "a sequence"),
        (good, {"chunk": 5, "executor": "process"}, ConfigurationError, "cannot run in a process"),
        (good, {"chunk": 5, "unique": Unique(args=("chunk",))}, ConfigurationError, "are: 'item'"),
        (pair, {"chunk": 5}, ConfigurationError, "has one parameter, the chunk, but those of pair"),
        (named, {"chunk": 5}, ConfigurationError, "has one parameter, the chunk, but those of named"),
        (listed, {"chunk": 5}, ConfigurationError, "receives a Chunk, but the parameter of listed"),
        (valued, {"chunk": 5}, ConfigurationError, r"call chunk.complete\(job, value\)"),
        (injected, {"chunk": 5}, ConfigurationError, "an Injected parameter"),
    ],
)
def test_wrong_declarations_are_refused(
    pool: asyncpg.Pool, func: Callable[..., Any], options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        Scheduler(pool).register(func, **options)


class Single(JobExecutor):
    async def run(self, call: JobCall) -> object:
        return await call.func(*call.args, **call.kwargs)


@pytest.mark.parametrize(
    ("executor", "text"),
    [
        (Single(), "the executor 'gpu' is a Single, which gets one job with each call"),
        (ProcessExecutor(processes=1), "the executor 'gpu' runs jobs in processes"),
    ],
)
def test_executor_that_cannot_call_the_function_is_refused(
    pool: asyncpg.Pool, executor: JobExecutor, text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Scheduler(pool, executors={"gpu": executor}).register(good, chunk=5, executor="gpu")
    # The name of the default executor may be that of another one.
    with pytest.raises(ConfigurationError, match=text.replace("gpu", "thread")):
        Scheduler(pool, executors={"thread": executor}).register(plain, chunk=5)


async def annotated(chunk: Annotated[Chunk[int], "of another library"]) -> None: ...


async def annotated_alone(chunk: Annotated[Chunk, "of another library"]) -> None: ...  # type: ignore[type-arg]


@pytest.mark.parametrize("func", [annotated, annotated_alone])
def test_annotation_may_have_metadata(pool: asyncpg.Pool, func: Callable[..., Any]) -> None:
    Scheduler(pool).register(func, chunk=5)
    # Without deferred annotations, it is an object.
    evaluated = FunctionType(func.__code__, func.__globals__, "evaluated")
    evaluated.__annotations__ = {"chunk": get_type_hints(func, include_extras=True)["chunk"]}
    Scheduler(pool).register(evaluated, name="evaluated", chunk=5)


def test_periodic_function_of_a_chunk_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="without arguments, but it requires chunk"):
        periodic(every=timedelta(hours=1))(good)


def test_declarations_are_complete_and_keep_what_is_not_given(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    scheduler.register(good, chunk=5, chunk_wait=timedelta(seconds=2), share=Share(key=lambda item: item))
    scheduler.register(good, chunk=7)
    task = registry_of(scheduler).task_of(good)
    assert task is not None
    assert task.chunk is not None
    assert (task.chunk.size, task.chunk.wait_s, task.chunk.by) == (7, 2.0, None)


async def test_list_of_tasks_has_the_options(pool: asyncpg.Pool, make: Make) -> None:
    scheduler = make()
    scheduler.register(good, name="good", chunk=5)
    (info,) = [info for info in await scheduler.tasks.list() if info.name == "good"]
    assert (info.chunk, info.chunk_wait) == (5, timedelta(seconds=1))
