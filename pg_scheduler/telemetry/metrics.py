"""The table of metrics: what exporters export, what the documentation lists, and what alerts may ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from pg_scheduler.base.figures import DURATIONS, LATENESS

Kind = Literal["gauge", "counter", "histogram"]


class Family(NamedTuple):
    """A family of metrics.

    Attributes:
        name: Its name, without the prefix of the table, and without the suffix ``_total`` of a counter.
        text: What a value is, as a sentence.
        labels: The names of its labels.
        bounds: The upper bounds of the buckets of a histogram, in seconds.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    bounds: Sequence[float] = DURATIONS

    @property
    def sample_name(self) -> str:
        """The name of its samples, without the prefix."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _by_name(*families: Family) -> dict[str, Family]:
    """Return families by their names."""
    return {family.name: family for family in families}


_OF_JOBS: Final = (
    Family(
        "jobs_ended",
        "counter",
        "Attempts that ended, and jobs that ended without one, by outcome.",
        labels=("job_name", "outcome"),
    ),
    Family("job_duration_seconds", "histogram", "Durations of attempts.", labels=("job_name",)),
    Family(
        "job_lateness_seconds",
        "histogram",
        "Start minus due time of attempts.",
        labels=("job_name",),
        bounds=LATENESS,
    ),
)

PROCESS: Final[Mapping[str, Family]] = _by_name(
    Family(
        "build_info",
        "gauge",
        "The release of pg_scheduler, of its tables and of Python.",
        labels=("version", "schema_version", "python"),
    ),
    Family("slots", "gauge", "Jobs that run at the same time, at most."),
    Family("slots_busy", "gauge", "Slots that are taken now."),
    Family("results_waiting", "gauge", "Outcomes that are not yet written."),
    Family(
        "lease_remaining_seconds", "gauge", "Seconds until other workers may reclaim the jobs of this one."
    ),
    Family(
        "loop_lag_seconds",
        "gauge",
        "Seconds for which the event loop kept a callback waiting at the last heartbeat.",
    ),
    Family(
        "clock_offset_seconds",
        "gauge",
        "Seconds by which the clock of this host is ahead of that of the server, at the last heartbeat.",
    ),
    Family("listener_connected", "gauge", "Whether notifications arrive."),
    Family("accepting", "gauge", "Whether the worker claims jobs."),
    Family("pool_connections", "gauge", "Connections of the pool, used or idle.", labels=("state",)),
    Family("pool_connections_max", "gauge", "Connections that the pool may have."),
    *_OF_JOBS,
    Family("jobs_scheduled", "counter", "Jobs that this process stored.", labels=("job_name",)),
    Family("jobs_started", "counter", "Attempts that started.", labels=("job_name",)),
    Family(
        "claims",
        "counter",
        "Queries for due jobs: full if there may be more, part or empty.",
        labels=("result",),
    ),
    Family("exchange_duration_seconds", "histogram", "Durations of queries for due jobs."),
    Family("pass_duration_seconds", "histogram", "Durations of the passes of services.", labels=("service",)),
    Family(
        "service_errors",
        "counter",
        "Passes of services that failed: transient if the database was unavailable, else permanent.",
        labels=("service", "kind"),
    ),
    Family("leases_lost", "counter", "Leases that expired while the worker ran."),
    Family(
        "loop_blocked_seconds",
        "counter",
        "Seconds for which the event loop was blocked; without a name if not by a job.",
        labels=("job_name",),
    ),
    Family("keeper_connected", "gauge", "Whether the lease keeper is connected."),
    Family("notifications_sent", "counter", "Notifications that this process sent."),
    Family("notifications_received", "counter", "Notifications that this process received."),
    Family("jobs_reclaimed", "counter", "Jobs of dead workers that this process made pending again."),
    Family("workers_declared_dead", "counter", "Workers that this process declared dead."),
    Family("jobs_vacuumed", "counter", "Finished jobs that this process deleted.", labels=("status",)),
    Family("fire_times_planned", "counter", "Fire times that this process enqueued.", labels=("schedule",)),
)
"""The metrics of a process. Their names begin with ``pg_scheduler_``."""

CLUSTER: Final[Mapping[str, Family]] = _by_name(
    Family("collect_duration_seconds", "gauge", "Duration of the queries of this collection."),
    Family("collect_errors", "counter", "Collections that failed."),
    Family(
        "jobs_due",
        "gauge",
        "Due jobs that wait for a slot, by the name that a worker must claim.",
        labels=("job_name",),
    ),
    Family("jobs_due_capped", "gauge", "Whether counting due jobs stopped after 50,000 unfinished jobs."),
    Family(
        "oldest_due_seconds",
        "gauge",
        "Age of the oldest due job; 0 while the task is paused.",
        labels=("job_name",),
    ),
    Family(
        "jobs_unknown_name", "gauge", "Due jobs of names that no live worker claims.", labels=("job_name",)
    ),
    Family("jobs_quarantined", "gauge", "Quarantined jobs among the newest 20,000 unsuccessful ones."),
    Family(
        "jobs_blocked",
        "gauge",
        "Jobs that wait: for other jobs (after), for a limit (limit:NAME), or for the turn of their tenant "
        "(share:NAME); at most 20,000 are counted.",
        labels=("on",),
    ),
    Family(
        "jobs_unfinished_estimate",
        "gauge",
        "About how many jobs are pending or running; absent before the first ANALYZE.",
    ),
    Family(
        "jobs_finished_estimate", "gauge", "About how many jobs have ended; absent before the first ANALYZE."
    ),
    Family("task_paused", "gauge", "Whether the task is paused.", labels=("job_name",)),
    Family("table_bytes", "gauge", "Size of a table with its indexes.", labels=("table",)),
    Family("dead_rows", "gauge", "About how many dead rows a table has.", labels=("table",)),
    Family(
        "hot_update_ratio",
        "gauge",
        "Share of HOT updates among the last 1,000 or more updates of jobs; absent before.",
    ),
    Family(
        "oldest_transaction_seconds",
        "gauge",
        "Age of the oldest transaction that prevents the removal of dead rows.",
    ),
    Family("clock_skew_seconds", "gauge", "Clock of the database minus the clock of this host."),
    Family(
        "workers",
        "gauge",
        "Workers that run jobs: alive, draining, or dead until their jobs are reclaimed.",
        labels=("state",),
    ),
    Family("slots", "gauge", "Slots of live workers."),
    Family(
        "last_death_timestamp_seconds",
        "gauge",
        "When a worker was last declared dead; 0 if none was within an hour, or the role may not see it.",
    ),
    Family("slots_busy", "gauge", "Slots of live workers that were taken at their last heartbeats."),
    Family(
        "schedule_enabled",
        "gauge",
        "Whether the schedule is neither paused nor finished.",
        labels=("schedule", "task"),
    ),
    Family("schedule_next_fire_timestamp_seconds", "gauge", "Next fire time.", labels=("schedule", "task")),
    Family("schedule_last_fire_timestamp_seconds", "gauge", "Last fire time.", labels=("schedule", "task")),
    Family(
        "schedule_overdue_seconds",
        "gauge",
        "Seconds since a schedule should have fired, or its pause should have ended; 0 before that.",
        labels=("schedule", "task"),
    ),
    *_OF_JOBS,
)
"""The metrics of all workers. Their names begin with ``pg_scheduler_cluster_``."""
