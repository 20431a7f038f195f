"""Record which tests call which functions of the package: ``python -m tools.reach``.

It runs the tests of the tier with coverage, which takes twice their time. ``tests/reach.json`` has for each
function the tests that call it: at most `MAX_TESTS`, those of its subject first. A test is about a module if
a large part of the functions that it calls are those of the module. Most tests run a job, so the functions of
the core are called by thousands of tests, and few of these notice a fault in them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from coverage import CoverageData

from tools import suite
from tools.changed import MODULE, REACH, functions_of
from tools.environment import call

ROOT: Final = suite.ROOT
CONFIGURATION: Final = Path(__file__).with_suffix(".ini")

MAX_TESTS: Final = 12
MAX_COST_S: Final = 3.0
"""A test that costs more is no answer within a minute."""


def rank(
    called: Mapping[str, Mapping[str, set[str]]], costs_s: Mapping[str, float]
) -> dict[str, dict[str, list[str]]]:
    """Return the tests of each function, those of its subject first.

    Args:
        called: The tests by file and function.
        costs_s: What each test costs.
    """
    in_module: defaultdict[str, Counter[str]] = defaultdict(Counter)
    anywhere: Counter[str] = Counter()
    for path, functions in called.items():
        for tests in functions.values():
            in_module[path].update(tests)
            anywhere.update(tests)
    ranked: dict[str, dict[str, list[str]]] = {}
    for path, functions in called.items():
        counts = in_module[path]

        def place(test: str, counts: Counter[str] = counts) -> tuple[float, float, str]:
            return (-counts[test] / anywhere[test], costs_s.get(test, 0.0), test)

        affordable = {
            name: [test for test in tests if costs_s.get(test, 0.0) <= MAX_COST_S]
            for name, tests in functions.items()
        }
        ranked[path] = {
            name: sorted(tests, key=place)[:MAX_TESTS] for name, tests in sorted(affordable.items())
        }
        ranked[path][MODULE] = sorted(
            filter(lambda test: costs_s.get(test, 0.0) <= MAX_COST_S, counts), key=place
        )[:MAX_TESTS]
    return ranked


def read(data: CoverageData) -> dict[str, dict[str, set[str]]]:
    """Return the tests that called each function of the package, by file and function."""
    called: dict[str, dict[str, set[str]]] = {}
    for name in sorted(data.measured_files()):
        path = Path(name)
        # The templates of the dashboard are measured, too.
        if path.suffix != ".py" or not path.is_file() or not path.is_relative_to(ROOT / "pg_scheduler"):
            continue
        functions = functions_of(path.read_text("utf-8"))
        tests: defaultdict[str, set[str]] = defaultdict(set)
        for line, contexts in data.contexts_by_lineno(name).items():
            if line in functions:
                # A context is the name of a test case, and whether its fixtures or its body ran.
                tests[functions[line]].update(
                    context.rpartition("|")[0].partition("[")[0] for context in contexts if context
                )
        called[path.relative_to(ROOT).as_posix()] = tests
    return called


def write(ranked: Mapping[str, Mapping[str, list[str]]]) -> None:
    """Write the file. It names each test once, and a function has the places of its tests."""
    tests = sorted({test for functions in ranked.values() for names in functions.values() for test in names})
    place = {test: index for index, test in enumerate(tests)}
    lines = [
        f"  {json.dumps(path)}: "
        + json.dumps({name: [place[test] for test in names] for name, names in functions.items()})
        for path, functions in sorted(ranked.items())
    ]
    names = ",\n".join(f"  {json.dumps(test)}" for test in tests)
    functions_text = ",\n".join(lines)
    text = f'{{\n "tests": [\n{names}\n ],\n "functions": {{\n{functions_text}\n }}\n}}\n'
    REACH.write_text(text, "utf-8")


def main() -> int:
    """Run the tests of the tier, and write the file."""
    with tempfile.TemporaryDirectory() as folder:
        data_file = Path(folder) / "data"
        os.environ["COVERAGE_FILE"] = str(data_file)
        os.environ.setdefault("PG_SCHEDULER_PATIENCE", "60")
        coverage = ["--cov", f"--cov-config={CONFIGURATION}", "--cov-context=test", "--cov-report="]
        parallel = ["--numprocesses", str(suite.WORKERS), "--dist", "worksteal"]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            *parallel,
            *coverage,
            "-p",
            "tools.selection",
            "--tier",
        ]
        # The tests of the repository read texts, this very file among them.
        folders = [f"--ignore={suite.REPOSITORY}", *(f"--ignore=tests/{it}" for it in suite.SLOW_FOLDERS)]
        status = call([*command, *folders])
        data = CoverageData(str(data_file))
        data.read()
        costs_s = {
            f"{file}::{name}": cost.processor_s
            for file, tests in suite.load().costs.items()
            for name, cost in tests.items()
        }
        write(rank(read(data), costs_s))
    return status


if __name__ == "__main__":
    sys.exit(main())
