"""The values of a job, and the validation of parameters."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pg_scheduler.base.status import JobStatus
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.model import UNSET, ConflictResolution, JobCounts, JobPriority
from pg_scheduler.jobs.task import JobSpec
from pg_scheduler.jobs.validation import (
    MAX_ID_BYTES,
    MAX_INTEGER,
    check_count,
    check_execution_time,
    check_grace,
    check_job_id,
    check_kind,
    check_timeout,
)
from tests.support.cases import each_case


class OtherStatus(Enum):
    RUNNING = "running"
    LOST = "lost"


@pytest.mark.parametrize("status", JobStatus)
def test_job_status_parse_accepts_members_and_texts(status: JobStatus) -> None:
    assert JobStatus.parse(status) is status
    assert JobStatus.parse(status.value) is status
    assert str(status) == status.value


def test_job_status_parse_accepts_another_enum_with_the_same_text() -> None:
    assert JobStatus.parse(OtherStatus.RUNNING) is JobStatus.RUNNING


@pytest.mark.parametrize("status", ["", "done", " pending", None, 1, [], OtherStatus.LOST])
def test_job_status_parse_raises_with_the_valid_statuses_when_the_text_is_unknown(status: object) -> None:
    with pytest.raises(ValueError, match=r"status must be one of 'pending', .*, not ") as caught:
        JobStatus.parse(status)
    assert repr(status) in str(caught.value)
    assert all(repr(known.value) in str(caught.value) for known in JobStatus)


def test_is_finished_is_false_for_pending_and_running_only() -> None:
    assert [status for status in JobStatus if not status.is_finished] == [
        JobStatus.PENDING,
        JobStatus.RUNNING,
    ]


@pytest.mark.parametrize(
    ("priority", "text", "number"),
    [
        (JobPriority.CRITICAL, "critical", 1),
        (JobPriority.HIGH, "high", 3),
        (JobPriority.NORMAL, "normal", 5),
        (JobPriority.LOW, "low", 8),
    ],
)
def test_priority_converts_to_its_number_text_and_repr(priority: JobPriority, text: str, number: int) -> None:
    assert (priority.value, str(priority), priority.db_value) == (text, text, number)
    assert JobPriority(text) is JobPriority.from_db_value(number) is priority
    assert repr(priority) == f"<JobPriority.{priority.name}: {text} (db_value={number})>"


@pytest.mark.parametrize("number", [-1, 0, 2, 4, 9, 10**9])
def test_from_db_value_returns_normal_when_the_number_is_unknown(number: int) -> None:
    assert JobPriority.from_db_value(number) is JobPriority.NORMAL


def test_conflict_resolutions_have_the_values_of_0_2() -> None:
    assert {each.name: each.value for each in ConflictResolution} == {
        "RAISE": "raise",
        "IGNORE": "ignore",
        "REPLACE": "replace",
    }


def test_total_of_job_counts_is_the_sum_of_all_statuses() -> None:
    assert JobCounts().total == 0
    assert JobCounts(1, 2, 4, 8, 16, 32).total == 63


def test_unset_is_falsy_and_the_same_object_after_a_copy() -> None:
    assert not UNSET
    assert repr(UNSET) == "UNSET"
    assert copy.deepcopy(UNSET) is pickle.loads(pickle.dumps(UNSET)) is UNSET


def test_job_spec_has_the_documented_order_and_defaults() -> None:
    async def work() -> None: ...

    when = datetime(2030, 1, 1, tzinfo=UTC)
    spec = JobSpec(work, when)
    assert (spec.func, spec.execution_time, spec.args, spec.kwargs) == (work, when, (), {})
    assert (spec.priority, spec.max_retries, spec.job_id) == (UNSET, UNSET, None)
    assert spec.misfire_grace_time is UNSET
    assert spec.timeout is UNSET
    assert JobSpec(work, when).kwargs is not spec.kwargs
    assert JobSpec(work, when, (1,), {"a": 1}, JobPriority.LOW, 2, "id", None) == JobSpec(
        func=work,
        execution_time=when,
        args=(1,),
        kwargs={"a": 1},
        priority=JobPriority.LOW,
        max_retries=2,
        job_id="id",
        misfire_grace_time=None,
    )


def test_job_spec_rejects_an_attribute_that_is_no_option() -> None:
    async def work() -> None: ...

    spec = JobSpec(work, datetime(2030, 1, 1, tzinfo=UTC))
    with pytest.raises(AttributeError, match="max_retrys"):
        setattr(spec, "max_retrys", 3)  # noqa: B010 - type checkers reject the assignment too


@pytest.mark.parametrize(
    "job_id", ["a", " ", "🦉" * 10, "x" * MAX_ID_BYTES, "é" * (MAX_ID_BYTES // 2), "'; --"]
)
def test_check_job_id_returns_any_text_that_fits_into_the_index(job_id: str) -> None:
    assert check_job_id(job_id) == job_id


@each_case(
    ("job_id", "error", "rule"),
    [
        (None, TypeError, "must be a str, not NoneType"),
        (7, TypeError, "must be a str, not int: 7"),
        (b"id", TypeError, "must be a str, not bytes"),
        ("", ValueError, "must not be empty"),
        ("a\x00b", ValueError, r"'a\\x00b' contains a NUL character"),
        ("\ud800", ValueError, r"'\\ud800' contains a lone surrogate"),
        (
            "x" * (MAX_ID_BYTES + 1),
            ValueError,
            f"at most {MAX_ID_BYTES} bytes of UTF-8, not {MAX_ID_BYTES + 1}",
        ),
        ("🦉" * 501, ValueError, "not 2004"),
    ],
)
def test_check_job_id_raises_when_the_id_cannot_be_stored(
    job_id: object, error: type[Exception], rule: str
) -> None:
    with pytest.raises(error, match=rule):
        check_job_id(job_id)


@pytest.mark.parametrize(
    "zone", [UTC, ZoneInfo("Asia/Kathmandu"), timezone(timedelta(hours=-11, minutes=-30))]
)
def test_check_execution_time_returns_the_time_in_utc(zone: tzinfo) -> None:
    when = datetime(2030, 6, 1, 12, 30, 15, 123456, tzinfo=zone)
    checked = check_execution_time(when)
    assert checked == when
    assert checked.tzinfo is UTC


@pytest.mark.parametrize(("end", "sign"), [(datetime.max, -1), (datetime.min, 1)])  # noqa: DTZ901
def test_check_execution_time_raises_when_the_time_is_an_end_of_the_calendar(
    end: datetime, sign: int
) -> None:
    """asyncpg stores the ends as infinities, and returns those as naive times."""
    for zone in (UTC, timezone(sign * timedelta(hours=2))):
        with pytest.raises(ValueError, match="is out of range"):
            check_execution_time(end.replace(tzinfo=zone))
    inside = end.replace(tzinfo=UTC) + sign * timedelta(microseconds=1)
    assert check_execution_time(inside) == inside


class NoOffset(tzinfo):
    def utcoffset(self, _when: datetime | None) -> None:
        return None

    def dst(self, _when: datetime | None) -> None:
        return None

    def tzname(self, _when: datetime | None) -> None:
        return None


@pytest.mark.parametrize("zone", [None, NoOffset()])
def test_check_execution_time_raises_with_the_remedy_when_the_time_is_naive(zone: tzinfo | None) -> None:
    with pytest.raises(ValueError, match=r"2030-01-01T00:00:00 has no time zone; use datetime\.now\(UTC\)"):
        check_execution_time(datetime(2030, 1, 1, tzinfo=zone))


@pytest.mark.parametrize(
    "when",
    [
        datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2))),
        datetime(1, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_check_execution_time_raises_when_utc_cannot_represent_the_time(when: datetime) -> None:
    with pytest.raises(ValueError, match="is out of range in UTC"):
        check_execution_time(when)


@pytest.mark.parametrize(
    "when", ["2030-01-01T00:00:00Z", 1893456000, None, datetime(2030, 1, 1, tzinfo=UTC).date()]
)
def test_check_execution_time_raises_type_error_when_the_value_is_not_a_datetime(when: object) -> None:
    with pytest.raises(TypeError, match=f"must be a datetime, not {type(when).__name__}"):
        check_execution_time(when)


@pytest.mark.parametrize("count", [0, 1, MAX_INTEGER])
def test_check_count_returns_any_int_that_fits_into_the_column(count: int) -> None:
    assert check_count("max_retries", count) == count


@pytest.mark.parametrize("count", [True, False, 1.0, "1", None])
def test_check_count_raises_type_error_when_the_value_is_not_an_int(count: object) -> None:
    with pytest.raises(TypeError, match=f"max_retries must be an int, not {type(count).__name__}: {count!r}"):
        check_count("max_retries", count)


@pytest.mark.parametrize(("count", "least"), [(-1, 0), (0, 1), (MAX_INTEGER + 1, 0)])
def test_check_count_raises_when_the_value_is_out_of_range(count: int, least: int) -> None:
    rule = f"max_retries must be between {least} and {MAX_INTEGER}, not {count}"
    with pytest.raises(ConfigurationError, match=rule):
        check_count("max_retries", count, least=least)


def test_check_grace_accepts_a_count_or_none() -> None:
    assert check_grace(None) is None
    assert check_grace(0) == 0
    with pytest.raises(ConfigurationError, match="misfire_grace_time must be between 0 and"):
        check_grace(-1)
    with pytest.raises(TypeError, match="misfire_grace_time must be an int"):
        check_grace(True)


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(None, None), (1, 1.0), (0.25, 0.25), (timedelta(minutes=2), 120.0)]
)
def test_check_timeout_returns_seconds_or_none(timeout: Any, seconds: float | None) -> None:
    assert check_timeout(timeout) == seconds


@pytest.mark.parametrize("timeout", [0, -1, 0.0, timedelta(0), float("inf"), float("nan"), 10**400])
def test_check_timeout_raises_when_the_value_is_out_of_range(timeout: object) -> None:
    with pytest.raises(
        ConfigurationError, match=r"more than 0 seconds and finite, not .*; pass None for no limit"
    ):
        check_timeout(timeout)


@pytest.mark.parametrize("timeout", ["5", True, UNSET])
def test_check_timeout_raises_type_error_when_the_value_is_not_a_duration(timeout: object) -> None:
    with pytest.raises(TypeError, match=f"not {type(timeout).__name__}"):
        check_timeout(timeout)


def test_check_kind_raises_type_error_when_the_class_is_wrong() -> None:
    assert check_kind("priority", JobPriority.LOW, JobPriority) is JobPriority.LOW
    with pytest.raises(TypeError, match="priority must be a JobPriority, not int: 5"):
        check_kind("priority", 5, JobPriority)
