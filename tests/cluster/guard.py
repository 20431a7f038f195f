"""Run a command and kill it with all of its descendants when standard input closes. Linux only.

The pipe closes when the parent closes it or ends for any reason. Patroni's PostgreSQL is not a child of
Patroni, so that it can outlive it; the guard therefore adopts orphaned descendants (PR_SET_CHILD_SUBREAPER)
and reaps them. Killing all of them at once resembles the loss of a machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
REAP_INTERVAL_S = 0.1


def descendants() -> list[int]:
    """Return the pids of all descendants of this process."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (
                (folder / "stat").read_text(errors="replace", encoding="utf-8").rpartition(")")[2].split()
            )
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found = list(children.get(os.getpid(), ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def kill_all() -> None:
    """Kill all descendants until none is left; they are stopped first, so that they cannot fork meanwhile."""
    while pids := descendants():
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        reap()


def reap() -> None:
    """Reap the children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL) as process:
        try:
            while not select.select([0], [], [], REAP_INTERVAL_S)[0]:
                reap()
        finally:
            kill_all()
            process.returncode = -signal.SIGKILL  # kill_all() has reaped it


if __name__ == "__main__":
    main()
