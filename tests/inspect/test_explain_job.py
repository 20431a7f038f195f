"""Inspector.explain_job() reads the facts of each reason from the tables."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobNotFoundError, JobSpec, Limit, Scheduler
from pg_scheduler.clock import FakeClock
from pg_scheduler.inspect import FindingCode, Inspector, ReasonCode, Verdict
from pg_scheduler.triggers import Every
from tests.inspect.doctor.support import beat
from tests.support import inside
from tests.support.guards import guard
from tests.support.inside import Connections, Histogram, JobFigures, Store
from tests.support.patience import PATIENCE
from tests.support.world import HOUR, World


async def work(*_: Any) -> None: ...


async def spread_work() -> None: ...


@pytest.fixture
async def scheduler(pool: asyncpg.Pool) -> Scheduler:
    """A Scheduler that is not started."""
    scheduler = Scheduler(pool)
    scheduler.register(work, name="work", limits=[Limit("api", max_running=2)])
    return scheduler


@pytest.fixture
async def inspector(scheduler: Scheduler) -> Inspector:
    return Inspector(scheduler)


async def add_job(scheduler: Scheduler, job_id: str = "job", **options: Any) -> None:
    await scheduler.enqueue(work, job_id=job_id, misfire_grace_time=None, **options)


async def update(pool: asyncpg.Pool, assignments: str) -> None:
    await pool.execute(f"UPDATE scheduled_jobs SET {assignments} WHERE job_id = 'job'")


async def codes(inspector: Inspector) -> list[ReasonCode]:
    return [reason.code for reason in (await inspector.explain_job("job")).reasons]


async def test_explain_job_of_a_due_job_reads_workers_and_pauses(
    inspector: Inspector, scheduler: Scheduler, pool: asyncpg.Pool, world: World
) -> None:
    await add_job(scheduler)
    assert await codes(inspector) == [ReasonCode.NO_WORKER]
    await world.worker(role="scheduler")
    assert await codes(inspector) == [ReasonCode.NO_WORKER]
    await world.worker("w2", names=["other", None])
    assert await codes(inspector) == [ReasonCode.NAME_UNKNOWN]
    await world.worker("w3", wanted="drain")
    assert await codes(inspector) == [ReasonCode.DRAINING]
    await world.worker("w4", health='{"loop_blocked_s": 9, "blocking_job_id": "x"}')
    assert await codes(inspector) == [ReasonCode.LOOP_BLOCKED]
    await world.worker("w5", running_jobs=2)
    assert await codes(inspector) == [ReasonCode.SHOULD_RUN_NOW]
    await pool.execute("DELETE FROM scheduler_workers WHERE worker_id = 'w4'")
    assert await codes(inspector) == [ReasonCode.SLOTS_FULL]
    await scheduler.tasks.pause("work", note="outage")
    explanation = await inspector.explain_job("job")
    assert explanation.verdict is Verdict.HELD
    assert "outage" in explanation.reasons[0].text


@pytest.mark.parametrize("health", ["[]", '{"loop_blocked_s": "x"}', "7"])
async def test_explain_job_ignores_health_of_another_format(
    health: str, inspector: Inspector, scheduler: Scheduler, world: World
) -> None:
    await add_job(scheduler)
    await world.worker(health=health, names=None)
    assert await codes(inspector) == [ReasonCode.SHOULD_RUN_NOW]


async def test_explain_job_counts_the_jobs_that_start_before(
    inspector: Inspector, scheduler: Scheduler, world: World
) -> None:
    await world.worker(running_jobs=2)
    await world.jobs(
        41,
        "work",
        due=lambda n: (n - 21) * HOUR,
        priority=lambda n: 5 if (n - 21) % 4 else 1,
    )
    await add_job(scheduler)
    explanation = await inspector.explain_job("job")
    assert [reason.code for reason in explanation.reasons] == [ReasonCode.OUTRANKED, ReasonCode.SLOTS_FULL]
    assert explanation.reasons[0].text.startswith("6 due jobs of a higher priority")
    assert explanation.reasons[1].text.endswith("about 21 jobs ahead of it")


async def test_explain_job_does_not_count_the_jobs_of_paused_tasks_that_start_before(
    inspector: Inspector, scheduler: Scheduler, pool: asyncpg.Pool, world: World
) -> None:
    await world.worker(names=["work", "held", "former_held"], settings='{"aliases": {"former_held": "held"}}')
    await world.jobs(
        40,
        "any",
        function=lambda n: "former_held" if n % 2 else "held",
        due=lambda n: -n * HOUR,
        priority=lambda n: 5 if n % 4 else 1,
    )
    await add_job(scheduler)
    assert await codes(inspector) == [ReasonCode.OUTRANKED, ReasonCode.SLOTS_FULL]
    await scheduler.tasks.pause("held")
    assert await codes(inspector) == [ReasonCode.SHOULD_RUN_NOW]
    await pool.execute("UPDATE scheduler_workers SET running_jobs = max_concurrent_jobs")
    (reason,) = (await inspector.explain_job("job")).reasons
    assert reason.code is ReasonCode.SLOTS_FULL
    assert reason.text.endswith("about 0 jobs ahead of it")


async def test_explain_job_reads_the_limit(
    inspector: Inspector, scheduler: Scheduler, pool: asyncpg.Pool, world: World
) -> None:
    await add_job(scheduler)
    await update(pool, "blocked_on = 'limit:api:'")
    await add_job(scheduler, "other")
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'running', attempt = 1, worker_id = 'w1' WHERE job_id = 'other'"
    )
    await world.start("limit:api:", "other", keep_s=60)
    await world.start("limit:api:", "gone", keep_s=60)
    (reason,) = [each for each in (await inspector.explain_job("job")).reasons if each.code == "LIMIT"]
    assert reason.text == "waits for the limit 'api': 1 running of at most 2, 2 started"
    (reason,) = [each for each in (await Inspector(pool).explain_job("job")).reasons if each.code == "LIMIT"]
    assert reason.text == "waits for the limit 'api': 1 running, 2 started"


async def test_explain_job_states_the_place_in_the_queue_of_the_tenant(
    inspector: Inspector, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    for job_id in ("a", "b", "job", "z"):
        await add_job(scheduler, job_id)
    await pool.execute(
        "UPDATE scheduled_jobs SET blocked_on = 'share:exports:acme',"
        " execution_time = now() - interval '1 hour'"
    )
    (reason,) = [each for each in (await inspector.explain_job("job")).reasons if each.code == "SHARE"]
    assert reason.text == (
        "waits for the turn of the tenant 'acme' of the share 'exports'; 2 jobs of it ahead of this one"
    )
    await update(pool, "execution_time = now() + interval '1 hour'")
    assert ReasonCode.SHARE not in await codes(inspector), "it waits for its due time first"


async def test_explain_job_states_that_a_limit_spreads_its_starts(
    inspector: Inspector, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    limit = Limit("even", max_starts=10, per=timedelta(seconds=1), spread=True)
    scheduler.register(spread_work, name="spread_work", limits=[limit])
    await add_job(scheduler)
    await update(pool, "blocked_on = 'limit:even:'")
    (reason,) = [each for each in (await inspector.explain_job("job")).reasons if each.code == "LIMIT"]
    assert reason.text == (
        "waits for the limit 'even': 0 started of at most 10; "
        "its starts are spread, so each waits for its turn"
    )


async def test_explain_job_reads_the_jobs_that_it_waits_for(
    inspector: Inspector, scheduler: Scheduler, world: World
) -> None:
    await add_job(scheduler, "first", delay=HOUR)
    await scheduler.enqueue(work, job_id="job", after=["first"])
    await world.edge("gone", "job")
    reasons = (await inspector.explain_job("job")).reasons
    assert reasons[0].text == "waits for 2 jobs: 'first' (pending), 'gone' (does not exist)"


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("RAISE EXCEPTION 'customer 4711 is frozen'", "P0001, PL/pgSQL function guard() line 1 at RAISE"),
        ("LOCK TABLE customer", "a trigger waits for a lock of another transaction"),
    ],
)
async def test_explain_job_states_what_prevents_its_claim(
    inspector: Inspector, scheduler: Scheduler, pool: asyncpg.Pool, action: str, reason: str
) -> None:
    await pool.execute("CREATE TABLE customer ()")
    body = f"IF NEW.status = 'running' THEN {action}; END IF; RETURN NEW;"
    await guard(pool, body, is_deferred=False)
    async with pool.acquire() as application, application.transaction(), scheduler:
        await application.execute("LOCK TABLE customer")
        await add_job(scheduler)
        async with asyncio.timeout(PATIENCE):
            while (await codes(inspector)) != [ReasonCode.CLAIM_REFUSED]:
                await beat(scheduler)
                await asyncio.sleep(0.05)
        explanation = await inspector.explain_job("job")
        assert explanation.verdict is Verdict.HELD
        assert reason in explanation.reasons[0].text
        assert "4711" not in explanation.reasons[0].text, "who may not see values may read it"
        await application.execute("DROP TRIGGER guard ON scheduled_jobs")


async def test_explain_job_states_that_its_task_is_left_out(
    inspector: Inspector, scheduler: Scheduler, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, refused_claims=2)
    body = "IF NEW.status = 'running' THEN RAISE EXCEPTION 'frozen'; END IF; RETURN NEW;"
    await guard(pool, body, is_deferred=False)
    async with scheduler, asyncio.timeout(PATIENCE):
        for number in range(5):
            await add_job(scheduler, f"refused {number}")
        (worker,) = await scheduler.workers()
        while "refused_names" not in worker.health:
            await beat(scheduler)
            (worker,) = await scheduler.workers()
        await add_job(scheduler)
        explanation = await inspector.explain_job("job")
        await pool.execute("DROP TRIGGER guard ON scheduled_jobs")
    assert explanation.verdict is Verdict.HELD
    assert "prevents the claims of many jobs of 'work'" in explanation.reasons[0].text


async def test_explain_job_names_the_session_that_locks_its_row(
    inspector: Inspector,
    scheduler: Scheduler,
    pool: asyncpg.Pool,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await world.worker()
    await add_job(scheduler)
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM scheduled_jobs WHERE job_id = 'job' FOR UPDATE")
        assert await codes(inspector) == [ReasonCode.SHOULD_RUN_NOW], "claims lock rows for milliseconds"
        inside.replace(monkeypatch, shown_lock_age_s=0.0)
        (reason,) = (await inspector.explain_job("job")).reasons
        assert reason.code is ReasonCode.ROW_LOCKED
        assert f"process {other.get_server_pid()}" in reason.text
    assert await codes(inspector) == [ReasonCode.SHOULD_RUN_NOW]


@pytest.mark.parametrize("key", [7, -7, 2**62 + 5, -(2**63)])
async def test_explain_job_names_the_session_that_holds_its_advisory_lock(
    key: int, inspector: Inspector, scheduler: Scheduler, pool: asyncpg.Pool, world: World
) -> None:
    await world.worker()
    await add_job(scheduler)
    await update(pool, f"lock_key = {key}")
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT pg_advisory_xact_lock($1)", key)
        assert await codes(inspector) == [ReasonCode.LOCK_HELD]
    assert await codes(inspector) == [ReasonCode.SHOULD_RUN_NOW]


async def test_explain_job_of_a_running_job_reads_its_worker(
    inspector: Inspector, scheduler: Scheduler, pool: asyncpg.Pool, world: World
) -> None:
    await world.worker()
    await add_job(scheduler)
    await update(
        pool, "status = 'running', attempt = 1, worker_id = 'w1', lease_until = now() + interval '1 minute'"
    )
    (reason,) = (await inspector.explain_job("job")).reasons
    assert reason.text == "runs on worker w1 on host"
    await pool.execute(
        "UPDATE scheduler_workers SET lease_until = now() - interval '1 second', liveness_key = 1,"
        " lease_extension = 60"
    )
    await update(pool, "lease_until = now() - interval '1 second'")
    reasons = (await inspector.explain_job("job")).reasons
    assert reasons[0].code is ReasonCode.LEASE_EXPIRED
    assert "it is reclaimed within 59 s" in reasons[0].text


async def test_explain_job_finds_a_pause_of_another_name_of_its_task(
    inspector: Inspector, scheduler: Scheduler, pool: asyncpg.Pool, world: World
) -> None:
    settings = '{"aliases": {"periodic_work": "work", "former_work": "work"}}'
    await world.worker(names=["work", "periodic_work", "former_work"], settings=settings)
    await add_job(scheduler)
    await update(pool, "job_name = 'periodic_work', execution_time = execution_time - interval '1 hour'")
    late = ("LATE",)
    assert [each.code for each in (await inspector.doctor(only=late)).findings] == [FindingCode.LATE]
    await scheduler.tasks.pause("periodic_work")
    (reason,) = (await inspector.explain_job("job")).reasons
    assert (reason.code, reason.command) == (
        ReasonCode.TASK_PAUSED,
        "pg-scheduler tasks resume periodic_work",
    )
    assert (await inspector.doctor(only=late)).findings == ()
    await update(pool, "function = 'former_work'")
    assert await codes(inspector) == [ReasonCode.TASK_PAUSED]
    await scheduler.tasks.resume("periodic_work")
    assert await codes(inspector) == [ReasonCode.SHOULD_RUN_NOW]


async def test_explain_job_reads_its_schedule(
    inspector: Inspector, scheduler: Scheduler, pool: asyncpg.Pool, world: World
) -> None:
    await world.worker()
    await add_job(scheduler)
    await update(pool, """options = '{"schedule_id": "daily"}'""")
    assert await codes(inspector) == [ReasonCode.SHOULD_RUN_NOW, ReasonCode.SCHEDULE_UNKNOWN]
    await scheduler.schedules.add(work, Every(HOUR), schedule_id="daily")
    assert await codes(inspector) == [ReasonCode.SHOULD_RUN_NOW]
    await scheduler.schedules.pause("daily", note="holidays")
    assert await codes(inspector) == [ReasonCode.SHOULD_RUN_NOW, ReasonCode.SCHEDULE_PAUSED]
    await scheduler.schedules.pause("daily", note="moving", until=datetime(2099, 1, 1, tzinfo=UTC))
    _, paused = (await inspector.explain_job("job")).reasons
    assert "is paused until 2099-01-01 00:00:00 UTC" in paused.text


async def test_explain_job_of_an_expired_job_reads_what_used_the_slots(
    inspector: Inspector,
    scheduler: Scheduler,
    pool: asyncpg.Pool,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await world.worker()
    now: datetime = await pool.fetchval("SELECT now()")
    for batch, (name, minutes) in enumerate(
        (("report", 5), ("before", 60), ("report", 6), ("late", 3), ("after", -1)), 1
    ):
        store = Store(Connections(pool), clock=FakeClock(now - timedelta(minutes=minutes)))
        figures = JobFigures(started=1, durations=Histogram(total=1200.0))
        assert await store.statistics.add("w1", batch, {name: figures})
    due = now - timedelta(minutes=10)
    await scheduler.schedule_job("work", due, {}, job_id="job", misfire_grace_time=540)
    await update(pool, "status = 'expired', finished_at = now(), error_message = 'not started'")
    (reason,) = (await inspector.explain_job("job")).reasons
    assert reason.code is ReasonCode.EXPIRED
    ended = "not started; attempts that ended around then took slots"
    assert reason.text == f"{ended}: 'report' for 40 min, 'late' for 20 min"
    inside.replace(monkeypatch, statistics_of_explanation=1)
    (reason,) = (await inspector.explain_job("job")).reasons
    assert reason.text == f"{ended}: 'late' for 20 min", "not the newest row"


async def test_explain_job_of_a_job_that_ended_or_does_not_exist(
    inspector: Inspector, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await scheduler.schedule_bulk([JobSpec(work, (await pool.fetchval("SELECT now()")), job_id="job")])
    await scheduler.cancel_job("job")
    assert await codes(inspector) == [ReasonCode.CANCELLED]
    await scheduler.update_job_status("job", "completed")
    explanation = await inspector.explain_job("job")
    assert (explanation.verdict, explanation.reasons) == (Verdict.COMPLETED, ())
    with pytest.raises(JobNotFoundError, match="'nothing'"):
        await inspector.explain_job("nothing")
