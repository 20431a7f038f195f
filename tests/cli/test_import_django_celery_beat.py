"""`pg-scheduler import django-celery-beat`, on tables that a Django project has made and filled.

Django is configured once per process, so the project and the command run in processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pg_scheduler import CatchUp, Overlap, Scheduler
from pg_scheduler.jobs.validation import MAX_INTEGER
from pg_scheduler.triggers import Cron, Every
from tests.cli.conftest import Ran, Read
from tests.support.inside import ExitCode
from tests.support.transactions import django_address

pytest.importorskip(
    "django_celery_beat", reason="dev.py has not updated this environment, or it has Django 6"
)

from django_celery_beat.tzcrontab import TzAwareCrontab

from pg_scheduler.importing.django_celery_beat import cron_of
from tests.support.cases import each_case

pytestmark = pytest.mark.slow  # programs start and end

NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
BERLIN = ZoneInfo("Europe/Berlin")

SETTINGS = """
from celery import Celery

Celery("shop").config_from_object({{"timezone": "Europe/Berlin"}})
INSTALLED_APPS = {applications}
DATABASES = {{"default": {database}}}
TIME_ZONE = "Europe/Berlin"
USE_TZ = True
"""

FILL = """
from datetime import datetime, timedelta
import django
django.setup()
from django.core.management import call_command
from django_celery_beat.models import *
call_command("migrate", verbosity=0)
NOW, HOUR = datetime.fromisoformat("{now}"), timedelta(hours=1)
hourly = IntervalSchedule.objects.create(every=1, period="hours")
nine = CrontabSchedule.objects.create(minute="0", hour="9", day_of_week="mon-fri", timezone="Europe/Berlin")
clock = ClockedSchedule.objects.create(clocked_time=NOW + HOUR)
solar = SolarSchedule.objects.create(event="sunset", latitude=52.5, longitude=13.4)

def task(name, **values):
    PeriodicTask.objects.create(**{{"name": name, "task": "shop.send", **values}})

"""

IMPORTED = """
task("hourly", interval=hourly, args='["Ada"]', kwargs='{"n": 1}', last_run_at=NOW - HOUR / 4)
task("late", interval=hourly, last_run_at=NOW - 3 * HOUR - HOUR / 4)
task("later", interval=hourly, start_time=NOW + 5 * HOUR)
task("workdays", crontab=nine, queue="mail", priority=7, headers='{"tenant": "a"}', expire_seconds=120)
task("ends", crontab=nine, expires=NOW + 99 * HOUR, start_time=NOW - HOUR)
task("paused", interval=hourly, enabled=False)
task("first", crontab=nine, one_off=True)
task("once", clocked=clock, one_off=True, description="For Ada")
task("expires", clocked=clock, one_off=True, expires=NOW + HOUR + timedelta(seconds=90))
task("soon", clocked=clock, one_off=True, expire_seconds=60)
task("far", clocked=clock, one_off=True, expires=NOW.replace(year=9998, day=1))
passed = ClockedSchedule.objects.create(clocked_time=NOW - HOUR)
task("passed", clocked=passed, one_off=True, expire_seconds=60)
task("passed, expires", clocked=passed, one_off=True, expires=NOW + HOUR)
"""

LEFT_OUT = """
task("sunset", solar=solar)
task("cleanup", crontab=nine, task="celery.backend_cleanup")
task("has run", interval=hourly, one_off=True, total_run_count=1)
task("disabled", clocked=clock, one_off=True, enabled=False)
task("too late", clocked=clock, one_off=True, expires=NOW + HOUR / 2)
task("over", interval=hourly, expires=NOW - HOUR)
task("ends", interval=hourly, expires=NOW + HOUR / 2)
task("not JSON", interval=hourly, args="[1")
task("object", interval=hourly, args='{"n": 1}')
task("moment", interval=hourly, args='[{"__type__": "datetime", "__value__": "2030-01-01T00:00:00+00:00"}]')
task("broken", crontab=CrontabSchedule.objects.create(hour="25"))
task("tiny", interval=IntervalSchedule.objects.create(every=1, period="microseconds"))
task("vast", interval=IntervalSchedule.objects.create(every=2_000_000_000, period="days"))
task("neither", interval=hourly)
PeriodicTask.objects.filter(name="neither").update(interval=None)
"""


@pytest.fixture
def project(tmp_path: Path, dsn: str) -> Callable[..., None]:
    """Make a project, its tables and the periodic tasks that the code creates."""

    def make(
        code: str | None,
        *,
        database: str = "sqlite",
        applications: tuple[str, ...] = ("django_celery_beat",),
        more: str = "",
    ) -> None:
        address: dict[str, Any] = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(tmp_path / "old.sqlite"),
        }
        if database == "postgresql":
            address = {"ENGINE": "django.db.backends.postgresql", **django_address(dsn)}
        settings = SETTINGS.format(applications=applications, database=address)
        (tmp_path / "shop_settings.py").write_text(settings + more, encoding="utf-8")
        if code is not None:
            (tmp_path / "fill.py").write_text(FILL.format(now=NOW.isoformat()) + code, encoding="utf-8")
            subprocess.run([sys.executable, "fill.py"], env=ENVIRONMENT, check=True)

    return make


@pytest.fixture
def run(dsn: str) -> Callable[..., Ran]:
    """Run the command in the folder of the project."""

    def command(*arguments: str, settings: str = "shop_settings") -> Ran:
        words = ["import", "django-celery-beat", "--settings", settings, "--dsn", dsn, "-o", "jsonl"]
        ran = subprocess.run(
            [sys.executable, "-m", "pg_scheduler", *words, *arguments],
            check=False,
            capture_output=True,
            text=True,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    return command


ENVIRONMENT = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop_settings"}
Project = Callable[..., None]
Import = Callable[..., Ran]


@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_tasks_become_jobs_and_schedules_with_their_next_run_time(
    project: Project, run: Import, read: Read, database: str
) -> None:
    project(IMPORTED, database=database)
    ran = run()
    assert ran.code == 0, ran.err
    assert {(row["result"], row["reason"]) for row in ran.checked("imported")} == {("imported", None)}
    assert "13 imported, 0 existed, 0 left out" in ran.err

    async def check(scheduler: Scheduler) -> None:
        found = {
            each.schedule_id.removeprefix("celery:"): each for each in (await scheduler.schedules.list())
        }
        hourly, workdays, ends = found["hourly"], found["workdays"], found["ends"]
        assert (hourly.trigger, hourly.next_fire_at) == (Every(hours=1), NOW + HOUR * 3 / 4)
        assert (hourly.task, hourly.args, hourly.kwargs) == ("shop.send", ("Ada",), {"n": 1})
        assert (hourly.overlap, hourly.catch_up) == (Overlap.ALLOW, CatchUp.latest())
        assert hourly.misfire_grace_time is None
        assert (
            found["late"].next_fire_at == NOW + HOUR * 3 / 4
        )  # it keeps its rhythm, and does not run at once
        assert found["later"].next_fire_at == NOW + 5 * HOUR
        assert workdays.trigger == Cron("0 9 * * mon-fri", timezone="Europe/Berlin")
        assert workdays.metadata == {"queue": "mail", "priority": 7, "headers": {"tenant": "a"}}
        assert (workdays.misfire_grace_time, workdays.max_runs, workdays.paused_at) == (120, None, None)
        assert ends.end == NOW + 99 * HOUR - timedelta(microseconds=1)
        assert ends.next_fire_at is not None
        assert ends.next_fire_at > NOW
        assert found["paused"].paused_at is not None
        assert found["first"].max_runs == 1
        once, expires = [await scheduler.get_job(f"celery:{name}") for name in ("once", "expires")]
        assert once is not None
        assert (once.execution_time, once.misfire_grace_time) == (NOW + HOUR, None)
        assert once.metadata == {"description": "For Ada"}
        assert expires is not None
        assert expires.misfire_grace_time == 90
        expiries = {"soon": 60, "far": MAX_INTEGER, "passed": None, "passed, expires": 7200}
        jobs = {name: await scheduler.get_job(f"celery:{name}") for name in expiries}
        assert {name: job and job.misfire_grace_time for name, job in jobs.items()} == expiries

    read(check)


def test_dry_run_stores_nothing_and_a_second_import_changes_nothing(
    project: Project, run: Import, read: Read
) -> None:
    async def counts(scheduler: Scheduler) -> list[int]:
        tables = ("scheduled_jobs", "scheduler_schedules")
        return [await scheduler.db_pool.fetchval(f"SELECT count(*) FROM {table}") for table in tables]

    project(IMPORTED)
    assert {row["result"] for row in run("--dry-run").checked("imported")} == {"imported"}
    assert read(counts) == [0, 0]
    run()
    first = read(lambda scheduler: scheduler.schedules.get("celery:hourly"))
    assert {row["result"] for row in run().checked("imported")} == {"exists"}
    assert read(counts) == [6, 7]
    assert read(lambda scheduler: scheduler.schedules.get("celery:hourly")) == first


def test_task_without_an_equivalent_is_listed_with_the_reason(project: Project, run: Import) -> None:
    project(LEFT_OUT)
    ran = run()
    assert ran.code == 0, ran.err
    reasons = {row["source_id"]: row["reason"] for row in ran.checked("imported")}
    assert {row["result"] for row in ran.lines} == {"left out"}
    expected = {
        "sunset": "sun",
        "cleanup": "result backend",
        "has run": "has run",
        "disabled": "disabled",
        "too late": "expires before it is due",
        "over": "it expired",
        "ends": "before its next run at",
        "not JSON": "args cannot be read",
        "object": "args must be a list",
        "moment": "args[0] is a datetime.datetime, which JSON cannot represent; add it by pg-scheduler "
        "schedules add",
        "broken": "crontab is invalid",
        "tiny": "interval of 0:00:00.000001",
        "vast": "magnitude",
        "neither": "0 schedules",
    }
    assert set(reasons) == set(expected)
    assert {name: text for name, text in expected.items() if text not in reasons[name]} == {}, reasons


def test_store_that_does_not_exist_is_a_usage_error(project: Project, run: Import, tmp_path: Path) -> None:
    project(None)
    file = tmp_path / "old.sqlite"
    assert f"the file {str(file)!r} does not exist" in unreadable(run())
    assert not file.exists()
    file.touch()
    assert "has no table django_celery_beat_periodictask; pass another alias" in unreadable(run())
    assert "other" in unreadable(run("--database", "other"))
    message = unreadable(run(settings="no_settings"))
    assert "no_settings" in message
    assert "pass the settings of the project by --settings" in message
    project(None, applications=())
    assert "INSTALLED_APPS" in unreadable(run())


def test_server_that_cannot_be_reached_is_unavailable(project: Project, run: Import) -> None:
    address = {"ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "PORT": 1, "NAME": "old"}
    project(None, more=f"\nDATABASES['default'] = {address!r}\n")
    ran = run()
    assert ran.code == ExitCode.UNAVAILABLE, ran.err
    assert "the job store cannot be read" in ran.err


def unreadable(ran: Ran) -> str:
    assert ran.code == ExitCode.USAGE, ran.err
    assert "the job store cannot be read" in ran.err
    return ran.err


@each_case(
    ("fields", "text"),
    [
        ({"minute": "0", "hour": "9", "day_of_week": "mon-fri"}, "0 9 * * mon-fri"),
        ({"minute": "*/15"}, "*/15 * * * *"),
        ({"minute": "0, 30", "hour": "*/6"}, "0,30 */6 * * *"),
        ({"minute": "5", "hour": "22-2"}, "5 22-2 * * *"),
        ({"minute": "0", "hour": "0", "day_of_week": "sunday"}, "0 0 * * 0"),
        ({"minute": "0", "hour": "0", "day_of_month": "*/2"}, "0 0 */2 * *"),
        ({"minute": "0", "hour": "0", "month_of_year": "1-12/3"}, "0 0 * 1-12/3 *"),
        ({"minute": "0", "hour": "9", "day_of_month": "1-7", "day_of_week": "1"}, None),
        (
            {
                "minute": "0",
                "hour": "9",
                "day_of_month": "*/10",
                "day_of_week": "fri,sat",
                "month_of_year": "5-9",
            },
            None,
        ),
    ],
)
def test_crontab_becomes_a_trigger_with_the_fire_times_of_celery(
    fields: dict[str, str], text: str | None
) -> None:
    schedule = TzAwareCrontab(**fields, tz=BERLIN)
    trigger = cron_of(schedule)
    if text is not None:
        assert trigger == Cron(text, timezone=BERLIN)
    since = last = datetime(2030, 4, 2, 7, 30, tzinfo=BERLIN)
    theirs: list[datetime] = []
    schedule.nowfun = lambda: last
    while len(theirs) < 12 and last.month < 10:  # without a change of the clock
        start, delta, _ = schedule.remaining_delta(last)
        theirs.append(last := start + delta)
    assert trigger.upcoming(len(theirs), after=since) == [fire.astimezone(UTC) for fire in theirs]


TASKS = """
TASKS = {"default": {"BACKEND": "pg_scheduler.integrations.django.Backend", "QUEUES": ["default", "mail"]}}
"""
SHOP = """
try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

@task(queue_name="mail")
def send(to: str) -> None: ...
"""
OF_DJANGO = """
task("often", interval=hourly, task="shop.tasks.send", args='["ada"]')
task("once", clocked=clock, one_off=True, task="shop.tasks.send", args='["ada"]')
task("elsewhere", interval=hourly, task="shop.tasks.send", args='["ada"]', queue="default")
task("unknown queue", interval=hourly, task="shop.tasks.send", args='["ada"]', queue="fast")
task("no task", interval=hourly, task="shop.tasks.other")
task("bad arguments", interval=hourly, task="shop.tasks.send")
"""


def test_entry_of_a_task_of_django_is_stored_with_its_queue(
    project: Project, run: Import, tmp_path: Path
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "shop" / "tasks.py").write_text(SHOP, encoding="utf-8")
    applications = ("django_celery_beat", "pg_scheduler.integrations.django", "shop")
    project(OF_DJANGO, database="postgresql", applications=applications, more=TASKS)
    ran = run()
    assert ran.code == 0, ran.err
    assert {row["source_id"]: row["task"] for row in ran.checked("imported")} == {
        "often": "shop.tasks.send@mail",
        "once": "shop.tasks.send@mail",
        "elsewhere": "shop.tasks.send@default",
        "unknown queue": "shop.tasks.send@mail",
        "no task": "shop.tasks.other",
        "bad arguments": "shop.tasks.send@mail",
    }
    assert {row["source_id"] for row in ran.lines if row["result"] == "left out"} == {"bad arguments"}
    assert "pass --jobs" not in ran.err
