"""Jobs outside of the event loop that ignore their cancellation, at their first attempt."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from pg_scheduler import current_job, job

PREFIX = "stubborn."


def report(event: str, **details: Any) -> None:
    current = current_job()
    details |= {"job_id": current.job_id, "attempt": current.attempt}
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()


@job(name="stubborn.ignore", timeout=0.5)
def ignore() -> None:
    """Run on for an hour, whatever the flag says."""
    if current_job().attempt == 1:
        report("began")
        time.sleep(3600)
    report("ran")


@job(name="stubborn.note")
def note() -> None:
    report("ran")


@job(name="stubborn.child", executor="process")
def child() -> None:
    """Run for an hour in a process, at the first attempt."""
    report("began", pid=os.getpid())
    if current_job().attempt == 1:
        time.sleep(3600)
    report("ran")
