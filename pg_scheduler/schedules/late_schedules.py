"""Hold schedules that could not be planned with the others of their pass, until their turns.

An open transaction of the application may hold the unique key of a schedule's job, its id, or a job before
it. The planner then gives up after a moment, and postpones the schedules. Groups of them have turns. A group
that meets a lock again is halved, until the schedule that needs the lock is alone. All others are planned
meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FIRST_PAUSE_S: Final = 0.05
"""Seconds until the next turn of a schedule that is alone; each further pause is twice as long."""

LONGEST_PAUSE_S: Final = 1.0
"""The longest pause between two turns: a schedule is planned within this time after its lock is free."""

REPORT_AFTER_S: Final = 5.0
"""Seconds after which a record names the holder of the lock."""

REPORT_INTERVAL_S: Final = 60.0
"""Seconds between two records about one schedule."""


@dataclass(eq=False, slots=True)
class LateGroup:
    """Late schedules, which met a lock before, and which the planner now plans in one transaction.

    The group has a turn, at which the planner attempts to plan it.

    Attributes:
        schedule_ids: Their ids.
        is_built_in: Whether their triggers are built in. Others are planned apart, as they may take long.
        since: When they met a lock first, by the monotonic clock.
        turn_at: When their next turn is, by the same clock.
        report_at: When a record is due about them, by the same clock.
        pause_s: The pause before that turn; 0 while they are being divided.
    """

    schedule_ids: Sequence[str]
    is_built_in: bool
    since: float
    turn_at: float
    report_at: float
    pause_s: float = 0.0


class LateSchedules:
    """The schedules that one planner has postponed, in groups that have turns."""

    def __init__(self) -> None:
        self._groups: list[LateGroup] = []

    @property
    def ids(self) -> list[str]:
        """The schedules that have turns of their own."""
        return [schedule_id for group in self._groups for schedule_id in group.schedule_ids]

    def put_apart(self, schedule_ids: Sequence[str], *, is_built_in: bool) -> None:
        """Make schedules that met a lock a group of their own, whose turn is at once."""
        if schedule_ids:
            now = time.monotonic()
            group = LateGroup(
                schedule_ids, is_built_in, since=now, turn_at=now, report_at=now + REPORT_AFTER_S
            )
            self._groups.append(group)

    def take_next(self) -> LateGroup | None:
        """Remove and return the group whose turn is due longest; None if no turn is due.

        The caller plans it, or passes it to ``postpone()``.
        """
        next_group = min(self._groups, key=lambda group: group.turn_at, default=None)
        if next_group is None or next_group.turn_at > time.monotonic():
            return None
        self._groups.remove(next_group)
        return next_group

    def postpone(self, group: LateGroup, *, pause_s: float | None = None) -> None:
        """Divide a group that failed into two, or let the schedule that is alone in it wait longer.

        By the divisions, the schedule that needs the lock is alone at last, and all others are planned.

        Args:
            group: The group, which ``take_next()`` has removed.
            pause_s: The pause of a schedule that is alone; None for twice the one before.
        """
        ids = group.schedule_ids
        group.turn_at = time.monotonic()
        if len(ids) == 1:
            if pause_s is not None:
                group.pause_s = pause_s
            # The schedule is alone for the first time.
            elif not group.pause_s:
                group.pause_s = FIRST_PAUSE_S
            else:
                group.pause_s = min(2 * group.pause_s, LONGEST_PAUSE_S)
            group.turn_at += group.pause_s
            self._groups.append(group)
            return
        # The turn of both halves is at once.
        middle = len(ids) // 2
        for half in (ids[:middle], ids[middle:]):
            self._groups.append(
                LateGroup(
                    half,
                    group.is_built_in,
                    since=group.since,
                    turn_at=group.turn_at,
                    report_at=group.report_at,
                )
            )

    def next_turn_in(self) -> float | None:
        """Return the seconds until the next turn; None if no schedule waits for one."""
        if not self._groups:
            return None
        next_turn_at = min(group.turn_at for group in self._groups)
        return max(next_turn_at - time.monotonic(), 0.0)
