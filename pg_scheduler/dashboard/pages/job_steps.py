"""The durable steps and signals of a job, as far as a request may see their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pg_scheduler.dashboard.context import PageRequest, View
from pg_scheduler.dashboard.json_tree import json_tree
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.inspect import StepState
from pg_scheduler.jobs.step_values import CURSOR, SIGNAL, SLEEP, STEP

MAX_SHOWN: Final = 100

OWN: Final = frozenset({STEP, CURSOR, SLEEP, SIGNAL})
"""Kinds of which no value comes from another job."""


async def read_steps(job_id: str, request: PageRequest, name: str | None = None) -> Sequence[StepState]:
    """Return the steps of a visible job, the oldest first, without what the request may not see.

    With a name only that step, with a large value too. There are none if the job was deleted meanwhile.
    """
    try:
        found = await request.inspector.steps(job_id, name=name)
    except JobNotFoundError:
        return ()
    return [_visible(each, request) for each in found.items]


def waiting_signals(steps: Sequence[StepState]) -> list[str]:
    """Return the names of the signals that a job waits for."""
    return [each.name for each in steps if each.kind == SIGNAL and each.ended_at is None]


def shown_steps(steps: Sequence[StepState]) -> View:
    """Return steps as the page shows them: those that last, then the newest, and how many are left out."""
    lasting = [each for each in steps if each.ended_at is None]
    others = [each for each in reversed(steps) if each.ended_at is not None]
    shown = [*lasting, *others][:MAX_SHOWN]
    return View(
        items=[(each, None if each.value is None else json_tree(each.value)) for each in shown],
        left_out=len(steps) - len(shown),
    )


def _visible(step: StepState, request: PageRequest) -> StepState:
    is_foreign = step.kind not in OWN and request.access.visible_names is not None
    if not request.access.sees_arguments or is_foreign:
        return replace(step, value=None, no_value_reason="you may not see it" if _has_value(step) else None)
    return replace(step, value=_redacted(step, request))


def _has_value(step: StepState) -> bool:
    return step.value is not None or step.no_value_reason is not None


def _redacted(step: StepState, request: PageRequest) -> Any:
    """Return the value without what is hidden in it, or all of it if the name of the step is hidden."""
    if step.value is None:
        return None
    redaction = request.settings.redaction
    return HIDDEN if redaction.is_hidden(step.name) else redaction.value(step.value)
