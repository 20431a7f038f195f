"""The table that states which parts each signal wakes.

If a part is woken during a pass, its next sleep ends at once. So no signal is lost between two passes.
"""

from __future__ import annotations

from collections.abc import Callable

from pg_scheduler.scheduler.runtime import Runtime
from pg_scheduler.worker.signals import Signal

Wiring = tuple[tuple[Signal, tuple[Callable[..., None], ...]], ...]


def wiring(to: Runtime) -> Wiring:
    """Return the table: every signal of a worker, with the methods of its parts that the signal calls.

    The methods are in the order of the calls. Most of them wake a service, so that its next pass is at once.
    """
    signals, outbox, known_pauses = to.node.signals, to.node.outbox, to.node.known_pauses
    return (
        (signals.due, (to.claimer.announce, to.head.announce, to.feeder.announce, to.sequencer.announce)),
        (signals.head_skipped, (to.head.begin,)),
        (signals.slot_free, (to.claimer.wake,)),
        (signals.crashed_job_ended, (to.claimer.wake,)),
        (signals.attempt_lost, (to.claimer.reconcile_claims,)),
        (signals.results_waiting, (to.completer.wake,)),
        (signals.jobs_released, (outbox.add_due,)),
        (signals.switches_written, (outbox.add_schedules,)),
        (signals.schedules_changed, (to.planner.wake,)),
        (signals.tasks_changed, (to.pauses.wake,)),
        (signals.heartbeat_requested, (to.heartbeat.wake,)),
        (signals.lease_suspect, (to.heartbeat.suspect,)),
        (signals.worker_silent, (to.rescuer.scan_locks,)),
        (signals.worker_gone, (to.scanner.wake, to.error_counter.begin)),
        (signals.end_overlooked, (to.scanner.wake,)),
        (signals.lease_expired, (to.rescuer.scan_jobs,)),
        (signals.limits_blocked, (to.unblocker.request_scan,)),
        (signals.tenants_waiting, (to.feeder.request_scan, to.sequencer.wake)),
        (signals.shared_claimed, (to.feeder.wake,)),
        (signals.grace_expired, (to.expirer.wake,)),
        (
            signals.notifications_up,
            (
                known_pauses.mark_stale,
                to.supervisor.retry,
                to.claimer.rescan,
                to.heartbeat.wake,
                to.planner.wake,
                to.pauses.wake,
            ),
        ),
        (signals.notifications_lost, (to.heartbeat.wake, to.planner.wake, to.pauses.wake)),
        (
            signals.clock_stepped,
            (known_pauses.mark_stale, to.planner.check_fire_times, to.pauses.wake),
        ),
        (signals.clock_set_back, (to.due_times.correct,)),
        (signals.schedule_was_ahead, (to.due_times.correct,)),
        (signals.subscriptions_changed, (to.relay.follow,)),
        (signals.worker_registered, (to.relay.announce_again, to.planner.declare_again)),
        (signals.look_requested, (to.look_writer.wake,)),
        (signals.connection_lost, (known_pauses.mark_stale, to.pauses.wake)),
        (signals.database_up, (known_pauses.mark_stale, to.supervisor.retry, to.pauses.wake)),
    )


def connect(to: Runtime) -> None:
    """Connect every signal to its receivers in the table."""
    for signal, receivers in wiring(to):
        signal.connect(*receivers)
