"""A process under guard: with all that it starts it ends when we end, in whatever way, or when we say so.

Patroni's PostgreSQL is no child of Patroni's: it is made to outlive it. The guard adopts what is left by its
parents (PR_SET_CHILD_SUBREAPER), reaps it, and kills all of it, as the loss of a machine would, when its
standard input closes. Linux only.
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
REAP_EVERY = 0.1


def descendants() -> list[int]:
    """All processes below this one."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found = list(children.get(os.getpid(), ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def kill_all() -> None:
    """SIGKILL to everything below, until there is nothing: what was stopped first gives birth to nothing."""
    while pids := descendants():
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        reap()


def reap() -> None:
    """Take note of the deaths so far."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL) as process:
        try:
            while not select.select([0], [], [], REAP_EVERY)[0]:
                reap()
        finally:
            kill_all()
            process.returncode = -signal.SIGKILL  # it was reaped with the others


if __name__ == "__main__":
    main()
