"""What callers record of calls that belong to no single job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class DebouncedCall:
    """A call for a debounced job, by the monotonic clock; ``ended`` is None if its answer is unknown."""

    version: int
    began: float
    ended: float | None = None


@dataclass(slots=True)
class Broadcast:
    """A broadcast to the jobs of a group; ``reached`` is None if its answer is unknown."""

    value: str
    job_ids: tuple[str, ...]
    reached: int | None = None


@dataclass(slots=True)
class Reading:
    """What a reader got of a stream, by number, and when; ``ended`` is None if it did not read to the end."""

    began: float
    items: list[tuple[int, Any]] = field(default_factory=list)
    ended: float | None = None
    name: Any = None


@dataclass(slots=True)
class WorkflowCalls:
    """The calls of a run: of debounced jobs by key, the broadcasts, and the readings by job."""

    debounced: dict[str, list[DebouncedCall]] = field(default_factory=dict)
    broadcasts: list[Broadcast] = field(default_factory=list)
    readings: dict[str, Reading] = field(default_factory=dict)
