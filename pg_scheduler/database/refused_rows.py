"""Rows that the statements of a service leave out, because the application refuses their change.

A statement of a service changes many rows. A trigger, a CHECK or a foreign key of the application may refuse
the change of one of them, and then the whole statement fails. It would fail again in each pass, as long as
this row is among the first, so all the other rows would wait for it.

So after a refusal, the rows that the statement was about to change are read, and changed in halves until the
refused row is alone. The statement leaves it out for some time. While nothing is refused, the statement
is the only one, and its text stays the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import asyncpg

from pg_scheduler.database.faults import REFUSALS, REFUSED_PAUSE_S, is_refusal
from pg_scheduler.database.statements import Statements
from pg_scheduler.events.log import log_refusal

T = TypeVar("T")

MAX_REFUSALS: Final = 100
"""One call leaves out at most so many rows more than it returns, and then it ends. If there are more, the
application refuses nearly all rows. The next pass continues."""

MAX_MISSES: Final = 3
"""How often one call may be refused while it finds no row that it is about to change. After that no row can
be the reason, so the call raises the error."""


class Selection(NamedTuple):
    """Which rows a statement changes. The names are those of the arguments of ``Statements.fetch()``.

    Attributes:
        left_out: The keys of rows that it leaves out.
        only: The keys of the only rows that it changes; empty for any.
        finds: Whether it returns the keys of the rows instead of changing them.
    """

    left_out: Collection[str] = ()
    only: Sequence[str] = ()
    finds: bool = False


Run = Callable[[Selection], Awaitable[list[asyncpg.Record]]]
"""Runs a statement that is one of ``REFUSABLE``, in a transaction of its own."""


class RefusedRows:
    """The rows that the statements of one kind leave out.

    Args:
        problem: What is not done while a row is left out, with ``{}`` for the key of the row.
        are_jobs: Whether the key is the id of a job.
        is_retried: Whether there is another attempt.
        by_pass: Whether the next pass of the service makes that attempt, and begins long after the pause.
    """

    def __init__(
        self, problem: str, *, are_jobs: bool = True, is_retried: bool = True, by_pass: bool = False
    ) -> None:
        self._problem = problem
        self._are_jobs = are_jobs
        self._is_retried = is_retried
        self._by_pass = by_pass
        # Until when a row is left out, by its key and the monotonic clock.
        self._pause_ends: dict[str, float] = {}

    def keys(self) -> Collection[str]:
        """Return the keys of the rows whose pause has not ended."""
        if self._pause_ends:
            now = time.monotonic()
            self._pause_ends = {key: until for key, until in self._pause_ends.items() if until > now}
        return self._pause_ends

    @property
    def ends_in(self) -> float:
        """Seconds until the first pause ends; infinite if no row is left out."""
        self.keys()  # forgets the rows whose pause has ended
        return max(min(self._pause_ends.values(), default=float("inf")) - time.monotonic(), 0.0)

    async def attempt(self, key: str, run: Callable[[], Awaitable[T]]) -> T | None:
        """Run a change of one row; return None if the row is left out already, or is refused now.

        A row that is refused is left out for some time, in which its change is not attempted again.
        """
        if key in self.keys():
            return None
        try:
            return await run()
        except REFUSALS as error:
            if not is_refusal(error):
                raise
            self._leave_out(key, error)
            return None

    async def change_parts(
        self, keys: Sequence[str], run: Callable[[Sequence[str]], Awaitable[list[asyncpg.Record]]]
    ) -> list[asyncpg.Record]:
        """Run a statement for the rows with these keys, in halves if it is refused.

        Return what its executions return. The rows that are refused even alone are left out for some time.
        """
        rows: list[asyncpg.Record] = []
        await self._change_accepted(lambda selection: run(selection.only), keys, rows)
        return rows

    async def fetch(self, name: str, *args: Any, statements: Statements) -> list[asyncpg.Record]:
        """Run a named statement that changes many rows, but none that the table refuses; see ``change()``."""

        async def run(selection: Selection) -> list[asyncpg.Record]:
            return await statements.fetch(name, *args, **selection._asdict())

        return await self.change(run)

    async def number(self, name: str, *args: Any, statements: Statements) -> int:
        """Run a named statement as ``fetch()`` does; return the sum of the numbers that it returns.

        Each of its executions changes some rows, and returns how many.
        """
        return sum(row[0] for row in await self.fetch(name, *args, statements=statements))

    async def change(self, run: Run) -> list[asyncpg.Record]:
        """Run a statement that changes many rows; leave out those that the table refuses.

        If one row is refused, the statement changes none. So the rows that it was about to change are read
        and changed in halves. Then it runs again for further rows. Return the rows of all its executions.

        Raises:
            asyncpg.PostgresError: It is refused although it changes no row, so no row is the reason.
        """
        rows: list[asyncpg.Record] = []
        # How many rows were refused, and how often no row was found that could have been refused.
        refusal_count = misses = 0
        while True:
            try:
                return rows + await run(Selection(left_out=self.keys()))
            except REFUSALS as error:
                if not is_refusal(error):
                    raise
                if refusal_count >= MAX_REFUSALS:
                    return rows
                key_rows = await run(Selection(left_out=self.keys(), finds=True))
                if not key_rows:
                    # Another pass may hold the rows. If it has left out the refused one, the next execution
                    # succeeds.
                    misses += 1
                    if misses == MAX_MISSES:
                        raise
                    continue
            new_refusals = await self._change_accepted(run, [row[0] for row in key_rows], rows)
            refusal_count += new_refusals
            # All rows were accepted this time, so nothing keeps the next pass from further rows.
            if not new_refusals:
                return rows
            # The statement runs again: other rows take the places of those that are left out now.

    async def _change_accepted(self, run: Run, keys: Sequence[str], rows: list[asyncpg.Record]) -> int:
        """Change the rows that are accepted, and add what the statement returns to ``rows``.

        Return how many of the other rows are left out now.
        """
        # If nearly all rows are refused, the loop ends before the last one.
        parts, refusal_count = deque([keys]), 0
        while parts and refusal_count < MAX_REFUSALS + len(rows):
            part = parts.popleft()
            try:
                rows += await run(Selection(only=part))
            except REFUSALS as error:
                if not is_refusal(error):
                    raise
                # One of several rows is refused, so each half is changed alone.
                if len(part) > 1:
                    parts += [part[: len(part) // 2], part[len(part) // 2 :]]
                    continue
                refusal_count += 1
                self._leave_out(part[0], error)
        return refusal_count

    def _leave_out(self, key: str, error: Exception) -> None:
        """Leave out a row until its pause ends, and log the reason."""
        self.keys()  # forgets the rows whose pause has ended
        self._pause_ends[key] = time.monotonic() + REFUSED_PAUSE_S
        log_refusal(
            self._problem.format(key),
            error,
            pause_s=None if self._by_pass else REFUSED_PAUSE_S,
            is_last=not self._is_retried,
            job_id=key if self._are_jobs else None,
        )
