"""The test's side of the worker processes: starts them, hears them, and ends them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
TICK = "tests.cluster.tick"
TOCK = "tests.cluster.tock"
PATIENCE = 20.0
"""Seconds after which a test gives up waiting; nothing here takes that long."""

T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """Something a node said."""

    node: Node
    event: str
    about: dict[str, Any]

    @property
    def job_id(self) -> str:
        return str(self.about["job_id"])


class Node:
    """One worker process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.worker_id = ""

    def say(self, command: str) -> None:
        """Give an order; ``done`` says when it has been obeyed."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())

    async def stop(self) -> None:
        """End it in peace."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            assert await self.process.wait() == 0

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def environment(library: Path) -> dict[str, str]:
    """Of a process that imports the library from a folder, and everything else from here."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, dict.fromkeys([library, ROOT])))}


class Fleet:
    """All worker processes of a test, and all they said, in the order in which it was heard."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.heard: list[Seen] = []
        self._nodes: list[Node] = []
        self._ears: list[asyncio.Task[None]] = []
        self._news = asyncio.Condition()

    async def start(
        self, *options: str, library: Path = ROOT, variables: Mapping[str, str] | None = None
    ) -> Node:
        """Start a node, with the library of that folder and these variables; returns when it claims jobs."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "tests.cluster.node", self.dsn, *options),
            cwd=ROOT,
            env={**environment(library), **(variables or {})},
            stdin=PIPE,
            stdout=PIPE,
        )
        node = Node(process)
        self._nodes.append(node)
        self._ears.append(asyncio.create_task(self._hear(node)))
        [started] = await self.sees("WorkerStarted", node=node)
        node.worker_id = started.about["worker_id"]
        return node

    def seen(self, event: str, *, node: Node | None = None, **about: Any) -> list[Seen]:
        """What was heard so far of this event."""
        return [
            seen
            for seen in self.heard
            if seen.event == event
            and node in (None, seen.node)
            and all(seen.about.get(name) == value for name, value in about.items())
        ]

    async def sees(self, event: str, *, node: Node | None = None, count: int = 1, **about: Any) -> list[Seen]:
        """Wait until this was heard, so many times."""

        def enough() -> list[Seen]:
            seen = self.seen(event, node=node, **about)
            return seen if len(seen) >= count else []

        return await self.hears(enough)

    async def hears(self, enough: Callable[[], T]) -> T:
        """Wait until what was heard is enough."""
        async with asyncio.timeout(PATIENCE), self._news:
            return await self._news.wait_for(enough)

    async def close(self) -> None:
        """End what still runs."""
        for node in self._nodes:
            if node.process.returncode is None:
                await node.kill()
        await asyncio.gather(*self._ears)

    async def _hear(self, node: Node) -> None:
        assert node.process.stdout is not None
        async for line in node.process.stdout:
            about = json.loads(line)
            self.heard.append(Seen(node, about.pop("event"), about))
            async with self._news:
                self._news.notify_all()
