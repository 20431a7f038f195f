"""The command: ``python3 dev.py chaos [--minutes N] [--seed S]``."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.chaos.report import render, table
from tools.chaos.run import Settings, run

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a private folder is created in it


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="dev.py chaos", description="Inject faults under load and verify that no guarantee is broken."
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="duration of the faults (default: 2)")
    parser.add_argument("--seed", type=int, help="seed of faults and load (default: random)")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default: 4)")
    parser.add_argument("--rate", type=int, default=1000, help="jobs per second (default: 1,000)")
    parser.add_argument("--lease", type=float, default=5.0, help="lease in seconds (default: 5)")
    parser.add_argument("--calm", type=float, default=12.0, help="seconds of load after the last fault")
    parser.add_argument("--memory", action="store_true", help="server data in /dev/shm, without fsync")
    parser.add_argument("--untimed", action="store_true", help="report lateness without judging it")
    parser.add_argument("--report", type=Path, help="write the table to this Markdown file")
    return parser.parse_args(arguments)


def _replay(options: argparse.Namespace, seed: int) -> str:
    flags = "".join(f" --{name}" for name in ("memory", "untimed") if getattr(options, name))
    return (
        f"python3 dev.py chaos --seed {seed} --minutes {options.minutes:g} --workers {options.workers} "
        f"--rate {options.rate} --lease {options.lease:g} --calm {options.calm:g}{flags}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once and return the exit code: 1 if a guarantee was broken."""
    options = parse_options(arguments)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    replay = _replay(options, seed)
    print(replay, flush=True)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    settings = Settings(
        seed=seed,
        seconds=options.minutes * 60,
        calm=options.calm,
        workers=options.workers,
        rate=options.rate,
        lease=options.lease,
        folder=folder,
        scratch=MEMORY if options.memory else None,
        timed=not options.untimed,
    )
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    verdict = asyncio.run(run(settings, log))
    print(render(verdict))
    if options.report:
        options.report.write_text(table(verdict, replay.removeprefix("python3 ")), encoding="utf-8")
    if not verdict.holds:
        print(f"guarantees broken; ledgers and logs are in {folder}; to replay the faults:\n  {replay}")
        return 1
    shutil.rmtree(folder)
    print("all guarantees kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
