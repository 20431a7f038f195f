"""A worker of the test kit that crashes at one of its statements, by number."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import asyncpg

from pg_scheduler.testing import TestScheduler
from pg_scheduler.testing.crashing_worker import CLAIMS, CrashingWorker, Moment, Point, StatementPlace
from pg_scheduler.testing.worker import ManualScheduler

PLANS: Final = frozenset({"due_schedules"})


class NumberedCrash(CrashingWorker):
    """Lets the worker of a TestScheduler crash before or after a statement of its pool.

    The pool has connections of the class NumberedConnection.

    Args:
        t: The TestScheduler.
        number: The number of the statement, from 0.
        moment: Before or after it.
        plans: Whether only statements from the first due schedule to the first claim count; otherwise those
            from the first claim.
    """

    def __init__(self, t: TestScheduler, number: int, moment: Moment, *, plans: bool) -> None:
        super().__init__(t, {}, None)
        self._number = number
        self._moment = moment
        self._first = PLANS if plans else CLAIMS
        self._last = CLAIMS if plans else frozenset[str]()
        self._counts_on = False

    async def execute(
        self, connection: asyncpg.Connection, statement: str, run: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Execute a statement of this worker, or crash."""
        if self.crashed_at is not None:
            raise asyncio.CancelledError("the worker has crashed")
        name = self._names.get(statement)
        self._counts_on = (self._counts_on or name in self._first) and name not in self._last
        if not self._counts_on:
            return await run()
        place = StatementPlace(statement, self._statement_count)
        if self._statement_count == self._number:
            self._point = Point(place, self._moment)
        self._statement_count += 1
        self._crash_if_planned(place, "before")
        try:
            return await run()
        finally:
            if self.crashed_at is None:
                self._crash_if_planned(place, "after")

    async def run(self, span: timedelta) -> bool:
        """Move the clock and run what is due, as ``run_until()`` does; return False if the worker crashed."""
        scheduler = self._t.scheduler
        assert isinstance(scheduler, ManualScheduler)
        self._names = await scheduler.statement_names()
        return await self._run_until_crash(self._t.now + span)
