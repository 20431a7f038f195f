"""The pages that help to decide keep their word: what they draw and state is what jobs do."""

from __future__ import annotations

import asyncio
import re
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    Chunk,
    ConfigurationError,
    ConflictResolution,
    JobStatus,
    Limit,
    Overlap,
    Retry,
    Scheduler,
    Share,
    Unique,
    current_job,
)
from pg_scheduler.events import JobBlocked, JobCompleted, JobRetried
from pg_scheduler.triggers import Every
from tests.docs.snippets import ROOT, run_python, snippets_of
from tests.repository.test_command_page import parse
from tests.support.worker import PATIENCE, Gate, Recorder
from tools.diagrams import FIGURES, read_rows, read_source

ONCE = ROOT / "docs/concepts/once-or-one-at-a-time.md"
WHERE = ROOT / "docs/concepts/where-to-run.md"
Pool = asyncpg.Pool

OPTIONS: dict[str, dict[str, Any]] = {
    "no option": {},
    "unique": {"unique": Unique(args=("account",))},
    "limit": {"limits": [Limit(max_running=1, key=lambda account, _: account)]},
    "sequence": {"sequence": lambda account, _: account},
    "share": {"share": Share(key=lambda account, _: account)},
}
"""What the rows of the drawing stand for."""


def drawing() -> dict[str, list[set[str]]]:
    """Return the jobs of each minute by the name of the option, as the page draws them.

    A1x is an attempt of A1 that fails.
    """
    source = read_source((FIGURES / f"{ONCE.stem}.txt").read_text(encoding="utf-8"))
    first, last = map(int, source.settings["range"].split())
    minutes: dict[str, list[set[str]]] = {}
    for row in read_rows(source):
        cells = minutes[row.name] = [set() for _ in range(first, last)]
        for bar in row.bars:
            assert bar.end == bar.start + 1, "a job takes a minute"
            cells[int(bar.start)].add(f"{bar.label}x" if bar.style == "fail" else bar.label)
    return minutes


class Bank:
    """Jobs that wait for the end of their minute; the first attempt of A1 fails."""

    def __init__(self) -> None:
        self.running: dict[str, asyncio.Event] = {}
        self.changed = asyncio.Event()

    async def book(self, account: str, number: int) -> None:
        name = f"{account}{number}"
        fails = name == "A1" and current_job().attempt == 1
        minute = asyncio.Event()
        self.running[f"{name}x" if fails else name] = minute
        self.changed.set()
        await minute.wait()
        if fails:
            raise Retry(timedelta(hours=1))

    async def begun(self, jobs: set[str]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not jobs <= self.running.keys():
                self.changed.clear()
                await self.changed.wait()

    def end_minute(self) -> None:
        for minute in self.running.values():
            minute.set()
        self.running.clear()


@pytest.mark.parametrize("name", OPTIONS)
async def test_jobs_start_in_the_minutes_of_the_drawing(pool: Pool, name: str) -> None:
    minutes = drawing()[name]
    scheduler = Scheduler(pool, max_concurrent_jobs=2, shutdown_timeout=5)
    await scheduler.initialize_db()
    bank = Bank()
    scheduler.register(bank.book, name="book", max_retries=1, **OPTIONS[name])
    seen = Recorder(scheduler)
    ids = {}
    for account, number in (("A", 1), ("A", 2), ("A", 3), ("B", 1)):
        ids[f"{account}{number}"] = await scheduler.enqueue(
            "book", args=(account, number), conflict_resolution=ConflictResolution.IGNORE
        )
    ended = 0
    async with scheduler:
        for minute, jobs in enumerate(minutes, 1):
            if minute == 3:  # a minute after its failure, the retry of A1 is due
                await bank.begun(jobs - {"A1"})  # which were due before it
                assert await scheduler.run_job_now(ids["A1"])
            await bank.begun(jobs)
            assert bank.running.keys() == jobs
            bank.end_minute()
            ended += len(jobs - {"A1x"})
            await seen.until(JobCompleted, ended)
            await seen.until(JobRetried, 1)
    assert {job.status for job in await scheduler.list_jobs()} == {JobStatus.COMPLETED}


async def program(page: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Run the block of a page that defines a name, below those before it whose names it uses."""
    module = ModuleType("decisions")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for snippet in snippets_of(page):
        if snippet.kind == "python":
            # The calls of a page at the top level are for its readers, and test_snippets.py makes them.
            code = re.split(r"^(?:for |assert )", snippet.code, maxsplit=1, flags=re.MULTILINE)[0]
            await run_python(replace(snippet, code=code), module)
        if hasattr(module, name):
            return module
    raise AssertionError(f"{page.name} defines no {name}")


async def test_id_is_taken_after_its_job_has_completed(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await program(ONCE, "paid", monkeypatch)
    seen = Recorder(scheduler)
    assert await page.paid(scheduler, 7) == "ship:7"
    await seen.until(JobCompleted, job_id="ship:7")
    assert await page.paid(scheduler, 7) == "ship:7"
    (job,) = await scheduler.list_jobs()
    assert (job.status, job.attempt) == (JobStatus.COMPLETED, 1)


@pytest.mark.parametrize(("resolution", "runs"), [("REPLACE", 2), ("IGNORE", 1)])
async def test_call_for_a_user_whose_job_runs_is_replaced_or_dropped(
    pool: Pool, resolution: str, runs: int
) -> None:
    gate = Gate()
    worker = Scheduler(pool)
    worker.register(gate.job, name="contacts.sync", unique=Unique(args=()))
    seen = Recorder(worker)
    async with worker, asyncio.timeout(PATIENCE):
        first = await worker.enqueue("contacts.sync")
        await gate.wait_begun()
        second = await worker.enqueue("contacts.sync", conflict_resolution=ConflictResolution[resolution])
        gate.open.set()
        assert second == first
        await seen.until(JobCompleted, runs, job_id=first)
        third = await worker.enqueue("contacts.sync")
        await seen.until(JobCompleted, job_id=third)
    assert third != first
    assert len(gate.calls) == runs + 1


async def test_key_keeps_a_second_id_out(scheduler: Scheduler) -> None:
    ignore = ConflictResolution.IGNORE
    first = await scheduler.enqueue("sync", job_id="edit:1", unique="user:7")
    second = await scheduler.enqueue("sync", job_id="edit:2", unique="user:7", conflict_resolution=ignore)
    assert (first, second) == ("edit:1", "edit:1")
    assert await scheduler.get_job("edit:2") is None


@pytest.mark.parametrize(
    "others", [{"share": OPTIONS["share"]["share"]}, {"chunk": 100}], ids=["share", "chunk"]
)
def test_sequence_refuses_what_orders_its_jobs_in_another_way(
    scheduler: Scheduler, others: dict[str, Any]
) -> None:
    def index(chunk: Chunk[str]) -> None: ...

    with pytest.raises(ConfigurationError, match=r"(has|and) a sequence"):
        scheduler.register(index, sequence=lambda item: item, **others)


async def test_sequence_refuses_other_jobs_to_wait_for(scheduler: Scheduler) -> None:
    async def book(account: str) -> None: ...

    scheduler.register(book, name="book", sequence=lambda account: account)
    first = await scheduler.enqueue("book", args=("acme",))
    with pytest.raises(ConfigurationError, match="after"):
        await scheduler.enqueue("book", args=("acme",), after=[first])


@pytest.mark.parametrize("name", ["unique", "sequence", "share"])
def test_limit_goes_with_each_of_the_others(scheduler: Scheduler, name: str) -> None:
    async def book(account: str, number: int) -> None: ...

    scheduler.register(book, **OPTIONS["limit"], **OPTIONS[name])


async def test_limit_keeps_the_job_of_a_schedule_from_one_that_a_call_enqueued(pool: Pool) -> None:
    gate = Gate()
    worker = Scheduler(pool)
    worker.register(gate.job, name="import", limits=[Limit("import", max_running=1)])
    seen = Recorder(worker)
    async with worker, asyncio.timeout(PATIENCE):
        await worker.schedules.add(
            "import", Every(hours=1), schedule_id="import", overlap=Overlap.SKIP, run_now=True
        )
        called = await worker.enqueue("import")
        await gate.wait_begun()
        await seen.until(JobBlocked)
        gate.open.set()
        await seen.until(JobCompleted, 2)
        await seen.until(JobCompleted, job_id=called)
    assert gate.most == 1


async def test_lock_of_the_work_makes_the_second_attempt_wait(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await program(ONCE, "close_month", monkeypatch)
    worker = Scheduler(pool)
    worker.register(page.close_month, name="month.close")
    seen = Recorder(worker)
    waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted)"
    async with worker, asyncio.timeout(PATIENCE):
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", 7)
            job_id = await worker.enqueue("month.close", args=(7,))
            while not await connection.fetchval(waiting):  # noqa: ASYNC110 - the server reports no event
                await asyncio.sleep(0.01)
            assert seen.of(JobCompleted) == []
        await seen.until(JobCompleted, job_id=job_id)


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("lifespan", {"reports.month", "mail.send"}),
        ("lifespan_that_enqueues", set()),
        ("lifespan_without_reports", {"mail.send"}),
    ],
)
async def test_web_process_runs_the_jobs_that_its_lifespan_lets_it_run(
    dsn: str, pool: Pool, monkeypatch: pytest.MonkeyPatch, name: str, runs: set[str]
) -> None:
    page = await program(WHERE, name, monkeypatch)
    monkeypatch.setenv("DATABASE_URL", dsn)
    await Scheduler(pool).initialize_db()
    async with page.__dict__[name](None) as state, asyncio.timeout(PATIENCE):
        web: Scheduler = state["scheduler"]
        seen = Recorder(web)
        web.register(nothing, name="mail.send")
        web.register(nothing, name="reports.month")
        await web.enqueue("reports.month")
        await web.enqueue("mail.send")
        assert web.is_running is bool(runs)
        await seen.until(JobCompleted, len(runs))
    jobs = await Scheduler(pool).list_jobs(status=JobStatus.PENDING)
    assert {job.job_name for job in jobs} == {"reports.month", "mail.send"} - runs


async def nothing() -> None: ...


@pytest.mark.parametrize(("starts", "most"), [(True, 11), (False, 10)])
async def test_process_takes_at_most_the_connections_that_the_page_counts(
    dsn: str, pool: Pool, starts: bool, most: int
) -> None:
    # A worker opens a twelfth one if its connection for claims ends while jobs use up the pool.
    assert f"up to {most + starts}" in " ".join(WHERE.read_text(encoding="utf-8").split())
    await Scheduler(pool).initialize_db()
    async with pool.acquire() as connection:
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        others = await connection.fetchval(count)
        async with Scheduler.connect(dsn, start=starts) as scheduler:
            await asyncio.gather(*[scheduler.get_job("none") for _ in range(100)])
            assert await connection.fetchval(count) - others == most


def test_commands_of_the_page_are_those_of_this_release() -> None:
    consoles = [snippet.code for snippet in snippets_of(WHERE) if snippet.kind == "console"]
    lines = [line.removeprefix("$ ") for code in consoles for line in code.splitlines()]
    commands = [line for line in lines if line.startswith("pg-scheduler ")]
    assert [parse(command) for command in commands] == ["worker"] * 3


def test_drawing_of_the_page_has_each_option() -> None:
    """That it fits a phone is tested with those of the other diagrams."""
    assert drawing().keys() == OPTIONS.keys()
    assert f"(../figures/{ONCE.stem}.svg)" in ONCE.read_text(encoding="utf-8")
