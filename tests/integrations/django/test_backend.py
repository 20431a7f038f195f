"""The backend of ``django.tasks``: enqueue in transactions, run, and read results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import UUID, uuid4

import asyncpg
import pytest

from pg_scheduler import JobConflictError, JobPriority, PayloadError, SchedulerError, Unique, periodic
from pg_scheduler.events import JobFailed, JobRetried
from pg_scheduler.jobs.call_errors import Subject
from pg_scheduler.queue.prepare import new_job_id
from tests.support.django import BACKEND, project, require_tasks, working
from tests.support.inside import catalogue, config_of, periodic_catalogue

require_tasks()

from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async  # noqa: E402 - only where Django is
from django.conf import settings  # noqa: E402
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.db import DatabaseError, connection, connections, transaction  # noqa: E402
from django.test.utils import CaptureQueriesContext, override_settings  # noqa: E402
from django.utils import timezone  # noqa: E402

from pg_scheduler.integrations.django import Backend, compat, results, worker  # noqa: E402
from pg_scheduler.integrations.django.backend import TASK_REMEDIES  # noqa: E402
from pg_scheduler.integrations.django.task import PRIORITY, JobTask  # noqa: E402

READY, RUNNING, FAILED, SUCCESSFUL = (
    getattr(compat.TaskResultStatus, name) for name in ("READY", "RUNNING", "FAILED", "SUCCESSFUL")
)
HOUR = timedelta(hours=1)

VALUES: dict[str, Any] = {"priority": 0, "backend": "default", "queue_name": "default", "run_after": None}
"""Fields of tasks without defaults in Django 6.0."""


def renamed() -> str:
    """Stand for a task of another path."""
    return "new"


def long_kept() -> None:
    """Stand for a task with an option, which its first declaration decides."""


@contextmanager
def received(*signals: Any) -> Iterator[list[tuple[str, Any]]]:
    """Yield the status and result of each signal, as it was when it was sent."""
    found: list[tuple[str, Any]] = []

    def note(sender: type, task_result: Any, **_: Any) -> None:
        assert sender is Backend
        found.append((task_result.status, task_result))

    for signal in signals:
        signal.connect(note)
    try:
        yield found
    finally:
        for signal in signals:
            signal.disconnect(note)


async def rows(pool: asyncpg.Pool) -> list[asyncpg.Record]:
    return await pool.fetch("SELECT * FROM scheduled_jobs ORDER BY job_id")


async def ended(scheduler: Any, result: Any) -> Any:
    """Wait for the end of a task, and return the refreshed result."""
    await scheduler.get_job_result(result.id)
    result.refresh()
    return result


# -- enqueue -------------------------------------------------------------------------------------------


async def test_task_exists_if_and_only_if_the_transaction_commits(shop: Any, pool: asyncpg.Pool) -> None:
    with transaction.atomic():
        kept = shop.add.enqueue(1)
        with transaction.atomic():
            shop.add.enqueue(2)
            transaction.set_rollback(True)
        assert await rows(pool) == []
    with transaction.atomic():
        shop.add.enqueue(3)
        transaction.set_rollback(True)
    assert [row["job_id"] for row in await rows(pool)] == [kept.id]


async def test_task_is_committed_at_once_outside_of_a_transaction(shop: Any, pool: asyncpg.Pool) -> None:
    with received(compat.task_enqueued) as signals:
        result = shop.send.enqueue("ada")
    (row,) = await rows(pool)
    assert (row["job_id"], row["job_name"]) == (result.id, f"{shop.send.module_path}@mail")
    assert (row["priority"], row["max_retries"], row["expires_at"]) == (JobPriority.HIGH.db_value, 0, None)
    assert signals == [(READY, result)]
    assert (result.args, result.kwargs, result.attempts, result.backend) == (["ada"], {}, 0, "default")


async def test_task_is_enqueued_in_a_thread_by_async_code(shop: Any, pool: asyncpg.Pool) -> None:
    async with ThreadSensitiveContext():
        result = await shop.add.aenqueue(1)
        assert [row["job_id"] for row in await rows(pool)] == [result.id]
        assert await shop.add.aget_result(result.id) == result
        await sync_to_async(connections.close_all)()


def test_task_is_part_of_the_transaction_of_a_view_that_waits_for_async_code(shop: Any) -> None:
    async def place_order() -> Any:
        return await shop.add.aenqueue(1)

    with transaction.atomic():
        result = async_to_sync(place_order)()
        assert shop.add.get_result(result.id) == result
        transaction.set_rollback(True)
    with pytest.raises(compat.TaskResultDoesNotExist):
        shop.add.get_result(result.id)


SERVER_ERRORS = {
    "read only": "SET TRANSACTION READ ONLY",
    "no tables": "ALTER TABLE scheduled_jobs RENAME TO other_jobs",
}
"""What makes the server refuse a task, in a transaction that is rolled back."""


@pytest.mark.parametrize("kind", SERVER_ERRORS)
def test_error_of_the_server_aborts_the_transaction_but_not_one_around_it(shop: Any, kind: str) -> None:
    shop.add.enqueue(0)  # looks up the schema
    errors: list[Exception] = []
    for has_block in (False, True):
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(SERVER_ERRORS[kind])
            try:
                with transaction.atomic() if has_block else nullcontext():
                    shop.add.enqueue(1)
            except (DatabaseError, SchedulerError) as error:
                errors.append(error)
            with nullcontext() if has_block else pytest.raises(DatabaseError), connection.cursor() as cursor:
                cursor.execute("SELECT 1")
            transaction.set_rollback(True)
    assert len(errors) == 2


def test_enqueue_and_get_result_take_one_statement(shop: Any) -> None:
    shop.add.enqueue(0)  # looks up the schema
    with CaptureQueriesContext(connection) as queries:
        result = shop.add.enqueue(1)
    assert len(queries) == 1
    with CaptureQueriesContext(connection) as queries:
        assert shop.add.get_result(result.id) == result
    assert len(queries) == 1


@pytest.mark.parametrize(
    ("number", "priority"),
    [
        (-100, JobPriority.LOW),
        (-1, JobPriority.LOW),
        (0, JobPriority.NORMAL),
        (1, JobPriority.HIGH),
        (49, JobPriority.HIGH),
        (50, JobPriority.CRITICAL),
        (100, JobPriority.CRITICAL),
    ],
)
def test_priority_is_one_of_four_and_its_number_is_kept(
    shop: Any, number: int, priority: JobPriority
) -> None:
    result = shop.add.using(priority=number).enqueue(1)
    job = Backend("default", {}).client.get_job(result.id, connection="default")
    assert job is not None
    assert job.priority is priority
    assert shop.add.get_result(result.id).task.priority == number


def test_task_is_due_at_run_after(shop: Any) -> None:
    due = datetime.now(UTC) + HOUR
    task = shop.add.using(run_after=due)
    result = task.enqueue(1)
    assert shop.add.get_result(result.id).task == task
    job = Backend("default", {}).client.get_job(result.id, connection="default")
    assert job is not None
    assert (job.execution_time, job.expires_at) == (due, None)


async def test_options_of_jobs_are_those_of_the_task_else_of_the_backend(
    dsn: str, pool: asyncpg.Pool
) -> None:
    options = {"MAX_RETRIES": 3, "TIMEOUT": 600, "KEEP_RESULT": timedelta(hours=2)}
    with project(dsn, OPTIONS=options) as shop:
        shop.add.enqueue(1)
        changed = shop.add.using(
            job_id="one", max_retries=1, timeout=None, keep_result=None, metadata={"tenant": 7}, unique="key"
        )
        changed.enqueue(1)
    first, second = await rows(pool)
    assert (first["max_retries"], first["timeout_seconds"], first["options"]) == (
        3,
        600,
        '{"keep_result": 7200.0}',
    )
    assert (second["job_id"], second["max_retries"], second["timeout_seconds"]) == ("one", 1, None)
    assert (second["options"], second["unique_key"]) == (None, "key")
    assert '"tenant": 7' in second["task_data"]


def test_times_are_naive_without_use_tz(shop: Any) -> None:
    due = timezone.make_naive(datetime.now(UTC)) + HOUR
    with override_settings(USE_TZ=False):
        result = shop.add.using(run_after=due).enqueue(1)
        found = shop.add.get_result(result.id)
    assert found.task.run_after == due
    assert found.enqueued_at.tzinfo is None
    assert due - HOUR - timedelta(minutes=1) < found.enqueued_at < due


@pytest.mark.parametrize("job_id", ["welcome:7", "ffffffff-ffff-7fff-bfff-ffffffffffff"])
def test_id_of_the_caller_has_a_time_without_use_tz(shop: Any, job_id: str) -> None:
    with override_settings(USE_TZ=False):
        before = timezone.make_naive(datetime.now(UTC))
        result = shop.add.using(job_id=job_id).enqueue(1)
        found = shop.add.get_result(job_id)
    for each in (result, found):
        assert before - timedelta(seconds=1) < each.enqueued_at < before + timedelta(minutes=1)


@pytest.mark.slow
async def test_worker_keeps_jobs_as_long_as_their_results(dsn: str) -> None:
    with project(dsn, OPTIONS={"KEEP_RESULT": timedelta(days=5)}):
        async with worker.scheduler() as scheduler:
            retention = config_of(scheduler).vacuum
    assert (retention.completed.days, retention.cancelled.days, retention.failed.days) == (5, 5, 7)


async def test_worker_keeps_jobs_as_long_as_the_longest_result(dsn: str) -> None:
    tasks = {"reports": {"BACKEND": BACKEND, "OPTIONS": {"KEEP_RESULT": timedelta(days=40)}}}
    with project(dsn):
        with override_settings(TASKS=settings.TASKS | tasks):
            async with worker.scheduler() as scheduler:
                assert config_of(scheduler).vacuum.completed.days == 40
        JobTask(func=long_kept, keep_result=timedelta(days=50), **VALUES)
        async with worker.scheduler() as scheduler:
            assert config_of(scheduler).vacuum.failed.days == 50


def test_existing_id_raises_and_the_transaction_goes_on(shop: Any) -> None:
    with transaction.atomic():
        shop.add.using(job_id="one").enqueue(1)
        with pytest.raises(
            JobConflictError, match=r"status 'pending'; pass another job_id= to using\(\), or none$"
        ):
            shop.add.using(job_id="one").enqueue(1)
        shop.add.using(unique="key").enqueue(2)
        with pytest.raises(JobConflictError, match="wait until that job has ended, or catch this error"):
            shop.add.using(unique="key").enqueue(3)
        with pytest.raises(JobConflictError, match=r"pass another job_id= to using\(\)"):
            shop.add.using(job_id="one", run_after=timezone.now()).enqueue(1)
        shop.add.enqueue(2)
    assert shop.add.get_result("one").args == [1]


@pytest.mark.parametrize("arguments", [(), (1, 2, 3), (object(),), (datetime.now(UTC),)])
def test_arguments_that_do_not_fit_raise_at_the_call(shop: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        shop.add.enqueue(*arguments)


def test_metadata_that_is_no_dict_is_rejected_by_its_name(shop: Any) -> None:
    with pytest.raises(PayloadError, match="metadata must be a dict"):
        shop.add.using(metadata=["tenant"]).enqueue(1)


def test_arguments_that_are_too_large_raise_at_the_call(shop: Any) -> None:
    with pytest.raises(PayloadError, match=r"1048576; store them elsewhere and pass an id or a path$"):
        shop.add.enqueue("a" * 2_000_000)


def test_errors_of_calls_have_remedies_of_tasks(shop: Any) -> None:
    assert TASK_REMEDIES.keys() < set(get_args(Subject))
    debounced = shop.add.using(unique=Unique(debounce=60))
    with pytest.raises(ValueError, match=r"omit job_id, or pass unique=None to using\(\)$"):
        replace(debounced, job_id="one").enqueue(1)
    with pytest.raises(ValueError, match=r"omit run_after, or pass unique=None to using\(\)$"):
        debounced.using(run_after=timezone.now()).enqueue(1)
    with pytest.raises(TypeError, match=r"arguments that fit the signature of the function$"):
        shop.add.enqueue(1, 2, 3)
    with pytest.raises(PayloadError, match=r"choose another key$"):
        shop.add.using(metadata={"trace": {}}).enqueue(1)


def test_queue_that_the_settings_lack_is_rejected(shop: Any) -> None:
    with pytest.raises(Exception, match="Queue 'fast' is not valid"):
        shop.add.using(queue_name="fast")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"RETRIES": 1},
            "'RETRIES'; known keys: DATABASE, SCHEMA, MAX_RETRIES, .* DSN, MIDDLEWARE, EXECUTORS, CODEC",
        ),
        ({"MAX_RETRIES": -1}, "max_retries"),
        ({"TIMEOUT": "soon"}, "timeout"),
        ({"KEEP_RESULT": 5}, "keep_result"),
        ({"DATABASE": None}, "DATABASE must be a str"),
        ({"SCHEMA": 5}, "SCHEMA must be a str"),
        ({"SCHEMA": ""}, "SCHEMA must have 1 to 63 bytes .*, not ''; omit it for the schema on the search"),
        ({"SCHEMA": "ä" * 32}, "SCHEMA must have 1 to 63 bytes"),
        ({"SCHEMA": "pg_jobs"}, "SCHEMA must not begin with pg_"),
        ({"DSN": "mysql://db/shop"}, "DSN must start with postgresql://"),
    ],
)
def test_invalid_option_names_its_place(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"TASKS\['jobs'\]\['OPTIONS'\].*" + message):
        Backend("jobs", {"OPTIONS": options})


def test_another_queue_changes_no_default_of_a_task(dsn: str) -> None:
    with project(dsn, QUEUES=[]) as shop:
        shop.add.using(queue_name="bulk", priority=-50).enqueue(1)
        task = catalogue.resolve(f"{shop.add.module_path}@default")
    assert task is not None
    assert task.priority is JobPriority.NORMAL


# -- the worker ----------------------------------------------------------------------------------------


async def test_worker_of_a_backend_runs_tasks_of_another_one(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with project(dsn) as shop:
        tasks = {"reports": {"BACKEND": BACKEND, "QUEUES": ["reports"]}}
        monkeypatch.setattr(worker.selection, "backend", "reports")
        with override_settings(TASKS=settings.TASKS | tasks):
            client = Backend("reports", {}).client  # using() would register the name, as in another process
            name = f"{shop.describe.module_path}@reports"
            job_id = client.enqueue(name, args=("new",), connection="default")
            with received(compat.task_finished) as signals:
                async with working() as (scheduler, _):
                    await scheduler.get_job_result(job_id)
            found = compat.task_backends["reports"].get_result(job_id)
    ((status, result),) = signals
    assert (status, result.backend, result.task.queue_name) == (SUCCESSFUL, "reports", "reports")
    assert (found.task, found.status) == (result.task, SUCCESSFUL)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ((["default", "mail"], []), ["default", "mail"]),
        (([], []), ["default"]),  # the queue that the task declares
        (([], ["reports"]), ["reports"]),
        ((["default", "reports"], []), ["default", "reports"]),
    ],
)
async def test_worker_leaves_out_the_queues_that_only_another_backend_has(
    dsn: str,
    pool: asyncpg.Pool,
    monkeypatch: pytest.MonkeyPatch,
    selection: tuple[list[str], list[str]],
    expected: list[str],
) -> None:
    queues, selected = selection
    monkeypatch.setattr(worker.selection, "queues", selected)
    with project(dsn, QUEUES=[]) as shop:
        tasks = {
            "default": {"BACKEND": BACKEND, "QUEUES": queues},
            "reports": {"BACKEND": BACKEND, "QUEUES": ["reports"]},
            "elsewhere": {"BACKEND": BACKEND, "QUEUES": ["mail"], "OPTIONS": {"SCHEMA": "other"}},
        }
        with override_settings(TASKS=tasks):
            shop.add.using(backend="reports", queue_name="reports")  # registers the name
            async with working():
                ((names,),) = await pool.fetch("SELECT names FROM scheduler_workers")
    claimed = {name.partition("@")[2] for name in names if name.startswith(f"{shop.add.module_path}@")}
    assert sorted(claimed & {"default", "mail", "reports"}) == expected


async def test_worker_runs_a_queue_with_a_comma(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with project(dsn, QUEUES=["default", "mail", "a,b"]) as shop:
        monkeypatch.setattr(worker.selection, "queues", ["a,b"])
        async with working() as (scheduler, _):
            other = shop.add.enqueue(1)
            result = await ended(scheduler, shop.add.using(queue_name="a,b").enqueue(1))
            other.refresh()
    assert (result.status, other.status) == (SUCCESSFUL, READY)


async def test_worker_runs_jobs_of_a_former_path_in_all_queues(shop: Any) -> None:
    aliases = ("shop.old.send", "shop.old.notify@fast")
    JobTask(func=renamed, aliases=aliases, **VALUES)
    client = Backend("default", {}).client
    async with working() as (scheduler, _):
        for name in ("shop.old.send", "shop.old.send@default", "shop.old.send@mail", "shop.old.notify@fast"):
            job_id = client.enqueue(name, connection="default")
            await scheduler.get_job_result(job_id)


# -- results -------------------------------------------------------------------------------------------


async def test_worker_runs_tasks_and_keeps_their_values(shop: Any) -> None:
    async with working() as (scheduler, _):
        with received(compat.task_started, compat.task_finished) as signals:
            added = await ended(scheduler, shop.add.enqueue(2, other=3))
            described = await ended(scheduler, shop.describe.enqueue(word="new"))
            asynchronous = await ended(scheduler, shop.describe_async.enqueue("new"))
        worker_id = scheduler.worker_id
    assert (added.status, added.return_value, added.is_finished) == (SUCCESSFUL, 5, True)
    assert added.enqueued_at <= added.started_at == added.last_attempted_at <= added.finished_at
    assert (added.worker_ids, added.attempts, added.errors) == ([worker_id], 1, [])
    assert described.return_value == {
        "word": "new",
        "id": described.id,
        "attempt": 1,
        "workers": [worker_id],
    }
    assert asynchronous.return_value == ["new", asynchronous.id, 1]
    finals = [each for status, each in signals if status == SUCCESSFUL]
    assert [each.id for each in finals] == [added.id, described.id, asynchronous.id]
    assert finals[0].return_value == 5


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("value", ValueError),
        ("exit", SystemExit),
        ("interrupt", KeyboardInterrupt),
        ("group", "OutOfStockError"),
        ("stock", "OutOfStockError"),
        ("abort", None),
    ],
)
async def test_failed_task_has_its_exception(shop: Any, how: str, kind: type | str | None) -> None:
    async with working() as (scheduler, _):
        with received(compat.task_finished) as signals:
            result = await ended(scheduler, shop.fail.using(max_retries=0).enqueue(how))
    assert result.status == FAILED
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    (error,) = result.errors
    if kind is not None:
        assert error.exception_class is getattr(shop, str(kind), kind)
    if how == "stock":
        assert error.traceback.endswith("OutOfStockError: no\nmore\n")
    assert [status for status, _ in signals] == [FAILED]
    assert signals[0][1].errors[0].exception_class_path == error.exception_class_path


async def test_async_task_that_exits_has_failed(shop: Any) -> None:
    async with working() as (scheduler, _):
        with received(compat.task_finished) as signals:
            result = await ended(scheduler, shop.exit_async.enqueue())
    assert result.errors[0].exception_class is SystemExit
    assert [status for status, _ in signals] == [FAILED]


@pytest.mark.parametrize(
    ("how", "kind"), [("object", TypeError), ("nul", PayloadError), ("keys", PayloadError)]
)
@pytest.mark.parametrize("name", ["unserialisable", "unserialisable_async"])
async def test_value_that_json_cannot_represent_fails_the_task(
    shop: Any, name: str, how: str, kind: type
) -> None:
    async with working() as (scheduler, _):
        with received(compat.task_finished) as signals:
            result = await ended(scheduler, getattr(shop, name).enqueue(how))
    assert result.status == FAILED
    assert result.errors[0].exception_class is kind
    assert [status for status, _ in signals] == [FAILED]


@pytest.mark.slow
async def test_retried_task_has_all_attempts_and_one_final_signal(shop: Any, pool: asyncpg.Pool) -> None:
    async with working() as (scheduler, recorder):
        with received(compat.task_finished) as signals:
            result = shop.fail_once.using(max_retries=2).enqueue()
            await recorder.until(JobRetried)
            assert signals == []
            result.refresh()
            assert (result.status, result.attempts, len(result.errors)) == (READY, 1, 1)
            await pool.execute("UPDATE scheduled_jobs SET execution_time = now()")
            await ended(scheduler, result)
    assert result.return_value == [2, 2, 1]
    assert result.worker_ids == [scheduler.worker_id] * 2
    assert result.errors[0].exception_class is shop.OutOfStockError
    assert result.started_at < result.last_attempted_at
    assert [status for status, _ in signals] == [SUCCESSFUL]


async def test_snoozed_and_timed_out_tasks_send_no_final_signal(shop: Any) -> None:
    async with working() as (scheduler, recorder):
        with received(compat.task_finished) as signals:
            slept = shop.sleep_until_cancelled.using(timeout=0.05).enqueue()
            await recorder.until(JobFailed)
            snoozed = shop.fail.enqueue("snooze")
            await ended(scheduler, shop.add.enqueue(1))
            while not shop.fail.get_result(snoozed.id).attempts:  # noqa: ASYNC110 - until it has ended
                await asyncio.sleep(0.01)
            slept.refresh()
    assert [each.task.name for _, each in signals] == ["add"]
    assert slept.errors[0].exception_class is TimeoutError


async def test_cancelled_and_expired_tasks_have_failed(shop: Any, pool: asyncpg.Pool) -> None:
    cancelled, expired = shop.add.enqueue(1), shop.add.using(misfire_grace_time=1).enqueue(1)
    with transaction.atomic():
        Backend("default", {}).client.cancel_job(cancelled.id, connection="default")
    cancelled.refresh()
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'expired', finished_at = now(), error_message = 'late' "
        "WHERE job_id = $1",
        expired.id,
    )
    expired.refresh()
    for result, kind in ((cancelled, "JobCancelledError"), (expired, "JobExpiredError")):
        assert result.status == FAILED
        assert result.errors[0].exception_class.__name__ == kind


async def test_value_that_was_not_kept_raises_the_reason(shop: Any) -> None:
    async with working() as (scheduler, _):
        result = await ended(scheduler, shop.add.using(keep_result=None).enqueue(1))
    assert result.status == SUCCESSFUL
    with pytest.raises(ValueError, match="not available: the result was not kept"):
        _ = result.return_value


def test_unknown_ids_and_jobs_of_others_have_no_result(shop: Any) -> None:
    backend = Backend("default", {})
    other = backend.client.enqueue("billing.send", connection="default")
    for job_id in (str(uuid4()), "123", other, "", "a\x00b", "a" * 3000, None):
        with pytest.raises(compat.TaskResultDoesNotExist):
            backend.get_result(job_id)  # type: ignore[arg-type]
    result = shop.add.enqueue(1)
    assert backend.get_result(UUID(result.id)) == result  # type: ignore[arg-type] # as URLs have them
    with pytest.raises(Exception, match="Task does not match"):
        shop.send.get_result(shop.add.enqueue(1).id)


def test_result_is_read_whatever_the_settings_permit_today(dsn: str) -> None:
    with project(dsn, QUEUES=[]) as shop:
        first = shop.add.using(queue_name="other").enqueue(1)
        backend = Backend("default", {})
        second = backend.client.enqueue(
            f"{shop.add.module_path}@default",
            args=(1,),
            metadata={PRIORITY: 1000},
            connection="default",
        )
        tasks = {"default": {"BACKEND": BACKEND}, "reports": {"BACKEND": BACKEND, "QUEUES": ["reports"]}}
        with override_settings(TASKS=tasks):
            found = compat.task_backends["reports"].get_result(first.id)
            assert (found.task.queue_name, found.backend, found.args) == ("other", "reports", [1])
            found.refresh()
            assert compat.task_backends["default"].get_result(second).task.priority == 1000


async def test_receivers_that_raise_do_not_end_the_attempt(shop: Any) -> None:
    def interrupt(**_: Any) -> None:
        raise LookupError

    signals = (compat.task_started, compat.task_finished)
    for signal in signals:
        signal.connect(interrupt)
    try:
        async with working() as (scheduler, _):
            for task in (shop.add, shop.describe_async):
                result = await ended(scheduler, task.enqueue(1))
                assert result.status == SUCCESSFUL
    finally:
        for signal in signals:
            signal.disconnect(interrupt)


def test_periodic_task_is_registered_on_any_backend(shop: Any) -> None:
    for task in (shop.session, compat.Task(func=shop.session.func, **{**VALUES, "backend": "dummy"})):
        assert periodic(cron="0 3 * * *", dedup_key=task.backend)(task) is task
    names = {key: config.function for key, config in periodic_catalogue.configs().items()}
    path = shop.session.module_path
    assert names == {"default": f"{path}@default", "dummy": path}


def test_time_of_an_id_is_that_of_the_call(shop: Any) -> None:
    before = datetime.now(UTC)
    found = results.enqueued_at(new_job_id(), None)
    assert found is not None
    assert before - timedelta(milliseconds=1) <= found <= datetime.now(UTC)
    assert results.enqueued_at("invoice:7", before) == before
    assert results.enqueued_at(str(uuid4()), before) == before
