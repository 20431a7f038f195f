"""The time of computing one fire time."""

from __future__ import annotations

import time as clock
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from benchmarks.bench import Bench
from benchmarks.results import Goal
from pg_scheduler.triggers import At, CalendarInterval, Cron, During, Every, FixedDelay, Trigger

TITLE: Final = "next_after() of each trigger, a minute and a year after its anchor: microseconds"

ANCHOR: Final = datetime(2030, 1, 1, 12, 34, 56, tzinfo=UTC)
ZONE: Final = "Europe/Berlin"
OFFICE: Final = During(weekdays="mon-fri", start=time(9), end=time(17), timezone=ZONE)

TRIGGERS: Final[tuple[Trigger, ...]] = (
    At(ANCHOR, ANCHOR + timedelta(days=700)),
    Every(minutes=15),
    FixedDelay(timedelta(minutes=15)),
    CalendarInterval(months=1, at=time(2, 30), timezone=ZONE, first=date(1970, 1, 31)),
    Cron("30 2 * * *", ZONE),
    Cron("* * * * * *", ZONE),
    Cron("0 0 29 2 *", ZONE),
    Every(minutes=15) & OFFICE,
    Every(minutes=15) | Every(minutes=20),
    Every(hours=2) & During(weekdays="wed", timezone=ZONE),
    Cron("0 9 * * 1-5", ZONE) - During(dates=(date(2030, 1, 2), date(2031, 1, 3)), timezone=ZONE),
)

GOALS: Final = tuple(
    Goal(f"us, {age}: {trigger}", most=20) for trigger in TRIGGERS for age in ("minute", "year")
)


async def measure(bench: Bench) -> None:
    """Call each trigger in turn, so that the speed of the machine is the same for all."""
    n = bench.scale(20_000, 2_000)
    ages = {"minute": ANCHOR + timedelta(minutes=1), "year": ANCHOR + timedelta(days=366, minutes=1)}
    for _ in range(bench.rounds):
        for trigger in TRIGGERS:
            for age, instant in ages.items():
                began = clock.perf_counter()
                for _ in range(n):
                    trigger.next_after(instant, anchor=ANCHOR)
                passed = clock.perf_counter() - began
                bench.outcome.add("ours", f"us, {age}: {trigger}", passed / n * 1e6)
