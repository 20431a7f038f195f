"""The command: ``python3 dev.py upgrade [--from REF] [--jobs N] [--rows N] [--report FILE]``."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pg_scheduler.embedded import EmbeddedPostgres
from tools.environment import exit_on_signals
from tools.upgrade.large_table import Measured, migrate_large
from tools.upgrade.rehearsal import rehearse
from tools.upgrade.releases import previous_release

ROWS: Final = 2_000_000
JOBS: Final = 10


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="dev.py upgrade",
        description="Run workers of the release before and of this one on one database, up and down, and "
        "migrate a large table of pg-scheduler 0.2.3.",
    )
    parser.add_argument(
        "--from",
        dest="refs",
        action="append",
        metavar="REF",
        help="the release before, as a tag or a commit; may be repeated (default: the newest tag, else the "
        "commit before the newest migration)",
    )
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"jobs of each kind (default: {JOBS})")
    parser.add_argument(
        "--rows", type=int, default=ROWS, help=f"jobs of 0.2.3, 0 for no such part (default: {ROWS:,})"
    )
    parser.add_argument("--report", type=Path, help="write the tables to this Markdown file")
    return parser.parse_args(arguments)


def figures(measured: Measured) -> Iterator[str]:
    """Return the lines of the table of the large migration."""
    yield "| from 0.2.3 | |"
    yield "|---|---|"
    for name, figure in measured.figures.items():
        yield f"| {name} | {figure} |"
    yield ""


async def run(options: argparse.Namespace, report: list[str]) -> list[str]:
    """Run all rehearsals, add their tables to the report, and return the problems."""
    began = time.monotonic()
    problems: list[str] = []

    def log(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    for ref in options.refs or [previous_release()]:
        with EmbeddedPostgres(settings={"max_connections": "200"}) as server:
            verdict = await rehearse(server, ref, options.jobs, log)
        report += [*verdict.lines(), ""]
        problems += verdict.problems
    if options.rows:
        with EmbeddedPostgres() as server:
            measured = await migrate_large(server, options.rows, log)
        report += figures(measured)
        problems += measured.problems
    return problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse, and return the exit code: 1 if a job was lost, or ran too often."""
    options = parse_options(arguments)
    # A workflow that is cancelled sends SIGTERM. The workers must end with this process.
    exit_on_signals()
    report: list[str] = []
    problems = asyncio.run(run(options, report))
    print("\n".join(report))
    if options.report:
        options.report.write_text("\n".join(report), encoding="utf-8")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    print("the rehearsal has failed" if problems else "no job was lost, and none ran too often")
    return min(len(problems), 1)


if __name__ == "__main__":
    sys.exit(main())
