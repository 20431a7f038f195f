"""Time zones by IANA name, and the instants at which their UTC offset changes."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

SECOND: Final = timedelta(seconds=1)
NO_OFFSET: Final = timedelta(0)

MIN_SIMILARITY: Final = 0.8
"""How similar the name of a time zone must be to be suggested, from 0 to 1."""

_NAME: Final = re.compile(r"(?=.{1,64}$)[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*", re.ASCII)
"""Names that time zones may have."""

MACHINE_ZONES: Final = frozenset({"localtime", "posixrules"})
"""Files next to the IANA time zones that an administrator chooses."""


class UnknownZoneError(ValueError):
    """This machine has no time zone with a name that another machine may have.

    Attributes:
        zone: The name.
    """

    def __init__(self, zone: str, reason: str) -> None:
        super().__init__(reason)
        self.zone = zone


@cache
def data_version() -> str | None:
    """Return the version of this process's time zone data, such as ``2025b``; None if it is not stated.

    As ``zoneinfo`` does, this function prefers the folders of ``zoneinfo.TZPATH`` to the package tzdata. An
    update on the disk has no effect on this process, since ``zoneinfo`` keeps the zones that it has read.
    """
    # The first folder that has time zones, which ``zoneinfo`` reads then too.
    folder = next((Path(path) for path in zoneinfo.TZPATH if Path(path, "Europe").is_dir()), None)
    try:
        if folder is None:
            version_line = f"# version {import_module('tzdata').IANA_VERSION}"
        else:
            with Path(folder, "tzdata.zi").open(encoding="utf-8") as lines:
                version_line = next(lines, "")
    except (OSError, ImportError, UnicodeDecodeError):
        return None
    # Some builds state the version "unknown".
    match = re.match(r"# version (\d{4}[a-z]+)", version_line)
    return None if match is None else match[1]


def parse_timezone(timezone: tzinfo | str | None) -> tzinfo:
    """Return the time zone of an IANA name; UTC for None.

    Raises:
        UnknownZoneError: This machine has no time zone with the name. A ValueError.
        ValueError: The object has no IANA name, or the text cannot be a name, or the zone of this name
            differs between machines.
    """
    if timezone is None:
        return UTC
    # A ZoneInfo that was read from a file has no key.
    if timezone is UTC or (isinstance(timezone, ZoneInfo) and timezone.key):
        return timezone
    if not isinstance(timezone, str):
        raise ValueError(  # noqa: TRY004 - every error of a schedule is a ValueError
            f"Invalid timezone {timezone!r}: it has no IANA name that other nodes could use; "
            "pass an IANA name such as 'Europe/Berlin', or a ZoneInfo"
        )
    # UTC needs no time zone data, which the machine may lack.
    if timezone == "UTC":
        return UTC
    name = repr(timezone[:64])
    if timezone in MACHINE_ZONES:
        raise ValueError(
            f"Invalid timezone {name}: it differs between machines; use an IANA name such as 'Europe/Berlin'"
        )
    try:
        # A member of a str enum is a str too. zoneinfo caches the zone under the object that it is given, and
        # later callers would get that member as the key of their zone. So it gets a plain str.
        return ZoneInfo(str.__str__(timezone))
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        similar = similar_zone(timezone)
        example = "'Europe/Berlin'" if similar is None else f"{similar!r}"
        reason = (
            f"Invalid timezone {name}: not found on this machine; use an IANA name such as "
            f"{example}, or install the package tzdata if the machine has no time zone data"
        )
        # A text that cannot be a name is wrong on every machine. Another machine may know any other one.
        if not _NAME.fullmatch(timezone):
            raise ValueError(reason) from error
        raise UnknownZoneError(timezone, reason) from error


@cache
def zone_names() -> Sequence[str]:
    """Return UTC and the IANA names of the time zones of this machine, without abbreviations such as CET."""
    return ("UTC", *sorted(name for name in zoneinfo.available_timezones() if "/" in name))


@lru_cache(maxsize=256)
def similar_zone(text: str) -> str | None:
    """Return the time zone whose city is the text, or whose name is similar; None if there is none.

    Example:
        >>> similar_zone("berlin"), similar_zone("Europe/Berlim"), similar_zone("Atlantis")
        ('Europe/Berlin', 'Europe/Berlin', None)
    """
    query = text[:64].strip().replace(" ", "_").casefold()
    names = {name.casefold(): name for name in zone_names()}
    # The part behind the last slash: "berlin" of "europe/berlin".
    names_by_city = {key.rpartition("/")[2]: name for key, name in names.items()}
    zone = names.get(query) or names_by_city.get(query)
    if zone is not None:
        return zone
    similar_keys = get_close_matches(query, names, n=1, cutoff=MIN_SIMILARITY)
    return names[similar_keys[0]] if similar_keys else None


def named_zone(timezone: tzinfo | str) -> tuple[str, tzinfo]:
    """Return the name of a time zone, and the zone that every node finds under this name.

    Raises:
        ValueError: This machine has no time zone with the name, or the object has no IANA name.
    """
    # The key of a ZoneInfo may be an instance of a subclass of str. The name must be a plain str.
    name = str.__str__(str(parse_timezone(timezone)))
    # A ZoneInfo of the caller may have other rules under this name, so the zone is looked up by the name.
    return name, parse_timezone(name)


@dataclass(frozen=True, slots=True)
class ClockChange:
    """An instant at which the UTC offset of a time zone changes.

    Attributes:
        instant: The first instant with the new offset, in UTC.
        before: The UTC offset before it.
        after: The UTC offset from it on.
    """

    instant: datetime
    before: timedelta
    after: timedelta

    @property
    def is_repeat(self) -> bool:
        """Whether wall times occur twice; else they are skipped."""
        return self.after < self.before

    @property
    def wall_start(self) -> datetime:
        """The first wall time that is skipped or repeated."""
        return self.instant.replace(tzinfo=None) + min(self.before, self.after)

    @property
    def wall_end(self) -> datetime:
        """The first wall time after those that are skipped or repeated."""
        return self.instant.replace(tzinfo=None) + max(self.before, self.after)


def change_at(wall: datetime, zone: tzinfo) -> ClockChange | None:
    """Return the clock change that skips or repeats this wall time; None if it occurs exactly once."""
    if zone is UTC:
        return None
    # For a wall time that is skipped or repeated, a ``fold`` of 0 gives the offset before the change, and 1
    # the offset after it.
    before = zone.utcoffset(wall.replace(fold=0) if wall.fold else wall) or NO_OFFSET
    after = zone.utcoffset(wall.replace(fold=1)) or NO_OFFSET
    if before == after:
        return None
    # Both are naive UTC. The change is after the first of them, and at the second at the latest.
    low, high = sorted((wall - before, wall - after))
    return ClockChange(_bisect(low, high, zone), before, after)


def first_change(low: datetime, high: datetime, zone: tzinfo) -> datetime | None:
    """Return the instant of the first clock change between two instants; None if their offsets are equal.

    The two instants are in UTC, and so close that there is at most one change between them.
    """
    if zone is UTC or offset_at(low, zone) == offset_at(high, zone):
        return None
    naive_low = low.replace(tzinfo=None, microsecond=0)
    naive_high = high.replace(tzinfo=None, microsecond=0)
    return _bisect(naive_low, naive_high, zone)


def instant_of(wall: datetime, zone: tzinfo) -> datetime:
    """Return the instant of a wall time: the first if it occurs twice, the clock change if it is skipped."""
    change = change_at(wall, zone)
    if change is not None and not change.is_repeat:
        return change.instant
    return wall.replace(tzinfo=zone, fold=0).astimezone(UTC)


def offset_at(instant: datetime, zone: tzinfo) -> timedelta:
    """Return the UTC offset of a time zone at an instant."""
    return instant.astimezone(zone).utcoffset() or NO_OFFSET


def _bisect(low: datetime, high: datetime, zone: tzinfo) -> datetime:
    """Return the first second with the UTC offset of ``high``, found by bisection.

    Both bounds are naive datetimes in UTC, and ``low`` has another offset.
    """
    after = offset_at(high.replace(tzinfo=UTC), zone)
    while high - low > SECOND:
        half_seconds = (high - low) // SECOND // 2
        middle = low + half_seconds * SECOND
        if offset_at(middle.replace(tzinfo=UTC), zone) == after:
            high = middle
        else:
            low = middle
    return high.replace(tzinfo=UTC)
