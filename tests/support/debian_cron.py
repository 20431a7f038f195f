"""Debian's cron, minute by minute: what the property tests hold our cron triggers against.

Written after the daemon's main loop and kept as dumb as it is: it wakes at every minute of real time, reads
the clock on the wall, compares it with the *virtual* time up to which all jobs have run, and decides from the
difference which kinds of jobs run. It shares no code with the library and does not use croniter.

With six fields it wakes every second instead, the one thing the daemon cannot do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)

_NAMES = {
    3: ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    4: ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
}
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7), (0, 59))


@dataclass(frozen=True)
class Entry:
    """A line of a crontab as the daemon holds it: a set per field, and which fields start with a star."""

    sets: tuple[frozenset[int], ...]
    stars: tuple[bool, ...]

    @property
    def wild(self) -> bool:
        return self.stars[0] or self.stars[1]

    def names_day(self, wall: datetime) -> bool:
        by_date = wall.day in self.sets[2]
        by_weekday = wall.isoweekday() % 7 in self.sets[4]
        if self.stars[2] or self.stars[4]:
            return by_date and by_weekday
        return by_date or by_weekday

    def names(self, wall: datetime) -> bool:
        return (
            wall.minute in self.sets[0]
            and wall.hour in self.sets[1]
            and wall.second in self.sets[5]
            and wall.month in self.sets[3]
            and self.names_day(wall)
        )


def read(expression: str) -> Entry:
    texts = expression.split()
    seconds = texts[5] if len(texts) == 6 else "0"
    fields = [*texts[:5], seconds]
    sets = [_read_field(index, text) for index, text in enumerate(fields)]
    if 7 in sets[4]:
        sets[4] |= {0}
    return Entry(tuple(frozenset(found) for found in sets), tuple(text.startswith("*") for text in fields))


def _read_field(index: int, text: str) -> set[int]:
    found: set[int] = set()
    for item in text.split(","):
        span, _, step = item.partition("/")
        low, _, high = span.partition("-")
        first, last = _BOUNDS[index] if span == "*" else (_number(index, low), _number(index, high or low))
        found.update(range(first, last + 1, int(step or 1)))
    return found


def _number(index: int, text: str) -> int:
    if text.isdigit():
        return int(text)
    return _NAMES[index].index(text) + (index == 3)


@lru_cache(maxsize=64)
def _wall_clock(zone: ZoneInfo, start: datetime, end: datetime, tick: timedelta) -> Sequence[datetime]:
    """What the clock shows one tick before ``start``, and then at each tick before ``end``."""
    count = (end - start) // tick
    instants = (start + number * tick for number in range(-1, count))
    return [instant.astimezone(zone).replace(tzinfo=None) for instant in instants]


def fires(expression: str, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """The instants from ``start`` on, before ``end``, at which the daemon starts the job at least once."""
    entry = read(expression)
    tick = SECOND if len(expression.split()) == 6 else MINUTE
    virtual, *clock = _wall_clock(zone, start, end, tick)
    started = []
    for number, running in enumerate(clock):
        difference = running - virtual
        if difference == tick:  # the usual case
            virtual = running
            due = entry.names(running)
        elif timedelta(0) < difference <= 5 * MINUTE:  # woke up late: catch up with everything
            due = False
            while virtual < running:
                virtual += tick
                due |= entry.names(virtual)
        elif timedelta(0) < difference <= 180 * MINUTE:  # jumped forward: wild jobs once, fixed ones in turn
            due = entry.wild and entry.names(running)
            while virtual < running:
                virtual += tick
                due |= not entry.wild and entry.names(virtual)
        elif -180 * MINUTE < difference <= timedelta(0):  # turned back: fixed jobs have run already
            due = entry.wild and entry.names(running)
        else:  # corrected by a lot: take the new time and run everything
            virtual = running
            due = entry.names(running)
        if due:
            started.append(start + number * tick)
    return started
