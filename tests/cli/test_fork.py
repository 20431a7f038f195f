"""Worker programs whose jobs fork: the processes have nothing of the worker that lives longer with them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import Scheduler
from tests.cli.forking_jobs import inherited_descriptors
from tests.cli.programs import Start, add, has_text, starter, status, until
from tests.support.inside import ExitCode
from tests.support.patience import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the tests read /proc"),
]

JOBS = "tests.cli.forking_jobs"


@pytest.fixture
def start(dsn: str, tmp_path: Path) -> Start:
    return starter(dsn, tmp_path)


@pytest.fixture
async def scheduler(pool: asyncpg.Pool[asyncpg.Record]) -> Scheduler:
    return Scheduler(pool)


@pytest.fixture
def child_file(tmp_path: Path) -> Iterator[Path]:
    """A file for the id of a forked process, which is killed after the test."""
    path = tmp_path / "child"
    yield path
    if has_text(path):
        os.kill(read_pid(path), signal.SIGKILL)


def read_pid(path: Path) -> int:
    return int(path.read_text(encoding="utf-8"))


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return int(stat.rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    """Return whether a process lives; one that has ended may wait for its parent to notice."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize("name", ["forking.leave", "forking.leave_in_thread"])
async def test_supervisor_replaces_a_killed_worker_while_a_forked_process_lives(
    start: Start, scheduler: Scheduler, child_file: Path, name: str
) -> None:
    with start(JOBS, "--processes", "2") as program:
        await program.read_until("process 2 is pid")
        await add(scheduler, name, child_file)
        await until(lambda: has_text(child_file))
        child = read_pid(child_file)
        os.kill(parent_of(child), signal.SIGKILL)
        await program.read_until("ended with SIGKILL; it is started again in 0.5 s")
        assert is_alive(child)
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text
        assert is_alive(child)


async def test_supervisor_recycles_a_worker_while_a_forked_process_lives(
    start: Start, scheduler: Scheduler, child_file: Path
) -> None:
    with start(JOBS, "--processes", "2", "--max-jobs", "1") as program:
        await program.read_until("process 2 is pid")
        await add(scheduler, "forking.leave", child_file)
        await until(lambda: program.text.count(" is pid ") == 3)
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text
    assert "it is started again" not in program.text


async def test_pool_that_terminates_its_processes_leaves_the_worker_alone(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with start(JOBS, "tests.cli.worker_jobs") as program:
        running = await add(scheduler, "cliworker.wait", tmp_path / "begun", gate)
        await until(lambda: has_text(tmp_path / "begun"))
        for _ in range(3):
            job_id = await add(scheduler, "forking.pool")

            async def has_ended(job_id: str = job_id) -> bool:
                return await status(scheduler, job_id) == "completed"

            await until(has_ended)
        assert "received" not in program.text
        gate.touch()
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text
    assert await status(scheduler, running) == "completed"


LEFT = "a process that the code of a job has forked ends here"


@pytest.mark.parametrize(
    ("job_name", "way", "code", "text"),
    [
        ("leave_code", "return", 1, LEFT),
        ("leave_code", "await", 1, LEFT),
        ("leave_code", "exit", 3, ""),
        ("leave_code", "raise", 1, "ValueError: raised in the forked process"),
        ("leave_code_in_thread", "return", 1, LEFT),
        ("leave_code_in_thread", "exit", 3, ""),
        ("leave_code_of_loop", "return", 1, LEFT),
        ("leave_code_in_process", "return", 1, LEFT),
        ("leave_code_in_process", "raise", 1, "ValueError: raised in the forked process"),
    ],
)
async def test_forked_process_that_leaves_the_code_of_its_job_ends(
    start: Start, scheduler: Scheduler, tmp_path: Path, *, job_name: str, way: str, code: int, text: str
) -> None:
    path = tmp_path / "code"
    with start(JOBS) as program:
        arguments = {"args": [way, str(path)]}
        job_id = await scheduler.schedule_job(f"forking.{job_name}", datetime.now(UTC), arguments)
        await until(lambda: has_text(path))
        assert path.read_text(encoding="utf-8") == str(code)

        async def has_ended() -> bool:
            return await status(scheduler, job_id) == "completed"

        await until(has_ended)
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text
    assert program.text.count(LEFT) == (text == LEFT)
    assert text in program.text
    assert "shuts down" not in program.text


async def test_ctrl_c_in_the_process_group_counts_once_and_lets_forked_processes_work(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    with start(JOBS, start_new_session=True) as program:
        job_id = await add(scheduler, "forking.executor", begun, gate)
        await until(lambda: has_text(begun))
        os.killpg(program.process.pid, signal.SIGINT)
        await program.read_until("SIGINT received: stopping after the running jobs")
        gate.touch()
        assert await program.end() == ExitCode.DONE, program.text
    assert "received again" not in program.text
    assert await status(scheduler, job_id) == "completed"


async def test_restarted_worker_listens_on_its_ports_while_a_forked_process_lives(
    start: Start, scheduler: Scheduler, child_file: Path
) -> None:
    ports = free_port(), free_port()
    options = "--health-port", str(ports[0]), "--metrics-port", str(ports[1])
    with start(JOBS, *options) as program:
        await add(scheduler, "forking.leave", child_file)
        await until(lambda: has_text(child_file))
        program.process.kill()
    assert is_alive(read_pid(child_file))
    with start(JOBS, *options) as program:
        await program.read_until("metrics at")
        for url in f"http://127.0.0.1:{ports[0]}/livez", f"http://127.0.0.1:{ports[1]}/metrics":
            with await asyncio.to_thread(urllib.request.urlopen, url, timeout=PATIENCE) as answer:
                assert answer.status == 200
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text


async def test_process_of_the_library_ends_with_the_worker_while_a_forked_process_lives(
    start: Start, scheduler: Scheduler, tmp_path: Path, child_file: Path
) -> None:
    begun = tmp_path / "begun"
    with start(JOBS) as program:
        await add(scheduler, "forking.isolated", begun, tmp_path / "gate")
        await until(lambda: has_text(begun))
        await add(scheduler, "forking.leave", child_file)
        await until(lambda: has_text(child_file))
        program.process.kill()
        isolated = read_pid(begun)
        try:
            await until(lambda: not is_alive(isolated))
        finally:
            if is_alive(isolated):
                os.kill(isolated, signal.SIGKILL)


REASONS = {
    "/dev/null": "in the place of what the child must not have, or of the standard streams",
    "anon_inode:[eventpoll]": "an event loop, which runs in the worker only",
    "anon_inode:[pidfd]": "refers to a process, which ends regardless",
}
"""What a forked process has besides the standard streams, and why that does no harm."""


async def test_forked_process_has_no_file_descriptor_without_a_reason(
    start: Start, scheduler: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "descriptors"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0pg_scheduler-{os.getpid()}-{id(path)}")
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + systemd.getsockname()[1:].decode())
        with start(JOBS, "--metrics-port", "0", "--health-port", "0") as program:
            await add(scheduler, "forking.isolated", tmp_path / "begun", tmp_path / "gate")
            await until(lambda: has_text(tmp_path / "begun"))
            probe = (await program.read_until("probes at")).split()[-1]
            with socket.create_connection(("127.0.0.1", int(probe.split(":")[2].split("/")[0]))) as client:
                client.send(b"GET")
                await add(scheduler, "forking.describe", path)
                await until(lambda: has_text(path) and path.read_text(encoding="utf-8").endswith("}"))
            links = json.loads(path.read_text(encoding="utf-8"))
            worker = {number: link for number, link in links["worker"].items() if int(number) > 2}
            child = {number: link for number, link in links["child"].items() if int(number) > 2}
            others = {number: link for number, link in child.items() if link not in REASONS}
            # Each event loop wakes itself by a pair of sockets, of which no other program has an end.
            loops = list(child.values()).count("anon_inode:[eventpoll]")
            assert all(link.startswith("socket:") for link in others.values()), (others, worker)

            def has_the_loops_only() -> bool:
                # The worker closes a connection during whose opening it was forked, and opens another one.
                open_links = set(inherited_descriptors(program.process.pid).values())
                return len(open_links & set(others.values())) == 2 * loops

            await until(has_the_loops_only)
            (tmp_path / "gate").touch()
            program.process.send_signal(signal.SIGTERM)
            assert await program.end() == ExitCode.DONE, program.text
    sockets = [link for link in worker.values() if link.startswith("socket:")]
    assert len(sockets) - 2 * loops >= 6, "two ports, a client, systemd, connections, the isolated process"


async def test_forked_process_does_not_have_the_pipe_to_the_supervisor(
    start: Start, scheduler: Scheduler, tmp_path: Path
) -> None:
    path = tmp_path / "descriptors"
    with start(JOBS, "--processes", "2") as program:
        await add(scheduler, "forking.describe", path)
        await until(lambda: has_text(path) and path.read_text(encoding="utf-8").endswith("}"))
        program.process.send_signal(signal.SIGTERM)
        assert await program.end() == ExitCode.DONE, program.text
    links = json.loads(path.read_text(encoding="utf-8"))
    assert any(link.startswith("pipe:") for number, link in links["worker"].items() if int(number) > 2)
    assert not any(link.startswith("pipe:") for number, link in links["child"].items() if int(number) > 2)
