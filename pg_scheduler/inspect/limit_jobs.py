"""Describe limits further than `Inspector.limits()` does: full keys, next starts, jobs that run and wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.limits import LimitKeyState, LimitList, LimitState, used_limits
from pg_scheduler.inspect.store.inspections import MAX_STARTS
from pg_scheduler.inspect.store.limits import LimitJobRow
from pg_scheduler.jobs.limits import MAX_PER, key_prefix

MAX_KEYS: Final = 10
"""Keys of a limit whose jobs are read."""

MAX_JOBS: Final = 20
"""Jobs that are read for a limit without keys; for each key, a tenth of it."""


@dataclass(frozen=True, slots=True)
class LimitOverview:
    """The limits that live workers declare.

    Attributes:
        limits: Their numbers.
        full_keys: For how many keys of each name jobs wait.
        next_starts: When a full limit without keys admits its next start, by name.
    """

    limits: LimitList
    full_keys: Mapping[str, int]
    next_starts: Mapping[str, datetime]


@dataclass(frozen=True, slots=True)
class LimitJobs:
    """Jobs of a limit, by the key.

    Attributes:
        holders: Those that run within it, the oldest first.
        queue: Those that start next.
        next_starts: When it admits the next start, if it is full.
    """

    holders: Mapping[str, Sequence[LimitJobRow]]
    queue: Mapping[str, Sequence[LimitJobRow]]
    next_starts: Mapping[str, datetime]


async def limit_overview(inspector: Inspector) -> LimitOverview:
    """Return the limits that live workers declare, and what is full."""
    limits, blocked = await used_limits(inspector._reads)  # noqa: SLF001 - no public part of an Inspector
    full: dict[str, int] = {}
    for name in {each.name for each in limits.items if each.by_key}:
        prefix = key_prefix(name)
        full[name] = sum(key.startswith(prefix) and key != prefix for key in blocked)
    starts = await _next_starts(inspector, ((key_prefix(each.name), each) for each in limits.items))
    return LimitOverview(
        limits, full, {each.name: at for each in limits.items if (at := starts.get(key_prefix(each.name)))}
    )


async def limit_jobs(inspector: Inspector, keys: Sequence[LimitKeyState]) -> LimitJobs:
    """Return the jobs of the first 10 keys of a limit."""
    texts = {key_prefix(each.name) + each.key: each for each in keys[:MAX_KEYS]}
    most = MAX_JOBS if len(texts) == 1 else MAX_JOBS // 10
    reads = inspector._reads.limits  # noqa: SLF001
    busy = [text for text, each in texts.items() if each.running]
    holders = await reads.holders(busy, most) if busy else []
    waiting = [text for text, each in texts.items() if each.waiting]
    queue = await reads.queue(waiting, most) if waiting else []
    starts = await _next_starts(inspector, texts.items())
    return LimitJobs(
        _by_key(holders, texts), _by_key(queue, texts), {texts[text].key: at for text, at in starts.items()}
    )


def _by_key(rows: Iterable[LimitJobRow], texts: Mapping[str, LimitKeyState]) -> dict[str, list[LimitJobRow]]:
    found: dict[str, list[LimitJobRow]] = {}
    for row in rows:
        found.setdefault(texts[row.key].key, []).append(row)
    return found


async def _next_starts(
    inspector: Inspector, limits: Iterable[tuple[str, LimitState | LimitKeyState]]
) -> dict[str, datetime]:
    """Return when full limits admit their next start, by their texts."""
    full = [
        (text, int(each.max_starts), float(each.per_s))
        for text, each in limits
        if each.starts is not None
        and each.max_starts is not None
        and each.per_s is not None
        and 1 <= each.max_starts <= min(each.starts, MAX_STARTS)
        and 0 < each.per_s <= MAX_PER.total_seconds()
    ]
    reads = inspector._reads.limits  # noqa: SLF001
    return await reads.next_starts(full) if full else {}
