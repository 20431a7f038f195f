"""The metrics of a process, for whatever exports them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from pg_scheduler.base.figures import DURATIONS, LATENESS, OUTCOMES, Histogram, JobFigures, Snapshot
from pg_scheduler.scheduler.health import Gauges

CLAIM_RESULTS: Final = ("full", "part", "empty")
STATUSES: Final = ("completed", "failed", "cancelled", "expired")

Labels = tuple[str, ...]
Key = TypeVar("Key", bound=Labels)


class Sink(Protocol):
    """Takes metrics: a single value, or one for each tuple of label values."""

    def gauge(self, name: str, text: str, values: float | Mapping[Key, float], *labels: str) -> None:
        """Take a gauge."""

    def counter(self, name: str, text: str, values: float | Mapping[Key, float], *labels: str) -> None:
        """Take a counter."""

    def histogram(
        self,
        name: str,
        text: str,
        values: Mapping[Key, Histogram],
        *labels: str,
        bounds: Sequence[float] = DURATIONS,
    ) -> None:
        """Take a histogram and export its buckets with these upper bounds, in seconds."""


def items_of(values: float | Mapping[Key, float]) -> Iterable[tuple[Labels, float]]:
    """Return values by their labels."""
    return values.items() if isinstance(values, Mapping) else [((), values)]


def add_gauges(families: Sink, now: Gauges) -> None:
    """Add what goes up and down."""
    families.gauge("slots", "Jobs that run at the same time, at most.", now.slots)
    families.gauge("slots_busy", "Slots that are taken now.", now.slots_busy)
    families.gauge("results_waiting", "Outcomes that are not yet written.", now.results_waiting)
    text = "Seconds until other workers may reclaim the jobs of this one."
    families.gauge("lease_remaining_seconds", text, now.lease_remaining_s)
    text = "Seconds for which the event loop kept a callback waiting at the last heartbeat."
    families.gauge("loop_lag_seconds", text, now.loop_lag_s)
    text = "Seconds by which the clock of this host is ahead of that of the server, at the last heartbeat."
    families.gauge("clock_offset_seconds", text, now.clock_offset_s)
    families.gauge("listener_connected", "Whether notifications arrive.", now.is_listening)
    families.gauge("accepting", "Whether the worker claims jobs.", now.is_accepting)
    by_state: dict[Labels, float] = {("used",): now.pool_used, ("idle",): now.pool_idle}
    families.gauge("pool_connections", "Connections of the pool, used or idle.", by_state, "state")
    families.gauge("pool_connections_max", "Connections that the pool may have.", now.pool_max)


def add_jobs(families: Sink, jobs: Mapping[str, JobFigures]) -> None:
    """Add what ended, for how long it ran and how late it started, by job name."""
    ended: dict[Labels, float] = {
        (name, outcome): number
        for name, figures in jobs.items()
        for outcome, number in zip(OUTCOMES, figures.ended, strict=True)
    }
    text = "Attempts that ended, and jobs that ended without one, by outcome."
    families.counter("jobs_ended", text, ended, "job_name", "outcome")
    durations = {(name,): figures.durations for name, figures in jobs.items()}
    families.histogram("job_duration_seconds", "Durations of attempts.", durations, "job_name")
    lateness = {(name,): figures.lateness for name, figures in jobs.items()}
    text = "Start minus due time of attempts."
    families.histogram("job_lateness_seconds", text, lateness, "job_name", bounds=LATENESS)


def add_counters(families: Sink, counted: Snapshot, *, is_running: bool) -> None:
    """Add what only grows, and the histograms."""
    jobs = counted.jobs
    scheduled: dict[Labels, float] = {(name,): figures.scheduled for name, figures in jobs.items()}
    families.counter("jobs_scheduled", "Jobs that this process stored.", scheduled, "job_name")
    started: dict[Labels, float] = {(name,): figures.started for name, figures in jobs.items()}
    families.counter("jobs_started", "Attempts that started.", started, "job_name")
    add_jobs(families, jobs)

    def labelled(metric: str, labels: Iterable[str] = ()) -> dict[Labels, float]:
        """Return a counter by its label, from 0 on: the first increase of a new series is not found."""
        counts = {label: value for (name, label), value in counted.counters.items() if name == metric}
        return {(label,): counts.get(label, 0.0) for label in sorted({*labels, *counts})}

    def single(metric: str, text: str) -> None:
        families.counter(metric, text, counted.counters.get((metric, ""), 0.0))

    claims = labelled("claims", CLAIM_RESULTS)
    families.counter(
        "claims", "Queries for due jobs: full if there may be more, part or empty.", claims, "result"
    )
    exchanges = counted.durations.get(("exchange_duration", ""), Histogram())
    families.histogram("exchange_duration_seconds", "Durations of queries for due jobs.", {(): exchanges})
    passes = {
        (label,): histogram
        for (name, label), histogram in counted.durations.items()
        if name == "pass_duration"
    }
    families.histogram("pass_duration_seconds", "Durations of the passes of services.", passes, "service")
    kinds = [f"{service} {kind}" for (service,) in passes for kind in ("transient", "permanent")]
    errors = {
        (service, kind): value
        for (label,), value in labelled("service_errors", kinds).items()
        for service, _, kind in [label.rpartition(" ")]
    }
    text = "Passes of services that failed: transient if the database was unavailable, else permanent."
    families.counter("service_errors", text, errors, "service", "kind")
    single("leases_lost", "Leases that expired while the worker ran.")
    blocked = labelled("loop_blocked_seconds", ["", *jobs])
    text = "Seconds for which the event loop was blocked; without a name if not by a job."
    families.counter("loop_blocked_seconds", text, blocked, "job_name")
    is_kept = is_running and counted.gauges.get("keeper_connected", 0)
    families.gauge("keeper_connected", "Whether the lease keeper is connected.", is_kept)
    single("notifications_sent", "Notifications that this process sent.")
    single("notifications_received", "Notifications that this process received.")
    single("jobs_reclaimed", "Jobs of dead workers that this process made pending again.")
    single("workers_declared_dead", "Workers that this process declared dead.")
    vacuumed = labelled("jobs_vacuumed", STATUSES)
    families.counter("jobs_vacuumed", "Finished jobs that this process deleted.", vacuumed, "status")
    fired = labelled("fire_times_planned")
    families.counter("fire_times_planned", "Fire times that this process enqueued.", fired, "schedule")
