"""The names of executors, and which functions they can run."""

from __future__ import annotations

import inspect
import sys
from typing import Final

from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.jobs.naming import importable_module, qualified_name
from pg_scheduler.jobs.validation import check_text

ASYNC: Final = "async"
"""The event loop."""
THREAD: Final = "thread"
PROCESS: Final = "process"


def default_executor(func: JobFunction) -> str:
    """Return the executor for the kind of the function."""
    return ASYNC if inspect.iscoroutinefunction(func) else THREAD


def check_executor(func: JobFunction, executor: str) -> str:
    """Return the name of the executor of a function.

    Raises:
        TypeError: The name is not a str, or the executor cannot run the function.
        ValueError: The name is empty.
    """
    if not check_text("executor", executor):
        raise ValueError("executor '' is empty; omit executor= for the default")
    if executor == ASYNC and not inspect.iscoroutinefunction(func):
        raise TypeError(
            f"executor 'async' runs async functions only, not {func!r}, which would block the event loop; "
            "omit executor= to run it in a thread"
        )
    if executor == PROCESS:
        # import_path() raises TypeError if a process cannot import the function.
        import_path(func)
    return executor


def import_path(func: JobFunction) -> tuple[str, str]:
    """Return the module and the qualified name under which another process imports the function.

    Raises:
        TypeError: It cannot be imported.
    """
    module, path = importable_module(func), func.__qualname__
    # The path of a lambda has the part "<lambda>", and that of a nested function the part "<locals>".
    has_no_path = "<" in path
    owner = getattr(func, "__self__", None)
    is_method_of_instance = owner is not None and not inspect.isclass(owner)
    if has_no_path or is_method_of_instance:
        raise TypeError(
            f"executor 'process' cannot run {qualified_name(func)}: a process imports its function as "
            "module:name; define it at the top level of a module"
        )
    if module is None:
        program = getattr(sys.modules["__main__"], "__file__", None)
        raise TypeError(
            f"executor 'process' cannot run {qualified_name(func)}: a process imports its function as "
            f"module:name, and no process can import the program {program!r} by a name; define the function "
            "in a module that the program imports"
        )
    if (loaded_module := sys.modules.get(module)) is not None:
        # While the module is being imported, it does not have the function yet, so a missing name is valid.
        target: object = loaded_module
        for part in path.split("."):
            target = getattr(target, part, None)
        if target is not None and not callable(target):
            raise TypeError(f"executor 'process' cannot run {qualified_name(func)}: that name is {target!r}")
    return module, path
