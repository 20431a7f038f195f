"""Run tasks as jobs: register their functions, pass the context, and send the signals.

The registered function of a task calls the function of the task. It is a coroutine function if that of the
task is one, and has the same parameters except for the context. Signals are sent in the thread of the task,
``task_finished`` when no other attempt follows. A receiver that raises an exception does not end the attempt.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.utils import timezone

from pg_scheduler.base.annotations import signature_of
from pg_scheduler.base.foreign import current_task, ends_task
from pg_scheduler.integrations.django.compat import (
    Task,
    TaskContext,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from pg_scheduler.integrations.django.results import JobTaskResult, enqueued_at, error_of, new_result
from pg_scheduler.integrations.django.task import copy_with, job_name, name_of, priority_of, queue_in
from pg_scheduler.jobs.context import current, current_job
from pg_scheduler.jobs.executors import PROCESS
from pg_scheduler.jobs.naming import check_aliases
from pg_scheduler.jobs.outcome import may_retry
from pg_scheduler.jobs.payload import encode_value
from pg_scheduler.jobs.registry import catalogue
from pg_scheduler.jobs.retry import DEFAULT_RETRY_POLICY, reason_of, snooze_of
from pg_scheduler.jobs.task import NO_OPTIONS, TaskOptions

_runners: Final[dict[Callable[..., Any], Callable[..., Any]]] = {}
"""The registered function for each function of a task."""

serving: Final[ContextVar[str]] = ContextVar("pg_scheduler_django_backend")
"""The alias of the backend whose worker runs this attempt."""


def declare(task: Task, queues: Iterable[str], options: Mapping[str, Any]) -> None:
    """Register a task under its path with its queue and with each of ``queues``, unless it is registered.

    Args:
        task: The task. Its first declaration decides the options of the function.
        queues: Other queues.
        options: The options of its jobs.

    Raises:
        TypeError: An option of jobs has the wrong type, or the executor cannot run the function.
        ValueError: An option of jobs is out of range, or its name belongs to another function.
    """
    # All tasks of a function, such as copies with other queues, share one registered function.
    run = _runners.get(task.func)
    if run is None:
        run = _runners[task.func] = _runner_of(task)
    existing_task = catalogue.find_exact(name_of(task))
    if existing_task is not None and existing_task.func is run:
        return
    if getattr(task, "executor", None) == PROCESS:
        raise ValueError(
            f"executor {PROCESS!r} cannot run the task {task.module_path}, whose signals the worker sends; "
            "declare a function with @job instead"
        )
    # The first declaration decides the options. Later ones only add names.
    function_task = catalogue.task_of(run)
    task_options = NO_OPTIONS
    if function_task is None or function_task.func is not run:
        # A task of Django's own class lacks these attributes.
        task_values: dict[str, Any] = {}
        for name in ("executor", "retry", "limits", "unique", "metadata", "on_failure"):
            value = getattr(task, name, None)
            if value is not None:
                task_values[name] = value
        task_options = TaskOptions(**task_values, priority=priority_of(task.priority), **options)
    # Celery and django-celery-beat store the path without a queue, so it is a name as well. It is a loose
    # one, since a function with @job() may have it too.
    catalogue.register(
        run,
        aliases=_names_in({task.queue_name, *queues}, task),
        loose=[task.module_path],
        options=task_options,
    )


def declare_queues(queues: Iterable[str]) -> None:
    """Register all tasks under their paths with these queues too."""
    for task in declared_tasks():
        catalogue.register(_runners[task.func], aliases=_names_in(queues, task))


def _names_in(queues: Iterable[str], task: Task) -> list[str]:
    """Return the names of the jobs of a task in these queues: its path and its aliases, with each queue."""
    aliases = check_aliases(getattr(task, "aliases", ()))
    # An alias that has a queue already is a name of its own.
    paths = [task.module_path, *(alias for alias in aliases if queue_in(alias) is None)]
    names_with_queue = [job_name(path, queue) for path in paths for queue in sorted(queues)]
    return [*aliases, *names_with_queue]


def paths_in(queues: Iterable[str]) -> list[str]:
    """Return the names without a queue whose jobs belong to these queues.

    The queue of such a job is that of its task.
    """
    selected_queues = set(queues)
    paths: list[str] = []
    for task in declared_tasks():
        if task.queue_name in selected_queues:
            names = (task.module_path, *check_aliases(getattr(task, "aliases", ())))
            # A path may also be the name of another task. Then jobs of this name belong to that task.
            paths += [name for name in names if queue_in(name) is None and task_named(name) is task]
    return sorted(paths)


def task_named(name: str) -> Task | None:
    """Return the task that runs the jobs of this name; None if no task does."""
    job_task = catalogue.resolve(name)
    return None if job_task is None else getattr(job_task.func, "django_task", None)


def declared_tasks() -> list[Task]:
    """Return the tasks that are registered."""
    candidates = (getattr(job_task.func, "django_task", None) for job_task in catalogue.tasks())
    return [task for task in candidates if task is not None]


def _runner_of(task: Task) -> Callable[..., Any]:
    """Return the function to register for a task, which calls the function of the task.

    Its parameters are those of the task's function but the context, which the worker makes.
    """
    func = task.func
    run: Any = _async_runner_of(task) if inspect.iscoroutinefunction(func) else _plain_runner_of(task)
    functools.update_wrapper(run, func)
    # The context is the first parameter.
    parameters = list(signature_of(func).parameters.values())
    run.__signature__ = inspect.Signature(parameters[1:] if task.takes_context else parameters)
    # The name of a registered function is its module and this name.
    run.__qualname__ = job_name(func.__qualname__, task.queue_name)
    run.django_task = task
    runner: Callable[..., Any] = run
    return runner


def _plain_runner_of(task: Task) -> Callable[..., Any]:
    """Return the function to register for a task whose function is a plain one."""

    def run(*args: Any, **kwargs: Any) -> Any:
        attempt = _Attempt(task, args, kwargs)
        attempt.begin()
        try:
            value = _normalised(task.func(*attempt.args, **kwargs))
        except BaseException as error:  # user code
            attempt.fail(error)
            raise
        attempt.succeed(value)
        return value

    return run


def _async_runner_of(task: Task) -> Callable[..., Any]:
    """Return the function to register for a task whose function is a coroutine function."""

    async def run(*args: Any, **kwargs: Any) -> Any:
        asyncio_task = current_task()
        attempt = _Attempt(task, args, kwargs)
        await sync_to_async(attempt.begin)()
        try:
            value = _normalised(await task.func(*attempt.args, **kwargs))
        except BaseException as error:  # user code
            # A cancellation of the attempt, for example, is no failure of the task.
            if ends_task(error, asyncio_task):
                raise
            await sync_to_async(attempt.fail)(error)
            raise
        await sync_to_async(attempt.succeed)(value)
        return value

    return run


def _normalised(value: object) -> Any:
    """Return what a task returned as JSON has it.

    Raises:
        TypeError: JSON cannot represent it, or PostgreSQL cannot store it.
    """
    normalised = normalize_json(value)
    # This raises the error for a value that PostgreSQL cannot store.
    encode_value(normalised)
    return normalised


class _Attempt:
    """The attempt of a task that runs in this context."""

    def __init__(self, task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        job_context = current.get()
        claim = job_context.claim
        # In tests, get_scheduler may be a plain function, which has no worker.
        worker_id = getattr(job_context.get_scheduler, "worker_id", None)
        now = timezone.now()
        self._claim = claim
        # The backend and the queue are those of this job, and may differ from those of the declared task.
        self._task = task = copy_with(
            task,
            backend=serving.get(task.backend),
            queue_name=queue_in(claim.job_name) or task.queue_name,
        )
        self._backend = task.get_backend()
        self.result: JobTaskResult = new_result(
            task,
            args,
            kwargs,
            id=claim.job_id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=enqueued_at(claim.job_id, None),
            started_at=now,
            last_attempted_at=now,
            worker_ids=[] if worker_id is None else [worker_id],
            claims=claim.attempt,
        )
        # Django passes the context as the first argument.
        context = (TaskContext(task_result=self.result),) if task.takes_context else ()
        self.args = (*context, *args)

    def begin(self) -> None:
        """Read the errors and workers of earlier attempts into the result, and send ``task_started``."""
        if self._claim.attempt > 1:
            # Django finds a result by the task of the job's name. A schedule may have given the job a bare
            # name that several functions have. It stands for none of them, so there is nothing to read.
            with suppress(TaskResultDoesNotExist):
                self.result.refresh()
        task_started.send_robust(type(self._backend), task_result=self.result)

    def succeed(self, value: Any) -> None:
        """Send ``task_finished``, unless the attempt was cancelled."""
        if not current_job().is_cancelled:
            self._finish(status=TaskResultStatus.SUCCESSFUL, _return_value=value)

    def fail(self, error: BaseException) -> None:
        """Send ``task_finished``, unless the attempt was cancelled or another one follows."""
        policy = getattr(self._task, "retry", None) or DEFAULT_RETRY_POLICY
        if (
            current_job().is_cancelled
            or snooze_of(error) is not None
            or may_retry(self._claim, error, policy)
        ):
            return
        # The reason for a Retry is the error that caused it.
        errors = [*self.result.errors, error_of(reason_of(error))]
        self._finish(status=TaskResultStatus.FAILED, errors=errors)

    def _finish(self, **values: Any) -> None:
        """Set the end of the task and these values of its result, and send ``task_finished``."""
        self.result.change(finished_at=timezone.now(), **values)
        task_finished.send_robust(type(self._backend), task_result=self.result)
