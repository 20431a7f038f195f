"""Compare what the imports of a client cost: CPU time, peak memory and modules, in turns.

Run ``python -m benchmarks.imports``, or with the number of turns. Each turn starts one process for each
program, so that a load of the machine meets all of them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Final

PROGRAMS: Final = {
    "import pg_scheduler": "import pg_scheduler",
    "a client with a task": "import pg_scheduler; pg_scheduler.Scheduler, pg_scheduler.job",
    "all public names": "from pg_scheduler import *",
    "procrastinate": "import procrastinate",
    "asyncpg": "import asyncpg",
    "asyncpg, pydantic, croniter": "import asyncpg, pydantic.dataclasses, croniter",
}
BASELINE: Final = "procrastinate"

MEASURE: Final = """
import resource, time
began = time.process_time()
{program}
cpu_ms = (time.process_time() - began) * 1000
import json, sys
peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([cpu_ms, peak_mib, len(sys.modules)]))
"""


def measure(program: str) -> tuple[float, float, float]:
    """Return the CPU time in ms, the peak of memory in MiB and the modules of a new process."""
    command = [sys.executable, "-c", MEASURE.format(program=program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    cpu_ms, peak_mib, modules = json.loads(done.stdout)
    return cpu_ms, peak_mib, modules


def main(turns: int) -> None:
    """Print the medians of all programs, and the median of their ratios to the baseline in each turn."""
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in PROGRAMS}
    for _turn in range(turns):
        for name, program in PROGRAMS.items():
            measured[name].append(measure(program))
    print(f"{'':30}{'CPU ms':>8}{'MiB':>8}{'modules':>9}{'CPU':>8}{'memory':>8}  of {BASELINE}")
    for name, results in measured.items():
        cpu_ms, peak_mib, modules = (statistics.median(values) for values in zip(*results, strict=True))
        pairs = list(zip(results, measured[BASELINE], strict=True))
        cpu, memory = (
            statistics.median(ours[place] / theirs[place] for ours, theirs in pairs) for place in (0, 1)
        )
        print(f"{name:30}{cpu_ms:8.0f}{peak_mib:8.1f}{modules:9.0f}{cpu:8.2f}{memory:8.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
