"""Run several worker processes, and start each of them again when it ends.

Each process is a worker of its own, in a process group of its own, so that Ctrl-C reaches it only through the
supervisor. The process reports its health through a pipe, a line of JSON per second. If the supervisor dies,
the process stops after its running jobs. A thread of the process sends the reports, so they also arrive, and
state the reason, while its event loop is blocked.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from io import FileIO
from typing import Any, Final, NamedTuple

from pg_scheduler.base.fork import inheritance
from pg_scheduler.base.health import Health, HealthCheck, State
from pg_scheduler.cli.errors import CommandError, ExitCode
from pg_scheduler.cli.settings import REPORT_FD
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.telemetry.probes import HealthSource

from .stop import StopRequest, hold_usr1, release_usr1

INTERVAL_S: Final = 1.0
LAST_REPORT_S: Final = 1.0
"""Seconds to wait for the last report of a process after its end, if another process holds the pipe open."""

MAX_SILENCE_S: Final = 30.0
"""Seconds without a report after which a process counts as hung: a job holds the GIL, or it was stopped."""


class Ending:
    """Why a process ends, for its last report."""

    def __init__(self) -> None:
        self.is_recycling = False


class Report(NamedTuple):
    """What a process reports.

    Attributes:
        health: Its health.
        is_recycling: Whether it ends to be started again.
        is_draining: Whether it was requested to claim no more jobs; None while its worker does not run.
    """

    health: Health
    is_recycling: bool
    is_draining: bool | None


def open_report_pipe() -> FileIO | None:
    """Return the pipe to the supervisor, which no later process inherits; None without a supervisor."""
    number = os.environ.pop(REPORT_FD, "")
    if not number.isdecimal():
        return None
    # A process that a job starts must not hold the pipe open: neither if it runs another program, nor if it
    # is forked. The supervisor recognizes the end of this process by the end of the pipe.
    os.set_inheritable(int(number), False)
    pipe = FileIO(int(number), "wb")
    inheritance.close_in_children(pipe)
    return pipe


@contextmanager
def send_reports(
    pipe: FileIO | None,
    source: HealthSource,
    on_orphaned: Callable[[], None],
    is_draining: Callable[[], bool | None],
) -> Iterator[Ending]:
    """Report to the supervising process within a ``with`` block, if there is one.

    The first report is sent at once: it shows that the process handles signals.

    Args:
        pipe: The pipe to that process; None if there is none.
        source: The Scheduler, which states the health that is reported.
        on_orphaned: Called in a thread if the supervising process has ended.
        is_draining: Returns whether the worker was requested to claim no more jobs.

    Yields:
        What the last report states about the reason for the end. The block may change it.
    """
    ending = Ending()
    if pipe is None:
        yield ending
        return
    ended = threading.Event()

    def run() -> None:
        try:
            # The report after the end of the block is the last one. It also states why the process ends.
            is_last = ended.is_set()
            while True:
                report = asdict(source.health())
                report["is_draining"] = is_draining()
                if is_last:
                    report["is_recycling"] = ending.is_recycling
                pipe.write(json.dumps(report).encode() + b"\n")
                if is_last:
                    return
                is_last = ended.wait(INTERVAL_S)
        except BrokenPipeError:  # the supervising process has ended
            # After the end of the block, this process is stopping anyway.
            if not ended.is_set():
                on_orphaned()
        finally:
            pipe.close()

    thread = threading.Thread(target=run, name="pg_scheduler reports", daemon=True)
    thread.start()
    try:
        yield ending
    finally:
        ended.set()
        thread.join()


def read_report(line: bytes) -> Report:
    """Return the report in a line of JSON that a process wrote into its pipe."""
    report: dict[str, Any] = json.loads(line)
    checks = tuple(
        HealthCheck(check["name"], check["is_ok"], check["text"], tuple(check["probes"]))
        for check in report["checks"]
    )
    health = Health(
        state=report["state"],
        slots=report["slots"],
        slots_busy=report["slots_busy"],
        checks=checks,
        next_due_s=report["next_due_s"],
    )
    return Report(health, bool(report.get("is_recycling")), report.get("is_draining"))


class _ProcessEnd(NamedTuple):
    """How a process has ended."""

    code: int
    """Its exit code, or the negative number of the signal that ended it."""
    is_recycling: bool
    """Whether it has reported that it ends to be started again."""


class _TimedHealth(NamedTuple):
    """What a process reported last, and when by the monotonic clock."""

    health: Health
    noted_at: float


class HealthReports:
    """The health of several processes as one.

    A check fails if it fails in any process, and its text names the first of these.
    """

    def __init__(self, count: int) -> None:
        # The last report of each process; None if it has not reported yet, or has ended.
        self._reports: list[_TimedHealth | None] = [None] * count
        self.is_draining = False

    def __len__(self) -> int:
        return len(self._reports)

    def set(self, index: int, health: Health | None) -> None:
        """Note the health that a process, counted from 0, has reported; None if the process has ended."""
        self._reports[index] = None if health is None else _TimedHealth(health, noted_at=time.monotonic())

    def has(self, index: int) -> bool:
        """Return whether a process has reported."""
        return self._reports[index] is not None

    def health(self) -> Health:
        """Return the health of all processes as one; callable from any thread."""
        # All parts of the result are made of the same reports: the event loop may replace one meanwhile.
        reports = list(self._reports)
        health_reports = [report.health for report in reports if report is not None]
        # A process that has just been started has not reported yet.
        state: State = "running" if len(health_reports) == len(reports) else "starting"
        if self.is_draining:
            state = "draining"
        # Seconds until the next job is due, of each process that knows it.
        due_times_s = [health.next_due_s for health in health_reports if health.next_due_s is not None]
        return Health(
            state=state,
            slots=sum(health.slots for health in health_reports),
            slots_busy=sum(health.slots_busy for health in health_reports),
            checks=(_processes(reports), _silence(reports), *_merged(reports)),
            next_due_s=min(due_times_s, default=None),
        )


def _processes(reports: Sequence[_TimedHealth | None]) -> HealthCheck:
    """Return the check that fails if a process has not reported yet, or has ended."""
    running_count = sum(report is not None for report in reports)
    is_ok = running_count == len(reports)
    return HealthCheck("processes", is_ok, f"{running_count} of {len(reports)} running", ("started", "ready"))


def _silence(reports: Sequence[_TimedHealth | None]) -> HealthCheck:
    """Return the check that fails if a process that runs has sent no report for ``MAX_SILENCE_S``."""
    now = time.monotonic()
    for number, report in enumerate(reports, 1):
        # A process without any report is the matter of the check of processes.
        if report is None:
            continue
        silence_s = now - report.noted_at
        if silence_s > MAX_SILENCE_S:
            text = f"process {number} has not reported for {silence_s:.0f} s"
            return HealthCheck("reports", False, text, ("live", "ready"))
    return HealthCheck("reports", True, "arrive", ("live", "ready"))


def _merged(reports: Sequence[_TimedHealth | None]) -> Iterator[HealthCheck]:
    """Yield one check for all checks of the same name, which each process reports.

    It is that of the first process in which the check fails. If it fails in none, it is that of the first
    one.
    """
    checks: dict[str, HealthCheck] = {}
    for number, report in enumerate(reports, 1):
        if report is None:
            continue
        for check in report.health.checks:
            merged_check = checks.get(check.name)
            is_first_failure = merged_check is not None and merged_check.is_ok and not check.is_ok
            if merged_check is None or is_first_failure:
                text = check.text if check.is_ok else f"process {number}: {check.text}"
                checks[check.name] = HealthCheck(check.name, check.is_ok, text, check.probes)
    yield from checks.values()


MIN_DELAY_S: Final = 0.5
MAX_DELAY_S: Final = 60.0
"""Seconds from an unexpected end to the next start. Each unexpected end doubles them, up to this."""

STEADY_S: Final = 60.0
"""Seconds after which a process has run long enough that the next delay is the shortest one again."""

REPEAT_S: Final = 0.5
"""Seconds between the signals that cancel the running jobs."""

MAX_LINE_BYTES: Final = 1_000_000

PERMANENT: Final = frozenset({ExitCode.USAGE, ExitCode.REFUSED, ExitCode.SCHEMA})
"""Exit codes that a restart does not repair, as long as no process has been ready."""


class Supervisor:
    """Runs a process of each command until it is to stop, and starts a process that ends again.

    Args:
        commands: The program and arguments of each process.
        environment: The environment variables of the processes.
        stop: The request to stop, which is passed on to the processes.
        ends_when_done: Whether the work of a process is complete when it ends without an error.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        environment: Mapping[str, str],
        stop: StopRequest,
        *,
        ends_when_done: bool = False,
    ) -> None:
        self._commands = commands
        self._environment = environment
        self._stop = stop
        self._ends_when_done = ends_when_done
        # The processes that run, by their numbers from 0.
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._draining: dict[int, bool] = {}
        """The processes that are to claim no more jobs, each with whether it has reported to do so."""
        # Whether any process has been ready to run jobs.
        self._was_ready = False
        self.reports: Final = HealthReports(len(commands))
        self._hurried = asyncio.Event()
        stop.on_hurry(self._hurried.set)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to every process that runs."""
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.send_signal(number)

    def drain(self) -> None:
        """Let no process claim more jobs, nor a process that replaces it, until its worker is resumed."""
        # No process has reported yet that it claims no more jobs.
        self._draining = dict.fromkeys(range(len(self.reports)), False)
        self.send(signal.SIGUSR1)

    def _follow_drain(self, index: int, report: Report) -> None:
        """Notice in the reports of a process that its worker drains, and later that it is resumed.

        Once it is resumed, a process that replaces this one may claim jobs from its start on.
        """
        if index not in self._draining:
            return
        if report.is_draining:
            self._draining[index] = True
        # A worker that has drained, and does not any more, was resumed. Before the first report that it
        # drains, the signal may not have arrived yet. A report with None is from before the worker runs.
        elif report.is_draining is False and self._draining[index]:
            del self._draining[index]

    async def run(self) -> None:
        """Run the processes until all of them have ended.

        Raises:
            CommandError: A process could not begin its work, and a restart would not repair that.
        """
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._stop_children())
            tasks = [group.create_task(self._run_repeatedly(index)) for index in range(len(self.reports))]
            codes = [await task for task in tasks]
            stopping.cancel()
        # DONE is 0, so the maximum is another code if there is any. Such a code is one that a restart does
        # not repair.
        if (code := max(codes)) != ExitCode.DONE:
            raise CommandError(code, "a process cannot begin its work; its message is above")

    async def _stop_children(self) -> None:
        """Pass the request to stop on to the processes, and then the request to hurry."""
        await self._stop.wait()
        self.reports.is_draining = True
        self.send(signal.SIGTERM)
        await self._hurried.wait()
        # A process cancels its jobs at its second SIGTERM. The signal is repeated until the processes have
        # ended, since two signals at the same time may arrive as one. Then run() cancels this task.
        while True:
            self.send(signal.SIGTERM)
            await asyncio.sleep(REPEAT_S)

    async def _run_repeatedly(self, index: int) -> ExitCode:
        """Run one process, and start it again when it ends. Return a permanent exit code, or DONE."""
        delay_s = MIN_DELAY_S
        while not self._stop.is_requested():
            began = time.monotonic()
            code, is_recycling = await self._run_once(index)
            if self._stop.is_requested():
                break
            # No process has been able to begin its work, and a restart does not repair a problem of this
            # code.
            if code in PERMANENT and not self._was_ready:
                self._stop.request(f"process {index + 1} ended with exit code {code}")
                return ExitCode(code)
            # The process has reached a limit of its jobs, memory or age, which is no failure, so no delay.
            if is_recycling:
                continue
            # With --drain, a process ends when no job is due.
            if code == ExitCode.DONE and self._ends_when_done:
                break
            # A process that ran for long had no fault in its start, so the delays begin anew.
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

    async def _run_once(self, index: int) -> _ProcessEnd:
        """Run one process until it ends, and note the reports that it writes into a pipe."""
        reading, writing = os.pipe()
        # The process inherits the block of SIGUSR1, so it receives this signal only once it handles it.
        hold_usr1()
        try:
            child = await asyncio.create_subprocess_exec(
                *self._commands[index],
                env={**self._environment, REPORT_FD: str(writing)},
                pass_fds=(writing,),
                # In a process group of its own, it does not get the signal of Ctrl-C, only those of send().
                process_group=0,
            )
        except BaseException:  # after any error, no process writes to the pipe
            os.close(reading)
            raise
        finally:
            release_usr1()
            # The pipe ends with the process only if this process does not hold the end for writing open.
            os.close(writing)
        self._children[index] = child
        # This process replaces one that was to claim no more jobs, so it is not to claim any either.
        if index in self._draining:
            self._draining[index] = False
            child.send_signal(signal.SIGUSR1)
        # The stop may have been requested while the process was being made.
        if self._stop.is_requested():
            child.terminate()
        logger.info("process %s is pid %s", index + 1, child.pid, extra=record_fields())
        ending = Ending()
        try:
            async with asyncio.TaskGroup() as group:
                reports = group.create_task(self._read(index, reading, ending))
                code = await child.wait()
                # The last report is read until the pipe ends. A process that a job has started may keep the
                # pipe open after the end of this one, so the wait for the end of the pipe has a limit.
                await asyncio.wait([reports], timeout=LAST_REPORT_S)
                reports.cancel()
        finally:
            del self._children[index]
            self.reports.set(index, None)
        return _ProcessEnd(code, ending.is_recycling)

    async def _read(self, index: int, descriptor: int, ending: Ending) -> None:
        """Note the reports of a process until its pipe ends, and whether it asks to be recycled."""
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        pipe = os.fdopen(descriptor, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while line := await reader.readline():
                # An incomplete line means that the process was killed while it wrote.
                if line.endswith(b"\n"):
                    report = read_report(line)
                    self._follow_drain(index, report)
                    self.reports.set(index, report.health)
                    if report.health.ready:
                        self._was_ready = True
                    ending.is_recycling = report.is_recycling
        finally:
            transport.close()


def _described(code: int) -> str:
    """Return in words how a process ended: ``exit code 2``, or ``SIGKILL`` for the code -9."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal
        return f"signal {-code}"
