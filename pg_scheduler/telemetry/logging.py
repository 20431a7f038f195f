"""Add the running job to log records: its id, its name, its attempt and more.

``JobContextFilter`` is a filter of ``logging``, and ``add_job_context`` a processor of structlog. The context
follows the job into the tasks that it starts, into ``asyncio.to_thread()``, and into its child process.
Python carries it into no other threads. There, ``contextvars.copy_context().run`` calls a function with it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from pg_scheduler.jobs.context import current, current_job
from pg_scheduler.jobs.history import kept_log
from pg_scheduler.jobs.metadata import trace_id_of
from pg_scheduler.jobs.rows import Claim

__all__ = ["FIELDS", "JobContextFilter", "JobContextProcessor", "JobLogHandler", "add_job_context"]

FIELDS: Final = ("job_id", "job_name", "attempt", "worker_id", "schedule", "trace_id")
"""The fields of every record."""


class _JobFields(NamedTuple):
    """What the first log record of an attempt has read, so that its other records need not read it again."""

    claim: Claim
    fields: Mapping[str, Any]
    metadata: Mapping[str, Any]


_cached: ContextVar[_JobFields] = ContextVar("pg_scheduler_log_fields")


def _read_job() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the fields and the metadata of the running job; empty ones outside of a job."""
    running = current.get(None)
    if running is None:
        return {}, {}
    claim = running.claim
    # The context may be a copy of that of another attempt, whose fields do not count.
    cached = _cached.get(None)
    if cached is not None and cached.claim is claim:
        return cached.fields, cached.metadata
    job = current_job()
    metadata = job.metadata
    fields = {
        "job_id": job.job_id,
        "job_name": job.job_name,
        "attempt": job.attempt,
        "worker_id": getattr(running.get_scheduler, "worker_id", None),
        "schedule": job.schedule_id,
        "trace_id": trace_id_of(metadata),
    }
    _cached.set(_JobFields(claim, fields, metadata))
    return fields, metadata


def _checked(metadata: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of metadata; raise ValueError if one of them is the name of a field of log records."""
    if isinstance(metadata, str):
        raise TypeError(f"metadata must be a list of keys, not the str {metadata!r}; pass [{metadata!r}]")
    reserved = logging.makeLogRecord({}).__dict__
    for key in metadata:
        if key in reserved or key in FIELDS or key in {"message", "asctime"}:
            raise ValueError(f"metadata key {key!r} is a field of every log record; choose another key")
    return tuple(metadata)


class JobContextFilter(logging.Filter):
    """Set fields of the running job on every log record: ``job_id``, ``job_name`` and so on.

    Add it to a handler: a filter of a logger does not see the records of its children. A field that does not
    apply is None, so a format may name all of them. Fields that a record has already stay. A record of the
    library about another job gets no value of the running job.

    Args:
        metadata: Keys of the job's metadata that become fields too, such as ``"request_id"``.

    Raises:
        TypeError: ``metadata`` is a str.
        ValueError: A key is the name of an attribute that every log record has.
    """

    def __init__(self, metadata: Sequence[str] = ()) -> None:
        super().__init__()
        self._keys = _checked(metadata)

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the fields; every record passes."""
        attributes = record.__dict__
        fields, metadata = _read_job()
        # A record of the library can be about another job than the running one.
        if attributes.get("job_id") not in (None, fields.get("job_id")):
            fields, metadata = {}, {}
        for name in FIELDS:
            if attributes.get(name) is None:
                attributes[name] = fields.get(name)
        for key in self._keys:
            if attributes.get(key) is None:
                attributes[key] = metadata.get(key)
        return True


class JobLogHandler(logging.Handler):
    """Keep the last lines that a job logs, and store them with the error of an attempt that fails.

    The entry of the attempt in ``Job.errors`` has these lines as its ``log``: at most 64 lines of up to 1,000
    characters, 8,000 characters in all. An attempt that completes stores nothing. Lines of tasks that the job
    starts, of ``asyncio.to_thread()`` and of its child process belong to the job. Those of other threads do
    if they are written within a copy of its context, by ``contextvars.copy_context().run``.

    Args:
        level: The lowest level that is kept; default INFO. Records below the level of their logger do not
            reach the handler.

    Example::

        import logging

        from pg_scheduler.telemetry.logging import JobLogHandler

        handler = JobLogHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger("app").addHandler(handler)
    """

    def __init__(self, level: int | str = logging.INFO) -> None:
        super().__init__(level)
        # Attempts remember lines only if there is a handler that adds some.
        kept_log.is_used = True

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record of the running job."""
        # Outside of an attempt, nothing keeps the line, so it is not formatted.
        if kept_log.has_attempt:
            try:
                kept_log.add(self.format(record))
            except Exception:  # noqa: BLE001 - as every handler of logging does
                self.handleError(record)


class JobContextProcessor:
    """Add fields of the running job to the events of structlog; those that do not apply are left out.

    Args:
        metadata: Keys of the job's metadata that become fields too, such as ``"request_id"``.
    """

    def __init__(self, metadata: Sequence[str] = ()) -> None:
        self._keys = _checked(metadata)

    def __call__(
        self, _logger: Any, _method_name: str, event_dict: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Return the event with the missing fields of the running job, unless it is about another job."""
        fields, metadata = _read_job()
        # An event can be about another job than the running one, and then it gets none of its values.
        if event_dict.get("job_id") in (None, fields.get("job_id")):
            chosen_metadata = {key: metadata[key] for key in self._keys if key in metadata}
            for name, value in {**fields, **chosen_metadata}.items():
                # A value that the event has already stays.
                if value is not None:
                    event_dict.setdefault(name, value)
        return event_dict


_PLAIN: Final = JobContextProcessor()


def add_job_context(
    logger: Any, method_name: str, event_dict: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Add the fields of the running job, without its metadata, to an event of structlog."""
    return _PLAIN(logger, method_name, event_dict)
