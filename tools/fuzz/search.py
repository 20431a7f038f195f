"""The searches themselves: one import of the instrumented library, and a forked process for each parser."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore] # not a dependency of the tests

INSTRUMENTED: Final = ["croniter", "json", "pg_scheduler", "urllib"]
"""The packages whose branches guide the search. Those that are loaded already are left out."""

with atheris.instrument_imports(include=INSTRUMENTED):
    from tools.fuzz.parsers import PARSERS

__all__ = ["PARSERS", "search"]


def search(name: str, arguments: list[str], log: Path) -> int:
    """Search with these arguments of libFuzzer, whose output goes to the log; return the exit code.

    The engine ends its process, so each search has one of its own. The import, which takes much longer with
    the instruments than without, is made once before.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        atheris.Setup([sys.argv[0], *arguments], PARSERS[name].call)
        atheris.Fuzz()
        os._exit(0)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:  # a signal ends this process, and the search with it
        os.kill(child, signal.SIGKILL)
        raise
    return os.waitstatus_to_exitcode(status)
