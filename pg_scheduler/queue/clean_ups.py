"""Enqueue the ``on_cancel`` task of a job in the transaction that applies the consequences of its end.

That transaction clears ``on_end``, so each cancellation has exactly one clean-up. While the attempt of a
cancelled job still runs, its consequences wait for the end of the attempt. So the clean-up begins after that,
and gets all steps that the job has stored. A job that no worker has begun has done nothing, and gets
no clean-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.session import Record
from pg_scheduler.database.statements import Transaction
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.retry import Abort
from pg_scheduler.jobs.rows import AnyJob
from pg_scheduler.jobs.step_values import STEP, shown_name, step_value
from pg_scheduler.queue.consequences import EndedJob
from pg_scheduler.queue.followers import Followers, following_id, task_of
from pg_scheduler.queue.prepare import JobPreparer
from pg_scheduler.queue.store import QueueStore

SUFFIX: Final = ":on_cancel"

MAX_VALUE_BYTES: Final = 8192
"""Bytes that the value of a step may have, as stored. A longer one is omitted."""

MAX_VALUES_BYTES: Final = 32_768
"""Bytes that the values of the steps may have together, as stored. The values of later steps are omitted."""

EXAMPLE_STEPS: Final = ({"name": "charge", "kind": STEP, "value": "payment-7", "is_omitted": False},)
"""Steps as an examination of a clean-up passes them."""


def clean_up_arguments(
    job_id: str, job_name: str, reason: str | None, steps: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the arguments with which the task of ``on_cancel=`` is called for a cancelled job."""
    return {"job_id": job_id, "job_name": job_name, "reason": reason, "steps": [*steps]}


class CleanUps:
    """Enqueues the jobs that clean up after cancelled ones."""

    def __init__(self, store: QueueStore, preparer: JobPreparer) -> None:
        self._statements = store.statements
        self._preparer = preparer
        self._followers = Followers(store)

    async def enqueue(self, ended: Sequence[EndedJob], transaction: Transaction) -> Sequence[str]:
        """Enqueue the clean-ups of those jobs that were cancelled after they had begun.

        This is a handler of consequences, which has to return the ids of the jobs that it ends. It ends none,
        so it returns an empty sequence.
        """
        cancelled = {
            job.job_id: job
            for job in ended
            if job.status is JobStatus.CANCELLED and task_of(job, "on_cancel")
        }
        if not cancelled:
            return ()
        on, codec = transaction.connection, self._statements.codec
        # A value that was stored encoded is not passed on by a process that could not encode it again.
        if codec is not None and codec.key_id is None:
            codec = None
        rows = await self._statements.fetch(
            "read_done_steps", list(cancelled), MAX_VALUE_BYTES, MAX_VALUES_BYTES, on=on
        )
        steps: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            job_steps = steps.setdefault(row["job_id"], [])
            # A job that has begun and has stored no step has one row, without a step.
            if row["name"] is not None:
                job_steps.append(_step_of(row, codec))
        if not steps:
            return ()
        now = await self._statements.read_clock(on=on)
        clean_ups: list[AnyJob] = []
        for job_id, job_steps in steps.items():
            job = cancelled[job_id]
            omitted_steps = [{**step, "value": None, "is_omitted": True} for step in job_steps]
            clean_up = self._preparer.prepare_follower(
                task_of(job, "on_cancel"),
                now,
                clean_up_arguments(job_id, job.job_name, job.error, job_steps),
                job_id=following_id(job_id, SUFFIX),
                readable_kwargs=clean_up_arguments(job_id, job.job_name, job.error, omitted_steps),
            )
            clean_ups.append(clean_up)
        for clean_up in await self._followers.insert(clean_ups, now, transaction):
            logger.warning(
                "clean-up %s not enqueued, since another unfinished job has its unique key: what the "
                "cancelled job has done is not cleaned up; give its task no unique=, or one with the "
                "job_id among the arguments",
                clean_up.job_id,
                extra=record_fields(job_id=clean_up.job_id),
            )
        return ()


def _step_of(row: Record, codec: PayloadCodec | None) -> dict[str, Any]:
    """Return a step of a row as a clean-up gets it, without a value that cannot be decoded here."""
    value, is_omitted = None, row["is_omitted"]
    if not is_omitted:
        try:
            value = step_value(row["name"], row["value"], codec)
        except Abort:
            is_omitted = True
    return {"name": shown_name(row["name"]), "kind": row["kind"], "value": value, "is_omitted": is_omitted}
