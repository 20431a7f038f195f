"""The Scheduler of a job in a thread, with the types of its blocking methods."""

from __future__ import annotations

from typing import cast

from pg_scheduler.base.blocking import Blocking
from pg_scheduler.jobs.context import current_job
from pg_scheduler.sync.methods import BlockingMethods


def current_scheduler() -> BlockingMethods:
    """Return ``current_job().scheduler`` in a job that runs in a thread, with its type for type checkers.

    Its methods are those of `SyncScheduler`. They block, run in the event loop of the worker and use the pool
    of the worker. A call that waits while the attempt is cancelled raises ``JobCancelledError``.

    Raises:
        LookupError: The caller is not part of a running job.
        NotRunningError: The job runs in a process.
        RuntimeError: The caller is an async job, which awaits the methods of ``current_job().scheduler``.

    Example:
        >>> from pg_scheduler import job
        >>> from pg_scheduler.sync import current_scheduler
        >>> @job()
        ... def import_file(path: str) -> None:
        ...     current_scheduler().enqueue("mail.send", args=(f"{path} was imported",))
    """
    scheduler: object = current_job().scheduler
    if not isinstance(scheduler, Blocking):
        raise RuntimeError(  # noqa: TRY004 - the place of the call is wrong, not a type
            "current_scheduler() is for jobs in threads; an async job awaits the methods of "
            "current_job().scheduler"
        )
    return cast("BlockingMethods", scheduler)
