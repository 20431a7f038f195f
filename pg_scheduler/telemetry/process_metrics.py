"""The metrics of a process, for whatever exports them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from pg_scheduler.base.figures import OUTCOMES, Histogram, JobFigures, Snapshot
from pg_scheduler.scheduler.health import Gauges

CLAIM_RESULTS: Final = ("full", "part", "empty")
STATUSES: Final = ("completed", "failed", "cancelled", "expired")

Labels: TypeAlias = tuple[str, ...]
Value: TypeAlias = float | Histogram
Values: TypeAlias = Value | Mapping[Any, Value]
"""A single value, or one for each tuple of label values."""


class Sink(Protocol):
    """Takes metrics."""

    def add(self, name: str, values: Values) -> None:
        """Take the values of a family of the table."""


def items_of(values: Values) -> Iterable[tuple[Labels, Value]]:
    """Return pairs of label values and a value; a single value has no labels."""
    if isinstance(values, Mapping):
        return values.items()
    return [((), values)]


def add_gauges(sink: Sink, gauges: Gauges) -> None:
    """Add the gauges of a process: the values that can fall as well as rise."""
    sink.add("slots", gauges.slots)
    sink.add("slots_busy", gauges.slots_busy)
    sink.add("results_waiting", gauges.results_waiting)
    sink.add("lease_remaining_seconds", gauges.lease_remaining_s)
    sink.add("loop_lag_seconds", gauges.loop_lag_s)
    sink.add("clock_offset_seconds", gauges.clock_offset_s)
    sink.add("listener_connected", gauges.is_listening)
    sink.add("accepting", gauges.is_accepting)
    sink.add("pool_connections", {("used",): gauges.pool_used, ("idle",): gauges.pool_idle})
    sink.add("pool_connections_max", gauges.pool_max)


def add_jobs(sink: Sink, jobs: Mapping[str, JobFigures]) -> None:
    """Add what ended, for how long it ran and how late it started, by job name."""
    ended: dict[Labels, Value] = {}
    for name, figures in jobs.items():
        # The numbers have the order of the outcomes.
        for outcome, number in zip(OUTCOMES, figures.ended, strict=True):
            ended[name, outcome] = number
    sink.add("jobs_ended", ended)
    sink.add("job_duration_seconds", {(name,): figures.durations for name, figures in jobs.items()})
    sink.add("job_lateness_seconds", {(name,): figures.lateness for name, figures in jobs.items()})


def add_counters(sink: Sink, counted: Snapshot, *, is_running: bool) -> None:
    """Add the counters of a process, which never fall, and its histograms.

    Its counters, durations and gauges have keys of a name and a label, which is empty if there is none.
    """
    jobs = counted.jobs
    sink.add("jobs_scheduled", {(name,): figures.scheduled for name, figures in jobs.items()})
    sink.add("jobs_started", {(name,): figures.started for name, figures in jobs.items()})
    add_jobs(sink, jobs)

    def labelled(counter: str, labels: Iterable[str] = ()) -> dict[Labels, float]:
        """Return the values of a counter by label, with 0 for each of these labels that has no value yet.

        Without the 0, Prometheus would not see the first increase of the series.
        """
        counts = {label: value for (name, label), value in counted.counters.items() if name == counter}
        return {(label,): counts.get(label, 0.0) for label in sorted({*labels, *counts})}

    def add_single(counter: str) -> None:
        """Add a counter without labels."""
        sink.add(counter, counted.counters.get((counter, ""), 0.0))

    sink.add("claims", labelled("claims", CLAIM_RESULTS))
    exchanges = counted.durations.get(("exchange_duration", ""), Histogram())
    sink.add("exchange_duration_seconds", exchanges)
    passes = {
        (label,): histogram
        for (name, label), histogram in counted.durations.items()
        if name == "pass_duration"
    }
    sink.add("pass_duration_seconds", passes)
    # The label of this counter is the name of the service and the kind of the error, with a blank between.
    kinds = [f"{service} {kind}" for (service,) in passes for kind in ("transient", "permanent")]
    errors: dict[Labels, float] = {}
    for (label,), value in labelled("service_errors", kinds).items():
        service, _, kind = label.rpartition(" ")
        errors[service, kind] = value
    sink.add("service_errors", errors)
    add_single("leases_lost")
    sink.add("loop_blocked_seconds", labelled("loop_blocked_seconds", ["", *jobs]))
    # The gauge can keep its last value when the Scheduler stops.
    sink.add("keeper_connected", is_running and counted.gauges.get("keeper_connected", 0))
    add_single("notifications_sent")
    add_single("notifications_received")
    add_single("jobs_reclaimed")
    add_single("workers_declared_dead")
    sink.add("jobs_vacuumed", labelled("jobs_vacuumed", STATUSES))
    sink.add("fire_times_planned", labelled("fire_times_planned"))
