"""A plugin of pytest that records what each test costs, and how the tests ended.

``dev.py`` loads it by ``-p tools.recording`` and passes a folder in ``PG_SCHEDULER_RECORDING``. Each process
of pytest writes one file of JSON into it, which `tools.processes` and `tools.tier` read.

The cost of a test is processor time: that of this process with its threads, of the programs that the test
runs, and of the PostgreSQL server, which is a program that this process has started. On systems without
``/proc``, the server is left out.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tools.processes import RECORDING

TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
PROCESSES: Final = Path("/proc")


def programs_s() -> float:
    """Return the processor time of the programs that this process has started, and of theirs."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    waiting = [os.getpid()]
    while waiting:
        process = PROCESSES / str(waiting.pop())
        try:
            children = [
                int(pid)
                for thread in (process / "task").iterdir()
                for pid in (thread / "children").read_text(encoding="utf-8").split()
            ]
        except OSError:  # it has ended, or this system has no such files
            continue
        for pid in children:
            try:
                text = (PROCESSES / str(pid) / "stat").read_text(encoding="utf-8")
            except OSError:
                continue
            # The name of the program, in parentheses, may have blanks.
            fields = text.rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) * TICK_S
            waiting.append(pid)
    return total


@dataclass(slots=True)
class Cost:
    """What the cases of one test function have cost together."""

    processor_s: float = 0.0
    elapsed_s: float = 0.0
    cases: int = 0
    is_slow: bool = False


@dataclass(slots=True, eq=False)
class Recorder:
    """Measures the tests of this process. Pytest needs plugins that it can put into a set."""

    folder: Path
    costs: defaultdict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    outcomes: Counter[str] = field(default_factory=Counter)
    programs_s: float = 0.0

    def processor_s(self) -> float:
        """Return the processor time of this process and of its programs."""
        # While processes end, the lists of the system may lack one, which the next look has again.
        self.programs_s = max(self.programs_s, programs_s())
        return time.process_time() + self.programs_s

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure a test with its fixtures."""
        processor_s, elapsed_s = self.processor_s(), time.monotonic()
        try:
            return (yield)
        finally:
            cost = self.costs[item.nodeid.partition("[")[0]]
            cost.processor_s += self.processor_s() - processor_s
            cost.elapsed_s += time.monotonic() - elapsed_s
            cost.cases += 1
            cost.is_slow = item.get_closest_marker("slow") is not None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count how a test ended. An error of a fixture counts as a failure of its own."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1

    def pytest_sessionfinish(self) -> None:
        """Write the file of this process."""
        costs = {
            test: (round(cost.processor_s, 4), round(cost.elapsed_s, 4), cost.cases, int(cost.is_slow))
            for test, cost in self.costs.items()
        }
        recorded = {"costs": costs, "outcomes": self.outcomes}
        (self.folder / f"{os.getpid()}.json").write_text(json.dumps(recorded), "utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Record where a folder is given."""
    if folder := os.environ.get(RECORDING):
        config.pluginmanager.register(Recorder(Path(folder)), "pg_scheduler recorder")
