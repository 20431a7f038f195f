"""A worker that is PID 1, as in a container, obeys a SIGTERM that comes while it starts."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import asyncpg
import pytest

from tests.docs.snippets import ROOT
from tests.support.worker import PATIENCE

pytestmark = pytest.mark.slow

# Only root may make a PID namespace without a user namespace, in which root may not open the files of others.
USER_NAMESPACE: Final = () if os.geteuid() == 0 else ("--map-root-user",)
NAMESPACE: Final = ("unshare", *USER_NAMESPACE, "--pid", "--fork", "--kill-child")
"""The program before another one that makes that PID 1."""

Condition: TypeAlias = Callable[[], bool | Awaitable[bool]]

Begun: TypeAlias = tuple[str, Condition]
"""The address of a database, and whether the worker has come to the phase."""

WAITS_FOR_LOCK: Final = "SELECT count(*) FROM pg_locks WHERE NOT granted"


def can_make_namespaces() -> bool:
    if shutil.which(NAMESPACE[0]) is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


async def until(condition: Condition) -> None:
    """Wait until the worker has come so far, of which it sends no event."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = condition()
            if found is True or (not isinstance(found, bool) and await found):
                return
            await asyncio.sleep(0.02)


class Worker:
    """A worker that is PID 1 of a namespace of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def _first_process(self) -> int:
        """Return the id that the first process of the namespace has outside of it; 0 before it exists."""
        number = self._process.pid
        children = Path(f"/proc/{number}/task/{number}/children").read_text(encoding="ascii").split()
        return int(children[0]) if children else 0

    async def is_told_to_end(self) -> None:
        await until(lambda: self._first_process() != 0)
        os.kill(self._first_process(), signal.SIGTERM)

    async def code(self) -> int:
        await until(lambda: self._process.poll() is not None)
        return int(self._process.returncode)


@contextmanager
def first_process(*arguments: str, folder: Path) -> Iterator[Worker]:
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [*NAMESPACE, sys.executable, "-m", "pg_scheduler", "worker", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
            stderr=stderr,
        )
    try:
        yield Worker(process)
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def imports(dsn: str, folder: Path) -> AsyncIterator[Begun]:
    """Let the worker import a module of the application that takes its time."""
    source = "import pathlib, time\npathlib.Path('{}').touch()\ntime.sleep(600)\n"
    (folder / "pid1_slow.py").write_text(source.format(folder / "imported"), encoding="utf-8")
    yield dsn, (folder / "imported").exists


@asynccontextmanager
async def connects(dsn: str, folder: Path) -> AsyncIterator[Begun]:
    """Let the worker connect to a server that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        accepted: list[socket.socket] = []

        def is_connected() -> bool:
            try:
                accepted.append(server.accept()[0])
            except BlockingIOError:
                return bool(accepted)
            return True

        yield f"postgresql://postgres@127.0.0.1:{server.getsockname()[1]}/none?sslmode=disable", is_connected
        for connection in accepted:
            connection.close()


@asynccontextmanager
async def waits_for_table(dsn: str, table: str) -> AsyncIterator[Begun]:
    """Let the worker wait for the lock of a table."""
    holder, watcher = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")

        async def is_waiting() -> bool:
            return bool(await watcher.fetchval(WAITS_FOR_LOCK))

        yield dsn, is_waiting
        await transaction.rollback()
    finally:
        await holder.close()
        await watcher.close()


PHASES: Final = ("imports", "connects", "migrates", "registers")


@pytest.mark.skipif(not can_make_namespaces(), reason="this machine permits no PID namespaces")
@pytest.mark.parametrize("phase", PHASES)
async def test_worker_that_is_pid_1_ends_when_sigterm_comes_while_it(
    phase: str, dsn: str, pool: asyncpg.Pool, tmp_path: Path
) -> None:
    (tmp_path / "pid1_jobs.py").write_text(
        "from pg_scheduler import job\n\n@job(name='pid1.work')\nasync def work(): ...\n", encoding="utf-8"
    )
    begun = {
        "imports": imports(dsn, tmp_path),
        "connects": connects(dsn, tmp_path),
        "migrates": waits_for_table(dsn, "scheduler_migrations"),
        "registers": waits_for_table(dsn, "scheduler_workers"),
    }[phase]
    module = "pid1_slow" if phase == "imports" else "pid1_jobs"
    async with begun as (address, is_in_phase):
        with first_process(module, "--dsn", address, folder=tmp_path) as worker:
            await until(is_in_phase)
            await worker.is_told_to_end()
            code = await worker.code()
    assert code == 0, (tmp_path / "stderr").read_text(encoding="utf-8")
    assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 0
