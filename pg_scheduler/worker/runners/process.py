"""Run functions in child processes, one job at a time in each.

The processes are not those of ``concurrent.futures``, in which the death of one breaks the whole pool. Each
is a fresh interpreter, as by the start method "spawn", and receives its jobs as JSON over a socket pair.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Final

from pg_scheduler.base.fork import inheritance
from pg_scheduler.base.public import public
from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.jobs.call import CrashedError, JobCall, JobExecutor, RaisedError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.executors import import_path
from pg_scheduler.jobs.metadata import metadata_of, with_metadata
from pg_scheduler.jobs.payload import decode, encode, encode_object
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.worker.runners.protocol import HEADER, claim_to, error_from, pack, record_from, value_from
from pg_scheduler.worker.runners.thread import check_capacity

PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from pg_scheduler.worker.runners.child import main; main(int(sys.argv[1]))"
)

LAST_MESSAGES_S: Final = 1.0
"""Seconds that a process gets to end after its connection has ended; also the seconds in which its last
messages arrive after its end."""


@public
class ProcessExecutor(JobExecutor):
    """Runs functions in processes of its own, which start with their first job.

    A process that dies costs its own job only, as a crash of that attempt.

    Args:
        processes: Jobs that run at once in each Scheduler.
        jobs_per_process: Jobs after which a process is replaced, which returns its memory; None for no limit.

    Raises:
        ConfigurationError: A number is not a positive int.

    Example:
        >>> from pg_scheduler import ProcessExecutor
        >>> executors = {"process": ProcessExecutor(processes=2)}  # for Scheduler(pool, executors=executors)
    """

    preparation: ClassVar[str | None] = None
    """The path ``module:name`` of a function, for derived classes; None for none. Each process calls it once,
    with what ``parameters()`` returned, and it returns what calls the functions of jobs."""

    def __init__(self, processes: int = 4, jobs_per_process: int | None = 1000) -> None:
        self.capacity = check_capacity("processes", processes)
        self._jobs_per_process = (
            None if jobs_per_process is None else check_capacity("jobs_per_process", jobs_per_process)
        )
        self._children: dict[asyncio.AbstractEventLoop, _Children] = {}

    def parameters(self) -> Any:
        """Return a value of JSON for ``preparation`` in a process that is about to start."""
        return None

    async def run(self, call: JobCall) -> Any:
        """Run one attempt. If it is cancelled, its process gets SIGTERM, and SIGKILL after ``stop_grace``."""
        # An error in the request must not end a process, so the request is made before one is taken.
        request = _request(call)
        children = self._children_here()
        child = children.take_idle() or await _Child.start(self.preparation, self.parameters())
        # From here on a cancellation of the attempt ends the process, which runs nothing but this attempt.
        call.on_cancel(lambda: child.terminate(call.stop_grace))
        try:
            value = await child.execute(call, request)
            # Only a cancellation before the end of the function decides the outcome.
            call.was_cancelled = call.is_cancelled
        except EOFError:
            # The process has ended. It may be this attempt's cancellation that has ended it.
            call.was_cancelled = call.is_cancelled
            children.retire(child, LAST_MESSAGES_S)
            raise CrashedError(f"the process of the job ended: {await child.end()}") from None
        except BaseException:  # whatever it was, the process must not run on
            child.kill()
            children.retire(child, 0)
            raise
        if call.was_cancelled or child.job_count == self._jobs_per_process or not child.is_usable:
            children.retire(child, call.stop_grace)
        else:
            children.idle.append(child)
        # The function has raised an exception. It is raised here, after the process was put back.
        if isinstance(value, RaisedError):
            raise value
        return value

    async def stop(self, grace: float) -> None:
        """End the idle processes of this event loop, and kill those that do not end in time.

        Wait for the end of these processes, and of others that were to end before.
        """
        children = self._children_here()
        while child := children.take_idle():
            children.retire(child, grace)
        await asyncio.gather(*(child.end() for child in children.ending))

    def _children_here(self) -> _Children:
        """Return the processes of this event loop. Schedulers in several threads may share this executor.

        A process of another event loop cannot be ended from this one. When a loop is closed, its processes
        are forgotten, and they end when their connections are collected.
        """
        for loop in list(self._children):
            if loop.is_closed():
                self._children.pop(loop, None)
        return self._children.setdefault(asyncio.get_running_loop(), _Children())


def _command(fd: int) -> tuple[str, ...]:
    """Return the command that starts a child process with the import path of this process.

    The folder "" of that path, which stands for the current folder, becomes absolute. ``fd`` is the number of
    the socket by which the child receives its jobs.
    """
    path = [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100 - "." is not a path here
    return sys.executable, "-c", PROGRAM, str(fd), json.dumps(path)


def _request(call: JobCall) -> bytes:
    """Return the message by which a child process receives a call: the claim and where the function is.

    Raises:
        PayloadError: JSON cannot represent an argument that middleware added.
    """
    module, path = import_path(call.func)
    added_kwargs = json.loads(encode_object("kwargs that middleware added", call.added_kwargs))
    claim = call.claim if call.codec is None else _decode_arguments(call.claim, call.codec)
    return pack(
        {
            "claim": claim_to(claim),
            "module": module,
            "path": path,
            "typed": call.is_typed,
            "kwargs": added_kwargs,
        }
    )


def _decode_arguments(claim: Claim, codec: PayloadCodec) -> Claim:
    """Return a claim with its arguments as plain JSON, because the child process has no codec."""
    args, kwargs = decode(claim.task_data, codec, claim.job_name)
    return claim._replace(task_data=with_metadata(encode(args, kwargs), metadata_of(claim.task_data), None))


class _Child:
    """One child process, and the connection to it."""

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.ensure_future(process.wait())
        self._ended.add_done_callback(lambda _: writer.close())
        self._timer: asyncio.TimerHandle | None = None
        self._is_prepared = True
        self.job_count = 0

    @classmethod
    async def start(cls, preparation: str | None = None, parameters: Any = None) -> _Child:
        """Start a process, which prepares itself with the parameters; see `ProcessExecutor.preparation`.

        Its answer to its first job contains whether it could be prepared. After that, `is_usable` is False if
        it could not.
        """
        parent_socket, child_socket = socket.socketpair()
        # The child ends when "parent_socket" is closed. A process that a job forks here would keep that open,
        # so forks close it. They do not close "child_socket": uvloop starts the child by such a fork, and the
        # child needs its socket.
        inheritance.close_in_children(parent_socket)
        with child_socket:
            fd = child_socket.fileno()
            try:
                process = await asyncio.create_subprocess_exec(*_command(fd), pass_fds=[fd])
            except BaseException:  # whatever it was, the socket must not stay open
                parent_socket.close()
                raise
        child = cls(process, *await asyncio.open_connection(sock=parent_socket))
        # The loggers of the child get the levels that loggers have here, so that it sends no more records
        # than this process wants.
        loggers = logging.root.manager.loggerDict.items()
        levels = {
            name: logger.level
            for name, logger in loggers
            if isinstance(logger, logging.Logger) and logger.level
        }
        start = {"levels": {**levels, "": logging.root.level}, "path": preparation, "parameters": parameters}
        child._writer.write(pack({"start": start}))
        return child

    @property
    def is_usable(self) -> bool:
        """Whether the process lives and could be prepared."""
        return self._is_prepared and not self._ended.done()

    async def execute(self, call: JobCall, request: bytes) -> Any:
        """Run a call to its end; return the value of its function, or its exception as a ``RaisedError``.

        Raises:
            EOFError: The process has ended.
        """
        self.job_count += 1
        self._writer.write(request)
        # Log records and progress come before the end of the call.
        while True:
            message = await self._receive()
            if (values := message.get("log")) is not None:
                _log(values)
            elif (progress := message.get("progress")) is not None:
                call.job.progress(*progress)
            elif (end := message.get("end")) is not None:
                self._is_prepared = message["is_prepared"]
                if "error" in end:
                    return RaisedError(error_from(end["error"]))
                return value_from(end)

    def terminate(self, grace: float) -> None:
        """Send SIGTERM now, and SIGKILL after the grace, which is in seconds."""
        self._signal(signal.SIGTERM)
        self._kill_after(grace)

    def retire(self, grace: float) -> None:
        """Let a process end that has no job any more; kill it after the grace, which is in seconds."""
        self._writer.close()
        self._kill_after(grace)

    def kill(self) -> None:
        """End the process at once, by SIGKILL."""
        self._signal(signal.SIGKILL)
        self._writer.close()

    def on_end(self, callback: Callable[[_Child], object]) -> None:
        """Call back with this process when it has ended."""
        self._ended.add_done_callback(lambda _: callback(self))

    async def end(self) -> str:
        """Wait for the end of the process; return what has ended it, as text for people."""
        code = await self._ended
        # asyncio returns the number of a signal as a negative number.
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def _kill_after(self, grace: float) -> None:
        """Kill the process after the grace, unless its end is planned already."""
        if self._timer is None:
            self._timer = timer = self._loop.call_later(grace, self.kill)
            self._ended.add_done_callback(lambda _: timer.cancel())

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _receive(self) -> dict[str, Any]:
        """Return the next message of the process.

        Other processes that it started may keep the connection open after its end. So the end of the process
        counts as the end of the connection.

        Raises:
            EOFError: The process has ended, or the connection to it.
        """
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait([reading, self._ended], return_when=asyncio.FIRST_COMPLETED)
            # The process has ended, but its last messages may still arrive.
            if not reading.done():
                await asyncio.wait([reading], timeout=LAST_MESSAGES_S)
        finally:
            if not reading.done():
                reading.cancel()
        if reading.done() and not reading.cancelled():
            return reading.result()
        raise EOFError

    async def _read(self) -> dict[str, Any]:
        """Read one message: its length in bytes, and then its JSON. Raise EOFError at the end."""
        try:
            (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            message: dict[str, Any] = load_json(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError, ValueError):  # it ended, in the middle of a message too
            raise EOFError from None
        return message


class _Children:
    """The processes of one event loop that run no job."""

    def __init__(self) -> None:
        self.idle: list[_Child] = []
        self.ending: set[_Child] = set()

    def take_idle(self) -> _Child | None:
        """Return an idle process; None if there is none. Unusable ones leave the list."""
        while self.idle:
            child = self.idle.pop()
            if child.is_usable:
                return child
        return None

    def retire(self, child: _Child, grace: float) -> None:
        """Let a process end, and kill it after the grace."""
        self.ending.add(child)
        child.retire(grace)
        child.on_end(self.ending.discard)


def _log(values: dict[str, Any]) -> None:
    """Pass a log record of a child process on to the logger of the same name in this process."""
    record = record_from(values)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
