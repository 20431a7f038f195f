"""Signals and messages to jobs, which wait for them with ``steps.wait()`` and ``steps.receive()``."""

from __future__ import annotations

from functools import cache

from pg_scheduler.database.session import Connection
from pg_scheduler.jobs.signals import signal_text
from pg_scheduler.scheduler.parts import Parts
from pg_scheduler.steps.signals import Audience, SentSignal


async def end_sleep(parts: Parts, job_id: str) -> bool:
    """End the sleep of a job, and notify workers; return whether it slept."""
    due_at = await parts.store.signals.end_sleep(job_id)
    if due_at is None:
        return False
    await parts.outbox.notify_due(due_at, None)
    return True


async def send_signal(
    parts: Parts, job_id: str, name: str, value: object, connection: Connection | None
) -> bool:
    """Store a signal for a job, and notify workers if the job waited for it; return whether it is stored."""
    text = await _text_for(parts, job_id, name, value, connection)
    sent = await parts.store.signals.send(job_id, name, text, connection)
    return await _announced(parts, sent, connection)


async def send_message(
    parts: Parts, job_id: str, mailbox: str, value: object, connection: Connection | None
) -> bool:
    """Add a message to a mailbox, and notify workers if the job waited; return whether it is stored."""
    text = await _text_for(parts, job_id, mailbox, value, connection)
    sent = await parts.store.signals.send_message(job_id, mailbox, text, connection)
    return await _announced(parts, sent, connection)


async def broadcast(
    parts: Parts, name: str, value: object, audience: Audience, connection: Connection | None
) -> int:
    """Give a value to the jobs that wait for it, and notify workers; return the number of these jobs."""
    codec, limit = parts.store.statements.codec, parts.config.max_result_bytes
    # A value that cannot be sent is an error also if no job waits.
    signal_text(name, value, limit, None, "")

    @cache
    def value_for(job_name: str) -> str:
        """Return the value as it is stored for the jobs of a task, whose name a codec may need."""
        return signal_text(name, value, limit, codec, job_name)

    reached = await parts.store.signals.broadcast(name, audience, value_for, connection)
    if reached.due is not None:
        await parts.outbox.notify_due(reached.due, connection)
    return reached.jobs


async def _announced(parts: Parts, sent: SentSignal, connection: Connection | None) -> bool:
    """Notify workers if the job waited for what was sent; return whether it is stored."""
    if sent.due is not None:
        await parts.outbox.notify_due(sent.due, connection)
    return sent.is_stored


async def _text_for(
    parts: Parts, job_id: str, name: str, value: object, connection: Connection | None
) -> str:
    """Return a value as it is stored for a job."""
    codec = parts.store.statements.codec
    # The name of the job is read only for a codec that encrypts, which needs it.
    job_name = ""
    if codec is not None and codec.key_id is not None:
        job_name = await parts.store.signals.job_name(job_id, connection)
    return signal_text(name, value, parts.config.max_result_bytes, codec, job_name)
