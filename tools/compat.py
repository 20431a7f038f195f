"""Run the tests of pg-scheduler 0.2.3 on this package: ``python3 dev.py compat FOLDER``.

The folder is a checkout of its repository, because the package index has the code without the tests. They run
unmodified, in a temporary copy without the old package, on a private server whose tables they drop.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from pg_scheduler.embedded import EmbeddedPostgres
from tools.environment import ROOT, DevError, exit_on_signals

USAGE: Final = "usage: python3 dev.py compat FOLDER [arguments of pytest]"

PRIVATE: Final = "tests/unit/test_job_spec.py"
"""Imports a private module of 0.2.3."""

UNDOCUMENTED: Final = (
    "tests/integration/test_bulk_scheduling.py::TestBulkScheduling::test_schedule_bulk_conflict_ignore"
)
"""Expects a list without the jobs that were not inserted; 0.2.3 documents None for them."""

PERIODIC: Final = "tests/integration/test_periodic_"

EXTENDED: Final = (
    f"{PERIODIC}interval.py::TestPeriodicInterval::test_periodic_job_function_not_async_raises",
    f"{PERIODIC}cron.py::TestPeriodicCron::test_cron_job_function_not_async_raises",
)
"""Expect ``@periodic`` to reject plain functions, which run in threads."""


def main(arguments: Sequence[str]) -> int:
    """Run the tests and return the exit code of pytest."""
    if not arguments:
        raise DevError(USAGE)
    folder, chosen = Path(arguments[0]), arguments[1:]
    for part in ("pytest.ini", "tests/conftest.py"):
        if not (folder / part).is_file():
            raise DevError(f"{folder} is not a checkout of pg-scheduler 0.2.3: {part} is missing; {USAGE}")
    with tempfile.TemporaryDirectory(prefix="compat-") as copy, EmbeddedPostgres() as server:
        shutil.copytree(folder / "tests", Path(copy, "tests"))
        shutil.copy(folder / "pytest.ini", copy)
        command = [sys.executable, "-m", "pytest", "-p", "no:pg_scheduler"]
        command += ["-p", "no:cacheprovider", "-p", "no:randomly"]
        command += [f"--ignore={PRIVATE}", *(f"--deselect={test}" for test in (UNDOCUMENTED, *EXTENDED))]
        command += chosen
        return subprocess.run(command, cwd=copy, env=environment(server.dsn()), check=False).returncode


def environment(dsn: str) -> dict[str, str]:
    """Return the environment of the tests, with this package on the path and the address of the server."""
    address = urlsplit(dsn)
    options = {name: values[0] for name, values in parse_qs(address.query).items()}
    return os.environ | {
        "PYTHONPATH": str(ROOT),
        "PGHOST": options["host"],
        "PGPORT": options["port"],
        "PGUSER": address.username or "",
        "PGPASSWORD": "",
        "PGDATABASE": address.path.removeprefix("/"),
    }


if __name__ == "__main__":
    exit_on_signals()
    try:
        sys.exit(main(sys.argv[1:]))
    except DevError as error:
        sys.exit(f"dev.py: {error}")
