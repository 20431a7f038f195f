"""A trigger or a constraint of the application that refuses the outcome of a job concerns that job only."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    DatabaseUnavailableError,
    JobStatus,
    Scheduler,
    VacuumConfig,
    VacuumPolicy,
    current_job,
)
from pg_scheduler.events import (
    JobCompleted,
    JobLost,
    JobProgressed,
    JobStarted,
    OutcomeRefused,
    OutcomesDelayed,
)
from tests.api.conftest import Make
from tests.support import inside
from tests.support.guards import OUTAGES, STATES
from tests.support.inside import refused_consequences, store_of, worker_of
from tests.support.worker import PATIENCE, Gate, Recorder

KEPT = timedelta(hours=1)
REFUSED = "the table refused the outcome of this attempt: RaiseError: not this one"


async def refuse(
    pool: asyncpg.Pool, condition: str, *, on: str = "UPDATE", action: str = "RAISE EXCEPTION 'not this one'"
) -> None:
    """Add a trigger of the application that rejects some rows."""
    row = "OLD" if on == "DELETE" else "NEW"
    await pool.execute(
        f"CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF {condition} THEN {action}; END IF; RETURN {row}; END $$"
    )
    await pool.execute(
        f"CREATE TRIGGER guard BEFORE {on} ON scheduled_jobs FOR EACH ROW EXECUTE FUNCTION guard()"
    )


class Jobs:
    """Jobs that end together, of which one is refused."""

    def __init__(self, scheduler: Scheduler, gate: Gate) -> None:
        self.scheduler = scheduler
        self.gate = gate
        self.seen = Recorder(scheduler)
        scheduler.register(self.good, name="good")
        scheduler.register(self.bad, name="bad")
        scheduler.register(self.alert, name="alert")

    async def good(self) -> int:
        await self.gate.open.wait()
        return 1

    async def bad(self, text: str) -> str:
        await self.gate.open.wait()
        if text.startswith("raise"):
            raise ValueError(text)
        return text

    async def alert(self, job_id: str, job_name: str, error: str, attempts: int) -> None: ...

    async def run(self, text: str, *, refused: bool = True, **options: Any) -> None:
        """Let five jobs and the one that is refused end at the same time."""
        scheduler = self.scheduler
        await scheduler.start()
        await scheduler.enqueue("bad", args=(text,), job_id="bad", **options)
        others = [await scheduler.enqueue("good", keep_result=KEPT) for _ in range(5)]
        await self.seen.until(JobStarted, 6)
        self.gate.open.set()
        for job_id in others:
            assert (await scheduler.get_job_result(job_id, timeout=PATIENCE)).value == 1
        if refused:
            await self.seen.until(OutcomeRefused)
        assert scheduler.is_running


@pytest.fixture
async def jobs(make: Make, gate: Gate, pool: asyncpg.Pool) -> Jobs:
    scheduler = make(shutdown_timeout=0.2, stop_grace=0.1)
    await scheduler.initialize_db()
    return Jobs(scheduler, gate)


async def test_job_fails_with_the_error_of_the_trigger_that_refuses_its_own(
    jobs: Jobs, pool: asyncpg.Pool
) -> None:
    await refuse(pool, "NEW.error_message LIKE '%poison%'")
    await jobs.run("raise poison", max_retries=0)
    job = await jobs.scheduler.get_job("bad")
    assert job is not None
    assert (job.status, job.error_message) == (JobStatus.FAILED, REFUSED)
    assert [(entry.outcome, entry.message) for entry in job.errors] == [("refused", REFUSED)]
    (event,) = jobs.seen.of(OutcomeRefused)
    assert (event.job_id, event.error) == ("bad", "RaiseError: not this one")
    assert "without the error" in event.effect


async def test_job_whose_error_is_refused_keeps_its_retry(jobs: Jobs, pool: asyncpg.Pool) -> None:
    await refuse(pool, "NEW.error_message LIKE '%poison%'")
    await jobs.run("raise poison", max_retries=3)
    job = await jobs.scheduler.get_job("bad")
    assert job is not None
    assert (job.status, job.retry_count, job.error_message) == (JobStatus.PENDING, 1, REFUSED)


async def test_job_whose_value_is_refused_has_completed_without_it(jobs: Jobs, pool: asyncpg.Pool) -> None:
    check = "CHECK (value IS NULL OR value::text NOT LIKE '%poison%')"
    await pool.execute(f"ALTER TABLE scheduler_results ADD CONSTRAINT harmless {check}")
    await jobs.run("poison", keep_result=KEPT)
    result = await jobs.scheduler.get_job_result("bad")
    assert result.status is JobStatus.COMPLETED
    assert result.no_value_reason is not None
    assert "CheckViolationError" in result.no_value_reason
    assert "harmless" in result.no_value_reason


async def test_plain_completion_that_is_refused_fails_the_job(jobs: Jobs, pool: asyncpg.Pool) -> None:
    await refuse(pool, "NEW.job_id = 'bad' AND NEW.status = 'completed'")
    await jobs.run("fine")
    job = await jobs.scheduler.get_job("bad")
    assert job is not None
    assert (job.status, job.error_message) == (JobStatus.FAILED, REFUSED)
    assert jobs.seen.of(JobCompleted, job_id="bad") == []


@pytest.mark.parametrize("options", [{}, {"keep_result": KEPT}])
async def test_job_fails_when_a_trigger_suppresses_its_completion(
    jobs: Jobs, pool: asyncpg.Pool, options: dict[str, Any]
) -> None:
    await refuse(pool, "NEW.job_id = 'bad' AND NEW.status = 'completed'", action="RETURN NULL")
    await jobs.run("fine", **options)
    job = await jobs.scheduler.get_job("bad")
    assert job is not None
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    (event,) = jobs.seen.of(OutcomeRefused)
    assert "BEFORE UPDATE trigger that returns NULL (guard" in event.error
    assert not jobs.seen.of(JobLost)


async def test_outcome_that_the_table_refuses_is_not_reported_as_locked(
    jobs: Jobs, pool: asyncpg.Pool
) -> None:
    await refuse(pool, "NEW.job_id = 'bad' AND OLD.status = 'running'")
    await jobs.run("fine")
    runtime = worker_of(jobs.scheduler)
    runtime.completer.report_after_s = 0.0
    await runtime.completer.run_once()
    with pytest.raises(DatabaseUnavailableError, match="ended, because the table refuses them: bad"):
        await jobs.scheduler.shutdown()
    assert jobs.seen.of(OutcomesDelayed) == []


async def test_job_stays_running_when_a_trigger_suppresses_every_outcome(
    jobs: Jobs, pool: asyncpg.Pool
) -> None:
    await refuse(pool, "NEW.job_id = 'bad' AND OLD.status = 'running'", action="RETURN NULL")
    await jobs.run("fine")
    job = await jobs.scheduler.get_job("bad")
    assert job is not None
    assert (job.status, job.attempt) == (JobStatus.RUNNING, 1)
    (event,) = jobs.seen.of(OutcomeRefused)
    assert "nothing else was accepted" in event.effect
    assert not jobs.seen.of(JobLost)
    await pool.execute("DROP TRIGGER guard ON scheduled_jobs")
    await jobs.scheduler.shutdown()
    assert len(jobs.seen.of(JobCompleted, job_id="bad")) == 1


async def test_trigger_with_a_missing_table_of_its_own_stops_no_worker(
    jobs: Jobs, pool: asyncpg.Pool
) -> None:
    await refuse(pool, "NEW.job_id = 'bad' AND NEW.status = 'completed'", action="PERFORM FROM gone")
    await jobs.run("fine")
    job = await jobs.scheduler.get_job("bad")
    assert job is not None
    assert job.status is JobStatus.FAILED
    assert job.error_message is not None
    assert "UndefinedTableError" in job.error_message


def raising(state: str) -> str:
    return f"RAISE EXCEPTION 'not this one' USING ERRCODE = '{state}'"


@pytest.mark.parametrize("state", [state for state in STATES if state not in OUTAGES])
async def test_outcome_fails_its_job_alone_whatever_the_sqlstate_of_the_trigger(
    jobs: Jobs, pool: asyncpg.Pool, state: str
) -> None:
    await refuse(pool, "NEW.job_id = 'bad' AND NEW.status = 'completed'", action=raising(state))
    await jobs.run("fine")
    job = await jobs.scheduler.get_job("bad")
    assert job is not None
    assert job.status is JobStatus.FAILED


@pytest.mark.parametrize("state", sorted(OUTAGES))
async def test_outcome_waits_alone_when_the_trigger_that_refuses_it_has_the_sqlstate_of_an_outage(
    jobs: Jobs, pool: asyncpg.Pool, state: str
) -> None:
    await refuse(pool, "NEW.job_id = 'bad' AND NEW.status = 'completed'", action=raising(state))
    await jobs.run("fine", keep_result=KEPT)
    (event,) = jobs.seen.of(OutcomeRefused)
    assert "it waits" in event.effect
    await pool.execute("DROP TRIGGER guard ON scheduled_jobs")
    runtime = worker_of(jobs.scheduler)
    runtime.node.result_buffer.late.hurry()
    runtime.completer.wake()
    result = await jobs.scheduler.get_job_result("bad", timeout=PATIENCE)
    assert result.value == "fine", "nothing was lost"


@pytest.mark.parametrize("state", STATES)
async def test_consequences_that_are_refused_delay_no_others(
    jobs: Jobs, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    for follower, predecessor in {"bad": "first", "fine": "second", "good": "third"}.items():
        await jobs.scheduler.enqueue("good", job_id=predecessor)
        await jobs.scheduler.enqueue("good", job_id=follower, after=[predecessor])
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'completed', finished_at = now() WHERE blocked_on IS NULL"
    )
    await refuse(pool, "NEW.job_id = 'bad' AND NEW.blocked_on IS NULL", action=raising(state))
    await store_of(jobs.scheduler).consequences.apply_lost(10)
    rows = await pool.fetch("SELECT job_id FROM scheduled_jobs WHERE blocked_on IS NOT NULL")
    assert [row["job_id"] for row in rows] == ["bad"]
    assert "consequences of the end of job first refused by the table" in caplog.text


@pytest.mark.parametrize("options", [{}, {"keep_result": KEPT}])
async def test_completed_job_that_must_not_be_deleted_stays_completed_with_its_result(
    make: Make, pool: asyncpg.Pool, gate: Gate, options: dict[str, Any]
) -> None:
    scheduler = make(vacuum_config=VacuumConfig(completed=VacuumPolicy.immediate()))
    await scheduler.initialize_db()
    await pool.execute("CREATE TABLE orders (job_id text REFERENCES scheduled_jobs (job_id))")
    jobs = Jobs(scheduler, gate)
    gate.open.set()
    await scheduler.enqueue("bad", args=("fine",), job_id="bad", **options)
    await pool.execute("INSERT INTO orders VALUES ('bad')")
    await scheduler.start()
    await jobs.seen.until(JobCompleted, job_id="bad")
    (event,) = jobs.seen.of(OutcomeRefused)
    assert event.effect == "the job is deleted later"
    job = await scheduler.get_job("bad")
    assert job is not None
    assert job.status is JobStatus.COMPLETED
    if options:
        assert (await scheduler.get_job_result("bad")).value == "fine"


async def test_row_security_policy_that_refuses_an_outcome_concerns_that_job_only(
    make: Make, pool: asyncpg.Pool, dsn: str, gate: Gate
) -> None:
    role = f"tenant_{uuid.uuid4().hex}"
    await pool.execute(f"CREATE ROLE {role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    try:
        async with asyncpg.create_pool(dsn, min_size=1, server_settings={"role": role}) as own_pool:
            scheduler = make(own_pool, migrations="verify")
            await pool.execute(
                "ALTER TABLE scheduled_jobs ENABLE ROW LEVEL SECURITY; "
                "CREATE POLICY harmless ON scheduled_jobs "
                "USING (true) WITH CHECK (job_id <> 'bad' OR status <> 'completed')"
            )
            await Jobs(scheduler, gate).run("fine")
            job = await scheduler.get_job("bad")
            await scheduler.shutdown()
    finally:
        await pool.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert job is not None
    assert job.status is JobStatus.FAILED
    assert job.error_message is not None
    assert "row security policy" in job.error_message


async def test_job_ends_although_its_alert_is_refused_and_the_alert_follows(
    jobs: Jobs, pool: asyncpg.Pool
) -> None:
    await refuse(pool, "NEW.job_name = 'alert'", on="INSERT")
    jobs.scheduler.register(jobs.bad, name="bad", on_failure="alert", max_retries=0)
    await jobs.run("raise fault")
    job = await jobs.scheduler.get_job("bad")
    assert job is not None
    assert (job.status, job.error_message) == (JobStatus.FAILED, "ValueError: raise fault")
    (event,) = jobs.seen.of(OutcomeRefused)
    assert "written later" in event.effect
    store = store_of(jobs.scheduler)
    async with asyncio.timeout(PATIENCE):
        while "bad" not in refused_consequences(jobs.scheduler):  # noqa: ASYNC110 - the scan is refused again
            await asyncio.sleep(0.01)
    assert await store.consequences.apply_lost(10) == 0, "it has a pause"
    await pool.execute("DROP TRIGGER guard ON scheduled_jobs")
    refused_consequences(jobs.scheduler).clear()
    await store.consequences.apply_lost(10)
    count_alerts = "SELECT count(*) FROM scheduled_jobs WHERE job_name = 'alert'"
    async with asyncio.timeout(PATIENCE):
        while await pool.fetchval(count_alerts) == 0:  # noqa: ASYNC110 - a scan of the worker may write it
            await asyncio.sleep(0.01)
    assert await pool.fetchval(count_alerts) == 1


async def test_job_for_which_the_table_accepts_nothing_waits_and_the_shutdown_names_it(
    jobs: Jobs, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, pause_of_refused_outcomes_s=0.05)
    await refuse(pool, "NEW.job_id = 'bad' AND NEW.status <> 'running'")
    await jobs.run("raise fault", max_retries=0)
    job = await jobs.scheduler.get_job("bad")
    assert job is not None
    assert job.status is JobStatus.RUNNING
    assert "it waits" in jobs.seen.of(OutcomeRefused)[0].effect
    with pytest.raises(DatabaseUnavailableError, match="bad"):
        await jobs.scheduler.shutdown()


async def test_job_for_which_the_table_accepts_nothing_ends_when_the_trigger_is_gone(
    jobs: Jobs, pool: asyncpg.Pool
) -> None:
    await refuse(pool, "NEW.job_id = 'bad' AND NEW.status <> 'running'")
    await jobs.run("raise fault", max_retries=0, keep_result=KEPT)
    await pool.execute("DROP TRIGGER guard ON scheduled_jobs")
    runtime = worker_of(jobs.scheduler)
    runtime.node.result_buffer.late.hurry()
    runtime.completer.wake()
    result = await jobs.scheduler.get_job_result("bad", timeout=PATIENCE)
    assert result.error is not None
    assert result.error.message == "raise fault", "nothing was lost"


async def test_progress_that_is_refused_is_dropped_and_that_of_others_is_written(
    make: Make, pool: asyncpg.Pool, gate: Gate
) -> None:
    scheduler = make()
    await scheduler.initialize_db()
    await pool.execute(
        "ALTER TABLE scheduled_jobs ADD CONSTRAINT harmless "
        "CHECK (progress IS NULL OR progress ->> 'note' <> 'poison')"
    )

    async def work(note: str) -> None:
        current_job().progress(1, 2, note)
        await gate.job()

    seen = Recorder(scheduler)
    scheduler.register(work, name="work")
    await scheduler.start()
    for note in ("fine", "poison", "good"):
        await scheduler.enqueue("work", args=(note,), job_id=note)
    await seen.until(JobProgressed, 3)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE progress IS NOT NULL") == 2
    assert scheduler.is_running
    gate.open.set()
