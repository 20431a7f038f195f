"""Collect the values of a worker that go up and down, from memory and in any thread."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pg_scheduler.store.connections.pool import Connections
from pg_scheduler.worker.lifecycle import Lifecycle


@dataclass(frozen=True, slots=True)
class Gauges:
    """The values of a Scheduler at one instant; all 0 while it is stopped, but those of the pool.

    Attributes:
        slots: Jobs that it runs at the same time.
        slots_busy: Slots that are taken.
        results_waiting: Outcomes of attempts that are not yet written.
        lease_remaining_s: Seconds until other workers may reclaim its jobs.
        loop_lag_s: Seconds for which the event loop kept a callback waiting at the last heartbeat.
        is_listening: Whether notifications arrive.
        is_accepting: Whether it claims jobs.
        pool_used: Connections of the pool that are in use.
        pool_idle: Those that are idle.
        pool_max: Connections that the pool may have.
    """

    slots: int
    slots_busy: int
    results_waiting: int
    lease_remaining_s: float
    loop_lag_s: float
    is_listening: bool
    is_accepting: bool
    pool_used: int
    pool_idle: int
    pool_max: int


def gauges_of(life: Lifecycle, connections: Connections) -> Gauges:
    """Return the values of a Scheduler."""
    size, idle, most = connections.pool_use()
    pool = (size - idle, idle, most)
    runtime = life.runtime
    if runtime is None:
        return Gauges(0, 0, 0, 0, 0, False, False, *pool)
    node = runtime.node
    slots = node.config.max_concurrent_jobs if node.config.runs_jobs else 0
    is_accepting = life.is_running and runtime.claimer.is_running and runtime.reporter.state == "running"
    return Gauges(
        slots,
        slots - min(runtime.executor.free, slots),
        len(node.in_flight.unwritten()),
        max(node.lease.trusted_until - time.monotonic(), 0.0),
        runtime.reporter.lag_s,
        runtime.listener.is_receiving,
        is_accepting,
        *pool,
    )
