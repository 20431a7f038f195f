"""Stalls: times in which the machine did not run a worker, as on a virtual machine without a processor.

A worker that is stalled for longer than its lease counts as dead, like one that is stopped, so a stall is a
fault. A thread of the worker measures it, and records only stalls in which the process used hardly any
processor time: a process that computes, or whose threads block one another, is a defect of the library.
"""

from __future__ import annotations

import resource
import select
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from tools.chaos.ledger import Ledger, Ledgers
from tools.chaos.nemesis import MACHINE_STALLED, WORKER_STOPPED, Fault

STALLED: Final = "Stalled"
MIN_STALL_S: Final = 1.0
"""Less than the 1.5 s in which a suspect worker sends the requested heartbeat."""

MAX_CPU_SHARE: Final = 0.1
INTERVAL_S: Final = 0.1


class StallRecorder:
    """Records the stalls of this process.

    Args:
        now: The monotonic time.
        cpu_s: The processor time that the process has used.
    """

    def __init__(self, ledger: Ledger, seat: str, now: float, cpu_s: float) -> None:
        self._ledger = ledger
        self._seat = seat
        self._last = now, cpu_s

    def observe(self, now: float, cpu_s: float) -> None:
        """Record that the process did not run since the last call, if so."""
        began, used = self._last
        self._last = now, cpu_s
        stall = now - began
        if stall > MIN_STALL_S and cpu_s - used < MAX_CPU_SHARE * stall:
            self._ledger.write(STALLED, self._seat, began, now)

    @classmethod
    def start(cls, ledger: Ledger, seat: str) -> None:
        """Observe this process in a thread until it ends."""

        def run() -> None:
            recorder = cls(ledger, seat, time.monotonic(), _cpu_s())
            while True:
                select.select([], [], [], INTERVAL_S)  # time.sleep() fails under libfaketime 0.9.10
                recorder.observe(time.monotonic(), _cpu_s())

        threading.Thread(target=run, name="chaos stalls", daemon=True).start()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)  # libfaketime would move time.process_time()
    return usage.ru_utime + usage.ru_stime


def recorded_stalls(ledgers: Ledgers, faults: Sequence[Fault]) -> Iterator[Fault]:
    """Yield the stalls that workers recorded, except while a fault had stopped them."""
    for record in ledgers.events[STALLED]:
        seat, began, ended = record.details
        if not any(
            fault.kind.startswith(WORKER_STOPPED)
            and fault.target == seat
            and fault.began < ended
            and began < fault.ended
            for fault in faults
        ):
            yield Fault(MACHINE_STALLED, seat, began, ended)
