"""The names of the tasks that workers claim, and the parameters of these tasks, as workers report them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.worker_report import Parameter, ReportedOptions, ReportedSettings


@dataclass(frozen=True, slots=True)
class TaskNames:
    """The tasks that workers claim.

    Attributes:
        others: The other names of each task, by the main name of the task. Both are sorted.
        tasks: The main name of each other name.
    """

    others: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, workers: Iterable[Worker], sees_name: Callable[[str], bool] | None = None) -> TaskNames:
        """Return the tasks that workers claim.

        Args:
            workers: Workers in the order of their starts. If they report different main names, as during a
                deployment, the report of the last worker counts.
            sees_name: Returns whether a name is visible; None if all are. If the main name of a task is
                invisible, each of its other names is a task of its own.
        """
        names: set[str] = set()
        reports = []
        for worker in workers:
            names.update(worker.names or ())
            reports.append(ReportedSettings(worker.settings).aliases)
        visible = names if sees_name is None else set(filter(sees_name, names))
        return cls.among(visible, merge_aliases(reports))

    @classmethod
    def among(cls, names: Collection[str], aliases: Mapping[str, str]) -> TaskNames:
        """Return the tasks of these names. An alias is a task of its own if the names lack its task."""
        tasks = {name: aliases[name] for name in sorted(names) if aliases.get(name) in names}
        names_by_task: dict[str, list[str]] = {name: [] for name in sorted(names) if name not in tasks}
        for name, task in tasks.items():
            names_by_task[task].append(name)
        return cls(names_by_task, tasks)

    @property
    def main(self) -> list[str]:
        """The main names, sorted."""
        return list(self.others)

    def task_of(self, name: str) -> str:
        """Return the main name of a name; the name itself if it is unknown."""
        return self.tasks.get(name, name)

    def all_of(self, name: str) -> list[str]:
        """Return the main name of a name and its other names."""
        task = self.task_of(name)
        return [task, *self.others.get(task, ())]


def merge_aliases(reports: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the main name of each alias that workers report. If reports differ, the last one counts."""
    tasks: dict[str, str] = {}
    for report in reports:
        for alias, task in report.items():
            tasks[alias] = task
            # An earlier release may have reported the opposite: the task as an alias of this name. That entry
            # is removed, so that no chain of aliases leads back to its start.
            tasks.pop(task, None)
    return {alias: _final_name(alias, tasks) for alias in tasks}


def _final_name(name: str, tasks: Mapping[str, str]) -> str:
    """Return the main name to which a chain of aliases leads."""
    while name in tasks:
        name = tasks[name]
    return name


def options_of(workers: Iterable[Worker], task: str) -> ReportedOptions | None:
    """Return the options of a task as the last live worker reports them; None if no live worker does.

    ``workers`` and ``task`` are as in `parameters_of()`.
    """
    reported = [ReportedSettings(worker.settings).options_of(task) for worker in workers if worker.is_alive]
    return next((options for options in reversed(reported) if options is not None), None)


def parameters_of(workers: Iterable[Worker], task: str) -> Sequence[Parameter] | None:
    """Return the parameters of a task in their order; None if no live worker reports them.

    Args:
        workers: Workers in the order of their starts. If they report different parameters, as during a
            deployment, the report of the last worker counts.
        task: The main name of the task.
    """
    parameters, _number = _reported(workers, task)
    return parameters


def positional_names(workers: Iterable[Worker], task: str) -> Sequence[str]:
    """Return the names of the parameters that take positional arguments; none if no live worker reports them.

    ``workers`` and ``task`` are as in `parameters_of()`.
    """
    parameters, number = _reported(workers, task)
    return [parameter.name for parameter in parameters or ()][:number]


def _reported(workers: Iterable[Worker], task: str) -> tuple[Sequence[Parameter] | None, int]:
    """Return the parameters of a task, and how many of them take positional arguments.

    If no live worker reports the task, these are None and 0.
    """
    parameters, number = None, 0
    for worker in workers:
        settings = ReportedSettings(worker.settings)
        if worker.is_alive and (reported := settings.parameters_of(task)) is not None:
            parameters, number = reported, settings.positional_of(task)
    return parameters, number
