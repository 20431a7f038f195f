"""The catalogues of the process, which ``@job`` and ``@periodic`` fill, as a test found them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from pg_scheduler import tools


@contextmanager
def own_registrations(module: str | None = None) -> Iterator[None]:
    """Begin without periodic functions, and forget at the end what was registered meanwhile.

    Names that one test leaves behind would resolve in another, and imported modules may have periodic
    functions.

    Args:
        module: The module of a test. The test begins without the tasks of test modules other than this one
            and those that it imports. Which modules the process has loaded differs from run to run, and a
            bare name such as ``send_mail`` resolves only while a single function has it.
    """
    modules = frozenset[str]() if module is None else modules_of(module)

    def is_included(func: Callable[..., Any]) -> bool:
        name = func.__module__
        return module is None or name in modules or not name.rpartition(".")[2].startswith("test_")

    with tools.own_registrations(is_included):
        yield


def clear_registrations() -> None:
    """Forget every registration, also those of modules."""
    tools.clear_registrations()


@cache
def modules_of(module: str) -> frozenset[str]:
    """Return the names of a module of ``tests`` and of those that it imports, directly or through others.

    The modules of the objects in its namespace show what it imports.
    """
    names = {module}
    unread_names = [module]
    while unread_names:
        for value in vars(sys.modules[unread_names.pop()]).values():
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            is_of_tests = isinstance(name, str) and name.partition(".")[0] == "tests"
            if is_of_tests and name in sys.modules and name not in names:
                names.add(name)
                unread_names.append(name)
    return frozenset(names)
