"""Enqueue the children of jobs, as ``enqueue()`` does, with a mark in their rows that names their parent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from pg_scheduler.database.session import Connection
from pg_scheduler.jobs.deadlines import DEADLINE
from pg_scheduler.jobs.model import Call, ConflictResolution
from pg_scheduler.jobs.rows import EPOCH, AnyJob, with_options
from pg_scheduler.jobs.step_values import CHILD_OF, DETACHED, MAX_STEPS
from pg_scheduler.jobs.task import JobSpec
from pg_scheduler.jobs.validation import check_delay
from pg_scheduler.queue.enqueuer import Enqueuer
from pg_scheduler.queue.headers import SendingEnqueuer
from pg_scheduler.queue.prepare import JobPreparer

CHILD_KEEPS: Final = timedelta(hours=1)
"""How long a child keeps its result, of which its step gets a copy, unless its options or its task say so."""


class ChildSpec(NamedTuple):
    """A child to enqueue.

    Attributes:
        call: Its function and arguments.
        job_id: Its id.
        mark: Whose child it is.
        options: Arguments of ``enqueue()``.
        deadline: The deadline of its job, which it has unless ``options`` gives another one; None for none.
        is_detached: Whether it continues if its job is cancelled with its children.
        sequence: The sequence of its job, which keeps the place of the head while it waits; None for none.
    """

    call: Call[Any]
    job_id: str
    mark: Mapping[str, Any]
    options: Mapping[str, Any]
    deadline: datetime | None = None
    is_detached: bool = False
    sequence: str | None = None


class ChildEnqueuer:
    """Enqueues the children of jobs, those of one step in the order of their numbers."""

    def __init__(self, preparer: JobPreparer, enqueuer: Enqueuer | SendingEnqueuer) -> None:
        self._preparer = preparer
        self._enqueuer = enqueuer

    def prepare(self, child: ChildSpec) -> AnyJob:
        """Return the row of a child, with the mark that names its parent.

        Raises:
            TypeError: As in ``enqueue()``.
            ValueError: The child would wait for its own job, whose sequence it has; or as in ``enqueue()``.
        """
        options = dict(child.options)
        delay = options.pop("delay", None)
        delay_s = 0.0 if delay is None else check_delay("delay", delay)
        # A due time that counts from EPOCH is a delay. Without a delay, the child is due now.
        due = EPOCH + timedelta(seconds=delay_s) if delay_s else None
        is_inherited = child.deadline is not None and DEADLINE not in options
        if is_inherited:
            options[DEADLINE] = child.deadline
        spec = JobSpec(child.call, due, job_id=child.job_id, **options)
        (job,) = self._preparer.prepare((spec,), allows_names=True, allows_now=True)
        child_job = with_options(job, **{CHILD_OF: dict(child.mark)})
        # A child that is due after the deadline of its job is no mistake of this call: the job ends before.
        if is_inherited:
            child_job = replace(child_job, given_deadline=None)
        number = child.mark.get("number")
        if number is not None:
            # Several children may be enqueued at the same time, and then their ids would decide their order.
            # So each child is due a microsecond after the one before it, and none is due later than now.
            lead_time = (MAX_STEPS - number) * timedelta.resolution
            child_job = child_job.due_at(child_job.execution_time - lead_time)
        if child.is_detached:
            child_job = with_options(child_job, **{DETACHED: True})
        if child.sequence is not None and child_job.extras.blocked_on == child.sequence:
            raise ValueError(
                f"job {child.mark['job']!r} would wait for itself: its child has the key of its sequence, in "
                "which it keeps its place while it waits; give the child another key, or no sequence"
            )
        # The step of the parent needs the result, also if the task keeps none.
        if not child_job.keeps_result:
            child_job = with_options(child_job, keep_result=CHILD_KEEPS.total_seconds())
        return child_job

    async def insert(
        self, child_job: AnyJob, conflict_resolution: ConflictResolution, connection: Connection
    ) -> str:
        """Insert a prepared child in the transaction that stores its step, and return its id.

        Args:
            child_job: The row that ``prepare()`` has returned.
            conflict_resolution: What to do if another job has its id.
            connection: The connection of the transaction.
        """
        return await self._enqueuer.insert(child_job, conflict_resolution, connection, is_delayed=True)
