"""A trigger or a constraint of the application that refuses a row concerns that row, and stops no worker."""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobStatus, VacuumConfig, VacuumPolicy
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import EventBus
from tests.support import inside
from tests.support.guards import STATES, guard
from tests.support.inside import Claimer, Store
from tests.support.parts import Parts, sent_statements
from tests.support.store import new_schedule, worker
from tests.support.worker import LEASE, PATIENCE, claim, locked, new_job, now

MAX_REFUSALS = inside.internal_setting("refused_rows")


async def work() -> None: ...


async def refuse(
    pool: asyncpg.Pool,
    condition: str,
    *,
    on: str = "UPDATE",
    table: str = "scheduled_jobs",
    is_deferred: bool = False,
    state: str = "P0001",
) -> None:
    """Let the application refuse changes of the job "bad"; at the commit if the check is deferred."""
    row = "OLD" if on == "DELETE" else "NEW"
    body = (
        f"IF {row}.job_id LIKE 'bad%' AND {condition} "
        f"THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '{state}'; END IF; RETURN {row};"
    )
    await guard(pool, body, on=on, table=table, is_deferred=is_deferred)


async def status_of(pool: asyncpg.Pool) -> dict[str, str]:
    rows = await pool.fetch("SELECT job_id, status FROM scheduled_jobs")
    return {row["job_id"]: row["status"] for row in rows}


@pytest.fixture
def parts(store: Store, bus: EventBus) -> Parts:
    parts = Parts(store, bus)
    parts.tasks.register(work, name="work")
    return parts


async def assert_bad_is_left_out(
    claimer: Claimer, parts: Parts, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    """Claim twice, and verify that one job is left out, with a record, and the others are not."""
    with caplog.at_level(logging.ERROR, "pg_scheduler"):
        await claimer.run_once()
        await claimer.run_once()
    assert (await status_of(pool))["bad"] == "pending"
    assert parts.in_flight.held().keys() | {"good 1", "good 2"} == {"good 1", "good 2"}
    (message,) = caplog.messages
    assert "job bad cannot be claimed" in message


@pytest.mark.parametrize("state", STATES)
async def test_claim_is_refused_by_a_trigger_whatever_its_sqlstate(
    parts: Parts, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    await parts.store.workers.register(worker("me"), LEASE)
    await refuse(pool, "NEW.status = 'running'", state=state)
    await parts.store.inserts.insert([new_job(name, "work") for name in ("good 1", "bad", "good 2")])
    await assert_bad_is_left_out(parts.claimer(), parts, pool, caplog)
    assert not parts.faults


@pytest.mark.parametrize("is_deferred", [False, True])
@pytest.mark.parametrize("condition", ["true", "NEW.status = 'running'"])
async def test_job_whose_claim_is_refused_is_left_out_of_claims(
    parts: Parts, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, condition: str, is_deferred: bool
) -> None:
    await parts.store.workers.register(worker("me"), LEASE)
    await refuse(pool, condition, is_deferred=is_deferred)
    await parts.store.inserts.insert([new_job(name, "work") for name in ("good 1", "bad", "good 2")])
    claimer = parts.claimer()
    await assert_bad_is_left_out(claimer, parts, pool, caplog)
    assert "P0001, PL/pgSQL function" in caplog.messages[0]
    assert not parts.faults
    await pool.execute("DROP TRIGGER guard ON scheduled_jobs")
    parts.refused_claims._pauses.clear()
    await claimer.run_once()
    assert (await status_of(pool))["bad"] != "pending"


@pytest.mark.parametrize("name", ["work", "other"])
@pytest.mark.parametrize("held", [1, 40])
@pytest.mark.parametrize("is_deferred", [False, True])
async def test_job_for_which_a_trigger_waits_delays_no_other_claim(
    parts: Parts, dsn: str, caplog: pytest.LogCaptureFixture, *, is_deferred: bool, held: int, name: str
) -> None:
    """Neither one of the same task, nor one of another task."""
    await parts.store.workers.register(worker("me"), LEASE)
    stranger = await asyncpg.connect(dsn)
    await stranger.execute("CREATE TABLE counter AS SELECT 0 AS claims")
    await guard(
        stranger,
        "IF NEW.job_id LIKE 'bad%' THEN UPDATE counter SET claims = claims + 1; END IF; RETURN NEW;",
        is_deferred=is_deferred,
    )
    bad = [new_job(f"bad {number}", "work") for number in range(held)]
    parts.tasks.register(work, name="other")
    good = [new_job(f"good {number}", name) for number in range(3)]
    claimer = parts.claimer(parts.executor(slots=100), batch=None)
    async with stranger.transaction():
        await stranger.execute("UPDATE counter SET claims = 0")
        await parts.store.inserts.insert([*bad, *good])
        async with asyncio.timeout(PATIENCE):
            while await pending(stranger) & {job.job_id for job in good}:
                delay = await claimer.run_once()
                await asyncio.sleep(delay)
        assert await pending(stranger) == {job.job_id for job in bad}
    async with asyncio.timeout(PATIENCE):
        while await pending(stranger):
            delay = await claimer.run_once()
            await asyncio.sleep(min(delay, 0.1))
    await stranger.close()
    (message,) = caplog.messages
    assert message.startswith("job bad ")
    assert "a trigger of the application waits for a lock of another transaction (55P03, " in message
    assert not parts.faults


async def test_search_for_waiting_jobs_waits_shortly_once_three_of_a_name_have_waited(
    parts: Parts, dsn: str
) -> None:
    """It holds locks on the rows meanwhile, so many jobs must not wait for one lock, one after the other."""
    stranger = await asyncpg.connect(dsn)
    await stranger.execute("CREATE TABLE counter AS SELECT 0 AS claims")
    body = "UPDATE counter SET claims = claims + 1; RETURN NEW;"
    await guard(stranger, body, is_deferred=False)
    names = {f"bad {number}": "other" if number == 4 else "work" for number in range(5)}
    await parts.store.inserts.insert([new_job(job_id, name) for job_id, name in names.items()])
    async with stranger.transaction():
        await stranger.execute("UPDATE counter SET claims = 0")
        sent = sent_statements(parts)
        search = await parts.store.claims.quarantine("me", ["other", "work"], 10)
    await stranger.close()
    assert list(search.waiting) == list(names)
    assert sent.count("limit_waits") == 2, "shorter for the fourth job, and as before for the other name"


async def pending(connection: asyncpg.Connection) -> set[str]:
    rows = await connection.fetch("SELECT job_id FROM scheduled_jobs WHERE status = 'pending'")
    return {row["job_id"] for row in rows}


@pytest.mark.slow
async def test_claim_that_a_lock_of_the_table_stops_leaves_out_no_job(
    parts: Parts, store: Store, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    await store.workers.register(worker("me"), LEASE)
    await store.inserts.insert([new_job("job", "work")])
    claimer = parts.claimer()
    for mode in ("SHARE", "EXCLUSIVE"):
        async with locked(dsn, "scheduled_jobs", mode):
            with pytest.raises(DatabaseUnavailableError):
                await claimer.run_once()
    assert not parts.refused_claims
    assert not caplog.messages


@pytest.mark.parametrize("is_deferred", [False, True])
async def test_job_whose_expiry_by_a_claim_is_refused_is_left_out_of_claims(
    parts: Parts, store: Store, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, is_deferred: bool
) -> None:
    await store.workers.register(worker("me"), LEASE)
    await refuse(pool, "NEW.status = 'expired'", is_deferred=is_deferred)
    overdue = new_job("bad", "work", execution_time=now() - timedelta(hours=1), misfire_grace_time=1)
    await store.inserts.insert([new_job("good 1", "work"), overdue, new_job("good 2", "work")])
    await assert_bad_is_left_out(parts.claimer(), parts, pool, caplog)


@pytest.mark.parametrize("state", STATES)
async def test_job_whose_expiry_is_refused_delays_no_other_expiry(
    parts: Parts, store: Store, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    due = now() - timedelta(hours=1)
    names = [f"good {number}" for number in range(5)]
    await store.inserts.insert(
        [new_job(name, "unknown", execution_time=due, misfire_grace_time=1) for name in (*names, "bad")]
    )
    await refuse(pool, "NEW.status = 'expired'", state=state)
    expirer = parts.expirer()
    await expirer.run_once()
    assert await status_of(pool) == {**dict.fromkeys(names, "expired"), "bad": "pending"}
    assert [message for message in caplog.messages if "job bad not expired" in message]
    caplog.clear()
    await expirer.run_once()
    assert not caplog.messages, "it is left out"


@pytest.mark.parametrize("state", STATES)
async def test_job_that_must_not_be_deleted_delays_no_other_deletion(
    parts: Parts, store: Store, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    names = [f"good {number}" for number in range(20)]
    await store.inserts.insert([new_job(name, "work") for name in (*names[:7], "bad", *names[7:])])
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'completed', finished_at = now() - interval '400 days'"
    )
    await refuse(pool, "true", on="DELETE", state=state)
    await parts.vacuum(VacuumConfig()).run()
    assert await status_of(pool) == {"bad": "completed"}
    (message,) = caplog.messages
    assert re.match(r"finished job in row \d+ of block 0 not deleted, next attempt in a later pass", message)


@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize("bad_rows", [["bad"], ["bad 1", "bad 2", "bad 3"]])
async def test_job_that_must_not_be_deleted_delays_no_other_job_beyond_the_newest(
    parts: Parts,
    store: Store,
    pool: asyncpg.Pool,
    caplog: pytest.LogCaptureFixture,
    *,
    keep: int,
    bad_rows: list[str],
) -> None:
    names = [f"good {number:02}" for number in range(20)]
    await store.inserts.insert([new_job(name, "work") for name in (*names, *bad_rows)])
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'completed', "
        "finished_at = now() - right(job_id, 1)::integer * interval '1 hour' "
        "WHERE job_id LIKE 'good%'"
    )
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'completed', finished_at = now() - interval '5.5 hours' "
        "WHERE job_id LIKE 'bad%'"
    )
    await refuse(pool, "true", on="DELETE")
    vacuum = parts.vacuum(VacuumConfig(completed=VacuumPolicy.keep_last(keep)))
    vacuum.surplus_batch_size = 4
    deleted = await vacuum.run()
    assert await status_of(pool) == dict.fromkeys((*bad_rows, *["good 00", "good 10"][:keep]), "completed")
    assert deleted[JobStatus.COMPLETED] == 20 - keep
    assert len(caplog.messages) == len(bad_rows)
    for message in caplog.messages:
        assert re.match(r"finished job bad[ \d]* not deleted, next attempt in a later pass", message)


async def test_jobs_are_deleted_however_many_others_must_not_be_deleted(
    parts: Parts, store: Store, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    # Those that must not be deleted are the first rows of the table.
    bad = [f"bad {number}" for number in range(150)]
    await store.inserts.insert([new_job(name, "work") for name in bad])
    await store.inserts.insert([new_job(f"good {number}", "work") for number in range(300)])
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'completed', finished_at = now() - interval '400 days'"
    )
    await refuse(pool, "true", on="DELETE")
    vacuum = parts.vacuum(VacuumConfig())
    for _ in range(100):
        caplog.clear()
        await vacuum.run()
        assert len(caplog.messages) <= inside.internal_setting("logged_refusals_of_vacuum") + 1
        if len(await status_of(pool)) == len(bad):
            break
    assert await status_of(pool) == dict.fromkeys(bad, "completed")


async def test_refused_deletions_end_after_a_number_of_rows(
    parts: Parts, store: Store, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    await store.inserts.insert([new_job(f"bad {number}", "work") for number in range(MAX_REFUSALS + 5)])
    await pool.execute("UPDATE scheduled_jobs SET status = 'completed', finished_at = now()")
    await refuse(pool, "true", on="DELETE")
    vacuum = parts.vacuum(VacuumConfig(completed=VacuumPolicy.keep_last(0)))
    # The first batch is full, but the pass ends with it: the other jobs are probably refused too.
    vacuum.surplus_batch_size = MAX_REFUSALS + 1
    deleted = await vacuum.run()
    assert deleted[JobStatus.COMPLETED] == 0
    assert len(caplog.messages) == MAX_REFUSALS


async def test_pass_deletes_all_jobs_beyond_the_newest_besides_many_that_must_not_be_deleted(
    parts: Parts, store: Store, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each second job must not be deleted, so a half that is accepted is a single job.
    inside.replace(monkeypatch, refused_rows=3)
    bad = [f"bad {number}" for number in range(30)]
    await store.inserts.insert([new_job(name, "work") for name in bad])
    await store.inserts.insert([new_job(f"good {number}", "work") for number in range(30)])
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'completed', "
        "finished_at = now() - interval '1 second' * split_part(job_id, ' ', 2)::integer"
    )
    await refuse(pool, "true", on="DELETE")
    vacuum = parts.vacuum(VacuumConfig(completed=VacuumPolicy.keep_last(0)))
    vacuum.surplus_batch_size = 40
    sent = sent_statements(parts)
    await vacuum.run()
    assert await status_of(pool) == dict.fromkeys(bad, "completed")
    assert sent.count("find_surplus") == 2, "only a batch sorts the finished jobs, not each half of it"


OLD_ROWS = {
    "scheduler_audit": "(at, actor, via, action) VALUES ($1, 'ada', 'api', 'pause_task')",
    "scheduler_stats": "(bucket, span, job_name, counts, sums, run_hist, late_hist) "
    "VALUES ($1, 3600, 'work', '{}', '{}', '{}', '{}')",
    "scheduler_results": "(job_id, status, attempts, finished_at, expires_at) "
    "VALUES ('old', 'completed', 1, $1, $1)",
    "scheduler_steps": "(job_id, name, kind, attempt, started_at, ended_at) "
    "VALUES ('old', 'a', 'step', 1, $1, $1)",
    "scheduler_schedules": "(schedule_id, owner, task, trigger, kinds, described, task_data, options, "
    "metadata, overlap, catch_up, anchor, created_at, updated_at, finished_at) "
    "VALUES ('old', 'api', 'work', '{}', '{}', '', '{}', '{}', '{}', 'skip', 'latest', $1, $1, $1, $1)",
}
"""What inserts a row of each table that a pass deletes since it is older than it may be."""


@pytest.mark.parametrize(
    ("table", "column"),
    [("scheduler_schedules", "schedule_id"), ("scheduler_results", "job_id")],
)
async def test_row_that_must_not_be_deleted_delays_no_other_row_of_its_table(
    parts: Parts, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, *, table: str, column: str
) -> None:
    """For example since a foreign key of the application refers to it."""
    for number in range(7):
        values = OLD_ROWS[table].replace("'old'", f"'{'bad' if number == 3 else number}'")
        await pool.execute(f"INSERT INTO {table} {values}", now() - timedelta(days=3650 - number))
    body = f"IF OLD.{column} = 'bad' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN OLD;"
    await guard(pool, body, on="DELETE", table=table, is_deferred=False)
    await parts.vacuum(VacuumConfig()).run()
    assert [row[0] for row in await pool.fetch(f"SELECT {column} FROM {table}")] == ["bad"]
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("scheduler_schedules", "finished schedule 'old' not deleted"),
        ("scheduler_audit", "the server refused the deletion of old records"),
        ("scheduler_stats", "the server refused to merge old statistics"),
        ("scheduler_results", "old result of job old not deleted"),
        ("scheduler_steps", "old steps of job old not deleted"),
    ],
)
async def test_table_whose_rows_must_not_be_deleted_delays_no_other_deletion(
    parts: Parts,
    store: Store,
    pool: asyncpg.Pool,
    caplog: pytest.LogCaptureFixture,
    *,
    table: str,
    problem: str,
) -> None:
    """For example a trigger that keeps the records of changes for ever."""
    await store.inserts.insert([new_job("job", "work")])
    await pool.execute("UPDATE scheduled_jobs SET status = 'completed', finished_at = now()")
    for name, values in OLD_ROWS.items():
        await pool.execute(f"INSERT INTO {name} {values}", now() - timedelta(days=3650))
    await guard(pool, "RAISE EXCEPTION 'never';", on="DELETE", table=table, is_deferred=False)
    await parts.vacuum(VacuumConfig(completed=VacuumPolicy.keep_last(0))).run()
    assert await status_of(pool) == {}, "the last deletion of the pass"
    left = {name for name in OLD_ROWS if await pool.fetchval(f"SELECT count(*) FROM {name}")}
    assert left == {table}
    (message,) = caplog.messages
    assert message.startswith(problem)


@pytest.mark.parametrize("state", STATES)
async def test_jobs_are_reclaimed_besides_the_one_that_is_refused(
    parts: Parts, store: Store, pool: asyncpg.Pool, state: str
) -> None:
    await claim(store, *(new_job(name, "work") for name in ("good", "bad")), worker_id="gone")
    await pool.execute("UPDATE scheduler_workers SET lease_until = now() - interval '1 hour'")
    await pool.execute("UPDATE scheduled_jobs SET lease_until = now() - interval '1 hour'")
    await refuse(pool, "true", state=state)
    rescue = await store.workers.rescue(120)
    assert rescue.job_ids == ["good"]


@pytest.mark.parametrize("state", STATES)
async def test_lease_of_a_worker_is_renewed_though_a_row_of_its_jobs_is_refused(
    parts: Parts, store: Store, pool: asyncpg.Pool, state: str
) -> None:
    await claim(store, *(new_job(name, "work") for name in ("good", "bad")), worker_id="me")
    lease, beat = await lease_of(pool)
    await refuse(pool, "true", state=state)
    answer = await store.workers.renew("me", {"good": 1, "bad": 1, "other": 1}, 2 * LEASE)
    assert (answer.alive, answer.lost) == (True, ["other"])
    assert "not this one" in str(answer.obstacle)
    renewed = await lease_of(pool)
    assert renewed[0] > lease
    assert renewed[1] == beat, "a job whose lease ended before it would count as lost"
    assert (await store.workers.rescue(120)).job_ids == []


@pytest.mark.slow
async def test_lease_of_a_worker_is_renewed_while_the_table_of_jobs_is_locked(
    parts: Parts, store: Store, pool: asyncpg.Pool, dsn: str
) -> None:
    await claim(store, new_job("job", "work"), worker_id="me")
    lease, _ = await lease_of(pool)
    stranger = await asyncpg.connect(dsn)
    async with stranger.transaction():
        await stranger.execute("LOCK TABLE scheduled_jobs IN ACCESS EXCLUSIVE MODE")
        answer = await store.workers.renew("me", {"job": 1}, 2 * LEASE)
    await stranger.close()
    assert (answer.alive, answer.lost) == (True, [])
    assert (await lease_of(pool))[0] > lease
    answer = await store.workers.renew("me", {"job": 1}, LEASE)
    assert (answer.lost, answer.obstacle) == ([], None)


async def lease_of(pool: asyncpg.Pool) -> tuple[Any, Any]:
    (row,) = await pool.fetch("SELECT lease_until, last_beat FROM scheduler_workers WHERE worker_id = 'me'")
    return row["lease_until"], row["last_beat"]


@pytest.mark.parametrize("refusal", ["job", "schedule", "suppressed", *STATES[1:]])
async def test_schedule_of_which_a_row_is_refused_delays_no_other_schedule(
    parts: Parts, store: Store, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, refusal: str
) -> None:
    hour_ago = now() - timedelta(hours=1)
    for name in ("good 1", "bad", "good 2"):
        row = new_schedule(name, task="work", next_fire_at=hour_ago)
        assert await store.schedules.insert(row, ["every"])
    is_of_schedule = refusal in {"schedule", "suppressed"}
    where = "NEW.schedule_id = 'bad'" if is_of_schedule else "NEW.options ->> 'schedule_id' = 'bad'"
    table, on = ("scheduler_schedules", "UPDATE") if is_of_schedule else ("scheduled_jobs", "INSERT")
    state = refusal if refusal in STATES else "P0001"
    action = f"RAISE EXCEPTION 'not this one' USING ERRCODE = '{state}'"
    if refusal == "suppressed":
        action = "RETURN NULL"
    body = f"IF {where} THEN {action}; END IF; RETURN NEW;"
    await guard(pool, body, on=on, table=table, is_deferred=False)
    planner = parts.planner()
    async with asyncio.timeout(PATIENCE):
        while len(await planned(pool)) < 2:
            await planner.run_once()
    assert await planned(pool) == {"good 1", "good 2"}
    async with asyncio.timeout(PATIENCE):
        while not caplog.messages:
            await planner.run_once()
    assert [message for message in caplog.messages if "schedule 'bad' not planned" in message]


async def planned(pool: asyncpg.Pool) -> set[str]:
    rows = await pool.fetch("SELECT options ->> 'schedule_id' FROM scheduled_jobs WHERE options IS NOT NULL")
    return {row[0] for row in rows}
