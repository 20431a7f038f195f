"""A program that is PID 1, as in a container, obeys SIGTERM: while it starts, waits and works.

In the containers of the manifests, the programs also have no right to write a file, and are not root.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeAlias

import asyncpg
import pytest

from pg_scheduler import Scheduler
from tests.cli.programs import add, status
from tests.docs.snippets import ROOT
from tests.support.patience import PATIENCE
from tests.support.users import AS_NOBODY_WHO_READS_ALL, IS_ROOT, NOBODY

pytestmark = pytest.mark.slow

# Only root may make a PID namespace without a user namespace, in which root may not open the files of others.
USER_NAMESPACE: Final = () if IS_ROOT else ("--map-root-user",)
NAMESPACE: Final = ("unshare", *USER_NAMESPACE, "--pid", "--fork", "--kill-child")
"""The program before another one that makes that PID 1."""

READ_ONLY: Final = (
    # A user who may read the interpreter and the checkout wherever they are, but write nowhere.
    *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
    *("sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh"),
    *AS_NOBODY_WHO_READS_ALL,
)
"""The same, for another user and with a read-only file system."""

Condition: TypeAlias = Callable[[], bool | Awaitable[bool]]

Begun: TypeAlias = tuple[str, Condition]
"""The address of a database, and whether the worker has come to the phase."""

WAITS_FOR_LOCK: Final = "SELECT count(*) FROM pg_locks WHERE NOT granted"


def can_run_in(namespace: Sequence[str]) -> bool:
    if shutil.which(namespace[0]) is None:
        return False
    return subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode == 0


needs_namespace = pytest.mark.skipif(
    not can_run_in(NAMESPACE), reason="this machine permits no PID namespaces"
)


async def until(condition: Condition) -> None:
    """Wait until the worker has come so far, of which it sends no event."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = condition()
            if answer is True or (not isinstance(answer, bool) and await answer):
                return
            await asyncio.sleep(0.02)


class Program:
    """A program that is PID 1 of a namespace of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def _first_process(self) -> int:
        """Return the id that the first process of the namespace has outside of it; 0 before it exists."""
        number = self._process.pid
        children = children_of(number)
        return children[0] if children else 0

    async def is_told_to_end(self) -> None:
        await until(lambda: self._first_process() != 0)
        os.kill(self._first_process(), signal.SIGTERM)

    def has_zombies(self) -> bool:
        """Return whether a process has ended that it started, or that was left to it, and was not reaped."""
        stats = []
        for child in children_of(self._first_process()):
            with suppress(FileNotFoundError):  # it has just been reaped
                stats.append(Path(f"/proc/{child}/stat").read_text(encoding="ascii"))
        return "Z" in [stat.rpartition(")")[2].split()[0] for stat in stats]

    async def code(self) -> int:
        await until(lambda: self._process.poll() is not None)
        return int(self._process.returncode)


def children_of(number: int) -> list[int]:
    """Return the processes that any thread of a process started."""
    texts = [path.read_text(encoding="ascii") for path in Path(f"/proc/{number}/task").glob("*/children")]
    return [int(child) for text in texts for child in text.split()]


@contextmanager
def first_process(
    *arguments: str, folder: Path, namespace: Sequence[str] = NAMESPACE, **variables: str
) -> Iterator[Program]:
    with (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [*namespace, sys.executable, "-m", "pg_scheduler", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), **variables},
            stderr=stderr,
        )
    try:
        yield Program(process)
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


@asynccontextmanager
async def serves(dsn: str, folder: Path) -> AsyncIterator[Begun]:
    """Let a server start."""
    yield dsn, lambda: "serving http://" in (folder / "stderr").read_text(encoding="utf-8")


PHASES: Final = ("imports", "connects", "migrates", "registers")


@needs_namespace
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
        with first_process("worker", module, "--dsn", address, folder=tmp_path) as worker:
            await until(is_in_phase)
            await worker.is_told_to_end()
            code = await worker.code()
    assert code == 0, (tmp_path / "stderr").read_text(encoding="utf-8")
    assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 0


JOBS: Final = """\
import asyncio, os, pathlib, time
from pg_scheduler import job

@job(name="pid1.wait")
async def wait(begun, end):
    pathlib.Path(begun).touch()
    while not os.path.exists(end):
        await asyncio.sleep(0.02)

@job(name="pid1.compute", executor="process")
def compute(path):
    return path

@job(name="pid1.hang", executor="process")
def hang(path):
    time.sleep(600)
"""
"""A job that waits, one that completes in a process, and one that does not end by itself."""


@needs_namespace
async def test_worker_that_is_pid_1_reaps_the_processes_of_jobs_and_lets_a_job_finish_at_sigterm(
    dsn: str, pool: asyncpg.Pool, tmp_path: Path
) -> None:
    (tmp_path / "pid1_jobs.py").write_text(JOBS, encoding="utf-8")
    begun, end = tmp_path / "begun", tmp_path / "end"
    client = Scheduler(pool)
    with first_process("worker", "pid1_jobs", "--dsn", dsn, folder=tmp_path) as worker:
        ids = {"pid1.compute": await add(client, "pid1.compute", tmp_path)}
        hang = {"args": [str(tmp_path)]}
        ids["pid1.hang"] = await client.schedule_job(
            "pid1.hang", datetime.now(UTC), hang, timeout=0.2, max_retries=0
        )

        async def have_ended() -> bool:
            statuses = {name: await status(client, job_id) for name, job_id in ids.items()}
            return statuses == {"pid1.compute": "completed", "pid1.hang": "failed"}

        await until(have_ended)
        # A process that waits for the next job remains, and one was killed.
        await until(lambda: not worker.has_zombies())
        waiting = await add(client, "pid1.wait", begun, end)
        await until(begun.exists)
        await worker.is_told_to_end()
        await until(lambda: "SIGTERM received" in (tmp_path / "stderr").read_text(encoding="utf-8"))
        end.touch()
        assert await worker.code() == 0, (tmp_path / "stderr").read_text(encoding="utf-8")
    assert await status(client, waiting) == "completed"
    assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 0


SERVERS: Final = {"exporter": ("exporter",), "dashboard": ("dashboard", "--auth", "basic")}


@needs_namespace
@pytest.mark.parametrize("name", list(SERVERS))
@pytest.mark.parametrize("phase", ["connects", "verifies", "serves"])
async def test_server_that_is_pid_1_ends_when_sigterm_comes_while_it(
    name: str, phase: str, dsn: str, tmp_path: Path
) -> None:
    begun = {
        "connects": connects(dsn, tmp_path),
        "verifies": waits_for_table(dsn, "scheduler_migrations"),
        "serves": serves(dsn, tmp_path),
    }[phase]
    async with begun as (address, is_in_phase):
        options = (*SERVERS[name], "--port", "0", "--dsn", address)
        with first_process(*options, folder=tmp_path, PG_SCHEDULER_DASHBOARD_PASSWORD="secret") as server:
            await until(is_in_phase)
            await server.is_told_to_end()
            assert await server.code() == 0, (tmp_path / "stderr").read_text(encoding="utf-8")


@pytest.mark.skipif(
    not can_run_in(READ_ONLY), reason="this machine permits no mounts, or has no setpriv of util-linux"
)
@pytest.mark.parametrize("name", ["worker", "migrate", *SERVERS])
async def test_program_works_that_may_write_no_file(
    name: str, dsn: str, empty_dsn: str, pool: asyncpg.Pool, tmp_path: Path
) -> None:
    """The jobs of the worker run, the migration is applied, and the servers answer."""
    (tmp_path / "pid1_jobs.py").write_text(JOBS, encoding="utf-8")
    client = Scheduler(pool)
    arguments = {"worker": ("worker", "pid1_jobs"), "migrate": ("migrate",)}
    options = arguments.get(name) or (*SERVERS[name], "--port", "0")
    address = empty_dsn if name == "migrate" else dsn
    variables = {
        "PG_SCHEDULER_DSN": address,
        "PG_SCHEDULER_DASHBOARD_PASSWORD": "secret",
        "HOME": "/nonexistent",
    }
    job_id = await add(client, "pid1.compute", tmp_path)
    with first_process(*options, folder=tmp_path, namespace=READ_ONLY, **variables) as program:
        if name == "worker":

            async def is_completed() -> bool:
                return await status(client, job_id) == "completed"

            await until(is_completed)
        elif name != "migrate":
            async with serves(dsn, tmp_path) as (_, is_serving):
                await until(is_serving)
            port = re.findall(r":(\d+)/", (tmp_path / "stderr").read_text(encoding="utf-8"))[0]
            path = {"exporter": "metrics", "dashboard": "static/refusal.css"}[name]
            url = f"http://127.0.0.1:{port}/{path}"
            with await asyncio.to_thread(urllib.request.urlopen, url, timeout=PATIENCE) as response:
                assert response.status == 200
        if name != "migrate":
            await program.is_told_to_end()
        assert await program.code() == 0, (tmp_path / "stderr").read_text(encoding="utf-8")
    assert "Errno" not in (tmp_path / "stderr").read_text(encoding="utf-8")


def test_read_only_program_is_another_user_and_can_write_no_file(tmp_path: Path) -> None:
    if not can_run_in(READ_ONLY):
        pytest.skip("this machine permits no mounts, or has no setpriv of util-linux")
    tmp_path.chmod(0o777)
    code = f"import os; print(os.getuid(), os.getpid()); open({str(tmp_path / 'file')!r}, 'w')"
    command = [*READ_ONLY, sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout.split() == [str(NOBODY), "1"]
    assert "Read-only file system" in ran.stderr
