"""Other processes."""

from __future__ import annotations

import os
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return whether a process runs. It remains as a zombie in a container whose init does not reap it."""
    try:
        os.kill(pid, 0)
        return _state(pid) != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # no Linux, or it has ended since
        return not Path("/proc/self").exists()


def is_waiting(pid: int) -> bool:
    """Return whether a process waits in a call of the system, and so has done all that comes before."""
    try:
        return _state(pid) == "S"
    except FileNotFoundError:  # no Linux
        return True


def _state(pid: int) -> str:
    """Return the letter of the state of a process."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
