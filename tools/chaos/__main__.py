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

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own in it


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The words of the command."""
    parser = argparse.ArgumentParser(
        prog="dev.py chaos", description="Faults on purpose, under load, and a proof that nothing was lost."
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="of faults (default: 2)")
    parser.add_argument("--seed", type=int, help="of the faults and the load; chosen if not given")
    parser.add_argument("--workers", type=int, default=4, help="processes (default: 4)")
    parser.add_argument("--rate", type=int, default=1000, help="jobs a second (default: 1,000)")
    parser.add_argument("--lease", type=float, default=5.0, help="seconds (default: 5)")
    parser.add_argument("--calm", type=float, default=12.0, help="seconds of load after the last fault")
    parser.add_argument("--memory", action="store_true", help="the server's data in /dev/shm, without fsync")
    parser.add_argument("--untimed", action="store_true", help="lateness is shown and not judged")
    parser.add_argument("--report", type=Path, help="a Markdown file to write the table into")
    return parser.parse_args(arguments)


def _replay(words: argparse.Namespace, seed: int) -> str:
    flags = "".join(f" --{name}" for name in ("memory", "untimed") if getattr(words, name))
    return (
        f"python3 dev.py chaos --seed {seed} --minutes {words.minutes:g} --workers {words.workers} "
        f"--rate {words.rate} --lease {words.lease:g} --calm {words.calm:g}{flags}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once; 1 if a promise was broken."""
    words = options(arguments)
    seed = secrets.randbelow(1_000_000) if words.seed is None else words.seed
    replay = _replay(words, seed)
    print(replay, flush=True)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    settings = Settings(
        seed=seed,
        seconds=words.minutes * 60,
        calm=words.calm,
        workers=words.workers,
        rate=words.rate,
        lease=words.lease,
        folder=folder,
        scratch=MEMORY if words.memory else None,
        timed=not words.untimed,
    )
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    verdict = asyncio.run(run(settings, tell))
    print(render(verdict))
    if words.report:
        words.report.write_text(table(verdict, replay.removeprefix("python3 ")), encoding="utf-8")
    if not verdict.holds:
        print(f"BROKEN. The ledgers and logs are in {folder}. To replay the faults:\n  {replay}")
        return 1
    shutil.rmtree(folder)
    print("nothing lost, nothing doubled, nothing forgotten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
