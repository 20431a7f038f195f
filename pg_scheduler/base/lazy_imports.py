"""Import modules at their first use, so that a program loads only the features that it uses.

Modules take memory and time: about 0.2 MiB and 3 ms for a thousand lines. There are two ways to use one late.
A package that only gathers names gets its ``__getattr__()`` from ``lazy_names()``. Any other module declares
what it imports late below its other imports, where type checkers and the contracts of imports see it::

    if TYPE_CHECKING:
        from pg_scheduler.scheduler import tasks
    else:
        tasks = LazyModule("pg_scheduler.scheduler.tasks")

Python's lock of imports makes both safe in threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


class LazyModule:
    """A module that is imported when one of its attributes is read for the first time."""

    __slots__ = ("_module", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        """Return an attribute of the module."""
        if self._module is None:
            self._module = import_module(self._name)
        return getattr(self._module, attribute)


def import_now(*modules: object) -> None:
    """Import these lazy modules, so that nothing waits for them later."""
    for module in modules:
        cast("LazyModule", module).__getattr__("__name__")


class LazyClass:
    """A class whose module is imported when the class is called, or resolved.

    It stands under the name of the class in a module whose annotations are read at run time, as those of
    facets are by ``blocking.derive()``.
    """

    __slots__ = ("_module", "_name")

    def __init__(self, path: str) -> None:
        self._module, _, self._name = path.rpartition(".")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return an object of the class."""
        return self.resolve()(*args, **kwargs)

    def resolve(self) -> type:
        """Return the class."""
        resolved: type = getattr(import_module(self._module), self._name)
        return resolved


def lazy_call(get: Callable[[], Callable[P, R]]) -> Callable[P, R]:
    """Return a function that calls the one which ``get()`` returns, each time."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return get()(*args, **kwargs)

    return call


def lazy_names(
    package: str, modules: Mapping[str, Collection[str]], *, submodules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__()`` and ``__dir__()`` for a package that gathers names of its modules.

    Args:
        package: The name of the package.
        modules: The names by the module that defines them, which is imported when one of them is read.
        submodules: Modules of the package that are attributes of it without having been imported.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name in submodules:
            return import_module(f"{package}.{name}")
        module = homes.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        # Python finds it in the package from now on, and calls this function no more.
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *submodules})

    return get, list_names
