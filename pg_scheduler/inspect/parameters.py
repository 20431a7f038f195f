"""The parameters of tasks, as workers report them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pg_scheduler.jobs.model import Worker


class Parameter(NamedTuple):
    """A parameter that a job can be given by name."""

    name: str
    is_required: bool


def parameters_of(workers: Iterable[Worker], task: str) -> Sequence[Parameter] | None:
    """Return the parameters of a task in their order; None if no live worker reports them.

    Args:
        workers: Workers in the order of their starts. If they report different parameters, as during a
            deployment, those of the last one count.
        task: The main name of the task.
    """
    return _reported(workers, task)[0]


def positional_names(workers: Iterable[Worker], task: str) -> Sequence[str]:
    """Return the parameters that the positional arguments of a task have, as far as workers report them.

    The workers and the task are those of `parameters_of()`.
    """
    found, number = _reported(workers, task)
    return [each.name for each in found or ()][:number]


def _reported(workers: Iterable[Worker], task: str) -> tuple[Sequence[Parameter] | None, int]:
    """Return the parameters of a task, and how many of them positional arguments have."""
    found, number = None, 0
    for worker in workers:
        all_given, numbers = (
            each if worker.is_alive and isinstance(each, Mapping) else {}
            for each in (worker.settings.get("parameters"), worker.settings.get("positional"))
        )
        if isinstance(given := all_given.get(task), list):
            pairs = [each for each in given if isinstance(each, list)]  # else it was written by hand
            found = [Parameter(*each) for each in pairs if [*map(type, each)] == [str, bool]]
            most = numbers.get(task)
            number = most if isinstance(most, int) and most > 0 else 0
    return found, number
