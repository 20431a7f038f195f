"""Find what is overdue: leases, pending jobs, and what a crash left undone.

One read-only statement scans for all of it, so an idle worker makes few statements. The scanner signals
when a lease or a misfire grace time expires, for the rescuer and the expirer. It fails pending jobs that
have passed their deadlines, and reads jobs of unregistered names, consequences that are left and jobs that
wait for others, only if the scan found some. The scan is repeated for rows that were written after it.

The row of a job decides whether the job passes its deadline or completes. A running job belongs to its
attempt: its worker stops that at the deadline, and writes the failure under the fencing token, as any
outcome. A pending job belongs to no attempt, so any scanner fails it under the lock of its row. So a
completion that is committed first counts. If a worker dies, the rescuer makes the job pending, and then it
fails. If a claim takes a job between its deadline and the scan, its worker sees in the options that it must
not begin.
"""

from __future__ import annotations

import random
import time
from typing import ClassVar

from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.events import JobDeadlineExceeded, JobExpired, UnregisteredName
from pg_scheduler.jobs.naming import likely_new_name
from pg_scheduler.queue.dependencies import ScanPosition
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service


class DeadlineScanner(Service):
    """Signal expired leases and misfire grace times, and attend to what else the scan finds."""

    name: ClassVar[str] = "deadline_scanner"
    interval_s = 30.0
    """Seconds between two scans; half a lease if that is less. A lease renewed in time ends later than
    the next scan, so no scan plans for its end."""
    retry_interval_s = 5.0
    """Seconds until the next scan after a deadline has passed: another session may have locked the row, or a
    pause suspends the expiry of the job."""
    first_retry_s = 0.5
    """The same after the first scan of a worker, which often finds what has passed while no worker ran. The
    next scan then plans for what passes soon."""
    horizon_jitter = 0.2
    """The random share of the interval."""
    spread_s = 0.5
    """Seconds over which nodes that wait for the same deadline spread their scans."""
    report_interval_s = 60.0
    """Seconds between two reports of unregistered names."""
    max_names = 10
    """Names that one report contains."""
    max_overdue = 2000
    """Jobs of each priority that one report reads."""
    max_ended = 500
    """Ended jobs whose consequences one pass applies."""
    max_passed = 500
    """Jobs that one pass ends because of their deadlines."""
    max_blocks = 100
    """Blocks of edges between waiting jobs that one pass reads."""
    max_waiting = 1000
    """Waiting jobs that one pass reads."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._node = node
        self._interval = min(self.interval_s, node.config.lease_seconds / 2)
        self._reported_at: float | None = None
        self._position = ScanPosition()
        self._is_first = True

    async def run_once(self) -> float:
        """Scan once, and attend to what was found; return the seconds until the next deadline."""
        jitter = random.uniform(-self.horizon_jitter, self.horizon_jitter)  # noqa: S311 - jitter, no secret
        # Seconds until the next scan. What ends later than that is found by the next one.
        horizon = self._interval * (1 + jitter)
        scan = await self._node.store.workers.scan_deadlines(
            horizon, self._node.config.heartbeat_threshold, self._node.worker_id
        )
        if scan.has_overdue and self._node.config.runs_jobs:
            await self._report_names()
        if scan.has_blocked:
            self._node.signals.limits_blocked()
        if scan.has_queued:
            self._node.signals.tenants_waiting()
        # The seconds until the next scan that the findings need.
        delays = []
        if scan.has_ended:
            if await self._apply_consequences():
                delays.append(0.0)
            elif (pause_s := self._node.store.consequences.next_attempt_in()) is not None:
                delays.append(pause_s)
        if scan.has_passed:
            delays.append(await self._end_past_deadlines())
        if scan.deadline_in is not None:
            delays.append(scan.deadline_in + random.uniform(0, self.spread_s))  # noqa: S311 - jitter, no secret
        if scan.has_waiting:
            await self._repair_waiting()
        signals_of_ends = (
            (scan.lapse_in, self._node.signals.lease_expired),
            (scan.expiry_in, self._node.signals.grace_expired),
        )
        for ends_in, signal in signals_of_ends:
            # The deadline has passed, so the service that attends to it is woken now.
            if ends_in is not None and ends_in <= 0:
                signal()
                delays.append(self.first_retry_s if self._is_first else self.retry_interval_s)
            elif ends_in is not None:
                delays.append(ends_in + random.uniform(0, self.spread_s))  # noqa: S311 - jitter, no secret
        self._is_first = False
        return min([horizon, *delays])

    async def _report_names(self) -> None:
        """Publish the unregistered names of overdue jobs, unless the last report is recent."""
        now = time.monotonic()
        if self._reported_at is not None and now < self._reported_at + self.report_interval_s:
            return
        names = self._node.tasks.lists.names
        overdue_names = await self._node.store.jobs.overdue_names(
            self._node.worker_id, names, self.max_overdue
        )
        self._reported_at = now
        task_names = [task.name for task in self._node.tasks.tasks()]
        reported_names = overdue_names[: self.max_names]
        for overdue in reported_names:
            # The last event also has the number of the names that are left out.
            is_last = overdue is reported_names[-1]
            more_names = len(overdue_names) - len(reported_names) if is_last else 0
            bearers = self._node.tasks.bearers(overdue.name).values()
            self._events.publish(
                UnregisteredName(
                    job_name=overdue.name,
                    jobs=overdue.jobs,
                    due_since=overdue.due_since,
                    suggestion=await run_in_thread(likely_new_name, overdue.name, task_names),
                    busy_workers=overdue.busy_workers,
                    more_names=more_names,
                    namesakes=tuple(sorted(task.name for task in bearers)),
                )
            )

    async def _apply_consequences(self) -> bool:
        """Apply the consequences that were left to a scan; return whether there may be more.

        A consequence may end a job that has consequences of its own, as in a long chain.
        """
        consequences, limit = self._node.store.consequences, self.max_ended
        # What depends on a cancelled job waits until its attempt has ended. If the worker of the attempt is
        # gone, this pass reports the end in its place.
        reported_count = await consequences.report_gone(
            self._node.worker_id, self._node.in_flight.unreported(), limit
        )
        applied_count = await consequences.apply_lost(limit)
        return reported_count + applied_count > 0

    async def _end_past_deadlines(self) -> float:
        """Fail pending jobs that have passed their deadlines; return the seconds until the next scan."""
        jobs = await self._node.store.jobs.end_past_deadlines(self.max_passed)
        for job in jobs:
            self._events.publish(
                JobDeadlineExceeded(
                    job.job_id, job.job_name, job.attempt, error=job.error, deadline=job.deadline
                )
            )
        forgotten_count = await self._node.store.jobs.forget_deadlines(self.max_passed)
        # Another session may have locked the row of a job that was left.
        return 0.0 if self.max_passed in {len(jobs), forgotten_count} else self.retry_interval_s

    async def _repair_waiting(self) -> None:
        """Read a part of the jobs that wait for others, and correct what does not agree with other rows.

        The next call continues at the position where this one ends.
        """
        self._position = await self._node.store.dependencies.repair(
            self._position, blocks=self.max_blocks, jobs=self.max_waiting
        )


class Expirer(Service):
    """Expire late jobs that no claim reaches: their function is not registered, or no slot is free."""

    name: ClassVar[str] = "expirer"
    begins_asleep: bool = True  # the scanner, which starts before, wakes it
    batch_size = 500
    """Jobs that one statement expires."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._node = node

    async def run_once(self) -> float:
        """Expire one batch of jobs; return the seconds until the next one: 0 if there may be more."""
        await self._node.known_pauses.refresh()
        expired = await self._node.store.jobs.expire(
            self._node.worker_id,
            self._node.tasks.lists.names,
            self.batch_size,
            unexpiring_names=self._node.routing.unexpiring_names,
        )
        for job in expired:
            self._events.publish(JobExpired(*job))
        return 0 if len(expired) == self.batch_size else NEVER
