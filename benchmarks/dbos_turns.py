"""Measure this library and DBOS in turns, on the same server, each in a process of its own environment.

A module of this folder passes two coroutine functions, which are called with the DSN of a database and return
figures by their names. With ``--dbos``, the Python of an environment with DBOS, both are called in each
round, otherwise only that of this library. The report is JSON, with the median of each figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
ROUNDS: Final = 3

Figures = dict[str, float]
Measurement = Callable[[str], Awaitable[Figures]]


async def figures_of(measurement: Measurement, dsn: str) -> Figures:
    """Return the figures of a measurement."""
    return await measurement(dsn)


def main(module: str, description: str, ours: Measurement, dbos: Measurement) -> None:
    """Measure in rounds, and print the report."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--dbos", metavar="PYTHON", help="the Python of an environment with DBOS")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "DSN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, dsn = options.child
        figures = asyncio.run(figures_of(ours if name == "pg_scheduler" else dbos, dsn))
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    # The environment of the other library has nothing that these import.
    from benchmarks.machine import SETTINGS  # noqa: PLC0415
    from pg_scheduler.embedded import server  # noqa: PLC0415

    pythons = {"pg_scheduler": sys.executable} | ({"dbos": options.dbos} if options.dbos else {})
    rounds: dict[str, list[Figures]] = {name: [] for name in pythons}
    with server(settings=dict(SETTINGS)) as running:
        for _ in range(ROUNDS):
            for name, python in pythons.items():
                child = [python, "-m", module, "--child", name, running.dsn()]
                output = subprocess.run(child, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout
                rounds[name].append(json.loads(output.splitlines()[-1]))
    report = {
        name: {figure: statistics.median(round_[figure] for round_ in figures) for figure in figures[0]}
        for name, figures in rounds.items()
    }
    sys.stdout.write(json.dumps({"median": report, "rounds": rounds}, indent=2) + "\n")
