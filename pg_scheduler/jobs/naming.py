"""The names of functions and jobs."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Final

from pg_scheduler.jobs.injected import own_signature
from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.jobs.validation import check_list, check_text

FUNCTIONS: Final = (FunctionType, MethodType)

MAX_COMPARED_LENGTH: Final = 200
MAX_COMPARED_NAMES: Final = 1000
"""Bounds of ``most_similar()``, which takes some 50 microseconds for each pair of names."""

RENAMED: Final = 0.85
MOVED: Final = 0.6
"""How similar an old and a new name of a task must be, from 0 to 1.

``MOVED`` is for names whose last parts are equal, ``RENAMED`` for all others.
"""

_main_names: Final[dict[ModuleType, str]] = {}
_importable_mains: Final[dict[ModuleType, str]] = {}


def check_function(func: object, *, allow_plain: bool = False) -> None:
    """Raise TypeError unless the object is a coroutine function with a name.

    Args:
        func: The object.
        allow_plain: Whether it may also be a plain function or method, as where functions are declared.
    """
    if inspect.iscoroutine(func):
        raise TypeError(
            f"Expected an async function, not {func!r}, the result of a call; "
            "pass the function without parentheses, and its arguments as args=(...)"
        )
    is_accepted = inspect.iscoroutinefunction(func) or (allow_plain and _is_plain(func))
    if not is_accepted:
        remedy = ""
        if _is_plain(func):
            remedy = "; declare a plain function with @job() or register(), and its jobs run in threads"
        elif isinstance(func, FunctionType):
            remedy = "; a lambda or a generator function cannot be a job"
        raise TypeError(f"Expected an async function (async def ...), not {func!r}{remedy}")
    if not hasattr(func, "__qualname__"):
        # It may be a partial, whose repr would show arguments. So the message has its type only.
        raise TypeError(
            f"Expected an async function with a name, not a {type(func).__name__}; "
            "pass the function, and its arguments as args="
        )


def _is_plain(func: object) -> bool:
    """Return whether the object is a plain function or method with a name of its own."""
    return (
        isinstance(func, FUNCTIONS)
        and func.__name__ != "<lambda>"
        and not inspect.isgeneratorfunction(func)
        and not inspect.isasyncgenfunction(func)
    )


def required_parameters(func: JobFunction) -> list[str]:
    """Return the names of the parameters that a call must give."""
    parameters = own_signature(func).parameters.values()
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in optional
    ]


def qualified_name(func: JobFunction) -> str:
    """Return ``module.qualname``, which is the same in every process that imports the function."""
    return f"{module_name(func)}.{func.__qualname__}"


def former_job_name(func: JobFunction) -> str:
    """Return the name that pg-scheduler 0.2 gave the jobs of a periodic function, without the module."""
    return f"periodic_{func.__name__}"


def module_name(func: JobFunction) -> str:
    """Return the name of the function's module; for a script, the name under which it is imported."""
    return func.__module__ if func.__module__ != "__main__" else _main_name()


def _main_name() -> str:
    """Return the name under which other processes import the module that runs as ``__main__``."""
    main = sys.modules["__main__"]
    if main not in _main_names:
        if spec := getattr(main, "__spec__", None):
            _main_names[main] = str(spec.name).removesuffix(".__main__")
        elif file := getattr(main, "__file__", None):
            _main_names[main] = Path(file).stem
        else:
            # The name is not known yet: ``python -m`` sets the spec after it has imported the package.
            return "__main__"
    return _main_names[main]


def importable_module(func: JobFunction) -> str | None:
    """Return the name under which another process imports the function's module; None if it cannot.

    It differs from the name in the names of jobs, which is without ``__main__``.
    """
    return func.__module__ if func.__module__ != "__main__" else _importable_main()


def _importable_main() -> str | None:
    """Return the name under which another process imports the module that runs as ``__main__``.

    A name that was found is remembered. None is not: the program may add its folder to ``sys.path`` later.
    """
    main = sys.modules["__main__"]
    if main not in _importable_mains and (name := _find_main(main)) is not None:
        _importable_mains[main] = name
    return _importable_mains.get(main)


def _find_main(main: ModuleType) -> str | None:
    """Return a name under which the import system finds the file of a main module; None if there is none."""
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name)
    file = getattr(main, "__file__", None)
    name = "" if file is None else Path(file).stem
    # A name with a dot would be that of a module in a package. The one of a folder or an archive that runs is
    # that of the main module in every process.
    if not name or "." in name or name == "__main__":
        return None
    try:
        found_spec = find_spec(name)
        is_same = (
            found_spec is not None
            and found_spec.origin is not None
            and Path(found_spec.origin).samefile(file)  # type: ignore[arg-type] # there is a name
        )
    except (OSError, ValueError):  # a file is missing, or a module of this name has no spec
        return None
    return name if is_same else None


# A script loses __file__ when its main thread has ended, so its names are remembered now.
_main_name()
_importable_main()


def check_aliases(aliases: Iterable[str]) -> list[str]:
    """Return the aliases as a list of valid names."""
    return [check_name(alias) for alias in check_list("aliases", aliases, "list of names")]


def check_name(name: object) -> str:
    """Return the name if the table can store it."""
    text = check_text("job name", name)
    if not text:
        raise ValueError("job name '' is empty; omit name= to use module.qualname")
    return text


def most_similar(name: str, names: Sequence[str]) -> str | None:
    """Return the name that was probably meant instead of an unknown one; None if there is none.

    Among the names with the same last part, it is the closest one. If there are none, it is the closest of
    all names, if that is similar. A name that is too long is not compared.
    """
    if len(name) > MAX_COMPARED_LENGTH:
        return None
    candidates = [other for other in names[:MAX_COMPARED_NAMES] if len(other) <= MAX_COMPARED_LENGTH]
    last_part = name.rpartition(".")[2]
    same_last_part = [other for other in candidates if other.rpartition(".")[2] == last_part]
    if same_last_part:
        # With a cutoff of 0, the closest of them is returned even if it is not similar.
        return difflib.get_close_matches(name, same_last_part, n=1, cutoff=0.0)[0]
    # The list has at most one name.
    similar_names = difflib.get_close_matches(name, candidates, n=1)
    return similar_names[0] if similar_names else None


def likely_new_name(name: str, names: Sequence[str]) -> str | None:
    """Return the name that a task of this name probably has now; None unless one is very similar.

    After a typing error, the closest name is a good hint. Here a wrong name would send the reader to a task
    that has nothing to do with the jobs, so the names must be very similar.
    """
    similar_name = most_similar(name, names)
    if similar_name is None:
        return None
    have_same_last_part = name.rpartition(".")[2] == similar_name.rpartition(".")[2]
    least_similarity = MOVED if have_same_last_part else RENAMED
    similarity = difflib.SequenceMatcher(None, similar_name, name).ratio()
    return similar_name if similarity >= least_similarity else None
