"""A check: bounded statements that read facts, and a pure function that judges them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeAlias

from pg_scheduler.inspect.doctor.codes import FindingCode
from pg_scheduler.inspect.doctor.findings import Finding, UnmadeCheck
from pg_scheduler.inspect.doctor.thresholds import Thresholds
from pg_scheduler.inspect.store.store import InspectionStore

Found: TypeAlias = Iterable[Finding | UnmadeCheck]


class Check(NamedTuple):
    """A check of one subject.

    Attributes:
        codes: What it can find.
        run: Reads the facts and returns what was found.
    """

    codes: tuple[FindingCode, ...]
    run: Callable[[InspectionStore, Thresholds], Awaitable[Found]]
