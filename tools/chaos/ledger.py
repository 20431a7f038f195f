"""What jobs and workers say themselves, in files that the database knows nothing of.

Each process appends to a file of its own, one write per line, so that a line is there in full when the
call returns, whatever happens to the process then. Times are of CLOCK_MONOTONIC, which all processes of
a machine share, also while some of them are stopped.
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

__all__ = ["CANCELLED", "DONE", "RAISED", "Book", "Ledger", "Try", "Word", "read"]

DONE: Final = "done"
RAISED: Final = "raised"
CANCELLED: Final = "cancelled"

BEGIN: Final = "begin"
START: Final = "start"
END: Final = "end"


class Ledger:
    """The file of one process.

    Args:
        folder: Where all of them lie.
        seat: The worker's place, which a successor of a killed process takes.
        worker_id: Who it is in the scheduler's tables.
    """

    def __init__(self, folder: Path, seat: str, worker_id: str) -> None:
        name = folder / f"{seat}-{os.getpid()}.ledger"
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.say(BEGIN, seat, worker_id, os.getpid())

    def say(self, what: str, *about: Any) -> None:
        """Write a line."""
        line = json.dumps([what, time.monotonic(), *about], default=str)
        os.write(self._file, f"{line}\n".encode())

    def start(self, job_id: str, attempt: int, version: int) -> None:
        """A try begins."""
        self.say(START, job_id, attempt, version)

    def end(self, job_id: str, attempt: int, how: str) -> None:
        """A try is over, as far as the job's own code is concerned."""
        self.say(END, job_id, attempt, how)


@dataclass(slots=True)
class Try:
    """One try of one job. ``ended`` and ``how`` are None when its process was gone before."""

    job_id: str
    attempt: int
    seat: str
    worker_id: str
    pid: int
    version: int
    started: float
    ended: float | None = None
    how: str | None = None


@dataclass(frozen=True, slots=True)
class Word:
    """An event that a worker published."""

    at: float
    event: str
    worker_id: str
    about: Sequence[Any]


@dataclass(slots=True)
class Book:
    """All ledgers together: tries by job in the order of their attempts, and words by event."""

    tries: dict[str, list[Try]] = field(default_factory=lambda: defaultdict(list))
    words: dict[str, list[Word]] = field(default_factory=lambda: defaultdict(list))


def read(folder: Path) -> Book:
    """Read every ledger. Of an hour these are some ten million lines, so each id is kept once."""
    book = Book()
    for file in sorted(folder.glob("*.ledger")):
        _read_one(file, book)
    for tries in book.tries.values():
        tries.sort(key=lambda one: one.attempt)
    return book


def _read_one(file: Path, book: Book) -> None:
    seat, worker_id, pid = "", "", 0
    running: dict[tuple[str, int], Try] = {}
    for what, at, *about in _lines(file):
        if what == BEGIN:
            seat, worker_id, pid = about
        elif what == START:
            job_id, attempt, version = sys.intern(about[0]), *about[1:]
            running[job_id, attempt] = one = Try(job_id, attempt, seat, worker_id, pid, version, at)
            book.tries[job_id].append(one)
        elif what == END:
            job_id, attempt, how = about
            one = running.pop((job_id, attempt))
            one.ended, one.how = at, how
        else:
            if about and isinstance(about[0], str):
                about[0] = sys.intern(about[0])
            book.words[what].append(Word(at, sys.intern(what), worker_id, tuple(about)))


def _lines(file: Path) -> Iterator[list[Any]]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):  # a last one without was cut off with its process
                yield json.loads(line)
