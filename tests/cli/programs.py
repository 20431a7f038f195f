"""The command worker as a program, for tests that send it real signals."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pg_scheduler import Scheduler
from tests.docs.snippets import ROOT
from tests.support.patience import PATIENCE


class Program:
    """A running ``pg-scheduler worker``, and what it writes to stderr."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path) -> None:
        self.process = process
        self._file = file

    @property
    def text(self) -> str:
        return self._file.read_text(encoding="utf-8")

    async def read_until(self, text: str) -> str:
        """Return the first line that contains a text."""
        async with asyncio.timeout(PATIENCE):
            while True:
                has_ended = self.process.poll() is not None
                for line in self.text.splitlines(keepends=True):
                    if text in line and line.endswith("\n"):
                        return line
                assert not has_ended, f"{text!r} is not in {self.text}"
                await asyncio.sleep(0.02)  # until the process has come so far

    async def end(self) -> int:
        """Wait for the end, and return the exit code."""
        async with asyncio.timeout(PATIENCE):
            while (code := self.process.poll()) is None:  # noqa: ASYNC110 - a process raises no event
                await asyncio.sleep(0.02)  # until the process has come so far
        return code


Start = Callable[..., AbstractContextManager[Program]]


def starter(dsn: str, tmp_path: Path) -> Start:
    """Return a function that starts ``pg-scheduler worker`` on a database, within a ``with`` block."""

    @contextmanager
    def start_program(
        *arguments: str, cwd: Path = ROOT, start_new_session: bool = False
    ) -> Iterator[Program]:
        file = tmp_path / "stderr"
        with file.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "pg_scheduler", "worker", *arguments],
                cwd=cwd, env={**os.environ, "PG_SCHEDULER_DSN": dsn, "PYTHONPATH": f"{ROOT}:{cwd}"},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
                start_new_session=start_new_session,
            )  # fmt: skip
        try:
            yield Program(process, file)
        finally:
            process.kill()  # processes of a supervisor end by themselves
            process.wait()

    return start_program


async def add(scheduler: Scheduler, name: str, *paths: Path) -> str:
    return await scheduler.schedule_job(name, datetime.now(UTC), {"args": [str(path) for path in paths]})


async def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition, which may be a coroutine function; return what it returns."""
    async with asyncio.timeout(PATIENCE):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.02)  # until the process has come so far


async def status(scheduler: Scheduler, job_id: str) -> str:
    job = await scheduler.get_job(job_id)
    assert job is not None
    return job.status.value


def has_text(path: Path) -> bool:
    return path.exists() and bool(path.read_text(encoding="utf-8"))
