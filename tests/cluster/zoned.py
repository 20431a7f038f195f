"""A schedule in Berlin that nodes declare with ``--jobs tests.cluster.zoned``."""

from __future__ import annotations

from datetime import date, time

from pg_scheduler import periodic
from pg_scheduler.triggers import CalendarInterval
from tests.support.zones import BERLIN


@periodic(
    trigger=CalendarInterval(years=1, first=date(2090, 1, 2), at=time(9), timezone=BERLIN), dedup_key="zoned"
)
async def celebrate() -> None: ...
