"""Run several worker processes, and start each of them again when it ends.

Each process is a worker of its own, in a process group of its own, so that Ctrl-C reaches it only through the
supervisor. It reports its health through a pipe; if the supervisor dies, it stops after its running jobs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from pg_scheduler.cli.errors import CommandError, ExitCode
from pg_scheduler.cli.settings import REPORT_FD
from pg_scheduler.events.log import logger, record_fields

from .reports import HealthReports, read_report
from .stop import StopRequest

MIN_DELAY_S: Final = 0.5
MAX_DELAY_S: Final = 60.0
"""Seconds from an unexpected end to the next start: each one doubles them."""

STEADY_S: Final = 60.0
"""Seconds after which a process has run long enough that the next delay is the shortest one again."""

REPEAT_S: Final = 0.5
"""Seconds between the signals that cancel the running jobs."""

MAX_LINE_BYTES: Final = 1_000_000

PERMANENT: Final = frozenset({ExitCode.USAGE, ExitCode.REFUSED, ExitCode.SCHEMA})
"""Exit codes of a process that has never been ready which a restart does not repair."""


class Supervisor:
    """Runs processes of one command until it is to stop."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        count: int,
        stop: StopRequest,
        *,
        ends_when_done: bool = False,
    ) -> None:
        self._command = command
        self._environment = environment
        self._stop = stop
        self._ends_when_done = ends_when_done
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._was_ready = False
        self.reports: Final = HealthReports(count)
        self._hurried = asyncio.Event()
        stop.on_hurry(self._hurried.set)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to every process that runs."""
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.send_signal(number)

    async def run(self) -> None:
        """Run the processes until all of them have ended.

        Raises:
            CommandError: A process could not begin its work, and a restart would not repair that.
        """
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._stop_children())
            keeping = [group.create_task(self._keep(index)) for index in range(len(self.reports))]
            codes = [await task for task in keeping]
            stopping.cancel()
        if (code := max(codes)) != ExitCode.DONE:
            raise CommandError(code, "a process cannot begin its work; its message is above")

    async def _stop_children(self) -> None:
        await self._stop.wait()
        self.reports.is_draining = True
        self.send(signal.SIGTERM)
        await self._hurried.wait()
        while True:  # again and again: two signals at the same time may arrive as one
            self.send(signal.SIGTERM)
            await asyncio.sleep(REPEAT_S)

    async def _keep(self, index: int) -> ExitCode:
        """Run one process, and start it again when it ends; return an exit code that is permanent, else 0."""
        delay_s = MIN_DELAY_S
        while not self._stop.is_requested():
            began = time.monotonic()
            code, is_recycling = await self._run(index)
            if self._stop.is_requested():
                break
            if code in PERMANENT and not self._was_ready:
                self._stop.request(f"process {index + 1} ended with exit code {code}")
                return ExitCode(code)
            if is_recycling:
                continue
            if code == ExitCode.DONE and self._ends_when_done:
                break
            if time.monotonic() - began >= STEADY_S:
                delay_s = MIN_DELAY_S
            logger.warning(
                "process %s ended with %s; it is started again in %.1f s",
                index + 1,
                _described(code),
                delay_s,
                extra=record_fields(),
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay_s)
            delay_s = min(2 * delay_s, MAX_DELAY_S)
        return ExitCode.DONE

    async def _run(self, index: int) -> tuple[int, bool]:
        """Run one process; return its exit code, negative for a signal, and whether it is to be recycled."""
        reading, writing = os.pipe()
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                env={**self._environment, REPORT_FD: str(writing)},
                pass_fds=(writing,),
                process_group=0,
            )
        except BaseException:  # whatever it was, no process writes to the pipe
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._children[index] = child
        if self._stop.is_requested():  # requested while the process was being made
            child.terminate()
        logger.info("process %s is pid %s", index + 1, child.pid, extra=record_fields())
        try:
            is_recycling = await self._read(index, reading)
            code = await child.wait()
        finally:
            del self._children[index]
            self.reports.set(index, None)
        return code, is_recycling

    async def _read(self, index: int, descriptor: int) -> bool:
        """Note the reports of a process until it ends; return whether it asks to be recycled."""
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        pipe = os.fdopen(descriptor, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        is_recycling = False
        try:
            while line := await reader.readline():
                if line.endswith(b"\n"):  # else the process was killed while it wrote
                    health, is_recycling = read_report(line)
                    self.reports.set(index, health)
                    self._was_ready |= health.ready
        finally:
            transport.close()
        return is_recycling


def _described(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal
        return f"signal {-code}"
