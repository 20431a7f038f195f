"""Show people a running attempt: its last log lines while they look, and its stack on request.

A page at which a person looks notifies the worker of the job. Such a request lasts for a minute, and an open
page renews it. Until it ends, the worker writes the log of the attempt into the row of the job, at most once
a second and only if the log has changed. Afterwards it removes the log from the row. If another session has
locked the row, it does so as soon as that is free. A worker without requests executes no statement.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import dropwhile
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Final, NamedTuple

from pg_scheduler.base.messages import STACK
from pg_scheduler.base.sqltext import storable
from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.database.faults import REFUSALS, UnstorableTextError, is_refusal
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.call import JobCall
from pg_scheduler.jobs.history import kept_lines, to_ascii
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.worker.in_flight import Attempt
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service

LOOK_S: Final = 60.0
"""Seconds for which a request lasts."""

GAP_S: Final = 1.0
"""Seconds between two looks at an attempt."""

DRAIN_S: Final = 2.0
"""Seconds for which a worker that stops waits for rows that other sessions have locked."""

DRAIN_GAP_S: Final = 0.1
"""Seconds between two looks at these rows."""

MAX_LOOKS: Final = 5
"""Jobs of a worker at which people look at once; further requests have no effect."""

MAX_FRAMES: Final = 100
MAX_STACK_LENGTH: Final = 8000
"""Characters at the end of a stack that are written."""

LIBRARY: Final = str(Path(__file__).parents[1])


class Place(NamedTuple):
    """Where a frame is in the source."""

    file: str
    line: int
    function: str


@dataclass(slots=True)
class _WatchedJob:
    """A job at which people look.

    Attributes:
        until: When the last request ends, by the monotonic clock.
        wants_stack: Whether the stack was requested since the last look.
        stack: The last stack that was taken, and its time.
        claim: The claim whose log or stack may be in the row; None if none is.
        written: The log and the stack that are in the row; None if that is unknown.
    """

    until: float
    wants_stack: bool = False
    stack: dict[str, str] = field(default_factory=dict)
    claim: Claim | None = None
    written: dict[str, Any] | None = None


class LookWriter(Service):
    """Write what people look at."""

    name: ClassVar[str] = "look_writer"

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._progress = node.store.progress
        self._in_flight = node.in_flight
        self._worker_id = node.worker_id
        self._looks = node.looks
        self._jobs: dict[str, _WatchedJob] = {}
        self._leftovers: dict[str, Claim] = {}
        """The claims whose looks have ended, and whose log or stack may still be in the row."""

    async def run_once(self) -> float:
        """Write the log and the stack of each attempt at which people look, if they have changed.

        Remove what was written for jobs at which no one looks any more. Return the seconds until the next
        pass.
        """
        self._accept_requests()
        now = time.monotonic()
        for job_id, watched_job in list(self._jobs.items()):
            attempt = self._in_flight.attempts.get(job_id)
            # The attempt has ended or is to stop, or the last request is too long ago.
            if attempt is None or now >= watched_job.until or attempt.revocation is not None:
                self._end_look(job_id)
                continue
            # A stack of an earlier attempt is not shown with this one.
            if watched_job.claim is not None and watched_job.claim.attempt != attempt.claim.attempt:
                watched_job.stack.clear()
            content = await self._content_of(attempt, watched_job)
            if content != watched_job.written or attempt.claim is not watched_job.claim:
                await self._write(watched_job, attempt.claim, content)
        await self._remove_leftovers()
        return GAP_S if self._jobs or self._leftovers else NEVER

    async def drain(self) -> None:
        """Remove the logs and stacks from all rows, and wait a little for rows that are locked."""
        for job_id in list(self._jobs):
            self._end_look(job_id)
        ends_at = time.monotonic() + DRAIN_S
        await self._remove_leftovers()
        while self._leftovers and time.monotonic() < ends_at:
            await asyncio.sleep(DRAIN_GAP_S)
            await self._remove_leftovers()
        for job_id, claim in self._leftovers.items():
            logger.warning(
                "the log of job %r that people followed stays in its row, which another session has locked",
                job_id,
                extra=record_fields(job_id=job_id, job_name=claim.job_name, worker_id=self._worker_id),
            )
        self._leftovers.clear()

    def _end_look(self, job_id: str) -> None:
        """Look at a job no more. What was written into its row is removed by ``_remove_leftovers()``."""
        watched_job = self._jobs.pop(job_id)
        if watched_job.claim is not None:
            self._leftovers[job_id] = watched_job.claim

    async def _remove_leftovers(self) -> None:
        """Remove logs and stacks that are left in rows, except rows that another session has locked."""
        for job_id, claim in list(self._leftovers.items()):
            try:
                is_removed = await self._progress.remove_look(claim)
            except REFUSALS as error:
                if not is_refusal(error):
                    raise
                # What the table refuses to remove stays in the row.
                is_removed = True
            if is_removed:
                del self._leftovers[job_id]

    def _accept_requests(self) -> None:
        """Begin or continue to look at the jobs that were requested since the last pass."""
        ends_at = time.monotonic() + LOOK_S
        while self._looks:
            look = self._looks.popleft()
            # Beyond this number of jobs, a request has no effect.
            if look.job_id not in self._jobs and len(self._jobs) >= MAX_LOOKS:
                continue
            watched_job = self._jobs.get(look.job_id)
            if watched_job is None:
                # What an earlier look has left in the row is overwritten by this one, and not removed.
                claim = self._leftovers.pop(look.job_id, None)
                watched_job = self._jobs[look.job_id] = _WatchedJob(ends_at, claim=claim)
            watched_job.until = ends_at
            watched_job.wants_stack |= look.part == STACK

    async def _content_of(self, attempt: Attempt, watched_job: _WatchedJob) -> dict[str, Any]:
        """Return what people see of an attempt: its last log lines, and the last stack that was requested."""
        content: dict[str, Any] = {"attempt": attempt.claim.attempt}
        if attempt.log is not None:
            lines = attempt.log
            # What the function of a chunk logs belongs to each of its jobs.
            if attempt.chunk is not None and attempt.chunk.log:
                lines = lines + attempt.chunk.log
            content["log"] = [storable(line) for line in kept_lines(lines)]
        if watched_job.wants_stack:
            watched_job.wants_stack = False
            frames = frames_of(attempt)
            # The lines of source files are read now, and a disk may be slow.
            text = None if frames is None else await run_in_thread(stack_text, frames)
            # Before the call, the attempt is at no place of the application.
            if attempt.chunk is not None and attempt.chunk.state is not None:
                text = attempt.chunk.state
            watched_job.stack = {"at": datetime.now(UTC).isoformat()}
            if text is not None:
                watched_job.stack["text"] = text
        if watched_job.stack:
            content["stack"] = watched_job.stack.copy()
        return content

    async def _write(self, watched_job: _WatchedJob, claim: Claim, content: dict[str, Any]) -> None:
        """Write what people see of an attempt into the row of its job. What the table refuses is left out."""
        # A statement that fails may have been committed, so it is unknown what the row has until an answer.
        watched_job.claim, watched_job.written = claim, None
        write = self._progress.write_look
        try:
            is_written = await write(self._worker_id, claim, json.dumps(content))
        except UnstorableTextError:
            is_written = await write(self._worker_id, claim, json.dumps(_in_ascii(content)))
        except REFUSALS as error:
            if not is_refusal(error):
                raise
            # What the table refuses is not written again until it has changed.
            is_written = True
        # A row that another session has locked is written by the next pass.
        if is_written:
            watched_job.written = content


def _in_ascii(value: Any) -> Any:
    """Return a value of JSON whose texts are in ASCII, which every encoding of a database can store."""
    if isinstance(value, dict):
        return {name: _in_ascii(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_in_ascii(part) for part in value]
    return to_ascii(value) if isinstance(value, str) else value


def frames_of(attempt: Attempt) -> list[Place] | None:
    """Return file, line and function of the frames of an attempt, the outermost first.

    None if its code runs in another process, or in a thread that its executor does not name. The outermost
    frames, which are those of this library, are left out.
    """
    chunk = attempt.chunk
    # The function of a chunk is called in another task, or in an executor.
    task, call = (attempt.task, attempt.call) if chunk is None else (chunk.call_task, chunk.executor_call)
    if attempt.runs_in_executor or (chunk is not None and call is not None):
        frames = _frames_of_thread(call)
    else:
        frames = None if task is None else list(_frames_of_task(task))
    if frames is None:
        return None
    places = [Place(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in frames]
    places_of_job = list(dropwhile(lambda place: _is_library(place.file), places))
    # Of a deep stack, the innermost frames are kept.
    return places_of_job[-MAX_FRAMES:]


def stack_text(places: Sequence[Place]) -> str:
    """Return frames as text, as a traceback shows them; of a long text, only the end."""
    summary = traceback.StackSummary.from_list([(*place, None) for place in places])
    return storable("".join(summary.format())[-MAX_STACK_LENGTH:])


def _frames_of_task(task: asyncio.Task[Any]) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a suspended task with their lines: its coroutine first, then what that awaits."""
    awaitable: Any = task.get_coro()
    # The walk is bounded, because objects of other libraries may have these attributes too.
    for _ in range(10 * MAX_FRAMES):
        # The attributes have other names in a coroutine, a generator and an asynchronous generator.
        for prefix, next_attribute in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            frame = getattr(awaitable, f"{prefix}_frame", None)
            if isinstance(frame, FrameType):
                yield frame, frame.f_lineno or 0
                awaitable = getattr(awaitable, next_attribute, None)
                break
        else:
            # What has no frame, such as a future, is the end.
            return


def _frames_of_thread(call: JobCall | None) -> list[tuple[FrameType, int]] | None:
    """Return the frames of the thread of a call with their lines, the outermost first.

    None if its thread is not known.
    """
    if call is None or call.thread is None or call.thread.ident is None:
        return None
    frame = sys._current_frames().get(call.thread.ident)
    # The thread may have begun the next attempt meanwhile. Then the call of this one has ended.
    if frame is None or not call.is_unstoppable:
        return None
    innermost_first = [(caller, line or 0) for caller, line in traceback.walk_stack(frame)]
    return innermost_first[::-1]


def _is_library(filename: str) -> bool:
    """Return whether a source file is one of this library, or the module that runs threads."""
    return filename.startswith(LIBRARY) or filename == threading.__file__
