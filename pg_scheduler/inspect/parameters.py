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
    found = None
    for worker in workers:
        reported = worker.settings.get("parameters") if worker.is_alive else None
        if isinstance(reported, Mapping) and isinstance(given := reported.get(task), list):
            pairs = [each for each in given if isinstance(each, list)]  # else it was written by hand
            found = [Parameter(*each) for each in pairs if [*map(type, each)] == [str, bool]]
    return found
