"""Jobs that fork, of workers that tests start as programs."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pg_scheduler import current_job, job
from tests.cli.worker_jobs import exists, write_pid
from tests.support.patience import PATIENCE

CONTEXT = multiprocessing.get_context("fork")
CALLS = 20


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


@job(name="forking.nothing")
async def nothing() -> None: ...


def leave_code(way: str) -> None:
    """Leave the code of a job in a forked process."""
    if way == "exit":
        sys.exit(3)
    if way == "raise":
        raise ValueError("raised in the forked process")


def exit_code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@job(name="forking.leave_code")
async def leave_code_of_coroutine(way: str, path: str) -> None:
    """Write how the forked process ended, once the worker has got the answers to many calls of its own."""
    future = asyncio.get_running_loop().create_future()
    if (pid := os.fork()) == 0:
        leave_code(way)
        if way == "await":
            await future
        return
    code = await asyncio.to_thread(exit_code_of, pid)
    scheduler = current_job().scheduler
    for _ in range(CALLS):
        await scheduler.run_job("forking.nothing", wait_timeout=PATIENCE)
    Path(path).write_text(str(code), encoding="utf-8")  # noqa: ASYNC240 - a few bytes


@job(name="forking.leave_code_in_thread")
def leave_code_of_function(way: str, path: str) -> None:
    if (pid := os.fork()) == 0:
        leave_code(way)
        return
    Path(path).write_text(str(exit_code_of(pid)), encoding="utf-8")


@job(name="forking.leave_code_of_loop", executor="thread")
def leave_loop_of_thread(way: str, path: str) -> None:
    asyncio.run(leave_loop(way, path))


async def leave_loop(way: str, path: str) -> None:
    """The same in an event loop of the job itself."""
    leave_code_of_function(way, path)


@job(name="forking.leave_code_in_process", executor="process")
def leave_code_of_process(way: str, path: str) -> None:
    leave_code_of_function(way, path)
