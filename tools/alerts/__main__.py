"""Cause each alert: ``python -m tools.alerts [--way WAY] [--only ALERT] [--into FOLDER]``; about 25 minutes.

Each way to run workers has a database, an exporter and two workers; one Prometheus with the shipped rules
scrapes them. Only the durations after ``for:`` are short, and two thresholds of half an hour and of
gigabytes. The run then executes the commands that ``pg-scheduler runbook ALERT NAME --id ID`` prints, and
waits until the alert has ended. Its result is a table: which alert fired for which way, what failed, and when
it ended.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import asyncpg

from pg_scheduler import Scheduler
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.migrate import migrate
from tools.alerts.causes import CAUSES, Cause, Situation
from tools.alerts.fleet import (
    WAYS,
    WORKERS,
    Processes,
    Prometheus,
    Service,
    debian_prometheus,
    free_ports,
)

PREFIX: Final = "PgScheduler"
QUIET_S: Final = 8.0
"""Seconds without an alert after which it has ended: an evaluation takes place every 3 s."""

LONGEST_WINDOW_S: Final = 16 * 60
"""The longest range that the cause of an alert must leave before it ends, and a minute."""


@dataclass(slots=True)
class Result:
    """What was seen of an alert for one way.

    Attributes:
        name: The name of the jobs that it is about; None for none.
        fired_s: Seconds from the cause until it fired; None if it did not.
        failed: The commands of its page that failed, and what was not cured.
        cured_at: When the page had been followed, by the monotonic clock.
        ended_s: Seconds from then until it fired no more; None if it still did.
    """

    alert: str
    way: str
    name: str | None
    fired_s: float | None = None
    failed: list[str] = field(default_factory=list)
    cured_at: float = 0.0
    ended_s: float | None = None

    @property
    def is_good(self) -> bool:
        """Whether it fired, its page worked, and it ended."""
        return self.fired_s is not None and not self.failed and self.ended_s is not None


class Watch:
    """Follows which alerts fire."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._polled = asyncio.Condition()
        self.until: dict[tuple[str, str | None, str | None], float] = {}
        """When each alert of a way fired last for a task, and for any, by the monotonic clock."""

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            alerts = await asyncio.to_thread(self._prometheus.firing)
            for alert in alerts:
                labels = alert["labels"]
                name = labels.get("job_name") or labels.get("task")
                for about in {name, None}:
                    self.until[labels["alertname"].removeprefix(PREFIX), labels.get("way"), about] = (
                        time.monotonic()
                    )
            async with self._polled:
                self._polled.notify_all()
            await asyncio.sleep(1)

    def fires(self, alert: str, way: str, name: str | None) -> bool:
        """Whether it has fired within the last seconds."""
        return time.monotonic() - self.until.get((alert, way, name), float("-inf")) < QUIET_S

    async def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is true after a poll; return whether it became so in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._polled:
                await self._polled.wait_for(condition)
        return condition()


async def examine(at: Situation, causes: Sequence[Cause], watch: Watch) -> list[Result]:
    """Cause the alerts of one way one after the other, and follow their pages."""
    results = []
    for cause in causes:
        result = Result(cause.alert, at.service.way, cause.name)
        results.append(result)
        began = time.monotonic()
        await cause.cause(at)
        if await watch.wait_for(partial(watch.fires, cause.alert, result.way, cause.name), cause.within_s):
            result.fired_s = time.monotonic() - began
        commands = await asyncio.to_thread(at.service.commands_of, cause.alert, cause.name, cause.subject)
        retries = [words for words in commands if words[:2] == ["jobs", "retry"]]
        await follow(at, [words for words in commands if words not in retries], result)
        if cause.cure is not None:
            await cause.cure(at)
        await follow(at, [[*words, "--yes"] for words in retries], result)
        if cause.afterwards is not None and not await cause.afterwards(at):
            result.failed.append("the commands did not cure it")
        result.cured_at = time.monotonic()
        report(result)
    return results


async def follow(at: Situation, commands: Sequence[Sequence[str]], result: Result) -> None:
    """Run commands of a page."""
    for words in commands:
        ran = await asyncio.to_thread(at.service.run, *words)
        if ran.returncode not in {0, 1}:  # 1 is the exit code of a doctor with findings
            result.failed.append(f"{' '.join(words)}: exit code {ran.returncode}")


def report(result: Result) -> None:
    """Print what was seen of an alert until it was cured."""
    fired = "did not fire" if result.fired_s is None else f"fired after {result.fired_s:.0f} s"
    problems = "".join(f"; {problem}" for problem in result.failed)
    print(f"{result.way:9} {PREFIX}{result.alert}: {fired}{problems}", flush=True)


async def await_ends(results: Sequence[Result], watch: Watch) -> None:
    """Wait until no alert fires any more."""

    def have_ended() -> bool:
        for result in results:
            if result.ended_s is None and not watch.fires(result.alert, result.way, result.name):
                end = watch.until.get((result.alert, result.way, result.name), result.cured_at)
                result.ended_s = max(end - result.cured_at, 0.0)
        return all(result.ended_s is not None for result in results)

    await watch.wait_for(have_ended, LONGEST_WINDOW_S)


async def run(
    program: Sequence[str], ways: Sequence[str], causes: Sequence[Cause], folder: Path
) -> list[Result]:
    """Run the services, and examine the alerts of all ways at the same time."""
    processes = Processes(folder)
    pools: list[asyncpg.Pool] = []
    with EmbeddedPostgres(settings={"fsync": "off", "max_connections": "300"}) as server:
        try:
            situations = []
            for way in ways:
                connection = await asyncpg.connect(server.dsn())
                await connection.execute(f"CREATE DATABASE {way}")
                await connection.close()
                connection = await asyncpg.connect(server.dsn(way))
                await migrate(connection)
                await connection.close()
                pools.append(pool := await asyncpg.create_pool(server.dsn(way), min_size=1, max_size=4))
                service = Service(way, server.dsn(way), processes, free_ports(WORKERS + 1))
                service.start_exporter()
                situations.append(Situation(service, pool, Scheduler(pool)))
            services = [situation.service for situation in situations]
            watch = Watch(Prometheus(program, services, processes))
            watching = asyncio.create_task(watch.run())
            found = await asyncio.gather(*(examine(each, causes, watch) for each in situations))
            results = [result for way in found for result in way]
            print("waiting until the alerts have ended", flush=True)
            await await_ends(results, watch)
            watching.cancel()
            return results
        finally:
            await asyncio.to_thread(processes.end)
            for pool in pools:
                pool.terminate()


def table(results: Sequence[Result], ways: Sequence[str]) -> str:
    """Return the results as a table in Markdown: a row for each alert, a column for each way."""
    lines = [f"| Alert | {' | '.join(ways)} |", f"|---|{'---|' * len(ways)}"]
    for alert in dict.fromkeys(result.alert for result in results):
        cells = []
        for way in ways:
            (result,) = [each for each in results if (each.alert, each.way) == (alert, way)]
            fired = "never fired" if result.fired_s is None else f"fired {result.fired_s:.0f} s"
            ended = "did not end" if result.ended_s is None else f"ended {result.ended_s:.0f} s"
            cells.append(", ".join([fired, ended, *result.failed]))
        lines.append(f"| {PREFIX}{alert} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run, print the table, and return 1 if anything is wrong."""
    # The processes of the run end with it, also if it is terminated.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="python -m tools.alerts")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this way to run workers")
    parser.add_argument("--only", action="append", help="only this alert, such as NameUnknown")
    parser.add_argument("--into", type=Path, help="the folder of the logs; else a temporary one")
    parser.add_argument("--prometheus", help="the program; else that of Debian")
    arguments = parser.parse_args()
    # The workers start as the cure of the first alert.
    causes = [cause for cause in CAUSES if not arguments.only or cause.alert in {"NoWorker", *arguments.only}]
    ways = arguments.way or list(WAYS)
    program = [arguments.prometheus] if arguments.prometheus else debian_prometheus()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.into or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        results = asyncio.run(run(program, ways, causes, folder))
    print(table(results, ways))
    return 0 if all(result.is_good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
