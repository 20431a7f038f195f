"""Reports of the health of each process to the one that supervises it: a line of JSON per second.

A thread sends them, so a blocked event loop is reported by name. If the reader has ended, the process stops.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from pg_scheduler.cli.settings import REPORT_FD
from pg_scheduler.measure.health import Health, HealthCheck
from pg_scheduler.telemetry.probes import HealthSource

INTERVAL_S: Final = 1.0
MAX_SILENCE_S: Final = 30.0
"""Seconds without a report after which a process counts as hung: a job holds the GIL, or it was stopped."""


class Ending:
    """Why a process ends, for its last report."""

    def __init__(self) -> None:
        self.is_recycling = False


@contextmanager
def send_reports(source: HealthSource, on_orphaned: Callable[[], None]) -> Iterator[Ending]:
    """Report to the supervising process within a ``with`` block, if there is one.

    Args:
        source: The Scheduler.
        on_orphaned: Called in a thread if the supervising process has ended.
    """
    ending = Ending()
    number = os.environ.pop(REPORT_FD, "")
    if not number.isdecimal():
        yield ending
        return
    ended = threading.Event()
    pipe = os.fdopen(int(number), "wb", buffering=0)
    os.set_inheritable(int(number), False)

    def run() -> None:
        try:
            while True:
                last = ended.wait(INTERVAL_S)
                report = asdict(source.health()) | ({"is_recycling": ending.is_recycling} if last else {})
                pipe.write(json.dumps(report).encode() + b"\n")
                if last:
                    return
        except BrokenPipeError:
            if not ended.is_set():
                on_orphaned()
        finally:
            pipe.close()

    thread = threading.Thread(target=run, name="pg_scheduler reports", daemon=True)
    thread.start()
    try:
        yield ending
    finally:
        ended.set()
        thread.join()


def read_report(line: bytes) -> tuple[Health, bool]:
    """Return the health of a report, and whether the process ends to be restarted."""
    found: dict[str, Any] = json.loads(line)
    checks = tuple(
        HealthCheck(each["name"], each["is_ok"], each["text"], tuple(each["probes"]))
        for each in found["checks"]
    )
    health = Health(found["state"], found["slots"], found["slots_busy"], checks, found["next_due_s"])
    return health, bool(found.get("is_recycling"))


class HealthReports:
    """The health of several processes as one: each check fails with the first process in which it fails."""

    def __init__(self, count: int) -> None:
        self._reports: list[tuple[Health, float] | None] = [None] * count
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._reports)

    def set(self, index: int, health: Health | None) -> None:
        """Note the report of a process; None if it has ended."""
        self._reports[index] = None if health is None else (health, time.monotonic())

    def health(self) -> Health:
        """Return the health of all; callable from any thread."""
        reports = list(self._reports)
        found = [report[0] for report in reports if report is not None]
        state = "draining" if self.is_draining else "running" if len(found) == len(reports) else "starting"
        return Health(
            state,  # type: ignore[arg-type] # one of its literals
            sum(health.slots for health in found),
            sum(health.slots_busy for health in found),
            (_processes(reports), _silence(reports), *_merged(reports)),
            min((health.next_due_s for health in found if health.next_due_s is not None), default=None),
        )


def _processes(reports: Sequence[tuple[Health, float] | None]) -> HealthCheck:
    running = sum(report is not None for report in reports)
    is_ok = running == len(reports)
    return HealthCheck("processes", is_ok, f"{running} of {len(reports)} run", ("started", "ready"))


def _silence(reports: Sequence[tuple[Health, float] | None]) -> HealthCheck:
    now = time.monotonic()
    for number, report in enumerate(reports, 1):
        if report is not None and now - report[1] > MAX_SILENCE_S:
            text = f"process {number} has not reported for {now - report[1]:.0f} s"
            return HealthCheck("reports", False, text, ("live", "ready"))
    return HealthCheck("reports", True, "arrive", ("live", "ready"))


def _merged(reports: Sequence[tuple[Health, float] | None]) -> Iterator[HealthCheck]:
    checks: dict[str, HealthCheck] = {}
    for number, report in enumerate(reports, 1):
        for check in report[0].checks if report is not None else ():
            known = checks.get(check.name)
            if known is None or (known.is_ok and not check.is_ok):
                text = check.text if check.is_ok else f"process {number}: {check.text}"
                checks[check.name] = HealthCheck(check.name, check.is_ok, text, check.probes)
    yield from checks.values()
