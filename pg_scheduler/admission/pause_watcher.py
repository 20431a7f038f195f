"""Apply the pauses of tasks to this worker, and end those whose time has come.

Every node reads the pauses when one changes: a notification or the fallback poll wakes it. The worker then
claims fewer names, or more; the claim statement stays the same. While a pause suspends expiry, the worker
also expires no jobs of these names, until `Renewal` has given them their misfire grace time again. It adds
the names of the task that it knows to the pause, because it may stop before the pause ends, and because
other workers may have the task under an earlier name.

A pause has two sets of names. The exact ones, which are the name, the aliases and the default name of the
function, stop jobs on every worker. All of them, the bare name of the function too, keep jobs from expiring:
a worker that has the task leaves out all of its names, so jobs wait under each of them, and none may be lost.
To stop the bare name everywhere would stop functions of other services that have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import ClassVar, Final

from pg_scheduler.admission.pauses import PauseRepository, Renewal
from pg_scheduler.database.refused_rows import RefusedRows
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
        self.is_renewing = False
        """Whether jobs of a pause that has ended may be left, which the next pass gives their time again."""
        self._refused_names = RefusedRows("names of the pause of task {!r} not completed", are_jobs=False)

    async def prepare(self) -> None:
        """Let the services that act on pauses read them whenever this worker may have missed a change."""
        self._node.known_pauses.begin(self._read)

    async def drain(self) -> None:
        """Let the services that act on pauses read them no more."""
        self._node.known_pauses.end()

    async def run_once(self) -> float:
        """Read the pauses once, and end those whose time has come.

        Return the seconds until the next read, which is at the latest when a pause ends.
        """
        await self._node.known_pauses.read(self._read)
        pauses = self._read_pauses
        if any(pause.is_over for pause in pauses):
            for name in await self._pauses.end_pauses():
                self._events.publish(TaskResumed(name, actor=None))
        has_all_names = await self._add_names([pause for pause in pauses if not pause.is_over])
        # The time of these pauses has ended, but their jobs first need their misfire grace time again.
        ended_suspensions = [pause for pause in pauses if pause.has_ended and pause.suspends_expiry]
        self.is_renewing = await self._renew(ended_suspensions)
        if self.is_renewing:
            return Renewal.gap_s
        # A pause whose names could not be added is soon tried once more, also if notifications arrive.
        can_wait = self._node.signals.notifications_up.is_set and has_all_names
        poll_s = POLL_INTERVAL_S if can_wait else FAST_POLL_INTERVAL_S
        ends_in_s = [pause.ends_in for pause in pauses if pause.ends_in is not None and not pause.has_ended]
        return min(poll_s, *ends_in_s, self._pauses.refused_ends.ends_in, self._refused_names.ends_in)

    async def _read(self) -> None:
        """Read the pauses, and apply them to what this worker claims and expires."""
        pauses = await self._pauses.paused()
        unexpiring_names: set[str] = set()
        for pause in pauses:
            if pause.suspends_expiry:
                unexpiring_names |= self._names_of(pause)
        self._node.routing.unexpiring_names = frozenset(unexpiring_names)
        lasting_pauses = [pause for pause in pauses if not pause.is_over]
        exact_names = {name for pause in lasting_pauses for name in pause.exact_names}
        # It returns whether a task was resumed. Then its jobs may be due.
        if self._node.routing.pause({pause.name for pause in lasting_pauses}, exact_names):
            self._node.signals.due()
        self._read_pauses = pauses

    async def _add_names(self, pauses: Sequence[Pause]) -> bool:
        """Add the names to these pauses that only workers know; return False if another pass has to.

        The names are the aliases and earlier names of the task, which the process that paused it may not
        have.
        """
        has_all_names = True
        for pause in pauses:
            # A pause that suspends expiry needs all names of the task, any other one only the exact names.
            names = self._names_of(pause) if pause.suspends_expiry else set()
            unwritten_names = names - {pause.name, *pause.names}
            exact_names = self._exact_names_of(pause)
            unwritten_names |= exact_names - pause.stopped_names
            if not unwritten_names:
                continue
            add_names = partial(self._pauses.add_names, pause.name, unwritten_names, exact_names)
            # False means that another session has locked the pause, or has added the names meanwhile, so the
            # next pass follows soon. None means that the application refuses them, which is retried later.
            if await self._refused_names.attempt(pause.name, add_names) is False:
                has_all_names = False
        return has_all_names

    async def _renew(self, ended_pauses: Sequence[Pause]) -> bool:
        """Give jobs of ended pauses their misfire grace time again, one batch for each of these pauses.

        Return whether there are such pauses. A pause whose row the application refuses to delete is left out
        for some time, so that it delays no other one.
        """
        refused_ends = self._pauses.refused_ends
        left_out = refused_ends.keys()
        ended_pauses = [pause for pause in ended_pauses if pause.name not in left_out]
        renewals = {
            (pause.name, pause.paused_until): Renewal(self._pauses, pause, self._names_of(pause))
            for pause in ended_pauses
        }
        # A renewal of the last pass continues at its position.
        self._renewals = {key: self._renewals.get(key, renewal) for key, renewal in renewals.items()}
        for renewal in self._renewals.values():
            has_ended = await refused_ends.attempt(renewal.pause.name, renewal.run_once)
            # If another process has ended the pause, that one publishes the event.
            if has_ended and renewal.is_ended_here:
                self._events.publish(TaskResumed(renewal.pause.name, actor=None))
        return bool(ended_pauses)

    def _names_of(self, pause: Pause) -> set[str]:
        """Return the names of the task of a pause that this process or other workers know."""
        names = set(pause.all_names)
        for task in self._node.tasks.stopped_by([pause.name], pause.exact_names):
            names.update(self._node.tasks.names_of(task))
        return names

    def _exact_names_of(self, pause: Pause) -> set[str]:
        """Return the exact names of the task of a pause that this process knows.

        A name of the pause counts only if the code here declares it for the task: functions of several
        services may have the same default name.
        """
        names: set[str] = set()
        for task in self._node.tasks.stopped_by([], pause.stopped_names):
            names.update(self._node.tasks.names_of(task))
        return names
