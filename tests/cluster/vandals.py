"""Jobs that damage their own process, at their first attempt."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from typing import Any

from pg_scheduler import current_job, job


def report(event: str, **details: Any) -> None:
    current = current_job()
    details |= {"job_id": current.job_id, "attempt": current.attempt}
    sys.stdout.write(json.dumps({"event": event, "pid": os.getpid(), **details}) + "\n")
    sys.stdout.flush()


def is_first_attempt() -> bool:
    report("ran")
    return current_job().attempt == 1


@job(name="vandal.clock_stopped")
async def stop_clock() -> None:
    if is_first_attempt():
        stopped_at = time.monotonic()
        time.monotonic = lambda: stopped_at


@job(name="vandal.clock_ahead")
async def advance_clock() -> None:
    if is_first_attempt():
        real = time.monotonic
        time.monotonic = lambda: real() + 1e6


@job(name="vandal.clock_behind")
async def set_clock_back() -> None:
    if is_first_attempt():
        real = time.monotonic
        time.monotonic = lambda: real() - 1e6


@job(name="vandal.random")
async def patch_random() -> None:
    if is_first_attempt():
        for name in ("random", "uniform"):
            setattr(random, name, lambda *_: float("nan"))


@job(name="vandal.fork")
async def fork() -> None:
    """Return in the parent and in the child."""
    if is_first_attempt():
        child = os.fork()
        if child:
            report("forked", child=child)


@job(name="vandal.loop_stopped")
async def stop_loop() -> None:
    if is_first_attempt():
        asyncio.get_running_loop().stop()


@job(name="vandal.loop_closed")
async def close_selector() -> None:
    if is_first_attempt():
        asyncio.get_running_loop()._selector.close()  # type: ignore[attr-defined]
