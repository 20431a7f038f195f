"""Targets: what a worker runs, named as ``package.module:attribute`` or as modules.

An attribute is a Scheduler, or a callable that returns one: a plain function, a coroutine function, or an
async context manager. Modules are imported for the functions that they decorate with ``@job`` and
``@periodic``.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from pg_scheduler import Scheduler
from pg_scheduler.base.annotations import signature_of
from pg_scheduler.cli.errors import CommandError, UsageError, hint_at
from pg_scheduler.database.faults import translated
from pg_scheduler.errors import SchedulerError
from pg_scheduler.jobs.naming import most_similar
from pg_scheduler.jobs.registry import catalogue
from pg_scheduler.sync import SyncScheduler

CLOSE_TIMEOUT_S: Final = 5.0
"""Seconds for the pool of a Scheduler to close, before its connections are ended."""


class Source(NamedTuple):
    """A Scheduler, or a callable that returns one, and its target as text."""

    value: Scheduler | Callable[[], Any]
    name: str


def load_targets(targets: Sequence[str]) -> Source | None:
    """Import the targets of a command, which name a Scheduler or modules of jobs.

    Return the source of the Scheduler, which is the Scheduler or a callable that returns one. Return None if
    all targets are modules.

    Raises:
        CommandError: A target cannot be imported, does not exist, or two of them name a Scheduler.
    """
    # An installed program does not have the current folder on sys.path.
    folder = current_folder()
    if folder is not None and folder not in sys.path:
        sys.path.insert(0, folder)
    sources = [source for target in targets if (source := _load(target)) is not None]
    if len(sources) > 1:
        raise UsageError(
            f"{sources[0].name} and {sources[1].name} both name a Scheduler; start a worker for each of them"
        )
    return sources[0] if sources else None


def current_folder() -> str | None:
    """Return the path of the current folder; None if it was deleted, or if it cannot be read."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


@asynccontextmanager
async def open_source(source: Source) -> AsyncIterator[Scheduler]:
    """Open the Scheduler of a source, and close at the end what belongs to it.

    Raises:
        CommandError: The callable needs arguments, raises an error that is not of the database, or returns
            something else.
    """
    async with AsyncExitStack() as stack:
        try:
            with translated():
                value = await _open(source, stack)
        # The messages of these errors are for the user, who needs no traceback.
        except (CommandError, SchedulerError):
            raise
        except Exception as error:  # user code: the callable
            raise _print_and_convert(f"{source.name} has failed", error) from error
        yield value


async def _open(source: Source, stack: AsyncExitStack) -> Scheduler:
    """Return the Scheduler of a source, with its pool opened.

    At the end, the stack closes what the source has opened: by the context manager that the source returned,
    or else by closing the pool.
    """
    value: Any = source.value
    if not isinstance(value, Scheduler):
        value = _call(source)
        # The callable may be a coroutine function, whose result is awaited.
        if inspect.isawaitable(value):
            value = await value
    # A Scheduler is an async context manager too, whose entry would start it, so it is not entered here.
    if not isinstance(value, Scheduler) and hasattr(value, "__aenter__"):
        scheduler = _checked_scheduler(source.name, await stack.enter_async_context(value))
    else:
        scheduler = _checked_scheduler(source.name, value)
        stack.push_async_callback(_close, scheduler)
    # This opens a pool that was made and not opened yet.
    await scheduler.db_pool
    return scheduler


async def _close(scheduler: Scheduler) -> None:
    """Close the pool of a Scheduler; terminate its connections if that takes too long."""
    try:
        await asyncio.wait_for(scheduler.db_pool.close(), CLOSE_TIMEOUT_S)
    except TimeoutError:
        scheduler.db_pool.terminate()


def _load(target: str) -> Source | None:
    """Import a target, and return the Scheduler or the callable that it names; None if it is a module."""
    module_name, colon, path = target.partition(":")
    if not module_name or (colon and not path) or module_name.startswith("."):
        raise UsageError(f"the target {target!r} must be package.module:attribute or package.module")
    module = _import(module_name, target)
    if not colon:
        return None
    value: Any = module
    # The part of the path that was followed has a colon after the module, and dots between attributes.
    prefix, separator = module_name, ":"
    for part in path.split("."):
        if not hasattr(value, part):
            hint = hint_at(part, _candidates(value))
            raise UsageError(f"{prefix} has no attribute {part!r}{hint}")
        value = getattr(value, part)
        prefix, separator = f"{prefix}{separator}{part}", "."
    # A callable is called to get its Scheduler. The call of a job function would do the work of a job.
    if catalogue.declares(value):
        raise UsageError(
            f"{target} is a job function, which workers call for its jobs; name its module, {module_name}"
        )
    # A SyncScheduler runs no jobs, so the message below refuses it.
    if isinstance(value, Scheduler) or (callable(value) and not isinstance(value, SyncScheduler)):
        return Source(value, target)
    kind = _described_kind(value)
    raise UsageError(f"{target} is {kind}; name a Scheduler, or a callable that returns one")


def _import(name: str, target: str) -> ModuleType:
    """Import the module of a target; raise CommandError (USAGE) if that fails."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Either the target or a package around it is missing, or a module that the code of the target needs.
        # The target "shop.jobs" is missing itself if the error is about "shop" or "shop.jobs".
        is_target = error.name is not None and f"{name}.".startswith(f"{error.name}.")
        if error.name is None or not is_target:
            raise _print_and_convert(f"{name} cannot be imported", error) from error
        parent = error.name.rpartition(".")[0]
        is_file = target.endswith(".py") or "/" in target
        hint = "; write package.module, not a path" if is_file else _nearest_module(error.name, parent)
        folder = current_folder()
        if folder is None:
            problem = "on sys.path, and the current folder was deleted or cannot be read"
            hint = hint or "; change to the folder that contains it"
        else:
            problem = f"in {folder} or on sys.path"
        raise UsageError(f"module {error.name!r} does not exist {problem}{hint}") from None
    except (Exception, SystemExit) as error:  # user code: the module, perhaps a script that exits with 0
        raise _print_and_convert(f"{name} cannot be imported", error) from error


def _print_and_convert(problem: str, error: BaseException) -> UsageError:
    """Print the traceback of an error, from the first line of the user's code on, and return a UsageError."""
    trace = error.__traceback__
    while trace is not None and not _is_user_frame(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)
    return UsageError(f"{problem}: {type(error).__name__}: {error}")


def _is_user_frame(filename: str) -> bool:
    """Return whether a file is code of the user, and neither this module nor Python's import system."""
    return filename != __file__ and "importlib" not in filename


def _nearest_module(name: str, parent: str) -> str:
    """Return a hint at an existing module of the same package; empty if no name is similar.

    ``name`` is the whole name of the missing module. ``parent`` is its package; empty for a module at the
    top, which is compared with those of the current folder.
    """
    if parent:
        paths = getattr(sys.modules.get(parent), "__path__", None)
    else:
        folder = current_folder()
        paths = None if folder is None else [folder]
    names = [module_info.name for module_info in pkgutil.iter_modules(list(paths or ()))]
    near = most_similar(name.rpartition(".")[2], names)
    if near is None:
        return ""
    return f"; did you mean {parent}.{near}?" if parent else f"; did you mean {near}?"


def _candidates(value: object) -> list[str]:
    """Return the names of a module or object that a target may mean, for a hint at a similar one.

    These are its Schedulers and functions; if there are none, all of its public attributes.
    """
    names = [name for name in dir(value) if not name.startswith("_")]
    likely = [
        name
        for name in names
        if isinstance(getattr(value, name, None), Scheduler) or inspect.isroutine(getattr(value, name, None))
    ]
    return likely or names


def _call(source: Source) -> Any:
    """Call the callable of a source, which must not need arguments."""
    function = source.value
    assert callable(function)  # noqa: S101 - checked when it was loaded
    try:
        signature_of(function).bind()
    except TypeError:
        raise UsageError(f"{source.name} must be callable without arguments") from None
    except ValueError:  # a callable without a signature
        pass
    return function()


def _checked_scheduler(name: str, value: object) -> Scheduler:
    """Return what the target of this name has returned; raise CommandError (USAGE) if it is no Scheduler."""
    if isinstance(value, Scheduler):
        return value
    raise UsageError(f"{name} returned {_described_kind(value)}; it must return a Scheduler")


def _described_kind(value: object) -> str:
    """Return in words what an object is that is no Scheduler, for a message."""
    if isinstance(value, SyncScheduler):
        return "a SyncScheduler, which is for code without asyncio"
    return "None" if value is None else f"an object of type {type(value).__name__}"
