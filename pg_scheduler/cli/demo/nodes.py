"""Start, stop and kill the worker processes, each of which runs a Scheduler that is made here.

Any number of nodes can share the database of ``PG_SCHEDULER_DSN``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

import asyncpg

from pg_scheduler import RetryPolicy, Scheduler
from pg_scheduler.cli.errors import UsageError
from pg_scheduler.cli.settings import DEMO_NODE
from pg_scheduler.database.opening import create_pool

from . import jobs
from .jobs import Ledger

SLOTS: Final = 25
SHOP_SETTINGS: Final = {"max_crashes": 1, "shutdown_timeout": 1.0}


def open_node() -> AbstractAsyncContextManager[Scheduler]:
    """Return a context manager that runs the jobs of the demo."""
    return _open()


def open_shop() -> AbstractAsyncContextManager[Scheduler]:
    """Return a context manager that also runs the jobs of the shop, except the one that kills its worker."""
    from . import shop  # noqa: PLC0415 - registers its jobs

    return _open(skip=[shop.LEGACY], **SHOP_SETTINGS)


def open_legacy() -> AbstractAsyncContextManager[Scheduler]:
    """Return a context manager that runs the job that kills its worker."""
    from . import shop  # noqa: PLC0415 - registers its jobs

    return _open(only=[shop.LEGACY], **SHOP_SETTINGS)


def application_name(node: str, pid: int) -> str:
    """Return the application name of a node's connections in ``pg_stat_activity``."""
    return f"demo {node} {pid}"


@asynccontextmanager
async def _open(**settings: Any) -> AsyncIterator[Scheduler]:
    """Yield the Scheduler of this node. A node that the demo started logs nothing and ends with the demo."""
    dsn = os.environ.get(DSN)
    name = os.environ.get(DEMO_NODE)
    if not dsn:
        raise UsageError("PG_SCHEDULER_DSN is not set; set it to postgresql://user:password@host/database")
    # Only the demo sets the variable with the name. Without it, a user has started this worker.
    if name is None:
        name = f"{platform.node()}-{os.getpid()}"
    else:
        logging.disable(logging.ERROR)
        # The demo writes nothing to this pipe. So the pipe becomes readable only when it is closed, because
        # the demo has ended.
        asyncio.get_running_loop().add_reader(sys.stdin, os._exit, 1)
    session_settings = {"application_name": application_name(name, os.getpid())}
    async with (
        create_pool(dsn, DSN, min_size=1, max_size=5, server_settings=session_settings) as pool,
        create_pool(dsn, DSN, min_size=1, max_size=4, server_settings=session_settings) as ledger_pool,
    ):
        ledger = Ledger(ledger_pool, name)
        await ledger.create()
        jobs.use_ledger(ledger)
        retry = RetryPolicy(base=timedelta(seconds=0.5), jitter=0.1)
        yield Scheduler(pool, max_concurrent_jobs=SLOTS, retry_policy=retry, identity=name, **settings)


DSN: Final = "PG_SCHEDULER_DSN"
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
    """All worker processes. The context manager stops them on exit.

    Args:
        scheduler: Reads which workers are alive.
        dsn: The address of the database.
        names: The name of each node.
        target: The function of this module that opens the Scheduler of a node.
    """

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
                # A node that is being killed may be suspended by SIGSTOP, and would not handle SIGTERM.
                if node.killed:
                    node.process.kill()
                else:
                    node.process.terminate()
        try:
            async with asyncio.timeout(START_STOP_TIMEOUT_S):
                await asyncio.gather(*(node.process.wait() for node in alive))
        except BaseException:  # a second Ctrl-C, or the timeout
            for node in alive:
                with suppress(ProcessLookupError):
                    node.process.kill()
            raise

    async def monitor(self) -> None:
        """Raise NodeDiedError as soon as a process ends, unless ``kill()`` has ended it."""
        for end in asyncio.as_completed([self._wait(node) for node in self._nodes]):
            node = await end
            if not node.killed:
                raise NodeDiedError(f"{node.name} exited unexpectedly with code {node.process.returncode}")

    async def kill(self, node: Node, pool: asyncpg.Pool) -> None:
        """Send SIGKILL at a moment at which the outcomes of all finished jobs of the node are written.

        A job whose worker dies after its last statement and before its outcome is written runs again:
        delivery is at-least-once. The gap lasts about a millisecond. The demo asserts that every job
        completes once, so it suspends the process and kills it when no job is in the gap.
        """
        # The end of the process is expected from now on, so monitor() raises no error.
        node.killed = True
        while True:
            os.kill(node.pid, signal.SIGSTOP)
            await asyncio.sleep(SETTLE_DELAY_S)  # the server finishes the statements it has received
            # A job is in the gap if the ledger has its outcome, and the job still counts as running.
            if not await pool.fetchval(HAS_UNSETTLED_JOBS, node.name, application_name(node.name, node.pid)):
                break
            os.kill(node.pid, signal.SIGCONT)
            await asyncio.sleep(SETTLE_DELAY_S)
        node.process.kill()
        await node.process.wait()

    async def _spawn(self, name: str) -> asyncio.subprocess.Process:
        """Start the process of a node, which is an ordinary worker of the command line."""
        # Settings for other workers of the user do not apply to the nodes of the demo.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PG_SCHEDULER_")}
        environment |= {DSN: self._dsn, DEMO_NODE: name}
        target = f"pg_scheduler.cli.demo.nodes:{self._target}"
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pg_scheduler", "worker", target),
            env=environment,
            stdin=asyncio.subprocess.PIPE,  # closed when this process ends, even by SIGKILL
            start_new_session=True,  # Ctrl-C reaches this process only, which stops the workers
        )

    async def _wait_until_running(self) -> None:
        """Wait until the worker of each process is alive; raise NodeDiedError if a process ends instead."""
        while True:
            live_names = {worker.identity for worker in await self._scheduler.workers() if worker.is_alive}
            if live_names.issuperset(self._names):
                return
            for node in self._nodes:
                if node.process.returncode is not None:
                    raise NodeDiedError(f"{node.name} did not start: exit code {node.process.returncode}")
            await asyncio.sleep(SETTLE_DELAY_S)

    @staticmethod
    async def _wait(node: Node) -> Node:
        """Return the node when its process has ended."""
        await node.process.wait()
        return node
