"""The axis of the steps of a job: pauses are folded, and what ran is drawn to scale."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.dashboard.folded_scale import FoldedScale

NOW = datetime(2026, 11, 27, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def test_long_pause_is_folded_and_what_ran_is_to_scale() -> None:
    day = timedelta(days=14)
    scale = FoldedScale(NOW, NOW + day, [(NOW, NOW + SECOND), (NOW + SECOND, NOW + 4 * SECOND)])
    assert [piece.is_folded for piece in scale.pieces] == [False, False, True]
    assert scale.place(NOW + SECOND) == pytest.approx(92 / 4)
    assert scale.place(NOW + 4 * SECOND) == pytest.approx(92)
    assert scale.place(NOW + day) == 100


def test_short_pause_is_to_scale() -> None:
    scale = FoldedScale(
        NOW, NOW + 41 * SECOND, [(NOW, NOW + 20 * SECOND), (NOW + 21 * SECOND, NOW + 41 * SECOND)]
    )
    assert not any(piece.is_folded for piece in scale.pieces)
    assert scale.place(NOW + 20 * SECOND) == pytest.approx(100 * 20 / 41, abs=0.01)


@given(
    st.lists(st.tuples(st.integers(-50, 500), st.integers(-50, 500)), max_size=20),
    st.integers(0, 400),
    st.lists(st.integers(-100, 600), max_size=10),
)
def test_places_are_within_the_axis_and_in_the_order_of_time(
    spans: list[tuple[int, int]], end: int, instants: list[int]
) -> None:
    scale = FoldedScale(
        NOW, NOW + end * SECOND, [(NOW + since * SECOND, NOW + until * SECOND) for since, until in spans]
    )
    places = [scale.place(NOW + at * SECOND) for at in sorted(instants)]
    assert places == sorted(places)
    assert all(0 <= place <= 100 for place in places)
    assert sum(piece.width for piece in scale.pieces) == pytest.approx(100 if end else 0)
