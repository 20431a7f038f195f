"""Search jobs with conditions, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from pg_scheduler.jobs.model import Job
from pg_scheduler.store.connections.session import Connection
from pg_scheduler.store.faults import translated
from pg_scheduler.store.queries import load_search
from pg_scheduler.store.records import job_from
from pg_scheduler.store.statements import Statements

__all__ = ["Condition", "Examined", "SearchRepository"]


class Condition(NamedTuple):
    """A condition of a search.

    Attributes:
        name: The name of its SQL in ``search.sql``, without ``search_``.
        values: The values of its parameters.
        is_negated: Whether the jobs are searched for which it does not hold.
    """

    name: str
    values: Sequence[object]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of examining some rows.

    Attributes:
        jobs: The jobs that match, each with the number of rows that were examined up to it.
        last: The last job that was examined; None if there was none.
        count: The number of rows that were examined.
    """

    jobs: list[tuple[Job, int]]
    last: Job | None
    count: int


class SearchRepository:
    """The statements that search jobs.

    Args:
        statements: Runs the statements.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """Yield a transaction for the statements of a page, with planner settings."""
        return self._statements.transaction()

    async def newest(
        self, before: str | None, conditions: Sequence[Condition], *, limit: int, rows: int, on: Connection
    ) -> Examined:
        """Examine jobs in the descending order of their ids.

        Args:
            before: The id before which the search starts; None for the largest one.
            conditions: What the jobs fulfil.
            limit: The number of jobs that are returned at most.
            rows: The number of rows that are examined at most.
            on: The connection of the page.
        """
        return await self._examine("search_newest", (before,), conditions, limit=limit, rows=rows, on=on)

    async def _examine(
        self,
        name: str,
        position: Sequence[object],
        conditions: Sequence[Condition],
        *,
        limit: int,
        rows: int,
        on: Connection,
    ) -> Examined:
        schema = await self._statements.schema(on=on)
        query = load_search(schema, name, tuple((each.name, each.is_negated) for each in conditions))
        values = [value for each in conditions for value in each.values]
        with translated():
            found = await on.fetch(
                query.text, limit, rows, *position, *values, timeout=self._statements.call_timeout_s
            )
        return _examined(found)


def _examined(rows: Sequence[Any]) -> Examined:
    jobs: list[tuple[Job, int]] = []
    last, count = None, 0
    for row in rows:
        values = dict(row)
        count = values.pop("place")
        matches = values.pop("matches")
        last = job_from(values)
        if matches:
            jobs.append((last, count))
    return Examined(jobs, last, count)
