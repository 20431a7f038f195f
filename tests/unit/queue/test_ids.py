"""Generated ids: order, uniqueness and UUID version 7."""

from __future__ import annotations

import time
import uuid

import pytest

from pg_scheduler.queue import prepare
from pg_scheduler.queue.prepare import new_job_id, new_job_ids


def test_job_ids_are_unique_and_sort_by_creation() -> None:
    made = [new_job_id() for _ in range(20_000)]
    assert len(set(made)) == len(made)
    assert made == sorted(made)


def test_job_ids_are_unique_and_sort_by_creation_when_made_in_one_call() -> None:
    before = new_job_id()
    many = new_job_ids(3)
    made = [before, next(many), new_job_id(), *many, new_job_id()]
    assert len(made) == 6
    assert made == sorted(set(made))
    assert all(uuid.UUID(each).version == 7 for each in made)
    assert len({each[19:] for each in new_job_ids(10_000)}) == 10_000
    assert {each[19] for each in new_job_ids(1000)} == set("89ab")
    assert list(new_job_ids(0)) == []


def test_job_id_is_a_uuid_of_version_7_with_the_current_time() -> None:
    before = time.time_ns() // 1_000_000
    text = new_job_id()
    after = time.time_ns() // 1_000_000
    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert before <= parsed.int >> 80 <= after + 20  # a flood of ids runs ahead of the clock a little


def test_job_ids_keep_their_order_when_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_job_id()
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    second, third = new_job_id(), new_job_id()
    assert first < second < third


def test_job_ids_of_two_processes_differ_when_made_at_the_same_instant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)
    made = set()
    for _ in range(100):
        monkeypatch.setattr(prepare, "_last_timestamp", 0)
        made.add(new_job_id())
    assert len(made) == 100
    assert len({each[:18] for each in made}) == 1
