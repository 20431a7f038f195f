"""The catalogues of the process, which ``@job`` and ``@periodic`` fill, as a test found them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

from pg_scheduler.jobs.registry import TaskRegistry, catalogue
from pg_scheduler.jobs.task import Task
from pg_scheduler.schedules.declared import PeriodicCatalogue, periodic_catalogue


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
    before = [(each, _state(each)) for each in (catalogue, periodic_catalogue)]
    periodic_catalogue.clear()
    if module is not None:
        _restore(catalogue, _tasks_of(modules_of(module)))
    try:
        yield
    finally:
        for each, state in before:
            _restore(each, state)


def clear_registrations() -> None:
    """Forget every registration, also those of modules."""
    _restore(catalogue, _state(TaskRegistry()))
    _restore(periodic_catalogue, _state(PeriodicCatalogue()))


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


def _tasks_of(modules: frozenset[str]) -> dict[str, Any]:
    """Return the catalogue's state without the tasks of test modules other than these."""

    def has(task: Task) -> bool:
        module = task.func.__module__
        return module in modules or not module.rpartition(".")[2].startswith("test_")

    state = _state(catalogue)
    for name in ("_exact", "adopted"):
        state[name] = {key: task for key, task in state[name].items() if has(task)}
    state["_loose"] = {
        name: {identity: task for identity, task in bearers.items() if has(task)}
        for name, bearers in state["_loose"].items()
    }
    state["_declared"] = state["_declared"] & state["_exact"].keys()
    return state


def _state(of: TaskRegistry | PeriodicCatalogue) -> dict[str, Any]:
    """Return a copy of the attributes; the values of dicts may be dicts."""
    return {name: _copied(value) for name, value in vars(of).items()}


def _copied(value: Any) -> Any:
    return {key: _copied(each) for key, each in value.items()} if isinstance(value, dict) else value


def _restore(to: TaskRegistry | PeriodicCatalogue, state: dict[str, Any]) -> None:
    """Set the attributes. What other objects derived from the old ones is out of date."""
    if isinstance(to, TaskRegistry):
        vars(to).update(state, children=to.children)
        to.forget(lists=True)
    else:
        vars(to).update(state, version=to.version + 1)
