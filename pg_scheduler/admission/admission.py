"""Admission control: start claimed attempts of limited tasks if there is room, else block their jobs.

The claimer passes the claims of limited tasks to this service. They hold a slot while they wait here. One
pass decides about many of them, in one transaction; see ``admission/limits.py``. Other claims do not pass
here.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import ClassVar, Final

from pg_scheduler.admission.limits import AdmissionRequest, LimitRepository, SurplusPosition
from pg_scheduler.admission.unblocker import Unblocker
from pg_scheduler.database.faults import REFUSALS, is_lock_timeout, is_refusal
from pg_scheduler.errors import DatabaseUnavailableError, PayloadError
from pg_scheduler.events import JobBlocked
from pg_scheduler.jobs.limits import LimitKeyError, LimitNumbers, is_shared_by_all, limits_of_job
from pg_scheduler.jobs.outcome import RELEASE
from pg_scheduler.jobs.payload import decode
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.task import Task
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.in_flight import Attempt
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service

BATCH_SIZE: Final = 500
"""The maximum number of attempts of one transaction, which holds the locks of their limits."""

SURPLUS_SIZE: Final = 1000
"""The number of due rows that one statement reads, to block the jobs that would be claimed in vain."""

MAX_KEYED_BYTES: Final = 2000
"""The maximum size of the arguments of such a job. Larger ones are not read, so the key is not computed."""

SURPLUS_FROM: Final = 50
"""Once a limit has blocked so many attempts in a row, further due jobs are blocked before they are claimed.
To block them earlier would cost throughput where attempts end all the time, because each blocked job has to
be unblocked again."""

MAX_COUNTED_LIMITS: Final = 100
"""The number of limits whose refused attempts are counted: those that refused an attempt most recently. There
may be a limit for each account of the application. If other workers admit all later attempts within a limit,
this worker would keep the count of the limit without end, if there were no maximum."""


class Admission(Service):
    """Admit the attempts of limited tasks, or block their jobs."""

    name: ClassVar[str] = "admission"

    def __init__(self, node: Node, limits: LimitRepository, executor: Executor, unblocker: Unblocker) -> None:
        super().__init__(node.events)
        self._limits = limits
        self._codec = node.store.statements.codec
        self._executor = executor
        self._result_buffer = node.result_buffer
        self._lease = node.lease
        self._tasks = node.tasks
        self._worker_id = node.worker_id
        self._refused_claims = node.refused_claims
        self._unblocker = unblocker
        self._waiting: deque[Attempt] = deque()
        # By limit, how many attempts in a row it has blocked. The limit that has blocked one last is at the
        # end, and the first one is forgotten if there are too many.
        self._blocked_in_a_row: OrderedDict[str, int] = OrderedDict()
        # By limit, the task of the job that it has blocked last, and the position of this job in the claim
        # index. The due jobs of the task behind this position are to be blocked too.
        self._surplus: dict[str, tuple[Task, SurplusPosition]] = {}

    def keep_limited(self, claims: list[Claim]) -> list[Claim]:
        """Reserve slots for the claims of limited tasks, to start them once they are admitted.

        Returns:
            The other claims.
        """
        limited = self._tasks.lists.limited
        # Most batches have no such claim, so they are not divided.
        if limited.keys().isdisjoint(claim.function for claim in claims):
            return claims
        unlimited_claims = []
        for claim in claims:
            if claim.function in limited:
                self._waiting.append(self._executor.take_slot(claim))
            else:
                unlimited_claims.append(claim)
        self.wake()
        return unlimited_claims

    async def run_once(self) -> float:
        """Decide about one batch of attempts; return 0 if more is to be done, else NEVER, until woken."""
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH_SIZE))]
        attempts: dict[str, Attempt] = {}
        requests: list[AdmissionRequest] = []
        for attempt in batch:
            limits = await self._begin_unless_limited(attempt)
            if limits:
                attempts[attempt.claim.job_id] = attempt
                requests.append(AdmissionRequest(attempt.claim, limits))
        if requests:
            await self._decide(requests, attempts)
        if self._surplus:
            await self._block_surplus()
        return 0 if self._waiting or self._surplus else NEVER

    async def drain(self) -> None:
        """Release the claims that were not decided about."""
        while self._waiting:
            self._release(self._waiting.popleft())

    async def _begin_unless_limited(self, attempt: Attempt) -> Sequence[tuple[str, LimitNumbers]]:
        """Begin an attempt that needs no admission; return the limits of any other one.

        An attempt that was revoked, or whose arguments cannot be decoded, begins too: it ends at once. If the
        key of a limit cannot be computed, the attempt fails here. In all of these cases no limits are
        returned.
        """
        claim = attempt.claim
        task = self._tasks.resolve(claim.function)
        if attempt.revocation is None and task is not None and task.limits:
            # No limit of such a task has a key function, so all of its jobs have the same limits.
            if task.common_limits is not None:
                return task.common_limits
            try:
                args, kwargs = decode(claim.task_data, self._codec, claim.job_name)
                return limits_of_job(task.limits, task.name, args, kwargs)
            except LimitKeyError as error:
                await self._executor.refuse(attempt, error)
                return ()
            except PayloadError:  # the attempt begins, and fails by the same error
                pass
        self._executor.begin(attempt)
        return ()

    async def _decide(self, requests: Sequence[AdmissionRequest], attempts: dict[str, Attempt]) -> None:
        """Start the attempts for which there is room, and block the jobs of the others.

        If the database does not decide, the jobs are released.
        """
        sent_at, trusted_until = time.monotonic(), self._lease.trusted_until
        book = self._unblocker.book()
        keys = {key for request in requests for key, _ in request.limits}
        # For how many seconds the starts of each limit count.
        keep_s = {key: book.longest_per_s(key) for key in sorted(keys)}
        try:
            decisions = await self._limits.admit(self._worker_id, requests, keep_s)
        except (DatabaseUnavailableError, *REFUSALS) as error:
            is_refused = is_refusal(error)
            # The lock or the row of a single attempt may be the reason.
            if len(requests) > 1 and (is_refused or is_lock_timeout(error)):
                await self._decide_one_by_one(requests, attempts)
                return
            self._release_all(attempts)
            if not is_refused:
                raise
            # The application, such as by a trigger, refuses to change the row of this job. It is not claimed
            # again for some time.
            (refused_request,) = requests
            claim = refused_request.claim
            self._refused_claims.leave_out(claim.job_id, claim.function, error)
            return
        except BaseException:  # whatever it was, no claim is kept without a decision
            self._release_all(attempts)
            raise
        # If the lease was trusted at first and is not any more, the event loop was blocked meanwhile.
        lost_lease = sent_at < trusted_until < time.monotonic()
        for request in requests:
            attempt = attempts[request.claim.job_id]
            # The limit that blocks the job, or None if it is admitted. The text is empty if there is no
            # decision, because the job was changed or the clock was set back since its claim.
            blocked_on = decisions.get(request.claim.job_id, "")
            if blocked_on:
                self._block(attempt, request, blocked_on)
                self._note_surplus(attempt.claim, blocked_on)
            elif attempt.revocation is not None:
                # An attempt that begins after its revocation ends at once, and frees its slot.
                self._executor.begin(attempt)
            elif blocked_on is None and not lost_lease:
                self._unblocker.admitted(attempt.claim, request.limits)
                self._executor.begin(attempt)
                # These limits have admitted an attempt, so they block none in a row any more.
                if self._blocked_in_a_row:
                    for key, _ in request.limits:
                        self._blocked_in_a_row.pop(key, None)
            # There is no decision, or the lease was lost. If the row does not belong to this worker any more,
            # the release has no effect. If a new definition of the job waits, the release applies it.
            else:
                self._release(attempt)

    async def _decide_one_by_one(
        self, requests: Sequence[AdmissionRequest], attempts: dict[str, Attempt]
    ) -> None:
        """Decide about attempts one by one, so that a lock or a refused row of one holds up no other attempt.

        A frozen node may hold the lock of a limit. Once the database is unavailable, the remaining attempts
        are released, and the error is raised.
        """
        fault: DatabaseUnavailableError | None = None
        for request in requests:
            attempt = attempts[request.claim.job_id]
            if fault is not None:
                self._release(attempt)
                continue
            try:
                await self._decide([request], {request.claim.job_id: attempt})
            except DatabaseUnavailableError as error:
                # A lock concerns this attempt only. Without the database, the other attempts are released.
                fault = None if is_lock_timeout(error) else error
        if fault is not None:
            raise fault

    def _block(self, attempt: Attempt, request: AdmissionRequest, blocked_on: str) -> None:
        """Free the slot of an attempt whose job was blocked, and let the unblocker check its limits again."""
        claim = attempt.claim
        self._executor.withdraw(attempt)
        self._events.publish(JobBlocked(claim.job_id, claim.job_name, claim.attempt, blocked_on))
        self._unblocker.blocked(key for key, _ in request.limits)

    def _note_surplus(self, claim: Claim, key: str) -> None:
        """Count a job that a limit has blocked. After many in a row, due jobs behind it are blocked too."""
        task = self._tasks.resolve(claim.function)
        if task is None:
            return
        self._blocked_in_a_row[key] = self._blocked_in_a_row.get(key, 0) + 1
        self._blocked_in_a_row.move_to_end(key)
        # The limit that has refused no attempt for the longest time is forgotten.
        if len(self._blocked_in_a_row) > MAX_COUNTED_LIMITS:
            self._blocked_in_a_row.popitem(last=False)  # the first one, see above
        if self._blocked_in_a_row[key] >= SURPLUS_FROM:
            self._surplus[key] = (task, SurplusPosition(claim.priority, claim.execution_time, claim.job_id))

    async def _block_surplus(self) -> None:
        """Block due jobs of one full limit, which would be claimed in vain and delay jobs of other tasks."""
        key, (task, position) = self._surplus.popitem()
        # A task may have several names, such as aliases.
        names = [name for name, limited_task in self._tasks.lists.limited.items() if limited_task is task]
        # Unless all jobs of the task need the limit, the arguments of each job decide.
        job_ids = None
        if not is_shared_by_all(task.limits, task.name, key):
            jobs = await self._limits.read_surplus(names, position, SURPLUS_SIZE, MAX_KEYED_BYTES)
            job_ids = []
            for job_id, name, task_data in jobs:
                if key in self._limits_by_key(task, name, task_data):
                    job_ids.append(job_id)
        blocked_jobs = await self._limits.block_surplus(key, names, position, SURPLUS_SIZE, job_ids)
        for job in blocked_jobs:
            self._events.publish(JobBlocked(job.job_id, job.job_name, job.attempt, key))
        if blocked_jobs:
            self._unblocker.blocked([key])  # the limit may have got room meanwhile
        # Where so many jobs were blocked, more may follow behind the last of them.
        if len(blocked_jobs) >= SURPLUS_SIZE // 2:
            last_job = max(blocked_jobs, key=lambda job: (job.execution_time, job.job_id))
            position = SurplusPosition(position.priority, last_job.execution_time, last_job.job_id)
            # A position that an attempt has noted meanwhile stays.
            self._surplus.setdefault(key, (task, position))

    def _limits_by_key(self, task: Task, job_name: str, task_data: str) -> dict[str, LimitNumbers]:
        """Return the limits of a job; none if they cannot be computed, in which case its attempt fails."""
        try:
            args, kwargs = decode(task_data, self._codec, job_name)
            return dict(limits_of_job(task.limits, task.name, args, kwargs))
        except (LimitKeyError, PayloadError):
            return {}

    def _release_all(self, attempts: dict[str, Attempt]) -> None:
        """Release the jobs of these attempts, which are given by job id."""
        for attempt in attempts.values():
            self._release(attempt)

    def _release(self, attempt: Attempt) -> None:
        """Release the job of an attempt and free its slot. A revoked attempt begins instead."""
        if attempt.revocation is not None:
            self._executor.begin(attempt)  # it ends at once
        # Without a slot, the attempt was replaced by a new one of the same job, which is not to be released.
        elif self._executor.withdraw(attempt):
            self._result_buffer.put(attempt.claim, RELEASE)
