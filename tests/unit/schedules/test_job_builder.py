"""Builders of the jobs of schedules, which are remembered while what they follow from is the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pg_scheduler.errors import PayloadError
from pg_scheduler.schedules import job_builder
from pg_scheduler.schedules.job_builder import JobBuilders
from tests.support.inside import TaskOptions, TaskRegistry
from tests.support.store import NOW, SECOND, new_schedule


async def work(number: int = 0) -> None:
    """Do nothing."""


@pytest.fixture
def tasks() -> TaskRegistry:
    tasks = TaskRegistry()
    tasks.register(work, name="work")
    return tasks


@pytest.fixture
def jobs(tasks: TaskRegistry) -> JobBuilders:
    return JobBuilders(tasks, misfire_grace_time=300)


def test_builder_is_the_same_for_a_row_that_only_advanced(jobs: JobBuilders) -> None:
    first = jobs.builder(new_schedule(task="work"))
    assert jobs.builder(new_schedule(task="work", next_fire_at=NOW + 2 * SECOND, runs=1)) is first
    assert jobs.builder(new_schedule("other", task="work")) is not first


@pytest.mark.parametrize(
    "changes",
    [
        {"owner": "code"},
        {"task": "unknown"},
        {"job_name": "name"},
        {"use_advisory_lock": True},
        {"trigger": '{"kind": "fixed_delay", "delay": "PT1H"}'},
        {"task_data": '{"args": [1], "kwargs": {}}'},
        {"options": '{"max_retries": 2}'},
        {"metadata": '{"team": "x"}'},
        {"pause_after_failures": 3},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_builder_is_another_one_after_an_edit(jobs: JobBuilders, changes: Mapping[str, Any]) -> None:
    row, edited = new_schedule(task="work"), new_schedule(**{"task": "work", **changes})
    before = jobs.builder(row).fire_time_job(NOW, NOW, NOW)
    assert jobs.builder(edited).fire_time_job(NOW, NOW, NOW) != before
    assert jobs.builder(row).fire_time_job(NOW, NOW, NOW) == before


def test_builder_is_another_one_after_the_task_was_registered_again(
    jobs: JobBuilders, tasks: TaskRegistry
) -> None:
    row = new_schedule(task="work")
    assert jobs.builder(row).common_row.max_retries == 0
    tasks.register(work, name="work", options=TaskOptions(max_retries=7))
    assert jobs.builder(row).common_row.max_retries == 7


def test_builder_rejects_invalid_arguments_each_time(jobs: JobBuilders) -> None:
    for _ in range(2):
        with pytest.raises(PayloadError, match="'args'"):
            jobs.builder(new_schedule(task="work", task_data='{"args": 1}'))


def test_builder_of_typed_arguments_or_of_long_ones_is_not_remembered(
    jobs: JobBuilders, tasks: TaskRegistry
) -> None:
    text = "x" * job_builder.MAX_REMEMBERED_LENGTH
    long = new_schedule(task="work", metadata=f'{{"text": "{text}"}}')
    assert jobs.builder(long) is not jobs.builder(long)
    padded = new_schedule(task="work", trigger=f'{{"kind": "fixed_delay", "delay": "PT1H"{" " * len(text)}}}')
    assert jobs.builder(padded) is not jobs.builder(padded)
    tasks.register(work, name="work", options=TaskOptions(typed=True))
    short = new_schedule(task="work")
    assert jobs.builder(short) is not jobs.builder(short)


def test_builders_of_a_limited_number_of_schedules_are_remembered(
    jobs: JobBuilders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_builder, "MAX_BUILDERS", 2)
    first = jobs.builder(new_schedule("0", task="work"))
    for number in range(3):
        jobs.builder(new_schedule(str(number), task="work"))
    assert jobs.builder(new_schedule("0", task="work")) is not first
    assert len(jobs._builders) <= 2
