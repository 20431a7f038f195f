"""The project of the guide, through ``manage.py``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.docs.snippets import ROOT
from tests.docs.test_files import FILES
from tests.support.django import require_tasks
from tests.support.inside import ExitCode
from tests.support.patience import PATIENCE
from tests.support.transactions import django_address

require_tasks()

from django.core.management.base import BaseCommand  # noqa: E402 - only where Django is

from pg_scheduler.integrations.django.management.commands.pg_scheduler import (  # noqa: E402 - only where Django is
    FLAGS,
    django_words,
)

pytestmark = pytest.mark.slow

PAGE = "docs/guides/django.md"
DUMMY = ("django.tasks" if find_spec("django.tasks") else "django_tasks") + ".backends.dummy.DummyBackend"

MANAGE = """
import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
"""

SIGN_UP = """
from django.test import Client
print(Client().get("/users?email=ada").content.decode())
"""

SENTRY = """
import json
import sentry_sdk
from sentry_sdk.transport import Transport


class Kept(Transport):
    def capture_envelope(self, envelope):
        with open("sentry.jsonl", "a") as file:
            for item in envelope.items:
                if item.type in {"event", "transaction"}:
                    print(json.dumps(json.loads(item.payload.get_bytes())), file=file)


sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=Kept, traces_sample_rate=1.0, release="1")
"""

MIDDLEWARE = """
import time

async def measure(call, call_next):
    began = time.monotonic()
    try:
        return await call_next()
    finally:
        print(call.job.job_name, "took", time.monotonic() - began)
"""

BROKEN = """

@task
def break_down():
    raise ZeroDivisionError
"""

LOGGED = """

@task
def write_log() -> None:
    import logging
    logging.getLogger("django.shop").warning("written")
"""

RESULTS = """
from shop.tasks import build_report, send_welcome
for task in (send_welcome, build_report):
    for job_id in sys.argv[1:]:
        try:
            result = task.get_result(job_id)
        except Exception as error:
            continue
        print(task.name, result.status, result.return_value if result.is_finished else None)
"""

TESTS = """
from contextlib import redirect_stdout
from io import StringIO

from django.core.management import call_command
from django.db import connection
from django.test import TestCase, TransactionTestCase
from pg_scheduler.integrations.django.address import dsn_of
from shop.tasks import send_welcome


def setUpModule():
    call_command("pg_scheduler", "migrate")


class TransactionTest(TestCase):
    def test_enqueue_is_part_of_the_test(self):
        result = send_welcome.enqueue("ada")
        self.assertEqual(send_welcome.get_result(result.id), result)
        self.assertIn(f"/{connection.settings_dict['NAME']}?", dsn_of("default"))


class CommittedTest(TransactionTestCase):
    def test_commands_use_the_test_database(self):
        result = send_welcome.enqueue("ada")
        with redirect_stdout(StringIO()) as output:
            call_command("pg_scheduler", "jobs", "list", "-o", "ids")
        self.assertEqual(output.getvalue().split(), [result.id])
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM scheduled_jobs")
"""

MODELS = """
from django.db import models


class Order(models.Model):
    process = models.IntegerField()
"""

PROCESSES = """

import logging
import os

from django.db import connection


@job(name="shop.order", executor="process")
def order() -> None:
    logging.getLogger("shop").warning("%s orders", Order.objects.count())
    Order.objects.create(process=os.getpid())


@job(name="shop.order_async", executor="process")
async def order_async() -> None:
    await Order.objects.acreate(process=os.getpid())


@job(name="shop.break_session", executor="process")
def break_session() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%shop_o%'")
"""

LOGGING = """
LOGGING = {
    "version": 1,
    "formatters": {"process": {"format": "%(process)d: %(message)s"}},
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "shop.log", "formatter": "process"}},
    "loggers": {"shop": {"handlers": ["file"]}},
}
"""

PROCESS_TESTS = """
import asyncio
import asyncpg
from django.test import TransactionTestCase
from pg_scheduler import Scheduler
from pg_scheduler.integrations.django import DjangoProcesses
from pg_scheduler.integrations.django.address import dsn_of
from shop.models import Order
from shop.tasks import order


async def run_order():
    executors = {"process": DjangoProcesses()}
    async with (
        asyncpg.create_pool(dsn_of("default")) as pool,
        Scheduler(pool, executors=executors) as scheduler,
    ):
        await scheduler.run_job(order)


class ProcessTest(TransactionTestCase):
    def test_process_uses_the_test_database(self):
        asyncio.run(run_order())
        self.assertEqual(Order.objects.count(), 1)
"""


class Project:
    """The files of the guide in a folder, and a database."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        address = django_address(dsn)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PG_SCHEDULER_")},
            "PGHOST": address["HOST"],
            "PGPORT": address["PORT"],
            "PGUSER": address["USER"],
            "PGDATABASE": address["NAME"],
            "PGPASSWORD": address["PASSWORD"],
            "PYTHONPATH": str(ROOT),
        }
        (folder / "shop").mkdir()
        urls = "\nROOT_URLCONF = 'urls'\nALLOWED_HOSTS = ['*']\n"
        self.write("manage.py", MANAGE)
        self.write("settings.py", code_of("settings.py") + urls)
        self.write("urls.py", "from django.urls import path\nfrom shop.views import sign_up\n")
        self.append("urls.py", "urlpatterns = [path('users', sign_up)]\n")
        self.write("shop/__init__.py", "")
        self.write("shop/tasks.py", code_of("tasks.py"))
        self.write("shop/views.py", code_of("views.py"))

    def write(self, path: str, code: str) -> None:
        (self.folder / path).write_text(code, encoding="utf-8")

    def append(self, path: str, code: str) -> None:
        with (self.folder / path).open("a", encoding="utf-8") as file:
            file.write(code)

    def run(self, *words: str, code: int = 0) -> str:
        """Run a script with these arguments, and return what it wrote."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=4 * PATIENCE,  # it imports Django, and often the whole library
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def manage(self, *words: str, code: int = 0) -> str:
        """Run a command of the project, and return what it wrote."""
        return self.run("manage.py", *words, code=code)

    def shell(self, code: str, *words: str) -> list[str]:
        """Run code in the project, and return the lines it wrote."""
        start = "import os, sys, django\nos.environ['DJANGO_SETTINGS_MODULE'] = 'settings'\ndjango.setup()\n"
        self.write("script.py", start + code)
        return self.run("script.py", *words).splitlines()

    @contextmanager
    def worker(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Start a worker; end it with its processes."""
        with self.command("pg_scheduler", "worker", *words) as process:
            yield process

    @contextmanager
    def command(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command of the project; end it by SIGTERM."""
        with (self.folder / "log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *words],
                cwd=self.folder, env=self.environment, stderr=log, text=True,
            )  # fmt: skip
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.wait()


def code_of(name: str) -> str:
    """Return a file of the guide, for the Django that is installed."""
    code = FILES[f"{PAGE} {name}"].code
    return code if find_spec("django.tasks") else code.replace("from django.tasks", "from django_tasks")


async def until(pool: asyncpg.Pool, query: str) -> None:
    """Wait until the first value of a query is true."""
    async with asyncio.timeout(PATIENCE):
        while not await pool.fetchval(query):  # noqa: ASYNC110 - processes raise no event
            await asyncio.sleep(0.02)  # until the processes have come so far


@pytest.fixture
def project(tmp_path: Path, dsn: str) -> Project:
    return Project(tmp_path, dsn)


def test_guide_creates_tables_enqueues_and_runs_tasks(tmp_path: Path, empty_dsn: str) -> None:
    project = Project(tmp_path, empty_dsn)
    output = project.manage("pg_scheduler", "worker", code=ExitCode.SCHEMA)
    assert "no tables" in output
    assert "manage.py migrate" in output
    project.manage("pg_scheduler", "migrate")
    (first,) = project.shell(SIGN_UP)
    (second,) = project.shell("from shop.tasks import build_report\nprint(build_report.enqueue('May').id)")
    checked = project.manage("pg_scheduler", "check")
    assert "no findings; examined all of 2 unfinished jobs" in checked
    project.manage("pg_scheduler", "worker", "--drain")
    assert project.shell(RESULTS, first, second) == [
        "send_welcome SUCCESSFUL sent to ada",
        f"build_report SUCCESSFUL {{'task': '{second}', 'month': 'May'}}",
    ]


@pytest.mark.parametrize("option", ["--queue=mail", "--exclude-queue=default"])
async def test_worker_of_a_queue_leaves_other_tasks(
    project: Project, pool: asyncpg.Pool, option: str
) -> None:
    ids = await asyncio.to_thread(
        project.shell,
        "from shop.tasks import build_report, send_welcome\n"
        "print(build_report.enqueue('May').id)\nprint(send_welcome.enqueue('ada').id)",
    )
    words = ("pg_scheduler", "worker", option, "--concurrency", "3", "--drain")
    await asyncio.to_thread(project.manage, *words)
    statuses = await pool.fetch("SELECT status FROM scheduled_jobs ORDER BY array_position($1, job_id)", ids)
    assert [row[0] for row in statuses] == ["pending", "completed"]
    unknown = option.partition("=")[0] + "=fast"
    output = await asyncio.to_thread(project.manage, "pg_scheduler", "worker", unknown, code=1)
    assert "has no 'fast'; it has default, mail" in output


async def test_queue_of_another_backend_can_be_excluded(project: Project, pool: asyncpg.Pool) -> None:
    project.append("settings.py", "TASKS['fast'] = TASKS['default'] | {'QUEUES': ['fast']}\n")
    call = "from shop.tasks import build_report\nbuild_report.enqueue('May')"
    await asyncio.to_thread(project.shell, call)
    words = ("pg_scheduler", "worker", "--exclude-queue=fast", "--drain")
    await asyncio.to_thread(project.manage, *words)
    assert await pool.fetchval("SELECT status FROM scheduled_jobs") == "completed"


@pytest.mark.parametrize("words", [("worker", "--concurrency", "0"), ("--concurrency", "0", "worker")])
async def test_worker_rejects_a_concurrency_of_zero(project: Project, words: tuple[str, ...]) -> None:
    output = await asyncio.to_thread(project.manage, "pg_scheduler", *words, "--drain", code=ExitCode.USAGE)
    assert "max_concurrent_jobs must be greater than or equal to 1, not 0" in output


@pytest.mark.parametrize("option", ["--queue=mail", "--exclude-queue=default"])
async def test_processes_of_a_supervisor_run_the_same_command(
    project: Project, pool: asyncpg.Pool, option: str
) -> None:
    await asyncio.to_thread(project.shell, "from shop.tasks import build_report\nbuild_report.enqueue('May')")
    (job_id,) = await asyncio.to_thread(project.shell, SIGN_UP)
    with project.worker(option, "--processes=2"):
        await until(pool, "SELECT count(*) = 2 FROM scheduler_workers")
        await until(pool, f"SELECT status = 'completed' FROM scheduled_jobs WHERE job_id = '{job_id}'")
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'") == 1


NAMING_TASK = """

from elsewhere import NAME


@task
def name() -> str:
    return NAME
"""


@pytest.mark.parametrize(
    "words", [("-v0", "--pythonpath=extra", "worker"), ("worker", "--pythonpath", "extra")]
)
@pytest.mark.parametrize("option", ["--processes=2", "--reload"])
async def test_programs_that_the_worker_starts_have_the_options_of_django(
    project: Project, pool: asyncpg.Pool, words: tuple[str, ...], option: str
) -> None:
    (project.folder / "extra").mkdir()
    project.write("extra/elsewhere.py", "NAME = 'ada'\n")
    project.append("settings.py", "import elsewhere\n")
    with project.command("pg_scheduler", *words, option):
        await until(pool, "SELECT count(*) > 0 FROM scheduler_workers")
        # A reload starts the program anew.
        project.append("shop/tasks.py", NAMING_TASK)
        project.environment["PYTHONPATH"] += f"{os.pathsep}{project.folder / 'extra'}"
        await asyncio.to_thread(
            project.shell, "from shop.tasks import build_report\nbuild_report.enqueue('May')"
        )
        if option == "--reload":
            await asyncio.to_thread(project.shell, "from shop.tasks import name\nname.enqueue()")
        await until(pool, "SELECT bool_and(status = 'completed') FROM scheduled_jobs")


def test_all_options_of_a_django_command_are_passed_on() -> None:
    parser = BaseCommand().create_parser("manage.py", "pg_scheduler")
    not_passed_on = {"help", "version", "settings"}  # the first two end the program
    names = {action.dest for action in parser._actions} - not_passed_on
    values: dict[str, Any] = dict.fromkeys(FLAGS, True) | {"verbosity": 3, "pythonpath": "extra"}
    assert names == values.keys()
    flags = [f"--{name.replace('_', '-')}" for name in FLAGS]
    assert django_words(values) == [*flags, "--verbosity=3", "--pythonpath=extra"]
    parsed = parser.parse_args(django_words({**values, "no_color": False}))
    assert vars(parsed) == {**values, "no_color": False, "settings": None}
    assert django_words(dict.fromkeys(FLAGS, False) | {"verbosity": 1, "pythonpath": None}) == []


async def test_worker_prints_the_records_of_django_once_in_development(project: Project) -> None:
    project.append("settings.py", "DEBUG = True\n")
    project.append("shop/tasks.py", LOGGED)
    await asyncio.to_thread(project.shell, "from shop.tasks import write_log\nwrite_log.enqueue()")
    output = await asyncio.to_thread(project.manage, "pg_scheduler", "worker", "--drain")
    assert output.count("written") == 1, output


async def test_reload_runs_the_new_code(project: Project, pool: asyncpg.Pool) -> None:
    with project.worker("--reload"):
        await until(pool, "SELECT count(*) = 1 FROM scheduler_workers")
        project.append("shop/tasks.py", "\n\n@task\ndef added() -> int:\n    return 7\n")
        await asyncio.to_thread(project.shell, "from shop.tasks import added\nadded.enqueue()")
        await until(pool, "SELECT status = 'completed' FROM scheduled_jobs")


async def test_reload_continues_with_the_old_code_until_the_new_one_can_be_imported(
    project: Project, pool: asyncpg.Pool
) -> None:
    module, log = project.folder / "shop/tasks.py", project.folder / "log"
    code = module.read_text(encoding="utf-8")
    with project.worker("--reload"):
        await until(pool, "SELECT count(*) = 1 FROM scheduler_workers")
        worker = await pool.fetchval("SELECT worker_id FROM scheduler_workers")
        module.write_text(f"{code}\n\noops()\n", encoding="utf-8")
        async with asyncio.timeout(PATIENCE):
            while "oops" not in log.read_text(encoding="utf-8"):  # noqa: ASYNC110 - a file
                await asyncio.sleep(0.02)
        assert await pool.fetchval("SELECT worker_id FROM scheduler_workers") == worker
        module.write_text(f"{code}\n\n@task\ndef added() -> int:\n    return 7\n", encoding="utf-8")
        await asyncio.to_thread(project.shell, "from shop.tasks import added\nadded.enqueue()")
        await until(pool, "SELECT status = 'completed' FROM scheduled_jobs")


async def test_periodic_task_has_a_schedule_and_runs(project: Project, pool: asyncpg.Pool) -> None:
    project.append("shop/tasks.py", code_of("periodic_tasks.py"))
    await asyncio.to_thread(project.manage, "pg_scheduler", "worker", "--drain")
    task = await pool.fetchval("SELECT task FROM scheduler_schedules WHERE schedule_id = 'clean_up'")
    assert task == "shop.tasks.clean_up@default"
    await asyncio.to_thread(project.manage, "pg_scheduler", "schedules", "trigger", "clean_up")
    output = await asyncio.to_thread(project.manage, "pg_scheduler", "worker", "--drain")
    assert "cleaning up" in output
    assert await pool.fetchval("SELECT status FROM scheduled_jobs") == "completed"


async def test_schedule_of_a_task_is_added_in_the_transaction_and_runs(
    project: Project, pool: asyncpg.Pool
) -> None:
    project.write("shop/schedules.py", code_of("schedules.py"))
    call = "from shop.schedules import send_reports\nsend_reports('a', 3)"
    await asyncio.to_thread(project.shell, call)
    task = await pool.fetchval("SELECT task FROM scheduler_schedules WHERE schedule_id = 'report:a'")
    assert task == "shop.tasks.build_report@default"
    await asyncio.to_thread(project.manage, "pg_scheduler", "schedules", "trigger", "report:a")
    await asyncio.to_thread(project.manage, "pg_scheduler", "worker", "--drain")
    assert await pool.fetchval("SELECT status FROM scheduled_jobs") == "completed"


def with_processes(project: Project) -> None:
    """Add a model, and jobs that import it in processes."""
    project.write("shop/models.py", MODELS)
    project.append("shop/tasks.py", "\n\n" + code_of("processes.py") + PROCESSES)
    project.append("settings.py", "DEFAULT_AUTO_FIELD = 'django.db.models.BigAutoField'\n" + LOGGING)
    project.manage("migrate", "--run-syncdb")


def enqueue_of(*names: str) -> str:
    """Return a script that enqueues functions, one after the other."""
    calls = "\n".join(f"SyncScheduler().enqueue(tasks.{name}, connection='default')" for name in names)
    return f"from shop import tasks\nfrom pg_scheduler.sync import SyncScheduler\n{calls}"


async def test_jobs_in_processes_import_models(project: Project, pool: asyncpg.Pool) -> None:
    await asyncio.to_thread(with_processes, project)
    await asyncio.to_thread(project.shell, enqueue_of("order", "order_async", "count_orders"))
    words = ("pg_scheduler", "worker", "--concurrency", "1", "--drain")
    output = await asyncio.to_thread(project.manage, *words)
    assert "2 orders" in output
    assert not await pool.fetch("SELECT job_name, errors FROM scheduled_jobs WHERE status <> 'completed'")
    first, second = await pool.fetch("SELECT process FROM shop_order ORDER BY id")
    assert first == second
    assert (project.folder / "shop.log").read_text(
        encoding="utf-8"
    ) == f"{first[0]}: 0 orders\n"  # from the worker, and once


async def test_process_replaces_broken_sessions(project: Project, pool: asyncpg.Pool) -> None:
    await asyncio.to_thread(with_processes, project)
    project.append("settings.py", "DATABASES['default'].update(CONN_MAX_AGE=None, CONN_HEALTH_CHECKS=True)\n")
    names = ("order", "order_async", "break_session", "order", "order_async")
    await asyncio.to_thread(project.shell, enqueue_of(*names))
    words = ("pg_scheduler", "worker", "--concurrency", "1", "--drain")
    await asyncio.to_thread(project.manage, *words)
    rows = await pool.fetch("SELECT job_name, errors FROM scheduled_jobs WHERE status <> 'completed'")
    assert [row["job_name"] for row in rows] == ["shop.break_session"]
    assert await pool.fetchval("SELECT count(*) FROM shop_order") == 4


async def test_failed_setup_of_a_process_fails_its_job(project: Project, pool: asyncpg.Pool) -> None:
    await asyncio.to_thread(with_processes, project)
    condition = "if 'pg_scheduler.worker.runners.child' in sys.modules"
    project.append("settings.py", f"import sys\n{condition}:\n    raise OSError('no settings')\n")
    await asyncio.to_thread(project.shell, enqueue_of("order", "order"))
    words = ("pg_scheduler", "worker", "--concurrency", "1", "--drain")
    await asyncio.to_thread(project.manage, *words)
    rows = await pool.fetch("SELECT status, errors->0->>'message' FROM scheduled_jobs")
    assert [tuple(row) for row in rows] == [("failed", "no settings")] * 2


async def test_processes_in_a_test_run_use_its_database(project: Project, pool: asyncpg.Pool) -> None:
    await asyncio.to_thread(with_processes, project)
    project.write("shop/tests.py", PROCESS_TESTS)
    assert "Ran 1 test" in await asyncio.to_thread(project.manage, "test", "--noinput")
    assert await pool.fetchval("SELECT count(*) FROM shop_order") == 0


async def test_tests_of_a_project_never_write_into_its_database(project: Project, pool: asyncpg.Pool) -> None:
    project.write("shop/tests.py", TESTS)
    output = await asyncio.to_thread(project.manage, "test", "--noinput")
    assert "Ran 2 tests" in output
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_worker_runs_the_middleware_of_the_options(project: Project, pool: asyncpg.Pool) -> None:
    pytest.importorskip("sentry_sdk", reason="dev.py has not updated this environment")
    project.append("settings.py", SENTRY + code_of("options.py"))
    project.write("shop/middleware.py", MIDDLEWARE)
    project.append("shop/tasks.py", BROKEN)
    call = "import sentry_sdk\nfrom shop.tasks import break_down\n"
    call += "with sentry_sdk.start_transaction(name='view'):\n"
    (job_id,) = await asyncio.to_thread(project.shell, f"{call}    print(break_down.enqueue().id)")
    output = await asyncio.to_thread(project.manage, "pg_scheduler", "worker", "--drain")
    assert re.search(r"shop\.tasks\.break_down@default took \d", output), output
    assert await pool.fetchval("SELECT status FROM scheduled_jobs") == "failed"
    lines = (project.folder / "sentry.jsonl").read_text(encoding="utf-8").splitlines()
    sent = [json.loads(line) for line in lines]
    (event,) = [each for each in sent if "exception" in each]
    assert event["exception"]["values"][-1]["type"] == "ZeroDivisionError"
    assert event["tags"]["job_id"] == job_id
    traces = {each["transaction"]: each["contexts"]["trace"]["trace_id"] for each in sent}
    assert traces["view"] == traces["shop.tasks.break_down@default"]


async def test_worker_does_not_start_with_a_mistake_in_its_options(project: Project) -> None:
    project.append("settings.py", code_of("options.py"))  # without shop.middleware
    output = await asyncio.to_thread(project.manage, "pg_scheduler", "worker", "--drain", code=1)
    assert "(pg_scheduler.E003) TASKS['default']['OPTIONS']['MIDDLEWARE']" in output
    assert "No module named 'shop.middleware'" in output


def test_command_without_a_worker_of_the_library_fails(project: Project) -> None:
    project.append("settings.py", f"TASKS['other'] = {{'BACKEND': {DUMMY!r}}}\n")
    assert "uses another backend" in project.manage("pg_scheduler", "worker", "--backend", "other", code=1)
    output = project.manage("pg_scheduler", "worker", "--backend", "none", code=1)
    assert "TASKS has no usable backend 'none'" in output
