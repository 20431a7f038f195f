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
from pg_scheduler.jobs.keys import readable, short_ascii
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE, sequence_of, sequence_prefix
from pg_scheduler.jobs.validation import check_job_id, check_kind, check_text

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

    async def sequence(self, name: str, key: str | int) -> SequenceState | None:
        """Return the state of one key of a sequence; None if it has neither a head nor waiting jobs.

        Args:
            name: The name of the sequence.
            key: The key.

        Raises:
            TypeError: ``name`` is no str, or ``key`` is neither a str nor an int.

        Example::

            sequence = await inspector.sequence("accounts", "acme")
        """
        text = sequence_text(name, key)
        heads = await self._reads.limits.heads([text])
        queues, _ = await self._reads.limits.tenants([text])
        states = [_state(queue.key, queue.jobs, heads.get(queue.key)) for queue in queues]
        return next((state for state in states if state.head is not None or state.waiting), None)

    async def skip_head(
        self, name: str, key: str | int, *, job_id: str | None = None, running: bool = False
    ) -> str | None:
        """Let a sequence continue behind its first job, the failed one at which it has stopped.

        A first job that has not ended is skipped only if you name it by ``job_id``, or pass ``running=True``.
        Otherwise a second call would cancel the next job, which is healthy. Such a job is cancelled. If its
        attempt runs, the next job starts when that has ended. The audit records it as ``skip_head``.

        Args:
            name: The name of the sequence.
            key: The key.
            job_id: The job to skip, failed or not. If another one is first by now, nothing is changed.
            running: Whether to skip whichever job is first, also if it has not ended.

        Returns:
            The id of the job that was skipped. None if nothing was changed: the sequence has no first job, it
            has another one than ``job_id``, or the job has not ended or has just ended otherwise.

        Raises:
            TypeError: ``name`` or ``job_id`` is no str, ``key`` is neither a str nor an int, or ``running``
                is no bool.
            ValueError: ``job_id`` is empty or too long, or both ``job_id`` and ``running`` are given.

        Example::

            await inspector.skip_head("accounts", "acme")
        """
        text = sequence_text(name, key)
        if check_kind("running", running, bool) and job_id is not None:
            raise ValueError(
                f"skip_head() takes either job_id= or running=True; omit running=True to skip {job_id!r} only"
            )
        checked_id = None if job_id is None else check_job_id(job_id)
        return await self._skip(text, checked_id, cancels=running or job_id is not None)

    async def skip_job(self, job_id: str) -> bool:
        """Let a sequence continue behind this job if it is the first one, failed or not.

        It does the same as ``skip_head()`` with ``job_id``. No other job is changed.

        Args:
            job_id: The id of the job.

        Returns:
            Whether it was skipped. False if the job is not the first of a sequence, has just ended, or does
            not exist.

        Raises:
            TypeError: ``job_id`` is no str.
            ValueError: ``job_id`` is empty or too long.

        Example::

            await inspector.skip_job("booking:7")
        """
        text = await self._store_limits.sequence_of(check_job_id(job_id))
        return text is not None and await self._skip(text, job_id, cancels=True) is not None

    async def _skip(self, text: str, job_id: str | None, *, cancels: bool) -> str | None:
        """Let a sequence continue behind its first job; return the id of that, None if nothing was changed.

        Only ``job_id`` is skipped, unless that is None. ``cancels`` is whether a job is cancelled that has
        not ended.
        """
        skipped_id = None
        # The first job may fail between two statements of a round. The second round finds that.
        for _ in range(2):
            skipped_id = await self._store.sequences.resume(text, job_id)
            if skipped_id is not None:
                break
            head = (await self._store_limits.heads([text])).get(text)
            if head is None or job_id not in (None, head.job_id):
                return None
            # From here on, only this job may be changed: the next one may be first at any time.
            job_id = head.job_id
            if await self._store.sequences.skip_failed(text, job_id) or (
                cancels and await self._cancel_head(job_id)
            ):
                skipped_id = job_id
                break
        if skipped_id is not None:
            await self._announce()
            await self.record_action("skip_head", skipped_id)
        return skipped_id

    async def _cancel_head(self, job_id: str) -> bool:
        """Cancel a job, whose end gives its place to the next one; return whether it was cancelled.

        A job that was replaced meanwhile, and waits for its place again, is left as it is. If a trigger or a
        constraint of the application refuses the change, its error is raised.
        """
        is_cancelled = False
        async for step in self.cancel_jobs(ids=[job_id], matches=_is_head):
            for change in step.changes:
                if change.refusal is not None:
                    raise change.refusal
            is_cancelled = is_cancelled or step.done > 0
        return is_cancelled

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
    return sequence_prefix(check_text("name", name)) + short_ascii(str(key))


def _is_head(job: Job) -> bool:
    """Return whether a job of a sequence does not wait for its place there."""
    return not (job.blocked_on or "").startswith(BLOCKED_BY_SEQUENCE)


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
