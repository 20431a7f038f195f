"""The time zone of this machine, also if it has no IANA name.

``TZ`` may have a rule of POSIX such as ``CET-1CEST,M3.5.0,M10.5.0/3``, and ``/etc/localtime`` may be a copy
in place of a link. The operating system then still knows the offset of each instant, so it is asked for that.
The present offset would be wrong by an hour for the other half of the year.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .errors import UsageError

EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall time in UTC
MAX_OFFSET_S: Final = 86_400
"""The offsets of a datetime from UTC are shorter than this."""


class LocalZone(tzinfo):
    """The time zone of the operating system, without a name that another machine knows."""

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        """Return the offset at a wall time, of which ``fold`` selects the second if it occurs twice.

        For a wall time that is skipped, it is the offset before the change, or with ``fold=1`` the one after
        it, as with `zoneinfo.ZoneInfo`.
        """
        if dt is None:
            return None
        wall = dt.replace(tzinfo=None, microsecond=0)
        try:
            # Of a naive datetime, this is the instant of the wall time on this machine.
            seconds = wall.timestamp()
        except (OverflowError, OSError, ValueError):
            return _standard_offset()
        return wall - EPOCH - timedelta(seconds=seconds)

    def dst(self, dt: datetime | None) -> timedelta | None:  # noqa: ARG002 - the interface of tzinfo
        """Return None, since the operating system does not state by how much summer time differs."""
        return None

    def tzname(self, dt: datetime | None) -> str | None:
        """Return the abbreviation at a wall time, such as CEST."""
        offset = self.utcoffset(dt)
        if dt is None or offset is None:
            return None
        try:
            return time.localtime((dt.replace(tzinfo=None) - EPOCH - offset).total_seconds()).tm_zone
        except (OverflowError, OSError, ValueError):
            return time.tzname[0]

    def fromutc(self, dt: datetime) -> datetime:
        """Return the wall time of an instant, which ``dt`` has in UTC, with the zone itself as ``tzinfo``."""
        try:
            offset = _offset_at((dt.replace(tzinfo=None) - EPOCH).total_seconds())
        except (OverflowError, OSError, ValueError):
            offset = _standard_offset()
        wall = (dt + offset).replace(fold=0)
        # Without fold, the offset of a wall time that occurs twice is that of the first time.
        return wall if self.utcoffset(wall) == offset else wall.replace(fold=1)

    def __repr__(self) -> str:
        return "<the time zone of this machine>"


def local_zone() -> tzinfo:
    """Return the time zone of this machine, by its IANA name if it has one.

    Raises:
        CommandError: The zone is a day or more from UTC, which a datetime cannot express.
    """
    variable = os.environ.get("TZ")
    if variable is None:
        # This is a link to a file such as /usr/share/zoneinfo/Europe/Berlin, whose path ends with the name.
        # In any other path, the name is empty, which is no zone.
        name = str(Path("/etc/localtime").resolve()).partition("/zoneinfo/")[2]
    else:
        name = variable.removeprefix(":")  # POSIX allows a colon before the name
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    # The second offset is that of summer time, or the same one if there is none. The C library reduces a
    # longer offset to 24 hours.
    if max(abs(time.timezone), abs(time.altzone)) >= MAX_OFFSET_S:
        origin = "/etc/localtime" if variable is None else f"TZ={variable!r}"
        raise UsageError(
            f"the time zone of this machine, from {origin}, is 24 hours or more from UTC; "
            "set TZ to a name such as Europe/Berlin, or pass --tz utc"
        )
    return LocalZone()


def _offset_at(timestamp: float) -> timedelta:
    """Return the offset of the operating system at an instant."""
    return timedelta(seconds=time.localtime(timestamp).tm_gmtoff)


def _standard_offset() -> timedelta:
    """Return the offset without summer time, for times in the years 1 and 9999 that the system rejects."""
    return timedelta(seconds=-time.timezone)
