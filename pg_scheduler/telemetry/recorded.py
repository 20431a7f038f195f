"""Metrics for OpenTelemetry that are recorded for each job, and so are optional."""

from __future__ import annotations

from typing import Final, TypeAlias

from opentelemetry.metrics import Histogram, Meter

from pg_scheduler.measure.figures import DURATIONS, LATENESS
from pg_scheduler.measure.meter import MAX_NAMES, OTHER

Attributes: TypeAlias = dict[str, str | int | float]

MESSAGING: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of the buckets that the conventions name, in seconds."""


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
        """Record a call that scheduled jobs, with its duration."""
        self._sent.add(count, attributes)
        if seconds is not None:
            self._operation.record(seconds, attributes)

    def record_processed(self, attributes: Attributes, seconds: float) -> None:
        """Record an attempt."""
        self._consumed.add(1, attributes)
        self._process.record(seconds, attributes)


class JobHistograms:
    """Durations and lateness of attempts by job name, in the buckets of the metrics for Prometheus."""

    def __init__(self, meter: Meter) -> None:
        def create(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return meter.create_histogram(
                f"pg_scheduler.{name}", "s", text, explicit_bucket_boundaries_advisory=bounds
            )

        self._durations = create("job_duration_seconds", "Durations of attempts.", DURATIONS)
        self._lateness = create("job_lateness_seconds", "Start minus due time of attempts.", LATENESS)
        self._attributes: dict[str, Attributes] = {}

    def record(self, job_name: str, duration_s: float, lateness_s: float) -> None:
        """Record an attempt. Names beyond the first ``MAX_NAMES`` count together."""
        attributes = self._attributes.get(job_name, _OTHER)
        if attributes is _OTHER and len(self._attributes) < MAX_NAMES:
            attributes = self._attributes[job_name] = {"job_name": job_name}
        self._durations.record(duration_s, attributes)
        self._lateness.record(max(lateness_s, 0.0), attributes)  # below 0 if the clock of the host is behind


_OTHER: Final[Attributes] = {"job_name": OTHER}
