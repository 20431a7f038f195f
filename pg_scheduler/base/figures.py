"""Figures about jobs: numbers by outcome, and histograms with fixed buckets.

The buckets are the same everywhere, so histograms of different processes and times can be added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

JobOutcome: TypeAlias = Literal[
    "completed",
    "failed",
    "retried",
    "cancelled",
    "skipped",
    "released",
    "snoozed",
    "expired",
    "lost",
    "suspended",
]
OUTCOMES: Final[tuple[JobOutcome, ...]] = get_args(JobOutcome)
"""How attempts end, and jobs that end without one; in the order of ``JobFigures.ended``."""

BOUNDS: Final = (
    *(0.0001, 0.0002, 0.0005),
    *(0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.015, 0.025, 0.035, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.35, 0.5, 0.75),
    *(1.0, 1.5, 2.5, 3.5, 5.0, 7.5),
    *(10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0),
    *(120.0, 180.0, 300.0, 450.0, 600.0, 900.0),
    *(1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0, 86_400.0, 604_800.0),
)
"""The upper bounds of all buckets but the last, in seconds; a bound belongs to its bucket.

Tables contain histograms with these buckets: a change needs a migration.
"""

DURATIONS: Final = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
LATENESS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 300.0, 3600.0),
)
"""The upper bounds of exported buckets, in seconds; each is among ``BOUNDS``."""


class Histogram(NamedTuple):
    """Numbers of values by bucket, and the sum of the values in seconds."""

    buckets: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    total: float = 0.0

    @property
    def number(self) -> int:
        """The number of values."""
        return sum(self.buckets)

    @classmethod
    def added(cls, *histograms: Histogram) -> Histogram:
        """Return a histogram with the values of all these histograms, of which there is at least one."""
        return cls(
            _sums_by_place(histogram.buckets for histogram in histograms),
            sum(histogram.total for histogram in histograms),
        )

    def minus(self, earlier: Histogram) -> Histogram:
        """Return the values that were added since an earlier state."""
        buckets = tuple(a - b for a, b in zip(self.buckets, earlier.buckets, strict=True))
        return Histogram(buckets, self.total - earlier.total)

    def at_most(self, bounds: Iterable[float]) -> list[int]:
        """Return for each bound the number of values that do not exceed it.

        Raises:
            ValueError: A bound is not among ``BOUNDS``.
        """
        return [sum(self.buckets[: BOUNDS.index(bound) + 1]) for bound in bounds]

    def quantile(self, share: float) -> float | None:
        """Estimate the value that this share of the values does not exceed; None without values.

        If all values are in one bucket, their mean is returned. Otherwise the bucket of the result is found
        first. The result is estimated as if the values of this bucket were evenly spread around their mean.
        Values beyond the last bound count as that bound.
        """
        # The indexes of the buckets that have values.
        places = [place for place, number in enumerate(self.buckets) if number]
        if not places:
            return None
        if len(places) == 1:
            start, end = limits_of_bucket(places[0])
            return _within(start, self.total / self.number, end)
        # Find the bucket that has the value of this rank, where 1 is the rank of the smallest value.
        rank = share * self.number
        number_below = 0
        result_place = places[-1]
        for place in places[:-1]:
            if number_below + self.buckets[place] >= rank:
                result_place = place
                break
            number_below += self.buckets[place]
        start, end = limits_of_bucket(result_place)
        # The mean of a single bucket is unknown, so it is estimated. If the sum of all values is 5 % greater
        # than that of the middles of their buckets, the mean of each bucket is 5 % greater than its middle.
        sum_of_middles = sum(self.buckets[place] * sum(limits_of_bucket(place)) / 2 for place in places)
        mean = _within(start, (start + end) / 2 * self.total / sum_of_middles, end)
        # The values are evenly spread from mean - spread to mean + spread, which are within the bucket.
        spread = min(mean - start, end - mean)
        share_of_bucket = max(rank - number_below, 0.0) / self.buckets[result_place]
        return mean + spread * (2 * share_of_bucket - 1)

    @property
    def ceiling(self) -> float | None:
        """An upper bound of the values, at most the last one of ``BOUNDS``; None without values."""
        places = [place for place, number in enumerate(self.buckets) if number]
        if not places:
            return None
        # The sum of the values is an upper bound too, because none of them is negative.
        start, end = limits_of_bucket(places[-1])
        return _within(start, self.total, end)


def _within(start: float, value: float, end: float) -> float:
    """Return a value limited to these bounds; the lower bound if the value is NaN."""
    # max() returns its first argument if the second one is NaN.
    return min(end, max(start, value))


def limits_of_bucket(place: int) -> tuple[float, float]:
    """Return the lower and the upper bound of a bucket in seconds.

    The last bucket has no upper bound, so both are its lower bound.
    """
    start = BOUNDS[place - 1] if place else 0.0
    last_place = len(BOUNDS) - 1
    return start, BOUNDS[min(place, last_place)]


def are_in_one_bucket(first: float, second: float) -> bool:
    """Return whether two values are in one bucket, so that estimates of them do not show a difference."""
    return bisect_left(BOUNDS, first) == bisect_left(BOUNDS, second)


class JobFigures(NamedTuple):
    """The figures of the jobs of one name.

    Attributes:
        scheduled: Jobs that this process stored.
        started: Attempts that started.
        ended: Numbers by outcome, in the order of ``OUTCOMES``.
        durations: How long attempts ran.
        lateness: Start minus due time of attempts.
    """

    scheduled: int = 0
    started: int = 0
    ended: tuple[int, ...] = (0,) * len(OUTCOMES)
    durations: Histogram = Histogram()
    lateness: Histogram = Histogram()

    @classmethod
    def added(cls, *figures: JobFigures) -> JobFigures:
        """Return the sum of all these figures, of which there is at least one."""
        return cls(
            sum(part.scheduled for part in figures),
            sum(part.started for part in figures),
            _sums_by_place(part.ended for part in figures),
            Histogram.added(*(part.durations for part in figures)),
            Histogram.added(*(part.lateness for part in figures)),
        )

    def minus(self, earlier: JobFigures) -> JobFigures:
        """Return what was added since an earlier state."""
        return JobFigures(
            self.scheduled - earlier.scheduled,
            self.started - earlier.started,
            tuple(a - b for a, b in zip(self.ended, earlier.ended, strict=True)),
            self.durations.minus(earlier.durations),
            self.lateness.minus(earlier.lateness),
        )


class Snapshot(NamedTuple):
    """The state of a Meter at one instant. No number of jobs, counter or histogram ever decreases.

    Attributes:
        jobs: By job name.
        counters: Events of the process, by metric and label; the label is empty if there is one number.
        gauges: The last value of each metric that goes up and down.
        durations: Of passes and claims, by metric and label.
    """

    jobs: Mapping[str, JobFigures]
    counters: Mapping[tuple[str, str], float]
    gauges: Mapping[str, float]
    durations: Mapping[tuple[str, str], Histogram]

    def jobs_since(self, earlier: Mapping[str, JobFigures]) -> dict[str, JobFigures]:
        """Return what was added since an earlier state, by job name, without names that have nothing new."""
        added = {name: figures.minus(earlier.get(name, _NOTHING)) for name, figures in self.jobs.items()}
        return {name: figures for name, figures in added.items() if _has_counts(figures)}


_NOTHING: Final = JobFigures()


def _sums_by_place(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the sums of the numbers at the same place of each row."""
    return tuple(map(sum, zip(*rows, strict=True)))


def _has_counts(figures: JobFigures) -> bool:
    """Return whether anything was counted.

    Lateness is not examined, because it is measured only of attempts that were counted as started.
    """
    return bool(figures.scheduled or figures.started or any(figures.ended) or any(figures.durations.buckets))
