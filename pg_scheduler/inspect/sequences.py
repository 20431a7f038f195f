"""The sequences of jobs: which job of each key is first, and how many wait; two actions of operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pg_scheduler.base.messages import due_message
from pg_scheduler.base.status import JobStatus
from pg_scheduler.inspect.job_actions import JobActions
from pg_scheduler.inspect.store.limits import HeadRow, LimitReadRepository
from pg_scheduler.inspect.texts import count, counted
from pg_scheduler.jobs.keys import ascii_text, readable
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE, sequence_of, sequence_prefix
from pg_scheduler.jobs.validation import check_job_id, check_text

MAX_SEQUENCES: Final = 500
"""Sequences that are read."""

RUNNING: Final = "running"
STOPPED: Final = "stopped"
WAITING: Final = "waiting"
NO_HEAD: Final = "no head"


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A key of a sequence whose jobs run one after the other."""

    name: str
    """The name of the sequence."""
    key: str
    """The key."""
    state: str
    """``running``, ``waiting`` (the head waits for a slot, a limit, its retry, a signal or the like),
    ``stopped`` at a failed job, or ``no head`` while the first job is not due or was just added."""
    head: str | None
    """The id of the job that is first, which alone may start, or of the failed one; None without a head."""
    head_name: str | None
    """The name of that job; None without a head, or if the job was deleted."""
    waiting: int
    """Jobs that wait behind it."""
    stopped_at: datetime | None
    """Since when the sequence has stopped; None if it has not."""


@dataclass(frozen=True, slots=True)
class SequenceList:
    """Sequences with a head or with waiting jobs."""

    items: Sequence[SequenceState]
    """At most 500 sequences: those that have stopped first, then those with most waiting jobs."""
    is_capped: bool
    """Whether there may be more."""
    is_waiting_capped: bool
    """Whether counting the waiting jobs of a sequence stopped: 20,000 are divided among the sequences."""

    @property
    def summary(self) -> str:
        """The numbers of sequences and jobs, in one line, as every front end shows them."""
        sequences = counted(len(self.items), "sequence", is_capped=self.is_capped)
        stopped = sum(item.state == STOPPED for item in self.items)
        waiting = count(
            sum(item.waiting for item in self.items), is_capped=self.is_capped or self.is_waiting_capped
        )
        return f"{sequences}, {stopped} stopped, {waiting} waiting"


class SequenceMethods(JobActions):
    """The methods of `Inspector` that read and change sequences."""

    async def sequences(self) -> SequenceList:
        """Return the keys of sequences that have jobs, those that have stopped first.

        Example::

            for sequence in (await inspector.sequences()).items:
                print(sequence.name, sequence.key, sequence.state, sequence.head, sequence.waiting)
        """
        keys = await self._reads.limits.sequences(MAX_SEQUENCES)
        waiting_keys = await self._reads.sequences.waiting(BLOCKED_BY_SEQUENCE, MAX_SEQUENCES)
        all_keys = [*dict.fromkeys([*keys, *waiting_keys])][:MAX_SEQUENCES]
        heads = await self._reads.limits.heads(all_keys)
        queues, is_waiting_capped = await self._reads.limits.tenants(all_keys)
        items = [_state(queue.key, queue.jobs, heads.get(queue.key)) for queue in queues]
        items = [item for item in items if item.head is not None or item.waiting]
        items.sort(key=lambda item: (item.state != STOPPED, -item.waiting, item.name, item.key))
        is_capped = max(len(keys), len(waiting_keys), len(all_keys)) >= MAX_SEQUENCES
        return SequenceList(items, is_capped, is_waiting_capped)

    async def skip_head(self, name: str, key: str | int) -> str | None:
        """Let a sequence continue behind its first job: a failed one at which it stopped, or one to cancel.

        A job that is not finished is cancelled. If it runs, the next one starts when its attempt has ended.
        The audit records it as ``skip_head``.

        Args:
            name: The name of the sequence.
            key: The key.

        Returns:
            The id of the job that was skipped; None if the sequence has no head.

        Raises:
            TypeError: ``name`` is no str, or ``key`` is neither a str nor an int.

        Example::

            await inspector.skip_head("accounts", "acme")
        """
        return await self._skip(sequence_text(name, key))

    async def skip_job(self, job_id: str) -> bool:
        """Let a sequence continue behind this job, as ``skip_head()`` does, if it is the first one.

        Args:
            job_id: The id of the job.

        Returns:
            Whether it was skipped. False if the job is not the first of a sequence, or does not exist.

        Raises:
            TypeError: ``job_id`` is no str.
            ValueError: ``job_id`` is empty or too long.

        Example::

            await inspector.skip_job("booking:7")
        """
        text = await self._store_limits.sequence_of(check_job_id(job_id))
        if text is None:
            return False
        head = (await self._store_limits.heads([text])).get(text)
        return head is not None and head.job_id == job_id and await self._skip(text) == job_id

    async def _skip(self, text: str) -> str | None:
        """Let a sequence continue behind its first job; return the id of that, None if there is none."""
        job_id = await self._store.sequences.resume(text)
        if job_id is None:
            head = (await self._store_limits.heads([text])).get(text)
            # A job that is not finished is cancelled, and its end gives its place to the next one.
            if head is None or head.stopped_at is not None:
                return None
            job_id = head.job_id
            async for _ in self.cancel_jobs(ids=[job_id]):
                pass
        await self._announce()
        await self.record_action("skip_head", job_id)
        return job_id

    @property
    def _store_limits(self) -> LimitReadRepository:
        """The reads of sequences for a change. A standby may be behind."""
        return self._store.limits

    async def move_to_front(self, job_id: str) -> bool:
        """Make a job that waits in a sequence the next one, behind the job that runs.

        The order of a sequence is that of the due times, so the job becomes due before the others, and at
        once. The audit records it as ``move_to_front``.

        Args:
            job_id: The id of the job.

        Returns:
            Whether it was moved. False if it does not wait in a sequence, or does not exist.

        Raises:
            TypeError: ``job_id`` is no str.
            ValueError: ``job_id`` is empty or too long.

        Example::

            await inspector.move_to_front("booking:9")
        """
        is_moved = await self._store.sequences.move_to_front(check_job_id(job_id)) is not None
        if is_moved:
            await self._announce()
            await self.record_action("move_to_front", job_id)
        return is_moved

    async def _announce(self) -> None:
        """Wake the services of all workers that give sequences a head."""
        message = due_message("", self._store.statements.server_now)
        await self._store.locks.notify([message])


def sequence_text(name: str, key: str | int) -> str:
    """Return the text of a sequence, as ``blocked_on`` has it."""
    if not isinstance(key, str | int):
        raise TypeError(f"key must be a str or an int, not {type(key).__name__}: {key!r}")
    return sequence_prefix(check_text("name", name)) + ascii_text(str(key))


def _state(text: str, waiting: int, head: HeadRow | None) -> SequenceState:
    """Return a sequence with its head and the number of jobs that wait behind."""
    name, key = map(readable, sequence_of(text))
    state = NO_HEAD
    if head is not None:
        state = WAITING
        if head.stopped_at is not None:
            state = STOPPED
        elif head.status == JobStatus.RUNNING:
            state = RUNNING
    return SequenceState(
        name=name,
        key=key,
        state=state,
        head=None if head is None else head.job_id,
        head_name=None if head is None else head.job_name,
        waiting=waiting,
        stopped_at=None if head is None else head.stopped_at,
    )
