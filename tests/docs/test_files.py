"""The snippets that are complete files run as their pages describe."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from tests.docs.snippets import PAGES, ROOT, Snippet, page_id, snippets_of
from tests.support.transactions import django_address

pytestmark = pytest.mark.slow  # programs start and end

FILES = {
    f"{page_id(page)} {snippet.file}": snippet
    for page in PAGES
    for snippet in snippets_of(page)
    if snippet.file and "/" not in snippet.file  # those with a path are in test_tutorial.py
}
TESTED = {  # the others are in test_recipes.py
    "README.md example.py",
    "docs/quickstart.md worker.py",
    "docs/guides/testing.md test_crashes.py",
    "docs/guides/testing.md test_orders.py",
    "docs/guides/testing.md test_reminders.py",
    "docs/guides/testing.md test_shop.py",
    "docs/guides/testing.md test_trials.py",
    "docs/operations/sentry.md sentry_jobs.py",
    "pg_scheduler/ops/skill/SKILL.md test_mail.py",
    # in test_readme.py
    "README.md mornings.py",
    "README.md reviews.py",
    "README.md shop.py",
    # in tests/integrations/test_alembic.py and test_sqlalchemy.py
    "docs/guides/sqlalchemy.md env.py",
    "docs/guides/sqlalchemy.md models.py",
    "docs/guides/sqlalchemy.md queries.py",
    "docs/guides/sqlalchemy.md revision.py",
    # in tests/integrations/django/test_guide.py
    "docs/guides/django.md options.py",
    "docs/guides/django.md periodic_tasks.py",
    "docs/guides/django.md processes.py",
    "docs/guides/django.md schedules.py",
    "docs/guides/django.md settings.py",
    "docs/guides/django.md tasks.py",
    "docs/guides/django.md views.py",
    # in tests/integrations/test_django_migrations.py
    "docs/guides/django-admin.md tests.py",
    # in test_roles.py
    "docs/operations/database.md owner.sql",
    "docs/operations/database.md admin.sql",
    "docs/operations/database.md signals.sql",
    "docs/operations/database.md sender.sql",
    "docs/operations/database.md worker.sql",
    "docs/operations/database.md enqueuer.sql",
    "docs/operations/database.md exporter.sql",
    "docs/operations/database.md viewer.sql",
    "docs/operations/database.md operator.sql",
}


PLUGIN = ("-p", "no:pg_scheduler", "-p", "pg_scheduler_plugins.pytest")
"""The plugin by its module: the installed entry point may be that of another checkout."""


def test_readme_example_has_at_most_ten_lines_besides_imports() -> None:
    lines = FILES["README.md example.py"].code.splitlines()
    code = [line for line in lines if line.strip() and not line.startswith(("import ", "from "))]
    assert len(code) <= 10


@asynccontextmanager
async def program(
    snippet: Snippet, folder: Path, dsn: str, *arguments: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the snippet as a file in a folder, with these arguments before its name."""
    file = folder / (snippet.file or "")
    file.write_text(snippet.code, encoding="utf-8")
    addresses = {"DATABASE_URL": dsn, "PG_SCHEDULER_DSN": dsn}
    environment = os.environ | addresses | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, file, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_readme_example_runs_its_job_and_waits(
    dsn: str, pool: asyncpg.Pool[asyncpg.Record], tmp_path: Path
) -> None:
    snippet = FILES["README.md example.py"]
    async with program(snippet, tmp_path, dsn) as process, asyncio.timeout(30):
        assert process.stdout
        assert await process.stdout.readline() == b"receipt for order 17\n"
        process.send_signal(signal.SIGINT)
        assert await process.wait() == -signal.SIGINT
    row = await pool.fetchrow("SELECT job_name, status, max_retries FROM scheduled_jobs")
    assert row
    assert tuple(row) == ("example.send_receipt", "completed", 3)


async def test_quickstart_worker_runs_a_job_and_stops_on_sigint(dsn: str, tmp_path: Path) -> None:
    snippet = FILES["docs/quickstart.md worker.py"]
    # Its jobs are due after a second of real time, as on the page.
    async with program(snippet, tmp_path, dsn) as process, asyncio.timeout(30):
        assert process.stdout
        lines = [(await process.stdout.readline()).decode() for _ in range(4)]
        assert sorted(line.split(",")[0] for line in lines) == [
            "hello Ada",
            "hello number 0",
            "hello number 1",
            "hello number 2",
        ]
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("SELECT DISTINCT status, job_name FROM scheduled_jobs")
        assert [tuple(row) for row in rows] == [("completed", "worker.greet")]
        assert await connection.fetchval("SELECT count(*) FROM scheduler_workers") == 0
    finally:
        await connection.close()


async def test_sentry_page_example_runs_with_all_integrations_of_the_sdk(dsn: str, tmp_path: Path) -> None:
    snippet = FILES["docs/operations/sentry.md sentry_jobs.py"]
    async with program(snippet, tmp_path, dsn, "-W", "ignore") as process, asyncio.timeout(120):
        output, _ = await process.communicate()
        assert (process.returncode, output) == (0, b"invoice 1\n")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("docs/guides/testing.md test_crashes.py", 2),
        ("docs/guides/testing.md test_orders.py", 1),
        ("docs/guides/testing.md test_reminders.py", 2),
        ("docs/guides/testing.md test_trials.py", 2),
        ("pg_scheduler/ops/skill/SKILL.md test_mail.py", 1),
    ],
)
async def test_example_of_a_test_passes_under_pytest(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, count: int
) -> None:
    monkeypatch.setenv("PG_SCHEDULER_TEST_DSN", dsn)
    snippet = FILES[name]
    text = (ROOT / name.partition(" ")[0]).read_text(encoding="utf-8")
    settings = re.search(
        r"^```text\n(\[tool\.pytest\.ini_options\]\n.+?)^```$", text, re.MULTILINE | re.DOTALL
    )
    # The skill stands alone, so its test runs with the settings that it states.
    assert (settings is not None) is name.startswith("pg_scheduler/ops/skill/")
    if settings is not None:
        (tmp_path / "pyproject.toml").write_text(settings[1], encoding="utf-8")
    else:
        (tmp_path / "pytest.ini").write_text(
            "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n",
            encoding="utf-8",
        )
    arguments = ["-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *PLUGIN, "-q"]
    url = dsn.replace("postgresql://", "postgresql+asyncpg://") if snippet.file == "test_orders.py" else dsn
    async with program(snippet, tmp_path, url, *arguments) as process, asyncio.timeout(50):
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        assert f"{count} passed".encode() in output


def test_testing_guide_example_passes_under_django(dsn: str, tmp_path: Path) -> None:
    pytest.importorskip("django")
    address = django_address(dsn)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        **address,
        "TEST": {"TEMPLATE": address["NAME"]},
    }
    (tmp_path / "test_shop.py").write_text(
        FILES["docs/guides/testing.md test_shop.py"].code, encoding="utf-8"
    )
    (tmp_path / "settings.py").write_text(f"DATABASES = {{'default': {database!r}}}\n", encoding="utf-8")
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    command = (sys.executable, "-W", "error", "-m", "django", "test")
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, "Ran 1 test" in done.stderr) == (0, True), done.stdout + done.stderr
