"""When periodic jobs fire: pure arithmetic on instants, the same on every node.

An interval is a grid laid from an anchor, so lateness never adds up. A cron expression follows the clock on
the wall of its time zone, and clock changes follow the rules of Debian's cron, as its manual page cron(8) has
them under NOTES:

* A job whose minute and hour fields both name fixed times (neither starts with ``*``) runs **once**: right
  after the jump if its time was skipped, the first time only if its time is shown twice.
* Any other job follows the clock as it shows: skipped times do not run, repeated times run twice.
* A change of three hours or more is a correction of the clock: every job follows it as it shows. (Turning
  back by exactly three hours still counts as small: the manual is silent, its source decides.)

Where this differs from that daemon on purpose:

* Several fixed times in one skipped hour, or one of them and the time right after it, are **one** fire at the
  instant of the jump; the daemon starts the command once for each.
* Every change of the zone's offset counts; the daemon misses those that do not toggle daylight saving time
  until it is restarted.
* Jumps of less than five minutes forward, last seen in the 1970s, are like larger ones here; the daemon takes
  them for a late wake-up and catches up wild jobs too.
* Seconds, in a sixth field, are unknown to the daemon. They do not make a job wild.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo

from pg_scheduler.triggers.base import _utc
from pg_scheduler.triggers.cron_fields import CronFields, parse_cron

__all__ = ["CronTrigger"]

_SECOND = timedelta(seconds=1)


_CORRECTION = timedelta(hours=3)


@dataclass(frozen=True, slots=True)
class CronTrigger:
    """Fires when the clock on the wall of a time zone shows what a cron expression names.

    Args:
        expression: Five fields, or six with the seconds **last**, or an alias such as ``@hourly``. Of day of
            month and day of week, either is enough when both are restricted (neither starts with ``*``).
        timezone: Whose clock counts.

    Raises:
        ValueError: The expression cannot be used; the message says why and what to write.

    Example:
        >>> from zoneinfo import ZoneInfo
        >>> trigger = CronTrigger("30 2 * * *", ZoneInfo("Europe/Berlin"))
        >>> trigger.next_after(datetime(2024, 3, 31, tzinfo=UTC))  # 02:30 is skipped: right after the jump
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
        anchor: datetime | None = None,  # noqa: ARG002  the protocol's
    ) -> datetime:
        """The first fire strictly after ``instant``, in UTC. Cron needs no anchor."""
        local = _utc(instant).astimezone(self.timezone)
        shown = local.replace(tzinfo=None, microsecond=0, fold=0)
        search = shown + _SECOND
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
        """Whether this job runs as the clock shows through the change, skipping and repeating with it."""
        return self._fields.wild or not -_CORRECTION <= change.after - change.before < _CORRECTION

    def _change_at(self, wall: datetime) -> _ClockChange | None:
        """The clock change that skips or repeats this wall time; None if it is shown exactly once."""
        before, after = (_offset(wall.replace(tzinfo=self.timezone, fold=fold)) for fold in (0, 1))
        if before == after:
            return None
        low, high = sorted((wall - before, wall - after))  # naive UTC; the change lies in (low, high]
        while high - low > _SECOND:
            middle = low + (high - low) // _SECOND // 2 * _SECOND
            if _offset(middle.replace(tzinfo=UTC).astimezone(self.timezone)) == after:
                high = middle
            else:
                low = middle
        return _ClockChange(high.replace(tzinfo=UTC), before, after)


@dataclass(frozen=True, slots=True)
class _ClockChange:
    """An instant at which a zone's offset from UTC changes."""

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
        """The first wall time that no longer is."""
        return self.instant.replace(tzinfo=None) + max(self.before, self.after)


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta(0)
