"""Events as text for other nodes: what is carried, what is left out, and what is ignored."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler import events
from pg_scheduler.cluster_events.wire import carried_kinds, decode, encode, names_of, without_details
from pg_scheduler.events import Event, JobCompleted, JobEvent, JobFailed, JobRetried, JobStarted
from pg_scheduler.events.types import LOCAL
from tests.support.cases import each_case
from tests.unit.events.test_log import RECORDS

LEFT_OUT = {"stack": "", "exception": None, "hint": None}
DUE = datetime(2030, 1, 1, 9, 30, tzinfo=UTC)


def carried() -> list[Event]:
    return [event for event, *_ in RECORDS if type(event) not in LOCAL]


def test_every_class_is_carried_or_concerns_one_process() -> None:
    assert {type(event).__name__ for event in carried()} == set(carried_kinds())
    assert {kind.__name__ for kind in LOCAL} == {
        *("EventsDropped", "EventsMissed", "JobScheduled", "KeeperConnected", "KeeperLost"),
        *("ListenerConnected", "ListenerLost", "PassFinished", "ServiceRetrying"),
    }
    assert not {kind.__name__ for kind in LOCAL} & set(carried_kinds())


@each_case("event", carried(), ids=lambda event: type(event).__name__)
def test_event_is_the_same_on_another_node_but_for_errors_and_stacks(event: Event) -> None:
    text = encode(event)
    assert text.isascii()
    (copy,) = decode(f"[{text}]")
    assert type(copy) is type(event)
    for each in fields(event):
        expected = getattr(event, each.name)
        if isinstance(expected, BaseException):
            assert str(getattr(copy, each.name)) == f"{type(expected).__name__}: {expected}"
        else:
            assert getattr(copy, each.name) == (expected if each.repr else LEFT_OUT[each.name]), each.name


def test_error_is_cut_and_the_exception_is_left_out() -> None:
    event = JobFailed("id", "name", 1, error="ö" * 100_000, exception=ValueError("secret"))
    copy = without_details(event)
    assert copy == JobFailed("id", "name", 1, error="ö" * 200)
    assert isinstance(copy, JobFailed)
    assert copy.exception is None
    assert len(encode(event)) < 2_000


def test_ids_and_names_are_whole_and_long_lists_are_cut() -> None:
    event = JobCompleted("i" * 500, "n" * 500, 1)
    assert without_details(event) == event
    blocked = events.JobBlocked("id", "name", 1, f"limit:{'n' * 200}:{'k' * 200}")
    assert without_details(blocked) == blocked
    many = events.JobsReclaimed(tuple(map(str, range(60))), ("w",))
    assert without_details(many) == events.JobsReclaimed(tuple(map(str, range(50))), ("w",))


def test_event_with_a_number_that_json_cannot_carry_is_not_sent() -> None:
    assert without_details(events.LoopBlocked(None, None, float("inf"), stack="line")) is None


def test_names_of_a_base_class_are_those_of_its_subclasses() -> None:
    assert names_of([JobFailed]) == {"JobFailed", "JobDeadlineExceeded"}
    assert {"JobFailed", "JobStarted"} < names_of([JobEvent]) < names_of([Event]) == set(carried_kinds())
    assert names_of([events.PassFinished]) == set()


def test_field_of_a_newer_version_is_ignored() -> None:
    text = '[["JobCompleted",{"job_id":"a","job_name":"b","attempt":1,"new":[1]}],["NewEvent",{}]]'
    assert decode(text) == [JobCompleted("a", "b", 1)]


def test_event_that_is_no_event_here_has_no_copy() -> None:
    assert without_details(events.PassFinished("claimer", 1.0, 1.0)) is None


GOOD: dict[str, Any] = {"job_id": "a", "job_name": "b", "attempt": 1, "error": "e", "delay": 1.5}


@each_case(
    "values",
    [
        {"job_id": None},
        {"job_id": 1},
        {"attempt": True},
        {"attempt": "1"},
        {"attempt": 2**63},
        {"attempt": 1.0},
        {"error": ["e"]},
        {"delay": 1e300},
        {"delay": "1"},
        {"delay": False},
    ],
    ids=str,
)
def test_event_with_a_wrong_value_is_ignored(values: dict[str, Any]) -> None:
    text = json.dumps([["JobRetried", GOOD | values], ["JobRetried", GOOD]])
    assert decode(text) == [JobRetried("a", "b", 1, error="e", delay=timedelta(seconds=1.5))]


@each_case(
    ("kind", "values"),
    [
        (
            "JobStarted",
            {"job_id": "a", "job_name": "b", "attempt": 1, "execution_time": "2030-01-01T00:00:00"},
        ),
        ("JobStarted", {"job_id": "a", "job_name": "b", "attempt": 1, "execution_time": "soon"}),
        ("JobCompleted", {"job_name": "b", "attempt": 1}),
        ("KeeperConnected", {"has_lock": True}),
        ("ScheduleMissed", {"schedule_id": "a", "fire_times": 1, "is_exact": 1}),
        ("JobsReclaimed", {"job_ids": "abc", "dead_workers": []}),
        ("JobsReclaimed", {"job_ids": [1], "dead_workers": []}),
        ("JobsVacuumed", {"completed": "many"}),
        ("Event", {}),
        ("object", {}),
    ],
)
def test_event_that_cannot_be_made_is_ignored(kind: str, values: dict[str, Any]) -> None:
    assert decode(json.dumps([[kind, values]])) == []


@each_case(
    "text",
    ["", "null", "{}", "[", "[" * 7_990, "[NaN]", "[Infinity]", '"x"', "[1]", "[[]]", '[["JobFailed"]]',
     '[["JobFailed",[]]]', "[" + "9" * 7_000 + "]", '[[["a"],{}]]', "\u202e\x00"],
    ids=lambda text: text[:12] or "empty",
)  # fmt: skip
def test_text_that_is_no_array_of_events_is_ignored(text: str) -> None:
    assert decode(text) == []


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_decoding_never_raises(value: Any) -> None:
    assert decode(json.dumps(value)) == []
    for name in carried_kinds():
        fields = dict.fromkeys(
            ["job_id", "job_name", "attempt", "worker_id", "execution_time", "error", "delay", "job_ids"],
            value,
        )
        for event in decode(json.dumps([[name, fields]])):
            assert isinstance(event, Event)


def test_instant_keeps_its_offset() -> None:
    event = JobStarted("a", "b", 1, DUE)
    assert without_details(event) == event
