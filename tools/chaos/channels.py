"""The checks of what jobs show and receive while they run: streams, mailboxes and broadcasts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tools.chaos.evidence import Evidence, Row, StreamItem
from tools.chaos.jobs import value_of
from tools.chaos.load import Request
from tools.chaos.nemesis import SERVER_CLOCK_YEARS
from tools.chaos.workflow_calls import Reading
from tools.chaos.workflow_jobs import (
    AUDIENCE,
    END,
    LISTENER,
    MESSAGE,
    NAME,
    NEWS_RECEIVED,
    SPEAKER,
    WORD_COUNT,
    WORDS,
)


def items_lost_or_repeated(evidence: Evidence) -> Iterator[str]:
    """Yield streams with a gap, a repeated, a lost or a moved item, and readers that got something else."""
    items: dict[str, list[StreamItem]] = defaultdict(list)
    names: dict[str, list[object]] = defaultdict(list)
    for item in evidence.items:
        if item.name == WORDS:
            items[item.job_id].append(item)
        elif item.name == NAME:
            names[item.job_id].append(item.value)
    for job_id, row in evidence.rows.items():
        if row.job_name != SPEAKER:
            continue
        stream = items[job_id]
        numbers = [item.number for item in stream]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"{job_id} has the items {numbers}"
        if row.status == "completed":
            yield from _wrong_values(row, [item.value for item in stream])
            own = value_of(job_id, row.attempt, row.worker_id)
            if names[job_id] != [own]:
                yield f"{job_id} has published {names[job_id]} instead of {own!r}"
        reading = evidence.calls.readings.get(job_id)
        if reading is not None:
            yield from _read_otherwise(evidence, job_id, stream, reading)


def _wrong_values(row: Row, values: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the items of a completed job: all of one kind, or those of its attempts."""
    if values and values[0].startswith("word "):
        expected = [f"word {number}" for number in range(1, WORD_COUNT + 1)]
        if list(values) != expected:
            yield f"{row.job_id} has the items {values}"
        return
    by_attempt: dict[tuple[int, str], list[int]] = {}
    order = []
    for value in values:
        _, attempt, worker_id, number = value.rsplit(" ", 3)
        token = int(attempt), worker_id
        by_attempt.setdefault(token, []).append(int(number))
        order.append(int(attempt))
    if order != sorted(order):
        yield f"{row.job_id} has an item of an attempt behind one of a later attempt: {order}"
    for token, numbers in by_attempt.items():
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"{row.job_id} has the items {numbers} of attempt {token}"
    last = by_attempt.get((row.attempt, str(row.worker_id)), [])
    if len(last) != WORD_COUNT:
        yield f"{row.job_id} is completed, but has {len(last)} items of its last attempt"


def _read_otherwise(
    evidence: Evidence, job_id: str, stream: Sequence[StreamItem], reading: Reading
) -> Iterator[str]:
    """Yield differences between a stream and what its reader got.

    A job may be deleted under its reader only while the clock of the server is years ahead.
    """
    stored = [(item.number, item.value) for item in stream]
    if reading.items != stored[: len(reading.items)]:
        yield f"a reader got {reading.items} of {job_id} instead of {stored}"
    elif reading.ended is not None and len(reading.items) < len(stored):
        ended = reading.ended
        if not any(
            fault.kind == SERVER_CLOCK_YEARS and fault.began <= ended and reading.began <= fault.ended
            for fault in evidence.faults
        ):
            yield f"a reader got {len(reading.items)} of {len(stored)} items of {job_id}"
    if reading.name is not None and not str(reading.name).startswith(f"{job_id} "):
        yield f"a reader got the value {reading.name!r} of {job_id}"


def messages_lost_or_moved(evidence: Evidence) -> Iterator[str]:
    """Yield mailboxes whose attempts received different messages, or not each message once and in order.

    A message whose call raised may be stored, at any time. A timeout counts as a place, since each attempt
    gets it at the same call.
    """
    received: dict[str, dict[int, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    places: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for record in evidence.ledgers.events[MESSAGE]:
        job_id, attempt, place, message = record.details
        received[job_id][place].add(message)
        places[job_id, attempt, record.worker_id].append(place)
    for (job_id, attempt, worker_id), found in places.items():
        if found != list(range(len(found))):
            yield f"{job_id}: attempt {attempt} on {worker_id} received the places {found}"
    for row in evidence.rows.values():
        if row.job_name != LISTENER:
            continue
        changed = False
        for place, messages in sorted(received[row.job_id].items()):
            if len(messages) > 1:
                changed = True
                yield f"{row.job_id} received {sorted(map(str, messages))} at place {place}"
        if row.status == "completed" and not changed:
            count = len(places[row.job_id, row.attempt, str(row.worker_id)])
            of_place = received[row.job_id]
            in_order = [next(iter(of_place[place])) for place in sorted(of_place)]
            if count != len(in_order):
                yield f"{row.job_id}: its last attempt received {count} of {len(in_order)} places"
            values = [message for message in in_order if message is not None]
            yield from _mail_problems(row.job_id, evidence.requests[row.job_id], values)


def _mail_problems(job_id: str, request: Request, values: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the messages of a completed job."""
    repeated = [value for value, times in Counter(values).items() if times > 1]
    if repeated:
        yield f"{job_id} received {repeated} more than once"
    possible = {sent.value for sent in request.messages if sent.is_stored is not False}
    if not set(values) <= possible:
        yield f"{job_id} received {sorted(set(values) - possible)}, which was not sent"
    if not values or not values[-1].startswith(END):
        yield f"{job_id} is completed, but received {values} without an end"
    stored = [sent.value for sent in request.messages if sent.is_stored and not sent.value.startswith(END)]
    in_order = [value for value in dict.fromkeys(values) if value in set(stored)]
    if in_order != stored:
        yield f"{job_id} received {in_order} of the messages {stored}"


def broadcasts_in_part(evidence: Evidence) -> Iterator[str]:
    """Yield broadcasts that did not reach the number of jobs that they returned, and jobs with odd values."""
    received: dict[str, set[str]] = defaultdict(set)
    for record in evidence.ledgers.events[NEWS_RECEIVED]:
        job_id, _, value = record.details
        received[job_id].add(value)
    for broadcast in evidence.calls.broadcasts:
        jobs = [job_id for job_id in broadcast.job_ids if broadcast.value in received[job_id]]
        if broadcast.reached is not None and len(jobs) != broadcast.reached:
            yield f"{broadcast.value!r} has reached {broadcast.reached} jobs, but {jobs} have it"
    sent: dict[str, set[str]] = defaultdict(set)
    for broadcast in evidence.calls.broadcasts:
        for job_id in broadcast.job_ids:
            sent[job_id].add(broadcast.value)
    for row in evidence.rows.values():
        if row.job_name == AUDIENCE and row.status == "completed":
            values = received[row.job_id]
            if len(values) != 1 or not values <= sent[row.job_id]:
                yield f"{row.job_id} received {sorted(values)}, of {len(sent[row.job_id])} that were sent"
