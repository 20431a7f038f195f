"""Findings about workers, made for real and resolved by their remedies."""

from __future__ import annotations

import asyncio
import logging.config
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from pg_scheduler.events import JobCompleted, LoopBlocked
from pg_scheduler.inspect import FindingCode, Inspector, Severity
from pg_scheduler.inspect.doctor.workers import judge_connections
from pg_scheduler.triggers.zones import data_version
from tests.inspect.doctor.conftest import Make
from tests.inspect.doctor.support import beat, examine, find, subjects, until
from tests.support.catalogues import clear_registrations
from tests.support.inside import ExitCode, run_command
from tests.support.worker import PATIENCE, Gate, Recorder
from tests.support.world import World

KILLED = "UPDATE scheduler_workers SET lease_until = now() - interval '1 hour' WHERE worker_id = 'w1'"


@pytest.fixture
def restored_logger() -> Iterator[logging.Logger]:
    """The logger of the library, which is enabled again afterwards, like all others."""
    disabled = {
        name: each.disabled
        for name, each in logging.root.manager.loggerDict.items()
        if isinstance(each, logging.Logger)
    }
    yield logging.getLogger("pg_scheduler")
    for name, was_disabled in disabled.items():
        logging.getLogger(name).disabled = was_disabled


async def test_missing_workers_are_found_until_one_starts(
    pool: asyncpg.Pool, world: World, make: Make
) -> None:
    finding = await find(pool, FindingCode.WORKER_NONE)
    assert (finding.severity, finding.remedy) == (Severity.ERROR, "start a worker")
    await world.worker(role="scheduler")
    evidence = (await find(pool, FindingCode.WORKER_NONE)).evidence
    assert "; 1 live worker with another role: scheduler" in evidence
    await make()
    assert await subjects(pool, FindingCode.WORKER_NONE) == []


@pytest.mark.slow
async def test_dead_worker_is_found_until_a_live_one_reclaims_it(
    pool: asyncpg.Pool, world: World, make: Make
) -> None:
    await world.worker(running_jobs=3)
    assert await subjects(pool, FindingCode.WORKER_DEAD) == []
    await pool.execute(KILLED)
    finding = await find(pool, FindingCode.WORKER_DEAD)
    assert finding.subject == "w1"
    assert "60 min ago, with 3 running jobs" in finding.evidence
    assert finding.remedy == "start a worker, which reclaims its jobs"
    await pool.execute("UPDATE scheduler_workers SET running_jobs = 1 WHERE worker_id = 'w1'")
    assert (await find(pool, FindingCode.WORKER_DEAD)).evidence.endswith("with 1 running job")
    scheduler = await make()
    await scheduler.recover_orphaned_jobs()
    await until(pool, FindingCode.WORKER_DEAD, [])


async def test_workers_of_different_versions_releases_and_settings_are_found(
    pool: asyncpg.Pool, world: World
) -> None:
    metadata = '{"lease_seconds": 60, "same": 1, "task_metadata": {"a": {"team": "not for everyone"}}}'
    old = {"metadata": '{"release": "1"}', "settings": metadata}
    await world.worker("w1", version="1.0", hostname="a", identity="web-1", **old)
    await world.worker(
        "w2",
        version="1.1",
        hostname="b",
        metadata='{"release": "2"}',
        settings='{"lease_seconds": 45, "same": 1}',
    )
    diagnosis = await examine(pool, FindingCode.WORKER_MIXED)
    assert [
        (each.subject, each.severity, each.evidence.partition(": ")[2]) for each in diagnosis.findings
    ] == [
        ("release", Severity.WARNING, "1 on web-1, 2 on b"),
        ("version", Severity.WARNING, "1.0 on web-1, 1.1 on b"),
        ("setting lease_seconds", Severity.INFO, "45, 60"),
    ]
    await pool.execute("DELETE FROM scheduler_workers WHERE worker_id = 'w1'")
    assert await subjects(pool, FindingCode.WORKER_MIXED) == []


async def test_workers_with_different_time_zone_data_are_found_until_they_have_the_same(
    pool: asyncpg.Pool, world: World, make: Make
) -> None:
    scheduler = await make()
    (own,) = await scheduler.workers()
    assert own.settings["tzdata"] == data_version(), "reported at registration"
    await world.worker("old", hostname="a", settings='{"tzdata": "2009a"}')
    await world.worker("silent", hostname="b", settings='{"tzdata": null}')
    await pool.execute(
        'UPDATE scheduler_workers SET settings = \'{"tzdata": "2025b"}\' WHERE worker_id = $1', own.worker_id
    )
    finding = await find(pool, FindingCode.TZDATA)
    assert (
        finding.evidence == f"live workers have different time zone data: 2009a on a, 2025b on {own.hostname}"
    )
    assert "setting tzdata" not in await subjects(pool, FindingCode.WORKER_MIXED)
    await pool.execute(
        "UPDATE scheduler_workers SET settings = '{\"tzdata\": \"2025b\"}' WHERE worker_id = 'old'"
    )
    assert await subjects(pool, FindingCode.TZDATA) == []


async def test_worker_with_a_small_pool_neither_listens_nor_holds_a_lock(
    pool: asyncpg.Pool, dsn: str, make: Make
) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as small:
        scheduler = await make(small)
        await beat(scheduler)
        found = (await examine(pool, FindingCode.WORKER_NO_LISTEN, FindingCode.WORKER_NO_LOCK)).findings
        assert [each.code for each in found] == [FindingCode.WORKER_NO_LISTEN, FindingCode.WORKER_NO_LOCK]
        assert {each.subject for each in found} == {scheduler.worker_id}
        assert "max_size of its pool: 2" in found[0].evidence
        (worker,) = await scheduler.workers()
        assert list(judge_connections([replace(worker, started_at=worker.last_beat)])) == [], (
            "it has just registered"
        )
        assert list(judge_connections([replace(worker, state="stopping")])) == [], "it shuts down"
        assert all("max_size of 4 or more" in str(each.remedy) for each in found)
        large = replace(worker, health={**worker.health, "pool": {"max": 10}})
        for finding in judge_connections([large]):
            assert "max_size of its pool: 10" in finding.evidence
            assert "4 or more" not in str(finding.remedy)
            assert str(finding.remedy).startswith("use a larger pool if other code uses its connections, or ")
        await scheduler.shutdown()
    scheduler = await make()
    await beat(scheduler)
    await until(pool, FindingCode.WORKER_NO_LISTEN, [])
    await beat(scheduler)
    await until(pool, FindingCode.WORKER_NO_LOCK, [])


async def test_worker_that_drains_for_an_hour_is_found_until_it_resumes(
    pool: asyncpg.Pool, dsn: str, make: Make
) -> None:
    scheduler, gate = await make(), Gate()
    scheduler.register(gate.job, name="doctor.drained")
    await scheduler.enqueue("doctor.drained")
    await gate.wait_begun()
    await Inspector(pool).drain_workers([scheduler.worker_id])
    await until(pool, FindingCode.WORKER_DRAINING, [scheduler.worker_id], draining_s=0)
    assert await subjects(pool, FindingCode.WORKER_DRAINING) == []
    await pool.execute("UPDATE scheduler_audit SET at = at - interval '2 hours'")
    finding = await find(pool, FindingCode.WORKER_DRAINING)
    assert " was requested to drain 2 h ago, runs 1 job and claims none" in finding.evidence
    resume = f"stop its process, or pg-scheduler workers resume {scheduler.worker_id}"
    assert finding.remedy == f"pg-scheduler workers drain {scheduler.worker_id} --wait, then {resume}"
    gate.open.set()
    async with asyncio.timeout(PATIENCE):
        while (await find(pool, FindingCode.WORKER_DRAINING)).remedy != resume:
            await beat(scheduler)
    words = shlex.split(resume.partition("or pg-scheduler ")[2])
    assert await asyncio.to_thread(run_command, [*words, "--dsn", dsn]) == ExitCode.DONE
    await until(pool, FindingCode.WORKER_DRAINING, [])


async def test_late_jobs_are_found_while_every_worker_of_their_name_drains(
    pool: asyncpg.Pool, world: World, dsn: str, make: Make
) -> None:
    async def job() -> None: ...

    scheduler = await make()
    scheduler.register(job, name="doctor.undrained")
    await beat(scheduler)
    await Inspector(pool).drain_workers([scheduler.worker_id])
    await until(pool, FindingCode.WORKER_DRAINING, [scheduler.worker_id], draining_s=0)
    await scheduler.enqueue("doctor.undrained")
    await scheduler.enqueue("doctor.unregistered")
    assert await subjects(pool, FindingCode.WORKER_DRAINING) == [], "it is not late yet"
    assert await subjects(pool, FindingCode.NAME_UNKNOWN) == ["doctor.unregistered"]
    finding = await find(pool, FindingCode.WORKER_DRAINING, late_s=0)
    assert (finding.subject, finding.severity) == ("workers", Severity.ERROR)
    assert finding.evidence.startswith("1 due job of 'doctor.undrained' not started, the oldest for ")
    assert finding.evidence.endswith(f"every live worker that claims them drains ({scheduler.worker_id})")
    await pool.execute("UPDATE scheduled_jobs SET execution_time = execution_time - interval '61 s'")
    status = await Inspector(pool).status()
    assert {area.area: area.severity for area in status.areas}["workers"] == Severity.ERROR
    resume = "pg-scheduler workers resume --all"
    assert (await find(pool, FindingCode.WORKER_DRAINING)).remedy == f"{resume}, or start a worker"
    await world.worker("other", names=["doctor.other"])
    finding = await find(pool, FindingCode.WORKER_DRAINING)
    assert finding.remedy == f"pg-scheduler workers resume {scheduler.worker_id}, or start a worker"
    assert await subjects(pool, FindingCode.LATE) == []
    assert await asyncio.to_thread(run_command, [*shlex.split(resume)[1:], "--dsn", dsn]) == ExitCode.DONE
    await until(pool, FindingCode.WORKER_DRAINING, [])


async def test_worker_without_a_record_of_its_drain_is_found_once_it_runs_no_job(
    pool: asyncpg.Pool, world: World
) -> None:
    await world.worker(wanted="drain", state="draining", running_jobs=1)
    assert await subjects(pool, FindingCode.WORKER_DRAINING) == []
    await pool.execute("UPDATE scheduler_workers SET running_jobs = 0")
    assert await subjects(pool, FindingCode.WORKER_DRAINING) == ["w1"]


@pytest.mark.slow
async def test_job_that_blocked_the_event_loop_is_named_until_it_runs_in_a_thread(
    pool: asyncpg.Pool, make: Make
) -> None:
    """Real time: a block of three seconds."""

    async def block() -> None:
        time.sleep(3)  # noqa: ASYNC251 - the subject of the test

    scheduler = await make()
    seen = Recorder(scheduler)
    scheduler.register(block, name="doctor.blocks")
    await scheduler.enqueue("doctor.blocks", job_id="blocker")
    await seen.until(LoopBlocked)
    await beat(scheduler)
    finding = await find(pool, FindingCode.LOOP_BLOCKED)
    assert finding.subject == scheduler.worker_id
    assert finding.evidence.endswith(" within the last 15 minutes by job 'blocker' ('doctor.blocks')")
    assert finding.remedy == "declare the blocking function as a plain one, which runs in a thread"
    await scheduler.shutdown()

    def plain() -> None:
        time.sleep(1.5)

    in_thread = await make()
    seen = Recorder(in_thread)
    in_thread.register(plain, name="doctor.plain")
    await in_thread.enqueue("doctor.plain")
    await seen.until(JobCompleted)
    await beat(in_thread)
    assert await subjects(pool, FindingCode.LOOP_BLOCKED) == []


async def test_event_loop_that_is_blocked_now_is_found_with_its_job(pool: asyncpg.Pool, world: World) -> None:
    await world.worker(health='{"loop_blocked_s": 40, "blocking_job_id": "a", "blocking_job_name": "x"}')
    finding = await find(pool, FindingCode.LOOP_BLOCKED)
    assert finding.evidence == "the event loop of w1 on host has been blocked for 40 s by job 'a' ('x')"


async def test_event_loop_that_a_chunk_blocks_is_found_with_its_jobs(
    pool: asyncpg.Pool, world: World
) -> None:
    await world.worker(health='{"loop_blocked_s": 40, "blocking_job_id": null, "blocking_job_name": "x"}')
    finding = await find(pool, FindingCode.LOOP_BLOCKED)
    assert finding.evidence.endswith("has been blocked for 40 s by a chunk of jobs 'x'")
    assert "declare the blocking function as a plain one" in (finding.remedy or "")


@pytest.mark.parametrize(
    "health",
    [
        '{"loop_blocked_s": 40, "blocking_job_id": null, "blocking_job_name": null}',
        '{"last_blocked": {"seconds": 40, "job_id": null, "job_name": null}}',
    ],
)
async def test_block_outside_of_jobs_is_found_with_a_remedy_for_the_application(
    pool: asyncpg.Pool, world: World, health: str
) -> None:
    await world.worker(health=health)
    finding = await find(pool, FindingCode.LOOP_BLOCKED)
    assert finding.evidence.endswith(", not by a job")
    remedy = finding.remedy or ""
    assert "call that function of the application by asyncio.to_thread()" in remedy
    assert "declare" not in remedy


async def test_disabled_logger_is_warned_of_at_the_start_and_found(
    make: Make, pool: asyncpg.Pool, restored_logger: logging.Logger
) -> None:
    later = await make()
    assert await subjects(pool, FindingCode.LOGGER_DISABLED) == []
    logging.config.dictConfig({"version": 1})
    assert restored_logger.disabled
    await beat(later)
    finding = await find(pool, FindingCode.LOGGER_DISABLED)
    assert finding.subject == later.worker_id
    assert "disable_existing_loggers=False" in (finding.remedy or "")
    with pytest.warns(RuntimeWarning, match="'pg_scheduler' is disabled.*disable_existing_loggers=False"):
        await make()


async def test_blocked_event_loop_is_found_until_a_heartbeat_is_on_time(
    pool: asyncpg.Pool, world: World
) -> None:
    await world.worker(health='{"loop_lag_s": 12.5}')
    finding = await find(pool, FindingCode.LOOP_BLOCKED)
    assert "w1 on host was blocked for 12 s" in finding.evidence
    assert await subjects(pool, FindingCode.LOOP_BLOCKED, loop_lag_s=13) == []
    await pool.execute("""UPDATE scheduler_workers SET health = '{"loop_lag_s": 0.001}'""")
    assert await subjects(pool, FindingCode.LOOP_BLOCKED) == []


async def test_unusual_rows_of_workers_are_tolerated(pool: asyncpg.Pool, world: World) -> None:
    await world.worker("w1", health="[1]", settings="3", metadata="7")
    await world.worker("w2", health='{"loop_lag_s": "x", "pool": 3, "is_listening": 7}', settings="{}")
    diagnosis = await examine(pool)
    assert not [each for each in diagnosis.findings if each.code.startswith("WORKER")]


# -- names that services share -------------------------------------------------------------------------


async def send() -> str:
    return "shop"


async def send_of_another_service() -> str:
    return "billing"


async def send_of_a_third_service() -> str:
    return "crm"


async def others() -> None: ...


def services() -> tuple[dict[str, Any], dict[str, Any]]:
    """The tasks of two services that have one name in common."""
    shop = {"tasks.send": send, "shop.order": others, "shop.pack": others}
    return shop, {"tasks.send": send_of_another_service, "billing.bill": others, "billing.remind": others}


async def test_services_that_share_a_name_are_found(
    pool: asyncpg.Pool, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    # Both services of this process would also have the functions of its other modules in common.
    clear_registrations()
    shop, billing = services()
    await make(tasks=shop)
    await make(tasks=shop)
    assert await subjects(pool, FindingCode.NAME_SHARED) == []
    await make(tasks=billing)
    finding = await find(pool, FindingCode.NAME_SHARED)
    assert (finding.subject, finding.severity) == ("tasks.send", Severity.WARNING)
    assert "have different code for 1 task of the same name: tasks.send" in finding.evidence
    (record,) = [record for record in caplog.records if "other code for tasks" in record.message]
    assert "tasks.send" in record.message


async def test_services_that_share_a_name_are_a_warning_though_two_releases_share_it_too(
    pool: asyncpg.Pool, make: Make
) -> None:
    clear_registrations()
    shop, billing = services()
    await make(tasks=shop)
    await make(tasks=shop | {"tasks.send": send_of_a_third_service})
    await pool.execute("UPDATE scheduler_workers SET started_at = started_at - interval '61 minutes'")
    assert (await find(pool, FindingCode.NAME_SHARED)).severity == Severity.INFO
    await make(tasks=billing)
    finding = await find(pool, FindingCode.NAME_SHARED)
    assert (finding.subject, finding.severity) == ("tasks.send", Severity.WARNING)
    assert "finish the deployment" not in (finding.remedy or "")


async def test_worker_names_each_service_that_shares_a_name(
    pool: asyncpg.Pool, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    clear_registrations()
    shop, billing = services()
    await make(tasks=shop)
    await make(tasks=billing)
    caplog.clear()
    await make(tasks={"tasks.send": send_of_a_third_service, "crm.call": others})
    assert len([record for record in caplog.records if "other code for tasks" in record.message]) == 2


async def test_releases_of_one_service_may_differ_for_an_hour(
    pool: asyncpg.Pool, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    shop, _ = services()
    await make(tasks=shop)
    await make(tasks=shop | {"tasks.send": send_of_another_service})
    assert await subjects(pool, FindingCode.NAME_SHARED) == []
    await pool.execute("UPDATE scheduler_workers SET started_at = now() - interval '61 minutes'")
    finding = await find(pool, FindingCode.NAME_SHARED)
    assert (finding.subject, finding.severity) == ("tasks.send", Severity.INFO)
    assert (finding.remedy or "").endswith("finish the deployment")
    assert not [record for record in caplog.records if "other code for tasks" in record.message]


async def test_threads_that_run_on_are_found_with_the_slots_that_they_take(
    pool: asyncpg.Pool, world: World
) -> None:
    attempt = {
        "job_id": "a",
        "job_name": "x",
        "attempt": 1,
        "reason": "timeout",
        "since": "2026-11-01T00:00:00+00:00",
        "in_thread": True,
    }
    await world.worker("w0", health={"abandoned": [{**attempt, "in_thread": False}]})
    assert await subjects(pool, FindingCode.THREAD_STUCK) == []
    await world.worker("w1", health={"abandoned": [{**attempt, "has_slot": False}, attempt]})
    finding = await find(pool, FindingCode.THREAD_STUCK)
    assert finding.subject == "w1"
    assert finding.evidence == (
        "2 threads of w1 on host run on although their jobs were to stop, the first one since "
        "2026-11-01 00:00:00 UTC; they take 1 of its 2 slots"
    )
