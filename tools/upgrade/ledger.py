"""What the jobs of the rehearsal did, as lines of JSON in one file, and the gates at which they wait.

Jobs run in event loops, threads and processes of two releases. All of them can append to a file, and all of
them see whether a file exists, without anything of the library. A short line is appended in one piece.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DSN_VARIABLE: Final = "REHEARSAL_DSN"
FOLDER_VARIABLE: Final = "REHEARSAL_FOLDER"
"""The environment variable with the folder of the file and of the gates."""

LIBRARY_VARIABLE: Final = "REHEARSAL_LIBRARY"
"""The one with the folder from which the process must have imported the library."""

RELEASE_VARIABLE: Final = "REHEARSAL_RELEASE"
"""The one with the name of the release of the process."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event of a job."""

    tag: str
    """The first argument of the job: its phase, its kind and its number."""
    event: str
    release: str
    at: float
    fire_time: str | None = None


def phase_of(tag: str) -> str:
    """Return the phase for which a job was prepared."""
    return tag.partition(":")[0]


def record(tag: str, event: str, *, fire_time: str | None = None) -> None:
    """Append an event."""
    values = (tag, event, os.environ[RELEASE_VARIABLE], time.time(), fire_time)
    file = os.open(_folder() / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{json.dumps(values)}\n".encode())
    finally:
        os.close(file)


def read(folder: Path) -> Sequence[Entry]:
    """Return all events, in the order in which they were written."""
    file = folder / "ledger"
    if not file.exists():
        return []
    return [Entry(*json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def gate_is_open(tag: str) -> bool:
    """Return whether the jobs of this phase may continue."""
    return _gate(_folder(), phase_of(tag)).exists()


def open_gate(folder: Path, phase: str) -> None:
    """Let the jobs of a phase continue."""
    _gate(folder, phase).touch()


def _gate(folder: Path, phase: str) -> Path:
    return folder / f"{phase}.open"


def _folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])
