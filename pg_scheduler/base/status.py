"""The status of a job."""

from __future__ import annotations

from enum import Enum, StrEnum

from pg_scheduler.base.public import public


@public
class JobStatus(StrEnum):
    """The status of a job."""

    PENDING = "pending"
    """The job is due, or will be."""
    RUNNING = "running"
    """A worker has claimed the job."""
    COMPLETED = "completed"
    """The function returned."""
    FAILED = "failed"
    """The job failed and is not retried."""
    CANCELLED = "cancelled"
    """The job was cancelled, or skipped because another job holds its advisory lock."""
    EXPIRED = "expired"
    """The job did not start within its misfire grace time."""

    @property
    def is_finished(self) -> bool:
        """Whether a job in this status will not run again."""
        return self not in (JobStatus.PENDING, JobStatus.RUNNING)

    @classmethod
    def parse(cls, status: object) -> JobStatus:
        """Return the status of a member or its text.

        Raises:
            ValueError: The text is not a status.
        """
        text = status.value if isinstance(status, Enum) else status
        try:
            return cls(str(text))
        except ValueError:
            statuses = ", ".join(repr(member.value) for member in cls)
            raise ValueError(f"status must be one of {statuses}, not {status!r}") from None
