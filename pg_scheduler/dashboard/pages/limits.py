"""The pages of limits, and of one limit with its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.inspect import LimitKeyState, LimitList, LimitState
from pg_scheduler.inspect.limits import declared_limits
from pg_scheduler.inspect.texts import counted

AGE_S: Final = 2.0
"""Seconds for which limits are kept: each costs a statement."""

WORKERS_AGE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class LimitRow(LimitState):
    """A limit in a list. What the request may not see is None."""

    waiting: int | None  # type: ignore[assignment] # it may be hidden
    is_shared: bool = False
    """Whether tasks share it that the request may not see, so that its numbers are hidden."""


@dataclass(frozen=True, slots=True)
class LimitsPage:
    """The limits that live workers declare, by name."""

    items: Sequence[LimitRow]
    summary: str
    is_capped: bool
    """Whether there may be more limits or waiting jobs."""


@dataclass(frozen=True, slots=True)
class LimitPage:
    """A limit, with its declarations, and its keys: those with the most waiting jobs first."""

    name: str
    declared: Sequence[LimitRow]
    keys: Sequence[LimitKeyState]
    summary: str
    is_capped: bool = False
    """Whether there may be more keys or waiting jobs."""
    sees_keys: bool = True
    """Whether the keys are shown, and not only their numbers."""


async def build(request: PageRequest) -> LimitsPage:
    """Read the limits."""
    found = await _find(request)
    items = _visible(found, request)
    is_open = request.access.visible_names is None  # else the sums include hidden limits
    summary = found.summary if is_open else counted(len(items), "limit", is_capped=found.is_capped)
    return LimitsPage(items, summary, found.is_capped or found.is_waiting_capped)


async def build_one(request: PageRequest) -> LimitPage:
    """Read the keys of a limit."""
    name = request.required("name")
    declared = [each for each in _visible(await _find(request), request) if each.name == name]
    if not declared:
        raise NotFoundError(f"no live worker declares the limit {name[:200]!r}, or you may not see it")
    if any(each.is_shared for each in declared):
        return LimitPage(name, declared, [], "tasks share this limit that you may not see")
    found = await request.cache.get(("limit", name), AGE_S, lambda: request.inspector.limit_keys(name))
    sees = request.access.sees_arguments  # from which keys are made
    keys = [each if sees or not each.key else replace(each, key=HIDDEN) for each in found.items]
    return LimitPage(name, declared, keys, found.summary, found.is_capped or found.is_waiting_capped, sees)


async def limit_names_of(task: str, request: PageRequest) -> list[str]:
    """Return the names of the limits that live workers declare for a task."""
    workers = await request.cache.get("workers", WORKERS_AGE_S, request.inspector.workers)
    names = {limit.name for limit in declared_limits(workers) if task in limit.tasks}
    return sorted(names)


async def _find(request: PageRequest) -> LimitList:
    return await request.cache.get("limits", AGE_S, request.inspector.limits)


def _visible(found: LimitList, request: PageRequest) -> list[LimitRow]:
    return [row for row in (_row(each, request) for each in found.items) if row.tasks]


def _row(limit: LimitState, request: PageRequest) -> LimitRow:
    tasks = tuple(task for task in limit.tasks if request.access.sees_name(task))
    is_shared = len(tasks) < len(limit.tasks)
    row = LimitRow(**asdict(limit) | {"tasks": tasks, "is_shared": is_shared})
    return replace(row, running=None, starts=None, waiting=None) if is_shared else row
