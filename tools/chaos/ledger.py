"""The ledgers: files in which jobs and workers record what they do, independent of the database.

Each worker appends to its own file, one write per line, so a line is complete when the call returns,
whatever happens to the process then. The child processes that run its jobs append to the same file. Times are
of CLOCK_MONOTONIC, which all processes of a machine share, even while some of them are stopped.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

DONE: Final = "done"
RAISED: Final = "raised"
CANCELLED: Final = "cancelled"
DIED: Final = "died"

PATH: Final = "CHAOS_LEDGER"
WORKER_ID: Final = "CHAOS_WORKER_ID"

BEGIN: Final = "begin"
START: Final = "start"
END: Final = "end"


class Ledger:
    """The ledger of one worker.

    Args:
        folder: The folder of all ledgers.
        seat: The worker's seat, which the successor of a killed process takes over.
        worker_id: The worker's id in the scheduler's tables.

    Attributes:
        environment: Environment variables for child processes that run jobs.
    """

    def __init__(self, folder: Path, seat: str, worker_id: str) -> None:
        self.worker_id = worker_id
        path = folder / f"{seat}-{os.getpid()}.ledger"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.environment: Final = {PATH: str(path), WORKER_ID: worker_id}
        self.write(BEGIN, seat, worker_id, os.getpid())

    def write(self, kind: str, *details: Any) -> None:
        """Append a line."""
        line = json.dumps([kind, time.monotonic(), *details], default=str)
        os.write(self._file, f"{line}\n".encode())

    def start(self, job_id: str, attempt: int, version: int) -> None:
        """Record the start of an attempt."""
        self.write(START, job_id, attempt, version)

    def end(self, job_id: str, attempt: int, outcome: str) -> None:
        """Record that the job's own code has ended."""
        self.write(END, job_id, attempt, outcome)


class ParentLedger(Ledger):
    """The ledger of the parent process, in a child process that runs its jobs."""

    def __init__(self) -> None:
        self.worker_id = os.environ[WORKER_ID]
        self._file = os.open(os.environ[PATH], os.O_WRONLY | os.O_APPEND)


@dataclass(slots=True)
class Attempt:
    """One attempt of one job. ``ended`` and ``outcome`` are None if its process ended first."""

    job_id: str
    attempt: int
    seat: str
    worker_id: str
    pid: int
    version: int
    started: float
    ended: float | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """An event that a worker published."""

    at: float
    event: str
    worker_id: str
    details: Sequence[Any]


@dataclass(slots=True)
class Ledgers:
    """The contents of all ledgers: attempts by job, in order, and records by event."""

    attempts: dict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    events: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))


def read(folder: Path) -> Ledgers:
    """Read every ledger.

    An hour of load writes some ten million lines, so each id is interned.
    """
    ledgers = Ledgers()
    for file in sorted(folder.glob("*.ledger")):
        _read_one(file, ledgers)
    for attempts in ledgers.attempts.values():
        attempts.sort(key=lambda one: one.attempt)
    return ledgers


def _read_one(file: Path, ledgers: Ledgers) -> None:
    seat, worker_id, pid = "", "", 0
    running: dict[tuple[str, int], Attempt] = {}
    for kind, at, *details in _lines(file):
        if kind == BEGIN:
            seat, worker_id, pid = details
        elif kind == START:
            job_id, attempt, version = sys.intern(details[0]), *details[1:]
            running[job_id, attempt] = one = Attempt(job_id, attempt, seat, worker_id, pid, version, at)
            ledgers.attempts[job_id].append(one)
        elif kind == END:
            job_id, attempt, outcome = details
            one = running.pop((job_id, attempt))
            one.ended, one.outcome = at, outcome
        else:
            if details and isinstance(details[0], str):
                details[0] = sys.intern(details[0])
            ledgers.events[kind].append(Record(at, sys.intern(kind), worker_id, tuple(details)))


def _lines(file: Path) -> Iterator[list[Any]]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):  # an incomplete last line belongs to a killed process
                yield json.loads(line)
