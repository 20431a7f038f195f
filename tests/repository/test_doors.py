"""A module of the engine can move, or get another name, without an edit of tests that do not use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import inside
from tools.environment import ROOT
from tools.figures.outer import dotted_patches, imported_patches, stopping
from tools.figures.source import Sources

PATCHES_BY_PATH = {"tests.dashboard.test_every_number": 2}
"""Calls that replace something by a text with its path, by module: this one has a table of all bounds."""

MAX_IMPORTED_PATCHES = 180
"""Calls that replace something in a private module or class which the file of tests imports.

A new one takes the place of another, or is an entry of `inside.PLACES`.
"""


def test_no_private_module_stops_all_tests_when_it_moves() -> None:
    assert stopping(ROOT, Sources(ROOT)) == {}


@pytest.mark.parametrize(
    "line",
    [
        "from pg_scheduler.jobs import rows",
        "from pg_scheduler.jobs.rows import Claim",
        "import pg_scheduler.jobs.rows",
        "def late(): from pg_scheduler.jobs.rows import Claim",
        "module = import_module('pg_scheduler.jobs.rows')",
    ],
)
def test_private_module_is_found_however_it_is_named(tmp_path: Path, line: str) -> None:
    files = {
        "pg_scheduler/__init__.py": "",
        "pg_scheduler/jobs/__init__.py": "",
        "pg_scheduler/jobs/rows.py": "class Claim: ...",
        "tests/conftest.py": "def work(): from tests.support.first import work\nimport pg_scheduler",
        "tests/support/first.py": "module = import_module('tools.second')",
        "tools/second.py": line,
        "tests/support/other.py": "import pg_scheduler.jobs.rows",  # the chain does not lead there
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    chain = ["tests.conftest", "tests.support.first", "tools.second", "pg_scheduler.jobs.rows"]
    assert stopping(tmp_path, Sources(tmp_path)) == {chain[-1]: chain}


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources(ROOT, "tests")


def test_tests_replace_nothing_by_its_path(sources: Sources) -> None:
    counts = {name: dotted_patches(module) for name, module in sources.modules.items()}
    assert {name: count for name, count in counts.items() if count} == PATCHES_BY_PATH


def test_few_calls_replace_something_in_a_private_module_that_a_test_imports(sources: Sources) -> None:
    package = Sources(ROOT)
    counts = {name: imported_patches(package, sources, module) for name, module in sources.modules.items()}
    files = {name: count for name, count in counts.items() if count}
    assert sum(files.values()) <= MAX_IMPORTED_PATCHES, files


@pytest.mark.parametrize(
    ("code", "by_path", "imported"),
    [
        ("patch.setattr('pg_scheduler.jobs.rows.MAX', 1)", 1, 0),
        ("patch.setattr(f'pg_scheduler.{name}.MAX', 1)", 1, 0),
        ("patch.setattr(f'{name}.MAX', 1)", 1, 0),
        ("patch.delattr('pg_scheduler.jobs.rows.MAX')", 1, 0),
        ("patch.setattr(f'{__name__}.MAX', 1)", 0, 0),
        ("patch.setattr('os.environ', {})", 0, 0),
        ("from pg_scheduler.jobs import rows\npatch.setattr(rows, 'MAX', 1)", 0, 1),
        ("import pg_scheduler.jobs.rows as it\npatch.setattr(it, 'MAX', 1)", 0, 1),
        ("from pg_scheduler.jobs.rows import Claim\npatch.setattr(Claim, 'ask', ask)", 0, 1),
        ("from pg_scheduler.inspect import bulk\npatch.setattr(bulk, 'BATCH_SIZE', 1)", 0, 1),
        ("from pg_scheduler.inspect import Inspector\npatch.setattr(Inspector, 'ask', ask)", 0, 0),
        ("inside.replace(patch, rows=1)", 0, 0),
    ],
)
def test_patches_are_found_however_they_are_written(
    tmp_path: Path, code: str, by_path: int, imported: int
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(code, encoding="utf-8")
    tests = Sources(tmp_path, "tests")
    (module,) = tests.modules.values()
    assert (dotted_patches(module), imported_patches(Sources(ROOT), tests, module)) == (by_path, imported)


def test_every_place_that_tests_replace_exists_and_has_a_test(sources: Sources) -> None:
    users = [module.text for name, module in sources.modules.items() if name != inside.__name__]
    for name in inside.PLACES:
        owner, attribute = inside.place(name)
        assert hasattr(owner, attribute), f"{inside.PLACES[name]} has moved: correct the entry {name!r}"
        uses = (f"{name}=", f'internal_setting("{name}")')
        is_used = any(use in text for text in users for use in uses)
        assert is_used, f"no test replaces or reads {name!r}: remove the entry"
    assert len(set(inside.PLACES.values())) == len(inside.PLACES), "a place has one entry"
