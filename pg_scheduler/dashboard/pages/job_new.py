"""The form of a new job: its task, its arguments, when it is due, and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from pg_scheduler.dashboard.context import PageRequest, RejectedError, command_with_options
from pg_scheduler.dashboard.navigation import read_navigation
from pg_scheduler.jobs.model import JobPriority
from pg_scheduler.jobs.naming import most_similar
from pg_scheduler.jobs.worker_report import Parameter

FIELDS: Final = ("task", "args", "kwargs", "when", "at", "zone", "priority", "max_retries")
"""The fields of the form, besides those of the parameters."""

PRIORITIES: Final = tuple(priority.value for priority in JobPriority)
AT_A_TIME: Final = "at"
DELAYS: Final = {
    "": "now",
    "+5m": "in 5 minutes",
    "+1h": "in 1 hour",
    "tomorrow 08:00": "tomorrow 08:00",
    AT_A_TIME: "at a time…",
}
"""The choices of when the job is due, as the form sends and shows them."""


@dataclass(frozen=True, slots=True)
class NewJobPage:
    """The form, with the texts that were entered."""

    template: ClassVar[str] = "job_form"

    tasks: Sequence[str]
    """The visible tasks that live workers claim."""
    values: Mapping[str, str]
    """The texts of the fields."""
    parameters: Sequence[Parameter] = ()
    """The parameters of the task, if it is known and a live worker reports them."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """The texts of the fields of the parameters."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """What is wrong, by field. The empty name stands for the whole form."""
    remark: str | None = None
    """Which options of the task the job has; None if it has all of them, or the task may not be seen."""
    is_reported: bool = True
    """Whether the options of the task are known. Otherwise ``remark`` has no options of it."""
    _command: str = ""
    """The command that adds a job with the options of the code."""
    code: str | None = None
    """The call and the command that add the job; None until the user asks for them."""
    job: None = None
    """There is no job that the new one is like. `JobFormPage` has one, and the same template."""


async def build_new(request: PageRequest, values: Mapping[str, str] | None = None) -> NewJobPage:
    """Return the form of the task that the URL names, or a form without a task.

    Raises:
        RejectedError: The request may not add jobs.
    """
    if not request.may("add"):
        raise RejectedError("you may not do this: it needs the right add", 403)
    # The task in the address is chosen already, unless the form was sent with another one.
    field_texts = dict.fromkeys(FIELDS, "")
    field_texts["task"] = request.parameters.get("task", "")
    field_texts |= dict(values or {})
    names = await request.task_names()
    data = await read_navigation(request)
    tasks = sorted({names.task_of(name) for name in data.tasks if request.access.sees_name(name)})
    task = field_texts["task"]
    parameters = await request.task_parameters(task or None)
    # The remark lists options of the task, so it is made only for a task that exists and that the request
    # sees.
    remark = None
    if await wrong_task(task, tasks, request) is None:
        _options, remark = await request.reported_options(task, {})
    return NewJobPage(
        tasks,
        field_texts,
        parameters,
        remark=remark,
        is_reported=remark is None or await request.reports_options(task),
        _command=command_with_options(task),
    )


async def wrong_task(task: str, tasks: Sequence[str], request: PageRequest) -> str | None:
    """Return why no job of a name can be added; None if one can.

    A name that no live worker claims, that no counted attempt had and that is not registered in this process
    is a typing error: its jobs would wait without end. ``tasks`` are the visible tasks of live workers.
    """
    if not task:
        return "choose a task"
    claimed_or_counted = {*tasks, *filter(request.access.sees_name, await request.job_names())}
    # A task may have several names, and the user must be allowed to see all of them.
    names_of_task = (await request.names_of_tasks([task]))[task]
    if not all(map(request.access.sees_name, {task, *names_of_task})):
        return f"there is no task {task[:100]!r}, or you may not see it"
    if request.operations.is_registered(task) or not names_of_task.isdisjoint(claimed_or_counted):
        return None
    similar_name = most_similar(task, sorted(claimed_or_counted))
    suggestion = f"; did you mean {similar_name!r}?" if similar_name else ""
    return f"no worker knows the task {task[:100]!r}{suggestion}"
