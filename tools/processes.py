"""Several processes of pytest side by side, each with tests of its own. Standard library only.

Each collects only its own files, while each worker of pytest-xdist collects all of them. Its lines are
printed as they come, with its number in front. At the end, the numbers of all tests are printed together.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools import suite
from tools.environment import ROOT, note

NO_TESTS = 5
"""The exit status of pytest when no test was selected."""

RECORDING = "PG_SCHEDULER_RECORDING"


def command(python: str) -> list[str]:
    """Return the command of each process, without its tests."""
    plugins = ["-p", "tools.recording", "-p", "tools.selection"]
    return [python, "-m", "pytest", "-q", "--no-header", "-o", "console_output_style=count", *plugins]


def run_files(
    python: str,
    files: Iterable[str],
    options: Sequence[str],
    *,
    is_tier: bool | None = None,
    is_slow: bool | None = None,
    records: Path | None = None,
    workers: int = suite.WORKERS,
) -> int:
    """Run pytest on files of tests in several processes."""
    tests = suite.load()
    durations_s = {file: tests.duration_s(file, is_tier=is_tier, is_slow=is_slow) for file in files}
    return run(python, suite.divide(durations_s, workers), options, records)


def run(
    python: str, parts: Sequence[Sequence[str]], options: Sequence[str], records: Path | None = None
) -> int:
    """Run pytest for each part at once, print the results, and return the exit status.

    Args:
        python: The interpreter.
        parts: Files of tests for each process.
        options: Further arguments for pytest.
        records: The folder for what the tests cost; None for none.
    """
    started = time.monotonic()
    os.environ.setdefault("PG_SCHEDULER_PATIENCE", "60")  # the tests of the processes wait for one another
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {RECORDING: str(records or folder)}
        before = set((records or Path(folder)).iterdir())
        running = [
            subprocess.Popen(
                [*command(python), *options, *part],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for part in parts
        ]
        printers = [
            threading.Thread(target=print_lines, args=(number, process))
            for number, process in enumerate(running, start=1)
        ]
        for printer in printers:
            printer.start()
        statuses = [wait(process, running) for process in running]
        for printer in printers:
            printer.join()
        outcomes: Counter[str] = Counter()
        for path in set((records or Path(folder)).iterdir()) - before:
            outcomes.update(json.loads(path.read_text("utf-8"))["outcomes"])
    duration_s = time.monotonic() - started
    note(f"pytest: {duration_s:.0f} s in {len(parts)} processes")
    print(
        f"{outcomes['passed']} passed, {outcomes['failed']} failed, {outcomes['skipped']} skipped", flush=True
    )
    return max((status for status in statuses if status != NO_TESTS), default=NO_TESTS)


def wait(process: "subprocess.Popen[str]", others: "Sequence[subprocess.Popen[str]]") -> int:
    """Return the exit status of a process. All of them receive Ctrl-C too, and exit by themselves."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue
        except SystemExit:  # raised by exit_on_signals()
            for other in others:
                other.terminate()
            raise


def print_lines(number: int, process: "subprocess.Popen[str]") -> None:
    """Print the lines of a process as they come."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            sys.stdout.write(f"{number}| {line}")
            sys.stdout.flush()
