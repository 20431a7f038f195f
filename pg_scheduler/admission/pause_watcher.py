"""Apply the pauses of tasks to this worker, and end those whose time has come.

Every node reads the pauses when one changes: a notification or the fallback poll wakes it. The worker then
claims fewer names, or more; the claim statement stays the same.
"""

from __future__ import annotations

from typing import ClassVar, Final

from pg_scheduler.admission.pauses import PauseRepository
from pg_scheduler.events import TaskResumed
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import Service

POLL_INTERVAL_S: Final = 120.0
"""Seconds between two reads while notifications arrive: rows written by hand send none."""

FAST_POLL_INTERVAL_S: Final = 0.5
"""Seconds between two reads while none arrive: a pause takes effect within a second."""


class PauseWatcher(Service):
    """Read which tasks are paused."""

    name: ClassVar[str] = "pause_watcher"

    def __init__(self, node: Node, pauses: PauseRepository) -> None:
        super().__init__(node.events)
        self._pauses = pauses
        self._node = node

    async def run_once(self) -> float:
        """Read the pauses once; return the seconds until the next read, at the latest when a pause ends."""
        pauses = await self._pauses.paused()
        if self._node.routing.pause({pause.name for pause in pauses if not pause.is_over}):
            self._node.signals.due()
        if any(pause.is_over for pause in pauses):
            for name in await self._pauses.end_pauses():
                self._events.publish(TaskResumed(name, actor=None))
        poll = POLL_INTERVAL_S if self._node.signals.notifications_up.is_set else FAST_POLL_INTERVAL_S
        ends = [pause.ends_in for pause in pauses if pause.ends_in is not None and not pause.is_over]
        return min(poll, *ends) if ends else poll
