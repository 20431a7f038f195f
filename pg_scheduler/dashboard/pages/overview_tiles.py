"""The tiles of the overview: numbers with their change since the period before."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.dashboard.pages.history import Period, attempts, completed, failed_share
from pg_scheduler.dashboard.search_bar import text_of
from pg_scheduler.inspect.states import StateCount
from pg_scheduler.inspect.texts import length

POINTS: Final = 20
"""Points of the line of a tile."""

UNREAD: Final = "no answer in time"
"""The note of a tile whose number the server did not return in time."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A number with its change since the period before, and a small line."""

    label: str
    value: str
    unit: str
    note: str
    """The change, or another number that belongs to it."""
    mood: str
    """How the note is meant: ``ok``, ``bad``, ``warn``; empty for neither."""
    path: str
    terms: str
    """The search to which it leads; empty for none."""
    values: Sequence[float]
    tone: str
    since: datetime | None = None
    """Since when the oldest of what it counts has been there."""


def rates(period: Period) -> Iterator[Tile]:
    """Yield the tiles of completed jobs, failed attempts and lateness."""
    total, before = period.total, period.before
    rate, unit = completed(total) / period.minutes, "/min"
    earlier = None if before is None or not attempts(before) else before
    change = _change(rate, completed(earlier) / period.minutes) if earlier else ("", "")
    if 0 < rate < 1:
        rate, unit = rate * 60, "/h"
    yield Tile(
        "Completed",
        f"{rate:,.3g}" if rate < 100 else f"{rate:,.0f}",
        unit,
        change[0],
        change[1],
        "/jobs",
        "status:completed",
        _points([completed(each) for each in period.figures[:-1]]),
        "ok",
    )
    share = failed_share(total)
    note, mood = "", ""
    if share is not None and earlier is not None and (past := failed_share(earlier)) is not None:
        points = 100 * (share - past)
        note = f"{'▲' if points > 0 else '▼'} {abs(points):.1f} pt" if abs(points) >= 0.05 else ""
        mood = "bad" if points > 0 else "ok"
    yield Tile(
        "Failed",
        "-" if share is None else f"{100 * share:.2g}",
        "" if share is None else "% of attempts",
        note,
        mood if note else "",
        "/errors",
        "",
        _points([failed_share(each) or 0 for each in period.figures[:-1]]),
        "bad" if share else "",
    )
    late = total.lateness.quantile(0.95)
    past_late = earlier.lateness.quantile(0.95) if earlier else None
    change = _change(late, past_late, is_bad_up=True) if late is not None and past_late else ("", "")
    value, _, unit = "-".partition(" ") if late is None else length(late).partition(" ")
    yield Tile(
        "Lateness p95",
        value,
        unit,
        change[0],
        change[1],
        "/chart",
        "",
        _points([each.lateness.quantile(0.95) or 0 for each in period.figures[:-1]]),
        "run",
    )


def waits_late(oldest: datetime | None, now: datetime) -> bool:
    """Return whether the oldest due job has waited for over a minute."""
    return oldest is not None and now - oldest > timedelta(minutes=1)


def waiting(
    period: Period, due: int | None, oldest: datetime | None, now: datetime, *, is_capped: bool
) -> Tile:
    """Return the tile of due jobs; its line shows how many waited on average."""
    width = period.width.total_seconds()
    waited = _points([each.lateness.total / width for each in period.figures[:-1]])
    mood = "warn" if waits_late(oldest, now) else ""
    return Tile(
        "Waiting",
        "-" if due is None else f"{due:,}{'+' if is_capped else ''}",
        "due",
        UNREAD if due is None else "",
        mood,
        "/jobs",
        "status:due",
        waited,
        mood,
        oldest,
    )


def slots_in_use(period: Period, busy: int | None, slots: int) -> Tile:
    """Return the tile of slots; its line shows how many were in use on average."""
    width = period.width.total_seconds()
    used = _points([each.durations.total / width for each in period.figures[:-1]])
    if busy is None:
        return Tile("Slots in use", "-", f"of {slots:,}", UNREAD, "", "/workers", "", used, "run")
    share = f"{100 * busy / slots:.0f} %" if slots else ""
    mood = "warn" if slots and busy >= slots else ""
    return Tile("Slots in use", f"{busy:,}", f"of {slots:,}", share, mood, "/workers", "", used, "run")


def later(counts: Mapping[str, StateCount] | None) -> Tile:
    """Return the tile of jobs that are not due: the blocked ones if there are any, else those due later."""
    if counts is None:
        return Tile("Scheduled", "-", "", UNREAD, "", "/jobs", "status:scheduled", (), "")
    state, other = ("blocked", "scheduled") if counts["blocked"].number else ("scheduled", "blocked")
    note = f"{text_of(counts[other])} {other}" if counts[other].number else ""
    number, terms = text_of(counts[state]), f"status:{state}"
    return Tile(state.capitalize(), number, "", note, "", "/jobs", terms, (), "")


def _points(values: Sequence[float]) -> list[float]:
    """Return the values of a tile as few points with few digits, since each update of the page sends them."""
    size = max(math.ceil(len(values) / POINTS), 1)
    parts = [values[place : place + size] for place in range(0, len(values), size)]
    return [float(f"{sum(part) / len(part):.3g}") for part in parts]


def _change(value: float, before: float, *, is_bad_up: bool = False) -> tuple[str, str]:
    """Return how a value changed, and whether that is good; lateness that grows is bad."""
    if not before:
        return "", ""
    share = value / before - 1
    if abs(share) < 0.005:
        return "", ""
    text = f"{'▲' if share > 0 else '▼'} {100 * abs(share):.0f} %" if share < 10 else f"▲ {share + 1:.0f}x"
    return text, ("bad" if (share > 0) == is_bad_up else "ok") if is_bad_up else ""
