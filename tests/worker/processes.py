"""Functions that child processes import."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from pg_scheduler import current_job


class OwnError(Exception):
    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


def write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="utf-8")


def note(path: str, *args: Any, **kwargs: Any) -> None:
    me = current_job()
    write(path, repr((os.getpid(), me.job_id, me.attempt, me.deadline is not None, args, kwargs)))


def note_typed(path: Path, when: datetime) -> None:
    write(str(path), f"{type(path).__name__} {when.year}")


def note_metadata(path: str) -> None:
    write(path, repr(current_job().metadata))


async def note_async(path: str) -> None:
    write(path, "async")


def leave_a_thread() -> None:
    threading.Thread(target=threading.Event().wait).start()


def use_scheduler() -> None:
    _ = current_job().scheduler.db_pool


def fail(kind: str) -> None:
    errors: dict[str, BaseException] = {
        "ValueError": ValueError("no"),
        "OSError": FileNotFoundError(2, "no such file"),
        "OwnError": OwnError(5, "mine"),
        "SystemExit": SystemExit(3),
    }
    raise errors[kind]


def log() -> None:
    logging.getLogger("tests.processes").warning("%s from the child", "hello", extra={"order": 7})
    logging.getLogger("tests.processes").debug("not enabled")
    try:
        fail("ValueError")
    except ValueError:
        logging.getLogger("tests.processes").exception("failed")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_a_fork() -> None:
    """Leave a child that keeps every socket open."""
    if os.fork() == 0:
        time.sleep(5)
        os._exit(0)
    os._exit(7)


def wait(began: str, *, ignore: bool = False) -> None:
    """Run until the process is terminated; with ``ignore``, until it is killed."""
    if ignore:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write(began, str(os.getpid()))
    try:
        time.sleep(3600)
    finally:
        write(began, f"cancelled {current_job().is_cancelled}")


def wait_for_file(began: str, path: str) -> None:
    write(began, str(os.getpid()))
    while not Path(path).exists():
        time.sleep(0.01)


def answer_nonsense() -> None:
    """Break the connection to the parent."""
    for fd in range(3, 64):
        try:
            found = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        if found.family == socket.AF_UNIX:
            found.sendall(b"\0\0\0\x05{nope")
    sys.stdout.flush()


def send_unknown_message() -> None:
    """Send what a newer version might send."""
    for fd in range(3, 64):
        try:
            found = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        if found.family == socket.AF_UNIX:
            text = b'{"weather": "fine"}'
            found.sendall(len(text).to_bytes(4) + text)


def log_wrong_arguments() -> None:
    logging.getLogger("tests.processes").warning("%d apples", "many")
    logging.getLogger("tests.processes").warning("after")


def give(kind: str) -> object:
    values: dict[str, object] = {
        "rows": {"rows": [1, (2.5, None)], "name": "ä"},
        "long": "x" * 200,
        "object": object(),
        "None": None,
    }
    return values[kind]


def report_steps(count: int) -> int:
    for number in range(1, count + 1):
        current_job().progress(number, count, note=f"step {number}")
    return count


def report_and_wait(path: str) -> None:
    """Report progress once, and run until the file exists."""
    current_job().progress(1, 2)
    while not Path(path).exists():
        time.sleep(0.01)


def report_nonsense() -> None:
    current_job().progress("half")  # type: ignore[arg-type]


def pid() -> int:
    return os.getpid()
