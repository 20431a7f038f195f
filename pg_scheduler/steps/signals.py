"""Store signals for jobs, and wake those that wait for them."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.database.faults import SuppressedChangeError
from pg_scheduler.database.session import Connection, Record
from pg_scheduler.database.statements import Repository, Transaction
from pg_scheduler.errors import JobNotFoundError, PayloadError
from pg_scheduler.jobs.step_values import MAX_STEP_BYTES, MAX_STEPS

MAX_ROUNDS: Final = 100
"""Repetitions of a statement while other sessions change the job or its signals in between."""


class SentSignal(NamedTuple):
    """What became of a signal.

    Attributes:
        is_stored: Whether the job has it.
        due: When the job is due that waited for it; None if none did.
    """

    is_stored: bool
    due: datetime | None = None


class SignalRepository(Repository):
    """The statements by which callers send signals."""

    async def job_name(self, job_id: str, connection: Connection | None = None) -> str:
        """Return the name of a job.

        Raises:
            JobNotFoundError: There is no such job.
        """
        rows = await self._statements.fetch("job_name", job_id, on=connection)
        if not rows:
            raise JobNotFoundError(job_id)
        name: str = rows[0]["job_name"]
        return name

    async def send(
        self, job_id: str, name: str, value: str, connection: Connection | None = None
    ) -> SentSignal:
        """Store the first value of a signal and make a job due that waits for it.

        The caller notifies the workers of that job.

        Args:
            job_id: The job.
            name: The name of the signal.
            value: Its value as JSON.
            connection: The transaction of a caller; None for one of its own.

        Raises:
            JobNotFoundError: There is no such job.
            PayloadError: Too many signals for which the job has not waited are stored, or too large ones; or
                a trigger suppresses the change of the row.
        """

        async def send(transaction: Transaction) -> SentSignal:
            """Store the signal in a transaction, which is repeated after a deadlock."""
            return await self._send(job_id, name, value, transaction.connection)

        return await self._statements.run_retrying(send, within=connection, savepoints=False)

    async def end_sleep(self, job_id: str) -> datetime | None:
        """End the sleeps of a suspended job; return when the job is due, or None if it does not sleep."""

        async def end(transaction: Transaction) -> list[Record]:
            """End the sleeps in a transaction, which is repeated after a deadlock."""
            now = self._statements.now
            return await self._statements.fetch("end_sleep", job_id, now, on=transaction.connection)

        rows = await self._statements.run_retrying(end)
        return rows[0]["due"] if rows else None

    async def _send(self, job_id: str, name: str, value: str, connection: Connection) -> SentSignal:
        """Store a signal, and make the job due if it waits for the signal. See ``send()``."""
        statements = self._statements
        signal = job_id, name, value, MAX_STEPS, MAX_STEP_BYTES
        for _ in range(MAX_ROUNDS):
            stored = await statements.fetch("store_signal", *signal, statements.now, on=connection)
            if stored:
                break
            # The first statement returns no row if it has stored nothing, and the second one finds out why.
            states = await statements.fetch("find_signal", *signal, on=connection)
            if not states:
                raise JobNotFoundError(job_id)
            (state,) = states
            # The job has ended, or has got a value of this signal already, of which the first one counts.
            if state["has_ended"] or state["is_taken"]:
                return SentSignal(is_stored=False)
            if not state["has_room"]:
                raise PayloadError(
                    f"job {job_id!r} has no room for the signal {name!r}: it stores at most {MAX_STEPS} "
                    f"signals for which it has not waited, with {MAX_STEP_BYTES} bytes of JSON; send fewer "
                    "names, or store large values elsewhere"
                )
            # The second statement finds no reason: another session has changed the job between the two.
        else:
            # In none of so many rounds, so a trigger of the application suppresses the change.
            raise SuppressedChangeError
        if not stored[0]["was_awaited"]:
            return SentSignal(is_stored=True)
        rows = await statements.fetch("wake_signalled", job_id, statements.now, name, on=connection)
        return SentSignal(is_stored=True, due=rows[0]["due"] if rows else None)
