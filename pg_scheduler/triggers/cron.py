"""The cron trigger follows the local time of a time zone.

Clock changes follow the rules of Debian's cron, as the manual page cron(8) states them under NOTES:

* A job whose minute and hour fields both name fixed times (neither starts with ``*``) runs **once**: right
  after the change if its time was skipped, and the first time only if its time occurs twice.
* Any other job follows the local time: skipped times do not run, repeated times run twice.
* A change of three hours or more is a correction of the clock: every job follows the local time. (A change
  back by exactly three hours counts as smaller, as in the source of Debian's cron; the manual does not say.)

Intended differences from Debian's cron:

* Several fixed times in one skipped hour, or one of them and the time right after it, are **one** fire time
  at the instant of the change. Debian's cron starts the command once for each.
* Every change of the zone's UTC offset counts. Debian's cron ignores those that do not toggle daylight saving
  time until it is restarted.
* Changes of less than five minutes forward, last seen in the 1970s, are treated as larger ones. Debian's cron
  takes them for a late wake-up and also runs the missed times of wildcard jobs.
* A sixth field holds seconds, which Debian's cron does not have. Seconds do not make a job a wildcard job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from pg_scheduler.triggers.base import to_utc
from pg_scheduler.triggers.cron_fields import CronFields, parse_cron

__all__ = ["CronTrigger"]

SECOND: Final = timedelta(seconds=1)

MIN_CORRECTION: Final = timedelta(hours=3)
"""A change of this size or larger is a correction of the clock."""


@dataclass(frozen=True, slots=True)
class CronTrigger:
    """Fires when the local time of a time zone matches a cron expression.

    Args:
        expression: Five fields, or six with the seconds **last**, or an alias such as ``@hourly``. Of day of
            month and day of week, one match is enough when both are restricted (neither starts with ``*``).
        timezone: The time zone of the expression.

    Raises:
        ValueError: The expression is invalid; the message contains the reason and the remedy.

    Example:
        >>> from datetime import UTC, datetime
        >>> from zoneinfo import ZoneInfo
        >>> from pg_scheduler.triggers import CronTrigger
        >>> trigger = CronTrigger("30 2 * * *", ZoneInfo("Europe/Berlin"))
        >>> trigger.next_after(datetime(2024, 3, 31, tzinfo=UTC))  # 02:30 is skipped
        datetime.datetime(2024, 3, 31, 1, 0, tzinfo=datetime.timezone.utc)
    """

    expression: str
    timezone: tzinfo
    _fields: CronFields = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fields", parse_cron(self.expression))

    def next_after(
        self,
        instant: datetime,
        *,
        anchor: datetime | None = None,  # noqa: ARG002 - part of the protocol
    ) -> datetime:
        """Return the first fire time strictly after ``instant``, in UTC. Cron has no anchor."""
        local = to_utc(instant).astimezone(self.timezone)
        shown = local.replace(tzinfo=None, microsecond=0, fold=0)
        search = shown + SECOND
        repeat = self._change_at(shown)
        if repeat is not None and local.fold == 0 and self._follows(repeat):
            for start, offset in ((search, repeat.before), (repeat.wall_start, repeat.after)):
                wall = self._fields.at_or_after(start)
                if wall < repeat.wall_end:
                    return (wall - offset).replace(tzinfo=UTC)
        elif repeat is not None and local.fold == 1 and not self._follows(repeat):
            search = repeat.wall_end
        while True:
            wall = self._fields.at_or_after(search)
            change = self._change_at(wall)
            if change is None or change.is_repeat:
                break
            if not self._follows(change):
                return change.instant
            search = change.wall_end
        first, second = (wall.replace(tzinfo=self.timezone, fold=fold).astimezone(UTC) for fold in (0, 1))
        return first if first > instant else second

    def _follows(self, change: _ClockChange) -> bool:
        """Return whether skipped local times do not fire, and repeated ones fire twice, at this change."""
        return self._fields.wild or not -MIN_CORRECTION <= change.after - change.before < MIN_CORRECTION

    def _change_at(self, wall: datetime) -> _ClockChange | None:
        """Return the clock change that skips or repeats this wall time; None if it occurs exactly once."""
        before, after = (_offset(wall.replace(tzinfo=self.timezone, fold=fold)) for fold in (0, 1))
        if before == after:
            return None
        low, high = sorted((wall - before, wall - after))  # naive UTC; the change lies in (low, high]
        while high - low > SECOND:
            middle = low + (high - low) // SECOND // 2 * SECOND
            if _offset(middle.replace(tzinfo=UTC).astimezone(self.timezone)) == after:
                high = middle
            else:
                low = middle
        return _ClockChange(high.replace(tzinfo=UTC), before, after)


@dataclass(frozen=True, slots=True)
class _ClockChange:
    """An instant at which the UTC offset of a time zone changes."""

    instant: datetime
    before: timedelta
    after: timedelta

    @property
    def is_repeat(self) -> bool:
        return self.after < self.before

    @property
    def wall_start(self) -> datetime:
        """The first wall time that is skipped or repeated."""
        return self.instant.replace(tzinfo=None) + min(self.before, self.after)

    @property
    def wall_end(self) -> datetime:
        """The first wall time after those that are skipped or repeated."""
        return self.instant.replace(tzinfo=None) + max(self.before, self.after)


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta(0)
