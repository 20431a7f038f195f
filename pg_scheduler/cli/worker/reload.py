"""``worker --reload``: start the program again when one of its source files has changed.

The worker stops after its running jobs and then replaces its own process, so a debugger and a terminal stay
attached. If the new code cannot be imported, the process waits for the next change.
"""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NoReturn

from pg_scheduler.cli.errors import CommandError
from pg_scheduler.events.log import logger, record_fields

from .target import Source, load_targets

__all__ = ["load_or_wait", "read_sources", "restart", "wait_for_change"]

INTERVAL_S: Final = 0.5

_INSTALLED: Final = tuple(
    {f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
"""Folders of installed files, which do not change."""


async def read_sources(others: Collection[str] = ()) -> dict[str, int]:
    """Return when the sources of the loaded modules, and other files, were written."""
    return await asyncio.to_thread(_read_times, others)


async def wait_for_change(known: dict[str, int]) -> str:
    """Wait until a source file is newer than it was, and return a sentence about it."""
    while True:
        found = await read_sources(known)
        if changed := next((path for path, written in known.items() if found[path] != written), None):
            return f"{changed} has changed"
        known = found
        await asyncio.sleep(INTERVAL_S)


async def load_or_wait(targets: Sequence[str]) -> Source | None:
    """Import the targets; if that fails, wait for a change of a file that takes part, and start again."""
    try:
        return load_targets(targets)
    except CommandError as error:
        known = await read_sources(_files_of(error))
        logger.warning("%s; waiting for a change", error, extra=record_fields())
        change = await wait_for_change(known)
        logger.info(change, extra=record_fields())
        restart()


def restart() -> NoReturn:
    """Replace this process by the same program."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "pg_scheduler", *sys.argv[1:]])  # noqa: S606 - itself


def _read_times(others: Collection[str]) -> dict[str, int]:
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    times: dict[str, int] = {}
    for path in {*others, *filter(None, loaded)}:
        if path.endswith(".py") and not path.startswith(_INSTALLED):
            try:
                times[path] = Path(path).stat().st_mtime_ns
            except OSError:  # it is being written, or deleted
                times[path] = 0
    return times


def _files_of(error: BaseException) -> set[str]:
    """Return the files in the tracebacks of an error and its causes, and the file of a syntax error."""
    files: set[str] = set()
    cause: BaseException | None = error
    while cause is not None:
        files |= {frame.filename for frame in traceback.extract_tb(cause.__traceback__)}
        if isinstance(cause, SyntaxError) and cause.filename:
            files.add(cause.filename)
        cause = cause.__cause__
    return files
