"""Programs whose event loop ends: one that has shut its Scheduler down, and those that have forgotten it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Final

import pytest

from pg_scheduler.scheduler.lifecycle import NOT_SHUT_DOWN, SHUTDOWN_CANCELLED
from tests.support.patience import PATIENCE

PROGRAM: Final = """
import asyncio, asyncpg, sys
from pg_scheduler import Scheduler

async def work(): pass

async def main():
    pool = await asyncpg.create_pool(sys.argv[1], min_size=1, max_size=8)
    scheduler = Scheduler(pool)
    await scheduler.start()
    await scheduler.get_job_result(await scheduler.enqueue(work), timeout=60)
{end}

asyncio.run(main())
"""

FORGOTTEN: Final = {
    "returns": "",
    "raises": "raise SystemExit(3)",
    "has shut it down once before": """
        await scheduler.shutdown()
        await scheduler.start()
    """,
}
SHUT_DOWN: Final = {
    "shuts down": "await scheduler.shutdown()",
    "shuts down, and closes the pool": """
        await scheduler.shutdown()
        await pool.close()
    """,
    "never starts": "await scheduler.shutdown(); other = Scheduler(pool); await other.enqueue(work)",
}


def errors_of_program(dsn: str, end: str) -> str:
    """Run a program whose main function ends so, and return what it printed as errors."""
    text = PROGRAM.format(end=textwrap.indent(textwrap.dedent(end), "    "))
    ended = subprocess.run(
        [sys.executable, "-c", text, dsn], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == (3 if "SystemExit" in end else 0), ended.stderr
    return ended.stderr


@pytest.mark.parametrize("end", FORGOTTEN.values(), ids=FORGOTTEN)
def test_program_without_a_shutdown_prints_one_warning(dsn: str, end: str) -> None:
    (warning, _source) = errors_of_program(dsn, end).splitlines()
    assert warning.endswith(f"RuntimeWarning: {NOT_SHUT_DOWN}")


def test_program_that_does_not_wait_for_the_shutdown_prints_another_warning(dsn: str) -> None:
    end = "task = asyncio.create_task(scheduler.shutdown()); await asyncio.sleep(0)"
    (warning, _source) = errors_of_program(dsn, end).splitlines()
    assert warning.endswith(f"RuntimeWarning: {SHUTDOWN_CANCELLED}")


def test_program_with_a_log_writes_the_warning_there(dsn: str) -> None:
    end = "import logging; logging.basicConfig(format='%(levelname)s %(message)s')"
    assert errors_of_program(dsn, end).splitlines() == [f"WARNING {NOT_SHUT_DOWN}"]


@pytest.mark.parametrize("end", SHUT_DOWN.values(), ids=SHUT_DOWN)
def test_program_with_a_shutdown_prints_nothing(dsn: str, end: str) -> None:
    assert errors_of_program(dsn, end) == ""
