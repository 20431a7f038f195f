"""Modules import one another in no circle, also within functions and for type checkers only.

And they read few private names of one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

from tools.environment import ROOT

EXCEPTIONS = [
    ("jobs.chunk", "scheduler"),  # Chunk has the Scheduler of its jobs
    ("jobs.context", "scheduler"),  # CurrentJob has the Scheduler of the job
]
"""Modules that import one of a layer above, and so close circles."""

MAX_PRIVATE_READS = 15
"""Lines that read a private name of another object, as ruff's rule SLF001 reports them."""

WRAPPER_OF_ASYNCPG = "pg_scheduler/database/asyncpg_private.py"
"""The module that reads private names of asyncpg is there to do so."""

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
