"""Programs that the tests run in processes of their own: they fork and exit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tools.environment import ROOT

TIMEOUT_S: Final = 50

HEAD: Final = """
import asyncio, atexit, multiprocessing, os, signal, sys, threading
from datetime import UTC, datetime, timedelta
from pg_scheduler import job
from pg_scheduler.events import JobCompleted
from pg_scheduler.database.asyncpg_private import file_number, open_connections
from pg_scheduler.sync import SyncScheduler, portal

LATER = datetime(2030, 1, 1, tzinfo=UTC)

@job(name="work")
async def work(number=0): ...

def sockets_of(scheduler):
    return {os.fstat(file_number(each)).st_ino for each in open_connections(scheduler.db_pool)}

def open_files():
    found = set()
    for name in os.listdir("/dev/fd"):
        try:
            found.add(os.fstat(int(name)).st_ino)
        except OSError:  # that of the listing
            pass
    return found

scheduler = SyncScheduler(sys.argv[1])
"""


def environment() -> dict[str, str]:
    """The environment of a program that imports this checkout."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


def command(code: str, dsn: str) -> list[str]:
    # Forking is the subject; Python 3.12 and later warn of it when other threads run.
    options = ["-W", "error", "-W", "ignore::DeprecationWarning"]
    return [sys.executable, *options, "-c", HEAD + textwrap.dedent(code), dsn]


def run(code: str, dsn: str) -> list[str]:
    """Run a program to its end; return the lines that it prints."""
    return run_command(command(code, dsn))


def run_command(arguments: Sequence[str]) -> list[str]:
    """Run a command to its end; return the lines that it prints."""
    done = subprocess.run(
        arguments, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
    return done.stdout.splitlines()


@contextmanager
def gunicorn(application: str, folder: Path, dsn: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start gunicorn, which loads the application before it forks; yield the process and its address."""
    pytest.importorskip("gunicorn", reason="dev.py has not updated this environment")
    options = ["--preload", "--workers", "4", "--bind", "127.0.0.1:0", "--chdir", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *options, "--worker-tmp-dir", str(folder), application],
        env=environment() | {"DATABASE_URL": dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stderr
    try:
        for line in process.stderr:
            if found := re.search(r"Listening at: (http://[\d.:]+)", line):
                yield process, found[1]
                break
        else:
            pytest.fail("gunicorn did not start")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
