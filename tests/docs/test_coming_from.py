"""The page about migrating names what APScheduler exports, and its own column only what exists here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

import pg_scheduler
from pg_scheduler import (
    CatchUp,
    CurrentJob,
    Job,
    JobResult,
    Schedule,
    Scheduler,
    Steps,
    events,
    sync,
    triggers,
)
from pg_scheduler.scheduler.schedules import Schedules
from pg_scheduler.scheduler.tasks import Tasks
from pg_scheduler.testing import TestScheduler
from tests.docs.snippets import ROOT
from tests.support.cases import each_case

PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
DURABLE = (ROOT / "docs" / "coming-from-durable.md").read_text(encoding="utf-8")

APSCHEDULER_3 = {
    "schedulers": "AsyncIOScheduler BackgroundScheduler BlockingScheduler GeventScheduler QtScheduler "
    "TornadoScheduler TwistedScheduler",
    "settings": "jobstores executors job_defaults timezone jobstore_retry_interval logger",
    "executors": "AsyncIOExecutor DebugExecutor GeventExecutor ProcessPoolExecutor ThreadPoolExecutor "
    "TornadoExecutor TwistedExecutor",
    "methods": "configure start shutdown pause resume running state wakeup add_executor remove_executor "
    "add_jobstore remove_jobstore add_listener remove_listener add_job scheduled_job modify_job "
    "reschedule_job pause_job resume_job get_jobs get_job remove_job remove_all_jobs print_jobs export_jobs "
    "import_jobs",
    "members of a job": "job.modify job.reschedule job.pause job.resume job.remove job.pending "
    "job.next_run_time",
    "options of a job": "func trigger args kwargs id name misfire_grace_time coalesce max_instances "
    "next_run_time jobstore executor replace_existing",
    "triggers": "DateTrigger IntervalTrigger CalendarIntervalTrigger CronTrigger AndTrigger OrTrigger "
    "BaseTrigger from_crontab get_next_fire_time",
    "options of a trigger": "run_date start_date end_date timezone jitter years months weeks days hours "
    "minutes seconds year month week day day_of_week hour minute second",
    "events": "EVENT_SCHEDULER_STARTED EVENT_SCHEDULER_SHUTDOWN EVENT_SCHEDULER_PAUSED "
    "EVENT_SCHEDULER_RESUMED EVENT_EXECUTOR_ADDED EVENT_EXECUTOR_REMOVED EVENT_JOBSTORE_ADDED "
    "EVENT_JOBSTORE_REMOVED "
    "EVENT_ALL_JOBS_REMOVED EVENT_JOB_ADDED EVENT_JOB_REMOVED EVENT_JOB_MODIFIED EVENT_JOB_SUBMITTED "
    "EVENT_JOB_MAX_INSTANCES EVENT_JOB_EXECUTED EVENT_JOB_ERROR EVENT_JOB_MISSED",
}
APSCHEDULER_4 = {
    "the package": "current_async_scheduler current_job current_scheduler task CoalescePolicy ConflictPolicy "
    "JobOutcome RunState SchedulerRole DataStoreEvent Event JobAcquired JobAdded JobDeserializationFailed "
    "JobReleased JobRemoved ScheduleAdded ScheduleDeserializationFailed ScheduleRemoved SchedulerEvent "
    "SchedulerStarted SchedulerStopped ScheduleUpdated TaskAdded TaskRemoved TaskUpdated CallableLookupError "
    "ConflictingIdError DeserializationError JobCancelled JobDeadlineMissed JobLookupError JobResultNotReady "
    "MaxIterationsReached ScheduleLookupError SerializationError TaskLookupError RetryMixin RetrySettings "
    "AsyncScheduler Scheduler Job JobResult Schedule ScheduleResult Task TaskDefaults UnsetValue unset",
    "settings": "data_store event_broker identity role task_defaults max_concurrent_jobs job_executors "
    "cleanup_interval lease_duration logger",
    "methods": "state cleanup subscribe get_next_event configure_task get_tasks add_schedule get_schedule "
    "get_schedules remove_schedule pause_schedule unpause_schedule add_job get_jobs get_job_result run_job "
    "stop wait_until_stopped start_in_background run_until_stopped",
    "options": "id args paused coalesce job_executor misfire_grace_time metadata max_jitter max_running_jobs "
    "job_result_expiration_time result_expiration_time conflict_policy resume_from one_shot is_async wait",
    "outcomes": "success error missed_start_deadline cancelled abandoned deserialization_failed",
    "policies": "earliest latest all replace do_nothing exception",
    "fields": "task_id next_fire_time last_fire_time scheduled_fire_time original_scheduled_time jitter "
    "start_deadline acquired_by acquired_until outcome return_value exception",
    "interfaces": "DataStore EventBroker Subscription JobExecutor Serializer Trigger unsubscribe",
    "stores and brokers": "MemoryDataStore MongoDBDataStore SQLAlchemyDataStore AsyncpgEventBroker "
    "LocalEventBroker MQTTEventBroker PsycopgEventBroker RedisEventBroker reap_abandoned_jobs "
    "start_from_scratch",
    "executors": "AsyncJobExecutor ProcessPoolJobExecutor QtJobExecutor ThreadPoolJobExecutor",
    "serializers": "CBORSerializer JSONSerializer PickleSerializer",
    "triggers": "DateTrigger IntervalTrigger CalendarIntervalTrigger CronTrigger AndTrigger OrTrigger "
    "from_crontab run_time start_time end_time threshold max_iterations next __getstate__ __setstate__",
}


def section(heading: str, page: str = PAGE) -> str:
    start = page.index(f"## {heading}\n")
    end = page.find("\n## ", start)
    return page[start : end if end >= 0 else len(page)]


def rows(text: str) -> Iterator[list[str]]:
    """Yield the cells of the tables."""
    for line in text.splitlines():
        if line.startswith("| "):
            yield [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def code_in(text: str) -> str:
    return " ".join(re.findall(r"`([^`]+)`", text))


def their_names(heading: str) -> str:
    """Return the code in the columns about APScheduler."""
    found = [*rows(section(heading)), *rows(section("Triggers of APScheduler"))]
    return code_in(" ".join(cell for row in found for cell in row[:-1]))


@each_case(
    ("heading", "names"),
    [
        *(("From APScheduler 3", f"{kind}: {names}") for kind, names in APSCHEDULER_3.items()),
        *(("From APScheduler 4", f"{kind}: {names}") for kind, names in APSCHEDULER_4.items()),
    ],
)
def test_migration_page_names_everything_of_apscheduler(heading: str, names: str) -> None:
    text = their_names(heading)
    missing = [
        name
        for name in names.partition(": ")[2].split()
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
    ]
    assert not missing


def own_names() -> set[str]:
    """Return the names of public classes, functions, methods, fields and parameters of this library."""
    names = {*pg_scheduler.__all__, *events.__all__, *sync.__all__, *triggers.__all__, "TestScheduler"}
    classes = (
        *(CatchUp, CurrentJob, Job, JobResult, Schedule, Scheduler, Schedules, Steps, Tasks),
        triggers.Trigger,
    )
    members = [(name, getattr(cls, name)) for cls in classes for name in dir(cls) if name[0] != "_"]
    values = [getattr(module, name) for module in (pg_scheduler, events, triggers) for name in module.__all__]
    for value in (*values, *(value for _, value in members)):
        if callable(value):
            with suppress(TypeError, ValueError):  # a built-in without a signature
                names |= set(inspect.signature(value).parameters)
    return names | {name for name, _ in members}


FOREIGN = {
    "True",
    "False",
    "None",
    "timedelta",
    "time",
    "date",
    "TimeoutError",
    "pg_dump",
    "to_thread",
    "asyncio",
    "print",
}


def test_migration_pages_name_only_what_exists_here() -> None:
    """Check calls, parameters and classes in the columns about this library."""
    known = own_names() | FOREIGN
    unknown = {}
    pages = {
        PAGE: ("From APScheduler 3", "From APScheduler 4", "Triggers of APScheduler"),
        DURABLE: ("From DBOS", "From absurd", "From Temporal"),
    }
    for text in (section(heading, page) for page, headings in pages.items() for heading in headings):
        for row in rows(text):
            code = re.sub(r'"[^"]*"', '""', code_in(row[-1]))
            words = re.findall(r"(\w+)(?:\(|=(?!=))|\b([A-Z]\w*[a-z]\w*)\b", code)
            if wrong := {first or second for first, second in words} - known:
                unknown[row[0]] = wrong
    assert unknown == {}


async def test_durable_job_starts_once_per_id_and_continues_at_the_first_step_that_is_not_stored(
    pool: asyncpg.Pool,
) -> None:
    calls: list[str] = []

    async def call_step(name: str) -> None:
        calls.append(name)
        if calls.count("charge") == 1:
            raise ValueError(name)

    async def order() -> None:
        steps = pg_scheduler.current_job().steps
        await steps.run("quote", call_step, "quote")
        await steps.run("charge", call_step, "charge")

    async with TestScheduler(pool) as t:
        for _ in range(2):
            ignore = pg_scheduler.ConflictResolution.IGNORE
            assert await t.scheduler.enqueue(order, job_id="7", conflict_resolution=ignore) == "7"
        with pytest.raises(pg_scheduler.JobConflictError):
            await t.scheduler.enqueue(order, job_id="7")
        await t.drain()
        assert await t.scheduler.get_value("7", "address") is None
        assert await t.scheduler.retry_job("7")
        await t.drain()
    assert calls == ["quote", "charge", "charge"]


@pytest.mark.parametrize(("is_next_run", "runs_at_once"), [(False, 1), (True, 0)])
async def test_moved_interval_fires_at_once_unless_it_starts_at_its_next_run(
    pool: asyncpg.Pool, is_next_run: bool, runs_at_once: int
) -> None:
    now, every = datetime(2030, 1, 1, 10, tzinfo=UTC), timedelta(hours=6)
    start_date, next_run_time = datetime(2025, 1, 1, 3, tzinfo=UTC), datetime(2030, 1, 1, 15, tzinfo=UTC)
    assert (next_run_time - start_date) % every == timedelta(0)

    async def clean() -> None: ...

    async with TestScheduler(pool, now=now) as t:
        start = next_run_time if is_next_run else start_date
        moved = await t.scheduler.schedules.add(
            clean, triggers.Every(every), schedule_id="clean", start=start
        )
        await t.drain()
        assert t.ran(clean) == runs_at_once
        await t.run_until(next_run_time)
        assert t.ran(clean) == runs_at_once + 1
        moved_on = await t.scheduler.schedules.get(moved.schedule_id)
        assert moved_on is not None
        assert moved_on.next_fire_at == next_run_time + every
