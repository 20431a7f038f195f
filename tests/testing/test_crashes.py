"""`crash_everywhere` finds jobs whose end depends on where their worker crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    Chunk,
    ConflictResolution,
    Connection,
    JobStatus,
    RetryPolicy,
    Scheduler,
    Sleep,
    StepFailedError,
    Unique,
    Wait,
    call,
    current_job,
    embedded,
    job,
)
from pg_scheduler.jobs.outcome import RowChange
from pg_scheduler.sync import StepConnection, current_scheduler, current_steps
from pg_scheduler.testing import CrashDifference, CrashReport, crash_everywhere
from pg_scheduler.testing.databases import temporary_database
from pg_scheduler.worker.outcome_statements import ResultRepository
from tests.support import inside
from tests.support.inside import Claim, row_of_retries
from tests.support.stories import LONG, NIGHTLY

pytestmark = pytest.mark.slow  # the job runs once for each of its statements

Pool = asyncpg.Pool
CrashEverywhere = Callable[..., Awaitable[CrashReport]]

IGNORE = ConflictResolution.IGNORE
INSERT = "INSERT INTO effect VALUES ($1)"
INSERT_ONCE = "INSERT INTO effect SELECT $1::text WHERE NOT EXISTS (SELECT FROM effect WHERE name = $1)"


@contextmanager
def temporary_dsn(server: embedded.Server, template: str) -> Iterator[str]:
    with temporary_database(server, template) as name:
        yield server.dsn(name)


@pytest.fixture
def crash(server: embedded.Server, template: str) -> CrashEverywhere:
    """`crash_everywhere()`, which observes a table of names."""
    database = partial(temporary_dsn, server, template)
    return partial(crash_everywhere, database, arrange=create_table, observe=read_table)


async def create_table(pool: Pool) -> None:
    await pool.execute("CREATE TABLE effect (name text)")


async def read_table(pool: Pool) -> list[str]:
    return [row["name"] for row in await pool.fetch("SELECT name FROM effect ORDER BY name")]


async def execute(statement: str, *args: Any) -> None:
    await current_job().pool.execute(statement, *args)


async def insert(*names: str) -> None:
    for name in names:
        await execute(INSERT, name)


async def insert_once(*names: str) -> None:
    for name in names:
        await execute(INSERT_ONCE, name)


# -- what it finds -----------------------------------------------------------------------------------------


async def test_job_of_two_plain_inserts_is_reported_with_statement_and_states(crash: CrashEverywhere) -> None:
    with pytest.raises(CrashDifference) as raised:
        await crash(insert, args=("debit", "credit"))
    difference = raised.value
    assert (difference.moment, difference.statement) == ("after", INSERT)
    assert (difference.expected.status, difference.found.status) == (JobStatus.COMPLETED,) * 2
    assert (difference.expected.observed, difference.found.observed) == (
        ["credit", "debit"],
        ["credit", "debit", "debit"],
    )
    assert str(difference) == (
        f"a crash after the statement {INSERT!r} changes how the job ends\n"
        "  without a crash: completed, result None, observed ['credit', 'debit']\n"
        "  after the crash: completed, result None, observed ['credit', 'debit', 'debit']"
    )


async def test_insert_that_is_repeated_after_the_commit_is_reported(crash: CrashEverywhere) -> None:
    async def transfer() -> None:
        async with current_job().pool.acquire() as connection, connection.transaction():
            await connection.execute(INSERT, "debit")
            await connection.execute(INSERT, "credit")

    with pytest.raises(CrashDifference) as raised:
        await crash(transfer)
    assert (raised.value.moment, raised.value.statement) == ("after", "COMMIT;")
    assert raised.value.found.observed == ["credit", "credit", "debit", "debit"]


async def test_check_outside_of_the_transaction_that_it_guards_is_reported(crash: CrashEverywhere) -> None:
    """The job marks itself as begun and is not repeated then, so a crash loses what comes after the mark."""

    async def begin_once() -> None:
        pool = current_job().pool
        if "begun" not in await read_table(pool):
            await pool.execute(INSERT, "begun")
            await pool.execute(INSERT, "paid")

    with pytest.raises(CrashDifference) as raised:
        await crash(begin_once)
    assert raised.value.found.observed == ["begun"]


async def test_lost_wake_up_of_another_job_is_reported(crash: CrashEverywhere) -> None:
    """The flag is committed before the job that it promises, which a crash in between loses."""

    async def place_order() -> None:
        scheduler = current_job().scheduler
        if "order" not in await read_table(scheduler.db_pool):
            await scheduler.db_pool.execute(INSERT, "order")
            await scheduler.enqueue(insert_once, args=("receipt",))

    with pytest.raises(CrashDifference) as raised:
        await crash(place_order)
    assert raised.value.statement == INSERT
    assert (raised.value.expected.observed, raised.value.found.observed) == (["order", "receipt"], ["order"])


async def test_other_result_after_a_crash_is_reported_although_it_has_expired(crash: CrashEverywhere) -> None:
    async def number_attempt() -> int:
        await insert_once("a")
        return current_job().attempt

    registered = job(name="crashes.number_attempt", keep_result=timedelta(seconds=1))(number_attempt)
    with pytest.raises(CrashDifference) as raised:
        await crash(registered)
    assert (raised.value.expected.result, raised.value.found.result) == (1, 2)


async def test_job_that_one_crash_fails_is_reported(crash: CrashEverywhere) -> None:
    with pytest.raises(CrashDifference) as raised:
        await crash(insert_once, max_crashes=1)
    assert raised.value.found.status is JobStatus.FAILED


# -- what passes -------------------------------------------------------------------------------------------


async def test_idempotent_job_passes_at_every_statement(crash: CrashEverywhere) -> None:
    report = await crash(insert_once, args=("a", "b"))
    assert report.statements == ("exchange_jobs", INSERT_ONCE, INSERT_ONCE, "exchange_jobs")
    assert (report.points, report.most(insert_once), report.most("another")) == (8, 2, 0)


async def test_statement_of_the_first_run_only_has_no_crash(crash: CrashEverywhere) -> None:
    cache: list[Any] = []

    async def read_once() -> None:
        if not cache:
            cache.extend(await current_job().pool.fetch("SELECT 1"))
        await insert_once("a")

    report = await crash(read_once)
    assert "SELECT 1" in report.statements
    assert report.points == 2 * (len(report.statements) - 1)


async def test_transaction_of_a_crashed_worker_is_rolled_back_and_its_locks_are_free(
    crash: CrashEverywhere,
) -> None:
    async def transfer() -> None:
        async with current_job().pool.acquire() as connection:
            if not await connection.fetchval("SELECT pg_try_advisory_lock(1)"):
                await connection.execute(INSERT, "locked")
            async with connection.transaction():
                if not await connection.fetch("SELECT FROM effect"):
                    await connection.execute(INSERT, "debit")
                    await connection.execute(INSERT, "credit")

    report = await crash(transfer)
    assert report.points == 2 * 8


async def test_code_of_a_crashed_worker_writes_nothing_more(crash: CrashEverywhere) -> None:
    stray = set[asyncio.Task[None]]()

    async def cling() -> None:
        began = asyncio.Event()

        async def insert_later() -> None:
            await began.wait()
            await insert_once("b")

        stray.add(task := asyncio.create_task(insert_later()))
        try:
            await insert_once("a")
            began.set()
            await task
        except asyncio.CancelledError:
            began.set()
            await insert("cancelled")
        finally:
            await insert_once("finally")

    assert (await crash(cling)).most(cling) == 2
    await asyncio.gather(*stray, return_exceptions=True)


async def test_retry_and_jobs_that_follow_are_part_of_the_run(crash: CrashEverywhere) -> None:
    async def follow() -> None:
        scheduler = current_job().scheduler
        if not current_job().retry_count:
            raise ConnectionError("no answer")
        if await scheduler.get_job("receipt") is None:
            await scheduler.enqueue(insert_once, args=("receipt",), job_id="receipt")

    report = await crash(job(name="crashes.follow", max_retries=1)(follow))
    assert (report.most(follow), report.most(insert_once)) == (3, 2)
    assert "settle_jobs" in report.statements, "the first attempt fails"


@NIGHTLY
async def test_others_act_at_their_times_whatever_crashes(crash: CrashEverywhere) -> None:
    async def approve(scheduler: Scheduler) -> None:
        assert scheduler.db_pool is not None
        await scheduler.db_pool.execute(INSERT, "approved")

    async def poll() -> None:
        if "approved" not in await read_table(current_job().pool):
            raise LookupError("not approved")

    polling = job(name="crashes.poll", max_retries=1)(poll)
    report = await crash(polling, at={timedelta(seconds=30): approve})
    assert INSERT not in report.statements
    assert report.most(polling) == 3


async def test_statements_of_a_job_in_a_thread_are_those_of_its_attempt(crash: CrashEverywhere) -> None:
    @job(name="crashes.enqueue_twice", executor="thread")
    def enqueue_twice() -> None:
        for name in ("a", "a"):
            current_scheduler().enqueue(insert_once, args=(name,), job_id=name, conflict_resolution=IGNORE)

    report = await crash(enqueue_twice)
    assert report.statements.count("enqueue_job") == 2
    assert (report.most(enqueue_twice), report.most(insert_once)) == (2, 2)


async def test_failed_job_passes_if_that_is_expected(crash: CrashEverywhere) -> None:
    async def fail() -> None:
        raise ValueError("always")

    assert (await crash(fail, status="failed")).points


async def test_settings_and_schema_are_those_of_the_scheduler(crash: CrashEverywhere) -> None:
    async def copy_rows() -> None:
        pool = current_job().pool
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("DELETE FROM effect")
            await connection.copy_records_to_table("effect", records=[("a",), ("b",)])

    report = await crash(copy_rows, lease=timedelta(seconds=10), until=timedelta(seconds=20))
    assert report.statements[2:4] == ("DELETE FROM effect", "COPY effect")


# -- durable jobs ------------------------------------------------------------------------------------------


@job(name="crashes.transfer", max_retries=1, keep_result=timedelta(days=1))
async def transfer_and_complete(*names: str) -> None:
    me = current_job()
    async with me.completing() as connection:
        for name in names:
            await connection.execute(INSERT, name)
        await me.scheduler.enqueue(insert_once, args=("receipt",), connection=connection)
        me.set_result({"inserted": len(names)})


@NIGHTLY
async def test_plain_inserts_pass_in_the_transaction_that_completes(
    crash: CrashEverywhere,
) -> None:
    report = await crash(transfer_and_complete, args=("debit", "credit"))
    assert {INSERT, "COMMIT;"} <= {*report.statements}
    assert (report.most(transfer_and_complete), report.most(insert_once)) == (2, 2)


async def test_job_that_completes_on_a_connection_of_its_own_passes(crash: CrashEverywhere) -> None:
    async def insert_and_complete() -> None:
        me = current_job()
        async with me.pool.acquire() as connection, connection.transaction():
            await connection.execute(INSERT, "debit")
            async with me.completing(connection=connection):
                await connection.execute(INSERT, "credit")

    assert (await crash(insert_and_complete)).points >= 12


@NIGHTLY
async def test_completion_apart_from_the_writes_is_reported(
    crash: CrashEverywhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A completion that is committed before the transaction of the job loses its writes."""
    complete_own = ResultRepository.complete_own

    async def complete_before(
        self: ResultRepository, claim: Claim, change: RowChange, worker_id: str, _: object, *, is_own: bool
    ) -> bool:
        async with self._statements.transaction() as transaction:
            return await complete_own(self, claim, change, worker_id, transaction, is_own=is_own)

    monkeypatch.setattr(ResultRepository, "complete_own", complete_before)
    with pytest.raises(CrashDifference) as raised:
        await crash(transfer_and_complete, args=("debit", "credit"))
    assert (raised.value.found.status, raised.value.found.observed) == (JobStatus.COMPLETED, [])


async def test_heartbeats_of_a_slow_worker_hide_no_statement(
    crash: CrashEverywhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs that crash take so long that a heartbeat follows each statement of the attempt."""
    arrived = 0

    async def insert_in_two_transactions() -> None:
        nonlocal arrived
        arrived += 1
        if arrived == 2:
            inside.replace(monkeypatch, crashing_poll_interval_s=0.0)
        for _ in range(5):
            await execute("SELECT 1")
        await insert("a", "b")

    with pytest.raises(CrashDifference) as raised:
        await crash(insert_in_two_transactions)
    assert raised.value.found.observed == ["a", "a", "b"]


async def ship(connection: asyncpg.Connection, item: str) -> None:
    await connection.execute(INSERT, item)


async def fetch_quote(item: str) -> int:
    return len(item)


@job(name="crashes.order", max_retries=1, keep_result=timedelta(days=1))
async def order(item: str) -> int:
    steps = current_job().steps
    quote = await steps.run("quote", fetch_quote, item)
    await steps.sleep("cool-off", timedelta(days=3))
    await steps.transaction("ship", ship, item)
    return quote


@NIGHTLY
async def test_job_of_steps_that_sleeps_passes(crash: CrashEverywhere) -> None:
    report = await crash(order, args=("lamp",), until=timedelta(days=4))
    assert report.statements.count("store_step") == 3
    assert (report.most(fetch_quote), report.most(ship), report.most(order)) == (2, 2, 3)


def ship_plainly(connection: StepConnection, item: str) -> None:
    connection.execute(INSERT, item)


def fetch_quote_plainly(item: str) -> int:
    return len(item)


@job(name="crashes.order_plainly", max_retries=1, keep_result=timedelta(days=1))
def order_plainly(item: str) -> int:
    steps = current_steps()
    quote = steps.run("quote", fetch_quote_plainly, item)
    with steps.cursor("lines", start=0) as cursor:
        cursor.save(1)
    steps.sleep("cool-off", timedelta(days=3))
    steps.transaction("ship", ship_plainly, item)
    return quote


@NIGHTLY
async def test_job_of_steps_in_a_thread_passes(crash: CrashEverywhere) -> None:
    report = await crash(order_plainly, args=("lamp",), until=timedelta(days=4))
    assert report.statements.count("store_step") == 4
    assert report.most(fetch_quote_plainly) == report.most(ship_plainly) == 2


@job(name="crashes.wait_for_approval", max_retries=1, keep_result=timedelta(days=1))
async def wait_for_approval() -> str:
    steps = current_job().steps
    await steps.sleep("cool-off", timedelta(days=1))
    try:
        name = str(await steps.wait("approval", timeout=timedelta(days=1)))
    except TimeoutError:
        name = "nobody"
    await steps.transaction("ship", ship, name)
    return name


async def decide() -> list[str]:
    """Wait for the first of two, and again for one of them; with a reminder if `LONG`."""
    steps = current_job().steps
    winner = await steps.first("decision", Wait("approval"), Sleep("limit", timedelta(hours=1)))
    names = [winner.name]
    if LONG:
        try:
            await steps.wait("approval", timeout=timedelta(hours=1))
        except TimeoutError:
            names.append("reminded")
    names.append(str(await steps.wait("approval")))
    await steps.transaction("ship", ship, " ".join(names))
    return names


async def test_job_that_waits_for_the_first_of_several_and_again_passes(crash: CrashEverywhere) -> None:
    seen: list[list[str]] = []

    async def approve(scheduler: Scheduler) -> None:
        assert await scheduler.signal("crash_everywhere", "approval", "ann")

    async def observe(pool: Pool) -> list[str]:
        seen.append(await read_table(pool))
        return seen[-1]

    at, until = {timedelta(hours=12): approve}, timedelta(days=1)
    report = await crash(decide, at=at, until=until, observe=observe)
    assert seen[0] == ["limit reminded ann" if LONG else "limit ann"]
    assert report.most(ship) == 2


@NIGHTLY
@pytest.mark.parametrize(
    ("hours", "expected"),
    [(36, "ann"), *([(12, "ann"), (60, "nobody")] if LONG else [])],
    ids=["during the wait", *(["before the wait", "after it"] if LONG else [])],
)
async def test_job_that_waits_for_a_signal_passes(crash: CrashEverywhere, hours: int, expected: str) -> None:
    seen: list[list[str]] = []

    async def approve(scheduler: Scheduler) -> None:
        is_stored = await scheduler.signal("crash_everywhere", "approval", "ann")
        assert is_stored == (expected == "ann")

    async def observe(pool: Pool) -> list[str]:
        seen.append(await read_table(pool))
        return seen[-1]

    at, until = {timedelta(hours=hours): approve}, timedelta(days=3)
    report = await crash(wait_for_approval, at=at, until=until, observe=observe)
    assert seen[0] == [expected]
    assert report.most(ship) == 2
    assert ("look_at_waits" in report.statements) == (hours > 24), "the wait suspended the job"


async def receive_orders() -> list[str]:
    """Receive a message after a timeout; each of the two ships once."""
    steps = current_job().steps
    received: list[str] = []
    while len(received) < 2:
        try:
            message = str(await steps.receive("orders", timeout=timedelta(hours=10)))
        except TimeoutError:
            message = "timeout"
        received.append(message)
        await steps.transaction(f"ship-{len(received)}", ship, message)
    return received


@NIGHTLY
async def test_job_that_receives_messages_passes(crash: CrashEverywhere) -> None:
    seen: list[list[str]] = []

    async def send(scheduler: Scheduler) -> None:
        for value in ("late", "unread"):
            assert await scheduler.send("crash_everywhere", "orders", value)

    async def observe(pool: Pool) -> list[str]:
        seen.append(await read_table(pool))
        return seen[-1]

    at, until = {timedelta(hours=12): send}, timedelta(days=1)
    report = await crash(receive_orders, at=at, until=until, observe=observe)
    assert seen[0] == ["late", "timeout"]
    assert report.most(ship) == 3


async def double(number: int) -> int:
    await insert_once(f"{number}")
    return 2 * number


@job(name="crashes.parent", max_retries=1, keep_result=timedelta(days=1))
async def parent() -> list[int]:
    return await current_job().steps.gather("all", [call(double, 1), call(double, 2)])


@NIGHTLY
async def test_job_that_waits_for_children_passes(crash: CrashEverywhere) -> None:
    report = await crash(parent)
    assert report.statements.count("find_children") == 1
    assert report.most(double) <= 4, "both run when the worker crashes"


@job(name="crashes.member", max_retries=1)
async def member() -> None:
    await current_job().steps.wait("never")


@job(name="crashes.clean_up", max_retries=1)
async def clean_up(job_id: str, steps: list[dict[str, Any]], **_: Any) -> None:
    await insert_once(*(f"{job_id}: {step['name']} {step['value']}" for step in steps))


@job(name="crashes.family", max_retries=1, on_cancel="crashes.clean_up")
async def family() -> None:
    await current_job().steps.child("member", call(member))


async def read_jobs(pool: Pool) -> list[Any]:
    rows = await pool.fetch("SELECT job_id, status FROM scheduled_jobs ORDER BY job_id")
    return [*await read_table(pool), *(tuple(row) for row in rows)]


@NIGHTLY
async def test_family_is_cancelled_whole_and_cleaned_up_once(crash: CrashEverywhere) -> None:
    seen: list[list[Any]] = []

    async def cancel(scheduler: Scheduler) -> None:
        assert await scheduler.cancel_job("crash_everywhere", children=True) == 2

    async def observe(pool: Pool) -> list[Any]:
        seen.append(await read_jobs(pool))
        return seen[-1]

    at, until = {timedelta(minutes=2): cancel}, timedelta(minutes=4)
    report = await crash(family, at=at, until=until, observe=observe, status="cancelled")
    assert report.most(family) == report.most(clean_up) == 2
    assert seen[0] == [
        "crash_everywhere: member ['crash_everywhere:member']",
        ("crash_everywhere", "cancelled"),
        ("crash_everywhere:member", "cancelled"),
        ("crash_everywhere:on_cancel", "completed"),
    ]


@job(name="crashes.bounded", max_retries=1, deadline=timedelta(minutes=3))
async def bounded() -> None:
    await insert_once("begun")
    await current_job().steps.wait("never")


@NIGHTLY
async def test_job_ends_at_its_deadline_wherever_the_worker_crashes(crash: CrashEverywhere) -> None:
    async def observe(pool: Pool) -> list[Any]:
        errors = "SELECT error_message, finished_at > execution_time FROM scheduled_jobs"
        return [*await read_table(pool), *(tuple(row) for row in await pool.fetch(errors))]

    report = await crash(bounded, until=timedelta(minutes=4), observe=observe, status="failed")
    assert report.most(bounded) == 2


@job(name="crashes.book", sequence=lambda account, _: account, max_retries=1)
async def book(account: str, number: int) -> None:
    await insert_once(f"{account} {number}")
    if number == 1 and not current_job().retry_count:
        raise ConnectionError("the first booking fails once")


@NIGHTLY
async def test_jobs_of_a_sequence_run_in_order_wherever_the_worker_crashes(crash: CrashEverywhere) -> None:
    seen: list[list[str]] = []

    async def add(scheduler: Scheduler) -> None:
        await scheduler.enqueue(book, args=("acme", 2), job_id="second")

    async def observe(pool: Pool) -> list[str]:
        # The order in which the rows were inserted, as no row is deleted.
        seen.append([row["name"] for row in await pool.fetch("SELECT name FROM effect ORDER BY ctid")])
        return seen[-1]

    at, until = {timedelta(0): add}, timedelta(minutes=3)
    report = await crash(book, args=("acme", 1), at=at, until=until, observe=observe)
    assert seen[0] == ["acme 1", "acme 2"]
    assert "hand_over" in report.statements
    assert report.most(book) == 4


@job(name="crashes.index", unique=Unique(args=("document",), debounce=70, max_wait=900), max_retries=1)
async def index(document: str, version: int) -> None:
    await insert_once(f"{document} {version}")


@NIGHTLY
async def test_debounced_calls_become_one_job_wherever_the_worker_crashes(crash: CrashEverywhere) -> None:
    async def save_often() -> None:
        for version in (1, 2):
            await current_job().scheduler.enqueue(index, args=("report", version))

    seen: list[list[str]] = []

    async def observe(pool: Pool) -> list[str]:
        seen.append(await read_table(pool))
        return seen[-1]

    saving = job(name="crashes.save_often", max_retries=1)(save_often)
    report = await crash(saving, until=timedelta(minutes=4), observe=observe)
    assert seen[0] == ["report 2"]
    assert report.most(index) == 2


async def test_step_with_two_plain_inserts_is_reported(crash: CrashEverywhere) -> None:
    async def insert_in_a_step() -> None:
        await current_job().steps.run("insert", insert, "a", "b")

    with pytest.raises(CrashDifference):
        await crash(insert_in_a_step)


@job(name="crashes.speak", max_retries=1)
async def speak(words: str) -> None:
    stream = current_job().stream("words")
    for number, word in enumerate(words.split(), 1):
        await stream.append(word, number=number)
        # Each word is a statement of its own, so that crashes come between them.
        await stream.flush()
    await current_job().publish("count", len(words.split()))
    await current_job().steps.sleep("night", timedelta(days=1))
    await stream.append("end", number=4)


async def read_streams(pool: Pool) -> list[Any]:
    rows = await pool.fetch("SELECT name, number, value FROM scheduler_streams ORDER BY name, number")
    return [tuple(row) for row in rows]


@NIGHTLY
async def test_items_with_numbers_are_the_same_wherever_the_worker_crashes(crash: CrashEverywhere) -> None:
    report = await crash(speak, args=("a b c",), until=timedelta(days=2), observe=read_streams)
    assert report.statements.count("append_items") >= 5
    assert report.most(speak) == 3


async def test_items_without_numbers_are_reported(crash: CrashEverywhere) -> None:
    """The attempt after a crash appends once more, behind what is stored."""

    async def repeat() -> None:
        await current_job().stream("words").append("again")
        await current_job().stream("words").flush()

    with pytest.raises(CrashDifference):
        await crash(job(name="crashes.repeat", max_retries=1)(repeat), observe=read_streams)


# -- mistakes ----------------------------------------------------------------------------------------------


async def test_job_that_does_not_end_is_refused_with_a_remedy(crash: CrashEverywhere) -> None:
    async def wait() -> None:
        raise LookupError("not yet")

    waiting = job(name="crashes.wait", max_retries=20)(wait)
    with pytest.raises(
        ValueError, match=r"(?s)job crashes.wait is pending after 0:01:00, not completed: .*not yet"
    ):
        await crash(waiting, until=timedelta(minutes=1))
    with pytest.raises(ValueError, match=r"(?s)is failed after 1 day, 0:00:00.*not yet; correct the job"):
        await crash(wait)


async def charge_after(failures: int, step: str) -> str:
    """Fail until so many failures of the step are stored, as a service that is down for a while."""
    count_failures = "SELECT (value ->> 'count')::integer FROM scheduler_steps WHERE name = $1"
    count = await current_job().pool.fetchval(count_failures, row_of_retries(step)) or 0
    if count < failures:
        raise ConnectionError("down")
    return f"charged after {count}"


@NIGHTLY
async def test_count_of_the_failures_of_a_step_survives_every_crash(crash: CrashEverywhere) -> None:
    """The first step succeeds with its last retry, and the second one has none."""
    policy = RetryPolicy(base=timedelta(minutes=1), jitter=0)

    async def place() -> None:
        steps = current_job().steps
        text = await steps.run("bank", charge_after, 1, "bank", retry=policy, max_retries=1)
        try:
            await steps.transaction("other", charge_in_transaction, retry=policy, max_retries=0)
        except StepFailedError as error:
            await insert_once(text, f"refused: {error.error}")

    async def charge_in_transaction(connection: Connection) -> None:
        await connection.execute(INSERT, "never")
        await charge_after(9, "other")

    report = await crash(place, until=timedelta(hours=1))
    assert report.points > 20
    assert report.most(charge_after) <= 3 + 1, "one call is repeated"


async def test_end_that_differs_without_a_crash_is_refused(crash: CrashEverywhere) -> None:
    numbers = count()

    async def insert_number() -> None:
        await insert(f"{next(numbers)}")

    with pytest.raises(ValueError, match=r"observed \['0'\], then .*\['1'\]; let observe= leave out"):
        await crash(insert_number)


async def test_error_of_the_caller_is_raised_with_the_run_in_which_it_occurred(
    crash: CrashEverywhere,
) -> None:
    async def fail(_: object) -> None:
        raise KeyError("total")

    for name in ("arrange", "observe"):
        with pytest.raises(KeyError) as raised:
            await crash(insert_once, **{name: fail})
        assert raised.value.__notes__ == ["raised in a run without a crash"]
    with pytest.raises(KeyError):
        await crash(insert_once, at={timedelta(0): fail})


async def test_chunk_of_repeatable_work_ends_as_without_a_crash(
    crash: CrashEverywhere, restored_catalogues: None
) -> None:
    @job(name="crashes.chunk", chunk=10)
    async def index(chunk: Chunk[str]) -> None:
        for member in chunk:
            await chunk.pool.execute(INSERT_ONCE, member.item)

    report = await crash(index, args=("a",))
    assert INSERT_ONCE in report.statements
    assert report.most(index) == 2


async def test_invalid_arguments_are_refused(crash: CrashEverywhere) -> None:
    with pytest.raises(LookupError, match=r"no function is registered as 'shop\.order'; pass the function"):
        await crash("shop.order")
    with pytest.raises(TypeError, match=r"missing a required argument"):
        await crash(read_table)
    with pytest.raises(ValueError, match=r"at=120 s is after until=60 s; pass a later until="):
        await crash(insert_once, until=timedelta(minutes=1), at={timedelta(minutes=2): create_table})
    with pytest.raises(TypeError, match=r"until must be a timedelta, not NoneType: None"):
        await crash(insert_once, until=None)
    with pytest.raises(TypeError, match="clock"):
        await crash(insert_once, clock=None)
    with pytest.raises(ValueError, match=r"status must be one of .*'completed'.*, not 'done'"):
        await crash(insert_once, status="done")


# -- databases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["difference", "cancellation"])
async def test_databases_are_dropped_whatever_happens(
    server: embedded.Server, template: str, is_cancelled: bool
) -> None:
    created: list[str] = []
    running = asyncio.Event()

    async def note(pool: Pool) -> None:
        created.append(await pool.fetchval("SELECT current_database()"))
        await create_table(pool)

    async def insert_and_wait() -> None:
        await insert("a")
        running.set()
        if is_cancelled:
            await asyncio.Event().wait()

    database = partial(temporary_dsn, server, template)
    crashing = asyncio.create_task(
        crash_everywhere(database, insert_and_wait, arrange=note, observe=read_table)
    )
    await running.wait()
    if is_cancelled:
        crashing.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else CrashDifference):
        await crashing
    connection = await asyncpg.connect(server.dsn())
    left = await connection.fetchval("SELECT count(*) FROM pg_database WHERE datname = ANY ($1)", created)
    await connection.close()
    assert created
    assert left == 0
