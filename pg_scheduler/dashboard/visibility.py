"""What a person may see of jobs, steps, errors and explanations: the one place that hides parts of them.

The pages use it, and so does ``pg-scheduler mcp`` for the assistants of people.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from pg_scheduler.dashboard.access import Access
from pg_scheduler.dashboard.redaction import HIDDEN, Redaction, without_key, without_other_job
from pg_scheduler.errors import JobConflictError
from pg_scheduler.inspect import ErrorGroup, Explanation, Finding, FindingCode, Reason, ReasonCode, StepState
from pg_scheduler.inspect.other_jobs import error_about_other_job
from pg_scheduler.inspect.reasons import KINDS, ReasonScope
from pg_scheduler.jobs.history import PARENT, AttemptError
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.step_values import CURSOR, SIGNAL, SLEEP, STEP

OWN_KINDS: Final = frozenset({STEP, CURSOR, SLEEP, SIGNAL})
"""The kinds of steps whose values do not come from another job."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """Returns objects without what a person may not see.

    Attributes:
        access: The rights of the person.
        redaction: The values that are hidden from everybody.
    """

    access: Access
    redaction: Redaction

    def job(self, job: Job) -> Job:
        """Return a job as far as the person may see it.

        A person who may not see arguments sees no metadata, progress notes and log lines either, and no
        keys of limits, shares and unique jobs. The unique key may be a digest of the arguments, so it is
        also hidden if any argument or metadata is hidden. If the access has ``names=``, other jobs may be
        hidden. Then the history has no entry for a cancellation that another job caused, and texts that
        mention another job are hidden.
        """
        hide = self.redaction.values
        errors = job.errors
        # A job without a unique key has None, and None must not look like a hidden key.
        hidden_key = HIDDEN if job.unique_key else job.unique_key
        if self.access.visible_names is not None:
            errors = tuple(_without_other_jobs(entry) for entry in errors if entry.outcome != PARENT)
            if job.error_message is not None:
                job = replace(job, error_message=without_other_job(job.error_message))
        if self.access.sees_arguments:
            return replace(
                job,
                args=tuple(hide(job.args)),
                kwargs=hide(job.kwargs),
                metadata=hide(job.metadata),
                errors=errors,
                unique_key=job.unique_key if self.sees_all(job) else hidden_key,
            )
        return replace(
            job,
            args=(),
            kwargs={},
            metadata={},
            errors=tuple(replace(error, log=()) for error in errors),
            progress=None if job.progress is None else replace(job.progress, note=None),
            unique_key=hidden_key,
            blocked_on=without_key(job.blocked_on),
        )

    def sees_all(self, job: Job) -> bool:
        """Return whether the person sees every argument and all metadata of a job."""
        values = {"args": list(job.args), "kwargs": job.kwargs, "metadata": job.metadata}
        # If the stored arguments could not be decoded, ``job.args`` and ``job.kwargs`` are empty, although
        # the job has arguments.
        could_read_arguments = job.no_args_reason is None
        return could_read_arguments and self.access.sees_arguments and self.redaction.shows(values)

    def step(self, step: StepState) -> StepState:
        """Return a step of a visible job.

        If the person sees only some job names, a value that comes from another job is hidden.
        """
        may_be_of_hidden_job = step.kind not in OWN_KINDS and self.access.visible_names is not None
        if not self.access.sees_arguments or may_be_of_hidden_job:
            # A step whose value could not be read has stored one, too.
            has_value = step.value is not None or step.no_value_reason is not None
            return replace(step, value=None, no_value_reason="you may not see it" if has_value else None)
        return replace(step, value=self._step_value(step))

    def _step_value(self, step: StepState) -> Any:
        """Return the value of a step without what ``redact=`` hides in it.

        The name of the step, of a message that of its mailbox, counts as the key of its value. So if this key
        is hidden, the whole value is.
        """
        if step.value is None:
            return None
        is_hidden = self.redaction.is_hidden(step.mailbox or step.name)
        return HIDDEN if is_hidden else self.redaction.value(step.value)

    @property
    def sees_statements(self) -> bool:
        """Whether the person sees the statements of other sessions, which may contain any argument."""
        return self.redaction.shows_all_values(self.access)

    def explanation(self, explanation: Explanation, *, sees_task: bool) -> Explanation:
        """Return the explanation of a job's state, without what belongs to hidden jobs or arguments.

        A reason states itself whether its texts have a key or a statement. The row of the job does not
        decide that: it was read at another time than the explanation.

        Args:
            explanation: The explanation.
            sees_task: Whether the person sees all names of the task of the job.
        """
        visible_scopes = set(ReasonScope)
        if self.access.visible_names is not None:
            visible_scopes = {ReasonScope.JOB, ReasonScope.TASK} if sees_task else {ReasonScope.JOB}

        def is_visible(reason: Reason) -> bool:
            """Return whether the person may see the texts of a reason."""
            has_hidden_key = reason.has_key and not self.access.sees_arguments
            has_hidden_statement = reason.has_statement and not self.sees_statements
            is_in_scope = KINDS[reason.code].scope in visible_scopes
            return is_in_scope and not has_hidden_key and not has_hidden_statement

        reasons = [
            reason if is_visible(reason) else _without_others(reason) for reason in explanation.reasons
        ]
        reasons = [replace(reason, text=self.error(reason.text)) for reason in reasons]
        return replace(explanation, reasons=tuple(reasons))

    def error(self, error: str) -> str:
        """Return the text of an error; with ``names=``, only its class if it mentions another job."""
        return error if self.access.visible_names is None else without_other_job(error)

    def conflict(self, error: JobConflictError) -> str:
        """Return why a job was not added: another job has its id or its unique key.

        If the access has ``names=``, the other job may be hidden, so the text does not name it.
        """
        if self.access.visible_names is None:
            return str(error)
        conflict = "id" if error.unique_key is None else "unique key"
        return f"another job has the {conflict} of this one"

    def groups(self, groups: Iterable[ErrorGroup]) -> list[ErrorGroup]:
        """Return the groups of errors of visible names, as far as the person may see them."""
        return [
            replace(group, text=self.error(group.text), example=self.error(group.example))
            for group in groups
            if self.access.sees_name(group.job_name)
        ]

    def sees_evidence(self, finding: Finding) -> bool:
        """Return whether the person may see the evidence of a finding, apart from the names in it.

        The evidence of XMIN-HELD contains a statement of another session, which may contain arguments.
        """
        return self.sees_statements or finding.code is not FindingCode.XMIN_HELD


def _without_other_jobs(entry: AttemptError) -> AttemptError:
    """Return an entry of the history; without message and traceback if it mentions another job."""
    texts = entry.error_type, entry.message, entry.traceback
    if not any(map(error_about_other_job, texts)):
        return entry
    return replace(entry, message=HIDDEN, traceback=None)


def _without_others(reason: Reason) -> Reason:
    """Return a reason without the texts that may mention other jobs: only its heading remains.

    The remedy of a cancelled or an expired job remains as well, because it mentions no other job.
    """
    reason = replace(reason, text=KINDS[reason.code].heading)
    if reason.code in {ReasonCode.CANCELLED, ReasonCode.EXPIRED}:
        return reason
    return replace(reason, remedy=None, command=None)
