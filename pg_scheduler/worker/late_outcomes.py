"""Hold outcomes that could not be written with the others of their batch, until their turns.

An open transaction of the application may hold the row of a job, of a job that waits for it, or of its
schedule, and the table may refuse a row. The batch is then divided. A group whose rows are locked waits for a
moment before its next turn. A group that failed for another reason is halved until the outcome that caused
the failure is alone. Meanwhile all other outcomes are written.

An outcome that failed alone has turns of its own from then on: together with others it would fail again, and
they would be divided again, without an end.

Late outcomes count towards the capacity of the result buffer, and one job whose row is locked may wait for
thousands of other jobs. So an outcome that waits with many others is written without its consequences, if
only rows that the consequences change are locked. The deadline scanner applies them when the lock is
released.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pg_scheduler.base.batches import BatchRoom
from pg_scheduler.jobs.outcome import Outcome
from pg_scheduler.jobs.rows import Claim

AttemptOutcome: TypeAlias = tuple[Claim, Outcome]

FIRST_PAUSE_S: Final = 0.05
"""Seconds until the first turn of outcomes whose rows are locked; each further pause is twice as long."""

LONGEST_PAUSE_S: Final = 1.0
"""The longest pause between two turns."""

LONE_TURNS_PER_S: Final = 20
"""How many turns a second all outcomes that are tried alone have together, so that thousands of them keep no
connection busy."""

MAX_WAITING: Final = 500
"""The number of late outcomes up to which each of them waits until its consequences can be applied too; a
quarter of the capacity of the result buffer."""


@dataclass(eq=False, slots=True)
class LateGroup:
    """Outcomes that are tried together.

    Attributes:
        outcomes: The attempts with their outcomes.
        since: When they were first tried, by the monotonic clock.
        due_at: When their next turn is, by the same clock.
        pause_s: The pause before that turn in seconds; 0 for a part of a group that is being divided.
        with_consequences: Whether that turn applies their consequences too.
        is_refused: Whether they wait because the table refuses them, and not for a lock.
        is_alone: Whether it is one outcome that failed although no row of it was locked.
    """

    outcomes: Sequence[AttemptOutcome]
    since: float
    due_at: float
    pause_s: float
    with_consequences: bool = True
    is_refused: bool = False
    is_alone: bool = False

    @property
    def characters(self) -> int:
        """The number of characters of the results that the statement of its turn sends."""
        return sum(outcome.change.characters for _, outcome in self.outcomes)

    @property
    def may_merge(self) -> bool:
        """Whether this group may have a turn together with other groups.

        A part of a group that is being divided may not: the outcome that made the group fail is still
        searched for. It has no pause before its turn.
        """
        return self.pause_s > 0 and not self.is_alone

    def may_omit_consequences(self, late_count: int) -> bool:
        """Return whether its outcomes may have their next turn without their consequences.

        Args:
            late_count: How many outcomes of all groups are late.
        """
        return self.with_consequences and late_count > MAX_WAITING


class LateOutcomes:
    """The groups of one worker, in the order in which they failed."""

    def __init__(self) -> None:
        self.groups: Final[list[LateGroup]] = []

    def claims(self) -> list[Claim]:
        """Return the attempts of all groups; callable from any thread."""
        return [claim for group in list(self.groups) for claim, _ in group.outcomes]

    def oldest_locked(self) -> LateGroup | None:
        """Return the group that has waited longest for a lock; None if none waits for one."""
        locked = (group for group in self.groups if not group.is_refused)
        return min(locked, key=lambda group: group.since, default=None)

    def next_turn_in(self) -> float | None:
        """Return the seconds until the next turn; None if no outcome is late."""
        if not self.groups:
            return None
        return max(min(group.due_at for group in self.groups) - time.monotonic(), 0.0)

    def hurry(self) -> None:
        """Let each group have its turn now. Outcomes that have turns together precede those tried alone."""
        self.groups.sort(key=lambda group: group.is_alone)
        for group in self.groups:
            group.due_at = 0.0

    def postpone(
        self,
        outcomes: Sequence[AttemptOutcome],
        *,
        last_group: LateGroup | None,
        pause_s: float | None = None,
        is_alone: bool = False,
    ) -> None:
        """Let outcomes wait that meet a lock, or that the table refuses.

        Args:
            outcomes: The outcomes.
            last_group: The group that they were in at their last turn; None if that turn was their first.
            pause_s: The seconds until the next turn of an outcome that the table refuses. None for outcomes
                that meet a lock: they wait twice as long as before their last turn.
            is_alone: Whether it is one outcome that failed although no row of it was locked.
        """
        if outcomes:
            now, is_refused = time.monotonic(), pause_s is not None
            if pause_s is None:
                pause_s = FIRST_PAUSE_S
                # A part of a group that was divided had no pause, so it begins with the first one too.
                if last_group is not None and last_group.pause_s:
                    pause_s = min(last_group.pause_s * 2, LONGEST_PAUSE_S)
            # The more outcomes are tried alone, the longer each of them waits.
            if is_alone:
                lone_count = sum(group.is_alone for group in self.groups) + 1
                pause_s = max(pause_s, lone_count / LONE_TURNS_PER_S)
            since = _since(last_group, now)
            group = LateGroup(
                outcomes,
                since,
                due_at=now + pause_s,
                pause_s=pause_s,
                with_consequences=True,
                is_refused=is_refused,
                is_alone=is_alone,
            )
            self.groups.append(group)

    def divide(self, outcomes: Sequence[AttemptOutcome], *, last_group: LateGroup | None) -> None:
        """Halve outcomes that failed together, and let each half have a turn at once.

        The arguments are as for ``postpone()``.
        """
        now, middle = time.monotonic(), len(outcomes) // 2
        with_consequences = last_group is None or last_group.with_consequences
        for half in (outcomes[:middle], outcomes[middle:]):
            self.groups.append(
                LateGroup(
                    half,
                    _since(last_group, now),
                    due_at=now,
                    pause_s=0.0,
                    with_consequences=with_consequences,
                )
            )

    def put_without_consequences(self, outcomes: Sequence[AttemptOutcome], *, last_group: LateGroup) -> None:
        """Let outcomes have a turn at once, in which they are written without their consequences.

        The deadline scanner applies the consequences later. The arguments are as for ``postpone()``.
        """
        if outcomes:
            now = time.monotonic()
            self.groups.append(
                LateGroup(
                    outcomes,
                    last_group.since,
                    due_at=now,
                    pause_s=last_group.pause_s,
                    with_consequences=False,
                )
            )

    def due_groups(self, size: int) -> list[LateGroup]:
        """Return the groups of the next turn: one that has its turn alone, or several that wait for locks.

        Args:
            size: The maximum number of outcomes. The first group has its turn even if it has more. Large
                results make the number smaller.
        """
        now = time.monotonic()
        due_groups: list[LateGroup] = []
        job_ids: set[str] = set()
        # The number of outcomes is compared with ``size`` below, so the room limits only their characters.
        room = BatchRoom(len(self.groups))
        for group in self.groups:
            if group.due_at > now:
                continue
            ids = {claim.job_id for claim, _ in group.outcomes}
            # The first group decides which others may join it.
            if due_groups:
                first_group = due_groups[0]
                may_merge = first_group.may_merge and group.may_merge
                # One turn applies the consequences of all of its outcomes, or of none.
                is_same_kind = first_group.with_consequences == group.with_consequences
                if not may_merge or not is_same_kind or len(job_ids) + len(ids) > size:
                    continue
            # A statement writes each job once, so another attempt of a job has its turn later.
            if job_ids.isdisjoint(ids) and room.take(group.characters):
                due_groups.append(group)
                job_ids |= ids
        return due_groups

    def remove(self, groups: Iterable[LateGroup]) -> None:
        """Remove groups whose turn has begun."""
        for group in groups:
            self.groups.remove(group)


def merge(groups: Sequence[LateGroup]) -> LateGroup:
    """Return one group with the outcomes of all groups that have a turn at the same time."""
    return LateGroup(
        [outcome for group in groups for outcome in group.outcomes],
        since=min(group.since for group in groups),
        due_at=0.0,  # now
        pause_s=max(group.pause_s for group in groups),
        with_consequences=all(group.with_consequences for group in groups),
    )


def _since(last_group: LateGroup | None, now: float) -> float:
    """Return when outcomes were first tried: now, unless they were in a group before."""
    return now if last_group is None else last_group.since
