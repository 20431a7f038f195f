"""Signals that callers send to jobs, which wait for them with ``current_job().steps.wait()``."""

from __future__ import annotations

from pg_scheduler.database.session import Connection
from pg_scheduler.jobs.signals import signal_text
from pg_scheduler.scheduler.parts import Parts


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
    signals, codec = parts.store.signals, parts.store.statements.codec
    # The name of the job is read only for a codec that encrypts, which needs it.
    job_name = ""
    if codec is not None and codec.key_id is not None:
        job_name = await signals.job_name(job_id, connection)
    text = signal_text(name, value, parts.config.max_result_bytes, codec, job_name)
    sent = await signals.send(job_id, name, text, connection)
    if sent.due is not None:
        await parts.outbox.notify_due(sent.due, connection)
    return sent.is_stored
