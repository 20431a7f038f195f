"""The checks of durable jobs: steps, signals, children, passed results, effects, completions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from tools.chaos.durable_jobs import (
    APPROVAL,
    CALLED,
    CHILDREN,
    CHOICE,
    CHOICE_STEP,
    CHOSEN,
    COMPLETED,
    DRAWN,
    LINES,
    ORDERS,
    PASSED,
    RECEIVED,
    SIGNALS,
    SUMMARIES,
    step_value,
)
from tools.chaos.evidence import Effect, Evidence, Row
from tools.chaos.jobs import value_of
from tools.chaos.load import Sent
from tools.chaos.workflow_jobs import BANK

Calls = Counter[tuple[str, int, str, str]]
"""The calls of steps: job, attempt, step and worker."""

Received = Mapping[tuple[str, str], list[tuple[int, str | None]]]
"""The attempts and the values that they received, by job and step."""


def steps_repeated_or_lost(evidence: Evidence) -> Iterator[str]:
    """Yield steps that were called too often, and values that changed, were lost, or that no call returned.

    An attempt calls the function of a step at most once. After an attempt has received its value, no later
    one calls it, and all receive this value.
    """
    received = _received(evidence)
    calls = Counter(
        (*record.details, record.worker_id)
        for record in evidence.ledgers.events[CALLED]
        if record.details[2] not in (*LINES, BANK)
    )
    yield from _repeated(calls, received)
    yield from _lost(evidence, calls, received)
    yield from _skipped_lines(evidence)


def _repeated(calls: Calls, received: Received) -> Iterator[str]:
    for (job_id, attempt, step, worker_id), times in calls.items():
        if times > 1:
            yield f"{job_id}: attempt {attempt} on {worker_id} called step {step!r} {times} times"
        own = step_value(value_of(job_id, attempt, worker_id), step)  # a fenced attempt may receive it late
        if any(earlier < attempt and value != own for earlier, value in received.get((job_id, step), ())):
            yield f"{job_id}: attempt {attempt} called step {step!r}, whose value was stored"


def _lost(evidence: Evidence, calls: Calls, received: Received) -> Iterator[str]:
    returned = defaultdict(set)
    for job_id, attempt, step, worker_id in calls:
        returned[job_id, step].add(step_value(value_of(job_id, attempt, worker_id), step))
    for each in evidence.effects:
        own = value_of(each.job_id, each.attempt, each.worker_id)
        returned[each.job_id, each.step].add(step_value(own, each.step))
    for (job_id, step), found in received.items():
        values = {value for _, value in found}
        if len(values) > 1:
            yield f"{job_id} received several values of step {step!r}: {sorted(map(str, values))}"
        elif step not in (*SIGNALS, *CHILDREN, CHOICE_STEP) and not values <= returned[job_id, step]:
            yield f"{job_id} received {values} from step {step!r}, which no call returned"


def _skipped_lines(evidence: Evidence) -> Iterator[str]:
    """Yield orders whose cursor passed over a line; it may repeat some."""
    done = {(job_id, step) for job_id, _, step in (each.details for each in evidence.ledgers.events[CALLED])}
    done |= {(each.job_id, each.step) for each in evidence.effects}
    for row in evidence.rows.values():
        if row.job_name in ORDERS and row.status == "completed":
            for line in LINES:
                if (row.job_id, line) not in done:
                    yield f"{row.job_id} is completed, but its cursor passed over {line!r}"


def choices_lost_or_changed(evidence: Evidence) -> Iterator[str]:
    """Yield choices without a winner, and winners with another value than the one that was sent or returned.

    That each attempt receives the same winner is a check of all steps.
    """
    received = _received(evidence)
    for row in evidence.rows.values():
        if row.job_name != CHOICE:
            continue
        values = {value for _, value in received.get((row.job_id, CHOICE_STEP), ())}
        if row.status == "completed" and not values:
            yield f"{row.job_id} is completed, but has chosen nothing"
        request = evidence.requests[row.job_id]
        child = evidence.rows.get(f"{row.job_id}:{DRAWN}")
        possible = {
            "limit=None",
            *(f"{CHOSEN}={sent.value}" for sent in request.signals if sent.is_stored is not False),
            *([] if child is None else [f"{DRAWN}={_value(child)}"]),
        }
        if not values <= possible:
            yield f"{row.job_id} chose {values} instead of one of {possible}"


def effects_repeated_or_lost(evidence: Evidence) -> Iterator[str]:
    """Yield effects that were written twice, or without the step or completion that commits with them."""
    effects: dict[str, list[Effect]] = defaultdict(list)
    for effect in evidence.effects:
        effects[effect.job_id].append(effect)
    for job_id, found in effects.items():
        for step, times in Counter(each.step for each in found).items():
            if times > 1:
                yield f"{job_id} wrote the effect {step!r} {times} times"
        if job_id not in evidence.rows:
            yield f"{job_id} wrote effects, but has no row"
    for job_id, request in evidence.requests.items():
        row = evidence.rows.get(job_id)
        if row is None or not request.effects:
            continue
        written = {each.step: each for each in effects.get(job_id, ())}
        if row.status == "completed":
            for step in request.effects:
                if step not in written:
                    yield f"{job_id} is completed, but its effect {step!r} is missing"
        last = written.get(COMPLETED)
        if last is None:
            continue
        if (row.status, row.attempt, row.worker_id) != ("completed", last.attempt, last.worker_id):
            yield (
                f"{job_id} wrote the effect of its completion at attempt {last.attempt} of {last.worker_id}, "
                f"but is {row.status} at {row.attempt} of {row.worker_id}"
            )


def signals_lost_or_replaced(evidence: Evidence) -> Iterator[str]:
    """Yield signals that were stored and not received, or received and not stored.

    The first value of a name is stored, and its call returns True. A call that raised may have stored its
    value.
    """
    received = _received(evidence)
    for job_id, request in evidence.requests.items():
        row = evidence.rows.get(job_id)
        if row is None or row.job_name not in ORDERS or not request.signals:
            continue
        for name in SIGNALS:
            sent = [each for each in request.signals if each.name == name]
            stored = [each for each in sent if each.is_stored]
            if len(stored) > 1:
                yield f"{job_id}: {len(stored)} signals {name!r} were stored"
            found = received.get((job_id, name))
            if found is None:
                if row.status == "completed":
                    yield f"{job_id} is completed, but received no signal {name!r}"
                continue
            value = found[0][1]
            if value not in _possible(name, sent, stored):
                yield f"{job_id} received {value!r} as signal {name!r} instead of one of {sent}"


def children_lost_or_repeated(evidence: Evidence) -> Iterator[str]:
    """Yield children that are missing, did not complete once, or whose order got another value than theirs.

    A child completes at the attempt that its row names, so the value of an earlier completion is another one.
    """
    received = _received(evidence)
    completions = Counter(record.details[0] for record in evidence.ledgers.events["JobCompleted"])
    for job_id, row in evidence.rows.items():
        if evidence.is_of_family(job_id):
            continue
        if evidence.is_child(job_id):
            if row.status != "completed":
                yield f"{job_id} ended as {row.status}"
            if completions[job_id] > 1:
                yield f"{job_id} was completed {completions[job_id]} times"
            if job_id.partition(":")[0] not in evidence.rows:
                yield f"{job_id} exists without its order"
        elif row.job_name in ORDERS:
            for step in CHILDREN:
                values = {value for _, value in received.get((job_id, step), ())}
                if row.status == "completed" and not values:
                    yield f"{job_id} is completed, but received nothing of {step!r}"
                child = evidence.rows.get(f"{job_id}:{step}")
                if values and child is None:
                    yield f"{job_id} received {values} from {step!r}, which has no row"
                elif child is not None and not values <= {_value(child)}:
                    yield f"{job_id} received {values} from {step!r} instead of {_value(child)!r}"


def passed_results_missing_or_wrong(evidence: Evidence) -> Iterator[str]:
    """Yield jobs that were not passed, in each attempt, how every job has ended that they waited for."""
    informed = set()
    for record in evidence.ledgers.events[PASSED]:
        job_id, attempt, passed = record.details
        informed.add((job_id, attempt, record.worker_id))
        rows = [evidence.rows[each] for each in evidence.requests[job_id].after]
        expected = [[row.job_id, row.status, _value(row)] for row in rows]
        if sorted(passed) != sorted(expected):
            yield f"{job_id} was passed {passed} instead of {expected}"
    for row in evidence.rows.values():
        is_informed = (row.job_id, row.attempt, row.worker_id) in informed
        if row.job_name in SUMMARIES and row.status == "completed" and not is_informed:
            yield f"{row.job_id} is completed, but attempt {row.attempt} was passed nothing"


def _value(row: Row) -> str | None:
    """Return the value of a job, which only the attempt returned that its row names."""
    return value_of(row.job_id, row.attempt, row.worker_id) if row.status == "completed" else None


def _possible(name: str, sent: list[Sent], stored: list[Sent]) -> set[str | None]:
    """Return the values that a job may receive; None for the end of its wait."""
    if stored:
        return {each.value for each in stored}
    unknown: set[str | None] = {each.value for each in sent if each.is_stored is None}
    return unknown if name == APPROVAL else unknown | {None}


def _received(evidence: Evidence) -> Received:
    received = defaultdict(list)
    for record in evidence.ledgers.events[RECEIVED]:
        job_id, attempt, step, value = record.details
        received[job_id, step].append((attempt, value))
    return received
