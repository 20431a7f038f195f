"""A job of a schedule that was removed counts nothing in a later schedule with the same id."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pg_scheduler import current_job
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Every
from tests.support.store import Pool

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
TEN_MINUTES = timedelta(minutes=10)


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "completes"])
async def test_end_of_a_job_of_the_removed_schedule_counts_nothing(pool: Pool, fails: bool) -> None:
    async def report(name: str) -> None:
        if name == "former":
            # The job ends after the fire time of the new schedule.
            await current_job().steps.sleep("night", timedelta(minutes=15))
        if fails or name == "new":
            raise ValueError(name)

    async with TestScheduler(pool, now=START) as t:
        schedules = t.scheduler.schedules
        t.scheduler.register(report, name="report")
        await schedules.add(
            "report", Every(TEN_MINUTES), schedule_id="S", args=("former",), pause_after_failures=2
        )
        await t.run_until(timedelta(minutes=11))
        await schedules.remove("S")
        await schedules.add(
            "report", Every(TEN_MINUTES), schedule_id="S", args=("new",), pause_after_failures=2
        )
        # The new schedule fails once, before the job of the former one ends.
        await t.run_until(timedelta(minutes=16))
        row = await schedules.get("S")
        assert row is not None
        assert (row.runs, row.failures, row.paused_at) == (1, 1, None)
        await t.run_until(TEN_MINUTES)
        row = await schedules.get("S")
        assert row is not None
        assert (row.runs, row.failures, row.note) == (2, 2, "ValueError: new")
