"""Where the next claim begins, and for how long at most something earlier is overlooked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from pg_scheduler.jobs.rows import Claim
from pg_scheduler.store.types import FROM_THE_START, NO_IDS, PRIORITY_LEVELS
from pg_scheduler.worker.pipeline import cursor as module
from pg_scheduler.worker.pipeline.cursor import MAX_AGE_S, ClaimCursor

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def claimed(priority: int, at: datetime) -> Claim:
    return Claim("id", "name", "name", 1, at, "{}", priority, 0, 0, None, None)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The marks' own clock, to be moved by hand."""
    moment = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    return moment


def test_there_is_a_mark_for_every_priority() -> None:
    assert sorted(PRIORITY_LEVELS.values()) == list(range(len(FROM_THE_START)))


def test_each_priority_goes_on_where_its_last_claim_ended(seconds: list[float]) -> None:
    cursor = ClaimCursor()
    assert cursor.since() is FROM_THE_START
    cursor.advance([claimed(1, NOON), claimed(5, NOON - MINUTE), claimed(5, NOON)])
    assert cursor.since() == [NOON, None, NOON, None]
    cursor.advance([claimed(5, NOON + MINUTE), claimed(8, NOON)])
    assert cursor.since() == [NOON, None, NOON + MINUTE, NOON]
    cursor.advance([])
    assert cursor.since() == [NOON, None, NOON + MINUTE, NOON]


def test_of_one_instant_it_goes_on_at_the_last_id(seconds: list[float]) -> None:
    cursor = ClaimCursor()
    cursor.since()
    cursor.advance([claimed(5, NOON), claimed(5, NOON)._replace(job_id="last")])
    assert list(cursor.after) == ["", "", "last", ""]
    cursor.reset()
    cursor.since()
    assert cursor.after is NO_IDS


def test_a_reset_begins_at_the_start_once(seconds: list[float]) -> None:
    cursor = ClaimCursor()
    cursor.since()
    cursor.advance([claimed(1, NOON)])
    cursor.reset()
    assert cursor.since() is FROM_THE_START
    cursor.advance([claimed(3, NOON)])
    assert cursor.since() == [None, NOON, None, None]


def test_a_reset_counts_though_a_claim_that_is_under_way_advances_after_it(seconds: list[float]) -> None:
    cursor = ClaimCursor()
    cursor.since()
    cursor.reset()
    cursor.advance([claimed(1, NOON)])
    assert cursor.since() is FROM_THE_START


def test_what_a_claim_was_given_does_not_change_under_it(seconds: list[float]) -> None:
    cursor = ClaimCursor()
    cursor.since()
    cursor.advance([claimed(1, NOON)])
    given = cursor.since()
    cursor.advance([claimed(1, NOON + MINUTE)])
    assert given == [NOON, None, None, None]


def test_under_load_it_begins_at_the_start_every_second(seconds: list[float]) -> None:
    cursor = ClaimCursor()
    cursor.since()
    for _ in range(8):
        cursor.advance([claimed(1, NOON)])
        seconds[0] += MAX_AGE_S / 8
        assert cursor.since() == [NOON, None, None, None]
    seconds[0] += 0.001  # advancing did not make it longer
    assert cursor.since() is FROM_THE_START
    cursor.advance([claimed(1, NOON)])
    assert cursor.since() == [NOON, None, None, None]
    assert MAX_AGE_S <= 2.0


def test_they_do_not_outlive_what_is_promised_of_a_lost_notification(seconds: list[float]) -> None:
    cursor = ClaimCursor(0.5)
    cursor.since()
    cursor.advance([claimed(1, NOON)])
    seconds[0] += 0.4
    assert cursor.since() == [NOON, None, None, None]
    seconds[0] += 0.2
    assert cursor.since() is FROM_THE_START
