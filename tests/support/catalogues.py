"""The catalogues of the process, which ``@job`` and ``@periodic`` fill, as a test found them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pg_scheduler.jobs.registry import TaskRegistry, catalogue
from pg_scheduler.schedules.declared import PeriodicCatalogue, periodic_catalogue


@contextmanager
def own_registrations() -> Iterator[None]:
    """Begin without periodic functions, and forget at the end what was registered meanwhile.

    Names that one test leaves behind would resolve in another, and imported modules may have periodic
    functions.
    """
    before = [(each, _state(each)) for each in (catalogue, periodic_catalogue)]
    periodic_catalogue.clear()
    try:
        yield
    finally:
        for each, state in before:
            _restore(each, state)


def clear_registrations() -> None:
    """Forget every registration, also those of modules."""
    _restore(catalogue, _state(TaskRegistry()))
    _restore(periodic_catalogue, _state(PeriodicCatalogue()))


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
