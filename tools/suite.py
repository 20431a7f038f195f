"""The parts of the test suite, and how they are divided among processes. Standard library only.

``tests/durations.json`` has what each test function costs, as ``dev.py test --all`` has recorded it.
``tests/tier.txt`` names the tests that ``dev.py test`` runs: files, of which it runs every test, and single
tests. `tools.tier` writes both files, and `tools.selection` applies the tier in pytest.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
DURATIONS = ROOT / "tests" / "durations.json"
TIER = ROOT / "tests" / "tier.txt"
RECORDS = ROOT / ".venv" / "costs"
"""The folder in which the last run of all tests has noted their costs."""

CORES = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
WORKERS = CORES + 1
"""Tests wait for the server, and the processor must not wait with them."""

SLOW_WORKERS = 2 * CORES
"""Slow tests mostly wait, so more of them run at once than there are cores."""

USUAL = ["-m", "not slow"]
SLOW = ["-m", "slow", "--durations=10", "--durations-min=20"]
"""The tests in real time, of several processes or in a browser, and others of about a second."""

SLOW_FOLDERS = ("browser", "cluster", "typing")
"""The folders of ``tests`` in which every test is slow."""

REPOSITORY = "tests/repository"
"""The tests of prose, names, tools and rules, which run with the checks."""

BY_VERSION = ["tests/store", "tests/unit", "tests/migrations"]
"""The tests that the versions of Python and PostgreSQL affect most."""

STORE_FILES = sorted(f"tests/store/{path.name}" for path in (ROOT / "tests/store").glob("test_*.py"))
SLICES = (*(STORE_FILES[part::4] for part in range(4)), ["tests/unit"], ["tests/migrations"])
"""The same in six parts."""

IMPORT_S = 0.1
"""What importing a file of tests takes, about."""

UNRECORDED_FILE_S = 5.0
"""What the tests of a file are assumed to take that has not been recorded."""


class Cost(NamedTuple):
    """What the cases of one test function have cost together.

    The processor time is that of the tests, of the programs that they run, and of the server.
    """

    processor_s: float
    elapsed_s: float
    cases: int
    is_slow: bool

    @classmethod
    def read(cls, numbers: Sequence[float]) -> "Cost":
        """Return a cost as the files have it, a list of numbers."""
        processor_s, elapsed_s, cases, is_slow = numbers
        return cls(processor_s, elapsed_s, int(cases), bool(is_slow))


class Suite(NamedTuple):
    """The recorded costs by file and test function, and the files and tests of the tier."""

    costs: dict[str, dict[str, Cost]]
    tier: frozenset[str]
    tier_files: frozenset[str]

    def is_in_tier(self, test: str, *, is_slow: bool) -> bool:
        """Return whether the tier has a test function, such as ``tests/api/test_jobs.py::test_job_runs``.

        A slow one is in the tier only by its own name. One that has not been recorded is in the tier if other
        tests of its file are, or if its file is new.
        """
        file, _, name = test.partition("::")
        if test in self.tier:
            return True
        is_new = name not in self.costs.get(file, {}) and self.tier_has(file)
        return not is_slow and (file in self.tier or is_new)

    def tier_has(self, file: str) -> bool:
        """Return whether tests of a file may be in the tier."""
        return file in self.tier_files or file not in self.costs

    def duration_s(self, file: str, *, is_tier: bool | None = None, is_slow: bool | None = None) -> float:
        """Return how long the tests of a file take.

        Args:
            file: Its path in the repository.
            is_tier: Count only those of the tier, or only the others.
            is_slow: Count only the slow ones, or only the others.
        """
        if file not in self.costs:
            return UNRECORDED_FILE_S
        return IMPORT_S + sum(
            cost.elapsed_s
            for name, cost in self.costs[file].items()
            if is_tier in (None, self.is_in_tier(f"{file}::{name}", is_slow=cost.is_slow))
            and is_slow in (None, cost.is_slow)
        )


def load() -> Suite:
    """Read the recorded costs and the tier; without the files, every test is in the tier."""
    recorded = json.loads(DURATIONS.read_text("utf-8")) if DURATIONS.exists() else {}
    costs = {
        file: {name: Cost.read(numbers) for name, numbers in tests.items()}
        for file, tests in recorded.items()
    }
    tier = frozenset(TIER.read_text("utf-8").splitlines() if TIER.exists() else ())
    return Suite(costs, tier, frozenset(test.partition("::")[0] for test in tier))


def files(paths: Iterable[str] = ("tests",)) -> list[str]:
    """Return the files of tests in these folders; the path of a file stands for itself."""
    found: set[Path] = set()
    for path in paths:
        folder = ROOT / path
        found.update(folder.rglob("test_*.py") if folder.is_dir() else [folder])
    return sorted(file.relative_to(ROOT).as_posix() for file in found)


def usual_files(paths: Iterable[str] = ("tests",)) -> list[str]:
    """Return the files that have tests which are not slow."""
    folders = tuple(f"tests/{folder}/" for folder in SLOW_FOLDERS)
    return [file for file in files(paths) if not file.startswith(folders)]


def beside_checks(paths: Iterable[str]) -> list[str]:
    """Return the files without those whose usual tests run with the checks."""
    return [path for path in paths if not path.startswith(f"{REPOSITORY}/")]


def slow_files() -> list[str]:
    """Return the files that have slow tests, by their folder or by a word in them."""
    folders = tuple(f"tests/{folder}/" for folder in SLOW_FOLDERS)
    return [
        file for file in files() if file.startswith(folders) or "slow" in (ROOT / file).read_text("utf-8")
    ]


def empty_records() -> Path:
    """Return the folder for the costs of all tests, without those of the run before."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    for path in RECORDS.glob("*.json"):
        path.unlink()
    return RECORDS


def divide(durations_s: Mapping[str, float], count: int) -> list[list[str]]:
    """Divide files among so many processes, of which each takes about the same time.

    The longest file goes first, each to the process that has least to do.
    """
    parts: list[list[str]] = [[] for _ in range(count)]
    totals_s = [0.0] * count
    for file in sorted(durations_s, key=lambda file: (-durations_s[file], file)):
        index = totals_s.index(min(totals_s))
        parts[index].append(file)
        totals_s[index] += durations_s[file]
    return [part for part in parts if part]
