"""The steps of one job, one after the other."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal

TITLE: Final = "one job with 200 durable steps, one after the other"

MEASURE: Final = "steps/s"
GOALS: Final = (Goal(MEASURE, than="DBOS", least=1.5), Goal(MEASURE, than="absurd", least=1.2))

CONNECTIONS: Final = 20


async def measure(bench: Bench) -> None:
    """Run one job."""
    await measure_steps(bench, jobs=1, steps=bench.scale(200, 100), slots=1)


async def measure_steps(bench: Bench, *, jobs: int, steps: int, slots: int) -> None:
    """Measure the steps per second, from the start of the first job to the end of the last one."""

    async def one(contestant: Contestant, database: Database) -> None:
        await database.fill(contestant, jobs, job="steps", options={"arguments": {"steps": steps}})
        await database.settle()
        [result], load = await bench.drained(
            contestant,
            database,
            jobs,
            "tuned",
            job="steps",
            options={"slots": slots, "connections": CONNECTIONS},
        )
        count, seconds = jobs * steps, result["last"] - result["first"]
        bench.outcome.add(contestant.name, MEASURE, count / seconds)
        bench.outcome.add(contestant.name, "worker us/step", 1e6 * result["cpu"] / count)
        bench.outcome.add(contestant.name, "server us/step", 1e6 * load.cpu_seconds / count)
        bench.outcome.add(contestant.name, "WAL bytes/step", load.wal_bytes / count)
        bench.outcome.add(contestant.name, "transactions/step", load.transactions / count)

    await bench.alternate([OURS, *bench.durable_peers()], one)
