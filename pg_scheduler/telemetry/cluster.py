"""Export the metrics of all workers of a database to Prometheus, from bounded queries.

One target is enough for any number of processes. The extra ``[metrics]`` installs what this needs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import add
from typing import Final, TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pg_scheduler.base.figures import JobFigures
from pg_scheduler.base.meter import MAX_NAMES, OTHER
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.cluster import ClusterFigures, read_cluster
from pg_scheduler.inspect.store.doctor import TableRow
from pg_scheduler.inspect.store.searches import TABLE
from pg_scheduler.jobs.validation import check_instance
from pg_scheduler.queue.dependencies import AFTER
from pg_scheduler.telemetry.families import Families
from pg_scheduler.telemetry.metrics import CLUSTER
from pg_scheduler.telemetry.process_metrics import add_jobs

__all__ = ["ClusterCollector"]

PREFIX: Final = "pg_scheduler_cluster_"

MAX_AGE_S: Final = 10.0
"""Seconds for which further scrapes get the families of the last collection."""

COLLECT_TIMEOUT_S: Final = 8.0
"""Seconds after which a collection counts as failed; Prometheus waits 10 s by default."""

MIN_UPDATES: Final = 1000
"""The minimum number of updates of rows from which their HOT ratio is computed."""

Value = TypeVar("Value")


class ClusterCollector(Collector):
    """The metrics of all workers, for a registry of prometheus_client.

    A scrape runs a bounded number of queries, at most every 10 s; further scrapes get the same answer. If the
    queries fail, or take longer than 8 s, the scrape has ``collect_errors_total`` and
    ``collect_duration_seconds`` only.

    Create it in the event loop of the pool. ``collect()`` may be called by any other thread.

    Args:
        inspector: Reads the database.

    Raises:
        TypeError: ``inspector`` is no Inspector.

    Example::

        from pg_scheduler.inspect import Inspector
        from pg_scheduler.telemetry.cluster import ClusterCollector
        from pg_scheduler.telemetry.prometheus import serve_metrics

        with serve_metrics(ClusterCollector(Inspector(scheduler)), port=0) as port:
            print(f"http://127.0.0.1:{port}/metrics")
    """

    def __init__(self, inspector: Inspector) -> None:
        remedy = "pass Inspector(scheduler), or Inspector(pool)"
        check_instance("inspector", inspector, Inspector, "an Inspector", remedy)
        tables = tables_of(inspector)
        self._reads, self._schema = tables.reads, tables.schema
        self._loop = asyncio.get_running_loop()
        self._lock = asyncio.Lock()
        self._names = _NameLimit(MAX_NAMES)
        self._hot_ratio = _HotRatio()
        self._errors = 0
        self._consecutive_failures = 0
        self._collected_at = float("-inf")
        self._families: Sequence[Metric] = ()

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector runs no query."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the families, at most 10 s old.

        Raises:
            RuntimeError: The event loop of the pool calls it, and would wait for itself.
            TimeoutError: The event loop is blocked.
        """
        if _running_loop() is self._loop:
            raise RuntimeError(
                "collect() was called in the event loop of the pool, which must run the queries; "
                "call it in a thread: await asyncio.to_thread(generate_latest, registry)"
            )
        refresh = asyncio.run_coroutine_threadsafe(self._refresh(), self._loop)
        # This scrape may have to wait for the collection of another one before its own collection. So the
        # timeout is longer than that of two collections.
        return refresh.result(3 * COLLECT_TIMEOUT_S)

    async def _refresh(self) -> Sequence[Metric]:
        """Return the last families; collect new ones before if they are too old."""
        # Scrapes that come at the same time share one collection.
        async with self._lock:
            began = time.monotonic()
            if began - self._collected_at >= MAX_AGE_S:
                families = await self._collect()
                duration_s = time.monotonic() - began
                families.add("collect_duration_seconds", duration_s)
                families.add("collect_errors", self._errors)
                self._families, self._collected_at = families.all, time.monotonic()
            return self._families

    async def _collect(self) -> Families:
        """Return the families of all figures; none if the figures could not be read."""
        families = Families(CLUSTER, PREFIX, self._schema)
        try:
            async with asyncio.timeout(COLLECT_TIMEOUT_S):
                figures = await read_cluster(self._reads)
        except Exception:  # of any kind: the scrape reports it, and the next one collects again
            self._errors += 1
            self._consecutive_failures += 1
            # During an outage, only the first failure is a warning.
            level = logging.WARNING if self._consecutive_failures == 1 else logging.DEBUG
            text = "metrics of the cluster could not be collected"
            logger.log(level, text, exc_info=True, extra=record_fields())
            return families
        if self._consecutive_failures:
            text = "metrics of the cluster are collected again, after %s failures"
            logger.warning(text, self._consecutive_failures, extra=record_fields())
            self._consecutive_failures = 0
        self._add_jobs(families, figures)
        _add_workers(families, figures)
        _add_schedules(families, figures)
        self._add_database(families, figures)
        return families

    def _add_jobs(self, families: Families, figures: ClusterFigures) -> None:
        """Add the metrics by job name: what waits, what has ended, and which tasks are paused."""
        claimed_names = sorted(figures.claimed)
        no_jobs = [(name, 0) for name in claimed_names]
        # increase() of Prometheus does not see the first value of a series. So the series of a name begin
        # with zeros, as soon as a worker claims the name or jobs of it are due. The second case is for names
        # that no worker claims: their jobs are due for a while before they expire and count.
        begun_names = sorted({*claimed_names, *(row.name for row in figures.backlog)})
        empty_figures = [(name, JobFigures()) for name in begun_names]
        totals = self._names.merge([*figures.jobs, *empty_figures], JobFigures.added)
        due_counts = [(row.name, row.due) for row in figures.backlog]
        due = self._names.merge([*due_counts, *no_jobs], add)
        families.add("jobs_due", _by_name(due))
        families.add("jobs_due_capped", figures.is_capped)
        ages_s: list[tuple[str, float]] = []
        for row in figures.waiting:
            age_s = 0.0
            if row.oldest_due_at:
                age_s = max((figures.now - row.oldest_due_at).total_seconds(), 0.0)
            ages_s.append((row.name, age_s))
        no_ages = [(name, 0.0) for name in begun_names]
        oldest = self._names.merge([*ages_s, *no_ages], max)
        families.add("oldest_due_seconds", _by_name(oldest))
        unknown = self._names.merge([*figures.unknown(), *no_jobs], add)
        families.add("jobs_unknown_name", _by_name(unknown))
        if figures.quarantined is not None:
            families.add("jobs_quarantined", figures.quarantined)
        # The series of jobs that wait for other jobs always exists. Those of limits and shares come and go.
        blocked_counts = {AFTER: 0, **figures.blocked}
        blocked = {(reason,): float(number) for reason, number in blocked_counts.items()}
        families.add("jobs_blocked", blocked)
        # The estimates come from the statistics of the server, which a new table does not have.
        estimates = figures.totals
        if estimates.jobs is not None and estimates.unfinished is not None:
            unfinished = estimates.unfinished + (estimates.blocked or 0)
            families.add("jobs_unfinished_estimate", unfinished)
            finished = max(estimates.jobs - unfinished, 0)
            families.add("jobs_finished_estimate", finished)
        # Each name has a value: 1 if its task is paused, and otherwise 0.
        paused = dict.fromkeys([*totals, *due], 0)
        paused.update(self._names.merge(((name, 1) for name in figures.paused), max))
        families.add("task_paused", _by_name(paused))
        add_jobs(families, totals)

    def _add_database(self, families: Families, figures: ClusterFigures) -> None:
        """Add the sizes of tables, and what concerns the server."""
        sizes = {(table.name,): float(table.total_bytes) for table in figures.tables}
        families.add("table_bytes", sizes)
        dead = {(table.name,): float(table.dead) for table in figures.tables}
        families.add("dead_rows", dead)
        # The ratio is that of the table of jobs. If its figures are missing, the last ratio remains.
        tables_of_jobs = [table for table in figures.tables if table.name == TABLE]
        ratio = self._hot_ratio.of(tables_of_jobs[0] if tables_of_jobs else None)
        if ratio is not None:
            families.add("hot_update_ratio", ratio)
        families.add("oldest_transaction_seconds", figures.oldest_transaction_s)
        families.add("clock_skew_seconds", figures.clock_skew_s)


def _add_workers(families: Families, figures: ClusterFigures) -> None:
    """Add the numbers of workers and of their slots, and when a worker was last declared dead."""
    states = Counter(alive=0, draining=0, dead=0)
    for worker in figures.workers:
        if not worker.is_alive:
            states["dead"] += 1
        elif worker.is_draining:
            states["draining"] += 1
        else:
            states["alive"] += 1
    families.add("workers", {(state,): number for state, number in states.items()})
    alive = [worker for worker in figures.workers if worker.is_alive]
    families.add("slots", sum(worker.slots for worker in alive))
    died_at = 0.0 if figures.last_death_at is None else figures.last_death_at.timestamp()
    families.add("last_death_timestamp_seconds", died_at)
    families.add("slots_busy", sum(worker.busy_slots for worker in alive))


def _add_schedules(families: Families, figures: ClusterFigures) -> None:
    """Add the metrics of each schedule, with the labels of its id and its task."""
    rows = [((row.schedule_id, row.task), row) for row in figures.schedules]
    enabled = {labels: float(row.is_enabled) for labels, row in rows}
    families.add("schedule_enabled", enabled)
    next_fires = {labels: row.next_fire_at.timestamp() for labels, row in rows if row.next_fire_at}
    families.add("schedule_next_fire_timestamp_seconds", next_fires)
    last_fires = {labels: row.last_fire_at.timestamp() for labels, row in rows if row.last_fire_at}
    families.add("schedule_last_fire_timestamp_seconds", last_fires)
    overdue = {labels: row.overdue_s for labels, row in rows}
    families.add("schedule_overdue_seconds", overdue)


def _by_name(values: dict[str, int] | dict[str, float]) -> dict[tuple[str], float]:
    """Return values by the tuple of their only label, which is the name of jobs."""
    return {(name,): float(value) for name, value in values.items()}


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of the caller; None in a thread without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _NameLimit:
    """Keep the first names that occur, up to a maximum, and replace all later ones by ``(other)``.

    A kept name is never replaced later, so that no counter decreases.
    """

    def __init__(self, max_names: int) -> None:
        self._max_names = max_names
        self._kept: set[str] = set()

    def merge(
        self, values: Iterable[tuple[str, Value]], plus: Callable[[Value, Value], Value]
    ) -> dict[str, Value]:
        """Return the values by name; combine values of the same name by the function ``plus``."""
        merged: dict[str, Value] = {}
        for series_name, value in values:
            name = self._kept_name(series_name)
            merged[name] = plus(merged[name], value) if name in merged else value
        return merged

    def _kept_name(self, name: str) -> str:
        """Return the name, and keep it; ``OTHER`` if enough names are kept already."""
        if name not in self._kept:
            if len(self._kept) >= self._max_names:
                return OTHER
            self._kept.add(name)
        return name


class _HotRatio:
    """Compute the share of HOT updates among the last 1,000 updates of a table or more.

    The first share is that of all updates since the statistics of the server were reset.
    """

    def __init__(self) -> None:
        self._previous_updates = 0
        self._previous_hot_updates = 0
        self._ratio: float | None = None

    def of(self, table: TableRow | None) -> float | None:
        """Return the last ratio, computed anew if the table has had 1,000 updates since; None before that.

        ``table`` has the numbers of updates since a reset; None if they are unknown.
        """
        if table is not None:
            updates = table.updates - self._previous_updates
            hot_updates = table.hot_updates - self._previous_hot_updates
            if updates < 0:  # the statistics of the server were reset
                updates, hot_updates = table.updates, table.hot_updates
            if updates >= MIN_UPDATES:
                self._ratio = hot_updates / updates
                self._previous_updates = table.updates
                self._previous_hot_updates = table.hot_updates
        return self._ratio
