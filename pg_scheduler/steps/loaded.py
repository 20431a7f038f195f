"""The steps of a job as one of its attempts knows them: loaded once, and changed by what it stores itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.step_values import MAX_STEP_BYTES, MAX_STEPS, StoredStep, shown_name
from pg_scheduler.steps.statements import StepRepository
from pg_scheduler.worker.lease import Lease, persistently


def size_of(step: StoredStep | None) -> int:
    """Return the bytes of a step's value that count; 0 if it has no value, or its row counts for no step."""
    if step is None or step.value is None or not step.is_counted:
        return 0
    return len(step.value.encode())


class LoadedSteps:
    """The stored steps of the job of one attempt, by name.

    If the job is marked, the first call loads the steps of earlier attempts. A call that was cancelled may
    have stored a step, so the next call loads the steps again.

    Attributes:
        has_stored: Whether the attempt has stored a step.
    """

    def __init__(self, claim: Claim, steps: StepRepository, lease: Lease, *, is_marked: bool) -> None:
        self._claim = claim
        self._repository = steps
        self._lease = lease
        self._steps: dict[str, StoredStep] | None = None if is_marked else {}
        self._loading = asyncio.Lock()
        # The number of changes, by which a load notices that it may have missed one.
        self._writes = 0
        # The bytes of the values of all loaded steps.
        self._bytes = 0
        self.has_stored = False

    async def get(self) -> dict[str, StoredStep]:
        """Return the steps that are stored, by name."""
        if self._steps is None:
            async with self._loading:
                # Another call may have loaded them while this one waited for the lock.
                while self._steps is None:
                    writes = self._writes
                    steps = await persistently(self._lease, lambda: self._repository.load(self._claim.job_id))
                    # If a step was committed meanwhile, the rows may lack it, so they are read again.
                    if writes == self._writes:
                        self._bytes = sum(map(size_of, steps))
                        self._steps = {step.name: step for step in steps}
        return self._steps

    def add(self, step: StoredStep, *, is_progress: bool = True) -> None:
        """Add a step that is committed, or replace an earlier state of it.

        ``is_progress`` is False for a failed attempt of a step.
        """
        self._writes += 1
        # As long as the steps are not loaded, this one will be loaded with the others.
        if self._steps is not None:
            self._bytes += size_of(step) - size_of(self._steps.get(step.name))
            self._steps[step.name] = step
        self.has_stored = self.has_stored or is_progress

    def forget(self) -> None:
        """Let the next call load the steps again, because some may be committed that are not known here."""
        self._steps = None
        self._writes += 1

    def refresh(self, steps: Sequence[StoredStep], names: Collection[str]) -> None:
        """Replace those of the loaded steps that have these names; do nothing if no steps are loaded."""
        if self._steps is None:
            return
        for step in steps:
            if step.name in names:
                self._bytes += size_of(step) - size_of(self._steps.get(step.name))
                self._steps[step.name] = step

    async def check_room(
        self, name: str, text: str | None, uncommitted: Mapping[str, int], *, count: int = 1
    ) -> None:
        """Raise PayloadError if a job would store too many steps or bytes with one more step.

        Args:
            name: The name of the step.
            text: Its value as JSON; None for a step that waits.
            uncommitted: The bytes of steps that are stored in transactions that have not committed, by name.
            count: How many children the step has.
        """
        stored = await self.get()
        names = {key for key, step in stored.items() if step.is_counted}
        # Neither the steps of a job nor the children of one step may be more than MAX_STEPS.
        step_count = len(names | uncommitted.keys() | {name})
        if count > MAX_STEPS:
            raise PayloadError(
                f"step {shown_name(name)!r} of job {self._claim.job_id!r} has {count} children, more than "
                f"{MAX_STEPS}; divide them among several steps"
            )
        if step_count > MAX_STEPS:
            raise PayloadError(
                f"step {shown_name(name)!r} is number {step_count} of job {self._claim.job_id!r}, more than "
                f"{MAX_STEPS}; store the values of several steps in one, or divide the work among several "
                "jobs"
            )
        # A new value takes the place of the stored value of its step.
        size = self._bytes + len(text or "") - size_of(stored.get(name))
        for other_name, new_size in uncommitted.items():
            if other_name != name:
                size += new_size - size_of(stored.get(other_name))
        if size > MAX_STEP_BYTES:
            raise PayloadError(
                f"with step {name!r} the values of job {self._claim.job_id!r} have {size} bytes of JSON, "
                f"more than {MAX_STEP_BYTES}; store them elsewhere and return ids or paths"
            )
