"""The values and streams of a job in a thread: the methods of `CurrentJob` and `JobStream`, blocking."""

from __future__ import annotations

from typing import Any

from pg_scheduler.jobs.context import current_attempt
from pg_scheduler.jobs.streams import JobStream
from pg_scheduler.sync.steps import LoopCall, check_attempt
from pg_scheduler.worker.runners.jobs_view import AttemptInThread


class BlockingStream:
    """A stream of a job in a thread, as ``current_streams().stream(name)``."""

    def __init__(self, attempt: AttemptInThread, stream: JobStream) -> None:
        self._attempt = attempt
        self._stream = stream

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._stream.name

    def append(self, value: Any, *, number: int | None = None) -> int:
        """Append an item, and return its number. See ``JobStream.append()``."""
        check_attempt(self._attempt)
        call = LoopCall(self._attempt, "append", "stream")
        item_number: int = call.run(self._stream.append, value, number=number)
        return item_number

    def count(self) -> int:
        """Return how many items the stream has. See ``JobStream.count()``."""
        count: int = LoopCall(self._attempt, "count", "stream").run(self._stream.count)
        return count

    def flush(self) -> None:
        """Write what is collected, and return when it is committed. See ``JobStream.flush()``."""
        LoopCall(self._attempt, "flush", "stream").run(self._stream.flush)


class BlockingStreams:
    """The values and streams of a job in a thread, as `current_streams()`.

    Parameters, values and errors are those of `CurrentJob`. Each method raises `AttemptEnded` if the attempt
    ends.
    """

    def __init__(self, attempt: AttemptInThread) -> None:
        self._attempt = attempt

    def publish(self, name: str, value: Any) -> None:
        """Publish a value under a name. See ``CurrentJob.publish()``.

        Example:
            >>> from pg_scheduler.sync import current_streams
            >>> def pay(order_id: int) -> None:
            ...     current_streams().publish("payment_url", f"https://pay.example.org/{order_id}")
        """
        check_attempt(self._attempt)
        call = LoopCall(self._attempt, "publish", "current_streams()")
        call.run(lambda: self._attempt.streams_in_loop().publish(name, value))

    def stream(self, name: str) -> BlockingStream:
        """Return a stream of the job. See ``CurrentJob.stream()``.

        Example:
            >>> from pg_scheduler.sync import current_streams
            >>> def answer(question: str) -> None:
            ...     stream = current_streams().stream("words")
            ...     for word in question.split():
            ...         stream.append(word)
        """
        call = LoopCall(self._attempt, "stream", "current_streams()")
        # A stream belongs to the event loop, and so does the making of it.
        return BlockingStream(self._attempt, call.run(lambda: self._attempt.streams_in_loop().stream(name)))


def current_streams() -> BlockingStreams:
    """Return the values and streams of a job that runs in a thread, or in an executor of its own.

    Raises:
        LookupError: The caller is not part of a running job.
        NotRunningError: The job runs in a process or in a `job_context()`.
        RuntimeError: The caller is an async job, which awaits the methods of ``current_job()``.

    Example:
        >>> from pg_scheduler import job
        >>> from pg_scheduler.sync import current_streams
        >>> @job()
        ... def export(rows: list[str]) -> None:
        ...     stream = current_streams().stream("lines")
        ...     for number, row in enumerate(rows, 1):
        ...         stream.append(row.upper(), number=number)
    """
    attempt = current_attempt()
    if isinstance(attempt, AttemptInThread):
        return BlockingStreams(attempt)
    # This raises NotRunningError if the job has no streams here. If it has, the job is an async one.
    attempt.open_streams()
    raise RuntimeError(
        "current_streams() is for jobs in threads; an async job awaits publish() and stream() of "
        "current_job()"
    )
