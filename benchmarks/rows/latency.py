"""Latency of an immediate job on an idle worker."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import Contestant
from benchmarks.results import Curve, Goal, percentile

__all__ = ["GOALS", "TITLE", "measure", "record_delays"]

TITLE: Final = "pick-up of an immediate job by an idle worker, from the call to the start, ms"

GOALS: Final = (
    Goal("p50, other process", most=1.5),
    Goal("p99, other process", most=3.0),
    Goal("p50, same process", most=1.2),
    Goal("p50, one every 3 s", most=1.5),
    Goal("p99, one every 3 s", most=3.0),
)

PEERS: Final = ("PgQueuer", "graphile-worker")


def record_delays(
    bench: Bench, contestant: str, label: str, samples: list[float], *, plot: str | None = None
) -> None:
    """Record percentiles in milliseconds, and the distribution for a plot."""
    milliseconds = sorted(1000 * each for each in samples)
    suffix = f", {label}" if label else ""
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        bench.outcome.add(contestant, name + suffix, percentile(milliseconds, share))
    bench.outcome.add(contestant, "max" + suffix, milliseconds[-1] if milliseconds else float("nan"))
    if plot and milliseconds:
        shares = [(index + 1) / len(milliseconds) for index in range(len(milliseconds))]
        bench.outcome.curves.append(Curve(plot, contestant, milliseconds, shares))


async def delays_from_another_process(
    contestant: Contestant, database: Database, n: int, every: float, **order: Any
) -> list[float]:
    """Return the delays of jobs that another process enqueues."""
    async with (
        database.worker(contestant, n=n, **order) as worker,
        database.driver(contestant, "single", n=n, every=every) as sender,
    ):
        await sender.ready()
        await sender.go()
        await sender.result()
        result = await worker.result()
    # The first jobs are left out because they run with cold caches.
    samples: list[float] = result["samples"]
    return samples[min(5, n // 10) :]


async def measure(bench: Bench) -> None:
    """Measure with default settings, or tuned ones if the defaults use no notifications."""
    n = bench.scale(300, 40)

    async def one(contestant: Contestant, database: Database) -> None:
        mode = "tuned" if contestant.name in {"pg-boss", "pg-scheduler 0.2.3"} else "default"
        plot = "Pick-up of an immediate job, ms"
        samples = await delays_from_another_process(contestant, database, n, 0.05, mode=mode)
        record_delays(bench, contestant.name, "other process", samples, plot=plot)
        if contestant.name == "ours":
            result = await database.run(contestant, "both", n=n, every=0.05)
            record_delays(bench, contestant.name, "same process", result["samples"])

    async def seldom(contestant: Contestant, database: Database) -> None:
        samples = await delays_from_another_process(contestant, database, bench.scale(30, 3), 3.0)
        record_delays(bench, contestant.name, "one every 3 s", samples)

    await bench.alternate(bench.contestants(named=PEERS), one)
    if n < 100:
        bench.outcome.note(f"with {n} jobs p99 is the maximum")
    await bench.alternate(bench.contestants(others=False), seldom, rounds=1)
