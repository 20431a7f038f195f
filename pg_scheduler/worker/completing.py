"""Complete a job in a transaction of its own code.

The block of ``current_job().completing()`` is one transaction. At its end the completion is written there,
fenced like every outcome, and committed with what the block has written. From the end of the block to the
answer of the commit nothing stops the attempt: its outcome would be unknown. Afterwards the job has ended,
and no outcome follows.

The code may also pass a connection with a transaction of its own. The library does not see when the code
commits that transaction. So after the block the attempt keeps its lease, and is not revoked until its
function ends. Then the database is asked whether the transaction was committed. If it was rolled back, the
outcome of the function follows, and what the function returned completes the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

from pg_scheduler.base.foreign import is_a
from pg_scheduler.database.session import Connection, open_transaction_of, terminate_unanswered
from pg_scheduler.database.statements import Transaction
from pg_scheduler.errors import DatabaseUnavailableError, JobLostError
from pg_scheduler.jobs.outcome import completion_of
from pg_scheduler.worker.in_flight import Attempt, Completion, End
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.progress_writer import ProgressWriter

UNANSWERED: Final = (DatabaseUnavailableError, asyncio.CancelledError)
"""Errors of a commit that may have succeeded."""

CLOSED_BLOCK: Final = (
    "a generator was closed within its block of completing(), so the block was rolled back and completes "
    "nothing; run the loop of the generator to its end, or open the block outside of it"
)


class Completions:
    """The completions of a worker's jobs in transactions of their code."""

    def __init__(self, node: Node, progress: ProgressWriter) -> None:
        self._results = node.store.results
        self._statements = node.store.statements
        self._worker_id = node.worker_id
        self._tasks = node.tasks
        self._result_buffer = node.result_buffer
        self._progress = progress
        self._signals = node.signals
        self._max_result_bytes = node.config.max_result_bytes

    @asynccontextmanager
    async def block(self, attempt: Attempt, passed_connection: object) -> AsyncIterator[Any]:
        """Complete the job of an attempt at the end of a block; see ``CurrentJob.completing()``.

        Args:
            attempt: The attempt.
            passed_connection: The connection that its code passed; None for one of the pool.
        """
        if attempt.steps is not None and attempt.steps.suspensions:
            # The attempt was suspended, so its job continues in a later attempt. The code of this one may
            # clean up, but not end the job. Steps raise the same exception.
            await asyncio.sleep(0)  # a loop that swallows the exception must not block the event loop
            raise asyncio.CancelledError
        connections = self._statements.connections
        if attempt.steps is not None:
            attempt.steps.check_outside_of_step("completing()")
            await attempt.steps.check_may_write("completing()", passed_connection)
        await attempt.forget_rolled_back(passed_connection)
        previous_completion = attempt.completion
        completion = begin(attempt)
        try:
            if passed_connection is None:
                async with connections.transaction_of_job() as connection:
                    transaction = Transaction(connection, [])
                    first_transaction = open_transaction_of(connection)
                    yield connection
                    # The block has ended. The completion is written, and the end of "async with" commits it.
                    with terminate_unanswered(connection):
                        is_plain = await self._write(
                            attempt, completion, transaction, first_transaction, is_own=True
                        )
                self._end(attempt, completion, transaction, is_plain=is_plain)
            else:
                connection = await connections.check_transaction(passed_connection)
                first_transaction = open_transaction_of(connection)
                yield passed_connection
                transaction = Transaction(connection, [])
                is_plain = await self._write(
                    attempt, completion, transaction, first_transaction, is_own=False
                )
                # The code commits or rolls back later, unseen by this method. These two functions find out
                # which it was: the first one when the function of the job has returned, the second one before
                # the code opens another block or begins a step.
                transaction_id = await self._results.transaction_id(connection)
                completion.find_end = partial(
                    self._find_end, attempt, completion, transaction, transaction_id, is_plain=is_plain
                )
                completion.find_rollback = partial(
                    self._find_rollback, attempt, completion, connection, transaction_id
                )
                completion.write_ended.set()
        except BaseException as error:  # whatever it was, the transaction is rolled back, or has no answer
            # If the commit has no answer, the end of the attempt needs the fault. The code of the job sees
            # nothing of the GeneratorExit of a generator that is closed, so it cannot know that the writes
            # are lost. After any other error, it is as if the block had not been opened, unless the function
            # has returned meanwhile, which forgets the completion.
            if completion.end is End.WRITING and isinstance(error, UNANSWERED):
                completion.fault = error
            elif is_a(error, GeneratorExit):
                completion.fault = RuntimeError(CLOSED_BLOCK)
            elif attempt.completion is completion:
                attempt.completion = previous_completion
            _stop_writing(attempt, completion, end=None)
            raise

    async def _write(
        self,
        attempt: Attempt,
        completion: Completion,
        transaction: Transaction,
        first_transaction: object,
        *,
        is_own: bool,
    ) -> bool:
        """Write the completion at the end of the block; return whether the end has no consequences.

        Args:
            attempt: The attempt.
            completion: Its completion.
            transaction: The transaction.
            first_transaction: What ``open_transaction_of()`` has returned when the block began.
            is_own: Whether the block opened the transaction, so that it ends with this write.

        Raises:
            ValueError: The code has ended the transaction within the block, and may have begun another one.
            JobLostError: The attempt does not hold the job any more, or its function has returned.
        """
        claim = attempt.claim
        # The job publishes nothing after its end, so this is committed with it.
        if attempt.streams is not None:
            await attempt.streams.write(transaction.connection)
        completion.deadline = asyncio.get_running_loop().time() + self._statements.call_timeout_s
        completion.end = End.WRITING
        if open_transaction_of(transaction.connection) != first_transaction:
            raise ValueError(
                f"the transaction of the block in which job {claim.job_id!r} completes has ended within the "
                "block; leave its COMMIT or ROLLBACK to the end of the block"
            )
        # The end of the attempt has removed the completion, so this block is in another task and too late.
        if attempt.completion is not completion:
            error = JobLostError(claim.job_id)
            error.add_note("its function has returned before this block ended; await the task that opened it")
            raise error
        codec = self._statements.codec
        task = self._tasks.resolve(claim.function)
        value = completion.value if task is None else task.form_of_result(completion.value)
        change = completion_of(claim, value, self._max_result_bytes, codec).change
        # Without a value and a last report, one statement completes nearly all jobs. If it writes nothing,
        # complete_own() decides below.
        may_be_plain = change.kept is None and not self._progress.has(claim)
        if may_be_plain:
            connection = transaction.connection
            if await self._results.complete_plain(claim, self._worker_id, connection):
                return True

        async def write() -> bool:
            """Write the last report of progress and the completion; return False if the job is lost."""
            await self._progress.write_within(claim, transaction)
            return await self._results.complete_own(
                claim, change, self._worker_id, transaction, is_own=is_own
            )

        if is_own:
            is_written = await self._statements.write_before_commit("completing()", transaction, write)
        else:
            # A transaction of the caller continues after this write, so it keeps its own lock timeout.
            is_written = await write()
        if not is_written:
            raise JobLostError(claim.job_id)
        return False

    async def _find_end(
        self,
        attempt: Attempt,
        completion: Completion,
        transaction: Transaction,
        transaction_id: int,
        *,
        is_plain: bool,
    ) -> None:
        """Report the end of the job if the code of the job has committed its own transaction.

        Do nothing if the database does not answer.
        """
        with suppress(*UNANSWERED):
            if await self._results.has_committed(attempt.claim, self._worker_id, transaction_id):
                self._end(attempt, completion, transaction, is_plain=is_plain)

    async def _find_rollback(
        self,
        attempt: Attempt,
        completion: Completion,
        session: Connection,
        transaction_id: int,
        used_connection: object,
    ) -> None:
        """Forget a completion whose transaction the code has rolled back, as if there had been no block.

        While the transaction is open, a savepoint may have been rolled back with the write. Only the
        connection of the transaction sees that.

        Args:
            attempt: The attempt.
            completion: Its completion.
            session: The connection of the transaction.
            transaction_id: The id of the transaction.
            used_connection: The connection that the code passes now, as it passed it; None for none.
        """
        is_same_session = False
        if used_connection is not None:
            used_session = await self._statements.connections.check_transaction(used_connection)
            is_same_session = used_session is session
        # The connection of the transaction needs no id. Any other one is given the id, to see whether the
        # transaction has ended.
        asked_id = None if is_same_session else transaction_id
        asked_session = session if is_same_session else None
        was_rolled_back = await self._results.was_rolled_back(
            attempt.claim, self._worker_id, asked_id, connection=asked_session
        )
        # Another task of the job may have opened a block meanwhile.
        if was_rolled_back and attempt.completion is completion:
            attempt.completion = None
            _stop_writing(attempt, completion, end=None)

    def _end(
        self, attempt: Attempt, completion: Completion, transaction: Transaction, *, is_plain: bool
    ) -> None:
        """Report the end of a job whose completion is committed.

        ``is_plain`` is whether the end has no consequences.
        """
        # The function may have returned during the commit of a block in another task, so that the completion
        # was removed from the attempt. Then the outcome of the attempt reports the end of the job.
        is_reported = attempt.completion is not completion
        _stop_writing(attempt, completion, end=End.WRITTEN)
        if attempt.call is not None:
            attempt.call.has_completed = True
        self._progress.drop(attempt.claim)
        for event in transaction.events:
            self._statements.publish(event)
        if not is_reported:
            self._result_buffer.end_written(attempt.claim)
        # The end may have made other jobs due. Without LISTEN, nothing else announces them to this worker.
        if not is_plain:
            self._signals.due(self._statements.server_now)


def begin(attempt: Attempt) -> Completion:
    """Note that an attempt has opened a block of completing(); return the completion that the block makes.

    Raises:
        RuntimeError: The attempt has another block, which is open, has completed the job, or completes it
            with a transaction of the caller.
    """
    completion = attempt.completion
    # After a commit that failed or was not answered, the code may open another block.
    if completion is not None and completion.fault is None:
        if completion.end is None:
            state = "which is open"
        elif completion.end is End.WRITTEN:
            state = "which has completed the job"
        elif completion.find_rollback is None:
            state = "whose end is being written"
        else:
            state = "whose transaction was not rolled back"
        raise RuntimeError(
            f"job {attempt.claim.job_id!r} has another block of completing(), {state}; use one block, "
            "with all that belongs to the transaction"
        )
    attempt.completion = Completion()
    return attempt.completion


def _stop_writing(attempt: Attempt, completion: Completion, *, end: End | None) -> None:
    """Note that the write of a completion has ended; interrupt the attempt if that has waited for this.

    ``end`` is ``End.WRITTEN`` if the job has ended; None if it has not.
    """
    completion.end = end
    completion.write_ended.set()
    timer, completion.interruption = completion.interruption, None
    if timer is not None:
        timer.cancel()
        attempt.interrupt()
