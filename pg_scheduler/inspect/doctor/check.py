"""A check: bounded statements that read facts, and a pure function that judges them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pg_scheduler.inspect.doctor.codes import FindingCode
from pg_scheduler.inspect.doctor.findings import Finding, Thresholds, UnmadeCheck
from pg_scheduler.inspect.store.doctor import IndexRow, TableRow
from pg_scheduler.inspect.store.inspections import BacklogRow, InspectedWorker
from pg_scheduler.inspect.store.server import RoleRow
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.tasks import tasks_of_aliases
from pg_scheduler.jobs.model import Worker

Found: TypeAlias = Iterable[Finding | UnmadeCheck]

T = TypeVar("T")


def _once(read: Callable[[SharedFacts], Awaitable[T]]) -> Callable[[SharedFacts], Awaitable[T]]:
    @wraps(read)
    async def read_once(facts: SharedFacts) -> T:
        if read.__name__ not in facts.known:
            facts.known[read.__name__] = await read(facts)
        found: T = facts.known[read.__name__]
        return found

    return read_once


class SharedFacts:
    """The facts of one examination that several checks judge. Each is read once.

    Attributes:
        store: Reads those that one check judges.
        known: The facts that were read, by the name of the method.
    """

    def __init__(self, store: InspectionStore) -> None:
        self.store = store
        self.known: dict[str, Any] = {}

    @_once
    async def workers(self) -> Sequence[Worker]:
        """Return every worker that has a row."""
        return await self.store.workers.list_workers()

    @_once
    async def claims(self) -> Sequence[InspectedWorker]:
        """Return workers with the names that they claim."""
        return await self.store.inspections.workers()

    @_once
    async def backlog(self) -> Sequence[BacklogRow]:
        """Return the due jobs of names that are not paused."""
        rows = (await self.store.inspections.backlog()).rows
        tasks = tasks_of_aliases(await self.claims())
        pauses = [pause for pause in await self.store.pauses.paused() if not pause.is_over]
        paused = {tasks.get(pause.name, pause.name) for pause in pauses}
        return [row for row in rows if tasks.get(row.name, row.name) not in paused]

    @_once
    async def tables(self) -> Sequence[TableRow]:
        """Return the tables."""
        return await self.store.doctor.tables()

    @_once
    async def indexes(self) -> Sequence[IndexRow]:
        """Return the indexes of the tables."""
        return await self.store.doctor.indexes()

    @_once
    async def missing_indexes(self) -> Sequence[str]:
        """Return the indexes that are missing or invalid."""
        return await self.store.doctor.missing_indexes()

    @_once
    async def role(self) -> RoleRow:
        """Return the role of the connections."""
        return await self.store.server.role()


class Check(NamedTuple):
    """A check of one subject.

    Attributes:
        codes: The codes of its findings.
        run: Reads the facts and returns the findings.
    """

    codes: tuple[FindingCode, ...]
    run: Callable[[SharedFacts, Thresholds], Awaitable[Found]]


def check(*codes: FindingCode) -> Callable[[Callable[[SharedFacts, Thresholds], Awaitable[Found]]], Check]:
    """Make a function the check of these codes."""
    return partial(Check, codes)
