"""The durable steps of a job, as people see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pg_scheduler.inspect.base import InspectorBase
from pg_scheduler.inspect.store.inspections import StepRow
from pg_scheduler.inspect.texts import command, counted
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.retry import Abort
from pg_scheduler.jobs.step_retries import StepError, failures_from
from pg_scheduler.jobs.step_values import (
    MAX_STEPS,
    RETRY,
    SIGNAL,
    SLEEP,
    STEP,
    check_step_name,
    mailbox_of,
    shown_name,
    step_value,
    stored_name,
)
from pg_scheduler.jobs.validation import check_job_id, check_kind

SLEEPING: Final = "sleeping"
WAITING: Final = "waiting"
GIVEN_UP: Final = "given_up"
TIMED_OUT: Final = "timed_out"
OVER: Final = "over"
STORED: Final = "stored"
RETRYING: Final = "retrying"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class StepState:
    """A durable step of a job."""

    name: str
    """Its name."""
    kind: str
    """The kind: ``step``, ``cursor``, ``sleep``, ``signal``, or another one."""
    state: str
    """``stored`` if the step has its value, ``sleeping`` or ``waiting`` while it sleeps or waits, ``over``
    for a sleep that has ended, ``timed_out`` for a signal that did not come in time, ``retrying`` if its
    function has failed and is called again, ``failed`` if its retries were used up, ``given_up`` for a sleep,
    a wait or retries whose job has ended, or continues with another alternative of ``first()``."""
    value: Any
    """The value; None also if there is none."""
    no_value_reason: str | None
    """The reason why there is no value although one is stored; None otherwise."""
    attempt: int
    """The ``attempt`` of the job that wrote the step last, or during which the signal was sent."""
    started_at: datetime
    """When the step was stored first; when its function failed last if it has no value."""
    ended_at: datetime | None
    """When the step ended, or when the last value of a cursor was stored; None while the step lasts."""
    until: datetime | None
    """The end of a sleep or of a wait, in the year 9999 for one without a timeout; when the function of a
    step that is ``retrying`` is called next; None for other steps."""
    failures: int = 0
    """How often its function has failed since its retries began; 0 for a step without ``retry=``."""
    errors: tuple[StepError, ...] = ()
    """The newest of these failures, at most five, the oldest first, and those of earlier retries of it."""
    mailbox: str | None = None
    """The mailbox of which the signal is a message, whose ``name`` is ``orders#3``; None for other steps."""


@dataclass(frozen=True, slots=True)
class StepList:
    """The durable steps of a job, and whether there are more."""

    items: Sequence[StepState]
    """The steps, the oldest first, then results that were passed to the job: at most 1,000."""
    is_capped: bool
    """Whether there are more."""

    @property
    def summary(self) -> str:
        """The number of steps, as every front end shows it."""
        return counted(len(self.items), "step", is_capped=self.is_capped)


class StepReads(InspectorBase):
    """The methods of `Inspector` that read steps."""

    async def steps(self, job_id: str, *, name: str | None = None) -> StepList:
        """Return the durable steps and signals of a job, the oldest first.

        Values that need more than 2,000 bytes are None, with a reason, unless the name is given.

        Args:
            job_id: The job.
            name: Only the step of this name, with its value however large that is; None for all steps.

        Raises:
            JobNotFoundError: No job has this id.

        Example::

            await scheduler.schedule_job("mail.send", datetime.now(UTC), {}, job_id="mail:9")
            for step in (await inspector.steps("mail:9")).items:
                print(step.name, step.kind, step.state, step.value)
        """
        if name is not None:
            # The number of a message may make its name longer than one that a caller may choose.
            check_step_name(mailbox_of(stored_name(check_kind("name", name, str))) or name)
        rows = await self._reads.inspections.steps(check_job_id(job_id), name)
        codec = self._reads.statements.codec
        items = [_state_from(job_id, row, codec) for row in rows[:MAX_STEPS]]
        return StepList(items, len(rows) > MAX_STEPS)


def has_suspended(steps: Iterable[StepState]) -> bool:
    """Return whether any of the steps of a job may have suspended the job, or suspends it now."""
    return any(step.until is not None or step.failures for step in steps)


def _state_from(job_id: str, row: StepRow, codec: PayloadCodec | None) -> StepState:
    """Return the step of a row, with its value or with the reason why the value is missing."""
    name = shown_name(row.name)
    value, reason = None, None
    # The statement returns the size of a large value without the value. A step that has only failed has no
    # value, and no row but that of its failures.
    has_failed_only = row.kind == RETRY
    if row.value is None and row.size and not has_failed_only:
        read = command("jobs", "steps", arguments=[job_id, name])
        reason = f"it is large: {row.size:,} bytes as stored; read it alone: {read}"
    elif not has_failed_only:
        try:
            value = step_value(name, row.value, codec)
        except Abort as error:
            reason = str(error)
    failures = failures_from(row.failures)
    return StepState(
        name=name,
        kind=STEP if has_failed_only else row.kind,
        state=_state(row),
        value=value,
        no_value_reason=reason,
        attempt=row.attempt,
        started_at=row.started_at,
        ended_at=row.ended_at,
        until=row.until,
        failures=failures.count,
        errors=failures.errors,
        mailbox=mailbox_of(row.name),
    )


def _state(row: StepRow) -> str:
    """Return the state of a step, as `StepState` describes it."""
    if row.ended_at is None:
        # The job may have ended, or may continue with another alternative of first().
        if not row.is_wait:
            return GIVEN_UP
        return {SLEEP: SLEEPING, RETRY: RETRYING}.get(row.kind, WAITING)
    if row.kind == RETRY:
        return FAILED
    if row.kind == SLEEP:
        return OVER
    # A signal that came has a value, even if that is null.
    return TIMED_OUT if row.kind == SIGNAL and not row.size else STORED
