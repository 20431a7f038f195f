"""The one table of which signal wakes which part.

A wake-up that comes before the sleep ends that sleep at once, so no signal is lost between two passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pg_scheduler.enqueue.outbox import Outbox
from pg_scheduler.worker.event_relay import EventRelay
from pg_scheduler.worker.lease.heartbeat import Heartbeat
from pg_scheduler.worker.maintenance.deadline_scanner import DeadlineScanner
from pg_scheduler.worker.maintenance.expirer import Expirer
from pg_scheduler.worker.maintenance.pauses import PauseWatcher
from pg_scheduler.worker.maintenance.planner import Planner
from pg_scheduler.worker.maintenance.rescuer import Rescuer
from pg_scheduler.worker.pipeline.claimer import Claimer
from pg_scheduler.worker.pipeline.completer import Completer
from pg_scheduler.worker.pipeline.head import HeadScanner
from pg_scheduler.worker.pipeline.unblocker import Unblocker
from pg_scheduler.worker.signals import Signal, Signals
from pg_scheduler.worker.supervisor import Supervisor

Wiring = tuple[tuple[Signal, tuple[Callable[..., None], ...]], ...]


@dataclass(frozen=True, slots=True)
class Receivers:
    """The parts that signals wake."""

    claimer: Claimer
    completer: Completer
    expirer: Expirer
    head: HeadScanner
    heartbeat: Heartbeat
    outbox: Outbox
    pauses: PauseWatcher
    planner: Planner
    relay: EventRelay
    rescuer: Rescuer
    scanner: DeadlineScanner
    supervisor: Supervisor
    unblocker: Unblocker


def wiring(signals: Signals, to: Receivers) -> Wiring:
    """Return every signal with the methods that it calls, in their order."""
    return (
        (signals.due, (to.claimer.announce, to.head.announce)),
        (signals.head_skipped, (to.head.begin,)),
        (signals.slot_free, (to.claimer.wake,)),
        (signals.crashed_job_ended, (to.claimer.wake,)),
        (signals.jobs_claimed, (to.heartbeat.poll_for_cancellations,)),
        (signals.attempt_lost, (to.claimer.reconcile_claims,)),
        (signals.results_waiting, (to.completer.wake,)),
        (signals.jobs_released, (to.outbox.add_due,)),
        (signals.jobs_planned, (to.outbox.add_due,)),
        (signals.switches_written, (to.outbox.add_schedules,)),
        (signals.schedules_changed, (to.planner.wake,)),
        (signals.tasks_changed, (to.pauses.wake,)),
        (signals.heartbeat_requested, (to.heartbeat.wake,)),
        (signals.lease_suspect, (to.heartbeat.suspect,)),
        (signals.worker_silent, (to.rescuer.scan_locks,)),
        (signals.worker_gone, (to.scanner.wake,)),
        (signals.lease_expired, (to.rescuer.wake,)),
        (signals.limits_blocked, (to.unblocker.request_scan,)),
        (signals.grace_expired, (to.expirer.wake,)),
        (
            signals.notifications_up,
            (to.supervisor.retry, to.claimer.rescan, to.heartbeat.wake, to.planner.wake, to.pauses.wake),
        ),
        (signals.clock_stepped, (to.planner.wake, to.pauses.wake)),
        (signals.subscriptions_changed, (to.relay.follow,)),
        (signals.worker_registered, (to.relay.announce_again,)),
        (signals.database_up, (to.supervisor.retry,)),
    )


def connect(signals: Signals, to: Receivers) -> None:
    """Connect every signal to its receivers in the table."""
    for signal, receivers in wiring(signals, to):
        signal.connect(*receivers)


def markdown(signals: Signals, to: Receivers) -> str:
    """Return the wiring as a Markdown table, for the documentation."""
    names = {signal: name for name, signal in signals}
    lines = ["| Signal | Sent when | Wakes |", "|---|---|---|"]
    for signal, receivers in wiring(signals, to):
        woken = ", ".join(f"`{_name(receiver)}`" for receiver in receivers)
        lines.append(f"| `{names[signal]}` | {signal.meaning} | {woken} |")
    return "\n".join(lines)


def _name(receiver: Callable[..., None]) -> str:
    method = cast("Any", receiver)
    return f"{type(method.__self__).__name__}.{method.__name__}"
