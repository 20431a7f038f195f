"""A process loads the modules of the features that it uses: each costs memory and time at its start."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import pg_scheduler
from tools.environment import ROOT

REPORT = """
import json, sys
ours = {
    name: len(open(module.__file__, encoding="utf-8").read().splitlines())
    for name, module in sys.modules.items()
    if name.partition(".")[0] == "pg_scheduler"
}
others = {name.partition(".")[0] for name in sys.modules} - {*sys.stdlib_module_names}
print(json.dumps({"ours": ours, "others": sorted(others)}))
"""

IMPORT = "import pg_scheduler\n"

DECLARATION = """
import asyncio, sys
import asyncpg, pg_scheduler

@pg_scheduler.job()
async def work(number: int) -> None: ...
"""


ENQUEUE = f"""{DECLARATION}
async def main() -> None:
    async with pg_scheduler.Scheduler.connect(sys.argv[1], start=False) as scheduler:
        await scheduler.enqueue(work, args=(1,))

asyncio.run(main())
"""

WORK = f"""{DECLARATION}
async def main() -> None:
    async with pg_scheduler.Scheduler.connect(sys.argv[1]) as scheduler:
        await scheduler.run_job(work, args=(1,))

asyncio.run(main())
"""


class Bound(NamedTuple):
    """The most modules and lines of ours that a program may load, and what it must not load."""

    modules: int
    lines: int
    modules_left_out: tuple[str, ...]
    packages_left_out: tuple[str, ...]


FEATURES = (
    *("admission", "cluster_events", "database.migrations.apply", "schedules", "statistics.service", "steps"),
    *("streams", "triggers", "worker.claimer", "worker.executor", "worker.runners", "worker.vacuum"),
    *("jobs.chunk", "jobs.pause", "jobs.steps", "jobs.streams", "jobs.typed", "jobs.values"),
    *("queue.clean_ups", "queue.failure_alerts", "scheduler.runtime", "scheduler.schedules"),
    *("scheduler.signals", "scheduler.tasks", "base.health", "base.validators"),
)
"""What a process that enqueues plain jobs does not need."""

OF_CALLERS = (
    *("jobs.typed", "queue.clean_ups"),
    *("queue.failure_alerts", "scheduler.schedules", "scheduler.tasks", "scheduler.signals"),
)

NOT_NEEDED = (
    "cryptography",
    "fastapi",
    "jinja2",
    "prometheus_client",
    "pytest",
    "rich",
    "sqlalchemy",
    "typer",
)
VALIDATION = ("croniter", "pydantic", *NOT_NEEDED)

BOUNDS = {
    IMPORT: Bound(8, 700, ("database", "jobs", "queue", "worker", *FEATURES), ("asyncpg", *VALIDATION)),
    ENQUEUE: Bound(136, 30_500, FEATURES, VALIDATION),
    WORK: Bound(262, 62_500, OF_CALLERS, NOT_NEEDED),
}
"""The bounds leave room for a few modules. `WORK` has the planner of schedules, which needs pydantic."""


def excess(program: str, bound: Bound, dsn: str) -> Iterator[str]:
    """Yield what a program loads too much of, in a new process."""
    command = [sys.executable, "-c", program + REPORT, dsn]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    lines = loaded["ours"]
    for name, count, most in (
        ("modules", len(lines), bound.modules),
        ("lines", sum(lines.values()), bound.lines),
    ):
        if count > most:
            yield f"{count} {name}, more than {most}"
    for name in bound.modules_left_out:
        if any(f"{module}.".startswith(f"pg_scheduler.{name}.") for module in lines):
            yield name
    yield from set(loaded["others"]).intersection(bound.packages_left_out)


@pytest.mark.parametrize("program", BOUNDS, ids=["import", "enqueue", "work"])
def test_program_loads_what_it_uses(program: str, dsn: str) -> None:
    assert [*excess(program, BOUNDS[program], dsn)] == []


def test_lazy_modules_are_those_that_type_checkers_see() -> None:
    """The contracts of imports read the imports for type checkers, so those must name the same modules."""
    differing = []
    for path in sorted((ROOT / "pg_scheduler").glob("**/*.py")):
        text = path.read_text(encoding="utf-8")
        if "= LazyModule(" not in text:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and node.orelse:
                imported = dict(imports_of(node.body))
                lazy = {
                    statement.targets[0].id: ast.literal_eval(statement.value.args[0])
                    for statement in node.orelse
                    if isinstance(statement, ast.Assign)
                    if isinstance(statement.targets[0], ast.Name) and isinstance(statement.value, ast.Call)
                }
                differing += [f"{path}: {item}" for item in lazy.items() if item not in imported.items()]
    assert differing == []


def imports_of(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the names that statements import, and what each stands for."""
    for node in body:
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)


def test_public_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse((ROOT / "pg_scheduler" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (
        node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node)
    )
    homes = {name: home.rpartition(".")[0] for name, home in imports_of(block.body)}
    assert homes.keys() == {*pg_scheduler.__all__} - {"__version__"}
    table = pg_scheduler._MODULES
    assert homes == {name: module for module, names in table.items() for name in names}
    assert {*pg_scheduler.__all__} <= {*dir(pg_scheduler)}


def test_missing_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pg_scheduler' has no attribute 'Cron'"):
        _ = pg_scheduler.Cron
