"""Log what a worker does at this instant: its slots, and the stacks of its jobs and threads."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator

from pg_scheduler import Scheduler
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.worker.in_flight import Attempt

from .inside import running_attempts

MAX_JOBS = 200
"""Jobs whose stacks are shown."""


def log_stacks(scheduler: Scheduler) -> None:
    """Write one record, from a thread: the event loop may be blocked, and a signal handler must not log."""
    threading.Thread(target=_log, args=(scheduler,), name="pg_scheduler stacks", daemon=True).start()


def _log(scheduler: Scheduler) -> None:
    logger.info("%s", describe(scheduler), extra=record_fields(worker_id=scheduler.worker_id))


def describe(scheduler: Scheduler) -> str:
    """Return the slots, then a stack for each running job and each thread."""
    health = scheduler.health()
    attempts = running_attempts(scheduler)
    lines = [f"worker {scheduler.worker_id} {health.state}: {health.slots_busy} of {health.slots} slots busy"]
    for attempt in attempts[:MAX_JOBS]:
        lines += _of_job(attempt)
    if len(attempts) > MAX_JOBS:
        lines.append(f"and {len(attempts) - MAX_JOBS:,} more jobs")
    lines += _of_threads()
    return "\n".join(lines)


def _of_job(attempt: Attempt) -> Iterator[str]:
    claim = attempt.claim
    yield f"job {claim.job_name} (id {claim.job_id}, attempt {claim.attempt})"
    for frame in attempt.task.get_stack(limit=20) if attempt.task is not None else ():
        yield from _lines(traceback.extract_stack(frame, limit=1))


def _of_threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented for debugging
        if ident != own:
            yield f"thread {names.get(ident, ident)}"
            yield from _lines(traceback.extract_stack(frame, limit=20))


def _lines(stack: traceback.StackSummary) -> list[str]:
    return [f"  {line}" for text in stack.format() for line in text.rstrip().splitlines()]
