"""Start worker processes, read their records, and stop them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pg_scheduler import JobStatus, Scheduler

ROOT = Path(__file__).resolve().parents[2]
TICK = "tests.cluster.tick"
TOCK = "tests.cluster.tock"
TIMEOUT_S = 60.0
"""A test fails after this wait; nothing here takes that long."""

T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """An event that a node reported."""

    node: Node
    event: str
    details: dict[str, Any]

    @property
    def job_id(self) -> str:
        return str(self.details["job_id"])


class Node:
    """One worker process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.worker_id = ""

    def send(self, command: str) -> None:
        """Send a command; the node reports ``done`` after executing it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())

    async def stop(self) -> None:
        """Let the node shut down gracefully."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(TIMEOUT_S):
            assert await self.process.wait() == 0

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def environment(root: Path = ROOT) -> dict[str, str]:
    """Return the environment of a process that imports the library and the tests from this checkout."""
    return {**os.environ, "PYTHONPATH": str(root)}


class Fleet:
    """All worker processes of a test, and their records in the order of arrival."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.received: list[Record] = []
        self._nodes: list[Node] = []
        self._readers: list[asyncio.Task[None]] = []
        self._arrived = asyncio.Condition()

    async def start(
        self, *options: str, variables: Mapping[str, str] | None = None, root: Path = ROOT
    ) -> Node:
        """Start a node and wait until it claims jobs.

        Args:
            options: Options of ``node.py``.
            variables: Additional environment variables.
            root: The files of the library and of ``node.py``.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "tests.cluster.node", self.dsn, *options),
            cwd=root,
            env={**environment(root), **(variables or {})},
            stdin=PIPE,
            stdout=PIPE,
        )
        node = Node(process)
        self._nodes.append(node)
        self._readers.append(asyncio.create_task(self._read(node)))
        [started] = await self.wait_for("WorkerStarted", node=node)
        node.worker_id = started.details["worker_id"]
        return node

    def records(self, event: str, *, node: Node | None = None, **details: Any) -> list[Record]:
        """Return the records of an event, optionally of one node and with these details."""
        return [
            record
            for record in self.received
            if record.event == event
            and node in (None, record.node)
            and all(record.details.get(name) == value for name, value in details.items())
        ]

    async def wait_for(
        self, event: str, *, node: Node | None = None, count: int = 1, **details: Any
    ) -> list[Record]:
        """Wait until there are ``count`` such records, and return them."""

        def found() -> list[Record]:
            records = self.records(event, node=node, **details)
            return records if len(records) >= count else []

        return await self.wait_until(found)

    async def wait_until(self, condition: Callable[[], T]) -> T:
        """Wait until the condition, checked after each record, is true; return its value."""
        async with asyncio.timeout(TIMEOUT_S), self._arrived:
            return await self._arrived.wait_for(condition)

    async def reclaimed(self, count: int, *, node: Node | None = None) -> list[str]:
        """Wait until nodes have reported so many reclaimed jobs, and return the ids.

        A reclaimed job may complete before the node that reclaimed it reports that.
        """

        def job_ids() -> list[str]:
            records = self.records("JobsReclaimed", node=node)
            return [job_id for record in records for job_id in record.details["job_ids"]]

        await self.wait_until(lambda: len(job_ids()) >= count)
        return job_ids()

    async def close(self) -> None:
        """Kill the nodes that still run."""
        for node in self._nodes:
            if node.process.returncode is None:
                await node.kill()
        await asyncio.gather(*self._readers)

    async def _read(self, node: Node) -> None:
        assert node.process.stdout is not None
        async for line in node.process.stdout:
            details = json.loads(line)
            self.received.append(Record(node, details.pop("event"), details))
            async with self._arrived:
                self._arrived.notify_all()


async def overtake(fleet: Fleet, client: Scheduler, job_name: str, options: Sequence[str]) -> None:
    """Let a node stand still in a job, while another one completes that, and then continue."""
    stopped = await fleet.start(*options, "--max-loop-block", "3")
    arguments: dict[str, object] = {"args": [], "kwargs": {}}
    job_id = await client.schedule_job(job_name, datetime.now(UTC), arguments, job_id="one")
    await fleet.wait_for("JobStarted", node=stopped, job_id=job_id)
    winner = await fleet.start(*options)
    await fleet.wait_for("JobCompleted", node=winner, job_id=job_id)
    stopped.resume()
    await fleet.wait_for("JobLost", node=stopped, job_id=job_id, attempt=1)
    found = await client.get_job(job_id)
    assert found is not None
    assert (found.status, found.attempt, found.worker_id) == (JobStatus.COMPLETED, 2, winner.worker_id)
