"""Where the next claim begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from pg_scheduler.worker import cursor as module
from pg_scheduler.worker.claims import FROM_THE_START, NO_IDS, PRIORITY_LEVELS
from pg_scheduler.worker.cursor import (
    MARGIN,
    MARGIN_WITHOUT_NOTIFICATIONS,
    MAX_AGE_S,
    ClaimCursor,
)
from tests.support.inside import Claim

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


def kept(*since: datetime) -> ClaimCursor:
    """A cursor that is kept, at these positions of the priorities."""
    cursor = ClaimCursor()
    cursor.since()
    cursor.is_kept = True
    cursor.advance([claimed(priority, at) for priority, at in zip(PRIORITY_LEVELS, since, strict=True)])
    return cursor


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


@pytest.mark.parametrize("is_kept", [False, True])
def test_cursor_starts_one_claim_from_the_beginning_after_a_reset(
    seconds: list[float], is_kept: bool
) -> None:
    cursor = ClaimCursor()
    cursor.since()
    cursor.is_kept = is_kept
    cursor.advance([claimed(1, NOON)])
    cursor.reset()
    assert cursor.since() is FROM_THE_START
    assert not cursor.is_kept
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
    cursor.return_to(NOON - MINUTE)
    cursor.since()
    assert given == [NOON, None, None, None]


def test_cursor_at_the_start_stays_there_when_a_time_is_announced(seconds: list[float]) -> None:
    """The object tells the claimer that no claim from the start has to follow."""
    cursor = ClaimCursor()
    cursor.since()
    cursor.return_to(NOON)
    assert cursor.since() is FROM_THE_START


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


def test_cursor_that_is_kept_does_not_age(seconds: list[float]) -> None:
    cursor = kept(NOON, NOON, NOON, NOON)
    seconds[0] += 1e6
    assert cursor.since() == [NOON] * 4


def test_cursor_returns_to_the_earliest_time_that_was_announced(seconds: list[float]) -> None:
    cursor = kept(NOON, NOON + MINUTE, NOON + 2 * MINUTE, NOON - MINUTE)
    cursor.return_to(NOON + 9 * MINUTE)
    assert cursor.since() == [NOON, NOON + MINUTE, NOON + 2 * MINUTE, NOON - MINUTE]
    assert list(cursor.after) == ["id"] * 4
    cursor.return_to(NOON)
    cursor.return_to(NOON + MINUTE)
    assert cursor.since() == [NOON, NOON, NOON, NOON - MINUTE]
    assert list(cursor.after) == ["", "", "", "id"]


def test_cursor_returns_to_a_time_when_a_claim_in_progress_moves_the_position(seconds: list[float]) -> None:
    cursor = kept(NOON, NOON, NOON, NOON)
    cursor.return_to(NOON - MINUTE)
    cursor.pass_until(NOON + MINUTE, is_notified=True)
    assert cursor.since() == [NOON - MINUTE] * 4


@pytest.mark.parametrize(("is_notified", "margin"), [(True, MARGIN), (False, MARGIN_WITHOUT_NOTIFICATIONS)])
def test_cursor_leaves_a_margin_for_inserts_that_are_not_committed(
    seconds: list[float], is_notified: bool, margin: timedelta
) -> None:
    cursor = kept(NOON, NOON, NOON, NOON)
    cursor.pass_until(NOON + MINUTE, is_notified=is_notified)
    assert list(cursor.since()) == [NOON + MINUTE - margin] * 4
    assert cursor.after is NO_IDS
    cursor.pass_until(NOON - MINUTE, is_notified=is_notified)  # the clock of the database was set back
    assert list(cursor.since()) == [NOON - MINUTE - margin] * 4
