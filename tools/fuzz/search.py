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

    The engine ends its process, so each search has one of its own. The imports, which take much longer with
    the instruments than without, are made before. Some parsers import a package at their first call, so each
    reads its corpus once. Otherwise, the time of the first text would include that import, and the engine
    would not see the branches of the package.
    """
    parser = PARSERS[name]
    with atheris.instrument_imports(include=INSTRUMENTED):
        for text in parser.corpus():
            parser.call(text.encode("utf-8", "surrogatepass"))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        atheris.Setup([sys.argv[0], *arguments], parser.call)
        atheris.Fuzz()
        os._exit(0)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:  # a signal ends this process, and the search with it
        os.kill(child, signal.SIGKILL)
        raise
    return os.waitstatus_to_exitcode(status)
