"""End a drain whose jobs never end, with an error that names them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.base.text.numbers import counted
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.validation import check_count, check_delay

MAX_ATTEMPTS: Final = 5000
"""Attempts within a second of the clock: more than a test has jobs, and few enough to run them in a CI."""

TIMEOUT_S: Final = 60.0
"""Seconds of real time within which one of the attempts that run must end."""

SPAN: Final = timedelta(seconds=1)
"""The time of the clock after which the count of attempts begins again."""

MAX_NAMED: Final = 5
"""Jobs that an error names."""


class AttemptBound:
    """Bounds the attempts of one drain.

    Args:
        max_attempts: The maximum number of attempts within a second of the clock.
        timeout: Seconds, or a timedelta, within which one of the attempts that run must end; None for no
            limit.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self, max_attempts: int = MAX_ATTEMPTS, timeout: float | timedelta | None = TIMEOUT_S
    ) -> None:
        self._max_attempts = check_count("max_attempts", max_attempts, least=1)
        self._timeout_s = None if timeout is None else check_delay("timeout", timeout)
        self._names: Counter[str] = Counter()
        """The attempts since ``_counts_since``, by the names of their jobs."""
        self._counts_since: datetime | None = None
        self._waits_since: float | None = None
        """When the caller began to wait for the end of an attempt, in real time; None if it does not."""

    def note_time(self, now: datetime) -> None:
        """Note the time of the clock. When the clock has moved by a second, the count begins again."""
        if self._counts_since is None or now - self._counts_since >= SPAN:
            self._counts_since = now
            self._names.clear()

    def count(self, claim: Claim) -> None:
        """Count an attempt, which is about to run or has started.

        Raises:
            RuntimeError: There are more attempts than the maximum.
        """
        self._names[claim.job_name] += 1
        if self._names.total() <= self._max_attempts:
            return
        most_common = ", ".join(
            f"{name} {counted(count, 'time')}" for name, count in self._names.most_common(MAX_NAMED)
        )
        raise RuntimeError(
            f"more than {counted(self._max_attempts, 'attempt')} within a second of the clock, and jobs are "
            f"still due: {most_common}, at last job {claim.job_id!r} (attempt {claim.attempt}); a job that "
            "enqueues itself, snoozes or is retried after no delay, or a very short one, never ends: give it "
            "a longer delay, or pass max_attempts= if the test has so many jobs"
        )

    @property
    def timeout_s(self) -> float | None:
        """Seconds within which an attempt must end; None for no limit."""
        return self._timeout_s

    def note_end(self) -> None:
        """Note that an attempt has ended, or that none runs: the time for the next end begins again."""
        self._waits_since = None

    def check_wait(self, running: Sequence[Claim]) -> None:
        """Check how long the caller has waited for the end of these attempts.

        Raises:
            TimeoutError: The caller has waited too long.
        """
        now = time.monotonic()
        # This is the first check since an attempt has ended.
        if self._waits_since is None:
            self._waits_since = now
        elif self._timeout_s is not None and now > self._waits_since + self._timeout_s:
            raise self.timeout_error(running)

    def timeout_error(self, running: Sequence[Claim]) -> TimeoutError:
        """Return the error that names the attempts that run."""
        names = ", ".join(
            f"{claim.job_name} (id {claim.job_id}, attempt {claim.attempt})" for claim in running[:MAX_NAMED]
        )
        unnamed_count = len(running) - MAX_NAMED
        suffix = f" and {unnamed_count:,} more" if unnamed_count > 0 else ""
        return TimeoutError(
            f"no attempt has ended within {self._timeout_s:g} s of real time, and these still run: "
            f"{names}{suffix}; let the job end, as by its timeout=, pass concurrency= to TestScheduler if it "
            "waits for another job, or pass a longer timeout="
        )
