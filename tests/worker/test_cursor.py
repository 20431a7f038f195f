"""Where the next claim starts, and for how long it may overlook an earlier job."""

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
    """The cursor's clock, which the test sets."""
    moment = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    return moment


def test_cursor_has_a_position_for_every_priority() -> None:
    assert sorted(PRIORITY_LEVELS.values()) == list(range(len(FROM_THE_START)))


def test_cursor_continues_each_priority_after_its_last_claim(seconds: list[float]) -> None:
    cursor = ClaimCursor()
    assert cursor.since() is FROM_THE_START
    cursor.advance([claimed(1, NOON), claimed(5, NOON - MINUTE), claimed(5, NOON)])
    assert cursor.since() == [NOON, None, NOON, None]
    cursor.advance([claimed(5, NOON + MINUTE), claimed(8, NOON)])
    assert cursor.since() == [NOON, None, NOON + MINUTE, NOON]
    cursor.advance([])
    assert cursor.since() == [NOON, None, NOON + MINUTE, NOON]


def test_cursor_continues_after_the_last_id_of_an_instant(seconds: list[float]) -> None:
    cursor = ClaimCursor()
    cursor.since()
    cursor.advance([claimed(5, NOON), claimed(5, NOON)._replace(job_id="last")])
    assert list(cursor.after) == ["", "", "last", ""]
    cursor.reset()
    cursor.since()
    assert cursor.after is NO_IDS


def test_cursor_starts_one_claim_from_the_beginning_after_a_reset(seconds: list[float]) -> None:
    cursor = ClaimCursor()
    cursor.since()
    cursor.advance([claimed(1, NOON)])
    cursor.reset()
    assert cursor.since() is FROM_THE_START
    cursor.advance([claimed(3, NOON)])
    assert cursor.since() == [None, NOON, None, None]


def test_cursor_reset_takes_effect_when_a_claim_in_progress_advances_after_it(seconds: list[float]) -> None:
    cursor = ClaimCursor()
    cursor.since()
    cursor.reset()
    cursor.advance([claimed(1, NOON)])
    assert cursor.since() is FROM_THE_START


def test_cursor_does_not_change_a_position_that_a_claim_uses(seconds: list[float]) -> None:
    cursor = ClaimCursor()
    cursor.since()
    cursor.advance([claimed(1, NOON)])
    given = cursor.since()
    cursor.advance([claimed(1, NOON + MINUTE)])
    assert given == [NOON, None, None, None]


def test_cursor_starts_from_the_beginning_when_it_is_too_old(seconds: list[float]) -> None:
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


def test_cursor_maximum_age_does_not_exceed_a_poll_interval(seconds: list[float]) -> None:
    cursor = ClaimCursor(0.5)
    cursor.since()
    cursor.advance([claimed(1, NOON)])
    seconds[0] += 0.4
    assert cursor.since() == [NOON, None, None, None]
    seconds[0] += 0.2
    assert cursor.since() is FROM_THE_START


def test_cursor_begins_at_a_later_start_after_the_next_reset(seconds: list[float]) -> None:
    cursor = ClaimCursor()
    cursor.since()
    cursor.advance([claimed(5, NOON)])
    start = [None, None, NOON - MINUTE, None]
    cursor.start_at(start, NO_IDS)
    assert cursor.since() == [None, None, NOON, None]
    cursor.reset()
    assert cursor.since() is start


@pytest.mark.parametrize("has_advanced", [False, True])
def test_cursor_begins_at_an_earlier_start_at_once(seconds: list[float], has_advanced: bool) -> None:
    cursor = ClaimCursor()
    cursor.start_at([None, None, NOON, None], ("", "", "b", ""))
    cursor.since()
    if has_advanced:
        cursor.advance([claimed(5, NOON + MINUTE)])
    start, ids = [None, None, NOON, None], ("", "", "a", "")
    cursor.start_at(start, ids)
    assert cursor.since() is start
    assert cursor.after is ids
