"""Fill the statistics of the hours before the demo, so that the charts of the dashboard are not empty.

The figures are generated, the same ones in each run. The figures of the demo itself come from its workers.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import asyncpg

from pg_scheduler.base.figures import BOUNDS, OUTCOMES

SEED: Final = 11
MINUTES: Final = 6 * 60
PERIOD_MINUTES: Final = 90
"""The load rises and falls within this time."""

INCIDENT_MINUTES: Final = range(25, 33)
"""Minutes before the demo in which charges failed and jobs were late."""

INSERT_STATISTICS: Final = """
    INSERT INTO scheduler_stats (bucket, span, job_name, counts, sums, run_hist, late_hist)
    VALUES ($1, 60, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING
"""


class Load(NamedTuple):
    """The usual figures of a task: jobs a minute, seconds of an attempt, share of failures."""

    per_minute: int
    run_s: float
    failure_share: float


LOADS: Final = {
    "shop.mail": Load(600, 0.025, 0.0),
    "shop.charge": Load(120, 0.4, 0.03),
    "shop.thumbnail": Load(120, 0.15, 0.01),
}


async def write_history(pool: asyncpg.Pool, now: datetime | None = None) -> None:
    """Add a row of statistics for each task and minute of the last six hours, up to ``now``."""
    dice = random.Random(SEED)
    this_minute = (now or datetime.now(UTC)).replace(second=0, microsecond=0)
    # Each row has the parameters of the statement: the minute, the task and its figures.
    rows = [
        (this_minute - timedelta(minutes=minutes_ago), name, *_figures(load, minutes_ago, dice))
        for minutes_ago in range(1, MINUTES)
        for name, load in LOADS.items()
    ]
    async with pool.acquire() as connection:
        await connection.executemany(INSERT_STATISTICS, rows)


def _figures(
    load: Load, minutes_ago: int, dice: random.Random
) -> tuple[list[int], list[float], list[int], list[int]]:
    """Return the generated values of a task in a minute, for the last four columns of the statistics.

    These are the counts, the sums of the durations and of the lateness, and the histograms of both.
    """
    is_incident = minutes_ago in INCIDENT_MINUTES
    wave = 1 + 0.5 * math.sin(minutes_ago * 2 * math.pi / PERIOD_MINUTES)
    number = round(load.per_minute * wave * dice.uniform(0.9, 1.1))
    # In the incident, eight times as many attempts failed as usual.
    failure_factor = 8 if is_incident else dice.uniform(0, 2)
    failed = round(number * load.failure_share * failure_factor)
    # Each outcome has a number, in the order of the table. Most of them are 0.
    ended = dict.fromkeys(OUTCOMES, 0)
    ended["completed"] = number - failed
    ended["failed"] = failed
    lateness_s = 0.8 if is_incident else 0.004
    runs_s = [load.run_s * dice.lognormvariate(0, 0.4) for _ in range(number)]
    delays_s = [lateness_s * dice.lognormvariate(0, 0.7) for _ in range(number)]
    # The order in the table is: scheduled, started, then the outcomes.
    counts = [number, number, *ended.values()]
    sums = [sum(runs_s), sum(delays_s)]
    return counts, sums, list(_histogram(runs_s)), list(_histogram(delays_s))


def _histogram(values: list[float]) -> Iterator[int]:
    """Yield how many values are in each bucket of the statistics. The last bucket has no upper bound."""
    # The place of the bucket of each value.
    places = [bisect_left(BOUNDS, value) for value in values]
    return (places.count(place) for place in range(len(BOUNDS) + 1))
