"""Measure what a start and a stop cost a process and the server, in one checkout or in two, A B A B.

``python -m benchmarks.start FOLDER`` starts and stops an empty worker, and a client that enqueues one job, on
a database whose tables are up to date. Each has a pool of its own, as a command or a test has. With two
folders, they take turns, and a third line has the ratio of their medians. It measures CPU time, so other
processes of the machine matter less; that of the server includes the processes of connections.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import asyncpg

ROUNDS: Final = 4
"""Processes per checkout."""

WARM_UP: Final = 5
"""Starts of each kind in a process that are not measured."""

STARTS: Final = 40
"""Starts of each kind in a process."""

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
Start = Callable[[str], Awaitable[None]]


async def work() -> None:
    """Do nothing."""


async def start_worker(dsn: str) -> None:
    """Start and stop a worker without jobs."""
    from pg_scheduler import Scheduler  # noqa: PLC0415 - that of the folder

    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool, Scheduler(pool):
        pass


async def enqueue_one(dsn: str) -> None:
    """Enqueue one job in a process that runs none."""
    from pg_scheduler import Scheduler  # noqa: PLC0415 - that of the folder

    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool:
        scheduler = Scheduler(pool)
        await scheduler.enqueue(work)
        await scheduler.shutdown()


CASES: Final[dict[str, Start]] = {"worker": start_worker, "client": enqueue_one}


def cpu_of_server(postmaster: int) -> float:
    """Return the seconds of CPU of all processes of a server so far, with those that have ended."""
    ticks = 0
    for pid in [postmaster, *children_of(postmaster)]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except FileNotFoundError:  # it has ended since, and the next reading has it in the sum of its parent
            continue
        # utime and stime, and for the parent those of its children that have ended.
        ticks += sum(map(int, fields[11:15] if pid == postmaster else fields[11:13]))
    return ticks / TICKS_PER_S


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


async def measure_case(start: Start, dsn: str, postmaster: int) -> dict[str, float]:
    """Return the milliseconds of CPU of one start, here and in the server."""
    for _ in range(WARM_UP):
        await start(dsn)
    began, began_there = time.process_time(), cpu_of_server(postmaster)
    for _ in range(STARTS):
        await start(dsn)
    ended, ended_there = time.process_time(), cpu_of_server(postmaster)
    return {
        "python_ms": (ended - began) / STARTS * 1000,
        "server_ms": (ended_there - began_there) / STARTS * 1000,
    }


def measure(folder: str) -> None:
    """Write the costs of each case as JSON, with the package of a folder."""
    sys.path.insert(0, folder)
    from pg_scheduler.embedded import EmbeddedPostgres  # noqa: PLC0415 - that of the folder
    from pg_scheduler.migrate import migrate  # noqa: PLC0415 - that of the folder

    async def run(dsn: str, postmaster: int) -> dict[str, Any]:
        """Make the tables, and measure all cases."""
        connection = await asyncpg.connect(dsn)
        await migrate(connection)
        await connection.close()
        return {name: await measure_case(start, dsn, postmaster) for name, start in CASES.items()}

    with EmbeddedPostgres() as server:
        assert server.pid is not None
        costs = asyncio.run(run(server.dsn(), server.pid))
    sys.stdout.write(json.dumps(costs) + "\n")


def compare(folders: list[str]) -> None:
    """Write the medians of each folder as JSON, and of two their ratios."""
    results: list[list[dict[str, dict[str, float]]]] = [[] for _ in folders]
    for _ in range(ROUNDS):
        for index, folder in enumerate(folders):
            command = [sys.executable, __file__, "--one", folder]
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            results[index].append(json.loads(output.splitlines()[-1]))
    medians = [
        {
            name: {key: statistics.median(round_[name][key] for round_ in rounds) for key in rounds[0][name]}
            for name in CASES
        }
        for rounds in results
    ]
    for folder, figures in zip(folders, medians, strict=True):
        sys.stdout.write(json.dumps({"folder": folder, **figures}) + "\n")
    if len(medians) == 2:
        before, after = medians
        ratios = {
            name: {key: round(after[name][key] / cost, 2) for key, cost in costs.items()}
            for name, costs in before.items()
        }
        sys.stdout.write(json.dumps({"ratio": ratios}) + "\n")


if __name__ == "__main__":
    measure(sys.argv[2]) if sys.argv[1] == "--one" else compare(sys.argv[1:])
