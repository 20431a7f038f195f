"""Latency of an immediate job on an idle worker."""

from __future__ import annotations

from typing import Any, Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import BARE_LISTENER, OURS, Contestant
from benchmarks.results import Curve, Goal, percentile

TITLE: Final = "pick-up of an immediate job by an idle worker, from the call to the start, ms"

GOALS: Final = (
    *(
        Goal(f"{name}, {how}", than="bare loop", most=1.25)
        for how in ("other process", "other process, asyncio", "one every 3 s")
        for name in ("p50", "p99")
    ),
    Goal("p50, same process", than="bare loop", than_measure="p50, other process", most=1.25),
)

PEERS: Final = ("PgQueuer", "graphile-worker")

ASYNCIO: Final = {"loop": "asyncio"}


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

    async def on_asyncio(contestant: Contestant, database: Database) -> None:
        samples = await delays_from_another_process(contestant, database, n, 0.05, options=ASYNCIO)
        record_delays(bench, contestant.name, "other process, asyncio", samples)

    async def seldom(contestant: Contestant, database: Database) -> None:
        samples = await delays_from_another_process(contestant, database, bench.scale(30, 3), 3.0)
        record_delays(bench, contestant.name, "one every 3 s", samples)

    await bench.alternate(bench.contestants(named=PEERS, bare=BARE_LISTENER), one)
    if n < 100:
        bench.outcome.note(f"with {n} jobs p99 is the maximum")
    await bench.alternate([OURS, BARE_LISTENER], on_asyncio)  # an older checkout may know uvloop only
    await bench.alternate(bench.contestants(bare=BARE_LISTENER, others=False), seldom, rounds=1)
