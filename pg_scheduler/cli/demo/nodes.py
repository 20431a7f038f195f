"""Start, stop and kill the worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

import asyncpg

from pg_scheduler import Scheduler
from pg_scheduler.cli.settings import DEMO_NODE

from .node import application_name

START_STOP_TIMEOUT_S: Final = 20.0
SETTLE_DELAY_S: Final = 0.05
HAS_UNSETTLED_JOBS: Final = """
    SELECT EXISTS (
        SELECT FROM demo_ledger JOIN scheduled_jobs USING (job_id, attempt)
        WHERE node = $1 AND outcome IS NOT NULL AND status = 'running'
    ) OR EXISTS (
        SELECT FROM pg_stat_activity WHERE application_name = $2 AND state = 'active'
    )
"""


class NodeDiedError(Exception):
    """A worker process ended unexpectedly."""


@dataclass(eq=False, slots=True)
class Node:
    """One worker process."""

    name: str
    process: asyncio.subprocess.Process
    killed: bool = False

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid


class Nodes:
    """All worker processes. The context manager stops them on exit."""

    def __init__(self, scheduler: Scheduler, dsn: str, names: list[str], target: str = "open_node") -> None:
        self._scheduler = scheduler
        self._dsn = dsn
        self._names = names
        self._target = target
        self._nodes: list[Node] = []

    async def __aenter__(self) -> Self:
        try:
            for name in self._names:
                self._nodes.append(Node(name, await self._spawn(name)))
            async with asyncio.timeout(START_STOP_TIMEOUT_S):
                await self._wait_until_running()
        except BaseException:  # Ctrl-C included: no process may remain
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self._nodes if node.name == name)

    async def stop(self) -> None:
        """Shut all processes down gracefully; kill those that do not end in time."""
        alive = [node for node in self._nodes if node.process.returncode is None]
        for node in alive:
            with suppress(ProcessLookupError):
                # A process that SIGSTOP suspended before the kill would not handle SIGTERM.
                node.process.kill() if node.killed else node.process.terminate()
        try:
            async with asyncio.timeout(START_STOP_TIMEOUT_S):
                await asyncio.gather(*(node.process.wait() for node in alive))
        except BaseException:  # a second Ctrl-C, or the timeout
            for node in alive:
                with suppress(ProcessLookupError):
                    node.process.kill()
            raise

    async def monitor(self) -> None:
        """Raise NodeDiedError as soon as a process ends that ``kill`` did not end."""
        for ended in asyncio.as_completed([self._wait(node) for node in self._nodes]):
            node = await ended
            if not node.killed:
                raise NodeDiedError(f"{node.name} exited unexpectedly with code {node.process.returncode}")

    async def kill(self, node: Node, pool: asyncpg.Pool) -> None:
        """Send SIGKILL while no job of the node is finished but not yet settled.

        A job whose worker dies after its last statement and before its outcome is written runs again:
        delivery is at-least-once. The gap lasts about a millisecond. The demo asserts that every job
        completes once, so it suspends the process and kills it when no job is in the gap.
        """
        node.killed = True
        while True:
            os.kill(node.pid, signal.SIGSTOP)
            await asyncio.sleep(SETTLE_DELAY_S)  # the server finishes the statements it has received
            if not await pool.fetchval(HAS_UNSETTLED_JOBS, node.name, application_name(node.name, node.pid)):
                break
            os.kill(node.pid, signal.SIGCONT)
            await asyncio.sleep(SETTLE_DELAY_S)
        node.process.kill()
        await node.process.wait()

    async def _spawn(self, name: str) -> asyncio.subprocess.Process:
        options = {key: value for key, value in os.environ.items() if not key.startswith("PG_SCHEDULER_")}
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pg_scheduler", "worker", f"pg_scheduler.cli.demo.node:{self._target}"),
            env=options | {"PG_SCHEDULER_DSN": self._dsn, DEMO_NODE: name},
            stdin=asyncio.subprocess.PIPE,  # closed when this process ends, even by SIGKILL
            start_new_session=True,  # Ctrl-C reaches this process only, which stops the workers
        )

    async def _wait_until_running(self) -> None:
        while True:
            alive = {worker.identity for worker in await self._scheduler.workers() if worker.is_alive}
            if alive.issuperset(self._names):
                return
            for node in self._nodes:
                if node.process.returncode is not None:
                    raise NodeDiedError(f"{node.name} did not start: exit code {node.process.returncode}")
            await asyncio.sleep(SETTLE_DELAY_S)

    @staticmethod
    async def _wait(node: Node) -> Node:
        await node.process.wait()
        return node
