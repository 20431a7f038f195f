"""`pg-scheduler import apscheduler`, on job stores that APScheduler 3 has written."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from pg_scheduler import CatchUp, Overlap, Scheduler
from pg_scheduler.importing.apscheduler import KEYS, cron_of
from pg_scheduler.importing.imported import NotImportedError
from pg_scheduler.triggers import Every
from tests.cli.conftest import Read, Run
from tests.support.cases import each_case
from tests.support.inside import ExitCode

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
NAMELESS = dict.fromkeys(KEYS)


def remind(*_args: object, **_kwargs: object) -> None: ...


TASK = f"{remind.__module__}.remind"


class NotJson:
    """What only a pickle can hold."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.sqlite'}"


@pytest.fixture
def old(url: str) -> Iterator[BackgroundScheduler]:
    """A scheduler that stores jobs and runs none."""
    scheduler = BackgroundScheduler(jobstores={"default": SQLAlchemyJobStore(url=url)}, timezone=BERLIN)
    scheduler.start(paused=True)
    yield scheduler
    scheduler.shutdown()


@pytest.fixture
def on(call: Run, dsn: str, url: str) -> Callable[..., list[dict[str, Any]]]:
    """Import the store, and return the rows of the output."""

    def run(*arguments: str) -> list[dict[str, Any]]:
        ran = call("import", "apscheduler", url, "--dsn", dsn, "-o", "jsonl", *arguments)
        assert ran.code == 0, ran.err
        return ran.checked("imported")

    return run


On = Callable[..., list[dict[str, Any]]]


def store_all(old: BackgroundScheduler) -> None:
    """Store a job of each kind that can be imported."""
    old.add_job(remind, "date", run_date=NOW + HOUR, args=["Ada"], kwargs={"n": 1}, id="once", name="For Ada")
    old.add_job(remind, "interval", minutes=90, id="often", next_run_time=NOW + HOUR)
    trigger = CronTrigger(day_of_week="0-4", hour=9, timezone=BERLIN, jitter=30)
    old.add_job(remind, trigger, id="workdays", max_instances=3, coalesce=False)
    old.add_job(remind, "interval", hours=2, id="paused", next_run_time=None, end_date=NOW + 99 * HOUR)


def test_jobs_become_jobs_and_schedules_with_their_next_run_time(
    old: BackgroundScheduler, on: On, read: Read
) -> None:
    store_all(old)
    rows = {row["source_id"]: row for row in on()}
    assert {(row["result"], row["reason"]) for row in rows.values()} == {("imported", None)}
    assert {row["task"] for row in rows.values()} == {TASK}

    async def check(scheduler: Scheduler) -> None:
        job = await scheduler.get_job("aps:once")
        assert job is not None
        assert (job.job_name, job.execution_time) == (TASK, NOW + HOUR)
        assert (job.args, job.kwargs, job.metadata) == (("Ada",), {"n": 1}, {"name": "For Ada"})
        assert job.misfire_grace_time is None
        often, workdays, paused = [
            await scheduler.schedules.get(f"aps:{name}") for name in ("often", "workdays", "paused")
        ]
        assert often is not None
        assert (often.trigger, often.next_fire_at) == (Every(minutes=90), NOW + HOUR)
        assert (often.overlap, often.catch_up) == (Overlap.SKIP, CatchUp.latest())
        assert often.misfire_grace_time is None
        assert workdays is not None
        assert (workdays.overlap, workdays.catch_up) == (Overlap.ALLOW, CatchUp.all())
        assert workdays.jitter == timedelta(seconds=30)
        due = old.get_job("workdays").next_run_time
        assert abs(workdays.upcoming(1)[0] - due) <= timedelta(seconds=30)
        assert workdays.upcoming(1)[0].astimezone(BERLIN).hour == 9
        assert paused is not None
        assert paused.paused_at is not None
        assert paused.end == NOW + 99 * HOUR

    read(check)


def test_dry_run_stores_nothing_and_a_second_import_changes_nothing(
    old: BackgroundScheduler, on: On, read: Read
) -> None:
    async def counts(scheduler: Scheduler) -> list[int]:
        tables = ("scheduled_jobs", "scheduler_schedules")
        return [await scheduler.db_pool.fetchval(f"SELECT count(*) FROM {table}") for table in tables]

    store_all(old)
    assert {row["result"] for row in on("--dry-run")} == {"imported"}
    assert read(counts) == [0, 0]
    on()
    first = read(lambda scheduler: scheduler.schedules.get("aps:often"))
    assert {row["result"] for row in on()} == {"exists"}
    assert read(counts) == [1, 3]
    assert read(lambda scheduler: scheduler.schedules.get("aps:often")) == first


def test_repeated_import_does_not_add_a_schedule_that_was_removed(
    old: BackgroundScheduler, on: On, read: Read
) -> None:
    store_all(old)
    on()
    read(lambda scheduler: scheduler.schedules.remove("aps:often"))
    results = {row["source_id"]: row["result"] for row in on()}
    assert results.pop("often") == "left out"
    assert set(results.values()) == {"exists"}
    assert {row["source_id"] for row in on("--again") if row["result"] == "imported"} == {"often"}


def test_schedule_whose_next_run_has_passed_does_not_run_at_once(
    old: BackgroundScheduler, on: On, read: Read
) -> None:
    late = NOW - timedelta(minutes=61)
    old.add_job(remind, "interval", hours=1, id="interval", next_run_time=late)
    old.add_job(remind, CronTrigger(minute=30, timezone=BERLIN), id="cron", next_run_time=late)
    on()

    async def check(scheduler: Scheduler) -> None:
        interval, cron = [await scheduler.schedules.get(f"aps:{name}") for name in ("interval", "cron")]
        assert interval is not None
        assert cron is not None
        assert interval.next_fire_at is not None
        assert cron.next_fire_at is not None
        assert min(interval.next_fire_at, cron.next_fire_at) > NOW
        assert cron.next_fire_at.minute == 30
        assert (interval.next_fire_at - late) % HOUR == timedelta(0)  # it keeps its rhythm

    read(check)


def test_job_without_an_equivalent_is_listed_with_the_reason_and_kept(
    old: BackgroundScheduler, on: On, url: str
) -> None:
    either = OrTrigger([IntervalTrigger(hours=1), IntervalTrigger(hours=5)])
    old.add_job(remind, either, id="either")
    old.add_job(remind, CronTrigger(year=2030, timezone=BERLIN), id="year")
    old.add_job(remind, "date", run_date=NOW + HOUR, args=[NotJson()], id="pickled")
    old.add_job(remind, "date", run_date=NOW + HOUR, id="paused")
    old.pause_job("paused")
    old.add_job(remind, "date", run_date=NOW + HOUR, id="good")
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        insert = "INSERT INTO apscheduler_jobs VALUES (?, 1.0, ?)"
        naive = {**NAMELESS, "func": "shop:send", "next_run_time": NOW.replace(tzinfo=None)}
        states = {"foreign": {}, "nameless": NAMELESS, "naive": naive}
        pickles = {"broken": b"\0", **{name: pickle.dumps(state) for name, state in states.items()}}
        connection.executemany(insert, pickles.items())
    rows = {row["source_id"]: row for row in on()}
    reasons = {name: row["reason"] for name, row in rows.items() if row["result"] == "left out"}
    assert set(reasons) == {"either", "year", "pickled", "paused", *pickles}
    assert "OrTrigger" in reasons["either"]
    assert "years" in reasons["year"]
    assert "args[0]" in reasons["pickled"]
    assert "paused" in reasons["paused"]
    assert "UnpicklingError" in reasons["broken"]
    assert "'args'" in reasons["foreign"]
    assert "None has no name" in reasons["nameless"]
    assert "no time with a time zone" in reasons["naive"]
    assert rows["good"]["result"] == "imported"
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:  # the store's own methods delete it
        assert connection.execute("SELECT count(*) FROM apscheduler_jobs").fetchone() == (9,)


def test_store_in_postgresql_is_imported(call: Run, dsn: str) -> None:
    url = dsn.replace("postgresql://", "postgresql+psycopg2://")
    store = SQLAlchemyJobStore(url=url, tablename="old_jobs")
    scheduler = BackgroundScheduler(jobstores={"default": store}, timezone=BERLIN)
    scheduler.start(paused=True)
    scheduler.add_job(remind, "interval", hours=1, id="hourly")
    scheduler.shutdown()
    ran = call("import", "apscheduler", url, "--table", "old_jobs", "--dsn", dsn)
    assert ran.code == 0, ran.err
    assert "1 imported, 0 existed, 0 left out" in ran.err


def test_store_in_a_file_that_does_not_exist_is_a_usage_error_and_no_file_is_made(
    call: Run, dsn: str, url: str
) -> None:
    file = Path(url.removeprefix("sqlite:///"))
    ran = call("import", "apscheduler", url, "--dsn", dsn)
    assert ran.code == ExitCode.USAGE
    assert f"the job store cannot be read: the file {str(file)!r} does not exist; pass" in ran.err
    assert not file.exists()
    file.touch()
    ran = call("import", "apscheduler", url, "--dsn", dsn)
    assert ran.code == ExitCode.USAGE
    assert "the database has no table apscheduler_jobs; pass its name by --table" in ran.err
    file.write_text("no database " * 100, encoding="utf-8")
    assert call("import", "apscheduler", url, "--dsn", dsn).code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("store", "problem", "code"),
    [
        ("nope", "pass a URL of SQLAlchemy such as", ExitCode.USAGE),
        ("", "pass a URL of SQLAlchemy such as", ExitCode.USAGE),
        ("nope://localhost/old", "sqlalchemy.dialects:nope", ExitCode.USAGE),
        ("mssql+pymssql://localhost/old", "install the driver of the URL", ExitCode.USAGE),
        ("postgresql+psycopg2://localhost:s3cr3t/old", "the URL is invalid", ExitCode.USAGE),
        ("postgresql+asyncpg://127.0.0.1:1/old", "the driver asyncpg is for asyncio", ExitCode.USAGE),
        ("postgresql+psycopg2://127.0.0.1:1/old", "127.0.0.1", ExitCode.UNAVAILABLE),
    ],
)
def test_url_that_cannot_be_used_is_a_usage_error_and_a_server_that_cannot_be_reached_unavailable(
    call: Run, dsn: str, store: str, problem: str, code: ExitCode
) -> None:
    ran = call("import", "apscheduler", store, "--dsn", dsn)
    assert ran.code == code
    assert "the job store cannot be read" in ran.err
    assert problem in ran.err
    assert "s3cr3t" not in ran.err


@each_case(
    ("fields", "expression"),
    [
        ({"hour": 3}, "0 3 * * *"),
        ({"day_of_week": "0-4", "hour": 9, "minute": 30}, "30 9 * * mon,tue,wed,thu,fri"),
        ({"day_of_week": "6"}, "0 0 * * sun"),
        ({"day_of_week": "*/2"}, "0 0 * * mon,wed,fri,sun"),
        ({"second": "*/10"}, "* * * * * */10"),
        ({"minute": "5/20"}, "5-59/20 * * * *"),
        ({"month": "jan-mar", "day": 1}, "0 0 1 jan-mar *"),
        ({"day": "last"}, "0 0 L * *"),
        ({"day": "2nd fri"}, "0 0 * * 5#2"),
        ({"day": "last sun"}, "0 0 * * L0"),
    ],
)
def test_cron_trigger_becomes_an_expression_with_the_same_fire_times(
    fields: dict[str, Any], expression: str
) -> None:
    assert getattr(cron_of(CronTrigger(**fields, timezone=BERLIN), NOW), "expression", None) == expression


def test_day_and_weekday_must_both_match() -> None:
    found = cron_of(CronTrigger(day="1-7", day_of_week="mon", hour=9, timezone=BERLIN), NOW)
    assert all(fire.astimezone(BERLIN).weekday() == 0 for fire in found.upcoming(5, after=NOW))
    assert all(fire.astimezone(BERLIN).day <= 7 for fire in found.upcoming(5, after=NOW))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"week": 1}, "years or weeks"),
        ({"day": "1st mon", "day_of_week": "tue"}, "restricts weekdays"),
        ({"day": "5,last"}, "day of month"),
    ],
)
def test_cron_trigger_without_an_equal_expression_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotImportedError, match=reason):
        cron_of(CronTrigger(**fields, timezone=BERLIN), NOW)
