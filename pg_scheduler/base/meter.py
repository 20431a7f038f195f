"""Count jobs by name and outcome, and measure their durations and lateness.

A worker records a batch of claims or completions with one call. Histograms have fixed buckets, so those of
different processes and times can be added. Only the event loop writes; any thread may take a snapshot.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple, Protocol

from pg_scheduler.base.figures import BOUNDS, OUTCOMES, Histogram, JobFigures, Snapshot

OTHER: Final = "(other)"
"""Stands for all names beyond the first ``MAX_NAMES``."""

MAX_NAMES: Final = 200
"""Names that one process counts separately."""

MAX_NAME_LENGTH: Final = 500
"""Characters of a name that the tables can hold in any language; longer names are counted as ``OTHER``."""

SAMPLED_FROM_PER_S: Final = 1000
"""Starts of one name within a second above which its durations and lateness are sampled."""

SAMPLE_SIZE: Final = 16
"""While a name is sampled, one in this many attempts is measured."""

RATE_INTERVAL_S: Final = 1.0
"""Seconds between two measurements of the rates of starts."""


class Start(Protocol):
    """An attempt that starts, as a claim describes it."""

    @property
    def job_name(self) -> str:
        """The name of the job."""

    @property
    def execution_time(self) -> datetime:
        """When it was due."""


class Batch(NamedTuple):
    """The counts since the batch before, to be written to the database.

    Attributes:
        number: The number of the batch, greater than that of any before it.
        jobs: By job name.
    """

    number: int
    jobs: Mapping[str, JobFigures]


class Meter:
    """Counts the jobs of one process.

    The first 1,000 attempts of a name within a second are measured. Beyond that, and in the next second, one
    in 16 is, and counts as 16. The numbers of starts and outcomes are always exact.

    Args:
        now: Returns the time at which attempts start, for their lateness; None for the clock of this machine.
        monotonic: Returns the seconds of a clock that is never set.
        max_names: How many names of jobs, and labels of each metric, are counted separately.
    """

    def __init__(
        self,
        now: Callable[[], datetime] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        max_names: int = MAX_NAMES,
    ) -> None:
        self._now = now or partial(datetime.now, UTC)
        self._monotonic = monotonic
        self._max_names = max_names
        self._jobs = _Jobs(max_names)
        self._counters: dict[tuple[str, str], float] = {}
        self._gauges: dict[str, float] = {}
        self._durations: dict[tuple[str, str], _Buckets] = {}
        self._label_counts: dict[str, int] = {}
        self._rated_at = monotonic()
        self._batch = Batch(0, {})
        # The figures as of the last batch; the next one has what was added since.
        self._in_batches: Mapping[str, JobFigures] = {}

    def record_scheduled(self, job_name: str, number: int = 1) -> None:
        """Count jobs that this process stored."""
        self._jobs[job_name].scheduled += number

    def record_starts(self, claims: Sequence[Start]) -> list[int]:
        """Count the attempts of one claim, and measure how late they are.

        Returns:
            For each attempt, the number of attempts that its measurement stands for; 0 if it is not measured.
        """
        monotonic_now = self._monotonic()
        if monotonic_now - self._rated_at >= RATE_INTERVAL_S:
            self._rate(monotonic_now)
        names = [claim.job_name for claim in claims]
        weights = [0] * len(names)
        if not names:
            return weights
        # Most claims are of one name, and this is the hot path.
        if names.count(names[0]) == len(names):
            job = self._jobs[names[0]]
            measured_places = job.start(len(names))
            if measured_claims := claims[measured_places]:
                weights[measured_places] = [job.weight] * len(measured_claims)
                now = self._now()
                for claim in measured_claims:
                    job.lateness.add((now - claim.execution_time).total_seconds(), job.weight)
            return weights
        now = self._now()
        for place, claim in enumerate(claims):
            job = self._jobs[claim.job_name]
            # The slice begins with the place 0 if the only attempt is measured, and behind it otherwise.
            if job.start(1).start == 0:
                weights[place] = job.weight
                job.lateness.add((now - claim.execution_time).total_seconds(), job.weight)
        return weights

    def record_duration(self, job_name: str, seconds: float, weight: int = 1) -> None:
        """Add how long an attempt ran, for as many attempts as ``record_starts()`` returned."""
        self._jobs[job_name].durations.add(seconds, weight)

    def record_completions(self, claims: Sequence[Start]) -> None:
        """Count the completed attempts of one batch."""
        names = [claim.job_name for claim in claims]
        # Most batches are of one name.
        if names and names.count(names[0]) == len(names):
            self._jobs[names[0]].ended[_COMPLETED] += len(names)
            return
        for name in names:
            self._jobs[name].ended[_COMPLETED] += 1

    def record_end(self, job_name: str, outcome: str, number: int = 1) -> None:
        """Count attempts, or jobs that ended without an attempt, by their outcome."""
        self._jobs[job_name].ended[_PLACES[outcome]] += number

    def count(self, metric: str, label: str = "", by: float = 1) -> None:
        """Add to a counter of the process; ``label`` distinguishes the counters of a metric."""
        key = (metric, label)
        # A new label may be one too many. Then the counter of ``OTHER`` is used.
        if key not in self._counters:
            key = self._bounded(key)
            self._counters.setdefault(key, 0)
        self._counters[key] += by

    def set_gauge(self, metric: str, value: float) -> None:
        """Set a gauge."""
        self._gauges[metric] = value

    def measure(self, metric: str, label: str, seconds: float) -> None:
        """Add a duration to a histogram; ``label`` distinguishes the histograms of a metric."""
        key = (metric, label)
        if key not in self._durations:
            key = self._bounded(key)
            self._durations.setdefault(key, _Buckets())
        self._durations[key].add(seconds, 1)

    def snapshot(self) -> Snapshot:
        """Return the current state; any thread may call it."""
        # The dicts are copied, because the event loop may add keys while another thread reads them.
        return Snapshot(
            {name: job.figures() for name, job in self._jobs.copy().items()},
            self._counters.copy(),
            self._gauges.copy(),
            {key: duration.histogram() for key, duration in self._durations.copy().items()},
        )

    def batch(self) -> Batch | None:
        """Return what was counted since the last batch; None if nothing was.

        The last batch is returned again until it is settled. A batch never changes, so it can be written
        again if it is unknown whether it was written.
        """
        if not self._batch.jobs:
            snapshot = self.snapshot()
            added = snapshot.jobs_since(self._in_batches)
            if added:
                self._batch = Batch(self._batch.number + 1, added)
                self._in_batches = snapshot.jobs
        return self._batch if self._batch.jobs else None

    def settle(self, batch: Batch) -> None:
        """Forget a batch that is written, unless it is not the last one."""
        # The number stays, so that the next batch gets a greater one.
        if batch.number == self._batch.number:
            self._batch = Batch(batch.number, {})

    def _bounded(self, key: tuple[str, str]) -> tuple[str, str]:
        """Return the key for a new label of a metric; that of ``OTHER`` if the metric has enough labels."""
        metric, _ = key
        label_count = self._label_counts.get(metric, 0)
        if label_count >= self._max_names:
            return (metric, OTHER)
        self._label_counts[metric] = label_count + 1
        return key

    def _rate(self, monotonic_now: float) -> None:
        """Stop sampling the names that had few starts since the last call: measure their attempts again."""
        # Up to this number of starts since the last call, all attempts of a name are measured.
        limit = SAMPLED_FROM_PER_S * (monotonic_now - self._rated_at)
        self._rated_at = monotonic_now
        for job in self._jobs.values():
            if job.started - job.rated <= limit:
                job.weight, job.skipped = 1, 0
            job.rated = job.started


class _Buckets:
    """A histogram that grows."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float, weight: int) -> None:
        """Add a value ``weight`` times; a negative one, of a clock that was set, counts as 0."""
        if seconds < 0:
            seconds = 0.0
        self.buckets[bisect_left(BOUNDS, seconds)] += weight
        self.total += seconds * weight

    def histogram(self) -> Histogram:
        """Return the current values."""
        return Histogram(tuple(self.buckets), self.total)


class _Job:
    """The figures of one name as they grow.

    Attributes:
        rated: The number of starts when the current second began.
        weight: One in this many attempts is measured, and its values count that many times.
        skipped: The number of attempts before the next one that is measured.
    """

    __slots__ = ("durations", "ended", "lateness", "rated", "scheduled", "skipped", "started", "weight")

    def __init__(self) -> None:
        self.scheduled = 0
        self.started = 0
        self.ended = [0] * len(OUTCOMES)
        self.durations = _Buckets()
        self.lateness = _Buckets()
        self.rated = 0
        self.weight = 1
        self.skipped = 0

    def start(self, number: int) -> slice:
        """Count attempts that start; return the slice of those among them that are measured."""
        self.started += number
        if self.weight == 1 and self.started - self.rated > SAMPLED_FROM_PER_S:
            # From now on, one in ``SAMPLE_SIZE`` attempts is measured: the one in the middle of each sample.
            self.weight, self.skipped = SAMPLE_SIZE, SAMPLE_SIZE // 2
        first = self.skipped
        # The distance of ``weight`` attempts is kept across calls. So this is how many attempts of the next
        # call precede the first one that is measured.
        self.skipped = (first - number) % self.weight
        return slice(first, number, self.weight)

    def figures(self) -> JobFigures:
        """Return the current values."""
        return JobFigures(
            self.scheduled,
            self.started,
            tuple(self.ended),
            self.durations.histogram(),
            self.lateness.histogram(),
        )


class _Jobs(dict[str, _Job]):
    """The figures by job name. All names that are not counted separately share the entry ``OTHER``."""

    def __init__(self, max_names: int) -> None:
        super().__init__()
        self._max_names = max_names

    def __missing__(self, name: str) -> _Job:
        is_surplus = len(self) >= self._max_names or len(name) > MAX_NAME_LENGTH
        # The entry OTHER itself is made in any case.
        if is_surplus and name != OTHER:
            return self[OTHER]
        job = self[name] = _Job()
        return job


_PLACES: Final[Mapping[str, int]] = {outcome: place for place, outcome in enumerate(OUTCOMES)}
_COMPLETED: Final = _PLACES["completed"]
