"""Judge the health of a Scheduler by facts about its parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Probe: TypeAlias = Literal["live", "ready", "started"]
"""The question that a probe asks."""

State: TypeAlias = Literal["stopped", "starting", "running", "draining"]
"""Where a Scheduler is between its start and the end of its shutdown."""

MISSED_POLLS: Final = 3
"""The claimer hangs if it makes no pass for this many of its longest sleeps, plus the allowance."""

ALLOWANCE_S: Final = 30.0
"""The allowance in seconds. If ``STEADY_INTERVALS`` of the heartbeats last longer, they are the allowance."""

STEADY_INTERVALS: Final = 1.5
"""While event loop and database work, a heartbeat follows another one within this many intervals."""

LATEST_DUE_S: Final = 100 * 365.25 * 86_400
"""Seconds until the latest due time that is shown. A job that waits for a signal without a timeout is due in
the year 9999."""

_STATES: Final[dict[State, str]] = {
    "stopped": "not running",
    "starting": "starting",
    "running": "running",
    "draining": "shutting down",
}


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check of a Scheduler.

    Attributes:
        name: Its name, for ``?exclude=``.
        is_ok: Whether it passed.
        text: The result, in words.
        probes: The probes that fail with it; none if it is only for information.
    """

    name: str
    is_ok: bool
    text: str
    probes: tuple[Probe, ...] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a Scheduler at one instant.

    Attributes:
        state: Whether it is stopped, starting, running or draining.
        slots: Jobs that it runs at the same time; 0 while it is stopped.
        slots_busy: Slots that are taken.
        checks: The checks.
        next_due_s: Seconds until the next job is due that it can claim, as its last claim found; None if no
            such job is due within a century, or if no slot is free and so none is claimed.
    """

    state: State
    slots: int
    slots_busy: int
    checks: tuple[HealthCheck, ...]
    next_due_s: float | None = None

    @property
    def live(self) -> bool:
        """Whether the process works, so that a restart would repair nothing.

        An outage of the database does not count.
        """
        return self.passes("live")

    @property
    def ready(self) -> bool:
        """Whether it does its work: it claims jobs, and the database is available."""
        return self.passes("ready")

    @property
    def started(self) -> bool:
        """Whether ``start()`` has completed; a worker has made its first claim then."""
        return self.passes("started")

    def passes(self, probe: Probe, *, exclude: Collection[str] = ()) -> bool:
        """Return whether every check of a probe passed.

        Args:
            probe: ``"live"``, ``"ready"`` or ``"started"``.
            exclude: Names of checks that do not count.
        """
        return all(
            check.is_ok for check in self.checks if probe in check.probes and check.name not in exclude
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """Facts about the parts of a Scheduler that has started. Instants are seconds of the monotonic clock.

    Attributes:
        slots: Jobs that run at the same time.
        slots_busy: Slots that are taken.
        runs_jobs: Whether its role runs jobs.
        is_claiming: Whether the claimer makes passes.
        must_drain: Whether it is requested to claim no further jobs.
        claimed_at: When the last pass of the claimer ended, also by an outage.
        next_due_at: When the next job is due, as the last claim found; None if none is pending.
        longest_sleep_s: The maximum number of seconds that the claimer sleeps.
        heartbeat_at: When the last heartbeat succeeded; minus infinity at first.
        heartbeats_since: Since when heartbeats have succeeded in time, one after another.
        heartbeat_interval_s: Seconds between two of them.
        lease_renewed_at: When the lease was last renewed, also by the lease keeper; minus infinity at first.
        lease_trusted_until: When the lease may expire.
        lease_s: The duration of the lease in seconds.
        blocked_s: Seconds for which the event loop has been blocked; None if it is not.
        blocking_job: Name and id of the job that blocks it, without an id for a chunk of jobs; None if it is
            none.
        max_loop_block_s: Seconds for which it may be blocked.
        listener: Why notifications do not arrive; None if they do.
        has_liveness_lock: Whether the lease keeper holds the liveness lock.
    """

    slots: int
    slots_busy: int
    runs_jobs: bool
    is_claiming: bool
    must_drain: bool
    claimed_at: float
    next_due_at: float | None
    longest_sleep_s: float
    heartbeat_at: float
    heartbeats_since: float
    heartbeat_interval_s: float
    lease_renewed_at: float
    lease_trusted_until: float
    lease_s: float
    blocked_s: float | None
    blocking_job: tuple[str, str | None] | None
    max_loop_block_s: float
    listener: str | None
    has_liveness_lock: bool


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """The facts from which the health is derived.

    Attributes:
        now: The instant in seconds of the monotonic clock.
        state: Where the Scheduler is.
        fault: The class of the error that stopped it; None if none did.
        worker: Its parts; None while they do not exist.
    """

    now: float
    state: State
    fault: str | None
    worker: WorkerFacts | None


def judge(facts: HealthFacts) -> Health:
    """Return the health that follows from the facts."""
    worker = facts.worker
    state_checks = (_scheduler_check(facts), _started_check(facts))
    if worker is None:
        return Health(facts.state, 0, 0, state_checks)
    checks = (*state_checks, *_checks_of_parts(facts, worker))
    next_due_s = None
    # Without a free slot, no job is claimed when it becomes due, so its due time is not shown.
    if worker.next_due_at is not None and worker.slots_busy < worker.slots:
        due_in_s = max(worker.next_due_at - facts.now, 0.0)
        next_due_s = due_in_s if due_in_s <= LATEST_DUE_S else None
    return Health(facts.state, worker.slots, worker.slots_busy, checks, next_due_s)


def _scheduler_check(facts: HealthFacts) -> HealthCheck:
    """Check that no error has stopped the Scheduler."""
    text = _STATES[facts.state]
    if facts.fault is not None:
        text = f"stopped by {facts.fault}; the log has its traceback"
    return HealthCheck("scheduler", facts.fault is None, text, ("live",))


def _started_check(facts: HealthFacts) -> HealthCheck:
    """Check that ``start()`` has completed."""
    has_started = facts.state in {"running", "draining"}
    text = "start() has completed" if has_started else "start() has not completed"
    return HealthCheck("started", has_started, text, ("started", "ready"))


def _checks_of_parts(facts: HealthFacts, worker: WorkerFacts) -> Iterator[HealthCheck]:
    """Yield the checks of the parts of a Scheduler that has started."""
    now = facts.now
    yield _event_loop_check(worker)
    if worker.runs_jobs and facts.state == "running":
        yield _claims_check(now, worker)
    yield _claiming_check(facts, worker)
    trusted_s = worker.lease_trusted_until - now
    lease = "not trusted: other workers may reclaim the jobs"
    if trusted_s > 0:
        lease = f"trusted for {trusted_s:.1f} s"
    yield HealthCheck("lease", trusted_s > 0, lease, ("ready",))
    yield _database_check(now, worker)
    drain_reason = None
    if facts.state == "draining":
        drain_reason = "shutting down"
    elif worker.must_drain:
        drain_reason = "by request"
    yield HealthCheck("draining", drain_reason is None, drain_reason or "no", ("ready",))
    # The last two are for information: without notifications and the lock, jobs start later, but run.
    yield HealthCheck("listener", worker.listener is None, worker.listener or "notifications arrive")
    lock = "held" if worker.has_liveness_lock else "not held: jobs of a killed process wait for its lease"
    yield HealthCheck("liveness_lock", worker.has_liveness_lock, lock)


def _event_loop_check(worker: WorkerFacts) -> HealthCheck:
    """Check that the event loop is not blocked for longer than it may be."""
    blocked_s = worker.blocked_s
    is_ok = blocked_s is None or blocked_s <= worker.max_loop_block_s
    return HealthCheck("event_loop", is_ok, _blockage_text(worker) or "responds", ("live",))


def _blockage_text(worker: WorkerFacts) -> str | None:
    """Return for how long and by what the event loop is blocked; None if it is not."""
    if worker.blocked_s is None:
        return None
    by = ", not by a job"
    if worker.blocking_job is not None:
        job_name, job_id = worker.blocking_job
        by = f" by a chunk of jobs {job_name}" if job_id is None else f" by job {job_name} (id {job_id})"
    return f"blocked for {worker.blocked_s:.1f} s{by}"


def _claims_check(now: float, worker: WorkerFacts) -> HealthCheck:
    """Check that the claimer makes passes.

    Only the time in which heartbeats succeed counts, because heartbeats use the same event loop and the same
    database. So an outage does not count, nor does the time of a blocked or suspended process, nor the moment
    after either.
    """
    steady_s = STEADY_INTERVALS * worker.heartbeat_interval_s
    limit_s = MISSED_POLLS * worker.longest_sleep_s + max(ALLOWANCE_S, steady_s)
    idle_s = now - max(worker.claimed_at, worker.heartbeats_since)
    # Both the event loop and the database work now if the last heartbeat is not older than usual.
    is_heartbeat_recent = now - worker.heartbeat_at <= steady_s
    hangs = is_heartbeat_recent and idle_s > limit_s
    text = f"no claim pass for {idle_s:.0f} s, although the database is available" if hangs else "made"
    return HealthCheck("claims", not hangs, text, ("live",))


def _claiming_check(facts: HealthFacts, worker: WorkerFacts) -> HealthCheck:
    """Check that jobs are claimed now. It also fails where that is intended, as while the worker drains."""
    if not worker.runs_jobs:
        return HealthCheck("claiming", True, "this role runs no jobs", ("ready",))
    blocked = _blockage_text(worker)
    may_claim = facts.state == "running" and not worker.must_drain
    is_ok = may_claim and worker.is_claiming and blocked is None
    text = f"{worker.slots_busy} of {worker.slots} slots busy"
    if not is_ok:
        text = "no jobs are claimed" if blocked is None else f"no jobs are claimed: event loop {blocked}"
    return HealthCheck("claiming", is_ok, text, ("ready",))


def _database_check(now: float, worker: WorkerFacts) -> HealthCheck:
    """Check that the database has responded within the duration of a lease."""
    heartbeat_age_s = now - max(worker.heartbeat_at, worker.lease_renewed_at)
    is_ok = heartbeat_age_s <= worker.lease_s
    text = "no heartbeat succeeded"
    if heartbeat_age_s != float("inf"):
        text = f"last heartbeat {heartbeat_age_s:.1f} s ago"
    return HealthCheck("database", is_ok, text, ("ready",))
