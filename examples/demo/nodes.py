"""The worker processes: start them, end them, and kill one of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import asyncpg

from examples.demo.worker import READY, application_name

__all__ = ["Node", "NodeDiedError", "Nodes"]

PATIENCE: Final = 20.0
SETTLE: Final = 0.05
UNSETTLED: Final = """
    SELECT EXISTS (
        SELECT FROM demo_ledger JOIN scheduled_jobs USING (job_id, attempt)
        WHERE node = $1 AND outcome IS NOT NULL AND status = 'running'
    ) OR EXISTS (
        SELECT FROM pg_stat_activity WHERE application_name = $2 AND state = 'active'
    )
"""


class NodeDiedError(Exception):
    """A node ended that should not have."""


@dataclass(eq=False, slots=True)
class Node:
    """One worker process."""

    name: str
    process: asyncio.subprocess.Process
    worker_id: str = ""
    killed: bool = False

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid


class Nodes:
    """All of them; as a context manager it leaves none behind.

    Args:
        dsn: The database they work on.
        names: One process for each.
    """

    def __init__(self, dsn: str, names: list[str]) -> None:
        self._dsn = dsn
        self._names = names
        self._nodes: list[Node] = []

    async def __aenter__(self) -> Self:
        try:
            for name in self._names:
                self._nodes.append(Node(name, await self._spawn(name)))
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*map(self._ready, self._nodes))
        except BaseException:  # also Ctrl-C: none of them may be left behind
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self._nodes if node.name == name)

    async def stop(self) -> None:
        """End all in peace: what they run, they finish."""
        alive = [node for node in self._nodes if node.process.returncode is None]
        for node in alive:
            with suppress(ProcessLookupError):
                # One that is held still before its death would not hear a polite word.
                node.process.kill() if node.killed else node.process.terminate()
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(node.process.wait() for node in alive))
        except BaseException:  # a second Ctrl-C, or one that does not end
            for node in alive:
                with suppress(ProcessLookupError):
                    node.process.kill()
            raise

    async def watch(self) -> None:
        """Raise NodeDiedError as soon as a node ends that was not killed by us."""
        for ended in asyncio.as_completed([self._wait(node) for node in self._nodes]):
            node = await ended
            if not node.killed:
                raise NodeDiedError(f"{node.name} ended by itself with code {node.process.returncode}")

    async def kill(self, node: Node, pool: asyncpg.Pool) -> None:
        """SIGKILL, while no job of the node is between its last act and its result.

        A job that has done its work, and whose node dies before that is on record, runs again: this is what
        *at least once* means. The gap is a millisecond or so. The demo promises that each job ends once, so
        it leaves that to no chance: the node is held still, and killed when nothing of it is in the gap.
        """
        node.killed = True
        while True:
            os.kill(node.pid, signal.SIGSTOP)
            await asyncio.sleep(SETTLE)  # what it had sent to the server is done by then
            if not await pool.fetchval(UNSETTLED, node.name, application_name(node.name, node.pid)):
                break
            os.kill(node.pid, signal.SIGCONT)
            await asyncio.sleep(SETTLE)
        node.process.kill()
        await node.process.wait()

    async def _spawn(self, name: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.demo.worker", "--name", name, "--quiet", "--until-eof"),
            env=os.environ | {"PG_SCHEDULER_DSN": self._dsn},
            stdin=asyncio.subprocess.PIPE,  # closes with us, even if we are killed
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us, and we end them
        )

    @staticmethod
    async def _ready(node: Node) -> None:
        assert node.process.stdout is not None
        word, _, worker_id = (await node.process.stdout.readline()).decode().strip().partition(" ")
        if word != READY:
            raise NodeDiedError(f"{node.name} did not start: it said {word!r}")
        node.worker_id = worker_id

    @staticmethod
    async def _wait(node: Node) -> Node:
        await node.process.wait()
        return node
