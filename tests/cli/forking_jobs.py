"""Jobs that fork, of workers that tests start as programs."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pg_scheduler import current_job, job
from tests.cli.worker_jobs import exists, write_pid

CONTEXT = multiprocessing.get_context("fork")


def square(number: int) -> int:
    return number * number


def inherited_descriptors(pid: int | str = "self") -> dict[str, str]:
    """Return what each file descriptor of a process is, by its number."""
    links = {}
    for number in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links[number.name] = str(number.readlink())
        except FileNotFoundError:  # the folder itself, or another file, which is closed now
            continue
    return links


def write_descriptors(path: str, worker: dict[str, str]) -> None:
    text = json.dumps({"worker": worker, "child": inherited_descriptors()})
    Path(path).write_text(text, encoding="utf-8")


def release_standard_streams() -> None:
    """Replace the standard streams: the test may wait until no process holds those of the worker."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


def fork(path: str) -> None:
    """Fork a process that writes its id to a file and lives until it is killed."""
    if os.fork() == 0:
        release_standard_streams()
        write_pid(path)
        while True:
            signal.pause()


@job(name="forking.leave")
async def leave(path: str) -> None:
    """Fork a process that outlives the job and the worker."""
    fork(path)


@job(name="forking.leave_in_thread")
def leave_in_thread(path: str) -> None:
    """The same in a thread, which is the main thread of the forked process."""
    fork(path)


@job(name="forking.pool")
def pool() -> int:
    """Compute in a pool whose processes get a SIGTERM at its end."""
    with CONTEXT.Pool(2) as processes:
        return sum(processes.map(square, range(10)))


@job(name="forking.executor")
async def executor(begun: str, gate: str) -> int:
    """Compute in processes of an executor before and after a gate opens."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, mp_context=CONTEXT) as processes:
        await loop.run_in_executor(processes, square, 3)
        write_pid(begun)
        while not exists(gate):  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)  # until the test lets it end
        return await loop.run_in_executor(processes, square, 4)


@job(name="forking.isolated", executor="process")
def isolated(begun: str, gate: str) -> None:
    """Run in a process of the library, which ends with the worker."""
    write_pid(begun)
    current_job()
    while not exists(gate):
        signal.sigtimedwait([], 0.02)  # until the test lets it end


@job(name="forking.describe")
async def describe(path: str) -> None:
    """Write the file descriptors of a forked process, and those of this one."""
    before = inherited_descriptors()
    if (pid := os.fork()) == 0:
        write_descriptors(path, before)
        os._exit(0)
    await asyncio.to_thread(os.waitpid, pid, 0)
