"""What each change of a job keeps of its options.

The table is in the page about the life cycle. Here each of its cells is tried, and the options and the
methods are those of the code: a new one needs a place in the table, or a reason why it has none.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler import (
    ConflictResolution,
    JobPriority,
    JobSpec,
    PeriodicJobConfig,
    Scheduler,
    Share,
    job,
    periodic,
)
from pg_scheduler.clock import FakeClock
from pg_scheduler.database.queries import FOLDERS
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.job_actions import JobActions
from pg_scheduler.schedules.definition import Definition
from tests.api.conftest import Make
from tests.support.inside import COMPLETE, JOB_OPTIONS, RELEASE, Outcome, TaskOptions, registry_of, store_of
from tests.support.worker import LEASE, new_worker

PAGE: Final = Path(__file__).parents[2] / "docs/concepts/life-cycle.md"
START: Final = datetime(2040, 1, 1, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)

TIMING: Final = {
    *("task", "trigger", "start", "end", "max_runs", "jitter", "overlap", "catch_up"),
    *(
        "interval",
        "cron",
        "timezone",
        "job_name",
        "dedup_key",
        "enabled",
        "derived_key",
        "named",
        "options_of_task",
    ),
}
"""Options of schedules that decide which jobs they have, and not what these are."""

OTHER_METHODS: Final = {
    "schedule": "REPLACE",
    "schedule_job": "REPLACE",
    "schedule_bulk": "REPLACE",
    "enqueue": "REPLACE",
    "cancel_job": "cancelled, then retried",
    "cancel_jobs": "cancelled, then retried",
    "retry_job": "ended, then retried",
    "retry_jobs": "ended, then retried",
    "run_job_now": "made due at another time",
    "move_jobs": "made due at another time",
    "keep_job": "takes the misfire grace time, and changes nothing else",
    "update_job_status": "the text below the table, and test_by_hand.py",
    "delete_jobs": "nothing is left",
    "run_vacuum": "nothing is left",
    "recover_orphaned_jobs": "released by its worker",
    "periodic_orphan_recovery": "released by its worker",
    "execute_job": "an attempt like another",
    "execute_job_with_concurrency_control": "an attempt like another",
    "send_heartbeat": "changes no option",
    "monitor_heartbeats": "released by its worker",
    "listen_for_jobs": "changes no job",
    "load_task_functions": "changes no job",
}
"""The public methods that change jobs, and the columns of the table that show what they keep."""

CHANGES_NO_OPTION: Final = {
    "job_versions",
    *("initialize_db", "start", "shutdown", "wait", "health", "workers", "register"),
    *("get_job", "list_jobs", "count_jobs", "get_job_result"),
    *("run_job", "signal", "send", "broadcast", "end_sleep", "get_value", "stream"),
    *("get_periodic_jobs", "get_periodic_job_status", "enable_periodic_job", "disable_periodic_job"),
    *("trigger_periodic_job", "subscribe", "next_event", "events"),
    *("get_vacuum_stats", "get_total_vacuum_stats"),
}
"""The other public methods of the Scheduler, which change no option of a job that exists."""

Row = Mapping[str, Any]


def read_table() -> dict[str, dict[str, str]]:
    """Return the cells of the table in the page by option and change."""
    (text,) = re.findall(r"^\| Option \|.*?\n\n", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    header, _, *lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.strip().splitlines()
    ]
    changes = [name.replace("`", "") for name in header[1:]]
    return {
        option: dict(zip(changes, cells, strict=True))
        for names, *cells in lines
        for option in re.findall(r"`(\w+)`", names)
    }


TABLE: Final = read_table()
CHANGES: Final = [*TABLE["func"]]
STORED: Final = [option for option, cells in TABLE.items() if "code" not in cells.values()]


# -- the axes --------------------------------------------------------------------------------------------


def test_table_has_every_option_of_jobs() -> None:
    options = {
        *JOB_OPTIONS,
        *(field.name for field in fields(JobSpec)),
        *(field.name for field in fields(TaskOptions)),
        *({field.name for field in (*fields(Definition), *fields(PeriodicJobConfig))} - TIMING),
    }
    assert TABLE.keys() == options | {"schedule_id"}


def test_table_has_every_method_that_changes_jobs() -> None:
    methods = {
        name
        for group in (Scheduler, JobActions)
        for name, method in vars(group).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    assert methods == OTHER_METHODS.keys() | CHANGES_NO_OPTION


def test_options_that_are_read_from_the_code_are_in_no_row() -> None:
    assert [option for option in TABLE if option not in STORED] == [
        "retry",
        "executor",
        "typed",
        "limits",
        "version",
        *("chunk", "chunk_wait", "chunk_by"),
    ]
    assert all(set(cells.values()) == {"code"} for option, cells in TABLE.items() if option not in STORED)


# -- the cells -------------------------------------------------------------------------------------------


def tenant(*_args: object, **_kwargs: object) -> str:
    return "acme"


@dataclass(frozen=True)
class World:
    """A Scheduler that is not started, and jobs that have all options."""

    scheduler: Scheduler
    pool: asyncpg.Pool
    clock: FakeClock

    async def add(self, name: str, **options: Any) -> str:
        """Store a job with every option of a call."""
        defaults: dict[str, Any] = {
            "args": (1,),
            "kwargs": {"key": 2},
            "priority": JobPriority.HIGH,
            "max_retries": 3,
            "misfire_grace_time": 3600,
            "timeout": 30,
            "keep_result": HOUR,
            "deadline": 7 * DAY,
            "metadata": {"order": 7},
            "unique": "key",
            "pass_results": True,
            "after_outcome": "ended",
        }
        task = registry_of(self.scheduler).resolve(name)
        assert task is not None
        return await self.scheduler.schedule(task.func, **(defaults | options))

    async def row(self, job_id: str) -> dict[str, Any]:
        """Return what the tables have of the options of a job, by option."""
        row = await self.pool.fetchrow("SELECT * FROM scheduled_jobs WHERE job_id = $1", job_id)
        assert row is not None
        edges = await self.pool.fetch(
            "SELECT parent_id, outcome FROM scheduler_after WHERE child_id = $1", job_id
        )
        data, options, on_end = (json.loads(row[name] or "{}") for name in ("task_data", "options", "on_end"))
        waits = row["blocked_on"] == "after"
        share = row["blocked_on"] if (row["blocked_on"] or "").startswith("share:") else options.get("share")
        return {
            "func": row["function"] or row["job_name"],
            "args": data["args"],
            "kwargs": data["kwargs"],
            "job_id": row["job_id"],
            "execution_time": row["execution_time"],
            "priority": row["priority"],
            "max_retries": row["max_retries"],
            "misfire_grace_time": row["misfire_grace_time"],
            "timeout": row["timeout_seconds"],
            "keep_result": options.get("keep_result"),
            "deadline": options.get("deadline"),
            "metadata": data.get("metadata"),
            "unique": row["unique_key"],
            "after": [edge["parent_id"] for edge in edges] if waits else None,
            "after_outcome": [edge["outcome"] for edge in edges] if waits else None,
            "pass_results": options.get("steps"),
            "share": share if waits or row["blocked_on"] else None,
            "sequence": options.get("sequence"),
            "on_failure": on_end.get("on_failure"),
            "on_cancel": on_end.get("on_cancel"),
            "schedule_id": options.get("schedule_id"),
            "pause_after_failures": on_end.get("schedule"),
            "use_advisory_lock": row["lock_key"],
        }

    async def start(self, job_id: str) -> None:
        """Let the job have had its turn, and let those that it waits for have ended."""
        await self.pool.execute("UPDATE scheduled_jobs SET blocked_on = NULL WHERE job_id = $1", job_id)
        await self.pool.execute("DELETE FROM scheduler_after WHERE child_id = $1", job_id)

    async def settle(self, job_id: str, outcome: Outcome) -> None:
        """Claim the job and write the end of its attempt."""
        store = store_of(self.scheduler)
        await store.workers.register(new_worker(), LEASE)
        names = registry_of(self.scheduler).lists.names
        claims = {claim.job_id: claim for claim in (await store.claims.exchange("me", names, 10)).jobs}
        await store.results.settle("me", [(claims[job_id], outcome)])


@pytest.fixture
async def world(make: Make, pool: asyncpg.Pool) -> AsyncIterator[World]:
    clock = FakeClock(START)
    scheduler = make(clock=clock)
    await scheduler.initialize_db()

    async def full(*_args: object, **_kwargs: object) -> None: ...

    async def other(*_args: object, **_kwargs: object) -> None: ...

    async def ordered(*_args: object, **_kwargs: object) -> None: ...

    scheduler.register(
        full,
        name="kept.full",
        share=Share("full", key=tenant),
        on_failure="kept.alert",
        on_cancel="kept.undo",
        keep_result=HOUR,
    )
    scheduler.register(
        other,
        name="kept.other",
        share=Share("other", key=tenant),
        on_failure="kept.page",
        on_cancel="kept.redo",
    )
    scheduler.register(ordered, name="kept.ordered", sequence=tenant, keep_result=HOUR)
    world = World(scheduler, pool, clock)
    await scheduler.enqueue(full, job_id="parent", delay=DAY)
    await scheduler.enqueue(full, job_id="other parent", delay=DAY)
    yield world
    await store_of(scheduler).connections.release_held()


async def cancel_and_retry(world: World, job_id: str) -> None:
    assert await world.scheduler.cancel_job(job_id)
    world.clock.advance(HOUR)
    assert await world.scheduler.retry_job(job_id)


async def end_and_retry(world: World, job_id: str) -> None:
    await world.start(job_id)
    world.clock.advance(timedelta(minutes=30))
    await world.settle(job_id, COMPLETE)
    world.clock.advance(timedelta(minutes=30))
    assert await world.scheduler.retry_job(job_id)


async def replace(world: World, job_id: str) -> None:
    await world.add(
        "kept.other",
        job_id=job_id,
        execution_time=START + 3 * HOUR,
        args=(3,),
        kwargs={},
        priority=JobPriority.LOW,
        max_retries=4,
        misfire_grace_time=60,
        timeout=40,
        keep_result=DAY,
        deadline=DAY,
        metadata={"order": 8},
        unique="other key",
        after=["other parent"],
        after_outcome="completed",
        pass_results=False,
        conflict_resolution=ConflictResolution.REPLACE,
    )


async def run_now(world: World, job_id: str) -> None:
    world.clock.advance(HOUR)
    assert await world.scheduler.run_job_now(job_id)


async def release(world: World, job_id: str) -> None:
    await world.start(job_id)
    world.clock.advance(timedelta(minutes=30))
    await world.settle(job_id, RELEASE)


ACTIONS: Final[Mapping[str, Callable[[World, str], Awaitable[None]]]] = dict(
    zip(CHANGES, (cancel_and_retry, end_and_retry, replace, run_now, release), strict=True)
)


def check(change: str, before: Row, after: Row, options: list[str]) -> None:
    """Compare what the rows have with the cells of the table."""
    for option in options:
        cell, former_value, value = TABLE[option][change], before[option], after[option]
        case = f"{option}, {change}: {cell}, but {former_value!r} became {value!r}"
        match cell:
            case "kept":
                assert former_value is not None, case
                assert value == former_value, case
            case "new":
                assert value != former_value, case
            case "met":
                assert (former_value is not None, value) == (True, None), case
            case "now" | "moved":
                assert value == START + HOUR, case
            case _:
                pytest.fail(f"the cell {cell!r} of {option}, {change} is unknown")


OF_SCHEDULES: Final = ["schedule_id", "pause_after_failures", "use_advisory_lock"]


@pytest.mark.parametrize("change", CHANGES)
async def test_change_keeps_what_the_table_says(world: World, change: str) -> None:
    job_id = await world.add("kept.full", execution_time=START + timedelta(minutes=10), after=["parent"])
    before = await world.row(job_id)
    await ACTIONS[change](world, job_id)
    options = [option for option in STORED if option not in {*OF_SCHEDULES, "sequence"}]
    check(change, before, await world.row(job_id), options)


@pytest.mark.parametrize("change", CHANGES)
async def test_change_of_a_job_of_a_sequence_keeps_what_the_table_says(world: World, change: str) -> None:
    job_id = await world.scheduler.enqueue("kept.ordered", args=(1,), misfire_grace_time=3600)
    before = await world.row(job_id)
    await ACTIONS[change](world, job_id)
    check(change, before, await world.row(job_id), ["sequence", "keep_result"])


@pytest.mark.parametrize("change", CHANGES)
async def test_change_of_a_job_of_a_schedule_keeps_what_the_table_says(world: World, change: str) -> None:
    @periodic(every=DAY, dedup_key="beat", use_advisory_lock=True, pause_after_failures=1)
    @job(name="kept.beat", keep_result=HOUR, on_failure="kept.alert", misfire_grace_time=3600)
    async def beat() -> None: ...

    job_id = await world.scheduler.trigger_periodic_job("beat")
    assert job_id is not None
    before = await world.row(job_id)
    await ACTIONS[change](world, job_id)
    kept_options = ["keep_result", "on_failure", *OF_SCHEDULES]
    check(change, before, await world.row(job_id), kept_options)


# -- beside the table ------------------------------------------------------------------------------------


def keys_of(column: str) -> set[str]:
    """Return the keys of a JSON column that the statements name."""
    key = re.compile(rf"\b{column} (?:->>?|#>>?|-) (?:ARRAY \[)?'(\w+)'")
    folders = [files("pg_scheduler").joinpath(folder) for folder in FOLDERS if folder != "inspect/store/sql"]
    texts = [
        file.read_text("utf-8")
        for folder in folders
        for file in folder.iterdir()
        if file.name.endswith(".sql")
    ]
    return {name for text in texts for name in key.findall(text)}


async def test_replace_keeps_of_a_row_what_others_have_asked_of_it(world: World) -> None:
    """What is kept besides identity: what others wait for, and the delay that a schedule waits for."""
    job_id = await world.add("kept.full", execution_time=START + timedelta(minutes=10), after=["parent"])
    options = keys_of("options")
    on_end = keys_of("on_end") - {"replacement"} | {"failed_tasks", "result"}
    await world.pool.execute(
        """
        UPDATE scheduled_jobs SET attempt = 3, retry_count = 2, crash_count = 1, lock_key = 5,
            function = 'f', worker_id = 'me', started_at = now(), lease_until = now(),
            last_heartbeat = now(), error_message = 'no', progress = '1', errors = '[1]',
            options = $2, on_end = $3
        WHERE job_id = $1
        """,
        job_id,
        json.dumps(dict.fromkeys(options, "former")),
        json.dumps(dict.fromkeys(on_end, "former")),
    )
    before = await world.pool.fetchrow("SELECT * FROM scheduled_jobs WHERE job_id = $1", job_id)
    assert before is not None
    assert [name for name, value in before.items() if value is None] == ["finished_at"], "all columns are set"
    world.clock.advance(HOUR)
    await world.scheduler.enqueue(
        "kept.other", job_id=job_id, delay=HOUR, conflict_resolution=ConflictResolution.REPLACE
    )
    after = await world.pool.fetchrow("SELECT * FROM scheduled_jobs WHERE job_id = $1", job_id)
    assert after is not None
    kept = {name for name, value in before.items() if value is not None and value == after[name]}
    assert kept == {"job_id", "attempt", "created_at", "status"}
    kept_options, kept_on_end = (
        {key for key, value in json.loads(after[column]).items() if value == "former"}
        for column in ("options", "on_end")
    )
    assert kept_options == {"keep_result"}
    assert kept_on_end == {"child", "fixed_delay"}


async def test_retried_job_starts_at_once_when_the_jobs_before_it_have_ended_meanwhile(world: World) -> None:
    job_id = await world.add("kept.full", execution_time=START, after=["parent"])
    assert await world.scheduler.cancel_job(job_id)
    await world.start("parent")
    world.clock.advance(DAY)
    await world.settle("parent", COMPLETE)
    assert await world.scheduler.retry_job(job_id)
    retried = await world.scheduler.get_job(job_id)
    assert retried is not None
    assert retried.blocked_on == "share:full:acme", "it has not had its turn"


async def test_job_has_one_alert_however_often_it_is_retried(world: World) -> None:
    await world.scheduler.enqueue("kept.full", job_id="a")
    for _ in range(3):
        await world.start("a")
        await world.settle("a", Outcome.fail("no"))
        assert len(await world.scheduler.list_jobs(job_name="kept.alert")) == 1
        assert await world.scheduler.retry_job("a")


async def test_plain_job_that_is_cancelled_and_retried_has_no_options(world: World) -> None:
    job_id = await world.scheduler.enqueue("plain")
    assert await world.scheduler.cancel_job(job_id)
    row = await world.pool.fetchrow("SELECT options, on_end FROM scheduled_jobs WHERE job_id = $1", job_id)
    assert tuple(row or ()) == (None, None)
    assert await world.scheduler.retry_job(job_id)
    row = await world.pool.fetchrow("SELECT options, on_end FROM scheduled_jobs WHERE job_id = $1", job_id)
    assert tuple(row or ()) == (None, None)


async def test_bulk_retry_and_status_set_by_hand_restore_the_consequences(world: World) -> None:
    for job_id in ("a", "b"):
        await world.scheduler.enqueue("kept.full", job_id=job_id)
        assert await world.scheduler.cancel_job(job_id)
    async for _ in Inspector(world.scheduler).retry_jobs(ids=["a"]):
        pass
    assert await world.scheduler.update_job_status("b", "pending")
    for job_id, share in (("a", "share:full:acme"), ("b", None)):
        row = await world.row(job_id)
        assert (row["on_failure"], row["share"]) == ("kept.alert", share)
    left = await world.pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE options ? 'ended'")
    assert left == 0
