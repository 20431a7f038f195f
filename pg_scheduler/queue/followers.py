"""Insert the jobs that follow the ends of others: alerts of failures, and clean-ups after cancellations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from hashlib import sha256
from typing import Final

from pg_scheduler.base.messages import due_message
from pg_scheduler.database.statements import Transaction
from pg_scheduler.jobs.rows import AnyJob, ExtendedJob
from pg_scheduler.jobs.validation import MAX_ID_BYTES
from pg_scheduler.queue.consequences import EndedJob
from pg_scheduler.queue.store import QueueStore
from pg_scheduler.queue.writer import JobWriter

HASH_CHARACTERS: Final = 32
RANDOM_BYTES: Final = 8
"""The length of the random part of an id, which makes it unique."""


class Followers:
    """Inserts the jobs that follow the ends of other jobs."""

    def __init__(self, store: QueueStore) -> None:
        self._writer = JobWriter(store)

    async def insert(
        self, jobs: Sequence[AnyJob], now: datetime, transaction: Transaction
    ) -> Sequence[AnyJob]:
        """Insert jobs that are due now. If the id of a job is taken, insert the job under another id.

        Return the jobs that were not inserted.

        A job with the id of a time span is not inserted again: the job of that span exists. Neither is a job
        whose unique key another job has.
        """
        message = due_message("", now)
        ordered = sorted(jobs, key=lambda job: job.job_id)
        # The due time is that of an earlier statement. If the server's clock is set back in between, the time
        # of creation shows that the jobs were due at once.
        insert = partial(self._writer.insert, within=transaction.connection, message=message, created_at=now)
        inserted = await insert(ordered)
        left_out = [job for job in ordered if job.job_id not in inserted]
        renamed = {distinct_id(job.job_id): job for job in left_out if not _is_of_a_span(job)}
        if renamed:
            inserted = await insert([job.with_id(job_id) for job_id, job in renamed.items()])
            inserted_jobs = [job for job_id, job in renamed.items() if job_id in inserted]
            left_out = [job for job in left_out if job not in inserted_jobs]
        return left_out


def _is_of_a_span(job: AnyJob) -> bool:
    """Return whether at most one such job is enqueued in a time span, so that the span decides its id."""
    return isinstance(job, ExtendedJob) and job.span is not None


def following_id(job_id: str, suffix: str) -> str:
    """Return the id of a job that follows another one. A hash replaces the end of an id that is too long."""
    return _shortened(job_id, suffix) + suffix


def distinct_id(taken_id: str) -> str:
    """Return an id that no other job has, for a job whose id is taken."""
    suffix = f":{os.urandom(RANDOM_BYTES).hex()}"
    return _shortened(taken_id, suffix) + suffix


def _shortened(job_id: str, suffix: str) -> str:
    """Return a job id with room for a suffix. The end of an id that is too long becomes a hash."""
    if len(job_id.encode()) + len(suffix) <= MAX_ID_BYTES:
        return job_id
    # The cut may divide a character of several bytes, whose first bytes are ignored.
    room = MAX_ID_BYTES - len(suffix) - HASH_CHARACTERS
    start = job_id.encode()[:room].decode(errors="ignore")
    return start + sha256(job_id.encode()).hexdigest()[:HASH_CHARACTERS]


def task_of(job: EndedJob, key: str) -> str:
    """Return the name of the task that follows a job; an empty one for a value that was written by hand."""
    name = job.on_end[key]
    return name if isinstance(name, str) and len(name.encode()) <= MAX_ID_BYTES else ""
