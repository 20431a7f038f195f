"""The steps of many jobs at once."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench
from benchmarks.results import Goal
from benchmarks.rows.steps_one import MEASURE, measure_steps

TITLE: Final = "300 jobs with 20 durable steps each, 100 slots"

GOALS: Final = (Goal(MEASURE, than="DBOS", least=4.0), Goal(MEASURE, than="absurd", least=4.0))


async def measure(bench: Bench) -> None:
    """Drain the jobs."""
    await measure_steps(bench, jobs=300, steps=bench.scale(20, 5), slots=100)
