"""JobPreparer: from a JobSpec to a row, with the defaults of the function and the Scheduler."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.model import JobPriority
from pg_scheduler.jobs.rows import EPOCH
from pg_scheduler.jobs.task import JobSpec, have_common_options
from pg_scheduler.queue.prepare import JobPreparer
from tests.support.cases import each_case
from tests.support.inside import JOB_OPTIONS, ExtendedJob, GeneratedIdJob, PlainJob, TaskOptions, TaskRegistry

DUE = datetime(2030, 1, 1, 12, tzinfo=UTC)


async def work(*args: object, **kwargs: object) -> None: ...


async def other() -> None: ...


NAME = f"{work.__module__}.work"


@pytest.fixture
def tasks() -> TaskRegistry:
    return TaskRegistry()


@pytest.fixture
def preparer(tasks: TaskRegistry) -> JobPreparer:
    return JobPreparer(tasks, misfire_grace_time=300, max_payload_bytes=100)


def prepared(preparer: JobPreparer, *specs: JobSpec) -> list[PlainJob]:
    """Return the rows of jobs, which are plain."""
    jobs = preparer.prepare(specs)
    assert all(isinstance(job, PlainJob) for job in jobs)
    return cast("list[PlainJob]", jobs)


def named(preparer: JobPreparer, name: Any, **values: Any) -> PlainJob:
    (job,) = preparer.prepare([JobSpec(name, DUE, **values)], allows_names=True)
    assert isinstance(job, PlainJob)
    return job


def test_prepare_fills_in_every_default(preparer: JobPreparer) -> None:
    (job,) = preparer.prepare([JobSpec(work, DUE)])
    assert isinstance(job, GeneratedIdJob)
    assert job == PlainJob(
        job_id=job.job_id,
        task_data='{"args":[],"kwargs":{}}',
        execution_time=DUE,
        job_name=NAME,
        priority=5,
        max_retries=0,
        misfire_grace_time=300,
        timeout_seconds=3600.0,
    )


@pytest.mark.parametrize(
    ("options", "given", "grace"),
    [({}, {}, None), ({}, {"misfire_grace_time": 9}, 9), ({"misfire_grace_time": 7}, {}, 7)],
)
def test_job_without_a_time_has_the_grace_of_the_call_or_the_task_only(
    preparer: JobPreparer, tasks: TaskRegistry, options: dict[str, Any], given: dict[str, Any], grace: object
) -> None:
    tasks.register(work, options=TaskOptions(**options))
    timed, now = JobSpec(work, DUE, **given), JobSpec(work, **given)
    of_timed = given.get("misfire_grace_time", options.get("misfire_grace_time", 300))
    for _ in range(2):  # the preparer keeps the options of the last job
        jobs = preparer.prepare([timed, now, timed, now, now], allows_now=True)
        assert [job.execution_time for job in jobs] == [DUE, EPOCH, DUE, EPOCH, EPOCH]
        assert [job.misfire_grace_time for job in jobs if isinstance(job, PlainJob)] == [
            of_timed,
            grace,
            of_timed,
            grace,
            grace,
        ]


def test_prepare_raises_when_a_job_that_needs_a_time_has_none(preparer: JobPreparer) -> None:
    with pytest.raises(TypeError, match="execution_time must be a datetime, not NoneType"):
        preparer.prepare([JobSpec(work)])


def test_prepare_keeps_every_given_value(preparer: JobPreparer) -> None:
    spec = JobSpec(
        work,
        DUE.astimezone(ZoneInfo("Asia/Tokyo")),
        args=(1,),
        kwargs={"a": None},
        priority=JobPriority.CRITICAL,
        max_retries=3,
        job_id="mine",
        misfire_grace_time=None,
        timeout=timedelta(seconds=5),
    )
    (job,) = preparer.prepare([spec])
    assert type(job) is PlainJob
    assert job == PlainJob("mine", '{"args":[1],"kwargs":{"a":null}}', DUE, NAME, 1, 3, None, 5.0)
    assert job.execution_time.tzinfo is UTC


def test_prepare_uses_the_defaults_of_the_function_before_those_of_the_scheduler(
    preparer: JobPreparer, tasks: TaskRegistry
) -> None:
    tasks.register(work, name="app.work", options=TaskOptions(timeout=None, misfire_grace_time=7))
    (job,) = prepared(preparer, JobSpec(work, DUE))
    assert (job.job_name, job.timeout_seconds, job.misfire_grace_time) == ("app.work", None, 7)
    (job,) = prepared(preparer, JobSpec(work, DUE, misfire_grace_time=9, timeout=1))
    assert (job.timeout_seconds, job.misfire_grace_time) == (1.0, 9)


@pytest.mark.parametrize(
    "change",
    [
        {"func": other},
        {"execution_time": DUE + timedelta(seconds=1)},
        {"priority": JobPriority.LOW},
        {"max_retries": 1},
        {"misfire_grace_time": None},
        {"timeout": None},
        {"args": (1,)},
        {"job_id": "mine"},
    ],
)
def test_prepare_applies_a_value_that_differs_from_the_previous_spec(
    preparer: JobPreparer, change: dict[str, Any]
) -> None:
    first = JobSpec(work, DUE)
    changed = replace(first, **change)
    alone = [prepared(preparer, spec)[0][1:] for spec in (first, changed, first)]
    assert [job[1:] for job in prepared(preparer, first, changed, first)] == alone


def test_calls_of_several_tasks_share_what_follows_from_each(preparer: JobPreparer) -> None:
    kept = timedelta(days=1)
    specs = [JobSpec(func, due, keep_result=kept) for func in (work, other) for due in (DUE, None)]
    first, second = ([preparer.prepare([spec], allows_now=True)[0] for spec in specs] for _ in range(2))
    for job, again in zip(first, second, strict=True):
        assert isinstance(job, ExtendedJob)
        assert isinstance(again, ExtendedJob)
        assert again.extras is job.extras


def test_calls_with_equal_options_share_what_follows_from_them(preparer: JobPreparer) -> None:
    first, second = (
        preparer.prepare([JobSpec(work, DUE, keep_result=timedelta(days=1), timeout=5.0)])[0]
        for _ in range(2)
    )
    assert isinstance(first, ExtendedJob)
    assert isinstance(second, ExtendedJob)
    assert second.extras is first.extras


def test_prepare_checks_a_value_of_another_type_that_equals_the_one_before(preparer: JobPreparer) -> None:
    preparer.prepare([JobSpec(work, DUE, max_retries=1)])
    with pytest.raises(TypeError, match="max_retries must be an int, not bool: True"):
        preparer.prepare([JobSpec(work, DUE, max_retries=True)])


class Same(timedelta):
    """A span that equals any other."""

    __hash__ = timedelta.__hash__

    def __eq__(self, _: object) -> bool:
        return True


def test_prepare_does_not_ask_a_class_of_the_application_whether_a_value_is_the_one_before(
    preparer: JobPreparer,
) -> None:
    for seconds in (5, 9):
        (job,) = prepared(preparer, JobSpec(work, DUE, timeout=Same(seconds=seconds)))
        assert job.timeout_seconds == seconds


@pytest.mark.parametrize("option", JOB_OPTIONS)
def test_specs_share_no_options_when_one_option_differs(option: str) -> None:
    spec = JobSpec(work, DUE)
    assert have_common_options(spec, JobSpec(work, DUE, args=(1,)))
    assert not have_common_options(spec, replace(spec, **{option: object()}))  # type: ignore[arg-type]


def test_prepare_registers_the_functions(preparer: JobPreparer, tasks: TaskRegistry) -> None:
    assert tasks.resolve(NAME) is None
    preparer.prepare([JobSpec(work, DUE)])
    task = tasks.resolve(NAME)
    assert task
    assert task.func is work


def test_prepare_returns_ids_in_order_and_nothing_for_no_specs(preparer: JobPreparer) -> None:
    ids = [job.job_id for job in preparer.prepare([JobSpec(work, DUE)] * 20)]
    assert ids == sorted(set(ids))
    assert preparer.prepare([]) == []


@each_case(
    ("change", "error", "rule"),
    [
        ({"func": len}, TypeError, "Expected an async function"),
        ({"execution_time": DUE.replace(tzinfo=None)}, ValueError, "has no time zone; use"),
        ({"args": ({1},)}, PayloadError, r"args\[0\] is a builtins\.set"),
        ({"args": ("x" * 100,)}, PayloadError, "more than max_payload_bytes = 100"),
        ({"priority": 5}, TypeError, "priority must be a JobPriority, not int: 5"),
        ({"max_retries": -1}, ValueError, "max_retries must be between 0 and"),
        ({"job_id": ""}, ValueError, "job_id must not be empty"),
        ({"misfire_grace_time": -1}, ValueError, "misfire_grace_time must be between 0 and"),
        ({"timeout": 0}, ValueError, "timeout must be more than 0"),
    ],
)
def test_prepare_raises_when_a_value_of_any_spec_is_invalid(
    preparer: JobPreparer, change: dict[str, Any], error: type[Exception], rule: str
) -> None:
    valid = JobSpec(work, DUE)
    for specs in ([replace(valid, **change)], [valid, replace(valid, **change)]):
        with pytest.raises(error, match=rule):
            preparer.prepare(specs)


def test_prepare_raises_type_error_when_a_job_is_not_a_spec(preparer: JobPreparer) -> None:
    with pytest.raises(TypeError, match="a job must be a JobSpec, not dict"):
        preparer.prepare([JobSpec(work, DUE), {}])  # type: ignore[list-item]


def test_prepare_uses_the_defaults_of_a_name_when_its_function_is_registered(
    preparer: JobPreparer, tasks: TaskRegistry
) -> None:
    job = named(preparer, "elsewhere.run")
    assert isinstance(job, GeneratedIdJob)
    assert (job.job_name, job.timeout_seconds, job.misfire_grace_time) == ("elsewhere.run", 3600.0, 300)
    tasks.register(work, aliases=["old"], options=TaskOptions(timeout=5, misfire_grace_time=None))
    job = named(preparer, "old", job_id="mine")
    assert (job.job_id, job.job_name, job.timeout_seconds, job.misfire_grace_time) == (
        "mine",
        "old",
        5.0,
        None,
    )


def test_prepare_raises_when_the_arguments_of_a_name_are_too_large(preparer: JobPreparer) -> None:
    with pytest.raises(PayloadError, match="more than max_payload_bytes = 100"):
        named(preparer, "elsewhere.run", args=["x" * 100])
