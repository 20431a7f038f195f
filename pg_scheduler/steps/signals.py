"""Store signals for jobs, and wake those that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.database.faults import SuppressedChangeError
from pg_scheduler.database.session import Connection, Record
from pg_scheduler.database.statements import Repository, Transaction
from pg_scheduler.errors import JobNotFoundError, PayloadError
from pg_scheduler.jobs.step_values import MAX_STEP_BYTES, MAX_STEPS, described_signal, message_name

MAX_ROUNDS: Final = 100
"""Repetitions of a statement while other sessions change the job or its signals in between."""
MAX_MESSAGES: Final = 2 * MAX_STEPS
"""Messages of a mailbox: as many as the job may wait for, and as many may come before it waits."""
BROADCAST_PAGE: Final = 100_000
"""Jobs that one statement of a broadcast finds."""
BROADCAST_SIZE: Final = 5_000
"""Jobs that one statement of a broadcast changes."""


class SentSignal(NamedTuple):
    """What became of a signal.

    Attributes:
        is_stored: Whether the job has it.
        due: When the job is due that waited for it; None if none did.
        has_ended: Whether the job has ended, so that it is not stored.
    """

    is_stored: bool
    due: datetime | None = None
    has_ended: bool = False


class Audience(NamedTuple):
    """The jobs to which a broadcast is sent if they wait for it; None for any.

    Attributes:
        names: The names of a task.
        metadata: JSON text that the metadata of a job contain.
        job_ids: Ids of jobs.
    """

    names: Sequence[str] | None = None
    metadata: str | None = None
    job_ids: Sequence[str] | None = None


class Reached(NamedTuple):
    """The jobs that got the value of a broadcast.

    Attributes:
        jobs: Their number.
        due: When the first of them is due that was suspended; None if none was.
    """

    jobs: int
    due: datetime | None


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

    async def send_message(
        self, job_id: str, mailbox: str, value: str, connection: Connection | None = None
    ) -> SentSignal:
        """Add a message to a mailbox, unless the job has ended, and make a job due that waits for it.

        The arguments and errors are those of ``send()``.
        """

        async def send(transaction: Transaction) -> SentSignal:
            """Store the message in a transaction, which is repeated after a deadlock."""
            return await self._send_message(job_id, mailbox, value, transaction.connection)

        return await self._statements.run_retrying(send, within=connection, savepoints=False)

    async def broadcast(
        self,
        name: str,
        audience: Audience,
        value_for: Callable[[str], str],
        connection: Connection | None = None,
    ) -> Reached:
        """Give a value to each job whose wait for a signal or a message is open, in one transaction.

        No job that it reaches can wait for another message before the commit, so each gets the value once.

        Args:
            name: The name of the signal and of the mailbox.
            audience: The jobs.
            value_for: Returns the value as JSON for the jobs of a task, whose name is the argument.
            connection: The transaction of a caller; None for one of its own.
        """

        async def send(transaction: Transaction) -> Reached:
            """Send the value in a transaction, which is repeated after a deadlock."""
            return await self._broadcast(name, audience, value_for, transaction.connection)

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
                return SentSignal(is_stored=False, has_ended=state["has_ended"])
            if not state["has_room"]:
                raise PayloadError(
                    f"job {job_id!r} has no room for the {described_signal(name)}: it stores at most "
                    f"{MAX_STEPS} signals and {MAX_STEPS} messages for which it has not waited, each with "
                    f"{MAX_STEP_BYTES} bytes of JSON; send fewer, or store large values elsewhere"
                )
            # The second statement finds no reason: another session has changed the job between the two.
        else:
            # In none of so many rounds, so a trigger of the application suppresses the change.
            raise SuppressedChangeError
        if not stored[0]["was_awaited"]:
            return SentSignal(is_stored=True)
        rows = await statements.fetch("wake_signalled", job_id, statements.now, name, on=connection)
        return SentSignal(is_stored=True, due=rows[0]["due"] if rows else None)

    async def _send_message(
        self, job_id: str, mailbox: str, value: str, connection: Connection
    ) -> SentSignal:
        """Store a value as the next message of a mailbox. See ``send_message()``."""
        # In each round that stores nothing, another session has stored the message of that number.
        for _ in range(MAX_MESSAGES + MAX_ROUNDS):
            rows = await self._statements.fetch("next_message", job_id, mailbox, on=connection)
            if not rows:
                raise JobNotFoundError(job_id)
            message = message_name(mailbox, rows[0]["number"])
            sent = await self._send(job_id, message, value, connection)
            if sent.is_stored or sent.has_ended:
                return sent
        raise SuppressedChangeError

    async def _broadcast(
        self, name: str, audience: Audience, value_for: Callable[[str], str], connection: Connection
    ) -> Reached:
        """Give a value to the jobs that wait for it. See ``broadcast()``."""
        statements, now = self._statements, self._statements.now
        reached_count = 0
        due_times: list[datetime] = []
        last_id: str | None = None
        while True:
            waits = await statements.fetch(
                "find_waiting", name, BROADCAST_PAGE, last_id, *audience, MAX_MESSAGES, on=connection
            )
            if not waits:
                return Reached(reached_count, min(due_times, default=None))
            # Without encryption this is one value, which may be large.
            values = list({value_for(row["job_name"]): None for row in waits})
            places = {value: place for place, value in enumerate(values, start=1)}
            for start in range(0, len(waits), BROADCAST_SIZE):
                batch = waits[start : start + BROADCAST_SIZE]
                ids, names = [row["job_id"] for row in batch], [row["name"] for row in batch]
                value_places = [places[value_for(row["job_name"])] for row in batch]
                args = ids, names, values, value_places, now
                stored = await statements.fetch("store_broadcast", *args, on=connection)
                reached_count += len(stored)
                # The statement returns the waits in any order, and their jobs are locked in that of the ids.
                reached = sorted((row["job_id"], row["name"]) for row in stored)
                ids, names = [job_id for job_id, _ in reached], [step for _, step in reached]
                due_at = await statements.value("wake_broadcast", ids, names, now, on=connection)
                if due_at is not None:
                    due_times.append(due_at)
            last_id = waits[-1]["job_id"]
