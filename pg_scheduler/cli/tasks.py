"""The commands of the group ``tasks``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final, Literal

import typer

from pg_scheduler import Scheduler, TaskInfo, Worker
from pg_scheduler.base.dsn import remove_secrets
from pg_scheduler.base.figures import JobFigures
from pg_scheduler.base.text.values import copy_fields
from pg_scheduler.errors import SchedulerError
from pg_scheduler.facts.outcomes import count_failed, failure_rate
from pg_scheduler.inspect import Inspector, TaskState
from pg_scheduler.inspect.limits import LimitState, declared_limits
from pg_scheduler.inspect.tasks import ExpiringJobs
from pg_scheduler.inspect.texts import counted
from pg_scheduler.jobs.worker_report import ReportedSettings

from .commands import Command, Group, watched
from .completion import TaskName
from .errors import RefusedError, hint_at
from .output import Column, Shape, columns
from .status import seconds
from .values import PauseNote, PauseUntil, SuspendExpiry, read_time


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTask(TaskState):
    """A name that workers claim, that has due, blocked or running jobs, or that is paused."""

    started: int
    """Attempts of the last hour."""
    failed: int
    """Those of them that failed, retried and lost ones included."""
    failure_rate: float | None
    """Failed, of those that completed, were suspended or failed; 0 to 1."""
    run_p50_s: float | None
    run_p95_s: float | None
    limits: Sequence[str]
    """The limits that live workers declare for it."""
    hosts: Sequence[str]
    """Of the live workers that claim it."""
    releases: Sequence[str]
    """Of these workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """The effect of a command on a task."""

    name: str
    result: Literal["paused", "resumed", "unchanged"]
    due: int
    paused_until: datetime | None = None
    note: str | None = None
    would_expire: int | None = None
    """Waiting jobs that expire during the pause, by their misfire grace time; None for resumed."""
    would_expire_is_capped: bool | None = None
    """Whether counting them stopped at a bound, so that there may be more."""


TASK: Final = Shape(
    "task",
    ListedTask,
    (
        *columns("name", "due", "blocked", "running", "oldest_due_at", "workers"),
        *columns("started", "failed", "failure_rate", "run_p50_s", "run_p95_s", is_wide=True),
        *columns("limits", "hosts", "releases", "paused_at", "paused_until", is_wide=True),
        Column("note", is_long=True),
        Column("actor", "BY", is_wide=True),
    ),
)
TASK_CHANGE: Final = Shape(
    "task_change",
    TaskChange,
    (*columns("name", "result", "due", "would_expire"), Column("paused_until", "UNTIL"), Column("note")),
)
REGISTERED: Final = Shape(
    "registered_task",
    TaskInfo,
    (
        *columns("name", "executor", "timeout"),
        Column("max_retries", "RETRIES"),
        *columns("aliases", "priority", is_wide=True),
        Column("misfire_grace_time", "MISFIRE GRACE", is_wide=True),
    ),
    keys=("name", "aliases", "executor", "timeout", "max_retries", "priority", "misfire_grace_time"),
)

NO_EXPIRY: Final = "no job expires during the pause; when it ends, due jobs get their grace time again"

PERIOD: Final = timedelta(hours=1)
"""The period of attempts, failures and durations."""


async def list_tasks(
    command: Command,
    paused: Annotated[bool, typer.Option("--paused", help="Only paused tasks.")] = False,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET", help="The tasks of a Scheduler or of modules instead; repeatable."),
    ] = None,
) -> None:
    """Print the names that workers claim, that have due, blocked or running jobs, or that are paused.

    The attempts, failures and durations are those of the last hour; -o wide has them, the limits, and the
    hosts and releases of the workers. With --target: the tasks that code
    registers, with their aliases and defaults.
    """
    if target:
        from .worker.options import WorkerOptions  # noqa: PLC0415 - only this needs a worker
        from .worker.process import open_scheduler  # noqa: PLC0415
        from .worker.target import load_targets  # noqa: PLC0415

        async with open_scheduler(command, load_targets(target), WorkerOptions()) as scheduler:
            command.output.write_list(REGISTERED, await registered_tasks(scheduler))
        return
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        tasks = await inspector.tasks()
        statistics = await inspector.statistics(PERIOD)
        workers = [worker for worker in await inspector.workers() if worker.is_alive]
    figures = statistics.by_name()
    limits = declared_limits(workers)
    listed_tasks = [task for task in tasks.items if task.paused_at is not None or not paused]
    # A task without an attempt in the period has no figures.
    rows = [_row(task, figures.get(task.name, JobFigures()), workers, limits) for task in listed_tasks]
    command.output.write_list(
        TASK, rows, is_capped=tasks.is_capped, summary=tasks.summary, uncounted=statistics.uncounted
    )
    command.output.say(tasks.summary)
    if statistics.uncounted is not None:
        command.output.say(statistics.uncounted)


async def pause(
    command: Command,
    name: TaskName,
    until: PauseUntil = None,
    note: PauseNote = None,
    suspend_expiry: SuspendExpiry = False,
) -> None:
    """Pause a task: no job of it starts on any node until it is resumed. Running ones continue."""
    ends_at = None if until is None else read_time("--until", until, command.output.zone)
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        states = (await inspector.tasks()).items
        workers = await inspector.workers()
        changed = await scheduler.tasks.pause(name, until=ends_at, note=note, suspend_expiry=suspend_expiry)
        # None if the jobs that expire could not be counted.
        expiring = None
        try:
            if suspend_expiry:
                expiring, expiry = ExpiringJobs(0, is_capped=False), NO_EXPIRY
            else:
                expiring = await inspector.count_expiring(name, ends_at)
                expiry = expiring.summary
        except SchedulerError as error:  # the task is paused nevertheless
            expiry = f"jobs that would expire during the pause were not counted: {error}"
    # The name may be an alias, while the state is that of the task.
    state = _find(states, name) or _find(states, _task_of(name, workers))
    if state is None:
        hint = hint_at(name, [state.name for state in states])
        command.output.say(f"no worker claims the name {name!r}, and no job of it is due{hint}")
    elif state.due:
        command.output.say(f"held back: {counted(state.due, 'due job')}")
    command.output.say(remove_secrets(expiry, command.settings.secrets))
    change = TaskChange(
        name=name,
        result="paused" if changed else "unchanged",
        due=0 if state is None else state.due,
        paused_until=ends_at,
        note=note,
        would_expire=None if expiring is None else expiring.jobs,
        would_expire_is_capped=None if expiring is None else expiring.is_capped,
    )
    command.output.write_list(TASK_CHANGE, [change])


async def resume(command: Command, name: TaskName) -> None:
    """Start the jobs of a paused task again."""
    async with command.scheduler() as scheduler:
        states = (await Inspector(scheduler).tasks()).items
        if not await scheduler.tasks.resume(name):
            paused_names = [state.name for state in states if state.paused_at is not None]
            listed_names = ", ".join(paused_names) or "none"
            raise RefusedError(f"task {name!r} is not paused; paused tasks: {listed_names}")
    state = _find(states, name)
    change = TaskChange(name=name, result="resumed", due=0 if state is None else state.due)
    command.output.write_list(TASK_CHANGE, [change])


async def registered_tasks(scheduler: Scheduler) -> list[TaskInfo]:
    """Return the tasks with their aliases and defaults."""
    return [info for info in await scheduler.tasks.list() if info.is_registered]


def _find(states: Sequence[TaskState], name: str) -> TaskState | None:
    """Return the state of the task with this name; None if there is none."""
    return next((state for state in states if state.name == name), None)


def _task_of(name: str, workers: Sequence[Worker]) -> str:
    """Return the name of the task that a live worker reports for an alias; the name if it is no alias."""
    for worker in workers:
        if worker.is_alive:
            # A worker reports the name of the task for each alias.
            task_names = ReportedSettings(worker.settings).aliases
            if name in task_names:
                return task_names[name]
    return name


def _row(
    task: TaskState,
    figures: JobFigures,
    workers: Sequence[Worker],
    limits: Sequence[LimitState],
) -> ListedTask:
    """Return the row of a task, with its figures and the live workers that claim it."""
    rate = failure_rate(figures)
    claiming_workers = [worker for worker in workers if task.name in (worker.names or ())]
    return copy_fields(
        ListedTask,
        task,
        started=figures.started,
        failed=count_failed(figures),
        failure_rate=None if rate is None else round(rate, 3),
        run_p50_s=seconds(figures.durations.quantile(0.5)),
        run_p95_s=seconds(figures.durations.quantile(0.95)),
        limits=sorted({limit.name for limit in limits if task.name in limit.tasks}),
        hosts=sorted({worker.hostname for worker in claiming_workers}),
        releases=sorted({worker.version for worker in claiming_workers}),
    )


COMMANDS: Final = Group(
    "List tasks, pause and resume them.", {"list": watched(list_tasks), "pause": pause, "resume": resume}
)
