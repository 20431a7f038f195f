"""The judgement about the health of a Scheduler, as a pure function of facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pg_scheduler.base.health import HealthFacts, State, WorkerFacts, judge
from tests.support.inside import Health

NOW = 10_000.0

WORKER = WorkerFacts(
    slots=25,
    slots_busy=3,
    runs_jobs=True,
    is_claiming=True,
    must_drain=False,
    claimed_at=NOW - 1,
    next_due_at=None,
    longest_sleep_s=2.0,
    heartbeat_at=NOW - 5,
    heartbeats_since=NOW - 5000,
    heartbeat_interval_s=20.0,
    lease_renewed_at=NOW - 5,
    lease_trusted_until=NOW + 49,
    lease_s=60.0,
    blocked_s=None,
    blocking_job=None,
    max_loop_block_s=600.0,
    listener=None,
    has_liveness_lock=True,
)


def health(state: State = "running", **changes: Any) -> Health:
    return judge(HealthFacts(NOW, state, None, replace(WORKER, **changes)))


def failed(found: Health) -> set[str]:
    return {each.name for each in found.checks if not each.is_ok}


def answers(found: Health) -> tuple[bool, bool, bool]:
    return found.live, found.ready, found.started


def text_of(found: Health, name: str) -> str:
    return next(each.text for each in found.checks if each.name == name)


def test_running_worker_is_live_ready_and_started() -> None:
    found = health()
    assert answers(found) == (True, True, True)
    assert failed(found) == set()
    assert (found.state, found.slots, found.slots_busy) == ("running", 25, 3)


def test_next_due_time_is_stated_while_a_slot_is_free() -> None:
    assert health().next_due_s is None
    assert health(next_due_at=NOW + 3).next_due_s == 3
    assert health(next_due_at=NOW - 3).next_due_s == 0
    assert health(next_due_at=NOW + 3, slots_busy=25).next_due_s is None
    until_9999_s = 2.5e11  # a job that waits for a signal without a timeout
    assert health(next_due_at=NOW + until_9999_s).next_due_s is None


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("starting", (True, False, False)),
        ("running", (True, True, True)),
        ("draining", (True, False, True)),
    ],
)
def test_worker_is_ready_only_while_it_runs(state: State, expected: tuple[bool, bool, bool]) -> None:
    assert answers(health(state)) == expected


def test_scheduler_without_parts_is_live_and_not_ready() -> None:
    found = judge(HealthFacts(NOW, "stopped", None, None))
    assert answers(found) == (True, False, False)
    assert (found.slots, found.slots_busy) == (0, 0)


@pytest.mark.parametrize("state", ["stopped", "draining"])
def test_scheduler_that_an_error_stopped_is_not_live(state: State) -> None:
    worker = None if state == "stopped" else WORKER
    found = judge(HealthFacts(NOW, state, "PoolClosedError", worker))
    assert not found.live
    assert text_of(found, "scheduler") == "stopped by PoolClosedError; the log has its traceback"


def test_loop_blocked_for_less_than_its_limit_is_live_and_not_ready() -> None:
    found = health(blocked_s=599.0, blocking_job=("mail.send", "order-1"))
    assert answers(found) == (True, False, True)
    assert failed(found) == {"claiming"}
    assert text_of(found, "event_loop") == "blocked for 599.0 s by job mail.send (id order-1)"


def test_loop_blocked_by_a_chunk_names_its_jobs() -> None:
    found = health(blocked_s=599.0, blocking_job=("mail.send", None))
    assert text_of(found, "event_loop") == "blocked for 599.0 s by a chunk of jobs mail.send"


def test_loop_blocked_beyond_its_limit_is_not_live() -> None:
    found = health(blocked_s=600.5)
    assert not found.live
    assert text_of(found, "event_loop") == "blocked for 600.5 s, not by a job"


def test_claimer_without_a_pass_is_not_live_beyond_three_polls_and_30_seconds() -> None:
    assert health(claimed_at=NOW - 35.9).live
    found = health(claimed_at=NOW - 36.1)
    assert not found.live
    assert failed(found) == {"claims"}


def test_claimer_without_a_pass_is_live_while_the_database_does_not_answer() -> None:
    found = health(claimed_at=NOW - 900, heartbeat_at=NOW - 900, lease_renewed_at=NOW - 900)
    assert found.live
    assert failed(found) == {"database"}


def test_claimer_without_a_pass_is_live_just_after_the_database_answers_again() -> None:
    assert health(claimed_at=NOW - 900, heartbeat_at=NOW - 0.1, heartbeats_since=NOW - 0.1).live


def test_claimer_without_a_pass_is_live_while_a_job_blocks_the_loop_within_its_limit() -> None:
    """The lease keeper renews the lease meanwhile, so the database is known to be available."""
    found = health(claimed_at=NOW - 300, heartbeat_at=NOW - 300, lease_renewed_at=NOW - 5, blocked_s=300.0)
    assert found.live
    assert failed(found) == {"claiming"}


def test_long_lease_gives_the_claimer_more_time() -> None:
    """Heartbeats are rare then, so a block of the loop is noticed late."""
    assert health(claimed_at=NOW - 100, heartbeat_interval_s=200.0).live
    assert not health(claimed_at=NOW - 307, heartbeat_interval_s=200.0).live


def test_worker_without_a_trusted_lease_is_not_ready() -> None:
    found = health(lease_trusted_until=float("-inf"))
    assert answers(found) == (True, False, True)
    assert failed(found) == {"lease"}


def test_worker_is_not_ready_when_the_database_has_not_answered_for_a_lease() -> None:
    assert health(heartbeat_at=NOW - 59, lease_renewed_at=NOW - 59).ready
    found = health(heartbeat_at=NOW - 61, lease_renewed_at=NOW - 61)
    assert answers(found) == (True, False, True)
    assert not failed(health(heartbeat_at=NOW - 61, lease_renewed_at=NOW - 1))  # the keeper renews
    never = health(heartbeat_at=float("-inf"), lease_renewed_at=float("-inf"))
    assert text_of(never, "database") == "no heartbeat succeeded"


def test_worker_whose_claimer_has_ended_is_not_ready() -> None:
    found = health(is_claiming=False)
    assert failed(found) == {"claiming"}
    assert text_of(found, "claiming") == "no jobs are claimed"


def test_role_without_jobs_is_ready_without_claims() -> None:
    found = health(runs_jobs=False, is_claiming=False, claimed_at=0.0, slots=0, slots_busy=0)
    assert answers(found) == (True, True, True)
    assert "claims" not in {each.name for each in found.checks}


def test_listener_and_liveness_lock_fail_no_probe() -> None:
    found = health(listener="the pool is too small", has_liveness_lock=False)
    assert answers(found) == (True, True, True)
    assert failed(found) == {"listener", "liveness_lock"}


def test_excluded_check_does_not_count() -> None:
    found = health(lease_trusted_until=0.0)
    assert not found.passes("ready")
    assert found.passes("ready", exclude={"lease"})


def test_worker_that_drains_by_request_is_not_ready_but_live() -> None:
    found = health(must_drain=True)
    assert answers(found) == (True, False, True)
    assert failed(found) == {"claiming", "draining"}
    assert text_of(found, "draining") == "by request"
