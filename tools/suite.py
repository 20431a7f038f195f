"""The parts of the test suite, as arguments for pytest. Standard library only.

``tests/conftest.py`` marks each test by what it waits for.
"""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent

CORES = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
WORKERS = CORES + 1
"""Tests wait for the server, and the processor must not wait with them."""

QUICK = ["tests/unit", "tests/docs", "tests/repository", "-m", "not database and not slow"]
"""Tests that wait for nothing; the other folders have few of them, and take long to collect."""

SLOW = ["-m", "slow", "--durations=40", "--durations-min=5"]
"""The tests in real time, of several processes or in a browser, and others of about a second."""

SLOW_FOLDERS = ("browser", "cluster", "typing")
"""The folders of ``tests`` in which every test is slow."""

NOT_SLOW = ["-m", "not slow", *(f"--ignore=tests/{folder}" for folder in SLOW_FOLDERS)]

BY_VERSION = ["tests/store", "tests/unit", "tests/migrations"]
"""The tests that the versions of Python and PostgreSQL affect most."""

STORE_FILES = sorted(f"tests/store/{path.name}" for path in (ROOT / "tests/store").glob("test_*.py"))
SLICES = (*(STORE_FILES[part::4] for part in range(4)), ["tests/unit"], ["tests/migrations"])
"""The same in six parts."""


def parallel(workers: int = WORKERS) -> list[str]:
    """Return the arguments that distribute the tests to so many processes."""
    return ["--numprocesses", str(workers), "--dist", "worksteal"]
