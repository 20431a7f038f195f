"""A module of the engine can move, or get another name, without an edit of tests that do not use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.environment import ROOT
from tools.figures.outer import stopping
from tools.figures.source import Sources


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
        (tmp_path / name).write_text(text)
    chain = ["tests.conftest", "tests.support.first", "tools.second", "pg_scheduler.jobs.rows"]
    assert stopping(tmp_path, Sources(tmp_path)) == {chain[-1]: chain}
