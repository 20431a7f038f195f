"""The steps that commit with transactions of the caller, whose ends nothing reports to the attempt."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from pg_scheduler.database.session import Connection
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.step_values import StoredStep, shown_name
from pg_scheduler.steps.loaded import LoadedSteps, size_of
from pg_scheduler.steps.statements import StepRepository
from pg_scheduler.steps.waits import caller
from pg_scheduler.worker.lease import persistently
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.waiting import continues_after


class OpenTransaction(NamedTuple):
    """A transaction of the caller that has locked the row of its job, by a step that commits with it."""

    step: str
    connection: Connection
    transaction_id: int
    caller: object


class CallersStep(NamedTuple):
    """A step that was stored or found in a transaction of the caller.

    Attributes:
        connection: The connection of the transaction.
        transaction_id: The transaction; for a cursor, the last one.
        size: The bytes of its value that count.
        has_failed: Whether it is a cursor whose block has raised an exception.
    """

    connection: Connection
    transaction_id: int
    size: int
    has_failed: bool = False


class CallersTransactions:
    """The steps that one attempt has stored or found in transactions of its own code.

    Until such a transaction has ended, its step may be rolled back, and the row of the job is locked.
    """

    def __init__(self, node: Node, steps: StepRepository, claim: Claim, loaded: LoadedSteps) -> None:
        self._claim = claim
        self._repository = steps
        self._results = node.store.results
        self._connections = node.store.connections
        self._loaded = loaded
        self._lease = node.lease
        self._steps: dict[str, CallersStep] = {}
        # The last transaction of the caller that has locked the row of the job.
        self._open: OpenTransaction | None = None

    def __contains__(self, name: str) -> bool:
        """Return whether a step of this name was stored or found in a transaction of the caller."""
        return name in self._steps

    @property
    def sizes(self) -> Mapping[str, int]:
        """The bytes of each step that count, by name."""
        return {name: step.size for name, step in self._steps.items()}

    async def note_write(self, stored: StoredStep, connection: Connection) -> None:
        """Note that a transaction of the caller has locked the row of the job by a step."""
        step = await self.note(stored, connection)
        self._open = OpenTransaction(stored.name, connection, step.transaction_id, caller())

    async def note(self, stored: StoredStep, connection: Connection) -> CallersStep:
        """Note that a step was stored or found in a transaction of the caller, which may be rolled back."""
        transaction_id = await self._results.transaction_id(connection)
        step = CallersStep(connection, transaction_id, size_of(stored))
        self._steps[stored.name] = step
        return step

    def note_failure(self, name: str) -> None:
        """Note that the block of a cursor has raised an exception."""
        self._steps[name] = self._steps[name]._replace(has_failed=True)

    async def forget_rolled_back(self, name: str, connection: Any) -> bool:
        """Forget a step if its transaction was rolled back, and return whether it was.

        For a cursor whose block has failed, the transaction counts as rolled back as soon as it has ended.

        Args:
            name: The name of the step.
            connection: The connection that the caller passes now; None for none. If it is the one of
                the transaction, a savepoint with the step may have been rolled back.
        """
        step, job_id = self._steps[name], self._claim.job_id
        session = None if connection is None else await self._connections.check_transaction(connection)
        # While the transaction is open, only its own connection shows whether the step was rolled back. On
        # another connection, the step counts until the transaction has ended.
        if session is not step.connection:
            session = None
            if await self._repository.is_locked_by(job_id, step.transaction_id):
                return False
        # Even if the transaction was not rolled back, a savepoint with the step may have been. The rows show
        # whether the step is there. They are read in the caller's transaction if it passes that connection.
        if not step.has_failed and not await self._repository.has_rolled_back(step.transaction_id):
            load = partial(self._repository.load, job_id, connection=session)
            steps = await persistently(self._lease, load)
            if name in {stored.name for stored in steps}:
                return False
        del self._steps[name]
        self._loaded.forget()
        return True

    async def count_ended(self) -> None:
        """Load the steps that are committed by now, and forget those of the caller that were rolled back.

        Afterwards, ``sizes`` is right for the steps whose transactions have ended.
        """
        self._loaded.forget()
        stored = await self._loaded.get()
        for name, step in list(self._steps.items()):
            size = size_of(stored.get(name))
            # The step is committed as it was noted.
            if name in stored and size == step.size:
                continue
            # As long as its transaction is open, the step may still be committed.
            if not await self._repository.is_locked_by(self._claim.job_id, step.transaction_id):
                # The last value of a cursor was rolled back, and an earlier one is stored.
                if name in stored:
                    self._steps[name] = step._replace(size=size)
                else:
                    del self._steps[name]

    async def has_locked(self, session: Connection) -> bool:
        """Return whether a step has locked the row of the job in the transaction that a session has open."""
        noted = self._open
        if noted is None or noted.connection is not session:
            return False
        return await self._repository.is_locked_by(self._claim.job_id, noted.transaction_id)

    async def check_step(self, name: str, connection: Any, *, may_join: bool = True) -> None:
        """Raise RuntimeError if a step would wait for an open transaction that waits for this step.

        ``may_join`` is whether a step of this kind may be called with a connection of the caller.
        """
        join = ", or pass the same connection= to this step" if may_join else ""
        await self.check(f"step {shown_name(name)!r}", connection, f"commit it before{join}")

    async def check(self, what: str, connection: Any, remedy: str) -> None:
        """Raise RuntimeError if a call would wait for an open transaction that waits for this call.

        A write locks the row of the job, which the transaction of an earlier step has locked until its
        commit. If another task or thread of the job has that transaction, it can commit, so the call waits
        for it.

        Args:
            what: The call, for the error.
            connection: What it writes on; None for a connection of the pool.
            remedy: What to do, for the error.
        """
        noted, this_caller = self._open, caller()
        if noted is None:
            return
        # The transaction belongs to the task that makes this call, or to one that waits for this task.
        is_own = noted.caller is this_caller or continues_after(noted.caller, this_caller)
        if not is_own:
            return
        # A write in the same transaction does not wait for its lock.
        session = None if connection is None else await self._connections.check_transaction(connection)
        if session is noted.connection:
            return
        if await self._repository.is_locked_by(self._claim.job_id, noted.transaction_id):
            raise RuntimeError(
                f"{what} of job {self._claim.job_id!r} would wait for the transaction with which step "
                f"{shown_name(noted.step)!r} commits, and which is still open; {remedy}"
            )
        # The transaction has ended.
        self._open = None
