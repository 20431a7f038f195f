"""The main program of a child process of ``ProcessExecutor``. It runs one job at a time.

The end of the connection to its parent ends it, in the middle of a job too.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from importlib import import_module
from queue import SimpleQueue
from types import FrameType
from typing import Any, BinaryIO, Final, NoReturn, cast

from pg_scheduler.base.fork import inheritance
from pg_scheduler.base.job_imports import importing_for_job
from pg_scheduler.errors import NotRunningError
from pg_scheduler.jobs.call import check_returned, invoke
from pg_scheduler.jobs.context import RunningJob, cancellation, current
from pg_scheduler.jobs.payload import decode
from pg_scheduler.jobs.progress import JobProgress
from pg_scheduler.jobs.result import keep_seconds
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.typed import TypedArguments
from pg_scheduler.worker.runners.protocol import HEADER, claim_from, error_to, pack, record_to, value_to

PROGRESS_GAP_S: Final = 0.1
"""Seconds between two messages about the progress of a job."""

PARENT_CHECK_S: Final = 1.0
"""Seconds between two looks at the parent, while threads that jobs have left keep the process alive."""


def _no_scheduler() -> NoReturn:
    """Raise NotRunningError: the Scheduler of the job is in the parent."""
    raise NotRunningError(
        "current_job().scheduler and .pool are not available in a process; use executor='thread', or create "
        "a SyncScheduler(dsn) of pg_scheduler.sync in the function"
    )


class _Flag:
    """The cancellation flag of the job. The process runs one job at a time."""

    is_cancelled = False


class _Progress:
    """Sends the last progress of the job, at most every tenth of a second."""

    def __init__(self, child: _Child) -> None:
        self._child = child
        self._last_progress: JobProgress | None = None
        self._timer: threading.Timer | None = None
        self._changing = threading.RLock()

    def report(self, _claim: Claim, progress: JobProgress) -> None:
        """Note a report of the job, from any thread, and send it soon."""
        with self._changing:
            self._last_progress = progress
            if self._timer is None:
                self._timer = threading.Timer(PROGRESS_GAP_S, self.flush)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Send the last report, if it was not sent; called by the timer, and at the end of the job."""
        with self._changing:
            progress, self._last_progress = self._last_progress, None
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()
            if progress is not None:
                self._child.send({"progress": [progress.done, progress.total, progress.note]})


class _Child:
    """The connection to the parent."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.RLock()
        self._calls: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._flag = _Flag()
        self._progress = _Progress(self)
        self._is_busy = False
        self._start_message: dict[str, Any] = {}
        self._invoke: Callable[..., Any] | None = None

    def run(self) -> None:
        """Execute calls until the connection is closed, one is cancelled, or the preparation fails.

        The calls run in the main thread, because only there a signal interrupts the code of a job. Another
        thread reads the messages of the parent.
        """
        signal.signal(signal.SIGINT, lambda *_: None)  # a Ctrl-C is for the parent, which shuts down
        signal.signal(signal.SIGTERM, self._terminate)
        threading.Thread(target=self._receive, daemon=True).start()
        # In a process that a job forks, such as one of a Pool, SIGTERM ends that process as usual. It does
        # not cancel the job there.
        with inheritance.handle_in_children({signal.SIGTERM: signal.SIG_DFL}):
            self._execute_calls()

    def _execute_calls(self) -> None:
        """Execute one call after another; end after one that was cancelled, or if the preparation failed."""
        while (message := self._calls.get()) is not None:
            # Each job has a copy of the context, so that none sees the context variables of another.
            end = copy_context().run(self._execute, message)
            self._progress.flush()
            is_prepared = self._invoke is not None
            self.send({"end": end, "is_prepared": is_prepared})
            self._is_busy = False
            if self._flag.is_cancelled or not is_prepared:
                break

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the parent."""
        data = pack(message)
        with self._sending:
            self._connection.sendall(data)

    def _receive(self) -> None:
        """Read the messages of the parent in a thread; end this process when the parent has ended."""
        parent = os.getppid()
        with self._connection.makefile("rb") as file:
            while (message := _read(file)) is not None:
                # The first message has the settings of this process, each further one a call.
                if (start := message.get("start")) is not None:
                    _set_levels(start["levels"])
                    logging.getLogger().addHandler(_Handler(self))
                    self._start_message = start
                else:
                    self._is_busy = True
                    self._calls.put(message)
        # The connection is closed.
        if self._is_busy:
            os._exit(1)  # the parent has ended during a job
        # This ends the main thread. The interpreter then waits for threads that jobs have left, and ends.
        self._calls.put(None)
        while True:
            time.sleep(PARENT_CHECK_S)
            # A parent that lives kills this process after a while. If the parent has ended, nothing else ends
            # the process.
            if os.getppid() != parent:
                os._exit(1)

    def _terminate(self, _number: int, _frame: FrameType | None) -> NoReturn:
        """Cancel the job: raise SystemExit in its code, which runs in the main thread like this handler."""
        self._flag.is_cancelled = True
        sys.exit(128 + signal.SIGTERM)

    def _execute(self, message: dict[str, Any]) -> dict[str, Any]:
        """Call a function, and return its value or its error as a message to the parent."""
        try:
            claim = claim_from(message["claim"])
            current.set(RunningJob(claim, time.time(), _no_scheduler, self._progress.report, None))
            cancellation.set(self._flag)
            # The first job prepares the process, so that an error of the preparation is that of the job.
            if self._invoke is None:
                self._invoke = self._prepare()
            func = _import_member(message["module"], message["path"])
            args, kwargs = decode(claim.task_data)
            # A typed task converts its arguments by the annotations of its function, and its result too.
            typed = TypedArguments(func) if message["typed"] else None
            if typed is not None:
                args, kwargs = typed.bind(args, kwargs)
            value = self._invoke(func, args, {**kwargs, **message["kwargs"]})
            check_returned(value)
            if typed is not None and keep_seconds(claim.options) is not None:
                value = typed.form_of_result(value)
            return value_to(claim.options, value)
        except BaseException as error:  # noqa: BLE001 - user code; sys.exit() and the like end the job only
            return {"error": error_to(error)}

    def _prepare(self) -> Callable[..., Any]:
        """Call `ProcessExecutor.preparation`, if there is one; return what calls the functions of jobs."""
        if not self._start_message["path"]:
            return invoke
        module, path = self._start_message["path"].split(":")
        prepare = _import_member(module, path)
        caller: Callable[..., Any] = prepare(self._start_message["parameters"])
        return caller


class _Handler(logging.Handler):
    """Sends log records to the parent."""

    def __init__(self, child: _Child) -> None:
        super().__init__()
        self._child = child

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            self._child.send({"log": record_to(record)})
        except Exception:  # noqa: BLE001 - as every handler: arguments that do not fit, or a closed connection
            self.handleError(record)


def _import_member(module: str, path: str) -> Any:
    """Return the function or class of a module at a path such as ``Class.method``."""
    with importing_for_job(module):
        member: Any = import_module(module)
    for part in path.split("."):
        member = getattr(member, part)
    return member


def _read(file: BinaryIO) -> dict[str, Any] | None:
    """Return the next message, or None at the end, which may be within a message."""
    try:
        header = file.read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        (length,) = HEADER.unpack(header)
        text = file.read(length)
    except OSError:
        return None
    if not text or len(text) < length:
        return None
    return cast("dict[str, Any]", json.loads(text))


def _set_levels(levels: dict[str, int]) -> None:
    """Give loggers the levels that they have in the parent; the root logger has the name ""."""
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)


def main(fd: int) -> None:
    """Run the jobs that arrive on a socket, which is given by its file descriptor."""
    with socket.socket(fileno=fd) as connection:
        _Child(connection).run()
