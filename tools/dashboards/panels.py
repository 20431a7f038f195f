"""The panels of the dashboards, in a line or two each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pg_scheduler.facts.outcomes import DECIDED_ATTEMPTS, FAILED_ATTEMPTS

C = "pg_scheduler_cluster_"
P = "pg_scheduler_"
SCHEMA = 'schema=~"$schema"'
NAMED = f'{SCHEMA},job_name=~"$name"'
ALIVE = f'{SCHEMA},state="alive"'
RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Panel:
    """A panel.

    Attributes:
        title: Its title.
        queries: Each expression and its legend.
        unit: The unit of Grafana.
        kind: ``timeseries``, ``stat`` or ``table``.
        width: Columns of 24.
        text: The explanation, where the title is not enough.
    """

    title: str
    queries: Sequence[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    text: str = ""


def one(metric: str, matchers: str = SCHEMA, by: str = "schema") -> str:
    """Return a cluster metric, once however many exporters there are."""
    return f"max by ({by}) ({C}{metric}{{{matchers}}})"


def rate(metric: str, labels: str, matchers: str = NAMED) -> str:
    """Return the rate of a cluster counter, once however many exporters there are."""
    return f"max by (schema, {labels}) (rate({C}{metric}{{{matchers}}}{RATE}))"


def quantile(share: float, metric: str, by: str = "le") -> str:
    """Return a quantile of a cluster histogram."""
    return f"histogram_quantile({share}, sum by ({by}) ({rate(metric + '_bucket', 'job_name, le')}))"


def stat(title: str, query: str, unit: str = "short") -> Panel:
    """Return a panel of one number."""
    return Panel(title, [(query, "")], unit, "stat", 4)


LATE = one("oldest_due_seconds", NAMED, "schema, job_name")
DUE = one("jobs_due", NAMED, "schema, job_name")
STARTS = f"sum by (job_name) ({rate('job_duration_seconds_count', 'job_name')})"


def ended(outcomes: Iterable[str]) -> str:
    """Return the rate of the attempts of each name that ended with one of these outcomes."""
    only = f'{NAMED},outcome=~"{"|".join(outcomes)}"'
    return f"sum by (job_name) ({rate('jobs_ended_total', 'job_name, outcome', only)})"


FAILURE_RATE = f"{ended(FAILED_ATTEMPTS)} / {ended(DECIDED_ATTEMPTS)}"
OVERDUE = one("schedule_overdue_seconds", by="schema, schedule")


def fire_times(which: str) -> str:
    """Return fire times in milliseconds."""
    return f"max by (schedule) ({C}schedule_{which}_fire_timestamp_seconds{{{SCHEMA}}}) * 1000"


def process(metric: str, by: str = "instance", matchers: str = SCHEMA) -> str:
    """Return a metric of each process."""
    return f"sum by ({by}) ({P}{metric}{{{matchers}}})"


def process_rate(metric: str, by: str = "instance", matchers: str = SCHEMA) -> str:
    """Return the rate of a counter of each process."""
    return f"sum by ({by}) (rate({P}{metric}{{{matchers}}}{RATE}))"


def process_quantile(metric: str, by: str, matchers: str = SCHEMA) -> str:
    """Return the 95th percentile of a histogram of the processes."""
    return f"histogram_quantile(0.95, {process_rate(metric + '_bucket', f'le, {by}', matchers)})"


DASHBOARDS: dict[str, Sequence[Panel]] = {
    "overview": [
        stat("Workers", f"sum({one('workers', ALIVE)})"),
        stat("Oldest due job", f"max({LATE})", "s"),
        stat("Due jobs", f"sum({DUE})"),
        stat("Slots busy", f"sum({one('slots_busy')}) / sum({one('slots')})", "percentunit"),
        stat("Quarantined jobs", f"sum({one('jobs_quarantined')})"),
        stat("Overdue schedules", f"sum({OVERDUE} > bool 60)"),
        Panel(
            "Ended attempts",
            [(f"sum by (outcome) ({rate('jobs_ended_total', 'job_name, outcome')})", "{{outcome}}")],
            "ops",
        ),
        Panel(
            "Lateness",
            [
                (quantile(0.5, "job_lateness_seconds"), "p50"),
                (quantile(0.95, "job_lateness_seconds"), "p95"),
                (quantile(0.99, "job_lateness_seconds"), "p99"),
                (f"max({LATE})", "oldest due job"),
            ],
            "s",
            text="Start minus due time. A queue that stands still starts no jobs: see its oldest due job.",
        ),
        Panel("Due jobs by name", [(f"topk(10, sum by (job_name) ({DUE}))", "{{job_name}}")]),
        Panel("Slots", [(f"sum({one('slots')})", "all"), (f"sum({one('slots_busy')})", "busy")]),
        Panel("Blocked jobs", [(f"sum by (on) ({one('jobs_blocked', by='schema, on')})", "{{on}}")]),
        Panel("Workers by state", [(f"sum by (state) ({one('workers', by='schema, state')})", "{{state}}")]),
    ],
    "tasks": [
        stat("Paused tasks", f"sum({one('task_paused', NAMED, 'schema, job_name')})"),
        stat("Due jobs without a worker", f"sum({one('jobs_unknown_name', NAMED, 'schema, job_name')})"),
        stat("Due jobs are counted in part", f"max({one('jobs_due_capped')})"),
        Panel("Attempts", [(STARTS, "{{job_name}}")], "ops"),
        Panel("Share of failures", [(FAILURE_RATE, "{{job_name}}")], "percentunit"),
        Panel(
            "Duration, p95", [(quantile(0.95, "job_duration_seconds", "job_name, le"), "{{job_name}}")], "s"
        ),
        Panel(
            "Lateness, p95", [(quantile(0.95, "job_lateness_seconds", "job_name, le"), "{{job_name}}")], "s"
        ),
        Panel("Due jobs", [(f"sum by (job_name) ({DUE})", "{{job_name}}")]),
        Panel("Oldest due job", [(f"max by (job_name) ({LATE})", "{{job_name}}")], "s"),
        Panel(
            "Scheduled by processes",
            [(process_rate("jobs_scheduled_total", "job_name", NAMED), "{{job_name}}")],
            "ops",
        ),
        Panel(
            "Paused",
            [(f"max by (job_name) ({one('task_paused', NAMED, 'schema, job_name')})", "{{job_name}}")],
        ),
    ],
    "schedules": [
        stat("Enabled schedules", f"sum({one('schedule_enabled', by='schema, schedule')})"),
        stat("Overdue schedules", f"sum({OVERDUE} > bool 60)"),
        stat("Longest overdue", f"max({OVERDUE})", "s"),
        Panel(
            "Next fire times",
            [(fire_times("next"), "")],
            "dateTimeFromNow",
            "table",
        ),
        Panel(
            "Last fire times",
            [(fire_times("last"), "")],
            "dateTimeFromNow",
            "table",
        ),
        Panel("Overdue", [(f"max by (schedule) ({OVERDUE})", "{{schedule}}")], "s"),
        Panel(
            "Fire times planned",
            [(process_rate("fire_times_planned_total", "schedule"), "{{schedule}}")],
            "ops",
        ),
    ],
    "workers": [
        Panel(
            "Slots busy", [(f"{process('slots_busy')} / {process('slots')}", "{{instance}}")], "percentunit"
        ),
        Panel(
            "Attempts started",
            [(process_rate("jobs_started_total", "instance", NAMED), "{{instance}}")],
            "ops",
        ),
        Panel("Attempts ended", [(process_rate("jobs_ended_total", "outcome", NAMED), "{{outcome}}")], "ops"),
        Panel(
            "Duration, p95",
            [(process_quantile("job_duration_seconds", "instance", NAMED), "{{instance}}")],
            "s",
        ),
        Panel(
            "Lateness, p95",
            [(process_quantile("job_lateness_seconds", "instance", NAMED), "{{instance}}")],
            "s",
        ),
        Panel(
            "State",
            [
                (process(f"{each}"), f"{{{{instance}}}} {each}")
                for each in ("accepting", "listener_connected", "keeper_connected")
            ],
            text="1 if the worker claims jobs, receives notifications, and its lease keeper is connected.",
        ),
        Panel("Lease remaining", [(process("lease_remaining_seconds"), "{{instance}}")], "s"),
        Panel("Lag of the event loop", [(process("loop_lag_seconds"), "{{instance}}")], "s"),
        Panel("Clock ahead of the server's", [(process("clock_offset_seconds"), "{{instance}}")], "s"),
        Panel(
            "Time since a worker died",
            [(f"time() - {one('last_death_timestamp_seconds')}", "{{schema}}")],
            "s",
        ),
        Panel(
            "Event loop blocked",
            [(process_rate("loop_blocked_seconds_total", "job_name", NAMED), "{{job_name}}")],
            "percentunit",
        ),
        Panel("Claims", [(process_rate("claims_total", "result"), "{{result}}")], "ops"),
        Panel(
            "Duration of claims, p95",
            [(process_quantile("exchange_duration_seconds", "instance"), "{{instance}}")],
            "s",
        ),
        Panel(
            "Passes of services, p95",
            [(process_quantile("pass_duration_seconds", "service"), "{{service}}")],
            "s",
        ),
        Panel(
            "Errors of services",
            [(process_rate("service_errors_total", "service, kind"), "{{service}} {{kind}}")],
            "ops",
        ),
        Panel("Results waiting", [(process("results_waiting"), "{{instance}}")]),
        Panel(
            "Connections of the pool",
            [
                (process("pool_connections", "instance, state"), "{{instance}} {{state}}"),
                (process("pool_connections_max"), "{{instance}} at most"),
            ],
        ),
        Panel(
            "Notifications",
            [
                (process_rate("notifications_sent_total"), "{{instance}} sent"),
                (process_rate("notifications_received_total"), "{{instance}} received"),
            ],
            "ops",
        ),
        Panel(
            "Failures of workers",
            [
                (process_rate("leases_lost_total"), "{{instance}} lost its lease"),
                (process_rate("workers_declared_dead_total"), "{{instance}} declared a worker dead"),
                (process_rate("jobs_reclaimed_total"), "{{instance}} reclaimed jobs"),
            ],
            "ops",
        ),
        Panel(
            "Releases",
            [(f"count by (version, schema_version, python) ({P}build_info{{{SCHEMA}}})", "")],
            "short",
            "table",
        ),
    ],
    "database": [
        stat("Oldest transaction", f"max({one('oldest_transaction_seconds')})", "s"),
        stat("Clock skew", f"max({one('clock_skew_seconds')})", "s"),
        stat("HOT updates", f"min({one('hot_update_ratio')})", "percentunit"),
        stat("Unfinished jobs, about", f"sum({one('jobs_unfinished_estimate')})"),
        stat("Finished jobs, about", f"sum({one('jobs_finished_estimate')})"),
        stat("Failed collections", f"sum({one('collect_errors_total')})"),
        Panel(
            "Size of tables",
            [(f"sum by (table) ({one('table_bytes', by='schema, table')})", "{{table}}")],
            "bytes",
        ),
        Panel("Dead rows", [(f"sum by (table) ({one('dead_rows', by='schema, table')})", "{{table}}")]),
        Panel("Share of HOT updates", [(one("hot_update_ratio"), "{{schema}}")], "percentunit"),
        Panel("Oldest transaction", [(one("oldest_transaction_seconds"), "{{schema}}")], "s"),
        Panel(
            "Jobs deleted by the vacuum",
            [(process_rate("jobs_vacuumed_total", "status"), "{{status}}")],
            "ops",
        ),
        Panel("Duration of a collection", [(one("collect_duration_seconds"), "{{schema}}")], "s"),
    ],
}
