"""The jobs that a worker does not claim for now, because the application refuses a row of them.

A trigger or a constraint of the application may refuse what a claim or an admission writes, or wait for a
lock of another transaction. The statement then fails for all of its jobs, so claims leave that job out until
its pause has ended. If a worker would have to leave out very many jobs, it leaves out the whole task that has
most of them, for some seconds: so the jobs of other tasks are claimed, whatever the application refuses.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from pg_scheduler.database.faults import REFUSED_PAUSE_S
from pg_scheduler.events.log import log_refusal, log_refused_name, log_waits, refusal_of

WAITING_PAUSE_S: Final = 1.0
"""The shortest pause of a job whose trigger waits for a lock. The transaction that holds the lock may end at
any time."""

WAITS_PER_S: Final = 30
"""How many such jobs a worker tries each second at most, because it claims nothing else while it waits. So
their pauses are longer if they are many."""

WAITS_REPORT_INTERVAL_S: Final = 60.0
"""Seconds between two records about such jobs."""

LOCK_WAIT: Final = "a trigger waits for a lock of another transaction"
"""Why a job is left out for which a trigger waits."""

MAX_JOBS: Final = 500
"""Jobs that claims leave out at most, because each claim compares the rows that it reads with all of them."""

NAME_PAUSE_S: Final = 10.0
"""Seconds for which claims leave out all jobs of a name that has most of the jobs beyond ``MAX_JOBS``."""


class UnclaimableJob(NamedTuple):
    """A due job that cannot be claimed.

    Attributes:
        name: The name under which it would be claimed.
        error: The error of its claim.
    """

    name: str
    error: Exception


class _Pause(NamedTuple):
    """Why a job is left out, and until when, by the monotonic clock."""

    name: str
    until: float
    reason: str


class RefusedClaims:
    """The jobs and the names that claims of one worker leave out."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._pauses: dict[str, _Pause] = {}
        # When the pauses of the jobs and of the names end that the last claim left out, by id and by name.
        self._job_ends: dict[str, float] = {}
        self._name_ends: dict[str, float] = {}
        # Until when a name is reported. It is left out for some seconds again and again.
        self._report_ends: dict[str, float] = {}
        # The last result of claimable(), and what it was computed from.
        self._claimable: Sequence[str] = ()
        self._names: Sequence[str] = ()
        self._left_out_names: frozenset[str] = frozenset()
        self._next_report_at = 0.0

    def __bool__(self) -> bool:
        """Return whether jobs are left out."""
        return bool(self._pauses)

    @property
    def ends_in(self) -> float:
        """Seconds until the first pause ends; infinite if nothing is left out."""
        first_end = min((*self._job_ends.values(), *self._name_ends.values()), default=float("inf"))
        return max(first_end - time.monotonic(), 0.0)

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why the jobs are left out, by their ids."""
        return {job_id: pause.reason for job_id, pause in self._pauses.items()}

    @property
    def names(self) -> Sequence[str]:
        """The names that were left out in the last minute."""
        now = time.monotonic()
        return [name for name, end in self._report_ends.items() if end > now]

    def leave_out(self, job_id: str, name: str, refusal: Exception) -> None:
        """Leave out a job of the next claims, for a minute, with a log record.

        Args:
            job_id: Its id.
            name: The name under which it would be claimed.
            refusal: The error of its claim.
        """
        problem = f"job {job_id} cannot be claimed"
        log_refusal(problem, refusal, pause_s=REFUSED_PAUSE_S, job_id=job_id, worker_id=self._worker_id)
        self._pause(job_id, name, REFUSED_PAUSE_S, refusal_of(refusal))

    def leave_out_waiting(self, jobs: Mapping[str, UnclaimableJob]) -> None:
        """Leave out jobs for which a trigger waits for a lock, with a log record about the first of them.

        ``jobs`` has them by their ids. The more jobs are left out, the longer is the pause of these.
        """
        pause_s = max(WAITING_PAUSE_S, (len(self._pauses) + len(jobs)) / WAITS_PER_S)
        if jobs and time.monotonic() >= self._next_report_at:
            self._next_report_at = time.monotonic() + WAITS_REPORT_INTERVAL_S
            job_id, first = next(iter(jobs.items()))
            log_waits(job_id, len(jobs), first.error, pause_s=pause_s, worker_id=self._worker_id)
        for job_id, job in jobs.items():
            self._pause(job_id, job.name, pause_s, LOCK_WAIT)

    def ids(self) -> Collection[str]:
        """Return the ids of the jobs that claims leave out now.

        Jobs of names that are left out as a whole are not among them, because claims do not ask for these
        names.
        """
        now = time.monotonic()
        self._pauses = {job_id: pause for job_id, pause in self._pauses.items() if pause.until > now}
        self._job_ends = {
            job_id: pause.until for job_id, pause in self._pauses.items() if pause.name not in self._name_ends
        }
        return self._job_ends  # its keys are the ids

    def claimable(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names without those that are left out. It is the same object until that changes.

        Callers recognize a change by the object, so an unchanged list is not made again.
        """
        # Forget the names whose pause has ended.
        if self._name_ends:
            now = time.monotonic()
            self._name_ends = {name: end for name, end in self._name_ends.items() if end > now}
        if not self._name_ends:
            return names
        if names is not self._names or self._name_ends.keys() != self._left_out_names:
            self._names, self._left_out_names = names, frozenset(self._name_ends)
            self._claimable = [name for name in names if name not in self._left_out_names]
        return self._claimable

    def _pause(self, job_id: str, name: str, pause_s: float, reason: str) -> None:
        """Leave out a job; beyond ``MAX_JOBS``, leave out all jobs of the name that most of them have."""
        self._pauses[job_id] = _Pause(name, time.monotonic() + pause_s, reason)
        ids = self.ids()
        if len(ids) <= MAX_JOBS:
            return
        names_of_jobs = [self._pauses[left_out_id].name for left_out_id in ids]
        [(refused_name, job_count)] = Counter(names_of_jobs).most_common(1)
        log_refused_name(refused_name, job_count, pause_s=NAME_PAUSE_S, worker_id=self._worker_id)
        self._name_ends[refused_name] = time.monotonic() + NAME_PAUSE_S
        self._report_ends[refused_name] = time.monotonic() + REFUSED_PAUSE_S
