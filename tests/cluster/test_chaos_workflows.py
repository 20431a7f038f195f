"""The chaos harness on families, deadlines, streams, mailboxes, sequences, chunks and debounced jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.cluster.test_chaos import broken, put, row, sound
from tools.chaos.durable_jobs import CALLED, RECEIVED
from tools.chaos.evidence import Evidence, KeptResult, StreamItem
from tools.chaos.families import MAX_OVERRUN_S
from tools.chaos.ledger import DONE, RAISED, Attempt, Record
from tools.chaos.load import BOUNDED, BROKEN, CANCELLED, PLAIN, Request, Sent
from tools.chaos.nemesis import SERVER, SERVER_CLOCK, SERVER_CLOCK_YEARS, WORKER_CLOCK, YEAR_S, Fault
from tools.chaos.workflow_calls import Broadcast, DebouncedCall, Reading
from tools.chaos.workflow_jobs import (
    AUDIENCE,
    BANK,
    BANK_RETRIES,
    CHUNK_SIZE,
    CLEAN_UP,
    CLEANED,
    CROPS,
    DEBOUNCED,
    DETACHED,
    END,
    FAMILY,
    GATHERED,
    HARVEST,
    HARVESTED,
    INDEXED,
    ITEMS,
    LISTENER,
    MEMBERS,
    MESSAGE,
    NAME,
    NEWS_RECEIVED,
    RESERVE,
    SKIPPING,
    SPEAKER,
    STOPPING,
    UNRELIABLE,
    WORD_COUNT,
    WORDS,
)
from tools.chaos.workflow_jobs import BOUNDED as BOUNDED_TASK

GUESTS = ("guest 0", "guest 1", "guest 2")


def workflows() -> Evidence:
    """Return sound evidence with each kind of these jobs."""
    evidence = sound()
    rows = [
        row("family", "cancelled", job_name=FAMILY),
        *(row(f"family:{step}") for step in DETACHED),
        *(row(f"family:{step}", "cancelled") for step in MEMBERS),
        row("family:on_cancel", job_name=CLEAN_UP),
        row("harvest", job_name=HARVEST),
        *(row(f"harvest:{step}") for step in CROPS),
        row("bounded", "failed", job_name=BOUNDED_TASK, attempt=3, finished=14.2),
        row("unreliable", job_name=UNRELIABLE),
        row("speaker", job_name=SPEAKER, attempt=2),
        row("talker", job_name=SPEAKER, attempt=2),
        row("listener", job_name=LISTENER, attempt=2),
        *(row(guest, job_name=AUDIENCE) for guest in GUESTS),
        row("stop 0", "failed", job_name=STOPPING),
        row("stop 1", job_name=STOPPING),
        row("skip 0", job_name=SKIPPING),
        row("skip 1", job_name=SKIPPING),
        row("index", job_name=DEBOUNCED),
    ]
    evidence.rows = {**evidence.rows, **{each.job_id: each for each in rows}}
    starts = {"stop 1": 12.1, "skip 1": 10.3, "index": 10.85}
    for each in rows:
        if each.status == "completed" or each.job_id == "stop 0":
            started = starts.get(each.job_id, 10.1)
            outcome = RAISED if each.status == "failed" else DONE
            version = 2 if each.job_id == "index" else 0
            evidence.ledgers.attempts[each.job_id] = [
                Attempt(
                    each.job_id, each.attempt, "worker-1", "a", 1, version, started, started + 0.1, outcome
                )
            ]
    children = [f"family:{step}" for step in DETACHED] + [f"harvest:{step}" for step in CROPS]
    evidence.results = {
        **evidence.results,
        **{each: KeptResult("completed", f"{each} 1 a", has_error=False, attempts=1) for each in children},
    }
    evidence.requests = {
        **evidence.requests,
        "family": Request(CANCELLED, confirmed=True, cancelled=True),
        **{each: Request(PLAIN, confirmed=True) for each in ("harvest", "unreliable", "speaker", "talker")},
        "bounded": Request(BOUNDED, confirmed=True, deadline=14.0),
        "listener": Request(
            PLAIN,
            confirmed=True,
            messages=(
                *(Sent(ITEMS, f"item {number}", True) for number in range(2)),
                Sent(ITEMS, "perhaps", None),
                Sent(ITEMS, "refused", False),
                Sent(ITEMS, END, True),
            ),
        ),
        **{guest: Request(PLAIN, confirmed=True) for guest in GUESTS},
        "stop 0": Request(BROKEN, confirmed=True, sequence=("stop", 0), called_at=10.0, resumed_at=12.0),
        **{
            f"{key} {place}": Request(PLAIN, confirmed=True, sequence=(key, place), called_at=10.0)
            for key, place in (("stop", 1), ("skip", 0), ("skip", 1))
        },
        "index": Request(PLAIN, confirmed=True),
    }
    write(
        evidence, CALLED, ["family", 1, RESERVE], *(["unreliable", 1, BANK] for _ in range(BANK_RETRIES + 1))
    )
    write(evidence, RECEIVED, ["family", 1, RESERVE, f"family 1 a {RESERVE}"])
    write(evidence, CLEANED, ["family:on_cancel", "family", [[RESERVE, f"family 1 a {RESERVE}", False]]])
    write(evidence, HARVESTED, ["harvest", 1, [f"harvest:{step} 1 a" for step in CROPS]])
    first = [None]
    second = [*first, "item 0", "item 1", END]
    for attempt, messages in ((1, first), (2, second)):
        for place, message in enumerate(messages):
            write(evidence, MESSAGE, ["listener", attempt, place, message])
    for guest, news in zip(GUESTS, ("news 0", "news 1", "news 1"), strict=True):
        write(evidence, NEWS_RECEIVED, [guest, 1, news])
    evidence.ledgers.events[INDEXED].append(Record(10.85, INDEXED, "a", ["index", 1, "document", 2]))
    talks = [("1 a", 2), ("2 a", WORD_COUNT)]
    evidence.items = [
        *(StreamItem("speaker", WORDS, number, f"word {number}") for number in range(1, WORD_COUNT + 1)),
        *(
            StreamItem("talker", WORDS, place, value)
            for place, value in enumerate(
                [f"talker {token} {number}" for token, count in talks for number in range(1, count + 1)], 1
            )
        ),
        *(StreamItem(each, NAME, 0, f"{each} 2 a") for each in ("speaker", "talker")),
    ]
    calls = evidence.calls
    calls.readings["speaker"] = Reading(
        10.0, [(item.number, item.value) for item in evidence.items[:WORD_COUNT]], 12.0, "speaker 1 a"
    )
    calls.broadcasts += [
        Broadcast("news 0", GUESTS, 1),
        Broadcast("news 1", GUESTS, 2),
        Broadcast("news 2", GUESTS, None),
    ]
    calls.debounced["document"] = [DebouncedCall(1, 10.0, 10.01), DebouncedCall(2, 10.3, 10.31)]
    gather(evidence, ["key 1"] * CHUNK_SIZE)
    return evidence


def write(evidence: Evidence, event: str, *details: list[object]) -> None:
    evidence.ledgers.events[event] += [Record(11.0, event, "a", each) for each in details]


def change_items(evidence: Evidence, change: Callable[[list[StreamItem]], object]) -> None:
    items = [*evidence.items]
    change(items)
    evidence.items = items


def put_item(evidence: Evidence, place: int, value: str) -> None:
    evidence.items = [
        replace(each, value=value)
        if (each.job_id, each.name, each.number) == ("talker", WORDS, place)
        else each
        for each in evidence.items
    ]


def move_item(evidence: Evidence) -> None:
    """Let an item of the first attempt have the place behind one of the second attempt."""
    put_item(evidence, 2, "talker 2 a 1")
    put_item(evidence, 3, "talker 1 a 2")


def read(evidence: Evidence) -> Reading:
    return evidence.calls.readings["speaker"]


def put_message(evidence: Evidence, number: int, message: str) -> None:
    records = evidence.ledgers.events[MESSAGE]
    job_id, attempt, place, _ = records[number].details
    records[number] = replace(records[number], details=[job_id, attempt, place, message])


def move_messages(evidence: Evidence) -> None:
    put_message(evidence, 2, "item 1")
    put_message(evidence, 3, "item 0")


def run_version(evidence: Evidence, version: int, started: float) -> None:
    """Let the debounced job run another time."""
    write(evidence, INDEXED, ["index", 2, "document", version])
    evidence.ledgers.events[INDEXED][-1] = replace(evidence.ledgers.events[INDEXED][-1], at=started)
    put(evidence, "index", attempt=2)
    evidence.ledgers.attempts["index"].append(
        Attempt("index", 2, "worker-1", "a", 1, version, started, started + 0.1, DONE)
    )


def start_index(evidence: Evidence, started: float) -> None:
    [attempt] = evidence.ledgers.attempts["index"]
    attempt.started, attempt.ended = started, started + 0.1
    evidence.ledgers.events[INDEXED] = [Record(started, INDEXED, "a", ["index", 1, "document", 2])]


def gather(evidence: Evidence, keys: list[str]) -> None:
    """Let a worker call a chunk of jobs of these keys."""
    evidence.ledgers.events[GATHERED] = [Record(10.2, GATHERED, "a", (keys,))]


FAMILIES = "families changed in part"
CLEAN_UPS = "clean-ups lost or repeated"
DEADLINES = "deadlines passed, or ends before them"
RETRIES = "retries of steps exceeded"
STREAMS = "items of streams lost or repeated"
MESSAGES = "messages lost or moved"
BROADCASTS = "broadcasts in part"
SEQUENCES = "sequences out of order"
DEBOUNCES = "debounced calls lost or moved"
CHUNKS = "chunks too large or mixed"

TAMPERED: dict[str, tuple[str, Callable[[Evidence], object]]] = {
    "a child escaped the cancellation": (FAMILIES, lambda it: put(it, "family:members:0", status="expired")),
    "a grandchild escaped it": (FAMILIES, lambda it: put(it, "family:branch:leaf", status="expired")),
    "a detached child was cancelled": (FAMILIES, lambda it: put(it, "family:booking", status="cancelled")),
    "a child of a detached child was cancelled": (
        FAMILIES,
        lambda it: put(it, "family:booking:receipt", status="cancelled"),
    ),
    "a harvest received the value of an earlier attempt": (
        FAMILIES,
        lambda it: it.ledgers.events[HARVESTED][0].details[2].__setitem__(0, "harvest:crops:0 0 a"),
    ),
    "a harvest received nothing": (FAMILIES, lambda it: it.ledgers.events[HARVESTED].clear()),
    "no clean-up": (CLEAN_UPS, lambda it: it.ledgers.events[CLEANED].clear()),
    "two clean-ups": (CLEAN_UPS, lambda it: write(it, CLEANED, ["another", "family", []])),
    "a clean-up of a job that had not begun": (CLEAN_UPS, lambda it: put(it, "family", attempt=0)),
    "a clean-up of a job that was not cancelled": (
        CLEAN_UPS,
        lambda it: write(it, CLEANED, ["another", "plain", []]),
    ),
    "a clean-up without a stored step": (
        CLEAN_UPS,
        lambda it: it.ledgers.events[CLEANED][0].details[2].clear(),
    ),
    "a clean-up that failed": (CLEAN_UPS, lambda it: put(it, "family:on_cancel", status="failed")),
    "a deadline passed long ago": (
        DEADLINES,
        lambda it: put(it, "bounded", finished=14.1 + MAX_OVERRUN_S),
    ),
    "an end before the deadline": (DEADLINES, lambda it: put(it, "bounded", finished=13.0)),
    "a job ended well in spite of its deadline": ("lost", lambda it: put(it, "bounded", status="cancelled")),
    "a call of a step too many": (RETRIES, lambda it: write(it, CALLED, ["unreliable", 1, BANK])),
    "a call of a step too few": (RETRIES, lambda it: it.ledgers.events[CALLED].pop()),
    "a gap in a stream": (STREAMS, lambda it: change_items(it, lambda items: items.pop(WORD_COUNT))),
    "the last item is lost": (
        STREAMS,
        lambda it: change_items(it, lambda items: items.pop(2 * WORD_COUNT + 1)),
    ),
    "an item is repeated": (STREAMS, lambda it: put_item(it, 4, "talker 2 a 1")),
    "an item of an earlier attempt behind one of a later attempt": (STREAMS, move_item),
    "an item that changed after it was read": (
        STREAMS,
        lambda it: read(it).items.__setitem__(3, (4, "word 5")),
    ),
    "an item that no reader got": (STREAMS, lambda it: read(it).items.pop(3)),
    "a reader that ended early": (STREAMS, lambda it: read(it).items.pop()),
    "a published value is lost": (STREAMS, lambda it: change_items(it, lambda items: items.pop())),
    "a published value of an earlier attempt": (
        STREAMS,
        lambda it: change_items(it, lambda items: items.append(StreamItem("talker", NAME, 0, "talker 1 a"))),
    ),
    "another message in a later attempt": (
        MESSAGES,
        lambda it: put_message(it, 0, "item 0"),
    ),
    "a message is lost": (
        MESSAGES,
        lambda it: it.requests["listener"].__setattr__(
            "messages", (Sent(ITEMS, "lost", True), *it.requests["listener"].messages)
        ),
    ),
    "a message is repeated": (
        MESSAGES,
        lambda it: put_message(it, 3, "item 0"),
    ),
    "messages in another order": (MESSAGES, move_messages),
    "a refused message was received": (
        MESSAGES,
        lambda it: put_message(it, 1, "refused"),
    ),
    "a mailbox without its last message": (MESSAGES, lambda it: it.ledgers.events[MESSAGE].pop()),
    "an attempt that passed over a message": (MESSAGES, lambda it: it.ledgers.events[MESSAGE].pop(2)),
    "a broadcast that reached fewer jobs": (
        BROADCASTS,
        lambda it: setattr(it.calls.broadcasts[1], "reached", 3),
    ),
    "a broadcast that reached more jobs": (
        BROADCASTS,
        lambda it: setattr(it.calls.broadcasts[1], "reached", 1),
    ),
    "a job with two values": (BROADCASTS, lambda it: write(it, NEWS_RECEIVED, ["guest 0", 2, "news 2"])),
    "a value that was not sent": (
        BROADCASTS,
        lambda it: it.calls.broadcasts.__setitem__(0, Broadcast("news 9", GUESTS, 0)),
    ),
    "two jobs of a sequence at once": (
        SEQUENCES,
        lambda it: setattr(it.ledgers.attempts["skip 1"][0], "started", 10.15),
    ),
    "a job of a sequence overtook another one": (
        SEQUENCES,
        lambda it: setattr(it.requests["skip 0"], "sequence", ("skip", 2)),
    ),
    "a job of a sequence started before another one ended": (
        SEQUENCES,
        lambda it: setattr(it.ledgers.attempts["skip 0"][0], "ended", None),
    ),
    "a stopped sequence continued by itself": (
        SEQUENCES,
        lambda it: setattr(it.requests["stop 0"], "resumed_at", None),
    ),
    "a stopped sequence continued before it was resumed": (
        SEQUENCES,
        lambda it: setattr(it.requests["stop 0"], "resumed_at", 12.2),
    ),
    "the last version did not run": (DEBOUNCES, lambda it: it.ledgers.events[INDEXED].clear()),
    "an earlier version ran last": (DEBOUNCES, lambda it: run_version(it, 1, 13.0)),
    "a debounced job began while calls came": (DEBOUNCES, lambda it: start_index(it, 10.7)),
    "a debounced job began long after its longest wait": (DEBOUNCES, lambda it: start_index(it, 13.2)),
    "a chunk got a job too many": (CHUNKS, lambda it: gather(it, ["key 1"] * (CHUNK_SIZE + 1))),
    "a chunk got jobs of two keys": (CHUNKS, lambda it: gather(it, ["key 1", "key 2"])),
    "a chunk got no job": (CHUNKS, lambda it: gather(it, [])),
}


def test_checker_passes_when_every_guarantee_of_workflows_held() -> None:
    assert broken(workflows()) == []


@pytest.mark.parametrize("case", TAMPERED)
def test_checker_reports_each_broken_guarantee_of_workflows(case: str) -> None:
    guarantee, tamper = TAMPERED[case]
    evidence = workflows()
    tamper(evidence)
    assert broken(evidence) == [guarantee]


@pytest.mark.parametrize("moved", [False, True])
def test_checker_judges_the_end_of_a_job_by_its_true_time(moved: bool) -> None:
    evidence = workflows()
    put(evidence, "bounded", finished=14.2 + 90)
    if moved:
        evidence.faults = [*evidence.faults, Fault(SERVER_CLOCK, SERVER, 14.0, 15.0, 90.0)]
    assert broken(evidence) == ([] if moved else [DEADLINES])


@pytest.mark.parametrize("years", [False, True])
def test_checker_accepts_a_reader_of_a_job_that_was_deleted_while_the_clock_was_years_ahead(
    years: bool,
) -> None:
    evidence = workflows()
    read(evidence).items.pop()
    if years:
        evidence.faults = [*evidence.faults, Fault(SERVER_CLOCK_YEARS, SERVER, 11.0, 11.5, 9 * YEAR_S)]
    assert broken(evidence) == ([] if years else [STREAMS])


@pytest.mark.parametrize("is_known", [False, True])
def test_checker_accepts_an_earlier_version_whose_call_may_have_been_committed_late(is_known: bool) -> None:
    evidence = workflows()
    if not is_known:
        evidence.calls.debounced["document"][0].ended = None
    run_version(evidence, 1, 13.0)
    assert broken(evidence) == ([DEBOUNCES] if is_known else [])


def test_checker_accepts_a_call_of_a_step_that_a_crash_repeated() -> None:
    evidence = workflows()
    evidence.ledgers.attempts["unreliable"].insert(
        0, Attempt("unreliable", 1, "worker-1", "a", 1, 0, 10.0, None, None)
    )
    evidence.ledgers.attempts["unreliable"][1].attempt = 2
    put(evidence, "unreliable", attempt=2)
    evidence.deaths = {1: 10.05}
    write(evidence, CALLED, ["unreliable", 2, BANK])
    assert broken(evidence) == []


@pytest.mark.parametrize("moved", [False, True])
def test_checker_judges_no_order_of_a_job_that_was_added_by_a_wrong_clock(moved: bool) -> None:
    evidence = workflows()
    [attempt] = evidence.ledgers.attempts["skip 0"]
    attempt.started, attempt.ended = 10.5, 10.6
    if moved:
        put(evidence, "skip 0", created=100.0)
    assert broken(evidence) == ([] if moved else [SEQUENCES])


@pytest.mark.parametrize("is_compared", [False, True])
def test_checker_accepts_an_early_end_only_until_the_worker_has_compared_its_clock(is_compared: bool) -> None:
    evidence = workflows()
    put(evidence, "bounded", finished=13.0)
    ended = 12.5 - (evidence.lease if is_compared else 0)
    evidence.faults = [*evidence.faults, Fault(WORKER_CLOCK, "worker-2", 5.0, ended, 300.0)]
    assert broken(evidence) == ([DEADLINES] if is_compared else [])
