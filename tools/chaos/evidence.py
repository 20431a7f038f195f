"""The evidence that a run leaves, and the verdict on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.chaos.durable_jobs import CHILDREN, COMPLETED, DRAWN, SHARED
from tools.chaos.jobs import BLOCKED, UNIQUE
from tools.chaos.ledger import Attempt, Ledgers
from tools.chaos.load import REPLACED, Request
from tools.chaos.nemesis import Fault
from tools.chaos.workflow_calls import WorkflowCalls
from tools.chaos.workflow_jobs import CHILDREN_OF_FAMILIES, DEBOUNCED, SEQUENCES


@dataclass(frozen=True, slots=True)
class Row:
    """The final row of a job, with times of the monotonic clock."""

    job_id: str
    job_name: str
    status: str
    worker_id: str | None
    attempt: int
    retry_count: int
    max_retries: int
    priority: int
    due: float
    created: float
    started: float | None
    unique_key: str | None = None
    fire_time: float | None = None
    finished: float | None = None


@dataclass(frozen=True, slots=True)
class StreamItem:
    """A stored item of a stream; number 0 is a published value."""

    job_id: str
    name: str
    number: int
    value: Any


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The kept result of a job."""

    status: str
    value: Any
    has_error: bool
    attempts: int


@dataclass(frozen=True, slots=True)
class Admission:
    """The start of an attempt by the log of its limit, at an instant of the server's clock."""

    job_id: str
    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class Effect:
    """A row that an attempt wrote in the transaction of a step, or of its completion."""

    job_id: str
    step: str
    attempt: int
    worker_id: str


@dataclass(slots=True)
class Evidence:
    """Everything that the checker reads.

    Attributes:
        results: The kept results, by job.
        admissions: Everything that was ever written to the log of the rate limit.
        effects: The effects of durable jobs.
        items: The items of all streams and the published values.
        calls: The calls that belong to no single job.
        stopped_schedules: Schedules that enqueued no job after the faults.
        deaths: When processes ended, by process id.
        quiet: When the last fault ended.
        unexpected_exits: Workers that stopped by themselves.
        unhandled: Unhandled errors of the driver's process.
        timed: Whether lateness is judged.
        deleted: The rows that the vacuum deleted; they are among the rows.
        inserted_again: Jobs whose id was used again after the vacuum had deleted their row. A step of the
            clock by years ends every retention, and fire times of a row that is gone are enqueued again when
            the clock is set back over them later.
        unread: The changes that were not read from the publication.
        changes: The changes that were read from it.
    """

    requests: Mapping[str, Request]
    rows: Mapping[str, Row]
    results: Mapping[str, KeptResult]
    admissions: Sequence[Admission]
    ledgers: Ledgers
    faults: Sequence[Fault]
    deaths: Mapping[int, float]
    lease: float
    quiet: float
    unexpected_exits: Sequence[str] = ()
    unhandled: Sequence[str] = ()
    timed: bool = True
    stopped_schedules: Sequence[str] = ()
    effects: Sequence[Effect] = ()
    items: Sequence[StreamItem] = ()
    calls: WorkflowCalls = field(default_factory=WorkflowCalls)
    deleted: int = 0
    inserted_again: frozenset[str] = frozenset()
    unread: Sequence[str] = ()
    changes: int = 0

    def is_replaced(self, job_id: str) -> bool:
        """Return whether the job may have a new definition, which restarts its attempts."""
        row = self.rows.get(job_id)
        if row is not None and row.job_name in (UNIQUE, DEBOUNCED):
            return True
        request = self.requests.get(job_id)
        return request is not None and request.kind == REPLACED

    def may_have_run_again(self, job_id: str) -> bool:
        """Return whether a call of retry_job() may have let the job run again after it completed.

        The call may be repeated after its answer was lost. And a job for tomorrow runs at once, before it is
        cancelled and retried, if the clock of the server is set forward by years.
        """
        request = self.requests.get(job_id)
        return request is not None and request.retries > 0

    def is_child(self, job_id: str) -> bool:
        """Return whether a step of another job inserted the job."""
        parent, _, step = job_id.partition(":")
        is_step = step in (*CHILDREN, DRAWN) or step in CHILDREN_OF_FAMILIES
        return is_step and parent in self.requests

    def is_of_family(self, job_id: str) -> bool:
        """Return whether a step of a family or of a harvest inserted the job."""
        return job_id.partition(":")[2] in CHILDREN_OF_FAMILIES

    def was_blocked(self, job_id: str) -> bool:
        """Return whether the job may have waited for others when it was due, or for a poll."""
        if self.rows[job_id].job_name in BLOCKED | {SHARED, *SEQUENCES}:
            return True
        request = self.requests.get(job_id)
        return request is not None and (bool(request.after) or request.polled)


def attempt_of(evidence: Evidence, row: Row) -> Attempt | None:
    """Return the attempt that the row names: the last one, since a new definition counts attempts from 1."""
    attempts = (
        one
        for one in evidence.ledgers.attempts.get(row.job_id, ())
        if (one.attempt, one.worker_id) == (row.attempt, row.worker_id)
    )
    return max(attempts, key=lambda one: one.started, default=None)


def committed_completions(evidence: Evidence) -> set[tuple[str, int, str | None]]:
    """Return job, attempt and worker of the completions that committed with an effect."""
    return {
        (each.job_id, each.attempt, each.worker_id) for each in evidence.effects if each.step == COMPLETED
    }


@dataclass(slots=True)
class Verdict:
    """The result of the checks: problems by the guarantee that they break, and figures."""

    problems: dict[str, list[str]] = field(default_factory=dict)
    figures: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    recoveries: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every guarantee was kept."""
        return not any(self.problems.values())
