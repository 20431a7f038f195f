"""Admission control: start claimed attempts of limited tasks if there is room, else block their jobs.

The claimer passes the claims of limited tasks to this service. They hold a slot while they wait here. One
pass decides about many of them, in one transaction; see ``store/limits.py``. Other claims do not pass here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final

from pg_scheduler.errors import DatabaseUnavailableError, PayloadError
from pg_scheduler.events import EventBus, JobBlocked
from pg_scheduler.jobs.limits import LimitKeyError, LimitRow, limit_keys
from pg_scheduler.jobs.outcome import ReleaseOutcome
from pg_scheduler.jobs.payload import decode
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.store.faults import is_lock_timeout
from pg_scheduler.store.limits import AdmissionRequest, LimitRepository
from pg_scheduler.worker.in_flight import Attempt
from pg_scheduler.worker.lease.lease import Lease
from pg_scheduler.worker.pipeline.executor import Executor
from pg_scheduler.worker.pipeline.result_buffer import ResultBuffer
from pg_scheduler.worker.pipeline.unblocker import Unblocker
from pg_scheduler.worker.service import NEVER, Service

__all__ = ["Admission"]

BATCH_SIZE: Final = 500
"""Attempts of one transaction at most. The locks of their limits are held for its time."""


class Admission(Service):
    """Admit the attempts of limited tasks, or block their jobs.

    Args:
        unblocker: Unblocks the jobs when their limits have room.
    """

    name: ClassVar[str] = "admission"

    def __init__(  # noqa: PLR0917 - each is another collaborator, wired once
        self,
        limits: LimitRepository,
        events: EventBus,
        executor: Executor,
        results: ResultBuffer,
        lease: Lease,
        tasks: TaskRegistry,
        worker_id: str,
        unblocker: Unblocker,
    ) -> None:
        super().__init__(events)
        self._limits = limits
        self._executor = executor
        self._results = results
        self._lease = lease
        self._tasks = tasks
        self._worker_id = worker_id
        self._unblocker = unblocker
        self._waiting: deque[Attempt] = deque()

    def keep_limited(self, claims: list[Claim]) -> list[Claim]:
        """Reserve slots for the claims of limited tasks, to start them once they are admitted.

        Returns:
            The other claims.
        """
        limited = self._tasks.limited()
        if not limited or limited.keys().isdisjoint(claim.function for claim in claims):
            return claims
        others = []
        for claim in claims:
            if claim.function in limited:
                self._waiting.append(self._executor.take_slot(claim))
            else:
                others.append(claim)
        self.wake()
        return others

    async def run_once(self) -> float:
        """Decide about one batch of attempts."""
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_SIZE))]
        attempts: dict[str, Attempt] = {}
        requests: list[AdmissionRequest] = []
        for attempt in batch:
            limits = await self._limits_of(attempt)
            if limits:
                attempts[attempt.claim.job_id] = attempt
                requests.append(AdmissionRequest(attempt.claim, limits))
        if requests:
            await self._decide(requests, attempts)
        return 0 if self._waiting else NEVER

    async def drain(self) -> None:
        """Release the claims that were not decided about."""
        while self._waiting:
            self._release(self._waiting.popleft())

    async def _limits_of(self, attempt: Attempt) -> Sequence[tuple[str, LimitRow]]:
        """Return the limits of an attempt; none if it was started because it needs no admission."""
        claim = attempt.claim
        task = self._tasks.resolve(claim.function)
        if attempt.revocation is None and task is not None and task.limits:
            try:
                args, kwargs = decode(claim.task_data)
                return limit_keys(task.limits, task.name, args, kwargs)
            except LimitKeyError as error:
                await self._executor.refuse(attempt, error)
                return ()
            except PayloadError:  # the attempt fails by it
                pass
        self._executor.begin(attempt)
        return ()

    async def _decide(self, requests: Sequence[AdmissionRequest], attempts: dict[str, Attempt]) -> None:
        sent_at, trusted_until = time.monotonic(), self._lease.trusted_until
        book = self._unblocker.book()
        keys = {key for each in requests for key, _ in each.limits}
        try:
            decided = await self._limits.admit(
                self._worker_id, requests, {key: book.longest_per_s(key) for key in sorted(keys)}
            )
        except DatabaseUnavailableError as fault:
            if not is_lock_timeout(fault) or len(requests) == 1:
                self._release_all(attempts)
                raise
            await self._decide_one_by_one(requests, attempts)
            return
        except BaseException:  # whatever it was, no claim is kept without a decision
            self._release_all(attempts)
            raise
        lost_lease = sent_at < trusted_until < time.monotonic()  # the event loop was blocked meanwhile
        for request in requests:
            attempt = attempts[request.claim.job_id]
            blocked_on = decided.get(request.claim.job_id, "")
            if blocked_on:
                self._block(attempt, request, blocked_on)
            elif attempt.revocation is not None:
                self._executor.begin(attempt)  # it ends at once
            elif blocked_on is None and not lost_lease:
                self._unblocker.admitted(attempt.claim, [key for key, _ in request.limits])
                self._executor.begin(attempt)
            else:  # changed since the claim: the release is refused, or makes way for the new definition
                self._release(attempt)

    async def _decide_one_by_one(
        self, requests: Sequence[AdmissionRequest], attempts: dict[str, Attempt]
    ) -> None:
        """Decide so that no attempt waits for a lock that another one needs: a frozen node may hold it."""
        fault: DatabaseUnavailableError | None = None
        for request in requests:
            attempt = attempts[request.claim.job_id]
            if fault is not None:
                self._release(attempt)
                continue
            try:
                await self._decide([request], {request.claim.job_id: attempt})
            except DatabaseUnavailableError as error:
                fault = None if is_lock_timeout(error) else error
        if fault is not None:
            raise fault

    def _block(self, attempt: Attempt, request: AdmissionRequest, blocked_on: str) -> None:
        claim = attempt.claim
        self._executor.withdraw(attempt)
        self._events.publish(JobBlocked(claim.job_id, claim.job_name, claim.attempt, blocked_on))
        self._unblocker.blocked(key for key, _ in request.limits)

    def _release_all(self, attempts: dict[str, Attempt]) -> None:
        for attempt in attempts.values():
            self._release(attempt)

    def _release(self, attempt: Attempt) -> None:
        if attempt.revocation is not None:
            self._executor.begin(attempt)  # it ends at once
        elif self._executor.withdraw(attempt):
            self._results.put(attempt.claim, ReleaseOutcome())
