"""The executors of a Scheduler: those that it was given, and the default ones."""

from __future__ import annotations

from collections.abc import Mapping

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.executors import ASYNC, PROCESS, THREAD
from pg_scheduler.worker.runners.call import JobExecutor
from pg_scheduler.worker.runners.process import ProcessExecutor
from pg_scheduler.worker.runners.thread import ThreadExecutor


def check_executors(given: Mapping[str, JobExecutor] | None) -> dict[str, JobExecutor]:
    """Return the executors by name.

    Raises:
        ConfigurationError: A name is not a str or is reserved, or an executor lacks a method.
    """
    for name, executor in (given or {}).items():
        if not isinstance(name, str) or not name:  # type: ignore[redundant-expr] # calls are not checked
            raise ConfigurationError(f"executors must have names, str that are not empty, not {name!r}")
        if name == ASYNC:
            raise ConfigurationError("executors cannot replace 'async', the event loop; use another name")
        if not isinstance(executor, JobExecutor):
            raise ConfigurationError(
                f"executors[{name!r}] must be a JobExecutor, not {executor!r}; "
                "derive its class from pg_scheduler.JobExecutor"
            )
    return {THREAD: ThreadExecutor(), PROCESS: ProcessExecutor(), **(given or {})}
