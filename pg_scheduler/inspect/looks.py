"""Look at a running job: its last log lines, and its stack; see ``worker/looks.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pg_scheduler.base.messages import Look
from pg_scheduler.inspect.base import InspectorBase, tables_of
from pg_scheduler.jobs.history import instant_from
from pg_scheduler.jobs.payload import object_from


@dataclass(frozen=True, slots=True)
class LookAnswer:
    """What the worker of a running job has written for people.

    Attributes:
        log: Its last log lines, oldest first; None if no ``JobLogHandler`` keeps them.
        stack_at: When the last stack was taken; None for none.
        stack: The frames of the job, the outermost first; None if they cannot be read.
    """

    log: Sequence[str] | None
    stack_at: datetime | None
    stack: str | None


async def request_look(inspector: InspectorBase, worker_id: str, job_id: str, part: str) -> None:
    """Ask a worker to show, for a minute, a job that it runs.

    ``part`` is ``log`` for its last log lines, or ``stack`` for its stack as well.
    """
    await tables_of(inspector).writes.locks.notify([Look(worker_id, part, job_id).message])


async def read_look(inspector: InspectorBase, job_id: str) -> LookAnswer | None:
    """Return what the worker of a job shows of its present attempt; None if it shows nothing."""
    text = await tables_of(inspector).reads.inspections.look(job_id)
    if text is None:
        return None
    # The worker may be one of another release, so each value is examined.
    answer = object_from(text)
    lines = answer.get("log")
    log = [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else None
    stack = answer.get("stack")
    stack = stack if isinstance(stack, dict) else {}
    frames = stack.get("text")
    return LookAnswer(
        log=log,
        stack_at=instant_from(stack.get("at")),
        stack=frames if isinstance(frames, str) else None,
    )
