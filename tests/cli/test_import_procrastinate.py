"""`pg-scheduler import procrastinate`, on tables that procrastinate has made and filled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobPriority, JobStatus, Scheduler
from pg_scheduler.inspect import Inspector
from tests.cli.conftest import Ran, Read, Run
from tests.support.inside import ExitCode

procrastinate = pytest.importorskip("procrastinate", reason="dev.py has not updated this environment")

NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)

Fill = Callable[[Any], Awaitable[None]]


@pytest.fixture
def store(dsn: str) -> Callable[[Fill], None]:
    """Make the tables of procrastinate, and fill them."""

    async def run(fill: Fill) -> None:
        app = procrastinate.App(
            connector=procrastinate.PsycopgConnector(conninfo=dsn, min_size=1, max_size=1)
        )
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            await fill(app)

    return lambda fill: asyncio.run(run(fill))


@pytest.fixture
def on(call: Run, dsn: str) -> Callable[..., Ran]:
    """Import the store."""

    def run(*arguments: str) -> Ran:
        ran = call("import", "procrastinate", dsn, "--dsn", dsn, "-o", "jsonl", *arguments)
        assert ran.code == 0, ran.err
        return ran

    return run


On = Callable[..., Ran]


async def defer_three(app: Any) -> None:
    """Store jobs of each kind that can be imported: the ids 1, 2 and 3."""
    await app.configure_task("shop.send").defer_async(to="Ada")
    later = app.configure_task("shop.send", schedule_at=NOW + HOUR, queue="mail", priority=60)
    await later.defer_async(to="Bob")
    await app.configure_task("shop.clean", queueing_lock="clean", priority=-1).defer_async()


async def defer_what_stays(app: Any) -> None:
    """Store what is left out, and jobs that have ended."""

    async def ended(timestamp: int) -> None: ...

    sweep = app.task(name="shop.sweep")(ended)
    app.periodic(cron="*/5 * * * *", periodic_id="often")(sweep)
    await app.task(name="shop.ended")(ended).defer_async(timestamp=1)
    await app.run_worker_async(
        wait=False, install_signal_handlers=False
    )  # also defers and runs the periodic one
    await app.configure_task("shop.running").defer_async()
    await app.job_manager.fetch_job(queues=None, worker_id=await app.job_manager.register_worker())
    await app.configure_task("shop.pay", lock="account 7").defer_async()
    await app.configure_task("builtin:procrastinate.builtin_tasks.remove_old_jobs").defer_async(max_hours=1)


def test_waiting_jobs_become_jobs_in_their_order(store: Callable[[Fill], None], on: On, read: Read) -> None:
    store(defer_three)
    ran = on()
    rows = {row["source_id"]: row for row in ran.checked("imported")}
    assert {(row["result"], row["reason"]) for row in rows.values()} == {("imported", None)}
    assert "3 imported, 0 existed, 0 left out" in ran.err
    assert "jobs of shop.clean, shop.send have one attempt" in ran.err
    assert "pass --jobs with each module that registers these functions" in ran.err

    async def check(scheduler: Scheduler) -> None:
        now, later, clean = [await scheduler.get_job(f"procrastinate:{number}") for number in (1, 2, 3)]
        assert now is not None
        assert (now.job_name, now.args, now.kwargs, now.metadata) == ("shop.send", (), {"to": "Ada"}, {})
        assert (now.status, now.misfire_grace_time) == (JobStatus.PENDING, None)
        assert later is not None
        assert (later.execution_time, later.priority) == (NOW + HOUR, JobPriority.CRITICAL)
        assert later.metadata == {"queue": "mail", "priority": 60}
        assert clean is not None
        assert (clean.priority, clean.metadata) == (
            JobPriority.LOW,
            {"priority": -1, "queueing_lock": "clean"},
        )
        assert (
            NOW <= now.execution_time < clean.execution_time <= datetime.now(UTC)
        )  # when they were deferred

    read(check)


def test_dry_run_stores_nothing_and_a_second_import_changes_nothing(
    store: Callable[[Fill], None], on: On, read: Read
) -> None:
    async def count(scheduler: Scheduler) -> Any:
        return await scheduler.db_pool.fetchval("SELECT count(*) FROM scheduled_jobs")

    store(defer_three)
    assert [row["result"] for row in on("--dry-run").checked("imported")] == ["imported"] * 3
    assert read(count) == 0
    on()
    first = read(lambda scheduler: scheduler.get_job("procrastinate:1"))
    assert [row["result"] for row in on().checked("imported")] == ["exists"] * 3
    assert read(count) == 3
    assert read(lambda scheduler: scheduler.get_job("procrastinate:1")) == first


def test_repeated_import_does_not_repeat_a_job_that_has_run_and_was_deleted(
    store: Callable[[Fill], None], on: On, read: Read
) -> None:
    async def delete(scheduler: Scheduler) -> None:
        await scheduler.db_pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'procrastinate:1'")

    store(defer_three)
    on()
    read(delete)
    rows = {row["source_id"]: (row["result"], row["reason"]) for row in on().checked("imported")}
    gone = "an earlier import added it, and it exists no more; pass --again to add it again"
    assert rows == {"1": ("left out", gone), "2": ("exists", None), "3": ("exists", None)}
    assert [row["result"] for row in on("--again").checked("imported")] == ["imported", "exists", "exists"]


def test_job_gets_the_options_of_its_function_from_a_module(
    store: Callable[[Fill], None], on: On, read: Read, tmp_path: Path
) -> None:
    (tmp_path / "moved_shop.py").write_text(
        "from pg_scheduler import job\n\n"
        "@job(name='shop.send', max_retries=5)\nasync def send(to: str) -> None: ...\n\n"
        "@job(name='shop.clean')\nasync def clean(folder: str) -> None: ...\n",
        encoding="utf-8",
    )
    store(defer_three)
    ran = on("--jobs", "moved_shop")
    job = read(lambda scheduler: scheduler.get_job("procrastinate:1"))
    assert (job.max_retries, job.misfire_grace_time) == (5, None)
    left_out = {row["source_id"]: row["reason"] for row in ran.lines if row["result"] == "left out"}
    assert list(left_out) == ["3"]
    assert "folder" in left_out["3"]
    assert "have one attempt" not in ran.err


def test_deadline_of_an_overdue_job_counts_from_the_import(
    store: Callable[[Fill], None], on: On, read: Read, tmp_path: Path
) -> None:
    (tmp_path / "deadline_shop.py").write_text(
        "from pg_scheduler import job\n\n"
        "@job(name='shop.send', deadline=3600)\nasync def send(number: int) -> None: ...\n",
        encoding="utf-8",
    )

    async def defer_overdue(app: Any) -> None:
        for number, delay in enumerate((-24 * HOUR, HOUR)):
            await app.configure_task("shop.send", schedule_at=NOW + delay).defer_async(number=number)

    store(defer_overdue)
    on("--jobs", "deadline_shop")

    overdue = read(lambda scheduler: scheduler.get_job("procrastinate:1"))
    upcoming = read(lambda scheduler: scheduler.get_job("procrastinate:2"))
    assert overdue.execution_time == NOW - 24 * HOUR
    assert NOW + HOUR <= overdue.deadline <= datetime.now(UTC) + HOUR
    assert upcoming.deadline == NOW + 2 * HOUR


def test_job_whose_unique_key_is_taken_is_left_out_with_the_job_that_holds_it(
    store: Callable[[Fill], None], on: On, read: Read, tmp_path: Path
) -> None:
    (tmp_path / "unique_shop.py").write_text(
        "from pg_scheduler import Unique, job\n\n"
        "@job(name='shop.send', unique=Unique())\nasync def send(to: str) -> None: ...\n",
        encoding="utf-8",
    )

    async def defer_twice(app: Any) -> None:
        for to in ("Ada", "Bob", "Ada"):
            await app.configure_task("shop.send").defer_async(to=to)

    store(defer_twice)
    rows = on("--jobs", "unique_shop").checked("imported")
    assert [row["result"] for row in rows] == ["imported", "imported", "left out"]
    assert (rows[2]["id"], rows[2]["due"]) == (None, None)
    assert rows[2]["reason"].startswith("its unique key ")
    assert rows[2]["reason"].endswith(" is taken by procrastinate:1")
    assert read(lambda scheduler: scheduler.get_job("procrastinate:3")) is None
    again = on("--jobs", "unique_shop").checked("imported")
    assert [row["result"] for row in again] == ["exists", "exists", "left out"]


def test_job_that_its_task_rejects_is_left_out_with_the_command_that_adds_it(
    store: Callable[[Fill], None], on: On, tmp_path: Path
) -> None:
    (tmp_path / "strict_shop.py").write_text(
        "from datetime import timedelta\nfrom pg_scheduler import Unique, job\n\n"
        "@job(name='shop.daily', unique=Unique(per=timedelta(days=1)))\nasync def daily() -> None: ...\n\n"
        "@job(name='shop.calm', unique=Unique(debounce=5))\nasync def calm() -> None: ...\n\n"
        "@job(name='shop.send')\nasync def send(to: str) -> None: ...\n",
        encoding="utf-8",
    )

    async def defer_rejected(app: Any) -> None:
        for name in ("shop.daily", "shop.calm", "shop.send"):
            await app.configure_task(name).defer_async()
        await app.configure_task("shop.send").defer_async(to="x" * 1_048_576)

    store(defer_rejected)
    rows = on("--jobs", "strict_shop").checked("imported")
    assert [row["reason"].rpartition("; ")[2] for row in rows] == [
        *["add it by pg-scheduler jobs add"] * 3,
        "store them elsewhere and pass an id or a path",
    ]


def test_job_without_an_equivalent_is_listed_with_the_reason_and_kept(
    store: Callable[[Fill], None], on: On, read: Read, dsn: str
) -> None:
    store(defer_what_stays)
    rows = {row["task"]: row for row in on().checked("imported")}
    assert {row["result"] for row in rows.values()} == {"left out"}
    assert set(rows) == {
        "builtin:procrastinate.builtin_tasks.remove_old_jobs",
        "shop.pay",
        "shop.running",
        "shop.sweep",
    }
    assert "account 7" in rows["shop.pay"]["reason"]
    assert "@job(sequence=...)" in rows["shop.pay"]["reason"]
    assert "running" in rows["shop.running"]["reason"]
    assert (rows["shop.sweep"]["source_id"], rows["shop.sweep"]["id"]) == ("shop.sweep[often]", None)
    assert "@periodic" in rows["shop.sweep"]["reason"]

    with_locks = {row["task"]: row for row in on("--ignore-locks").checked("imported")}
    assert with_locks["shop.pay"]["result"] == "imported"
    (job,) = read(lambda scheduler: scheduler.list_jobs())
    assert (job.job_name, job.metadata) == ("shop.pay", {"lock": "account 7"})

    async def count(_: Scheduler) -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval("SELECT count(*) FROM procrastinate_jobs")
        finally:
            await connection.close()

    assert read(count) == 5


def test_jobs_with_a_lock_join_the_sequence_of_their_function(
    store: Callable[[Fill], None], on: On, read: Read, tmp_path: Path
) -> None:
    (tmp_path / "sequence_shop.py").write_text(
        "from pg_scheduler import job\n\n"
        "@job(name='shop.pay', sequence=lambda account: account)\nasync def pay(account: int) -> None: ...\n",
        encoding="utf-8",
    )

    async def defer_payments(app: Any) -> None:
        for account in (7, 8, 7, 7):
            await app.configure_task("shop.pay", lock=f"account {account}").defer_async(account=account)

    store(defer_payments)
    rows = on("--jobs", "sequence_shop", "--ignore-locks").checked("imported")
    assert [row["result"] for row in rows] == ["imported"] * 4
    sequences = read(lambda scheduler: Inspector(scheduler).sequences()).items
    waiting = {(sequence.name, sequence.key): sequence.waiting for sequence in sequences}
    assert waiting == {("shop.pay", "7"): 3, ("shop.pay", "8"): 1}


def test_jobs_that_were_deferred_or_are_due_together_keep_their_order(
    store: Callable[[Fill], None], on: On, read: Read
) -> None:
    # The ids are 1 to 11 and 12 to 22, and as texts "10" is less than "2".
    async def defer_batches(app: Any) -> None:
        for task in (app.configure_task("shop.pay"), app.configure_task("shop.pay", schedule_at=NOW + HOUR)):
            await task.batch_defer_async(*({"number": number} for number in range(11)))

    store(defer_batches)
    assert len(on().checked("imported")) == 22

    async def numbers(scheduler: Scheduler) -> list[int]:
        jobs = [await scheduler.get_job(f"procrastinate:{number}") for number in range(1, 23)]
        ordered = sorted((job.execution_time, job.job_id, job.kwargs["number"]) for job in jobs if job)
        return [number for *_, number in ordered]

    assert read(numbers) == [*range(11), *range(11)]


def test_jobs_of_a_lock_are_due_in_the_order_in_which_procrastinate_runs_them(
    store: Callable[[Fill], None], on: On, read: Read
) -> None:
    # Jobs 1, 3 and 4 are to start later, as for a retry, and jobs 5 and 6 have a priority.
    jobs = ((HOUR, 0), (None, 0), (HOUR / 2, 0), (2 * HOUR, 0), (-HOUR, 5), (None, 5))
    order: list[int] = []

    async def defer_jobs(app: Any) -> None:
        for delay, priority in jobs * 2:
            schedule_at = None if delay is None else NOW + delay
            task = app.configure_task("shop.pay", lock="7", priority=priority, schedule_at=schedule_at)
            await task.defer_async()
        # The second half has a lock of its own. Procrastinate runs it here, as if all times had come.
        await app.connector.execute_query_async(
            "UPDATE procrastinate_jobs SET lock = '8', queue_name = 'now', scheduled_at = NULL WHERE id > 6"
        )
        worker_id = await app.job_manager.register_worker()
        while job := await app.job_manager.fetch_job(queues=["now"], worker_id=worker_id):
            order.append(job.id - len(jobs))
            await app.job_manager.finish_job(job, procrastinate.jobs.Status.SUCCEEDED, delete_job=True)

    store(defer_jobs)
    assert {row["result"] for row in on("--dry-run").lines} == {"left out"}
    assert [row["result"] for row in on("--ignore-locks").checked("imported")] == ["imported"] * len(jobs)

    async def due_times(scheduler: Scheduler) -> dict[int, datetime]:
        waiting_jobs = await scheduler.list_jobs()
        return {int(job.job_id.removeprefix("procrastinate:")): job.execution_time for job in waiting_jobs}

    due = read(due_times)
    assert order == [5, 6, 1, 2, 3, 4]
    assert sorted(due, key=due.__getitem__) == order
    # Each job is due at its own time if no job before it is due later.
    delays = [(due[number] - NOW - HOUR) / timedelta(microseconds=1) for number in (1, 2, 3)]
    assert delays == [0, 1, 2]
    assert (due[4], due[5]) == (NOW + 2 * HOUR, NOW - HOUR)


def test_tables_in_a_schema_are_read(store: Callable[[Fill], None], on: On, dsn: str) -> None:
    store(defer_three)

    async def move() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute('CREATE SCHEMA "old queue"')
        for table in ("jobs", "events", "periodic_defers", "workers"):
            await connection.execute(f'ALTER TABLE procrastinate_{table} SET SCHEMA "old queue"')
        await connection.close()

    asyncio.run(move())
    rows = on("--table-schema", "old queue").checked("imported")
    assert [row["result"] for row in rows] == ["imported"] * 3


@pytest.mark.parametrize(
    ("url", "problem", "code"),
    [
        (None, "procrastinate_jobs", ExitCode.USAGE),
        ("postgresql://nobody@127.0.0.1:1/none", "127.0.0.1", ExitCode.UNAVAILABLE),
        ("mysql://localhost/old", "postgresql://", ExitCode.USAGE),
        ("nope", "postgresql://", ExitCode.USAGE),
    ],
)
def test_store_that_cannot_be_read_is_an_error(
    call: Run, dsn: str, url: str | None, problem: str, code: ExitCode
) -> None:
    ran = call("import", "procrastinate", url or dsn, "--dsn", dsn)
    assert ran.code == code
    assert "the job store cannot be read" in ran.err
    assert problem in ran.err
