"""Metadata of jobs: their place in task_data, their limits, and what is read of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from pg_scheduler import JobSpec, PayloadError, job
from pg_scheduler.jobs.metadata import (
    check_metadata,
    metadata_of,
    trace_from,
    with_metadata,
    with_trace,
)
from pg_scheduler.jobs.payload import decode, encode
from pg_scheduler.queue.prepare import JobPreparer
from tests.support.cases import each_case
from tests.support.inside import TaskOptions, TaskRegistry

DUE = datetime(2030, 1, 1, tzinfo=UTC)


async def work(*_args: object) -> None: ...


def prepared(
    metadata: Any, *, of_task: Any = None, limit: int | None = None, args: tuple[Any, ...] = ()
) -> list[str]:
    """Return the task_data of a job that was prepared by its function, and by its name."""
    tasks = TaskRegistry()
    tasks.register(work, options=TaskOptions(metadata=of_task))
    preparer = JobPreparer(tasks, misfire_grace_time=None, max_payload_bytes=limit)
    (one,) = preparer.prepare([JobSpec(work, DUE, args=args, metadata=metadata)])
    name: Any = f"{__name__}.work"
    (other,) = preparer.prepare([JobSpec(name, DUE, args=args, metadata=metadata)], allows_names=True)
    return [one.task_data, other.task_data]


@pytest.mark.parametrize("metadata", [None, {}])
def test_task_data_of_a_job_without_metadata_are_its_arguments_alone(metadata: Any) -> None:
    assert prepared(metadata, args=(1,)) == [encode((1,), {})] * 2 == ['{"args":[1],"kwargs":{}}'] * 2


def test_metadata_are_the_third_key_of_task_data() -> None:
    (text, other) = prepared({"tenant": 7}, args=("é",))
    assert text == other == '{"args":["\\u00e9"],"kwargs":{},"metadata":{"tenant":7}}'
    assert decode(text) == (("é",), {})
    assert metadata_of(text) == {"tenant": 7}


def test_metadata_of_task_and_job_are_merged_at_the_top_level() -> None:
    for text in prepared({"team": {"b": 2}, "tenant": 7}, of_task={"team": {"a": 1}, "area": "mail"}):
        assert metadata_of(text) == {"team": {"b": 2}, "tenant": 7, "area": "mail"}
    for text in prepared(None, of_task={"area": "mail"}):
        assert metadata_of(text) == {"area": "mail"}


def test_metadata_count_towards_the_size_limit() -> None:
    assert prepared({"a": 1}, limit=42)
    with pytest.raises(PayloadError, match=r"the arguments, with metadata, have 43 bytes .* = 42"):
        prepared({"a": 10}, limit=42)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ([], "metadata must be a dict, not list"),
        ("text", "metadata must be a dict, not str"),
        ({1: 2}, "metadata has the key 1, but JSON keys are str"),
        ({"a": {"b": DUE}}, r"metadata\['a'\]\['b'\] is a datetime.datetime, .* pass .isoformat\(\) of it"),
        ({"a": "\x00"}, r"metadata\['a'\] contains a NUL character"),
        ({"trace": {"traceparent": "00-1"}}, r"metadata\['trace'\] is reserved .* choose another key"),
    ],
)
def test_invalid_metadata_are_rejected_at_the_call(metadata: Any, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        prepared(metadata)
    with pytest.raises(PayloadError, match=message):
        job(metadata=metadata)(work)


def test_trace_context_of_another_program_is_accepted() -> None:
    trace = {"trace": {"traceparent": "00-1-2-03"}}
    assert check_metadata(trace, allows_trace=True) == trace


@pytest.mark.parametrize("trace", ["00-1", {"traceparent": 1}, {"a": "x" * 8192}, [], None])
def test_trace_context_is_rejected_unless_it_is_a_small_dict_of_strings(trace: Any) -> None:
    with pytest.raises(PayloadError, match="must be a dict of strings of at most 8192 bytes"):
        check_metadata({"trace": trace}, allows_trace=True)
    assert trace_from({"trace": trace}) is None


@pytest.mark.parametrize(
    ("args", "metadata"),
    [((), None), (({"metadata": {}},), None), ((1.5, "é"), {"tenant": 7}), (('"metadata":',), {"a": [{}]})],
)
def test_headers_are_added_to_any_task_data(args: Any, metadata: Any) -> None:
    trace = {"traceparent": "00-1-2-03", "baggage": "a=é"}
    for text in prepared(metadata, args=args):
        found = with_trace(text, trace)
        assert decode(found) == (args, {})
        assert metadata_of(found) == {**(metadata or {}), "trace": trace}
        assert with_trace(found, {"other": "x"}) == found


def test_headers_that_cannot_be_stored_are_rejected() -> None:
    text = encode((), {})
    with pytest.raises(PayloadError, match=r"headers of middleware have \d+ bytes of JSON, more than 8192"):
        with_trace(text, {"baggage": "x" * 8192})
    with pytest.raises(PayloadError, match="contains a NUL character"):
        with_trace(text, {"baggage": "\x00"})


def test_task_keeps_a_copy_of_its_metadata() -> None:
    given = {"tags": ["a"]}
    tasks = TaskRegistry()
    task = tasks.register(work, options=TaskOptions(metadata=given))
    given["tags"].append("b")
    assert task.metadata == {"tags": ["a"]}
    assert tasks.register(work, name="other").metadata == {"tags": ["a"]}
    assert tasks.register(work, options=TaskOptions(metadata={})).metadata == {}


@each_case(
    "task_data",
    [
        "{}",
        "[]",
        "null",
        '"text"',
        '{"metadata": [1]}',
        '{"metadata": null}',
        "[" + "1" * 5000 + "]",
        "[" * 9999,
    ],
    ids=range(8),
)
def test_metadata_are_empty_when_the_column_holds_something_else(task_data: str) -> None:
    assert metadata_of(task_data) == {}


def test_with_metadata_returns_json() -> None:
    assert json.loads(with_metadata("{}"[:1] + '"args":[]}', {"a": "}"}, None)) == {
        "args": [],
        "metadata": {"a": "}"},
    }
