"""Tables in the documentation that repeat facts of the code agree with it."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
import logging
import re
import tomllib
import tracemalloc
from collections.abc import Collection, Iterator
from datetime import timedelta
from itertools import takewhile

import asyncpg
import pytest

import pg_scheduler
from pg_scheduler import JobSpec, JobStatus, Scheduler, ThreadExecutor, current_job, events
from pg_scheduler.database.faults import TRANSIENT_CLASSES, TRANSIENT_STATES
from pg_scheduler.database.queries import FOLDERS
from pg_scheduler.events.log import record_fields
from pg_scheduler.events.types import LEVELS, TEXTS
from pg_scheduler.inspect import FindingCode, ReasonCode
from pg_scheduler.inspect.doctor.connections import OUTSIDE_POOL
from pg_scheduler.jobs.outcome import NOT_RETRIED
from pg_scheduler.scheduler.store import NOT_ALLOWED
from pg_scheduler.telemetry.logging import FIELDS
from pg_scheduler.worker.attempt_runner import LONGER
from tests.docs.snippets import PAGES, ROOT, snippets_of
from tests.support.inside import JOB_OPTIONS, OUTCOMES, load_fragment, quarantine_error, services_of, store_of
from tests.support.patience import PATIENCE
from tests.support.source import parsed
from tests.telemetry import test_cluster_metrics, test_process_metrics
from tools.reference.extension import complete_findings, complete_metrics
from tools.reference.metrics import TABLES

DOCTOR = "\n## Findings of the doctor\n"
"""The families of a process that the exporter has too."""
OUTAGES = ("| Fault | Effect | Recovery | Test |", "| Fault | Effect | Test |")


def table(page: str, header: str) -> list[list[str]]:
    """Return the rows of the tables with this header, as cells."""
    _, *tables = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"\n{header}\n")
    assert tables, f"{page} has no table {header!r}"
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for rest in tables
        for line in takewhile(lambda line: line.startswith("|"), rest.splitlines()[1:])
    ]


def code(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


@pytest.mark.parametrize(
    ("of", "documented"),
    [
        ("process", test_process_metrics.DOCUMENTED),
        ("cluster", test_cluster_metrics.DOCUMENTED),
    ],
)
def test_metrics_page_lists_every_family(of: str, documented: Collection[str]) -> None:
    """The tests of the metrics compare these names with those of an exposition."""
    assert TABLES[of].keys() == set(documented)
    page = complete_metrics()["operations/metrics"]
    for family in TABLES[of].values():
        assert f"\n| `{family.sample_name}` |" in page
        assert family.text.endswith(".")


async def test_architecture_lists_services_in_the_order_of_their_start(scheduler: Scheduler) -> None:
    services = [[type(service).__name__] for service in services_of(scheduler)]
    rows = table("project/architecture.md", "| Part | Pass |")
    assert [code(row[0]) for row in rows] == services


def test_architecture_names_existing_files() -> None:
    text = (ROOT / "docs/project/architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:\w+/)*\w+\.(?:py|sql|md|html)|(?:\w+/)+)`", text)
    assert paths
    folders = (ROOT, ROOT / "pg_scheduler", *(ROOT / "pg_scheduler" / folder for folder in FOLDERS))
    assert [path for path in paths if not any((folder / path).exists() for folder in folders)] == []


def ways() -> str:
    """Return the ways through the code."""
    text = (ROOT / "docs/project/architecture.md").read_text(encoding="utf-8")
    return text.partition("\n## Ways through the code\n")[2].partition("\n## ")[0]


def steps_of_the_ways() -> Iterator[tuple[str, str]]:
    """Yield the file and the text of each step of the ways, without the paragraphs between the steps."""
    for step in re.split(r"^\d+\. ", ways(), flags=re.MULTILINE)[1:]:
        path, _, sentence = step.partition("\n\n")[0].partition(": ")
        yield path.strip("`"), sentence


def names_in(module: str) -> set[str]:
    """Return the functions of a module, and its methods as ``Class.method``."""
    names: set[str] = set()
    for node in parsed(ROOT / "pg_scheduler" / module).body:
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        names |= {
            owner + member.name
            for member in members
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
        }
    return names


def test_ways_through_the_code_name_functions_of_the_files_that_they_lead_to() -> None:
    steps = list(steps_of_the_ways())
    opened = {path for path, _ in steps}
    assert len(steps) >= 20
    every_name = {name for path in opened for name in names_in(path)}
    for path, text in steps:
        named = re.findall(r"`([\w.]+)\(\)`", text)
        assert named, f"no function in {path}"
        assert named[0] in names_in(path), path
        assert set(named) <= every_name, f"functions that no file of the ways has, in the step {path}"


def test_ways_through_the_code_name_statements_of_the_files_that_they_lead_to() -> None:
    steps_with_sql = 0
    for path, text in steps_of_the_ways():
        statements = re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text)
        files = re.findall(r"`([\w/]+\.sql)`", text)
        assert bool(files) == bool(statements), path
        source = "".join((ROOT / "pg_scheduler" / file).read_text(encoding="utf-8") for file in files)
        assert [name for name in statements if f"-- name: {name}\n" not in source] == [], path
        steps_with_sql += bool(files)
    assert steps_with_sql >= 5


def test_paragraphs_between_the_steps_name_what_the_files_of_the_ways_have() -> None:
    text = re.sub(r"^###.*", "", ways(), flags=re.MULTILINE)
    files = {path for path, _ in steps_of_the_ways()}
    assert set(re.findall(r"`([\w.]+)\(\)`", text)) <= {name for path in files for name in names_in(path)}
    source = "".join(
        (ROOT / "pg_scheduler" / file).read_text(encoding="utf-8")
        for file in set(re.findall(r"`([\w/]+\.sql)`", text))
    )
    statements = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text))
    assert {name for name in statements if f"-- name: {name}\n" not in source} == {"send_mail"}


def test_architecture_names_what_is_added_in_the_files_that_it_lists() -> None:
    """A name that moves to another file, or that is renamed, makes its entry wrong."""
    text = (ROOT / "docs/project/architecture.md").read_text(encoding="utf-8")
    section = text.partition("\n### Additions\n")[2].partition("\n#")[0]
    entries = re.split(r"^- \*\*", section, flags=re.MULTILINE)[1:]
    assert len(entries) >= 10
    for entry in entries:
        title, _, places = entry.partition("**: ")
        words = re.findall(r"`([^`]+)`", places)
        paths = [word for word in words if re.fullmatch(r"(?:\w+/)+\w+\.(?:py|sql|md)", word)]
        assert paths, title
        files = [folder / path for path in paths for folder in (ROOT, ROOT / "pg_scheduler")]
        source = "".join(file.read_text(encoding="utf-8") for file in files if file.exists())
        names = [match[1] for word in words if (match := re.fullmatch(r"@?(?:\w+\.)*(\w+)(?:\(\))?", word))]
        unknown = [name for name in names if not re.search(rf"\b{name}\b", source)]
        assert unknown == [], title


def test_architecture_names_what_repeats_a_call() -> None:
    package = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "pg_scheduler").rglob("*.py"))
    rows = table("project/architecture.md", "| Repeated | Because of | Delays | Until |")
    names = [name for row in rows for name in re.findall(r"`(?:\w+\.)*(\w+)(?:\(\))?`", row[0])]
    assert len(names) >= len(rows)
    definition = r"(?:^|\b(?:class|def) ){}\b"
    assert [name for name in names if not re.search(definition.format(name), package, re.MULTILINE)] == []


def test_architecture_lists_the_rooms_from_top_to_bottom() -> None:
    rooms = [
        room
        for row in table("project/architecture.md", "| Room, top to bottom | Subject |")
        for room in code(row[0])
    ]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    level = {room: place for place, layer in enumerate(layers) for room in re.findall(r"\w+", layer)}
    assert sorted(rooms, key=lambda room: level[room]) == rooms
    assert set(rooms) == level.keys() - {"__main__"}


def test_logging_lists_the_log_level_of_every_event_once() -> None:
    listed = [
        (name, row[0])
        for row in table("operations/logging.md", "| Level | Events |")
        for name in code(row[1])
    ]
    levels = {kind.__name__: logging.getLevelName(level) for kind, level in LEVELS.items()}
    assert sorted(listed) == sorted(levels.items())
    assert all(hasattr(events, name) for name in levels)


def test_runbook_has_an_entry_for_every_reason_code() -> None:
    page, _, _ = (ROOT / "docs/operations/runbook.md").read_text(encoding="utf-8").partition(DOCTOR)
    # A code that the doctor has too has one entry, that of the finding.
    codes = {code.value for code in ReasonCode} - {code.value for code in FindingCode}
    assert sorted(re.findall(r"^### (\S+)$", page, re.MULTILINE)) == sorted(codes)


def test_runbook_and_doctor_have_an_entry_for_every_code_of_the_doctor() -> None:
    _, _, rest = (ROOT / "docs/operations/runbook.md").read_text(encoding="utf-8").partition(DOCTOR)
    part, _, _ = rest.partition("\n## ")
    headings = re.findall(r"^### (\S+)$", part, re.MULTILINE)
    assert headings == list(FindingCode)
    links = re.findall(
        r"^\| \[`([A-Z-]+)`\]\(runbook\.md#(\S+)\) \|", complete_findings()["operations/doctor"], re.MULTILINE
    )
    assert links == [(code, code.lower()) for code in FindingCode]


def test_logging_lists_every_log_field() -> None:
    listed = [name for row in table("operations/logging.md", "| Field | Value |") for name in code(row[0])]
    assert listed == list(record_fields())


def test_logging_lists_every_field_of_a_job() -> None:
    rows = table("operations/logging.md", "| Field of the job | Value |")
    listed = [name for row in rows for name in code(row[0])]
    assert listed == list(FIELDS)


def test_logging_shows_log_lines_that_the_templates_produce() -> None:
    page = (ROOT / "docs/operations/logging.md").read_text(encoding="utf-8")
    lines = page.partition("`%(levelname)s %(message)s`:\n\n```text\n")[2].partition("\n```")[0].splitlines()
    end_of_an_outage = (logging.WARNING, "database available again after %(seconds)s; all services resumed")
    records = [(level, TEXTS[kind]) for kind, level in LEVELS.items()]
    patterns = [
        f"{logging.getLevelName(level)} " + ".+".join(map(re.escape, re.split(r"%\(\w+\)s", template)))
        for level, template in (*records, end_of_an_outage)
    ]
    assert lines
    for line in lines:
        assert any(re.fullmatch(pattern, line) for pattern in patterns), line


def test_database_page_lists_the_transient_sqlstates() -> None:
    documented = {
        state for row in table("operations/database.md", "| SQLSTATE | Meaning |") for state in code(row[0])
    }
    assert documented == TRANSIENT_CLASSES | TRANSIENT_STATES


def test_reliability_names_existing_tests_and_every_outage_test() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    folder = ""
    for name in re.findall(r"`((?:tests/)?[\w/]*test_[\w*]+\.py)`", page):
        folder = name.rpartition("/")[0] or folder  # the folder of the file before, if it is omitted
        assert list(ROOT.glob(f"{folder}/{name.rpartition('/')[2]}")), name
    outages = (ROOT / "tests" / "cluster" / "test_outages.py").read_text(encoding="utf-8")
    rows = [row for header in OUTAGES for row in table("reliability.md", header)]
    documented = {re.sub(r"\W.*", "", row[-1].strip("`")) for row in rows}
    assert documented == set(re.findall(r"def (test_\w+)", outages))
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("**/test_*.py"))
    named = {row[-1].strip("`") for row in table("reliability.md", "| Part of a job | Happens | Test |")}
    assert named <= set(re.findall(r"def (test_\w+)", tests))


def test_pools_of_the_examples_open_no_connections_in_advance() -> None:
    """asyncpg opens ``min_size`` connections at once, 10 unless it is given."""
    pools = [
        line
        for page in PAGES
        for snippet in snippets_of(page)
        for line in snippet.code.splitlines()
        if "create_pool(" in line
    ]
    assert len(pools) > 5
    assert [line for line in pools if "min_size=1" not in line] == []


def test_defaults_page_has_the_values_of_the_code() -> None:
    parameters = inspect.signature(Scheduler).parameters
    rows = table("guides/defaults.md", "| Default | Value | Changed by |")
    values = {match[1]: row[1] for row in rows if (match := re.search(r"`(\w+)=`", row[2]))}
    assert values == {
        "max_retries": str(JOB_OPTIONS["max_retries"].default),
        "misfire_grace_time": f"{parameters['misfire_grace_time'].default} seconds",
        "timeout": f"{JOB_OPTIONS['timeout'].default:.0f} seconds",
        "migrations": f"`{parameters['migrations'].default}`",
        "priority": f"`{JOB_OPTIONS['priority'].default.name}`",
        "max_crashes": str(parameters["max_crashes"].default),
    }
    page = (ROOT / "docs/guides/defaults.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\*\*What others have\.\*\*", page, re.MULTILINE)) == len(values)


def test_defaults_page_has_the_messages_of_the_code() -> None:
    page = (ROOT / "docs/guides/defaults.md").read_text(encoding="utf-8")
    messages = " ".join(" ".join(re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)).split())
    assert f"; {NOT_RETRIED}" in messages
    assert f"the job ran longer than its timeout of 3,600 seconds{LONGER}" in messages
    assert quarantine_error(3) in messages
    (default_grace,) = re.findall(r"THEN '(, the default.*?)' END", load_fragment("grace_reason"))
    assert f"its misfire grace time is 300 seconds{default_grace}" in messages
    for step in NOT_ALLOWED:
        assert f"; {step}" in messages


def test_life_cycle_describes_every_column() -> None:
    shape = (ROOT / "migrations" / "schema.txt").read_text(encoding="utf-8")
    jobs = shape.partition("table scheduled_jobs\n")[2].partition("\ntable ")[0]
    columns = set(re.findall(r"^    column (\w+)", jobs, re.MULTILINE))
    page = (ROOT / "docs" / "concepts" / "life-cycle.md").read_text(encoding="utf-8")
    internal = set(code(page.partition("The other columns (")[2].partition(")")[0]))
    documented = {
        name for row in table("concepts/life-cycle.md", "| Column | Meaning |") for name in code(row[0])
    }
    mentioned = documented | internal | {"expires_at"}
    assert mentioned == columns


def public_part(name: str) -> list[str]:
    """Return what the page about stability states of a part as public, and as private."""
    (cells,) = [
        row[1:] for row in table("project/stability.md", "| Part | Public | Private |") if name in row[0]
    ]
    return cells


def test_columns_that_applications_may_read_include_those_of_0_2() -> None:
    """The page about stability promises them for all of 1.x."""
    migration = (ROOT / "migrations" / "0001_from_0_2.up.sql").read_text(encoding="utf-8")
    former_names = re.findall(
        r"^    (\w+) +\w", migration.partition("scheduled_jobs (\n")[2].partition(");")[0], re.MULTILINE
    )
    assert len(former_names) == 13
    rows = table("concepts/life-cycle.md", "| Column | Meaning |")
    assert {*former_names, "misfire_grace_time"} <= {name for row in rows for name in code(row[0])}


def test_stability_names_every_sql_function() -> None:
    shape = (ROOT / "migrations" / "schema.txt").read_text(encoding="utf-8")
    public, private = (set(re.findall(r"`(\w+)\(\)`", cell)) for cell in public_part("SQL functions"))
    assert public | private == set(re.findall(r"^function (\w+)\(", shape, re.MULTILINE))
    guide = (ROOT / "docs" / "guides" / "transactions.md").read_text(encoding="utf-8")
    assert public == {name for name in public | private if f"{name}(" in guide}


def test_stability_names_every_fixture_of_the_plugin() -> None:
    plugin = parsed(ROOT / "pg_scheduler_plugins" / "pytest.py")
    fixtures = {
        node.name
        for node in plugin.body
        if isinstance(node, ast.FunctionDef) and any("fixture" in ast.unparse(d) for d in node.decorator_list)
    }
    public, _ = public_part("pytest plugin")
    assert set(code(public)) == {name for name in fixtures if not name.startswith("_")}


def test_stability_names_the_migrations_that_remove_something() -> None:
    page = (ROOT / "docs" / "project" / "stability.md").read_text(encoding="utf-8")
    files = sorted((ROOT / "migrations").glob("*.up.sql"))
    contracts = [file.name[:4] for file in files if file.read_text("utf-8").startswith("-- contract")]
    assert contracts == ["0001"]
    assert "So far only the first migration, `0001`, is of this kind." in page


def test_life_cycle_describes_every_status() -> None:
    documented = [code(row[0])[0] for row in table("concepts/life-cycle.md", "| Status | Meaning |")]
    assert documented == [status.value for status in pg_scheduler.JobStatus]


SUSPENDED = "SELECT count(*) FROM scheduled_jobs WHERE options ? 'steps' AND status = 'pending'"
CONNECTIONS = re.compile(r"takes? (?:up to|only) \[?(\d+)(?: connections)?(?:\]|\b)")


def test_pages_agree_on_the_connections_that_a_worker_takes() -> None:
    size = inspect.signature(Scheduler.connect).parameters["pool_size"].default
    limit = size + OUTSIDE_POOL
    worker = {"concepts/where-to-run", "guides/django", "guides/web", "operations/database"}
    worker |= {"operations/deployment", "operations/troubleshooting"}
    numbers = {
        name: {
            int(number)
            for number in CONNECTIONS.findall(
                " ".join((ROOT / f"docs/{name}.md").read_text(encoding="utf-8").split())
            )
        }
        for name in worker
    }
    # A web process that only enqueues has the pool alone. Eight and twenty processes are computed, too.
    assert {name: page_numbers - {size, 8 * limit, 20 * limit} for name, page_numbers in numbers.items()} == {
        name: {limit} for name in worker
    }


async def test_worker_takes_two_connections_outside_of_its_pool(dsn: str) -> None:
    """One is that of the lease keeper. The other one is for claims if the pool has none left for that."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    watcher = await asyncpg.connect(dsn)
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool, Scheduler(pool) as scheduler:
        limit = 5 + OUTSIDE_POOL
        claim_connection = store_of(scheduler).connections.dedicated_connection
        async with asyncio.timeout(PATIENCE):
            while claim_connection.connection is None:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0)
            # Jobs use what the worker leaves, and then the place of its connection for claims, which is lost.
            connections = [await pool.acquire() for _ in range(3)]
            pid = claim_connection.connection.get_server_pid()
            await watcher.execute(f"SELECT pg_terminate_backend({pid})")
            connections.append(await pool.acquire())
            # The watcher is one of these connections.
            while await watcher.fetchval(query) < limit + 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
        for connection in connections:
            await pool.release(connection)
    await watcher.close()


@pytest.mark.slow
async def test_sleeping_job_costs_no_memory_of_its_worker(dsn: str) -> None:
    """As the pages state. The first jobs load code and fill buffers, so only the next ones are measured."""

    async def rest(_number: int) -> None:
        await current_job().steps.sleep("delivery", timedelta(days=3))

    async with Scheduler.connect(dsn, max_concurrent_jobs=100) as scheduler:
        scheduler.register(rest, name="facts.rest")

        async def put_to_sleep(start: int, end: int) -> int:
            """Return the traced memory when the jobs with these numbers are suspended."""
            await scheduler.schedule_bulk([JobSpec(rest, args=(number,)) for number in range(start, end)])
            async with asyncio.timeout(PATIENCE):
                while await scheduler.db_pool.fetchval(SUSPENDED) < end:  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0.01)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            memory_before = await put_to_sleep(0, 100)
            memory_after = await put_to_sleep(100, 500)
        finally:
            tracemalloc.stop()
    # A job that runs and waits uses three times as much.
    assert (memory_after - memory_before) / 400 < 1000


def test_glossary_lists_every_outcome() -> None:
    rows = dict(table("project/glossary.md", "| Term | Meaning |"))
    counted, _, history = rows["outcome"].partition(". ")
    assert set(re.findall(r"\w+", counted)) & {*OUTCOMES} == {*OUTCOMES}
    history_module = (ROOT / "pg_scheduler/jobs/history.py").read_text(encoding="utf-8")
    entries = set(re.findall(r"``(\w+)``", history_module))
    assert {*code(history)} <= entries


def test_executors_page_has_the_numbers_and_the_outcomes_of_the_code() -> None:
    text = " ".join((ROOT / "docs/guides/executors.md").read_text(encoding="utf-8").split())
    slots = inspect.signature(Scheduler).parameters["max_concurrent_jobs"].default
    threads = inspect.signature(ThreadExecutor).parameters["threads"].default
    assert f"as it has *slots*, {slots} by default" in text
    assert f"more slots, up to {threads} jobs run in threads" in text
    rows = dict(table("guides/executors.md", "| The flag is set by | When the thread has returned |"))
    assert rows["the shutdown"] == "the job is released, and uses no retry"


async def test_job_that_a_shutdown_released_has_used_an_attempt_and_no_retry(pool: asyncpg.Pool) -> None:
    started = asyncio.Event()

    async def run_for_ever() -> None:
        started.set()
        await asyncio.Event().wait()

    scheduler = Scheduler(pool, shutdown_timeout=0, stop_grace=1)
    scheduler.register(run_for_ever, name="facts.for_ever", max_retries=2)
    async with scheduler:
        job_id = await scheduler.enqueue(run_for_ever)
        await started.wait()
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert (job.status, job.attempt, job.retry_count) == (JobStatus.PENDING, 1, 0)
    assert job.errors[-1].outcome == "released"


ROLLOUT = [
    "pg-scheduler migrate",
    "pg-scheduler doctor --grants worker",
    "pg-scheduler worker app.jobs --check",
]


@pytest.mark.parametrize(
    ("page", "section", "steps"),
    [
        ("operations/deployment.md", "Each further deployment", ["pg-scheduler check app.jobs", *ROLLOUT]),
        ("operations/upgrading.md", "Rolling out a new version", ["migrate.py", *ROLLOUT[1:]]),
    ],
)
def test_lists_of_a_rollout_have_the_same_steps(page: str, section: str, steps: list[str]) -> None:
    """Each page lacked a step of the other one: the grants, and the check of the worker."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    numbered = re.findall(r"^\d\. .*(?:\n   .*)*", text, re.MULTILINE)
    places = [next(index for index, step in enumerate(numbered) if word in step) for word in steps]
    assert places == sorted(places)
    replacing = next(index for index, step in enumerate(numbered) if step[3:].startswith("**Replace"))
    assert places[-1] < replacing


def test_tutorial_shows_the_names_that_a_small_service_needs() -> None:
    rows = table("project/index.md", "| Need | Names |")
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row[1])}
    tutorial = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "docs/start/tutorial").glob("*.md")
    )
    missing = {name for name in names if name.removesuffix(")") not in tutorial}
    text = (ROOT / "docs/project/index.md").read_text(encoding="utf-8")
    assert "shows all of these but `get_job()` in an hour" in text
    assert missing == {"get_job()"}


def test_guide_to_the_shutdown_and_the_shipped_deployment_agree_on_a_probe() -> None:
    shipped = (ROOT / "pg_scheduler/ops/k8s/worker.yaml").read_text(encoding="utf-8")
    assert "livenessProbe: {httpGet: {path: /livez" in shipped
    guide = " ".join((ROOT / "docs/guides/shutdown.md").read_text(encoding="utf-8").split())
    assert (
        "Only a liveness probe restarts such a process. The Deployment of `pg-scheduler k8s` has one" in guide
    )
