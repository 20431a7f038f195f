"""Judge whether a figure grows: the test of Mann and Kendall, and the slope of Theil and Sen.

Both compare each pair of samples, so single peaks, as during a dump, do not decide.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import combinations
from typing import Final, NamedTuple

MIN_SAMPLES: Final = 8
CERTAIN: Final = 2.58
"""Standard deviations of the number of rises: chance exceeds them once in 200 times."""


class Bound(NamedTuple):
    """How much a figure may grow.

    Attributes:
        percent: Growth over the second half of the run, in percent of its median.
        least: A median up to which growth does not matter.
    """

    percent: float
    least: float = 0.0


class Growth(NamedTuple):
    """How a figure changed over the second half of a run.

    Attributes:
        median: Its median.
        percent: Its change in percent of the median, from the slope.
        deviations: How far the rises exceed those of chance, in standard deviations.
        grows: Whether it grows by more than its bound, and not by chance.
    """

    median: float
    percent: float
    deviations: float
    grows: bool


def judge(samples: Sequence[float], bound: Bound) -> Growth:
    """Judge samples at equal intervals by those of the second half.

    Raises:
        ValueError: There are fewer than 16 samples.

    Example:
        >>> judge([float(number) for number in range(40)], Bound(10)).grows
        True
        >>> judge([5.0, 6.0] * 20, Bound(10)).grows
        False
    """
    if len(samples) < 2 * MIN_SAMPLES:
        raise ValueError(f"{len(samples)} samples are too few; at least {2 * MIN_SAMPLES} are needed")
    late = samples[len(samples) // 2 :]
    pairs = [(j - i, late[j] - late[i]) for i, j in combinations(range(len(late)), 2)]
    rises = sum((change > 0) - (change < 0) for _, change in pairs)
    n = len(late)
    deviations = rises / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    median = statistics.median(late)
    slope = statistics.median(change / apart for apart, change in pairs)
    percent = 100 * slope * (n - 1) / median if median else 0.0
    grows = deviations > CERTAIN and percent > bound.percent and median > bound.least
    return Growth(median, percent, deviations, grows)
