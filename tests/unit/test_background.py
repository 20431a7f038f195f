"""Tasks that no code awaits."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

import pytest

import pg_scheduler
from pg_scheduler.events.background import start_in_background
from tests.support.source import calls_of

AWAITED: Final = {
    "base/main_task.py": "the caller gets its result",
    "base/blocking.py": "its end is delivered to the thread that called",
    "events/background.py": "the one place",
    "cli/assistant/changes.py": "waited for; it is logged if the call that waits is cancelled",
    "cli/demo/afterwards.py": "a TaskGroup of the demo",
    "cli/demo/run.py": "the demo waits for them",
    "cli/job_run.py": "watched until it ends",
    "cli/progress.py": "watched until it ends",
    "cli/runs.py": "waited for",
    "cli/worker/process.py": "waited for",
    "cli/worker/supervisor.py": "a TaskGroup",
    "queue/answers.py": "its error goes to the futures that it answers",
    "events/queues.py": "it handles all errors of its function, and logs them",
    "inspect/bulk.py": "waited for",
    "integrations/starlette.py": "waited for",
    "inspect/bulk_runs.py": "it stores its error in the row of the run",
    "telemetry/server.py": "the standard library only",
    "telemetry/webhook.py": "it logs its error",
    "testing/calling_thread.py": "waited for",
    "testing/crashing_worker.py": "waited for",
    "scheduler/lifecycle.py": "the shutdown, whose failure is logged once",
    "worker/keeper_thread.py": "a keeper, which publishes its error",
    "worker/executor.py": "an attempt, whose end is its outcome",
    "worker/runners/process.py": "waited for",
    "worker/service.py": "its end is published",
}
"""The modules that start tasks in another way, and what becomes of an error."""


def test_every_task_of_the_package_has_a_place_for_its_error() -> None:
    package = Path(pg_scheduler.__file__).parent
    modules = {
        module.relative_to(package).as_posix()
        for module in package.rglob("*.py")
        if calls_of(module, {"create_task", "ensure_future"})
    }
    assert modules == AWAITED.keys()


async def test_error_of_a_task_that_nobody_awaits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise LookupError("gone")

    task = start_in_background(fail(), "pg_scheduler example")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "pg_scheduler example failed")
    ]
