"""The verdict of the soak on a figure."""

from __future__ import annotations

import math
import random

import pytest

from benchmarks.growth import Bound, judge

BOUND = Bound(percent=10, least=1)


def noisy(slope: float, count: int = 120) -> list[float]:
    """Return samples around 100 that rise by ``slope`` percent over the second half."""
    chance = random.Random(7)
    return [100 + slope * 2 * number / count + chance.gauss(0, 2) for number in range(count)]


@pytest.mark.parametrize(("slope", "grows"), [(0, False), (5, False), (20, True), (-20, False)])
def test_figure_grows_if_the_second_half_rises_by_more_than_its_bound(slope: float, grows: bool) -> None:
    found = judge(noisy(slope), BOUND)
    assert found.grows is grows
    assert found.percent == pytest.approx(slope, abs=8)


def test_growth_of_the_first_half_and_single_peaks_do_not_count() -> None:
    filling = [float(min(number, 60)) for number in range(120)]
    assert not judge(filling, BOUND).grows
    peaks = noisy(0)
    peaks[70::12] = [1000.0 + number for number in range(len(peaks[70::12]))]
    assert not judge(peaks, BOUND).grows


def test_rise_by_chance_does_not_count() -> None:
    few = [100.0] * 8 + [90.0, 115.0, 85.0, 110.0, 95.0, 120.0, 88.0, 125.0]
    found = judge(few, BOUND)
    assert found.percent > BOUND.percent
    assert not found.grows


def test_small_figure_may_grow() -> None:
    small = [number / 1000 for number in range(100)]
    assert judge(small, Bound(10)).grows
    assert not judge(small, BOUND).grows


def test_figure_that_is_zero_is_steady() -> None:
    assert judge([0.0] * 40, Bound(10)) == (0.0, 0.0, 0.0, False)


def test_too_few_samples_are_not_judged() -> None:
    with pytest.raises(ValueError, match="15 samples are too few; at least 16 are needed"):
        judge([math.pi] * 15, BOUND)
