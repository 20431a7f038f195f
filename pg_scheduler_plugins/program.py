"""The entry point of the command line, which handles SIGTERM before it imports anything.

The kernel ignores a signal without a handler for the first process of a container (PID 1). The import of the
library and of the application takes seconds, so a SIGTERM in that time would be lost: the worker would start,
claim jobs, and be killed among them when the patience of the container's runtime ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Final

ENDED: Final = 128 + signal.SIGTERM
"""The exit code that a shell reports of a process that SIGTERM has ended."""


def _end_at_sigterm(code: int) -> None:
    def end(_number: int, _frame: FrameType | None) -> None:
        # No exception, which the module that is being imported could catch. There is nothing to clean up yet.
        os._exit(code)

    signal.signal(signal.SIGTERM, end)


@contextmanager
def ending_at_sigterm(code: int) -> Iterator[None]:
    """End this process with a code at SIGTERM in the block, until something else handles the signal."""
    if threading.current_thread() is not threading.main_thread():  # which Python lets handle no signals
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    _end_at_sigterm(code)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_pid_1_at_sigterm() -> None:
    """End this process at SIGTERM if it is PID 1. For any other process, the kernel does so."""
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _end_at_sigterm(ENDED)


def is_python_m(package: str) -> bool:
    """Return whether ``python -m`` runs a package, which it imports before its program."""
    return ("-m", package) in pairwise(sys.orig_argv)


def main() -> int:
    """Run the command line and return its exit code."""
    end_pid_1_at_sigterm()
    from pg_scheduler.__main__ import main as run  # noqa: PLC0415 - the import takes a second

    return run()
