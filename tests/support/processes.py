"""Other processes."""

from __future__ import annotations

import os
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return whether a process runs. It remains as a zombie in a container whose init does not reap it."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # no Linux, or it has ended since
        return not Path("/proc/self").exists()
    return stat.rpartition(")")[2].split()[0] != "Z"
