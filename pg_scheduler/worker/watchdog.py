"""Detect a blocked event loop from the lease keeper's thread, and log the job that blocks it.

The watchdog schedules one callback after another in the event loop. While one has not run, the loop is
blocked: a job computes for long, or makes a blocking call.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from types import FrameType

from pg_scheduler.base.blocking import call_in_loop
from pg_scheduler.events import EventBus, LoopBlocked
from pg_scheduler.events.log import event_fields, log_in_thread
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.worker.in_flight import InFlight


class _Ping:
    """One callback that the event loop is to run."""

    __slots__ = ("blocking_code", "is_answered", "is_logged", "sent_at")

    def __init__(self) -> None:
        self.sent_at = time.monotonic()
        self.is_answered = False
        self.is_logged = False
        self.blocking_code: _BlockingCode | None = None


class _BlockingCode:
    """The code in which the event loop was found blocked."""

    __slots__ = ("found_at", "job_id", "job_name", "stack")

    def __init__(self, frame: FrameType | None, claim: Claim | None, chunk_name: str | None) -> None:
        self.job_id = None if claim is None else claim.job_id
        # The function of a chunk has many jobs, of one name.
        self.job_name = chunk_name if claim is None else claim.job_name
        self.found_at = time.monotonic()
        frames = [] if frame is None else list(traceback.walk_stack(frame))
        self.stack = [
            (caller.f_code.co_filename, line, caller.f_code.co_name, None) for caller, line in frames
        ]

    def describe(self, seconds: float) -> LoopBlocked:
        """Return the event about an event loop that was blocked for so many seconds.

        Its stack contains lines of source files, which are read now.
        """
        stack = "".join(traceback.StackSummary.from_list(reversed(self.stack)).format())
        return LoopBlocked(self.job_id, self.job_name, seconds=seconds, stack=stack)


@dataclass(frozen=True, slots=True)
class Blockage:
    """A blocked event loop."""

    seconds: float
    """Seconds for which it has been blocked."""
    job_id: str | None
    """The job that blocks it; None if it is none, or if it is the function of a chunk of jobs."""
    job_name: str | None
    """The name of that job, or of the jobs of that chunk; None if it is neither."""


class LoopWatchdog:
    """Watch the event loop in which it was created, from the thread that calls ``check()``."""

    blocked_after_s = 1.0
    """Seconds without an answer after which the event loop counts as blocked."""

    def __init__(self, events: EventBus, in_flight: InFlight) -> None:
        self._events = events
        self._in_flight = in_flight
        self.loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._ping = _Ping()
        self._ping.is_answered = True  # there was none yet
        self._blocked_s = 0.0
        self._was_blocked = False
        self.last_blocked: tuple[float, LoopBlocked] | None = None
        """When the event loop last resumed after it was blocked, by the monotonic clock, and the event."""

    def start(self) -> None:
        """Send the first ping, a callback that the event loop is to run; called in the event loop."""
        self._ping, self._blocked_s = _Ping(), 0.0
        self.loop.call_soon(self._answer, self._ping)

    def ping(self) -> bool:
        """Send another ping if the last one was answered; return False if the event loop is closed.

        A ping is a callback that the event loop is to run. While it has not run, the loop is blocked.
        """
        if not self._ping.is_answered:
            return not self.loop.is_closed()
        self._ping = _Ping()
        return call_in_loop(self.loop, self._answer, self._ping)

    def check(self) -> None:
        """Measure how long the last ping has been unanswered, and note what blocks the event loop."""
        ping = self._ping
        # If there is such code, an earlier check of this ping has found the event loop blocked.
        self._was_blocked = ping.blocking_code is not None
        self._blocked_s = 0.0 if ping.is_answered else time.monotonic() - ping.sent_at
        if self.is_blocked:
            self._blocking_code_of(ping)

    def find_blockage(self) -> Blockage | None:
        """Return for how long the event loop has been blocked and by what; None if it is not.

        Callable from any thread. Without a lease keeper, each call sends the ping that the next call
        examines. The time begins when a check found the loop blocked, so the time of a suspended process does
        not count.
        """
        ping, after_s = self._ping, self.blocked_after_s
        if threading.get_ident() == self._thread_id:
            return None  # the event loop runs the caller, so it is not blocked
        if ping.is_answered:
            self.ping()
            return None
        now = time.monotonic()
        # The ping is too new to show anything.
        if now - ping.sent_at <= after_s:
            return None
        blocking_code = self._blocking_code_of(ping)
        if blocking_code is None:
            return None
        # The code was found when the loop had been blocked for "after_s" seconds. That may have been just
        # now, after the clock was read, and then the difference is negative.
        seconds = max(now - blocking_code.found_at, 0.0) + after_s
        return Blockage(seconds, blocking_code.job_id, blocking_code.job_name)

    def _blocking_code_of(self, ping: _Ping) -> _BlockingCode | None:
        """Return the code that keeps this ping unanswered, and note it; None if the ping was answered."""
        if ping.blocking_code is None:
            # What the thread of the event loop does now, and the attempt whose task it runs.
            task = asyncio.current_task(self.loop)
            frame = sys._current_frames().get(self._thread_id)
            claim = self._in_flight.claim_of(task) if task else None
            chunk_name = self._in_flight.name_of_chunk(task) if task else None
            code = _BlockingCode(frame, claim, chunk_name)
            # If the loop has resumed meanwhile, it ran this code afterwards, so the code blocks nothing.
            if not ping.is_answered:
                ping.blocking_code = code
        return ping.blocking_code

    @property
    def has_report(self) -> bool:
        """Whether ``report()`` would log something."""
        return self._ping.blocking_code is not None and not self._ping.is_logged

    def report(self) -> None:
        """Log once for each ping what blocks the event loop.

        This may wait for a disk that holds source files, so the lease is renewed first.
        """
        ping = self._ping
        # The ping is read once, because another one may follow it at any time.
        if ping.blocking_code is not None and not ping.is_logged:
            ping.is_logged = True
            # Only the job and the stack of this event are used. The record has its own number of seconds.
            report = ping.blocking_code.describe(0.0)
            if report.job_id is not None:
                culprit = f"by job {report.job_name} (id {report.job_id})"
            elif report.job_name is not None:
                culprit = f"by a chunk of jobs {report.job_name}"
            else:
                culprit = "not by a job"
            # The event itself is published when the loop runs again, so this record is not that of an event.
            message = "event loop blocked for %.1f s, %s:\n%s"
            log_in_thread(
                logging.WARNING,
                message,
                self._blocked_s,
                culprit,
                report.stack,
                extra=event_fields(report) | {"event_type": None},
            )

    @property
    def is_blocked(self) -> bool:
        """Whether the event loop was blocked at the last check."""
        return self._blocked_s > self.blocked_after_s

    def is_blocked_for(self, seconds: float) -> bool:
        """Return whether the last two checks found the event loop blocked, the last one for over ``seconds``.

        One check is not enough: after the whole process was suspended, the loop needs a moment to answer.
        """
        return self._was_blocked and self._blocked_s > seconds

    def _answer(self, ping: _Ping) -> None:
        """Answer a ping in the event loop. If the loop was blocked until now, publish for how long."""
        ping.is_answered = True
        if ping.blocking_code is not None:
            now = time.monotonic()
            event = ping.blocking_code.describe(now - ping.sent_at)
            self.last_blocked = now, event
            self._events.publish(event)
