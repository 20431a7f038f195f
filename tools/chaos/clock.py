"""A clock that can be stepped: libfaketime in a process, and a file with the offset of its clock.

Only the time of day moves. The monotonic clock, which ledgers, faults and event loops use, is not affected,
as when an administrator or NTP sets a clock.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

LIBRARY: Final = "usr/lib/*/faketime/libfaketimeMT.so.1"
DEBIAN: Final = Path(os.environ.get("PG_SCHEDULER_DEBIAN") or Path(sys.prefix, "debian"))
FOLDERS: Final = (DEBIAN / "libfaketime", Path("/"))
"""Where dev.py and the system's package manager install it."""


def find_library() -> Path | None:
    """Return the path of libfaketime, None if it is not installed."""
    return next((found for folder in FOLDERS for found in folder.glob(LIBRARY)), None)


class Clock:
    """The clock of one program and its child processes; it shows the correct time at first.

    Args:
        library: The path that ``find_library()`` returned.
    """

    def __init__(self, library: Path) -> None:
        # The server may run as another user, which must be able to read both.
        self._folder = Path(tempfile.mkdtemp(prefix="clock-"))
        self._folder.chmod(0o755)
        self._file = self._folder / "offset"
        copy = self._folder / library.name
        shutil.copy(library, copy)
        copy.chmod(0o755)
        self.environment: Final = {
            "LD_PRELOAD": str(copy),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",  # all processes of a server agree
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # The fix would end every timed wait on that clock at once, also Python's wait for the GIL: two
            # threads would take it from each other all the time, and stall their process for seconds.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
        }
        self.set(0)

    def set(self, offset: float) -> None:
        """Set the offset in seconds."""
        new = self._folder / "new"
        new.write_text(f"{offset:+.3f}\n", encoding="ascii")
        new.chmod(0o644)
        new.rename(self._file)

    def close(self) -> None:
        """Remove the files; the processes that use the clock must have ended."""
        shutil.rmtree(self._folder, ignore_errors=True)
