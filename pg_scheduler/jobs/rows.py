"""Rows on the hot path: a job to insert and a claimed job, as tuples in column order."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

__all__ = ["Claim", "GeneratedIdJob", "NewJob"]


class NewJob(NamedTuple):
    """A job checked and ready to be inserted.

    A tuple, since a bulk call makes many; what differs from job to job comes before what many share.
    """

    job_id: str
    task_data: str
    execution_time: datetime
    job_name: str
    priority: int
    max_retries: int
    misfire_grace_time: int | None
    timeout_seconds: float | None
    function: str | None = None
    lock_key: int | None = None


class GeneratedIdJob(NewJob):
    """One whose id was made for it, so that it cannot be taken. There is a cheaper way into the table."""

    __slots__ = ()


class Claim(NamedTuple):
    """One try of one job, held by this worker under a fresh token: (job_id, its own id, attempt).

    A tuple in the order of the claim statement's columns: there is one for every job that runs.
    """

    job_id: str
    job_name: str
    function: str
    attempt: int
    execution_time: datetime
    task_data: str
    priority: int
    retry_count: int
    max_retries: int
    timeout_seconds: float | None
    lock_key: int | None
