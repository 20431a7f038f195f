"""Apply the pauses of tasks to this worker, and end those whose time has come.

Every node reads the pauses when one changes: a notification or the fallback poll wakes it. The worker then
claims fewer names, or more; the claim statement stays the same. While a pause suspends expiry, the worker
also expires no jobs of these names, until `Renewal` has given them their misfire grace time again. It adds
the names of the task that it knows to the pause, because it may stop before the pause ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar, Final

from pg_scheduler.admission.pauses import PauseRepository, Renewal
from pg_scheduler.events import TaskResumed
from pg_scheduler.jobs.pause import Pause
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
        self._renewals: dict[tuple[str, datetime | None], Renewal] = {}
        self._read_pauses: Sequence[Pause] = ()

    async def prepare(self) -> None:
        """Let the services that act on pauses read them, whenever they may have missed a change."""
        self._node.known_pauses.begin(self._read)

    async def drain(self) -> None:
        """Stop that."""
        self._node.known_pauses.end()

    async def run_once(self) -> float:
        """Read the pauses once; return the seconds until the next read, at the latest when a pause ends."""
        await self._node.known_pauses.read(self._read)
        pauses = self._read_pauses
        if any(pause.is_over for pause in pauses):
            for name in await self._pauses.end_pauses():
                self._events.publish(TaskResumed(name, actor=None))
        has_all_names = await self._add_names([pause for pause in pauses if pause.suspends_expiry])
        if await self._renew([pause for pause in pauses if pause.has_ended and pause.suspends_expiry]):
            return Renewal.gap_s
        is_notified = self._node.signals.notifications_up.is_set and has_all_names
        poll = POLL_INTERVAL_S if is_notified else FAST_POLL_INTERVAL_S
        ends = [pause.ends_in for pause in pauses if pause.ends_in is not None and not pause.has_ended]
        return min(poll, *ends) if ends else poll

    async def _read(self) -> None:
        """Read the pauses, and apply them to what this worker claims and expires."""
        pauses = await self._pauses.paused()
        self._node.routing.unexpiring_names = frozenset(
            name for pause in pauses if pause.suspends_expiry for name in self._names_of(pause)
        )
        if self._node.routing.pause({pause.name for pause in pauses if not pause.is_over}):
            self._node.signals.due()
        self._read_pauses = pauses

    async def _add_names(self, pauses: Sequence[Pause]) -> bool:
        """Add to these pauses the names that only workers know; return False if another pass has to."""
        has_all_names = True
        for pause in pauses:
            unwritten_names = self._names_of(pause) - {pause.name, *pause.names}
            if unwritten_names and not await self._pauses.add_names(pause.name, unwritten_names):
                has_all_names = False
        return has_all_names

    async def _renew(self, ended_pauses: Sequence[Pause]) -> bool:
        """Renew one batch of the jobs of each of these pauses; return False if there are no pauses."""
        renewals = {
            (pause.name, pause.paused_until): Renewal(self._pauses, pause, self._names_of(pause))
            for pause in ended_pauses
        }
        # A renewal of the last pass continues at its position.
        self._renewals = {key: self._renewals.get(key, renewal) for key, renewal in renewals.items()}
        for renewal in self._renewals.values():
            if await renewal.run_once() and renewal.is_ended_here:
                self._events.publish(TaskResumed(renewal.pause.name, actor=None))
        return bool(ended_pauses)

    def _names_of(self, pause: Pause) -> set[str]:
        """Return the names of the task of a pause that this process or other workers know."""
        task = self._node.tasks.resolve(pause.name)
        registered_names = set() if task is None else self._node.tasks.names_of(task)
        return pause.all_names | registered_names
