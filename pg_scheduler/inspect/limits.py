"""The limits that live workers declare, and how much of each is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.jobs.limits import key_prefix
from pg_scheduler.jobs.model import Worker

__all__ = ["LimitKeyState", "LimitState", "limits_of", "read_limit", "read_limits"]

MAX_LIMITS: Final = 200
"""Limits whose use is read."""

MAX_KEYS: Final = 200
"""Keys of a limit that are read."""


@dataclass(frozen=True, slots=True)
class LimitState:
    """A limit that live workers declare."""

    name: str
    """Its name."""
    tasks: tuple[str, ...]
    """The tasks that share it."""
    by_key: bool
    """Whether each key has a limit of its own."""
    max_running: int | None
    """Attempts that may run at once; None for no limit."""
    max_starts: int | None
    """Attempts that may start within ``per_s``; None for no limit."""
    per_s: float | None
    """That time span in seconds."""
    running: int | None
    """Attempts that run within it; None if it is by key."""
    starts: int | None
    """Starts that it still counts, at most 10,000; None if it is by key."""
    waiting: int
    """Jobs that wait for it, among the first 20,000 blocked jobs."""


@dataclass(frozen=True, slots=True)
class LimitKeyState:
    """A key of a limit for which jobs wait."""

    name: str
    """The name of the limit."""
    key: str
    """The key; empty for a limit without keys."""
    running: int
    """Attempts of the key that run."""
    starts: int
    """Starts of the key that still count, at most 10,000."""
    waiting: int
    """Jobs that wait for it, among the first 20,000 blocked jobs."""


class _Limit(NamedTuple):
    name: str
    by_key: bool
    max_running: Any
    max_starts: Any
    per_s: Any


def _number(value: object) -> int | float | None:
    """Return the value if it is a number; a row may have been written by hand."""
    return value if isinstance(value, int | float) else None


def limits_of(workers: Iterable[Worker]) -> dict[_Limit, set[str]]:
    """Return the limits that live workers declare, each with its tasks."""
    declared: dict[_Limit, set[str]] = {}
    for worker in workers:
        for limit in worker.settings.get("limits", ()) if worker.is_alive else ():
            if isinstance(limit, Mapping) and isinstance(limit.get("name"), str):
                numbers = (_number(limit.get(name)) for name in ("max_running", "max_starts", "per_s"))
                place = _Limit(limit["name"], bool(limit.get("by_key")), *numbers)
                declared.setdefault(place, set()).add(str(limit.get("task")))
    return declared


async def read_limits(inspector: Inspector) -> list[LimitState]:
    """Return the limits that live workers declare, by name, at most 200.

    Example::

        from pg_scheduler.inspect import read_limits

        for limit in await read_limits(inspector):
            print(limit.name, limit.running, limit.max_running, limit.waiting)
    """
    declared = limits_of(await inspector.workers())
    blocked = (await inspector.backlog()).blocked
    found = []
    for limit, tasks in sorted(declared.items(), key=lambda item: str(item[0]))[:MAX_LIMITS]:
        running, starts = None, None
        if not limit.by_key:
            running, starts = await inspector._reads.inspections.limit_use(key_prefix(limit.name))  # noqa: SLF001
        waiting = sum(jobs for key, jobs in blocked.items() if key.startswith(key_prefix(limit.name)))
        found.append(
            LimitState(
                name=limit.name,
                tasks=tuple(sorted(tasks)),
                by_key=limit.by_key,
                max_running=limit.max_running,
                max_starts=limit.max_starts,
                per_s=limit.per_s,
                running=running,
                starts=starts,
                waiting=waiting,
            )
        )
    return found


async def read_limit(inspector: Inspector, name: str) -> list[LimitKeyState]:
    """Return the keys of a limit for which jobs wait, those with most of them first, at most 200.

    A limit without keys is one row, also while no job waits.

    Example::

        from pg_scheduler.inspect import read_limit

        for state in await read_limit(inspector, "stripe"):
            print(state.key, state.running, state.waiting)
    """
    prefix = key_prefix(name)
    blocked = (await inspector.backlog()).blocked
    waiting = {key: jobs for key, jobs in blocked.items() if key.startswith(prefix)}
    found = []
    for key in sorted(waiting or {prefix: 0}, key=lambda each: (-waiting.get(each, 0), each))[:MAX_KEYS]:
        running, starts = await inspector._reads.inspections.limit_use(key)  # noqa: SLF001
        found.append(LimitKeyState(name, key.removeprefix(prefix), running, starts, waiting.get(key, 0)))
    return found
