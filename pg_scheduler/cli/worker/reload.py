"""``worker --reload``: start the program again when one of its source files has changed.

A new file counts too if it is in the current folder or in that of a loaded module, since the next start may
import it. The worker stops after its running jobs and then replaces its own process, so a debugger and a
terminal stay attached. If the new code cannot be imported, the process waits for the next change.

A program that runs this one may import the code of the application before it comes here, as Django does. Its
start is tried first, in a process of its own. If that fails, the worker continues with the old code.
"""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import traceback
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.cli.errors import CommandError
from pg_scheduler.events.log import logger, record_fields

from .stop import hold_usr1
from .target import Source, current_folder, load_targets

_words: Final = [sys.executable, "-m", "pg_scheduler"]
"""The words before the arguments of the program, which `set_program()` replaces."""

_trial: Final[list[str]] = []
"""The command of `set_program()` that tries a start; empty for none."""


def program() -> list[str]:
    """Return the words before the arguments of the program."""
    return [*_words]


def set_program(words: Sequence[str], trial: Sequence[str] = ()) -> None:
    """Set the command line that starts the program again, for a program that runs this one, as Django does.

    Args:
        words: The words of the command line before the arguments.
        trial: A command that succeeds if the program can start. Empty if the program imports no code of the
            application before it runs this one.
    """
    _words[:] = words
    _trial[:] = trial


Sources: TypeAlias = dict[str, object]
"""What is compared, by path: for a file, the time at which it was written; for a folder, its source files."""

INTERVAL_S: Final = 0.5

_INSTALLED: Final = tuple(
    {f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
"""Folders of installed files, which do not change."""


async def read_sources(paths: Collection[str] = ()) -> Sources:
    """Return the state of the source files of loaded modules and among ``paths``, and of their folders.

    The state of a file is the time at which it was written. That of a folder is the set of its source files.
    """
    return await run_in_thread(_read_states, paths)


async def wait_for_change(sources: Sources) -> str:
    """Wait until a source file was changed, added or removed, and return a sentence about it."""
    while True:
        new_sources = await read_sources(sources)
        # A path without a new state counts as unchanged. Only the current folder may lack one, if the code
        # has made another folder the current one.
        changed_paths = [path for path, state in sources.items() if new_sources.get(path, state) != state]
        if changed_paths:
            changed_path = changed_paths[0]
            problem = await _problem_of_a_start()
            if problem is None:
                return f"{changed_path} has changed"
            logger.warning(
                "%s has changed, and the program does not start: %s; waiting for the next change",
                changed_path,
                problem,
                extra=record_fields(),
            )
        sources = new_sources
        await asyncio.sleep(INTERVAL_S)


async def _problem_of_a_start() -> str | None:
    """Return the last line of what the program prints if it cannot start; None if it can."""
    if not _trial:
        return None
    process = await asyncio.create_subprocess_exec(
        *_trial, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env=os.environ
    )
    try:
        _, error_output = await process.communicate()
    finally:
        # Without an exit code, this task was cancelled, because the worker stops for another reason.
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return None
    lines = error_output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"


async def load_or_wait(targets: Sequence[str]) -> Source | None:
    """Import the targets, and return the source of their Scheduler, as ``load_targets()`` does.

    If that fails, wait until a source file changes, and then run the program again in this process.
    """
    try:
        return load_targets(targets)
    except CommandError as error:
        sources = await read_sources(_files_of(error))
        logger.warning("%s; waiting for a change", error, extra=record_fields())
        change = await wait_for_change(sources)
        logger.info(change, extra=record_fields())
        restart()


def restart() -> NoReturn:
    """Run the same program again, with the same arguments, in place of the one that this process runs."""
    sys.stdout.flush()
    sys.stderr.flush()
    words = [*program(), *sys.argv[1:]]
    # A SIGUSR1 would end the new program before it handles this signal.
    hold_usr1()
    os.execv(words[0], words)  # noqa: S606 - itself


def _read_states(paths: Collection[str]) -> Sources:
    """Return the states of the source files among these paths and of loaded modules, and of their folders."""
    # Another thread may import a module meanwhile, so the modules are copied.
    modules = list(sys.modules.values())
    # A module that is built in has no file.
    module_files = {file for module in modules if (file := getattr(module, "__file__", None))}
    candidates = {*paths, *module_files}
    files = {path for path in candidates if path.endswith(".py") and not path.startswith(_INSTALLED)}
    folders = set(map(os.path.dirname, files))
    folder = current_folder()
    if folder is not None:
        folders.add(folder)
    states: Sources = {path: _written_at(path) for path in files}
    states.update((folder, _files_in(folder)) for folder in folders)
    return states


def _written_at(path: str) -> int:
    """Return the time at which a file was written; 0 if the file cannot be found."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:  # the file is being written, or was deleted
        return 0


def _files_in(folder: str) -> frozenset[Path]:
    """Return the source files of a folder, and the ``__init__.py`` of each of its subfolders."""
    try:
        return frozenset([*Path(folder).glob("[!.]*.py"), *Path(folder).glob("*/__init__.py")])
    except OSError:  # the folder was deleted
        return frozenset()


def _files_of(error: BaseException) -> set[str]:
    """Return the files in the tracebacks of an error and its causes, and the file of a syntax error."""
    files: set[str] = set()
    cause: BaseException | None = error
    while cause is not None:
        files |= {frame.filename for frame in traceback.extract_tb(cause.__traceback__)}
        if isinstance(cause, SyntaxError) and cause.filename:
            # The traceback of a syntax error has the files that import this one, and not this one.
            files.add(cause.filename)
        cause = cause.__cause__
    return files
