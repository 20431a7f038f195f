"""The processes of the rehearsal: workers and callers of two releases, in the folder of one application."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg

from tools.environment import ROOT
from tools.upgrade.ledger import DSN_VARIABLE, FOLDER_VARIABLE, LIBRARY_VARIABLE, RELEASE_VARIABLE
from tools.upgrade.releases import Release, environment_with

APPLICATION: Final = (
    *("__init__", "upgrade/__init__", "upgrade/ledger", "upgrade/jobs", "upgrade/kinds"),
    *("upgrade/caller", "upgrade/legacy_jobs"),
)
"""The modules that both releases run."""

TARGET: Final = "tools.upgrade.jobs:open_scheduler"
START_S: Final = 60.0
STOP_S: Final = 60.0
POLL_S: Final = 0.05
SERIOUS: Final = re.compile(r"^[\d-]+ [\d:,]+ (ERROR|CRITICAL) (?!.* passed its deadline)")
"""What no worker may write to its log. Jobs of one kind are to pass their deadlines."""


class RehearsalError(Exception):
    """The rehearsal cannot continue."""


class Caller:
    """A process that prepares jobs and lets them continue."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.kinds: Sequence[str] = ()

    async def read(self) -> Any:
        """Return the next line that it prints."""
        assert self._process.stdout
        line = await self._process.stdout.readline()
        if not line:
            raise RehearsalError("a caller has ended; see its log")
        return json.loads(line)

    async def call(self, name: str, *arguments: Any) -> Any:
        """Execute a command.

        Raises:
            RehearsalError: It failed.
        """
        assert self._process.stdin
        self._process.stdin.write(json.dumps([name, *arguments]).encode() + b"\n")
        answer = await self.read()
        if "error" in answer:
            raise RehearsalError(f"{name}() of a caller failed: {answer['error']}")
        return answer["value"]


class Fleet:
    """All processes of a rehearsal.

    Args:
        folder: The folder of the application, its ledger and the logs.
        dsn: The DSN of the database.
        pool: A pool of it.
    """

    def __init__(self, folder: Path, dsn: str, pool: asyncpg.Pool[Any]) -> None:
        self._folder = folder
        self._dsn = dsn
        self._pool = pool
        self._processes: list[Process] = []
        self._workers: dict[str, Process] = {}
        for name in APPLICATION:
            target = folder / "tools" / f"{name}.py"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "tools" / f"{name}.py", target)

    async def start(self, name: str, release: Release, *, target: str = TARGET) -> None:
        """Start a worker, and wait until it has registered."""
        process = await self._spawn(name, release, "pg_scheduler", "worker", target, stdin=DEVNULL)
        self._workers[name] = process
        registered = "SELECT EXISTS (SELECT FROM scheduler_workers WHERE pid = $1)"
        async with asyncio.timeout(START_S):
            while not await self._is_true(registered, process.pid):
                if process.returncode is not None:
                    raise RehearsalError(f"worker {name} has ended at its start: {self._log(name)}")
                await asyncio.sleep(POLL_S)

    async def _is_true(self, query: str, *arguments: Any) -> bool:
        try:
            return bool(await self._pool.fetchval(query, *arguments))
        except asyncpg.UndefinedTableError:  # the first worker creates the tables
            return False

    async def stop(self, name: str) -> None:
        """Stop a worker as a deployment does, and wait for its end.

        Raises:
            RehearsalError: It has failed.
        """
        process = self._workers.pop(name)
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_S):
            code = await process.wait()
        if code:
            raise RehearsalError(f"worker {name} has ended with exit code {code}: {self._log(name)}")

    @property
    def workers(self) -> Sequence[str]:
        """The names of the running workers, in the order of their starts."""
        return list(self._workers)

    async def open_caller(self, name: str, release: Release) -> Caller:
        """Start a process that calls the Scheduler."""
        process = await self._spawn(name, release, "tools.upgrade.caller", release.name, stdin=PIPE)
        caller = Caller(process)
        caller.kinds = await caller.read()
        return caller

    async def run(self, name: str, release: Release, *command: str) -> None:
        """Run a command of the library to its end.

        Raises:
            RehearsalError: It failed.
        """
        process = await self._spawn(
            name, release, "pg_scheduler", *command, "--dsn", self._dsn, stdin=DEVNULL
        )
        if await process.wait():
            raise RehearsalError(f"{' '.join(command)} failed: {self._log(name)}")

    async def _spawn(self, name: str, release: Release, *module: str, stdin: int) -> Process:
        folder = self._folder
        environment = environment_with(folder, release.root) | {
            DSN_VARIABLE: self._dsn,
            FOLDER_VARIABLE: str(folder),
            LIBRARY_VARIABLE: str(release.root),
            RELEASE_VARIABLE: release.name,
        }
        with (folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", *module),
                cwd=folder,
                env=environment,
                stdin=stdin,
                stdout=PIPE if stdin == PIPE else log,
                stderr=log,
                limit=2**24,
            )
        self._processes.append(process)
        return process

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-2000:]

    def complaints(self) -> Sequence[str]:
        """Return the lines of the logs that no process may write."""
        return [
            f"{path.stem}: {line}"
            for path in sorted(self._folder.glob("*.log"))
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
            if SERIOUS.match(line)
        ]

    async def close(self) -> None:
        """Kill the processes that still run."""
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
