"""Collect the facts about the health of a worker, and the values of its gauges.

Both are in memory, so this makes no query, and any thread may call it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pg_scheduler.base.health import HealthFacts, State, WorkerFacts
from pg_scheduler.database.pool import Connections
from pg_scheduler.scheduler.lifecycle import Lifecycle
from pg_scheduler.worker.worker_rows import DRAIN

if TYPE_CHECKING:
    from pg_scheduler.scheduler.runtime import Runtime


def facts_about(life: Lifecycle) -> HealthFacts:
    """Return the facts at this instant from which the health of a Scheduler is judged."""
    runtime, fault = life.runtime, life.fault
    return HealthFacts(
        now=time.monotonic(),
        state=_state(life),
        fault=None if fault is None else type(fault).__name__,
        worker=None if runtime is None else _worker_facts(runtime),
    )


def _state(life: Lifecycle) -> State:
    """Return the state of a Scheduler as its health reports it."""
    if life.is_shutting_down:
        return "draining"
    if life.is_starting:
        return "starting"
    return "running" if life.is_running else "stopped"


def _worker_facts(runtime: Runtime) -> WorkerFacts:
    """Return the facts about a running worker. Times are those of the monotonic clock of this process."""
    config, lease = runtime.node.config, runtime.node.lease
    heartbeat, claimer, listener = runtime.heartbeat, runtime.claimer, runtime.listener
    # If the event loop is blocked now: since when, and by which job if that is known.
    blockage = runtime.watchdog.find_blockage()
    # A role that runs no jobs has no slots, although its executor has free ones.
    slots = config.max_concurrent_jobs if config.runs_jobs else 0
    slots_busy = slots - runtime.executor.free if config.runs_jobs else 0
    # Why notifications do not arrive: there is a reason that lasts, or the connection is not open yet.
    listener_problem = None if listener.is_receiving else listener.refusal or "connecting"
    return WorkerFacts(
        slots=slots,
        slots_busy=slots_busy,
        runs_jobs=config.runs_jobs,
        is_claiming=claimer.is_running,
        must_drain=runtime.reporter.wanted == DRAIN,
        claimed_at=claimer.ended_at,
        next_due_at=claimer.next_due_at,
        longest_sleep_s=max(config.polling.max_interval, config.polling.semaphore_full_interval),
        heartbeat_at=heartbeat.renewed_at,
        heartbeats_since=heartbeat.steady_since,
        heartbeat_interval_s=lease.renewal_interval,
        lease_renewed_at=lease.renewed_at,
        lease_trusted_until=lease.trusted_until,
        lease_s=lease.seconds,
        blocked_s=blockage.seconds if blockage else None,
        blocking_job=(blockage.job_name, blockage.job_id) if blockage and blockage.job_name else None,
        max_loop_block_s=config.max_loop_block,
        listener=listener_problem,
        has_liveness_lock=lease.liveness_key is not None,
    )


@dataclass(frozen=True, slots=True)
class Gauges:
    """The values of a Scheduler at one instant.

    While it is stopped, all values are 0 or False, except those of the pool.

    Attributes:
        slots: Jobs that it runs at the same time.
        slots_busy: Slots that are in use.
        results_waiting: Outcomes of attempts that are not yet written.
        lease_remaining_s: Seconds until other workers may reclaim its jobs.
        loop_lag_s: Seconds for which the event loop kept a callback waiting at the last heartbeat.
        clock_offset_s: Seconds by which the clock of the host is ahead of that of the server.
        is_listening: Whether notifications arrive.
        is_accepting: Whether it claims jobs.
        pool_used: Connections of the pool that are in use.
        pool_idle: Connections of the pool that are idle.
        pool_max: Connections that the pool may have.
    """

    slots: int
    slots_busy: int
    results_waiting: int
    lease_remaining_s: float
    loop_lag_s: float
    clock_offset_s: float
    is_listening: bool
    is_accepting: bool
    pool_used: int
    pool_idle: int
    pool_max: int


def gauges_of(life: Lifecycle, connections: Connections) -> Gauges:
    """Return the values of a Scheduler at this instant, for metrics."""
    pool_size, pool_idle, pool_max = connections.pool_use()
    pool_used = pool_size - pool_idle
    runtime = life.runtime
    if runtime is None:
        return Gauges(
            slots=0,
            slots_busy=0,
            results_waiting=0,
            lease_remaining_s=0,
            loop_lag_s=0,
            clock_offset_s=0,
            is_listening=False,
            is_accepting=False,
            pool_used=pool_used,
            pool_idle=pool_idle,
            pool_max=pool_max,
        )
    node = runtime.node
    # A role that runs no jobs has no slots, although its executor has free ones.
    slots = node.config.max_concurrent_jobs if node.config.runs_jobs else 0
    is_accepting = life.is_running and runtime.claimer.is_running and runtime.reporter.state == "running"
    return Gauges(
        slots=slots,
        slots_busy=slots - min(runtime.executor.free, slots),
        results_waiting=len(node.in_flight.unwritten()),
        lease_remaining_s=max(node.lease.trusted_until - time.monotonic(), 0.0),
        loop_lag_s=runtime.reporter.lag_s,
        clock_offset_s=node.clock.offset_s or 0.0,
        is_listening=runtime.listener.is_receiving,
        is_accepting=is_accepting,
        pool_used=pool_used,
        pool_idle=pool_idle,
        pool_max=pool_max,
    )
