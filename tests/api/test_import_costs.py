"""A process loads the modules of the features that it uses: each costs memory and time at its start."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

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


USE_LATE = f"""{DECLARATION}
@pg_scheduler.job()
async def use() -> None:
    current = pg_scheduler.current_job()
    await current.stream("rows").append(1)
    await current.steps.run("answer", asyncio.sleep, 0)

def ours() -> set[str]:
    return {{name for name in sys.modules if name.partition(".")[0] == "pg_scheduler"}}

async def main() -> None:
    async with pg_scheduler.Scheduler.connect(sys.argv[1]) as scheduler:
        await scheduler.run_job(work, args=(1,))
        before = ours()
        await scheduler.run_job(use)
        print(sorted(ours() - before))

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
    *("scheduler.signals", "scheduler.tasks", "base.validators"),
)
"""What a process that enqueues plain jobs does not need."""

OF_CALLERS = ("jobs.typed", "scheduler.schedules", "scheduler.tasks", "scheduler.signals")

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


def test_job_of_a_running_worker_imports_nothing(dsn: str) -> None:
    """The event loop would wait for it, and so would all other jobs."""
    command = [sys.executable, "-c", USE_LATE, dsn]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
