"""The signals by which the parts of a worker wake one another.

A part sends a signal without a reference to its receivers. ``wiring.py`` connects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final


class Signal:
    """Calls the connected methods when it is sent, in the thread of the event loop."""

    __slots__ = ("_receivers", "meaning")

    def __init__(self, meaning: str) -> None:
        self.meaning: Final = meaning
        self._receivers: tuple[Callable[..., None], ...] = ()

    def connect(self, *receivers: Callable[..., None]) -> None:
        """Add methods to call when the signal is sent."""
        self._receivers += receivers

    def __call__(self) -> None:
        """Send the signal."""
        for receiver in self._receivers:
            receiver()


class DueSignal(Signal):
    """A signal about jobs; its receivers get the time when the first one is due, None if that is unknown."""

    __slots__ = ()

    def __call__(self, due: datetime | None = None) -> None:
        """Send the signal."""
        for receiver in self._receivers:
            receiver(due)


class Condition(Signal):
    """A signal that remains set until it is cleared."""

    __slots__ = ("is_set",)

    def __init__(self, meaning: str) -> None:
        super().__init__(meaning)
        self.is_set = False

    def __call__(self) -> None:
        """Send the signal and set the condition."""
        self.is_set = True
        super().__call__()

    def clear(self) -> None:
        """Clear the condition."""
        self.is_set = False


class Signals:
    """All signals of one worker."""

    def __init__(self) -> None:
        self.due = DueSignal("a job is due or will be soon, or was made pending again")
        self.head_skipped = Signal("claims do not begin at the start of the claim index any more")
        self.slot_free = Signal("a slot became free when none was free")
        self.crashed_job_ended = Signal("a crashed job has ended: the next may be claimed")
        self.attempt_lost = Signal("an attempt ended, and its row may still be claimed by this worker")
        self.results_waiting = Signal("outcomes are buffered that no claim will write")
        self.jobs_released = DueSignal("this worker released jobs that other workers can claim")
        self.switches_written = Signal("the planner wrote that this process enabled or disabled a schedule")
        self.schedules_changed = Signal(
            "a schedule was enabled or disabled, here or elsewhere, or a function was registered"
        )
        self.tasks_changed = Signal("a task was paused or resumed, here or elsewhere")
        self.heartbeat_requested = Signal(
            "a job of this worker was changed, or may have been without a notification, or another node "
            "suspects this worker"
        )
        self.lease_suspect = Signal(
            "a job is due and could not be claimed: this worker's lease may have expired"
        )
        self.worker_silent = Signal("another worker's liveness lock is free")
        self.worker_gone = Signal("a dead worker was deleted; jobs may wait for the end of its attempts")
        self.end_overlooked = Signal(
            "a job ended without its consequences, because jobs that wait for it were being added, or locked"
        )
        self.lease_expired = Signal("the lease of a worker or of a running job expired")
        self.limits_blocked = Signal("jobs wait for a limit, which may be gone from the code")
        self.tenants_waiting = Signal("jobs wait in a share or a sequence, which may be gone from the code")
        self.shared_claimed = Signal("this worker claimed jobs of tasks with a share: others can follow")
        self.grace_expired = Signal("the misfire grace time of a pending job elapsed")
        self.notifications_up = Condition("the listener receives notifications; some may have been missed")
        self.notifications_lost = Signal(
            "the listener receives no notifications: services that rely on them read more often from now on"
        )
        self.clock_stepped = Signal("the server's clock was set forward or back")
        self.clock_set_back = Signal("the server's clock was set back")
        self.schedule_was_ahead = Signal(
            "a schedule had fired by a clock of the server that was set back since"
        )
        self.subscriptions_changed = Signal("other workers want other classes of events")
        self.worker_registered = Signal("the row of this worker was missing and was written again")
        self.look_requested = Signal("a person looks at a job that this worker runs")
        self.connection_lost = Signal(
            "the database did not answer a service, or the listener lost its connection: what this worker "
            "has read may be out of date"
        )
        self.database_up = Signal(
            "the lease keeper has connected, or a heartbeat has succeeded after others failed"
        )

    def __iter__(self) -> Iterator[tuple[str, Signal]]:
        """Iterate over pairs of name and signal."""
        return iter(vars(self).items())
