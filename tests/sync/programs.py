"""Programs that the tests run in processes of their own: they fork and exit."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Final

from tools.environment import ROOT

TIMEOUT_S: Final = 50

HEAD: Final = """
import atexit, multiprocessing, os, signal, sys, threading, time
from datetime import UTC, datetime, timedelta
from pg_scheduler import job
from pg_scheduler.events import JobCompleted
from pg_scheduler.store.connections.asyncpg_private import file_number, open_connections
from pg_scheduler.sync import SyncScheduler

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
    options = ["-X", "dev", "-W", "error", "-W", "ignore::DeprecationWarning"]
    return [sys.executable, *options, "-c", HEAD + textwrap.dedent(code), dsn]


def run(code: str, dsn: str) -> list[str]:
    """Run a program to its end; return the lines that it prints."""
    done = subprocess.run(
        command(code, dsn), env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
    return done.stdout.splitlines()
