"""Metrics for OpenTelemetry.

Some are read from what a process counts in any case. The others are recorded for each job, which takes time,
so they are optional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, cast

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation

from pg_scheduler.base.meter import MAX_NAMES, OTHER
from pg_scheduler.scheduler import Scheduler
from pg_scheduler.telemetry.metrics import PROCESS
from pg_scheduler.telemetry.process_metrics import Values, add_counters, add_gauges, items_of
from pg_scheduler.tools import meter_of, read_gauges

Attributes: TypeAlias = dict[str, str | int | float]

PREFIX: Final = "pg_scheduler."

MESSAGING: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of the buckets, in seconds, that the semantic conventions recommend."""


class MessagingMetrics:
    """The metrics of the semantic conventions for messaging."""

    def __init__(self, meter: Meter) -> None:
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Jobs that this process tried to schedule."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Attempts that this process started."
        )
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Durations of calls that schedule jobs.",
            explicit_bucket_boundaries_advisory=MESSAGING,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Durations of attempts.",
            explicit_bucket_boundaries_advisory=MESSAGING,
        )

    def record_sent(self, attributes: Attributes, count: int, seconds: float | None = None) -> None:
        """Record a call that scheduled jobs, with its duration unless that is None."""
        self._sent.add(count, attributes)
        if seconds is not None:
            self._operation.record(seconds, attributes)

    def record_processed(self, attributes: Attributes, seconds: float) -> None:
        """Record an attempt with its duration."""
        self._consumed.add(1, attributes)
        self._process.record(seconds, attributes)


class JobHistograms:
    """Durations and lateness of attempts by job name, in the buckets of the metrics for Prometheus."""

    def __init__(self, meter: Meter) -> None:
        def create(name: str) -> Histogram:
            """Create the histogram of a family of the table."""
            family = PROCESS[name]
            return meter.create_histogram(
                PREFIX + name, "s", family.text, explicit_bucket_boundaries_advisory=family.bounds
            )

        self._durations = create("job_duration_seconds")
        self._lateness = create("job_lateness_seconds")
        self._attributes: dict[str, Attributes] = {}

    def record(self, job_name: str, duration_s: float, lateness_s: float) -> None:
        """Record an attempt. Names beyond the first ``MAX_NAMES`` count together."""
        attributes = self._attributes.get(job_name, _OTHER)
        # The name is new. As long as there is room, it gets attributes of its own.
        if attributes is _OTHER and len(self._attributes) < MAX_NAMES:
            attributes = self._attributes[job_name] = {"job_name": job_name}
        self._durations.record(duration_s, attributes)
        # The lateness is below 0 if the clock of the host is behind.
        self._lateness.record(max(lateness_s, 0.0), attributes)


_OTHER: Final[Attributes] = {"job_name": OTHER}


class Readings:
    """The values of all instruments at one instant, by name. Histograms are left out: they need records."""

    def __init__(self) -> None:
        self.observations: dict[str, list[Observation]] = {}

    def add(self, name: str, values: Values) -> None:
        """Add the values of a family, unless it is a histogram, which is not observed here."""
        family = PROCESS[name]
        if family.kind == "histogram":
            return
        observations = []
        for key, value in items_of(values):
            attributes = dict(zip(family.labels, key, strict=True))
            observations.append(Observation(cast("float", value), attributes))
        self.observations[name] = observations


class _Reader:
    """Reads a Scheduler once per collection, in the thread of the exporter."""

    def __init__(self, source: Callable[[], Scheduler]) -> None:
        self._source = source
        self._readings = Readings()
        self._read_names: set[str] | None = None
        """The instruments that have read the values of this collection; None before the first one."""

    def read(self, name: str) -> Readings:
        """Return the values of this collection, for the instrument with this name.

        A collection reads each instrument once. So an instrument that reads again begins the next collection.
        """
        if self._read_names is None or name in self._read_names:
            self._readings, self._read_names = _readings_of(self._source()), set()
        self._read_names.add(name)
        return self._readings


def observe(meter: Meter, source: Callable[[], Scheduler]) -> None:
    """Create the instruments of a Scheduler.

    Args:
        meter: Creates them.
        source: Returns the Scheduler at each collection.
    """
    reader = _Reader(source)
    # These readings only state which instruments there are.
    readings = _readings_of(source())

    def values(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Return the function by which an instrument gets its values at each collection."""
        return lambda _options: reader.read(name).observations[name]

    for name in readings.observations:
        family = PROCESS[name]
        is_counter = family.kind == "counter"
        create = meter.create_observable_counter if is_counter else meter.create_observable_gauge
        unit = "s" if name.endswith("_seconds") else ""
        create(PREFIX + name, [values(name)], unit, family.text)


def _readings_of(scheduler: Scheduler) -> Readings:
    """Return the gauges of a Scheduler, and its counters unless it counts nothing."""
    readings = Readings()
    add_gauges(readings, read_gauges(scheduler))
    meter = meter_of(scheduler)
    if meter is not None:
        add_counters(readings, meter.snapshot(), is_running=scheduler.is_running)
    return readings
