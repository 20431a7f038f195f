"""Why a job runs, waits or has ended: the most decisive reason, once, in the words of an operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pg_scheduler.dashboard.context import View
from pg_scheduler.inspect import Explanation, Reason, ReasonCode, StepState, Verdict
from pg_scheduler.inspect.reasons import KINDS
from pg_scheduler.inspect.timeline import Attempt, retries_used
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.outcome import without_quarantine_remedy
from pg_scheduler.jobs.step_values import SIGNAL, SLEEP

TONES: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.LIMIT: "held",
    ReasonCode.SIGNAL: "held",
    ReasonCode.SHARE: "held",
    ReasonCode.AFTER: "held",
    ReasonCode.TASK_PAUSED: "held",
    ReasonCode.BACKOFF: "warn",
    ReasonCode.RUNNING: "run",
}
"""Colors of reasons that have one of their own."""

WAITS: Final = {ReasonCode.SLEEPING: SLEEP, ReasonCode.SIGNAL: SIGNAL}
"""The kinds of the open steps that reasons are about."""

QUARANTINE_ADVICE: Final = (
    "Read the logs of its workers and correct the function before you retry it:"
    " the next worker may die of it too."
)

VERDICTS: Final = {
    Verdict.ENDED: "bad",
    Verdict.HELD: "bad",
    Verdict.RUNNING: "warn",
    Verdict.WAITING: "wait",
}
"""Colors of the other reasons, by the verdict."""


def cause_of(
    job: Job,
    explanation: Explanation,
    attempts: Sequence[Attempt],
    limit: str = "",
    *,
    names_holders: bool = False,
    parents_title: str = "",
    waits: Sequence[StepState] = (),
) -> View | None:
    """Return why a job is where it is; None if there is no reason to state, as for a completed job.

    In the result, ``title`` is the most decisive reason in a few words, ``error`` the error of an attempt,
    and ``text`` further facts. ``reason`` is that reason itself, and ``others`` are the other ones. ``wait``
    is the open step that the reason is about, which the text does not repeat; None if it is not about a
    single step.

    Args:
        job: The job.
        explanation: The reasons.
        attempts: The attempts of the job.
        limit: The name of the limit that the job waits for; empty if there is none, or it is hidden.
        names_holders: Whether the page itself names the holders of the limit. The reason about them is left
            out.
        parents_title: The title if the job waits for other jobs; empty if they are unknown.
        waits: The open steps of the job.
    """
    if not explanation.reasons:
        return None
    # The first reason is the most decisive one.
    reason, *other_reasons = explanation.reasons
    if names_holders:
        other_reasons = [
            other_reason for other_reason in other_reasons if other_reason.code is not ReasonCode.LIMIT_HELD
        ]
    title, error, text = KINDS[reason.code].heading, "", _sentence(reason.text)
    if reason.text == title:
        text = ""
    wait = _only_wait(reason, waits)
    if wait is not None:
        # The page shows the step in which the job waits. Of the text, it needs only what follows about
        # signals for which the job does not wait.
        _, separator, other_signals = reason.text.rpartition("; other signals")
        text = _sentence(f"other signals{other_signals}") if separator else ""
    # For some reasons, the page has a more exact title, or shows the facts of the text elsewhere.
    match reason.code:
        case ReasonCode.FAILED:
            title, error, text = _failure(job, attempts)
        case ReasonCode.BACKOFF if attempts and attempts[-1].error is not None:
            retry = f"retry {job.retry_count} of {job.max_retries}"
            title, error, text = f"Waits for {retry}", attempts[-1].error, ""
        case ReasonCode.AFTER:
            title, text = parents_title or title, ""
        case ReasonCode.RUNNING | ReasonCode.NOT_DUE:
            text = ""
        case ReasonCode.QUARANTINED:
            title, text = without_quarantine_remedy(text), QUARANTINE_ADVICE
        case ReasonCode.LIMIT if limit:
            title = f"Waits for the limit “{limit}”"
            text = _sentence(reason.text.removeprefix(f"waits for the limit {limit!r}").removeprefix(":"))
    tone = TONES.get(reason.code, VERDICTS.get(explanation.verdict, "wait"))
    # A cancelled job has ended too, but nothing went wrong.
    if reason.code is ReasonCode.CANCELLED:
        tone = "wait"
    return View(
        title=title, tone=tone, error=error, text=text, reason=reason, others=other_reasons, wait=wait
    )


def _only_wait(reason: Reason, waits: Sequence[StepState]) -> StepState | None:
    """Return the open step that a reason is about; None for none or several, or if they are hidden."""
    steps = [step for step in waits if step.kind == WAITS.get(reason.code)]
    return steps[0] if len(steps) == 1 else None


def _failure(job: Job, attempts: Sequence[Attempt]) -> tuple[str, str, str]:
    """Return the title, the message of the error, and a sentence about unused retries, or an empty text."""
    error_text = job.error_message or ""
    # The text begins with the name of the class of the error, after the name of its module.
    error_type, _, message = error_text.partition(": ")
    class_name = error_type.rpartition(".")[2]
    # The text of an error without a class may have a colon too.
    if not message or not class_name.isidentifier():
        class_name, message = "", error_text
    failed_attempts = [attempt for attempt in attempts if attempt.error is not None]
    error_types = {(attempt.error or "").partition(": ")[0] for attempt in failed_attempts}
    # Without a class, the title states only that attempts failed, which is true of all of them.
    is_true_of_all = not class_name or error_types <= {error_type}
    raised = f"raised {class_name}" if class_name else "failed"
    title = f"Failed: the attempt {raised}"
    if len(failed_attempts) > 1:
        who = f"the last of {len(failed_attempts)} attempts"
        if is_true_of_all:
            who = "both attempts" if len(failed_attempts) == 2 else f"all {len(failed_attempts)} attempts"
        title = f"Failed for good: {who} {raised}"
    # A job with unused retries has failed for good because its task does not retry such an error.
    text = ""
    if job.retry_count < job.max_retries:
        text = f"{retries_used(job).capitalize()}: its error is not retried."
    return title, message, text


def _sentence(text: str) -> str:
    """Return a text as a sentence, with a capital letter and a period; an empty text stays empty."""
    text = text.strip()
    if not text:
        return ""
    end = "" if text.endswith((".", "…")) else "."
    return f"{text[:1].upper()}{text[1:]}{end}"
