"""The names of the tasks that workers claim, and their parameters and options, as workers report them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pg_scheduler.inspect.texts import listed
from pg_scheduler.jobs.model import UNSET, Worker
from pg_scheduler.jobs.task import as_argument
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
        """Return the tasks of these names. An alias is a task of its own if the names lack its task.

        ``aliases`` has the main name of each alias, also of aliases that are not among the names.
        """
        tasks = {name: aliases[name] for name in sorted(names) if aliases.get(name) in names}
        main_names = [name for name in sorted(names) if name not in tasks]
        aliases_by_task: dict[str, list[str]] = {name: [] for name in main_names}
        for alias, task in tasks.items():
            aliases_by_task[task].append(alias)
        return cls(aliases_by_task, tasks)

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
    last_options = None
    for worker in workers:
        if worker.is_alive:
            options = ReportedSettings(worker.settings).options_of(task)
            # None means that this worker does not report the task.
            last_options = last_options if options is None else options
    return last_options


def with_reported_options(
    name: str, options: Mapping[str, Any], workers: Sequence[Worker], *, remedy: str
) -> tuple[dict[str, Any], str]:
    """Return the options of a new job whose task is not registered in this process, and a remark about them.

    Args:
        name: The name of the job.
        options: The options of ``enqueue()`` that are given. They stay as they are, but metadata is merged.
        workers: Workers in the order of their starts.
        remedy: How to add a job with all options of the task, such as ``pass --jobs MODULE``.

    Returns:
        The given options and those that a live worker reports for the task; and a sentence for the user,
        which lists the reported options, and those that the job lacks because only the code has them.
    """
    reported = options_of(workers, TaskNames.of(workers).task_of(name))
    if reported is None:
        return dict(options), (
            f"no live worker reports the options of the task {name!r}: the job has the defaults of all jobs "
            f"for those that are not given; to take them from the code, {remedy}"
        )
    # UNSET stands for an option that is not given. None is a value of some options.
    added_values = {key: value for key, value in reported.values.items() if options.get(key, UNSET) is UNSET}
    added = {key: as_argument(key, value) for key, value in added_values.items()}
    summary = [f"{key}={value}" for key, value in added_values.items()]
    if reported.metadata:
        # The metadata of the job takes precedence over that of the task.
        added["metadata"] = {**reported.metadata, **(options.get("metadata") or {})}
        # Not everyone may see metadata, so the sentence does not quote it.
        summary.append("metadata")
    remark = f"options of the task {name!r}, as a live worker reports them: {', '.join(summary) or 'none'}"
    if missing := _missing(reported, options):
        remark += f"; without {listed(missing)}, which only the code can apply: {remedy}"
    return {**options, **added}, remark


def _missing(reported: ReportedOptions, options: Mapping[str, Any]) -> list[str]:
    """Return the names of the task's options that a job lacks, because only the code can apply them."""
    # Of these options, a caller of enqueue() can pass the unique key itself.
    missing = [key for key in reported.in_code if key != "unique" or options.get(key, UNSET) is UNSET]
    if reported.on_failure is not None:
        missing.append("on_failure")
    if reported.on_cancel is not None:
        missing.append("on_cancel")
    return missing


def parameters_of(workers: Iterable[Worker], task: str) -> Sequence[Parameter] | None:
    """Return the parameters of a task in their order; None if no live worker reports them.

    Args:
        workers: Workers in the order of their starts. If they report different parameters, as during a
            deployment, the report of the last worker counts.
        task: The main name of the task.
    """
    parameters, _positional_count = _reported(workers, task)
    return parameters


def positional_names(workers: Iterable[Worker], task: str) -> Sequence[str]:
    """Return the names of the parameters that take positional arguments; none if no live worker reports them.

    ``workers`` and ``task`` are as in `parameters_of()`.
    """
    parameters, positional_count = _reported(workers, task)
    # Parameters that take positional arguments come before all others.
    return [parameter.name for parameter in parameters or ()][:positional_count]


def _reported(workers: Iterable[Worker], task: str) -> tuple[Sequence[Parameter] | None, int]:
    """Return the parameters of a task, and how many of them take positional arguments.

    If no live worker reports the task, these are None and 0. If several do, the last one counts.
    """
    parameters, positional_count = None, 0
    for worker in workers:
        settings = ReportedSettings(worker.settings)
        if worker.is_alive and (reported := settings.parameters_of(task)) is not None:
            parameters = reported
            positional_count = settings.positional_of(task)
    return parameters, positional_count
