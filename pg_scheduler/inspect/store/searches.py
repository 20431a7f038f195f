"""Search jobs with conditions, a bounded number of rows at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pg_scheduler.base.sqltext import quote_identifier
from pg_scheduler.database.faults import translated
from pg_scheduler.database.queries import Query, compose_query, load_fragment, load_query
from pg_scheduler.database.records import job_from
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Repository
from pg_scheduler.errors import SchemaMissingError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.model import Job

TABLE: Final = "scheduled_jobs"

_PARAMETER: Final = re.compile(r"\$(\d+)")


class Condition(NamedTuple):
    """A condition of a search for jobs.

    Attributes:
        name: The name of its SQL in ``searches.sql``, without ``search_``.
        values: The values of its parameters.
        is_negated: Whether the search returns the jobs that do not fulfil the condition.
    """

    name: str
    values: Sequence[object]
    is_negated: bool = False


class Scan(NamedTuple):
    """The jobs that a statement examines and returns.

    Attributes:
        conditions: The conditions that the jobs fulfil.
        limit: The maximum number of returned jobs.
        rows: The maximum number of examined rows.
    """

    conditions: Sequence[Condition]
    limit: int
    rows: int


class Sizes(NamedTuple):
    """The sizes of the table of jobs and its usable indexes.

    Attributes:
        now: The time of the database.
        estimates: The estimated number of rows by name; None for a relation that was never analyzed.
        standby_lag_s: The age of the data of a standby in seconds; None on a primary.
    """

    now: datetime
    estimates: Mapping[str, int | None]
    standby_lag_s: float | None


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


class SearchRepository(Repository):
    """The statements that search jobs."""

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """Return a context manager of a transaction for the statements of a page.

        The transaction has settings of the planner, by which it reads indexes and not the whole table.
        """
        return self._statements.connections.transaction(reserved=True)

    async def sizes(self, *, on: Connection | None = None) -> Sizes:
        """Return the estimated sizes of the table of jobs and its usable indexes, and the database's time."""
        table = f"{quote_identifier(await self._statements.schema(on=on))}.{TABLE}"
        rows = await self._statements.fetch("read_sizes", self._statements.now, table, on=on)
        if not rows:
            raise SchemaMissingError(f"the table {TABLE} does not exist")
        estimates = {row["name"]: row["estimate"] for row in rows}
        return Sizes(rows[0]["now"], estimates, rows[0]["standby_lag_s"])

    async def ids(self, ids: Sequence[str], scan: Scan, *, on: Connection) -> Examined:
        """Examine the jobs of these ids."""
        return await self._examine("search_ids", (ids,), scan, on)

    async def waiting(
        self,
        priority: int,
        after: tuple[datetime, str],
        until: datetime | None,
        scan: Scan,
        *,
        on: Connection,
    ) -> Examined:
        """Examine pending and running jobs of a priority that are not blocked, in the order of their start.

        Args:
            priority: The number of the priority.
            after: The due time and the id after which the scan starts.
            until: The due time before which it ends; None for no bound.
            scan: The conditions and bounds.
            on: The connection of the page.
        """
        return await self._examine("search_waiting", (priority, *after, until), scan, on)

    async def due(
        self,
        priorities: Sequence[int],
        after: tuple[datetime, str],
        until: datetime | None,
        scan: Scan,
        *,
        on: Connection,
    ) -> Examined:
        """Examine pending and running jobs of several priorities that are not blocked, by their due time.

        To examine n rows, up to n rows of each priority are read. The other parameters are those of
        ``waiting()``.
        """
        return await self._examine("search_due", (priorities, *after, until), scan, on)

    async def blocked(self, after: tuple[str, int, datetime, str], scan: Scan, *, on: Connection) -> Examined:
        """Examine blocked jobs, in the order of what they wait for, priority, due time and id."""
        return await self._examine("search_blocked", after, scan, on)

    async def unsuccessful(
        self, before: tuple[datetime, str], since: datetime | None, scan: Scan, *, on: Connection
    ) -> Examined:
        """Examine finished jobs that have an error, the newest first.

        Args:
            before: The end and the id before which the scan starts.
            since: The instant at which the scan ends; None for no bound.
            scan: The conditions and bounds.
            on: The connection of the page.
        """
        return await self._examine("search_unsuccessful", (*before, since), scan, on)

    async def newest(
        self, before: str | None, scan: Scan, *, since: str | None = None, on: Connection
    ) -> Examined:
        """Examine jobs in the descending order of their ids, before an id and down to another id.

        ``before`` is None to start with the greatest id, and ``since`` is None to go down to the smallest
        one.
        """
        return await self._examine("search_newest", (before, since), scan, on)

    async def _examine(self, name: str, position: Sequence[object], scan: Scan, on: Connection) -> Examined:
        """Run a statement of ``searches.sql`` with the bounds and conditions of a scan, at a position.

        ``position`` are the values of the parameters that state where the scan starts and ends.
        """
        schema = await self._statements.schema(on=on)
        named_conditions = tuple((condition.name, condition.is_negated) for condition in scan.conditions)
        query = load_search(schema, name, named_conditions)
        # The parameters of the conditions follow those of the statement, in the order of the conditions.
        values = [value for condition in scan.conditions for value in condition.values]
        with translated():
            rows = await on.fetch(
                query.text, scan.limit, scan.rows, *position, *values, timeout=self._statements.call_timeout_s
            )
        return _examined_from(rows, self._statements.codec)


@lru_cache(maxsize=256)
def load_search(schema: str, name: str, conditions: Sequence[tuple[str, bool]]) -> Query:
    """Return a statement of ``searches.sql`` with conditions.

    Args:
        schema: The schema of the tables.
        name: The name of the statement.
        conditions: The names of the conditions, and whether each is negated. Their parameters follow those of
            the statement, in this order.
    """
    unconditional = load_query(schema, name)
    if not conditions:
        return unconditional
    # The text of each condition numbers its parameters from 1. They are renumbered so that they follow those
    # of the statement and of the conditions before.
    offset = _last_parameter(unconditional.text)
    texts = []
    for condition, is_negated in conditions:
        text = load_fragment(f"search_{condition}")
        # A condition about a value that is NULL is neither true nor false. It counts as not fulfilled.
        test = "IS NOT TRUE" if is_negated else "IS TRUE"
        texts.append(f"({_renumbered(text, offset)}) {test}")
        offset += _last_parameter(text)
    return compose_query(schema, name, search_conditions=" AND ".join(texts))


def _last_parameter(text: str) -> int:
    """Return the greatest number of a parameter, such as 3 for ``$3``, in SQL; 0 without parameters."""
    return max((int(match[1]) for match in _PARAMETER.finditer(text)), default=0)


def _renumbered(text: str, by: int) -> str:
    """Return SQL in which the number of each parameter is greater by ``by``."""
    return _PARAMETER.sub(lambda match: f"${int(match[1]) + by}", text)


def _examined_from(rows: Sequence[Any], codec: PayloadCodec | None) -> Examined:
    """Return the result of a statement from its rows.

    These are the jobs that match, in order, and after them the last examined job in any case. ``place`` of a
    row is the number of rows that were examined up to it, and ``matches`` is whether its job matches.
    """
    jobs: list[tuple[Job, int]] = []
    last_job, count = None, 0
    for row in rows:
        values = dict(row)
        count = values.pop("place")
        matches = values.pop("matches")
        last_job = job_from(values, codec)
        if matches:
            jobs.append((last_job, count))
    return Examined(jobs, last_job, count)
