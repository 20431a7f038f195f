"""Renew the worker's lease, and stop attempts that this worker must not continue.

The answer of a heartbeat names the jobs that the worker no longer holds, because a caller cancelled them on
any node, or because they are lost. Without a lease, the worker has lost all of its jobs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import ClassVar, Final

from pg_scheduler.base.health import STEADY_INTERVALS
from pg_scheduler.base.status import JobStatus
from pg_scheduler.errors import DatabaseUnavailableError, PoolClosedError
from pg_scheduler.events import LeaseLost
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.shared_names import shared_names
from pg_scheduler.jobs.worker_report import ReportedSettings
from pg_scheduler.worker.in_flight import Revocation
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.reporter import Reporter
from pg_scheduler.worker.service import Service
from pg_scheduler.worker.worker_rows import Registration, RenewResult

POLL_INTERVAL_S: Final = 0.5
"""Seconds between heartbeats while jobs run and no notifications arrive: a job that another node cancels
still stops within a second."""

OBSTACLE_INTERVAL_S: Final = 60.0
"""Seconds between two records about leases of jobs that cannot be renewed."""

KEEPS_JOBS: Final = "keeps its jobs, but cannot renew their leases"
LOSES_JOBS: Final = "cannot renew its lease, which has expired"

CONFIRMATION_TIMEOUT_S: Final = 1.0
"""Seconds for a heartbeat to confirm that the liveness lock kept the jobs of an expired lease; less than a
suspect worker gets to answer."""


MAX_SHARED: Final = 5
"""Names in the record about a service that shares names."""

SHARED: Final = (
    "worker %s on %s has other code for tasks of the same names: %s; if it belongs to another service, each "
    "runs the jobs of the other: give the tasks different names, @job(name=...), or each service a schema="
)


class Heartbeat(Service):
    """Renew the lease, and cancel the jobs that this worker has lost."""

    name: ClassVar[str] = "heartbeat"

    def __init__(self, node: Node, reporter: Reporter) -> None:
        super().__init__(node.events)
        self._workers = node.store.workers
        self._statements = node.store.statements
        self._jobs = node.store.jobs
        self._identity = node.store.identity
        self._on_copy = node.config.on_copy
        self._in_flight = node.in_flight
        self._worker_id = node.worker_id
        self._lease = node.lease
        self._signals = node.signals
        self._clock = node.clock
        self._audience = node.audience
        self._reporter = reporter
        self._lock_looks = node.lock_looks
        # When the registration was requested, by the monotonic clock, and its answer, until the first pass.
        self._first_answer: tuple[float, RenewResult] | None = None
        # Until when other workers may have registered at the same time, so that neither has seen the other.
        # None once their names were read.
        self._unseen_until: datetime | None = None
        self._reported_at_renewal: int | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._is_confirming = False
        self._reported_obstacle_at: float | None = None
        self.renewed_at = float("-inf")
        """When the last heartbeat succeeded, by the monotonic clock."""
        self.steady_since = float("-inf")
        """Since when heartbeats have succeeded in time, one after another, by the monotonic clock."""

    def suspect(self) -> None:
        """Renew the lease now, unless it was just renewed.

        A job was due and could not be claimed: the lease may have expired because the server's clock was set
        forward.
        """
        if time.monotonic() >= self._lease.renewed_at + POLL_INTERVAL_S:
            self.wake()

    async def prepare(self) -> None:
        """Register the worker, and log which other services have tasks of the same names."""
        requested_at = time.monotonic()
        registration = await self._register()
        self._first_answer = requested_at, registration.answer
        if registration.has_others:
            await self._warn_of_shared_names()
        else:
            # No other worker has a liveness lock, so there is none to look at.
            self._lock_looks.last_at = requested_at
            self._unseen_until = registration.answer.now + timedelta(seconds=time.monotonic() - requested_at)

    async def _warn_of_shared_names(self, *, started_until: datetime | None = None) -> None:
        """Log which other services, of those that started until then, have tasks of the same names."""
        settings = ReportedSettings(self._reporter.worker.settings)
        # A service may have many workers. One log record is written for each version of the code, and names
        # one of the workers that have it.
        reported_codes: list[Mapping[str, Mapping[str, str]]] = []
        for other in await self._workers.list_workers():
            other_settings = ReportedSettings(other.settings)
            shared = shared_names(settings, other_settings)
            # The fingerprints of its functions, which are the same for workers with the same code.
            code = other_settings.fingerprints
            is_alive_elsewhere = other.is_alive and other.worker_id != self._worker_id
            is_later = started_until is not None and other.started_at > started_until
            if not is_alive_elsewhere or is_later or code in reported_codes:
                continue
            if shared.names and shared.are_different_services:
                reported_codes.append(code)
                logger.warning(
                    SHARED,
                    other.worker_id,
                    other.hostname,
                    ", ".join(shared.names[:MAX_SHARED]),
                    extra=record_fields(worker_id=self._worker_id),
                )

    async def run_first(self) -> float:
        """Obey the answer to the registration, which has renewed the lease.

        Return the seconds until the next heartbeat.
        """
        if self._first_answer is None:
            return await self.run_once()
        (requested_at, answer), self._first_answer = self._first_answer, None
        return await self._obey(answer, {}, requested_at)

    async def run_once(self) -> float:
        """Renew the lease of the worker and its jobs once, and obey the answer.

        Return the seconds until the next heartbeat.
        """
        held = self._in_flight.held()
        requested_at = time.monotonic()
        try:
            answer = await self._workers.renew(
                self._worker_id,
                held,
                self._lease.seconds,
                ended=self._in_flight.unwritten(),
                liveness_key=self._lease.liveness_key,
                extension_s=self._lease.extension_s,
                report=self._reporter.report(),
            )
        except DatabaseUnavailableError:
            # Other workers may run the jobs of this one by now.
            if held and not self._lease.is_trusted:
                self._lose_lease()
            raise
        delay = await self._obey(answer, held, requested_at)
        if self._unseen_until is not None:
            # Without an answer, the next heartbeat reads the names.
            with suppress(DatabaseUnavailableError):
                await self._warn_of_shared_names(started_until=self._unseen_until)
                self._unseen_until = None
        return delay

    async def _obey(self, answer: RenewResult, held: Mapping[str, int], requested_at: float) -> float:
        """Do what the answer to a heartbeat requires; return the seconds until the next heartbeat.

        Args:
            answer: The answer.
            held: The attempts of the jobs that ran at the request.
            requested_at: When it was requested, by the monotonic clock.
        """
        self._clock.read(answer.now, requested_at)
        if answer.is_server_time:
            self._clock.compare(answer.now, requested_at)
            self._statements.clock_offset_s = self._clock.correction_s
        interval = self._lease.renewal_interval
        # The row of this worker is gone, as after other workers declared it dead.
        if not answer.alive:
            self._revoke_all()
            # The tables may have been exchanged for a copy of those of another database.
            await self._identity.guard_again(self._on_copy)
            await self._register()
            self._signals.worker_registered()
            return interval
        self._renewed(requested_at)
        self._note_obstacle(answer.obstacle)
        has_new_state = self._reporter.obey(answer.wanted)
        # An answer with an obstacle does not have the subscriptions.
        subscriptions = (kind for kind in answer.subscriptions if kind is not None)
        if answer.obstacle is None and self._audience.update(subscriptions):
            self._signals.subscriptions_changed()
        # Of the other lost jobs, the attempts have ended, and only their outcomes wait to be written.
        await self._revoke({job_id: held[job_id] for job_id in answer.lost if job_id in held})
        # The row of the worker has its former state until the next heartbeat, which follows at once.
        if has_new_state:
            return 0
        # A heartbeat finds out which jobs were cancelled. Without notifications, none is requested for that.
        must_poll = held and not self._signals.notifications_up.is_set
        # A renewal that came late or met an obstacle has not written all values. The next one follows soon.
        if must_poll or answer.late or answer.obstacle is not None:
            interval = min(interval, POLL_INTERVAL_S)
        return min(interval, self._seconds_until_next_abandoned())

    def _seconds_until_next_abandoned(self) -> float:
        """Return the seconds until another attempt that was to stop is reported; infinite if none will be."""
        delays = (attempt.seconds_until_abandoned for attempt in self._in_flight.stopping())
        # None stands for an attempt that was not interrupted, and 0 for one that each heartbeat reports now.
        # Neither counts.
        return min((delay for delay in delays if delay), default=math.inf)

    def _note_obstacle(self, obstacle: Exception | None) -> None:
        """Log, from time to time, what keeps the leases of jobs from being renewed; None if they are renewed.

        When they are renewed again, wake the services that wait for the database.
        """
        if obstacle is None:
            # The last heartbeats failed, or could not renew the leases of the jobs.
            if self.outage is not None or self._reported_obstacle_at is not None:
                self._signals.database_up()
            self._reported_obstacle_at = None
            return
        now = time.monotonic()
        if self._reported_obstacle_at is None or now >= self._reported_obstacle_at + OBSTACLE_INTERVAL_S:
            self._reported_obstacle_at = now
            effect = KEEPS_JOBS if self._lease.is_trusted else LOSES_JOBS
            logger.warning(
                "worker %s %s: %s: %s",
                self._worker_id,
                effect,
                type(obstacle).__name__,
                obstacle,
                extra=record_fields(worker_id=self._worker_id),
            )

    async def drain(self) -> None:
        """Delete the worker's row; mark it if jobs run on, so that other workers do not take them yet."""
        if self._expiry:
            self._expiry.cancel()
        try:
            if self._in_flight.has_left:
                await self._workers.mark_stopping(self._worker_id)
            else:
                await self._workers.deregister(self._worker_id)
        except PoolClosedError:
            raise
        except DatabaseUnavailableError as fault:  # nothing is lost: the lease ends without it
            logger.warning(
                "row of worker %s not deleted: %s; another worker deletes it when the lease has expired",
                self._worker_id,
                fault,
                extra=record_fields(worker_id=self._worker_id),
            )

    async def _register(self) -> Registration:
        """Write the row of this worker, with a new lease and its whole report."""
        requested_at = time.monotonic()
        lease = self._lease
        registration = await self._workers.register(
            self._reporter.worker,
            lease.seconds,
            lease.liveness_key,
            lease.extension_s,
            report=self._reporter.report(whole=True),
            wanted=self._reporter.wanted,
        )
        self._renewed(requested_at)
        return registration

    def _renewed(self, requested_at: float) -> None:
        """Record that a request has renewed the lease, which was sent at this monotonic time.

        Then plan what happens if no further request does.
        """
        self._lease.renewed(requested_at)
        self._reporter.confirm()
        now = time.monotonic()
        # The last renewal was too long ago, so the steady time begins anew.
        if now - self.renewed_at > STEADY_INTERVALS * self._lease.renewal_interval:
            self.steady_since = now
        self.renewed_at = now
        self._is_confirming = False
        self._set_timer()

    def _set_timer(self) -> None:
        """Let ``_expired()`` be called when the lease is no longer trusted, unless it is renewed before."""
        if self._expiry:
            self._expiry.cancel()
        # A heartbeat without an answer fails only at its own time limit. The timer stops the jobs before
        # that, as soon as the lease is no longer trusted.
        remaining_s = self._lease.trusted_until - time.monotonic()
        self._expiry = asyncio.get_running_loop().call_later(remaining_s, self._expired)

    def _expired(self) -> None:
        """Stop the attempts, because the lease is not trusted any more, unless it was renewed meanwhile."""
        # The thread of the lease keeper may have renewed the lease.
        if self._lease.is_trusted:
            self._set_timer()
        elif self._in_flight.held():
            self._lose_lease()

    def _lose_lease(self) -> None:
        """Revoke every attempt, because the lease is no longer trusted.

        If the liveness lock may have extended the lease, make a heartbeat first, which decides. During an
        outage of the database, do not rely on the lock, because the server may have freed it.
        """
        # Another call has requested the heartbeat that decides.
        if self._is_confirming:
            return
        # Without an extension, the lock does not keep the jobs.
        if self._lease.extension_s is None or self.outage is not None:
            self._revoke_all()
            return
        self._is_confirming = True
        self.wake()
        if self._expiry:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(CONFIRMATION_TIMEOUT_S, self._unconfirmed)

    def _unconfirmed(self) -> None:
        """Revoke the attempts: no heartbeat has confirmed in time that the liveness lock has kept them."""
        self._is_confirming = False
        # The thread of the lease keeper may have renewed the lease.
        if self._lease.is_trusted:
            self._set_timer()
        elif self._in_flight.held():
            self._revoke_all()

    async def _revoke(self, lost: Mapping[str, int]) -> None:
        """Stop the attempts of jobs that this worker does not hold any more, as cancelled or as lost.

        ``lost`` has their numbers by job id. Attempts that are being stopped already, as in threads, are not
        looked up again.
        """
        running = {
            job_id: attempt
            for job_id, attempt in lost.items()
            if self._in_flight.can_be_revoked(job_id, attempt)
        }
        if not running:
            return
        states = await self._jobs.read_revoked(list(running))
        for job_id, attempt in running.items():
            # A job that was deleted has no state, and counts as lost. "is_awaited" is whether consequences of
            # the job, such as jobs that wait for it, wait for the end of this attempt.
            status, is_awaited = states.get(job_id, (None, False))
            reason = Revocation.CANCELLED if status is JobStatus.CANCELLED else Revocation.LOST
            self._in_flight.revoke(job_id, attempt, reason, is_awaited=is_awaited)

    def _revoke_all(self) -> None:
        """Revoke every attempt, because the lease is lost. Publish ``LeaseLost`` once for each loss."""
        # The timer and each heartbeat may detect the same loss. It is the same one if the number of renewals
        # has not changed since.
        if self._reported_at_renewal != self._lease.renewals:
            self._reported_at_renewal = self._lease.renewals
            self._events.publish(LeaseLost(self._worker_id))
        self._in_flight.revoke_all(Revocation.LOST)
