"""Send signals to jobs, which wait for them with ``current_job().steps.wait()``."""

from __future__ import annotations

from pg_scheduler.database.callers.adapter import AnyConnection
from pg_scheduler.jobs.signals import signal_text
from pg_scheduler.jobs.step_values import check_step_name
from pg_scheduler.jobs.validation import check_job_id
from pg_scheduler.scheduler.parts import SchedulerMethods


class SignalMethods(SchedulerMethods):
    """The method of `Scheduler` that sends signals."""

    async def signal(
        self, job_id: str, name: str, value: object = None, *, connection: AnyConnection | None = None
    ) -> bool:
        """Send a signal to a job, whose ``steps.wait(name)`` returns the value, before or after this call.

        The first value of a name is kept with the job, and no later one replaces it, so the call may be
        repeated. If the job was replaced while it runs, the signal is for the new definition.

        Args:
            job_id: The job, which need not wait yet.
            name: The name of the wait, at most 200 bytes of UTF-8. A job has each name once.
            value: What pydantic serializes to JSON: plain values, models without the fields that were not
                set, dataclasses, datetimes. It has at most ``max_result_bytes``.
            connection: A connection of yours in a transaction, as in ``schedule()``: the job receives the
                signal if and only if that commits. The row of a job that has not stored any step is locked
                until then.

        Returns:
            True if the value is stored. False if the name has a value, if the wait has timed out, if a step
            of that name is stored, or if the job has ended.

        Raises:
            JobNotFoundError: There is no such job; a LookupError.
            PayloadError: The value cannot be serialized, would not arrive equal (such as a SecretStr) or is
                too large, or the job has 1,000 signals for which it has not waited; a ValueError.
            TypeError: ``connection`` is no connection of a supported library.
            ValueError: ``connection`` is not in a transaction, or the name is empty or too long.
            DatabaseUnavailableError: The database is unavailable, or its response was lost and the signal may
                be stored. Call again. Also a conflict with another session, if the transaction of
                ``connection`` is stricter than READ COMMITTED; repeat the transaction then.

        Example::

            await scheduler.enqueue("shop.order", args=(7,), job_id="order:7")
            await scheduler.signal("order:7", "approval", {"by": "ann"})
        """
        parts = self._parts
        checked = await parts.store.connections.check_call(connection)
        check_job_id(job_id)
        check_step_name(name, noun="signal")
        signals, codec = parts.store.signals, parts.store.statements.codec
        job_name = ""
        if codec is not None and codec.key_id is not None:
            job_name = await signals.job_name(job_id, checked)
        text = signal_text(name, value, parts.config.max_result_bytes, codec, job_name)
        sent = await signals.send(job_id, name, text, checked)
        if sent.due is not None:
            await parts.outbox.notify_due(sent.due, checked)
        return sent.is_stored
