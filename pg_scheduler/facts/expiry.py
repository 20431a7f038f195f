"""Why a job expired, as the statement that expires it writes to the options of its row."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class ExpiryCause(StrEnum):
    """The cause of an expiry; the fragment ``expiry_cause`` has the same words."""

    WAITED = "waited"
    """It waited for a limit or a share."""
    SCHEDULED_LATE = "scheduled_late"
    """It was added after its misfire grace time."""
    PAUSED = "paused"
    """Its task was paused."""
    NO_WORKER = "no_worker"
    """The worker that found it does not have its function, and no other worker has claimed the job."""
    NO_WORKER_YET = "no_worker_yet"
    """All workers that ran when it was found had started after its misfire grace time."""
    WORKER_STARTED_LATER = "worker_started_later"
    """The worker that found it has its function, and had started after its misfire grace time."""
    NO_FREE_SLOT = "no_free_slot"
    """The worker that found it has its function, and had started. It had no free slot, was blocked, or could
    not reach the database."""


CAUSES: Final[Mapping[str, str]] = {
    ExpiryCause.WAITED: "waited for the {}",
    ExpiryCause.SCHEDULED_LATE: "came too late",
    ExpiryCause.PAUSED: "waited for the end of a pause",
    ExpiryCause.NO_WORKER: "had no worker with this task",
    ExpiryCause.NO_WORKER_YET: "became due before a worker had started",
    ExpiryCause.WORKER_STARTED_LATER: "became due before a worker with this task had started",
    ExpiryCause.NO_FREE_SLOT: "waited for a free slot",
}
"""What jobs of each cause did, as the end of a sentence with their number, which may be 1. A limit or a share
stands in place of ``{}``."""
