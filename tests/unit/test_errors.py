"""Errors with attributes of their own."""

from __future__ import annotations

from pg_scheduler.errors import JobConflictError


def test_job_conflict_error_contains_id_and_status_of_the_existing_job() -> None:
    error = JobConflictError("id", "running")
    assert (error.job_id, error.status) == ("id", "running")
    assert "job id 'id' already exists with status 'running'" in str(error)


def test_job_conflict_error_has_no_status_when_the_id_occurs_twice_in_one_call() -> None:
    error = JobConflictError("id", None)
    assert error.status is None
    assert "occurs more than once in this call" in str(error)
