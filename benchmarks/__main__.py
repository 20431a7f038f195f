"""The command: ``python3 dev.py bench [name ...]``."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.contestants import CONTESTANTS, DURABLE_PEERS, PEERS, before
from benchmarks.drivers import DriverError
from benchmarks.machine import SETTINGS, describe
from benchmarks.plots import draw
from benchmarks.report import report
from benchmarks.results import Outcome
from benchmarks.rows.inflow import VARIANTS
from benchmarks.table import render
from pg_scheduler.embedded import EmbeddedError, server

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = Path(__file__).resolve().parent / "results"

ROWS: Final = (
    "drain",
    "drain_default",
    "failing",
    "slots",
    "limited_drain",
    "one_at_a_time",
    "share",
    "sequence",
    "chunk",
    "callback",
    "workers",
    "bulk",
    "enqueue",
    "sync_enqueue",
    "connections",
    "commits",
    "completing",
    "steps_one",
    "steps_many",
    "signal",
    "durable_sleepers",
    "run_job",
    "latency",
    "lateness",
    "herd",
    "planning",
    "starts",
    "idle",
    "footprint",
    "backlog",
    "running_rows",
    "snapshot",
    "cold_plans",
    "unknown_names",
    "sleepers",
    "triggers",
    "soak",
    "inflow",
    "retention",
)
"""The rows in the order of the table."""

NAMES: Final = tuple(peer.name for peer in (*PEERS, *DURABLE_PEERS))
"""The names of the peers."""

LONG: Final = {"soak", "inflow", "retention"}
"""Rows that run only if they are named."""


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="dev.py bench",
        description="Measure pg_scheduler and its peers in turn, row by row of the table of goals.",
        epilog="rows: " + " ".join(ROWS),
    )
    parser.add_argument("rows", nargs="*", metavar="name", help="rows of the table (default: all)")
    parser.add_argument("--quick", action="store_true", help="small numbers and few peers, about two minutes")
    parser.add_argument("--peers", help="only these peers, separated by commas; '' for none")
    parser.add_argument(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help="measure the library of another checkout in turn with ours",
    )
    parser.add_argument("--rounds", type=int, help="repetitions (default: 3; with --quick: 1)")
    parser.add_argument(
        "--soak",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="minutes of the row soak and of each variant of the row inflow (default: 10, if they are named)",
    )
    parser.add_argument("--variants", help="only these variants of the row inflow, separated by commas")
    parser.add_argument(
        "--json", type=Path, help="file of the results (default: a new one in benchmarks/results)"
    )
    parser.add_argument("--plots", type=Path, help="folder of the plots")
    parser.add_argument("--report", type=Path, help="write the table to this Markdown file")
    options = parser.parse_args(arguments)
    if options.before is not None and not (options.before / "benchmarks" / "launch.py").is_file():
        parser.error(f"--before {options.before} is not a checkout of this project")
    unknown = [name for name in options.rows if name not in ROWS]
    if unknown:
        parser.error(f"unknown row: {', '.join(unknown)}; the rows are {', '.join(ROWS)}")
    options.peers = None if options.peers is None else [name for name in options.peers.split(",") if name]
    options.variants = options.variants.split(",") if options.variants else None
    for name in options.variants or ():
        if name not in VARIANTS:
            parser.error(f"unknown variant {name!r}; the variants are {', '.join(VARIANTS)}")
    for name in options.peers or ():
        if name not in NAMES:
            parser.error(f"unknown peer {name!r}; the peers are {', '.join(NAMES)}")
    return options


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the rows and return the results."""
    wanted = [name for name in ROWS if name in (options.rows or ROWS)]
    wanted = [name for name in wanted if name not in LONG or name in options.rows]
    peers = list(NAMES)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    with server(settings=SETTINGS) as postgres:
        bench = Bench(
            postgres,
            quick=options.quick,
            chosen=options.peers,
            rounds=options.rounds or (1 if options.quick else 3),
            soak_minutes=options.soak or 10.0,
            before=None if options.before is None else before(options.before.resolve()),
            variants=options.variants,
        )
        admin = await bench.open()
        machine = await describe(admin, _commit())
        print(_machine_text(machine), flush=True)
        for name in wanted:
            row = importlib.import_module(f"benchmarks.rows.{name}")
            bench.outcome = Outcome(name, row.TITLE, row.GOALS)
            start = time.monotonic()
            try:
                await row.measure(bench)
            except DriverError as error:
                bench.outcome.note(f"not measured: {error}")
                bench.failed.append(name)
            bench.outcome.seconds = time.monotonic() - start
            outcomes.append(bench.outcome)
            print("\n" + render(bench.outcome, peers), flush=True)
        skipped = dict(bench.skipped)
        await bench.close()
    for name, reason in skipped.items():
        print(f"\nskipped {name}: {reason}")
    print(f"\n{_summary(outcomes, peers)} in {time.monotonic() - began:.0f} s")
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
        "rounds": bench.rounds,
        "machine": machine,
        "skipped": skipped,
        "failed": list(dict.fromkeys(bench.failed)),
        "contestants": {
            each.name: {"tuned": each.tuned, "note": each.note, "versions": each.requirements}
            for each in CONTESTANTS.values()
        },
        "rows": [outcome.as_dict(peers) for outcome in outcomes],
    }


def _summary(outcomes: Sequence[Outcome], peers: Sequence[str]) -> str:
    verdicts = [verdict.met for outcome in outcomes for verdict in outcome.verdicts(peers)]
    met, missed, unknown = (verdicts.count(verdict) for verdict in (True, False, None))
    return f"{met} goals met, {missed} not met, {unknown} not measured"


def _machine_text(machine: dict[str, Any]) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in machine["settings"].items())
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, "
        f"{machine['system']}\n"
        f"PostgreSQL {machine['postgresql']} on {machine['disk']}, Python {machine['python']}, "
        f"asyncpg {machine['asyncpg']}, uvloop {machine['uvloop']}, commit {machine['commit']}\n"
        f"{settings}\nload before the start: {machine['load_before']:.2f}"
    )


def _commit() -> str:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> int:
    """Measure, print and write the results; return 1 if a row of this library could not be measured."""
    options = parse_options(None)
    try:
        results = asyncio.run(run(options))
    except EmbeddedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    path: Path = (
        options.json or RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}{'-quick' if options.quick else ''}.json"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")
    if options.plots is not None:
        for plot in draw(results, options.plots):
            print(f"drawn: {plot}")
    if options.report is not None:
        options.report.write_text(report(results), encoding="utf-8")
        print(f"written to {options.report}")
    if results["failed"]:
        sys.stderr.write(f"this library could not be measured in: {', '.join(results['failed'])}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
